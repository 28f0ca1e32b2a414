#include <utility>

#include "dsfabric/calls/dispatch.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

// The number of calls that a waiting thread runs between two checks of its condition.
constexpr size_t kWaitBatch = 32;

}  // namespace

// Before its first sleep, the thread stops receiving and stops polling for results: from then on
// the service threads receive for it, except for a message whose sender has woken the thread.
class Dispatch::WaitSleeper final : public Sleeper {
 public:
  // `index`: of the calling thread, or kNoThread.
  WaitSleeper(Dispatch& dispatch, uint32_t index)
      : dispatch_(dispatch), sleeper_(dispatch.workers_, index) {}
  [[nodiscard]] bool has_slept() const { return has_slept_; }
  void arm() override {
    if (!std::exchange(has_slept_, true)) {
      dispatch_.answers_.stop_polling();
      dispatch_.ports_.stop_receiving();
    }
    sleeper_.arm();
  }
  [[nodiscard]] bool recheck() override {
    // No event tells that there is memory for the answers again.
    return sleeper_.recheck() || !dispatch_.unanswered_.empty();
  }
  void wait(Deadline deadline) override {
    {
      const TraceScope trace("dsfabric", "sleep");
      sleeper_.wait(deadline);
    }
    if (sleeper_.must_receive()) dispatch_.ports_.receive_once();
  }

 private:
  Dispatch& dispatch_;
  Workers::WaitSleeper sleeper_;
  bool has_slept_ = false;
};

bool Dispatch::wait_polling(const std::function<bool()>& condition, Deadline deadline) {
  const TraceScope trace("dsfabric", "wait");
  const uint32_t index = workers_.this_worker();
  return wait_until(
      [&] {
        if (job_.options().service_threads == 0) {
          if (answers_.take_results(nullptr) != 0 && condition()) return true;
          progress();
        } else {
          ports_.receive();
        }
        if (index != kNoThread) process_own_calls(index, kWaitBatch);
        return condition();
      },
      deadline);
}

bool Dispatch::wait(const std::function<bool()>& condition, Deadline deadline) {
  // Without service threads, the waiting thread must poll, so it does not sleep.
  if (job_.options().service_threads == 0) return wait_polling(condition, deadline);
  const TraceScope trace("dsfabric", "wait");
  const uint32_t index = workers_.this_worker();
  WaitSleeper sleeper(*this, index);
  const auto look = [&] {
    if (index != kNoThread) process_own_calls(index, kWaitBatch);
    if (condition()) return true;
    // Once this thread has slept, the service threads receive for it.
    if (sleeper.has_slept()) return false;
    answers_.start_polling();
    if (answers_.take_results(this_poller()) != 0 && condition()) return true;
    if (ports_.receive() != 0 && index != kNoThread) process_own_calls(index, kWaitBatch);
    return condition();
  };
  const auto stop_polling = [&] {
    if (!sleeper.has_slept()) answers_.stop_polling();
  };
  bool came = false;
  try {
    came = wait_until(look, deadline, &sleeper);
  } catch (...) {  // otherwise no message would tell of results in the slots that it has polled
    stop_polling();
    throw;
  }
  stop_polling();
  return came;
}

}  // namespace cariama::internal
