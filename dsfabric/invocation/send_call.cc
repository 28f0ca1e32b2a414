#include "dsfabric/send_call.h"

#include <cstring>
#include <new>
#include <string>

#include "dsfabric/calls/answers.h"
#include "dsfabric/calls/call_sender.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/running_call.h"
#include "dsfabric/internal/call_failures.h"
#include "dsfabric/internal/call_source.h"
#include "dtutils/error.h"

namespace cariama {
namespace internal {
namespace {

// A call that waits for its answer.
class AwaitedCall final : public PendingCall {
 public:
  AwaitedCall(EventReceiver consumed, std::unique_ptr<ResultReceiver> receiver,
              std::unique_ptr<LentBuffer> lent)
      : consumed_(std::move(consumed)), receiver_(std::move(receiver)), lent_(std::move(lent)) {}

  void complete(const absl::Status& status, std::span<const std::byte> result) override {
    lent_.reset();  // first: at the end of the call the user may free the buffer
    if (status.ok() && receiver_ != nullptr) {
      try {
        receiver_->receive(result);
      } catch (...) {
        return consumed_.complete(unreadable_result());
      }
    }
    consumed_.complete(status, result);
  }

 private:
  const EventReceiver consumed_;
  std::unique_ptr<ResultReceiver> receiver_;
  std::unique_ptr<LentBuffer> lent_;
};

}  // namespace

void EventReceiver::complete(const absl::Status& status, std::span<const std::byte> result) const {
  if (synchronizer_ != nullptr) {
    if (status.ok()) return synchronizer_->decrease();
    return synchronizer_->fail(status);
  }
  if (state_ != nullptr) state_->finish(status, result);
}

absl::Status CallEnd::expect(Fabric& fabric, Rank rank, OutgoingCall& call, Rank router) {
  if (written != nullptr) {
    auto target = RemoteObjectAccess::expect(*written, rank);
    if (!target.ok()) return target.status();
    call.awaited = RemoteObjectAccess::last_pending(*written);
    call.flags = kCallNotify;
    call.notify = *target;
    reported_ = true;
    return absl::OkStatus();
  }
  reported_ = static_cast<bool>(consumed);
  if (!reported_ && receiver == nullptr && lent == nullptr) return absl::OkStatus();
  const bool returns = receiver != nullptr || result_to_consumed;
  Answers& answers = answers_of(fabric);
  auto pending =
      std::make_unique<AwaitedCall>(std::move(consumed), std::move(receiver), std::move(lent));
  call.flags = returns ? kCallReturn : kCallNotify;
  call.notify.rank = fabric.rank();
  call.notify.handle = returns ? answers.expect_result(rank, std::move(pending), router)
                               : answers.pending().add(rank, std::move(pending), nullptr, router);
  call.awaited = call.notify.handle;
  return absl::OkStatus();
}

CallResult CallEnd::refused(Fabric& fabric, Rank rank, const OutgoingCall& call,
                            const absl::Status& why) {
  const bool withdrawn = call.flags == 0      ? true
                         : written != nullptr ? RemoteObjectAccess::forget(*written)
                                              : forget_answer(fabric, rank, call.notify.handle);
  if (withdrawn || !reported_) return why;
  transmitted.complete(why);
  return {};
}

absl::Status check_destination(const Fabric& fabric, Rank rank, ThreadId thread) {
  if (thread != kService) {
    const uint32_t total = fabric.total_threads();
    return thread < total ? absl::OkStatus() : no_such_thread(thread, total);
  }
  return rank < fabric.size() ? absl::OkStatus() : no_such_rank(rank, fabric.size());
}

CallResult send_call(Fabric& fabric, Rank rank, ThreadId thread, const OutgoingCall& call,
                     WhenFull when_full) {
  return sender_of(fabric).send(rank, thread, call, when_full);
}

CallResult send_call(Fabric& fabric, Rank rank, ThreadId thread, OutgoingCall call,
                     WhenFull when_full, CallEnd& end) {
  if (absl::Status there = check_destination(fabric, rank, thread); !there.ok()) return there;
  if (thread != kService) rank = fabric.rank_of(thread);
  if (absl::Status expected = end.expect(fabric, rank, call); !expected.ok()) return expected;
  absl::Status sent;
  try {
    sent = sender_of(fabric).send(rank, thread, call, when_full);
  } catch (const std::bad_alloc&) {
    // Not accepted: the objects of its events may end now. If one has got its event already, the
    // call counts as accepted.
    const auto why = absl::Status(absl::StatusCode::kResourceExhausted, {});
    if (!end.refused(fabric, rank, call, why).ok()) throw;
    return {};
  }
  if (!sent.ok()) return end.refused(fabric, rank, call, sent);
  // The call was copied into the send buffer, so its arguments may be reused.
  if (end.transmitted) {
    end.transmitted.complete(absl::OkStatus());
    workers_of(fabric).notify_waiters();
  }
  return {};
}

absl::Status check_range(const RDMAMemory* memory, uint64_t offset, uint64_t size) {
  if (memory != nullptr && offset <= memory->size() && size <= memory->size() - offset) {
    return absl::OkStatus();
  }
  const std::string wanted = "a transfer takes " + std::to_string(size) + " bytes at offset " +
                             std::to_string(offset) + " of its memory, ";
  return memory == nullptr
             ? make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                          wanted + "which is nullptr", "pass an RDMAMemory")
             : make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                          wanted + "which has " + std::to_string(memory->size()) + " bytes",
                          "check offset and size");
}

absl::Status check_target(Rank rank, const RemoteMemoryLocator& target, uint64_t size) {
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

absl::Status write_ahead(Fabric& fabric, Rank rank, RDMAMemory& source, uint64_t offset,
                         uint64_t size, const RemoteMemoryLocator& target, bool complete) {
  if (rank >= fabric.size()) return no_such_rank(rank, fabric.size());
  if (absl::Status range = check_range(&source, offset, size); !range.ok()) return range;
  if (absl::Status can_be = check_target(rank, target, size); !can_be.ok()) return can_be;
  if (rank == fabric.rank()) {
    std::memcpy(reinterpret_cast<void*>(target.address), source.get_buffer() + offset, size);
    return absl::OkStatus();
  }
  auto connection = sender_of(fabric).connection_of_this_thread(rank);
  if (!connection.ok()) return connection.status();
  Synchronizer done;
  absl::Status posted = sender_of(fabric).transfer(**connection, [&](Connection& through) {
    return through.write(source, offset, size, target, complete ? &done : nullptr);
  });
  if (!posted.ok() || !complete) return posted;
  return sender_of(fabric).await_transfer(**connection, done);
}

bool can_be_pulled(const RemoteMemoryLocator& source) {
  return source.owner == this_running_call.source &&
         source.address + source.length >= source.address;
}

absl::StatusOr<RemoteMemoryLocator> locate_for(Fabric& fabric, Rank rank, const RDMAMemory& memory,
                                               uint64_t offset, uint64_t size) {
  if (rank >= fabric.size()) return no_such_rank(rank, fabric.size());
  if (absl::Status range = check_range(&memory, offset, size); !range.ok()) return range;
  const ProtectionDomain* const domain = fabric.domain(rank);
  if (domain == nullptr) {  // this process itself
    return RemoteMemoryLocator{
        reinterpret_cast<uint64_t>(memory.get_buffer()) + offset, size, {}, fabric.rank(), 0};
  }
  return memory.locator(domain, fabric.rank()).slice(offset, size);
}

}  // namespace internal

Fabric* running_fabric() { return internal::this_running_call.fabric; }
Rank running_source() { return internal::this_running_call.source; }

}  // namespace cariama
