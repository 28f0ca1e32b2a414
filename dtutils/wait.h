// Waiting in all layers of the library: one wait hook per thread (DESIGN invariant 11).
//
//   wait_until([&] { return flag.load(std::memory_order_acquire); }, deadline);
//
// The default hook spins, then yields, then sleeps if the wait has a Parking. A runtime that has
// other work for a waiting thread (the task layer) installs its own hook.
//
// A WakeWord is a word on which threads sleep, threads of one process or of several that share the
// memory in which it lies. The sleeper announces itself, re-checks its condition, and only then
// sleeps; the waker makes a system call only if a sleeper is announced. No wake-up is lost:
// announce() and the test in wake() are atomic read-modify-writes of one word, so one of the two
// comes first. If announce() comes first, the waker sees the sleeper and wakes it. If wake() comes
// first, the waker's write of the condition happens-before the sleeper's re-check.
//
// Waking a process that sleeps on another host needs a message; see sleep_protocol.h.
#ifndef CARIAMA_DTUTILS_WAIT_H_
#define CARIAMA_DTUTILS_WAIT_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "dtutils/export.h"

namespace cariama {

// The point in time at which a wait ends. kForever never comes.
using Deadline = std::chrono::steady_clock::time_point;
inline constexpr Deadline kForever = Deadline::max();
[[nodiscard]] inline Deadline deadline_after(std::chrono::nanoseconds span) {
  const Deadline now = std::chrono::steady_clock::now();
  return span >= kForever - now ? kForever : now + span;
}

// An object on which a waiting thread can sleep.
class CARIAMA_DTUTILS_EXPORT Parking {
 public:
  virtual ~Parking() = default;
  // Announces the sleeper. Afterwards the caller re-checks its condition, then calls sleep() or
  // retract().
  virtual void announce() = 0;
  // Sleeps until woken or until `deadline`. Returns at once if wake() was called since announce().
  // Ends the announcement. Spurious returns are possible.
  virtual void sleep(Deadline deadline) = 0;
  // Ends the announcement without sleeping.
  virtual void retract() = 0;
};

// An 8-byte word on which threads sleep; it may lie in memory shared between processes.
// Zero-initialised memory is valid. Thread-safe.
class CARIAMA_DTUTILS_EXPORT WakeWord {
 public:
  // Called by the sleeper: announces it, and returns the ticket for sleep(). The caller must
  // re-check its condition after announce() and before sleep().
  [[nodiscard]] uint32_t announce() {
    sleepers_.fetch_add(1, std::memory_order_acq_rel);
    return sequence_.load(std::memory_order_acquire);
  }
  // Ends the announcement without sleeping.
  void retract() { sleepers_.fetch_sub(1, std::memory_order_acq_rel); }
  // Sleeps unless wake() was called since announce() returned `ticket`. Ends the announcement.
  void sleep(uint32_t ticket, Deadline deadline);

  // Called by the waker after it made the condition true: wakes every announced sleeper. Costs one
  // atomic read-modify-write when no thread sleeps.
  void wake() {
    if (sleepers_.fetch_add(0, std::memory_order_acq_rel) != 0) [[unlikely]] {
      wake_sleepers();
    }
  }

 private:
  void wake_sleepers();

  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> sequence_{0};
};
static_assert(sizeof(WakeWord) == 8);

// Implements Parking on a WakeWord.
class CARIAMA_DTUTILS_EXPORT WakeWordParking final : public Parking {
 public:
  explicit WakeWordParking(WakeWord& word) : word_(word) {}
  void announce() override { ticket_ = word_.announce(); }
  void sleep(Deadline deadline) override { word_.sleep(ticket_, deadline); }
  void retract() override { word_.retract(); }

 private:
  WakeWord& word_;
  uint32_t ticket_ = 0;
};

// The action of a thread between two checks of a condition that does not hold.
class CARIAMA_DTUTILS_EXPORT WaitHook {
 public:
  virtual ~WaitHook() = default;
  // Called between two checks of the condition; `round` counts from 0 in each wait. Returns true
  // when the thread has waited long enough to sleep, if the wait has a Parking.
  [[nodiscard]] virtual bool pause(uint64_t round) = 0;
};

// Returns the hook of the calling thread: the default hook unless a ScopedWaitHook is alive.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT WaitHook& this_thread_wait_hook();

// Installs a hook for the calling thread, for the lifetime of this object. The caller owns the
// hook, which must outlive this object.
class CARIAMA_DTUTILS_EXPORT ScopedWaitHook {
 public:
  explicit ScopedWaitHook(WaitHook& hook);
  ~ScopedWaitHook();
  ScopedWaitHook(const ScopedWaitHook&) = delete;
  ScopedWaitHook& operator=(const ScopedWaitHook&) = delete;

 private:
  WaitHook* previous_;
};

// Waits until `condition()` is true, or until the deadline; returns the condition's last value. The
// condition may do work (poll a completion queue). With a Parking the thread sleeps once the hook
// returns true, and checks the condition after each wake-up. Without a Parking it continues to call
// the hook.
template <typename Condition>
[[nodiscard]] bool wait_until(Condition&& condition, Deadline deadline = kForever,
                              Parking* parking = nullptr) {
  if (condition()) return true;
  WaitHook& hook = this_thread_wait_hook();
  for (uint64_t round = 0;; ++round) {
    const bool sleepy = hook.pause(round);
    if (condition()) return true;
    // A clock read costs as much as several checks of the condition, so only every 16th round reads
    // the clock.
    if (deadline != kForever && (sleepy || round % 16 == 15) &&
        std::chrono::steady_clock::now() >= deadline) {
      return condition();
    }
    if (!sleepy || parking == nullptr) continue;
    parking->announce();
    if (condition()) {
      parking->retract();
      return true;
    }
    parking->sleep(deadline);
    if (condition()) return true;
  }
}

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_WAIT_H_
