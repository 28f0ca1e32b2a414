#include "dsfabric/send_call.h"

#include <cstring>
#include <exception>
#include <string>

#include "dsfabric/call_source.h"
#include "dsfabric/calls/running_call.h"
#include "dsfabric/fabric/fabric_core.h"
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

absl::Status leaves_memory() {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "the range that is given to call_buffer exceeds its memory",
                    "check offset and size");
}

}  // namespace

absl::Status send_call(Fabric& fabric, uint32_t rank, uint32_t destination, OutgoingCallView call,
                       WhenFull when_full, Synchronizer* transmitted, Synchronizer* consumed,
                       std::unique_ptr<ResultReceiver> receiver) {
  if (consumed != nullptr) {
    call.flags = receiver != nullptr ? kCallReturn : kCallNotify;
    return fabric.core().replies().send(
        rank, destination, call, when_full,
        std::make_unique<AwaitedCall>(*consumed, std::move(receiver)));
  }
  absl::Status sent = fabric.core().sender().send(rank, destination, call, when_full);
  // The call was copied into the send buffer, so its arguments may be reused.
  if (sent.ok() && transmitted != nullptr) transmitted->decrease();
  return sent;
}

uint64_t expect_answer(Fabric& fabric, uint32_t rank, Synchronizer& done,
                       std::unique_ptr<ResultReceiver> receiver) {
  FabricCore& core = fabric.core();
  const bool result = receiver != nullptr;
  auto call = std::make_unique<AwaitedCall>(done, std::move(receiver));
  return result ? core.replies().expect_result(rank, std::move(call))
                : core.replies().pending().add(rank, std::move(call));
}

absl::Status send_lending(Fabric& fabric, uint32_t destination, OutgoingCallView call,
                          WhenFull when_full, std::unique_ptr<LentBuffer> lent,
                          Synchronizer* transmitted, Synchronizer* consumed) {
  const uint32_t rank = fabric.rank_of(destination);
  call.flags = kCallNotify;
  call.notify.rank = fabric.rank();
  call.notify.handle = lend_until_answered(fabric, rank, std::move(lent), consumed);
  absl::Status sent = fabric.core().sender().send(rank, destination, call, when_full);
  if (!sent.ok()) {
    // If the answer is no longer expected, the peer's failure has already failed `consumed`.
    const bool there = forget_answer(fabric, rank, call.notify.handle);
    return there || consumed == nullptr ? sent : absl::OkStatus();
  }
  if (transmitted != nullptr) transmitted->decrease();
  return absl::OkStatus();
}

absl::Status send_call_written(Fabric& fabric, uint32_t destination, OutgoingCallView call,
                               WhenFull when_full, bool consumed,
                               RemoteObject<Synchronizer>& done) {
  if (destination >= fabric.total_threads()) {
    return no_such_thread(destination, fabric.total_threads());
  }
  auto target = done.expect(fabric.rank_of(destination));
  if (!target.ok()) return target.status();
  if (consumed) {
    call.flags = kCallNotify;
    call.notify = *target;
  }
  absl::Status sent = fabric.core().sender().send(0, destination, call, when_full);
  if (!sent.ok()) return done.forget() ? sent : absl::OkStatus();
  if (!consumed) done.transmitted();
  return absl::OkStatus();
}

absl::Status check_target(uint32_t rank, const RemoteMemoryLocator& target, uint64_t size) {
  std::string wrong;
  if (size > target.length) {
    wrong = "has " + std::to_string(target.length) + " bytes, fewer than the buffer's " +
            std::to_string(size);
  } else if (target.address + target.length < target.address) {
    wrong = "wraps around the end of memory";
  } else if (target.owner != rank && size != 0) {
    wrong = "is memory of rank " + std::to_string(target.owner) + ", but the call is for rank " +
            std::to_string(rank);
  } else {
    return absl::OkStatus();
  }
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "the target that is given to call_buffer " + wrong,
                    "use the locator that its owner made: memory.locator(domain, rank)");
}

absl::Status write_ahead(Fabric& fabric, uint32_t rank, RDMAMemory& source, uint64_t offset,
                         uint64_t size, const RemoteMemoryLocator& target) {
  if (rank >= fabric.size()) return no_such_thread(rank * fabric.threads(), fabric.total_threads());
  if (offset > source.size() || size > source.size() - offset) return leaves_memory();
  if (absl::Status can_be = check_target(rank, target, size); !can_be.ok()) return can_be;
  if (rank == fabric.rank()) {
    std::memcpy(reinterpret_cast<void*>(target.address), source.get_buffer() + offset, size);
    return absl::OkStatus();
  }
  auto connection = fabric.core().sender().connection_of_this_thread(rank);
  if (!connection.ok()) return connection.status();
  return fabric.core().sender().transfer(**connection, [&](Connection& through) {
    return through.write(source, offset, size, target, nullptr);
  });
}

bool can_be_pulled(const RemoteMemoryLocator& source) {
  return source.owner == this_running_call.source &&
         source.address + source.length >= source.address;
}

absl::StatusOr<RemoteMemoryLocator> locate_for(Fabric& fabric, uint32_t rank,
                                               const RDMAMemory& memory, uint64_t offset,
                                               uint64_t size) {
  if (rank >= fabric.size()) return no_such_thread(rank, fabric.size());
  if (offset > memory.size() || size > memory.size() - offset) return leaves_memory();
  const ProtectionDomain* const domain = fabric.domain(rank);
  if (domain == nullptr) {  // this process itself
    return RemoteMemoryLocator{
        reinterpret_cast<uint64_t>(memory.get_buffer()) + offset, size, {}, fabric.rank(), 0};
  }
  return memory.locator(domain, fabric.rank()).slice(offset, size);
}

}  // namespace internal

Fabric* running_fabric() { return internal::this_running_call.fabric; }
uint32_t running_source() { return internal::this_running_call.source; }

}  // namespace cariama
