#include "dsfabric/internal/call_source.h"

#include <utility>

#include "dsfabric/calls/answers.h"
#include "dsfabric/calls/call_sender.h"
#include "dsfabric/calls/call_sources.h"
#include "dsfabric/calls/dispatch.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/rejected_calls.h"
#include "dsfabric/calls/running_call.h"
#include "dsfabric/calls/workers.h"
#include "dsfabric/peers/fabric_memory.h"

namespace cariama::internal {

CallSourceRegistry& call_source_registry(
    Fabric& fabric, std::unique_ptr<CallSourceRegistry> (*make)(Fabric& fabric)) {
  return sources_of(fabric).registry(fabric, make);
}

RunningCalls::RunningCalls(Fabric& fabric, Rank rank)
    : outer_fabric_(this_running_call.fabric), outer_rank_(this_running_call.source) {
  this_running_call = {&fabric, rank};
}
RunningCalls::~RunningCalls() { this_running_call = {outer_fabric_, outer_rank_}; }

uint64_t expect_answer(
    Fabric& fabric, Rank rank,
    std::function<void(const absl::Status&, std::span<const std::byte> result)> ended) {
  class Expected final : public PendingCall {
   public:
    explicit Expected(decltype(ended) function) : ended_(std::move(function)) {}
    void complete(const absl::Status& status, std::span<const std::byte> result) override {
      ended_(status, result);
    }

   private:
    decltype(ended) ended_;
  };
  return answers_of(fabric).pending().add(rank, std::make_unique<Expected>(std::move(ended)));
}

bool forget_answer(Fabric& fabric, Rank rank, uint64_t handle) {
  return answers_of(fabric).pending().take(handle, rank) != nullptr;
}

void assign_to_channel(Fabric& fabric, uint64_t handle, uint64_t channel) {
  answers_of(fabric).pending().assign(handle, channel);
}

void fail_calls_of_channel(Fabric& fabric, Rank rank, uint64_t channel, const absl::Status& why) {
  answers_of(fabric).fail_carried(rank, channel, why);
}

void fail_routed_calls(Fabric& fabric, Rank rank, Rank router, const absl::Status& status) {
  answers_of(fabric).fail_routed(rank, router, status);
}

void answer_call(Fabric& fabric, Rank to, const NotifyTarget* wanted, const IncomingCall& call,
                 const std::string& result) {
  answers_of(fabric).answer(to, wanted, call, result);
}

void reject_call(Fabric& fabric, Rank rank, std::string_view why) {
  rejected_calls_of(fabric).add(rank, why);
}

absl::StatusOr<bool> post_call_event(Fabric& fabric, Rank rank, ThreadIndex index, uint32_t value) {
  return sender_of(fabric).post_event(rank, index, CallSender::kCallSourceEvent | value);
}

absl::StatusOr<bool> wake_worker(Fabric& fabric, Rank rank, ThreadIndex index) {
  if (rank != fabric.rank()) return sender_of(fabric).post_event(rank, index, index);
  workers_of(fabric).wake(index);
  return true;
}

const RDMAMemory& doorbells(Fabric& fabric) { return workers_of(fabric).doorbells(); }

void tell_waiters(Fabric& fabric) { workers_of(fabric).notify_waiters(); }

bool wait_polling(Fabric& fabric, const std::function<bool()>& condition, Deadline deadline) {
  return dispatch_of(fabric).wait_polling(condition, deadline);
}

absl::StatusOr<std::shared_ptr<RDMAAllocator>> worker_memory(Fabric& fabric, ThreadIndex index) {
  return memory_of(fabric).allocator(workers_of(fabric).node_of(index).value_or(kAnyNode));
}

}  // namespace cariama::internal
