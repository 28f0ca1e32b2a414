// How this library waits, on every layer: one hook per thread (DESIGN invariant 11).
//
//   wait_until([&] { return flag.load(std::memory_order_acquire); }, deadline);
//
// The default hook spins, then yields, then sleeps if there is something to sleep on. A runtime
// that has other work for a waiting thread (the task layer) installs its own hook.
//
// A WakeWord is what threads sleep on, of one process or of several that share the memory it lies
// in. The sleeper announces itself, looks again, and only then sleeps; the waker makes a system
// call only when somebody announced itself. No wake-up is lost: announce() and the look in wake()
// are atomic read-modify-writes of one word, so one of the two comes first. If the sleeper's does,
// the waker sees it and wakes; if the waker's does, its condition happens-before the sleeper's
// second look.
//
// Waking a process that sleeps on another host needs a message; see sleep_protocol.h.
#ifndef CARIAMA_DTUTILS_WAIT_H_
#define CARIAMA_DTUTILS_WAIT_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "dtutils/export.h"

namespace cariama {

// A point in time that ends a wait. kForever never comes.
using Deadline = std::chrono::steady_clock::time_point;
inline constexpr Deadline kForever = Deadline::max();
[[nodiscard]] inline Deadline deadline_after(std::chrono::nanoseconds span) {
  const Deadline now = std::chrono::steady_clock::now();
  return span >= kForever - now ? kForever : now + span;
}

// Something a waiting thread can sleep on.
class CARIAMA_DTUTILS_EXPORT Parking {
 public:
  virtual ~Parking() = default;
  // Announces the sleeper. The caller looks at its condition again afterwards, then calls sleep()
  // or retract().
  virtual void announce() = 0;
  // Sleeps until woken or until `deadline`; wakes at once for a wake() since announce(). Ends the
  // announcement. May return early for no reason.
  virtual void sleep(Deadline deadline) = 0;
  virtual void retract() = 0;
};

// 8 bytes to sleep on; may lie in memory shared between processes. Zero-initialised memory is
// valid. Thread-safe.
class CARIAMA_DTUTILS_EXPORT WakeWord {
 public:
  // For the sleeper: announces, and returns the ticket for sleep(). Sequence before a second look.
  [[nodiscard]] uint32_t announce() {
    sleepers_.fetch_add(1, std::memory_order_acq_rel);
    return sequence_.load(std::memory_order_acquire);
  }
  void retract() { sleepers_.fetch_sub(1, std::memory_order_acq_rel); }
  // Sleeps unless wake() came since announce() returned `ticket`; ends the announcement.
  void sleep(uint32_t ticket, Deadline deadline);

  // For the waker, after it made the condition true: wakes every announced sleeper. One atomic
  // read-modify-write when nobody sleeps.
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

// A Parking on a WakeWord.
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

// What a thread does while a condition does not hold.
class CARIAMA_DTUTILS_EXPORT WaitHook {
 public:
  virtual ~WaitHook() = default;
  // Called between two looks at the condition; `round` counts from 0 in each wait. Returns true
  // when the thread has waited long enough to sleep instead, if there is a Parking.
  [[nodiscard]] virtual bool pause(uint64_t round) = 0;
};

// The hook of the calling thread: the default one unless a ScopedWaitHook is alive.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT WaitHook& this_thread_wait_hook();

// Installs a hook for the calling thread, for as long as it lives. The hook is the caller's.
class CARIAMA_DTUTILS_EXPORT ScopedWaitHook {
 public:
  explicit ScopedWaitHook(WaitHook& hook);
  ~ScopedWaitHook();
  ScopedWaitHook(const ScopedWaitHook&) = delete;
  ScopedWaitHook& operator=(const ScopedWaitHook&) = delete;

 private:
  WaitHook* previous_;
};

// Waits until `condition()` is true, or until the deadline; returns what it was last. The condition
// may do work (poll a completion queue). With a Parking the thread sleeps once the hook says so,
// and looks at the condition after each wake-up; without one it goes on yielding.
template <typename Condition>
[[nodiscard]] bool wait_until(Condition&& condition, Deadline deadline = kForever,
                              Parking* parking = nullptr) {
  if (condition()) return true;
  WaitHook& hook = this_thread_wait_hook();
  for (uint64_t round = 0;; ++round) {
    const bool sleepy = hook.pause(round);
    if (condition()) return true;
    // A clock read costs as much as several looks: only every 16th round reads it.
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
