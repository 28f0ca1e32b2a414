// Doorbells: how threads of all layers sleep and are woken.
//
//   sleeper  S1  arm       marks the doorbell as armed
//            S2  recheck   evaluates the condition; the thread does not sleep if it holds
//            S3  wait      sleeps, unless the doorbell was rung since S1
//   ringer   R1            makes the condition true
//            R2  ring      if the doorbell is armed: disarms it, and wakes the sleeper
//
// wait_until() in wait.h takes the sleeper's steps. A layer supplies only the condition.
//
// No wake-up is lost. S1 writes the mark, then S2 reads the condition. R1 writes the condition,
// then R2 reads the mark. Both sides order the write before the read (store-load order). So at
// least one of the two reads sees the other side's write. If S2 sees the condition, the thread does
// not sleep. If R2 sees the mark, the ringer changes the word that S3 compares, and wakes
// afterwards. If the thread does not sleep yet, S3 finds the changed word and returns; otherwise
// the wake-up ends its sleep. A ringer that finds
// the doorbell disarmed by another ringer need not wake: the other ringer wakes the sleeper, which
// repeats S1 and S2 before it sleeps again, and then sees the R1 of this ringer.
//
// What orders the two steps of each side:
//   ringer (R1, R2)                       sleeper (S1, S2)
//   Doorbell::ring(): full_fence()        arm(), which fences
//   SleeperSet::armed(): full_fence()     arm(), which fences
//   a plain store, a compiler fence,      arm(), then fence_ringers(): a fence on all processors
//     then is_armed()                       that run ringers
//   RemoteDoorbell::ring(): exchange,     WRITE, then READ, on one queue pair (remote_doorbell.h)
//     then load (both seq_cst)
//   a completion: the device              CompletionQueue::arm(), then poll()
//   ReceiverDoorbells::wake(): take()     arm() of `doorbell`, then arm() of `receives`
//   Synchronizer::decrease()              one read-modify-write of one word is both steps
//
// Back ends. A Doorbell is a futex, of one process or in memory that processes of a host share; the
// waking costs the ringer one system call. The ringer of a RemoteDoorbell sends an event instead,
// as immediate data; the process that receives it rings the Doorbell of the sleeper.
//
// Cost. A ringer makes a system call, or sends an event, only if a sleeper has armed the doorbell
// since the last ring. Otherwise ring() is a fence and a load of a cache line that no ringer
// writes.
//
// tests/dtutils/doorbell_interleavings_test.cc explores all interleavings of this code, store
// buffers included, and shows that each of the steps above is necessary.
#ifndef CARIAMA_DTUTILS_DOORBELL_H_
#define CARIAMA_DTUTILS_DOORBELL_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <type_traits>

#include "dtutils/export.h"

namespace cariama {

// The point in time at which a wait ends. kForever never comes.
using Deadline = std::chrono::steady_clock::time_point;
inline constexpr Deadline kForever = Deadline::max();
// Returns the point in time that is `span` from now: now for a negative span, kForever for a span
// that the clock cannot represent. The type of the span is deduced: converting one of 300 years
// from milliseconds to nanoseconds would overflow.
template <typename Rep, typename Period>
[[nodiscard]] Deadline deadline_after(std::chrono::duration<Rep, Period> span) {
  using Span = std::chrono::duration<std::common_type_t<Rep, int64_t>, Period>;
  const Deadline now = std::chrono::steady_clock::now();
  if (!(Span(span) < std::chrono::duration_cast<Span>(kForever - now))) return kForever;
  return now + std::chrono::duration_cast<Deadline::duration>(std::max(Span(span), Span::zero()));
}

namespace internal {

// The operations of the machine that a doorbell needs. A test replaces them by those of a model.
struct CARIAMA_DTUTILS_EXPORT Machine {
  template <typename T>
  using Atomic = std::atomic<T>;
  using Until = Deadline;

  // Orders earlier stores before later loads, also for the processor.
  static void full_fence() {
#if defined(__x86_64__)
    // As strong as mfence, and cheaper: the cache line of the stack belongs to this core.
    asm volatile("lock; orl $0, (%%rsp)" ::: "memory", "cc");
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
  // Executes a full fence on every processor that runs a thread of a process that has called
  // register_ringers() (internal/register_ringers.h). One system call.
  static void fence_ringers();
  // See internal/futex.h. wake() does not read the word.
  static void wait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline);
  static void wake(const std::atomic<uint32_t>& word);
};

// The code of Doorbell.
template <typename On>
class BasicDoorbell {
 public:
  // Called by a sleeper (S1). Returns the value that wait() expects. The doorbell stays armed until
  // a ringer disarms it, also if no thread sleeps any more: that costs one unneeded ring.
  [[nodiscard]] uint32_t arm() {
    const uint32_t expected = word_.fetch_or(kArmed, std::memory_order_seq_cst) | kArmed;
    On::full_fence();
    return expected;
  }
  // Called by a sleeper (S3): sleeps unless the doorbell was rung since arm() returned `expected`.
  // Spurious returns are possible.
  void wait(uint32_t expected, typename On::Until deadline) { On::wait(word_, expected, deadline); }

  // Called by a ringer, after it has made the condition true (R2): wakes all sleepers that have
  // armed the doorbell. Returns true if there may have been one. The write that makes the condition
  // true, and the sleeper's read of it, must be atomic.
  bool ring() {
    On::full_fence();
    if (!is_armed() || !disarm()) return false;
    On::wake(word_);
    return true;
  }
  // Called by a ringer (R2) for a doorbell on which no thread sleeps. Such a doorbell records that
  // at least one of several other doorbells is armed. Disarms the doorbell, and returns true if it
  // was armed; the ringer then rings the other doorbells. A sleeper arms its own doorbell first,
  // and then this doorbell. (In the reverse order, an earlier event could disarm this doorbell
  // before the sleeper has armed its own.)
  [[nodiscard]] bool take() {
    On::full_fence();
    return is_armed() && disarm();
  }
  // The first half of ring(), for a ringer whose condition becomes true by a plain store, and that
  // does not fence: if it returns true, the ringer calls ring(). The sleeper must call
  // fence_ringers() after arm().
  [[nodiscard]] bool is_armed() const {
    return (word_.load(std::memory_order_relaxed) & kArmed) != 0;
  }

  // For tests: the doorbell has been rung `rings` times, to reach the end of the 31 bits soon.
  // Requires: no thread uses the doorbell.
  void begin_at(uint32_t rings) { word_.store(rings << 1, std::memory_order_relaxed); }

 private:
  // Bit 0: armed. The other bits count the rings. A ring adds 1 to an armed word. The word has the
  // same value again only after 2^31 rings.
  static constexpr uint32_t kArmed = 1;

  bool disarm() {
    uint32_t seen = word_.load(std::memory_order_relaxed);
    do {
      if ((seen & kArmed) == 0) return false;
    } while (!word_.compare_exchange_strong(seen, seen + 1, std::memory_order_seq_cst,
                                            std::memory_order_relaxed));
    return true;
  }

  typename On::template Atomic<uint32_t> word_{0};
};

// The code of SleeperSet.
template <typename On>
class BasicSleeperSet {
 public:
  // Called by the sleeper in `slot`, after it has armed its own doorbell: see take().
  void arm(uint32_t slot) {
    word_.fetch_or(uint64_t{1} << slot, std::memory_order_seq_cst);
    On::full_fence();
  }
  // Called by the ringer, after it has made the condition true (R2). Returns a bit mask; bit i: the
  // sleeper in slot i is armed. The ringer disarms the slots that it chooses, and rings the
  // doorbells of their sleepers.
  [[nodiscard]] uint64_t armed() const {
    On::full_fence();
    return word_.load(std::memory_order_relaxed);
  }
  void disarm(uint32_t slot) { word_.fetch_and(~(uint64_t{1} << slot), std::memory_order_seq_cst); }

 private:
  typename On::template Atomic<uint64_t> word_{0};
};

// The code of ReceiverDoorbells.
template <typename On>
struct BasicReceiverDoorbells {
  // Called by the sender, after the message has arrived. Returns true if it has woken the thread,
  // which then polls. Otherwise the sender causes an event for the thread that polls meanwhile.
  [[nodiscard]] bool wake() {
    if (!receives.take()) return false;
    // If `doorbell` is disarmed, its word has changed since the thread armed it: the thread is
    // awake, or the ringer that disarmed it is waking it.
    static_cast<void>(doorbell.ring());
    return true;
  }

  BasicDoorbell<On> doorbell;  // the thread sleeps on it, and all other events ring it
  // Armed by the thread after `doorbell`, and taken by the thread when it is awake. If it was taken
  // before, a sender has relied on the thread, and the thread polls afterwards.
  BasicDoorbell<On> receives;
};

// The code of RemoteDoorbell.
template <typename On>
class BasicRemoteDoorbell {
 public:
  // Called by the ringer after it has posted WRITEs (R1 and R2). `total` counts the messages, or
  // bytes, posted so far. Returns true if the ringer must send an event behind the WRITEs.
  [[nodiscard]] bool ring(uint64_t total) {
    published_.exchange(total, std::memory_order_seq_cst);
    if (armed_.load(std::memory_order_seq_cst) == 0) [[likely]]
      return false;
    // Disarms before the event is sent: a sleeper that arms the doorbell later gets another event.
    return armed_.exchange(0, std::memory_order_seq_cst) != 0;
  }

  // Offsets of published_ (the sleeper READs it) and of armed_ (the sleeper WRITEs it).
  static constexpr uint64_t kPublished = 0;
  static constexpr uint64_t kArmed = 8;

 private:
  typename On::template Atomic<uint64_t> published_{0};  // written by the ringer only
  typename On::template Atomic<uint64_t> armed_{0};      // set by the sleeper
};

}  // namespace internal

// A word on which threads sleep, threads of one process or of several that share its memory.
// Zero-initialised memory is valid. Thread-safe; any number of sleepers and ringers.
using Doorbell = internal::BasicDoorbell<internal::Machine>;
static_assert(sizeof(Doorbell) == 4 && std::atomic<uint32_t>::is_always_lock_free);

// The set of the sleepers, at most 64, that one ringer wakes one by one. The set lies in the
// ringer's memory, which the sleepers map. Each sleeper also has a Doorbell, on which it sleeps.
// Zero-initialised memory is valid. Thread-safe.
using SleeperSet = internal::BasicSleeperSet<internal::Machine>;

// The doorbells of a thread for which another thread polls while it sleeps. A sender that maps them
// wakes the thread itself, and then the thread polls for the message: kWakesReceiver in
// queue_pair.h. Zero-initialised memory is valid. Any number of senders; one sleeper.
struct ReceiverDoorbells : internal::BasicReceiverDoorbells<internal::Machine> {};
static_assert(sizeof(ReceiverDoorbells) == 8);

// A doorbell for a sleeper on another host that polls memory for plain WRITEs, which raise no
// event. The doorbell lies in registered memory of the ringer that permits remote read and remote
// write. Zero-initialised memory is valid. One ringer at a time; one sleeper (remote_doorbell.h).
struct alignas(64) RemoteDoorbell : internal::BasicRemoteDoorbell<internal::Machine> {};
static_assert(sizeof(RemoteDoorbell) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// The sleeper's end of one or several doorbells. wait_until() calls arm(), then checks its
// condition, then calls recheck() and wait(). One thread at a time.
class CARIAMA_DTUTILS_EXPORT Sleeper {
 public:
  virtual ~Sleeper() = default;
  // Arms the doorbells of all ringers that may make the condition true.
  virtual void arm() = 0;
  // Returns true if the thread must not sleep although the condition does not hold yet: a message
  // is in flight, or the doorbell of a ringer could not be armed. Requires: arm() was called, and
  // then the condition did not hold.
  [[nodiscard]] virtual bool recheck() { return false; }
  // Sleeps until a ringer rings or until `deadline`. Returns immediately if one has rung since
  // arm(). Spurious returns are possible.
  virtual void wait(Deadline deadline) = 0;
};

// A Sleeper on one Doorbell, which must outlive it.
class CARIAMA_DTUTILS_EXPORT DoorbellSleeper final : public Sleeper {
 public:
  explicit DoorbellSleeper(Doorbell& doorbell) : doorbell_(doorbell) {}
  void arm() override { expected_ = doorbell_.arm(); }
  void wait(Deadline deadline) override { doorbell_.wait(expected_, deadline); }

 private:
  Doorbell& doorbell_;
  uint32_t expected_ = 0;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_DOORBELL_H_
