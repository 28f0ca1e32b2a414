#include "dsfabric/future.h"

#include <exception>
#include <string>

#include "dsfabric/fabric/fabric_core.h"

namespace cariama {
namespace internal {
namespace {

class FutureCall final : public PendingCall {
 public:
  explicit FutureCall(std::shared_ptr<FutureState> state) : state_(std::move(state)) {}
  void complete(const absl::Status& status, std::span<const std::byte> result) override {
    state_->finish(status, result);
  }

 private:
  std::shared_ptr<FutureState> state_;
};

}  // namespace

FutureState::FutureState(Fabric& fabric) : fabric_(fabric) {}

absl::Status FutureState::wait(Deadline deadline) {
  if (!ready() && fabric_.core().workers().is_running_calls_of(destination_)) {
    return make_error(
        absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
        "a call waits for a call to its own thread, which cannot run before the first has ended",
        "co_await the result, or call another thread");
  }
  if (fabric_.wait([this] { return ready(); }, deadline)) return absl::OkStatus();
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kOperation,
                    "the result of a call did not arrive in time");
}

bool FutureState::suspend(std::coroutine_handle<> coroutine) {
  worker_ = fabric_.core().workers().this_worker();
  void* nobody = nullptr;
  return waiter_.compare_exchange_strong(nobody, coroutine.address(), std::memory_order_acq_rel,
                                         std::memory_order_acquire);
}

void FutureState::finish(absl::Status status, std::span<const std::byte> result) {
  status_ = std::move(status);
  if (status_.ok()) {
    try {
      load(result);
    } catch (const std::exception& error) {
      status_ = make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                           std::string("the result of a call could not be read: ") + error.what());
    }
  }
  FabricCore& core = fabric_.core();
  void* const waiter = waiter_.exchange(ready_mark(), std::memory_order_acq_rel);
  // A coroutine was suspended and has not been resumed yet, so it keeps *this alive.
  if (waiter != nullptr)
    core.workers().resume(worker_, std::coroutine_handle<>::from_address(waiter));
}

uint64_t expect_future(Fabric& fabric, uint32_t rank, std::shared_ptr<FutureState> state) {
  return fabric.core().replies().expect_result(rank,
                                               std::make_unique<FutureCall>(std::move(state)));
}

absl::Status send_for_future(Fabric& fabric, uint32_t destination, OutgoingCallView call,
                             WhenFull when_full, std::shared_ptr<FutureState> state) {
  state->calls(destination);
  call.flags = kCallReturn;
  return fabric.core().replies().send(0, destination, call, when_full,
                                      std::make_unique<FutureCall>(std::move(state)));
}

}  // namespace internal

void SynchronizerAwaiter::await_suspend(std::coroutine_handle<> coroutine) {
  fabric_.core().workers().resume_after(done_, coroutine);
}

}  // namespace cariama
