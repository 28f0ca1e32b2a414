#include "dsfabric/call_source.h"

#include <utility>

#include "dsfabric/calls/running_call.h"
#include "dsfabric/fabric/fabric_core.h"

namespace cariama::internal {

CallSourceRegistry& call_source_registry(
    Fabric& fabric, std::unique_ptr<CallSourceRegistry> (*make)(Fabric& fabric)) {
  return core_of(fabric).sources().registry(fabric, make);
}

RunningCalls::RunningCalls(Fabric& fabric, uint32_t rank)
    : outer_fabric_(this_running_call.fabric), outer_rank_(this_running_call.source) {
  this_running_call = {&fabric, rank};
}
RunningCalls::~RunningCalls() { this_running_call = {outer_fabric_, outer_rank_}; }

uint64_t expect_answer(
    Fabric& fabric, uint32_t rank,
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
  return core_of(fabric).replies().pending().add(rank,
                                                 std::make_unique<Expected>(std::move(ended)));
}

bool forget_answer(Fabric& fabric, uint32_t rank, uint64_t handle) {
  return core_of(fabric).replies().pending().take(handle, rank) != nullptr;
}

void answer_call(Fabric& fabric, uint32_t to, const NotifyTarget* wanted, const IncomingCall& call,
                 const std::string& result) {
  core_of(fabric).replies().answer(to, wanted, call, result);
}

void reject_call(Fabric& fabric, uint32_t rank, std::string_view why) {
  core_of(fabric).rejected().add(rank, why);
}

absl::StatusOr<bool> post_call_event(Fabric& fabric, uint32_t rank, uint32_t index,
                                     uint32_t value) {
  return core_of(fabric).sender().post_event(rank, index, CallSender::kCallSourceEvent | value);
}

absl::StatusOr<bool> wake_worker(Fabric& fabric, uint32_t rank, uint32_t index) {
  if (rank != fabric.rank()) return core_of(fabric).sender().post_event(rank, index, index);
  core_of(fabric).workers().wake(index);
  return true;
}

const RDMAMemory& doorbells(Fabric& fabric) { return core_of(fabric).workers().doorbells(); }

void tell_waiters(Fabric& fabric) { core_of(fabric).workers().notify_waiters(); }

bool wait_polling(Fabric& fabric, const std::function<bool()>& condition, Deadline deadline) {
  return core_of(fabric).dispatch().wait_polling(condition, deadline);
}

absl::StatusOr<std::shared_ptr<RDMAAllocator>> worker_memory(Fabric& fabric, uint32_t index) {
  const ThreadContext* const context = core_of(fabric).workers().context_of(index);
  return core_of(fabric).memory().allocator(context == nullptr ? kAnyNode : context->numa_node());
}

}  // namespace cariama::internal
