// Transmitter: transfers of memory that the user did not register.
#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/registration/user_memory.h"
#include "dtutils/transmitter.h"

namespace cariama {

TransmitQueue::LentTransfer::~LentTransfer() = default;

void TransmitQueue::LentTransfer::end(const absl::Status& status) {
  if (reads && status.ok()) memory->copy_back();
  memory.reset();  // first: at the end of `done` the user may free the memory
  if (status.ok()) {
    done->decrease();
  } else {
    done->fail(status);
  }
}

void TransmitQueue::Ending::end(absl::Status status) const {
  if (word_ == 0) return;
  if ((word_ & 1) != 0) [[unlikely]] {
    const std::unique_ptr<LentTransfer> lent(reinterpret_cast<LentTransfer*>(word_ - 1));
    return lent->end(status);
  }
  auto* const done = reinterpret_cast<Synchronizer*>(word_);
  if (status.ok()) {
    done->decrease();
  } else {
    done->fail(std::move(status));
  }
}

// Posts a transfer of one piece of user memory. After an error nothing uses `done`.
absl::Status Transmitter::transfer_lent(Opcode opcode, std::byte* address, size_t bytes,
                                        size_t piece, const RemoteMemoryLocator& remote,
                                        Synchronizer& done, const void* frame) {
  UserMemory& user = *queue_->options_.user_memory;
  const bool reads = opcode == Opcode::kRead;
  auto lent = reads ? user.lend_target({address, bytes}, piece, frame)
                    : user.lend_source({address, bytes}, piece, frame);
  if (!lent.ok()) return lent.status();
  // `view` is a handle that belongs to this function. The handle of `lent` cannot be used: the
  // thread that polls the completion deletes it, possibly before transfer_pieces() has tagged its
  // argument.
  RDMAMemory& memory = (*lent)->memory();
  RDMAMemory view(memory.get_buffer(), bytes, memory.range());
  std::unique_ptr<TransmitQueue::LentTransfer> transfer(
      new TransmitQueue::LentTransfer{*std::move(lent), &done, reads});
  const Piece whole{&view, 0, bytes};
  absl::Status posted = transfer_pieces(opcode, std::span(&whole, 1), remote, 0,
                                        TransmitQueue::Ending(transfer.get()));
  if (posted.ok()) {
    static_cast<void>(transfer.release());
  } else if (!view.is_free()) {
    // The queue has failed after a part was posted. The completions of that part prove that the
    // device no longer accesses the memory; a copy is freed with the tags of that part.
    static_cast<void>(wait_until(
        [&] {
          queue_->progress();
          return view.is_free() || queue_->is_drained();
        },
        kForever));
    transfer->memory->memory() = std::move(view);
  }
  return posted;
}

// Not inlined: the recorded call stack begins at the frame of this function. write(), read() and
// send(), which call it, are inlined into the program.
[[gnu::noinline]] absl::Status Transmitter::transfer_user(Opcode opcode, std::byte* address,
                                                          size_t bytes,
                                                          const RemoteMemoryLocator& remote,
                                                          Synchronizer& done) {
  if (queue_->options_.user_memory == nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "the queue to " + queue_pair_->peer() + " transfers registered memory only",
                      "set TransmitOptions::user_memory, or take the memory from an allocator");
  }
  const bool sends = opcode == Opcode::kSend;
  if (!sends && bytes > remote.length) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a transfer to " + queue_pair_->peer() + " of " + std::to_string(bytes) +
                          " bytes does not fit into " + std::to_string(remote.length) +
                          " bytes there",
                      "check the size against the locator");
  }
  const auto step = queue_->options_.user_memory->piece_bytes(bytes);
  if (!step.ok()) return step.status();
  const void* const frame = __builtin_frame_address(0);
  if (sends || *step == bytes) {
    absl::Status posted = transfer_lent(opcode, address, bytes, 0, remote, done, frame);
    asm volatile("");  // so the call is no tail call, before which the frame would end
    return posted;
  }
  // Two pieces at a time: the one in transfer, and the next one, which is registered meanwhile.
  std::array<Synchronizer, 2> ends{Synchronizer(0), Synchronizer(0)};
  absl::Status result;
  size_t piece = 0;
  size_t offset = 0;
  for (; offset < bytes && result.ok(); offset += *step, ++piece) {
    const size_t part = std::min(*step, bytes - offset);
    const bool last = offset + part == bytes;
    Synchronizer& end = ends[piece % 2];
    result = wait(end, kForever);
    if (!result.ok()) break;
    if (!last) end.reset(1);
    result = transfer_lent(opcode, address + offset, part, piece, remote.slice(offset, part),
                           last ? done : end, frame);
    if (!result.ok() && !last) end.reset(0);
  }
  // If the last piece was posted, `done` gets the error of a piece before it, too: the operations
  // of a queue pair complete in order.
  for (Synchronizer& end : ends) static_cast<void>(wait(end, kForever));
  return result;
}

}  // namespace cariama
