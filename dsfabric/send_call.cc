#include "dsfabric/send_call.h"

#include <exception>
#include <string>

#include "dsfabric/internal/fabric_core.h"
#include "dtutils/error.h"

namespace cariama {
namespace internal {
namespace {

// A call whose Synchronizer is counted down by the answer.
class AwaitedCall final : public PendingCall {
 public:
  AwaitedCall(Synchronizer& done, std::unique_ptr<ResultReceiver> receiver)
      : done_(done), receiver_(std::move(receiver)) {}

  void complete(const absl::Status& status, std::span<const std::byte> result) override {
    if (!status.ok()) return done_.fail(status);
    try {
      if (receiver_ != nullptr) receiver_->receive(result);
    } catch (const std::exception& error) {
      return done_.fail(
          make_error(absl::StatusCode::kInternal, ErrorScope::kOperation,
                     std::string("the result of a call could not be read: ") + error.what()));
    }
    done_.decrease();
  }

 private:
  Synchronizer& done_;
  std::unique_ptr<ResultReceiver> receiver_;
};

}  // namespace

absl::Status send_call(Fabric& fabric, uint32_t rank, uint32_t destination, FunctionId id,
                       size_t bytes, const void* call,
                       void (*write)(const void* call, std::byte* at), WhenFull when_full,
                       Synchronizer* transmitted, Synchronizer* consumed,
                       std::unique_ptr<ResultReceiver> receiver) {
  FabricCore& core = fabric.core();
  OutgoingCall out{.id = id, .bytes = bytes, .call = call, .write_call = write};
  if (destination != kNoThread) {
    if (destination >= fabric.total_threads()) {
      return no_such_thread(destination, fabric.total_threads());
    }
    rank = fabric.rank_of(destination);
  }
  if (consumed == nullptr) {
    absl::Status sent = core.send(rank, destination, out, when_full);
    // It was copied: what it was made from may be reused.
    if (sent.ok() && transmitted != nullptr) transmitted->decrease();
    return sent;
  }
  out.flags = receiver != nullptr ? kCallReturn : kCallNotify;
  out.notify.rank = fabric.rank();
  out.notify.handle =
      core.pending().add(rank, std::make_unique<AwaitedCall>(*consumed, std::move(receiver)));
  absl::Status sent = core.send(rank, destination, out, when_full);
  // If it is not there any more, the peer's failure has counted it down: that is its end.
  if (!sent.ok() && core.pending().take(out.notify.handle, rank) == nullptr)
    return absl::OkStatus();
  return sent;
}

}  // namespace internal

Fabric* running_fabric() {
  internal::FabricCore* const core = internal::FabricCore::running();
  return core == nullptr ? nullptr : core->fabric();
}
uint32_t running_source() { return internal::FabricCore::running_source(); }

}  // namespace cariama
