#include "dsfabric/call_source.h"

#include <utility>

#include "dsfabric/calls/running_call.h"
#include "dsfabric/fabric/fabric_core.h"

namespace cariama::internal {

CallSourceRegistry& call_source_registry(
    Fabric& fabric, std::unique_ptr<CallSourceRegistry> (*make)(Fabric& fabric)) {
  return fabric.core().sources().registry(fabric, make);
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
  return fabric.core().replies().pending().add(rank, std::make_unique<Expected>(std::move(ended)));
}

bool forget_answer(Fabric& fabric, uint32_t rank, uint64_t handle) {
  return fabric.core().replies().pending().take(handle, rank) != nullptr;
}

void answer_call(Fabric& fabric, uint32_t to, const NotifyTarget* wanted, const IncomingCall& call,
                 const std::string& result) {
  fabric.core().replies().answer(to, wanted, call, result);
}

void reject_call(Fabric& fabric, uint32_t rank, std::string_view why) {
  fabric.core().rejected().add(rank, why);
}

absl::StatusOr<bool> post_call_event(Fabric& fabric, uint32_t rank, uint32_t index,
                                     uint32_t value) {
  return fabric.core().sender().post_event(rank, index, CallSender::kCallSourceEvent | value);
}

absl::StatusOr<bool> wake_worker(Fabric& fabric, uint32_t rank, uint32_t index) {
  if (rank != fabric.rank()) return fabric.core().sender().post_event(rank, index, index);
  fabric.core().workers().wake(index);
  return true;
}

const RDMAMemory& wake_words(Fabric& fabric) { return fabric.core().workers().wake_words(); }

void wake_mapped_worker(std::byte* words, uint32_t threads, uint32_t index) {
  // It is not known here whether the worker or a helper runs the worker's calls, so wake both. A
  // superfluous wake-up is harmless, and waking a word without a sleeper costs no system call.
  for (const uint32_t i : {index, threads}) {
    reinterpret_cast<WakeWord*>(words + i * kWakeWordStride)->wake();
  }
}

void tell_waiters(Fabric& fabric) { fabric.core().workers().notify_waiters(); }

bool wait_polling(Fabric& fabric, const std::function<bool()>& condition, Deadline deadline) {
  return fabric.core().dispatch().wait_polling(condition, deadline);
}

absl::StatusOr<std::shared_ptr<RDMAAllocator>> worker_memory(Fabric& fabric, uint32_t index) {
  const ThreadContext* const context = fabric.core().workers().context_of(index);
  return fabric.core().memory().allocator(context == nullptr ? kAnyNode : context->numa_node());
}

}  // namespace cariama::internal
