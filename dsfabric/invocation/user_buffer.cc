#include "dsfabric/user_buffer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "dsfabric/calls/call_sender.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/internal/call_failures.h"
#include "dsfabric/internal/call_source.h"
#include "dsfabric/peers/fabric_memory.h"
#include "dsfabric/send_call.h"
#include "dtutils/error.h"

namespace cariama {

namespace internal {

// Not inlined: the recorded call stack begins at the frame of this function, so that the frames of
// the library do not count.
[[gnu::noinline]] absl::StatusOr<std::unique_ptr<LentBuffer>> LentBuffer::make(
    Fabric& fabric, Rank rank, std::span<const std::byte> buffer, size_t piece, const void* frame) {
  if (frame == nullptr) frame = __builtin_frame_address(0);
  if (rank >= fabric.size()) return no_such_rank(rank, fabric.size());
  std::unique_ptr<LentBuffer> made(new LentBuffer());
  // Transfers within this process use the buffer in place.
  if (rank == fabric.rank()) {
    made->in_place_ = {const_cast<std::byte*>(buffer.data()), buffer.size(), nullptr};
    return made;
  }
  auto lent = memory_of(fabric).user_memory(fabric.domain(rank))->lend_source(buffer, piece, frame);
  if (!lent.ok()) return lent.status();
  made->lent_ = *std::move(lent);
  return made;
}

// Not inlined: the recorded call stack begins at the frame of this function, so that the frames of
// the library do not count.
[[gnu::noinline]] absl::Status write_user_buffer(Fabric& fabric, Rank rank,
                                                 std::span<const std::byte> buffer,
                                                 const RemoteMemoryLocator& target) {
  if (rank >= fabric.size()) return no_such_rank(rank, fabric.size());
  if (absl::Status can_be = check_target(rank, target, buffer.size()); !can_be.ok()) return can_be;
  if (rank == fabric.rank()) {
    if (!buffer.empty()) {
      std::memcpy(reinterpret_cast<void*>(target.address), buffer.data(), buffer.size());
    }
    return absl::OkStatus();
  }
  auto connection = sender_of(fabric).connection_of_this_thread(rank);
  if (!connection.ok()) return connection.status();
  auto step = memory_of(fabric).user_memory(fabric.domain(rank))->piece_bytes(buffer.size());
  if (!step.ok()) return step.status();
  // At most two pieces are registered at a time: the next one while the one before is in transfer.
  struct InTransfer {
    std::unique_ptr<LentBuffer> lent;
    Synchronizer done{0};
  };
  std::array<InTransfer, 2> pieces;
  CallSender& sender = sender_of(fabric);
  absl::Status result;
  const auto await = [&](InTransfer& one) {
    result.Update(one.done.done() ? one.done.status()
                                  : sender.await_transfer(**connection, one.done));
    one.lent.reset();
  };
  size_t piece = 0;
  size_t offset = 0;
  do {
    InTransfer& next = pieces[piece % 2];
    await(next);
    if (!result.ok()) break;
    const size_t bytes = std::min(*step, buffer.size() - offset);
    auto lent = LentBuffer::make(fabric, rank, buffer.subspan(offset, bytes), piece++,
                                 __builtin_frame_address(0));
    if (!lent.ok()) {
      result = lent.status();
      break;
    }
    next.lent = *std::move(lent);
    next.done.reset(1);
    result = sender.transfer(**connection, [&](Connection& through) {
      return through.write(next.lent->memory(), 0, bytes, target.slice(offset, bytes), &next.done);
    });
    if (!result.ok()) next.done.reset(0);
    offset += bytes;
  } while (result.ok() && offset < buffer.size());
  for (InTransfer& one : pieces) await(one);
  return result;
}

}  // namespace internal
}  // namespace cariama
