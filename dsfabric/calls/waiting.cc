#include <utility>

#include "dsfabric/calls/dispatch.h"

namespace cariama::internal {
namespace {

// The number of calls that a waiting thread runs between two checks of its condition.
constexpr size_t kWaitBatch = 32;

}  // namespace

// Sleeps on the word of a worker, or of all threads that are not workers. Before its first sleep,
// the thread stops receiving and stops polling for results: from then on the service threads
// receive for it.
class Dispatch::WaiterParking final : public Parking {
 public:
  // `index`: of the calling thread, or kNoThread. `worker`: the worker whose calls the thread runs
  // itself, or nullptr.
  WaiterParking(Dispatch& dispatch, uint32_t index, Worker* worker)
      : dispatch_(dispatch),
        workers_(dispatch.workers_),
        word_(workers_.sleep_word(index)),
        worker_(worker) {}
  [[nodiscard]] bool has_slept() const { return has_slept_; }
  void announce() override {
    if (!std::exchange(has_slept_, true)) {
      dispatch_.replies_.stop_polling();
      dispatch_.ports_.stop_receiving();
    }
    ticket_ = workers_.announce_sleep(word_);
    static_cast<void>(ask([](CallSource& source) {
      source.announce_sleep();
      return true;
    }));
  }
  void sleep(Deadline deadline) override {
    if (!ask([](CallSource& source) { return source.may_sleep(); })) return retract();
    workers_.sleep(word_, ticket_, deadline);
  }
  void retract() override { workers_.retract_sleep(word_); }

 private:
  // If this thread is inside of a call, the inbox is in use, and the worker's calls cannot run
  // before that call ends; so their source is not asked.
  template <typename Question>
  bool ask(Question&& question) {
    if (worker_ == nullptr) return true;
    CallSource* const source = worker_->source.load(std::memory_order_acquire);
    if (source == nullptr || !worker_->inbox.try_consume()) return true;
    const bool answer = question(*source);
    worker_->inbox.done();
    return answer;
  }

  Dispatch& dispatch_;
  Workers& workers_;
  WakeWord& word_;
  Worker* const worker_;
  uint32_t ticket_ = 0;
  bool has_slept_ = false;
};

bool Dispatch::wait_polling(const std::function<bool()>& condition, Deadline deadline) {
  const uint32_t index = workers_.this_worker();
  return wait_until(
      [&] {
        if (job_.options().service_threads == 0) {
          if (replies_.take_results(nullptr) != 0 && condition()) return true;
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
  const uint32_t index = workers_.this_worker();
  Worker* const worker = index == kNoThread ? nullptr : &workers_.at(index);
  const bool runs_calls = worker != nullptr && worker->runs_own_calls();
  WaiterParking parking(*this, index, runs_calls ? worker : nullptr);
  const auto look = [&] {
    const size_t run = index == kNoThread ? 0 : process_own_calls(index, kWaitBatch);
    if (condition()) return true;
    // Once this thread has slept, the service threads receive for it.
    if (run != 0 || parking.has_slept()) return false;
    replies_.start_polling();
    if (replies_.take_results(this_poller()) != 0 && condition()) return true;
    if (ports_.receive() != 0 && index != kNoThread) process_own_calls(index, kWaitBatch);
    return condition();
  };
  const bool came = wait_until(look, deadline, &parking);
  if (!parking.has_slept()) replies_.stop_polling();
  return came;
}

}  // namespace cariama::internal
