#include "dsfabric/future.h"

#include <memory>
#include <string>
#include <utility>

#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/workers.h"
#include "dsfabric/internal/call_failures.h"
#include "dsfabric/peers/connection.h"
#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"

namespace cariama {
namespace internal {
absl::Status future_without_call() {
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                    "a Future that belongs to no call", "pass it to a call as a completion first");
}

FutureState::FutureState(Fabric& fabric) : fabric_(fabric) {}
FutureState::~FutureState() = default;  // here OwnMessage is complete

absl::Status FutureState::wait(Deadline deadline) {
  if (!ready() && workers_of(fabric_).is_running_calls_of(destination_)) {
    return make_error(
        absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
        "a call waits for a call to its own thread, which cannot run before the first has ended",
        "co_await the result, or call another thread");
  }
  if (fabric_.wait([this] { return ready(); }, deadline)) return absl::OkStatus();
  std::string called;
  if (rank_ < fabric_.size()) called = " to " + fabric_.label(rank_);
  if (destination_ < fabric_.total_threads()) {
    called = " to thread " + std::to_string(destination_) + " of " + fabric_.label(rank_);
  }
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kOperation,
                    "a call" + called + " has not completed its Future before the deadline" +
                        workers_of(fabric_).why_no_calls(),
                    peer_remedy(PeerRemedy::kSilent));
}

bool FutureState::suspend(std::coroutine_handle<> coroutine) {
  prepare();
  void* no_waiter = nullptr;
  return waiter_.compare_exchange_strong(no_waiter, coroutine.address(), std::memory_order_acq_rel,
                                         std::memory_order_acquire);
}

void FutureState::prepare() {
  if (prepared_) return;
  resumption_ = workers_of(fabric_).prepare_resumption();
  prepared_ = true;
}

void FutureState::finish(absl::Status status, std::span<const std::byte> result) {
  if (ready()) return;
  status_ = std::move(status);
  if (status_.ok()) {
    try {
      load(result);
    } catch (...) {
      status_ = unreadable_result();
    }
  }
  void* const waiter = waiter_.exchange(ready_mark(), std::memory_order_acq_rel);
  // A coroutine was suspended and has not been resumed yet, so it keeps *this alive.
  if (waiter != nullptr)
    workers_of(fabric_).resume(std::move(resumption_),
                               std::coroutine_handle<>::from_address(waiter));
}

}  // namespace internal

bool SynchronizerAwaiter::await_suspend(std::coroutine_handle<> coroutine) {
  return internal::workers_of(fabric_).resume_after(done_, coroutine);
}

}  // namespace cariama
