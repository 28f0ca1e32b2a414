// Waiting in all layers of the library: one wait hook per thread.
//
//   wait_until([&] { return flag.load(std::memory_order_acquire); }, deadline);
//
// The default hook spins, then yields, then sleeps if the wait has a Sleeper; where a yield takes
// long, short sleeps take its place. A runtime that has other work for a waiting thread (the task
// layer) installs its own hook.
//
// doorbell.h describes how a thread sleeps, and why no wake-up is lost.
#ifndef CARIAMA_DTUTILS_WAIT_H_
#define CARIAMA_DTUTILS_WAIT_H_

#include <chrono>
#include <cstdint>

#include "dtutils/doorbell.h"
#include "dtutils/export.h"

namespace cariama {

// The object that determines how a thread waits: its pause() runs between two checks of a condition
// that does not hold.
class CARIAMA_DTUTILS_EXPORT WaitHook {
 public:
  virtual ~WaitHook() = default;
  // Called between two checks of the condition; `round` counts from 0 in each wait. Returns true
  // when the thread has waited long enough to sleep, if the wait has a Sleeper.
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

// Takes the sleeper's steps S1 to S3 once (doorbell.h): does not sleep if `condition()` is true
// after arm(). Returns the condition's last value.
template <typename Condition>
[[nodiscard]] bool sleep_once(Condition&& condition, Deadline deadline, Sleeper& sleeper) {
  sleeper.arm();
  if (condition()) return true;
  if (!sleeper.recheck()) sleeper.wait(deadline);
  return condition();
}

// Waits until `condition()` is true, or until the deadline; returns the condition's last value. The
// condition may do work (poll a completion queue). With a Sleeper the thread sleeps once the hook
// returns true, and checks the condition after each wake-up. Without a Sleeper it continues to call
// the hook.
template <typename Condition>
[[nodiscard]] bool wait_until(Condition&& condition, Deadline deadline,
                              Sleeper* sleeper = nullptr) {
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
    if (sleepy && sleeper != nullptr && sleep_once(condition, deadline, *sleeper)) return true;
  }
}

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_WAIT_H_
