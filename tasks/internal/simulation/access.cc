// RemoteAccess of a simulated machine.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tasks/internal/simulation/machine.h"

namespace cariama::tasks {

void SimulatedAccess::maybe_pause() {
  const SimulatedFaults& faults = cluster_.options().faults;
  if (cluster_.happens(faults.pause)) machine_.sleep(cluster_.up_to(faults.pause_most));
}

// Returns the time at which an operation that is issued now arrives at the peer: after all earlier
// operations of this worker.
int64_t SimulatedAccess::arrival(int peer, int64_t transfer) {
  const int64_t issued = cluster_.events().now() + machine_.ahead();
  last_arrival_ = std::max(last_arrival_ + 1, issued + cluster_.latency(rank(), peer) + transfer);
  return last_arrival_;
}

int64_t SimulatedAccess::transfer_time(size_t bytes) const {
  return static_cast<int64_t>(static_cast<double>(bytes) * 1000 /
                              cluster_.options().gigabytes_per_second);
}

uint64_t SimulatedAccess::perform(const Operation& operation) {
  maybe_pause();
  operation_ = operation;
  if (operation.peer == rank()) {
    const bool reads =
        operation.kind == Operation::Kind::kRead || operation.kind == Operation::Kind::kParked;
    machine_.spend(reads ? cluster_.options().own_access : own_atomic_);
    apply(operation_);
    return operation_.result;
  }
  ++round_trips_;
  cluster_.events().push(arrival(operation.peer), EventQueue::Kind::kExecute,
                         static_cast<uint32_t>(rank()));
  machine_.wait_for_operation();
  return operation_.result;
}

void SimulatedAccess::execute() {
  const int64_t now = cluster_.events().now();
  if (!std::exchange(operation_.had_turn, true)) {
    const int64_t turn = cluster_.through_port(operation_.peer, now);
    if (turn > now) {  // the port is busy: execute the operation at `turn`
      cluster_.events().push(turn, EventQueue::Kind::kExecute, static_cast<uint32_t>(rank()));
      return;
    }
  }
  apply(operation_);
  const SimTime torn = cluster_.options().faults.torn;
  if (operation_.kind == Operation::Kind::kRead && torn.count() > 0 &&
      operation_.next_piece < operation_.pieces.size()) {
    cluster_.events().push(now + 1 + cluster_.up_to(torn), EventQueue::Kind::kExecute,
                           static_cast<uint32_t>(rank()));
    return;
  }
  machine_.answer(cluster_.latency(operation_.peer, rank()) + transfer_time(operation_.bytes));
}

void SimulatedAccess::apply(Operation& operation) {
  switch (operation.kind) {
    case Operation::Kind::kRead: {
      const bool torn = operation.peer != rank() && cluster_.options().faults.torn.count() > 0;
      while (operation.next_piece < operation.pieces.size()) {
        const ReadPiece& piece = operation.pieces[operation.next_piece++];
        std::memcpy(piece.local, cluster_.memory(rank(), operation.peer, piece.address),
                    piece.bytes);
        if (torn) break;
      }
      break;
    }
    case Operation::Kind::kAdd:
      operation.result = static_cast<std::atomic<uint64_t>*>(
                             cluster_.memory(rank(), operation.peer, operation.address))
                             ->fetch_add(operation.operand);
      break;
    case Operation::Kind::kSwap: {
      operation.result = operation.expected;
      void* const there = cluster_.memory(rank(), operation.peer, operation.address);
      if (static_cast<std::atomic<uint64_t>*>(there)->compare_exchange_strong(operation.result,
                                                                              operation.operand)) {
        cluster_.machine(operation.peer).on_write(there);
      }
      break;
    }
    case Operation::Kind::kFrames: {
      const SimulatedTask* const task = cluster_.machine(operation.peer).find(operation.entry);
      if (task == nullptr) {
        cluster_.violated("frames were overwritten before a thief had copied them");
      } else {
        *operation.frames = *task;
      }
      break;
    }
    case Operation::Kind::kParked:
      *operation.frames = cluster_.block_at(operation.address).frames;
      break;
  }
}

absl::Status SimulatedAccess::read(int peer, std::span<const ReadPiece> pieces) {
  Operation operation{.kind = Operation::Kind::kRead, .peer = peer, .pieces = pieces};
  for (const ReadPiece& piece : pieces) operation.bytes += piece.bytes;
  perform(operation);
  return absl::OkStatus();
}

absl::Status SimulatedAccess::write(int peer, uint64_t address, const void* local, size_t bytes) {
  maybe_pause();
  void* const there = cluster_.memory(rank(), peer, address);
  if (peer == rank()) {
    machine_.spend(cluster_.options().own_access);
    std::memcpy(there, local, bytes);
    return absl::OkStatus();
  }
  Cluster::Posted posted{
      peer, Cluster::Posted::Kind::kWrite, reinterpret_cast<uint64_t>(there), 0, bytes, {}, {}};
  int64_t transfer = 0;
  if (bytes <= posted.data.size()) {
    std::memcpy(posted.data.data(), local, bytes);
  } else {
    const auto* const begin = static_cast<const std::byte*>(local);
    posted.more.assign(begin, begin + bytes);
    transfer = transfer_time(bytes);
  }
  cluster_.post(arrival(peer, transfer), posted);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SimulatedAccess::fetch_add(int peer, uint64_t address, uint64_t addend) {
  return perform({.kind = Operation::Kind::kAdd,
                  .peer = peer,
                  .address = address,
                  .operand = addend,
                  .bytes = sizeof(uint64_t)});
}

absl::StatusOr<uint64_t> SimulatedAccess::compare_swap(int peer, uint64_t address,
                                                       uint64_t expected, uint64_t desired) {
  return perform({.kind = Operation::Kind::kSwap,
                  .peer = peer,
                  .address = address,
                  .operand = desired,
                  .expected = expected,
                  .bytes = sizeof(uint64_t)});
}

absl::Status SimulatedAccess::post_add(int peer, uint64_t address, uint64_t addend) {
  maybe_pause();
  void* const there = cluster_.memory(rank(), peer, address);
  cluster_.post(arrival(peer), {peer,
                                Cluster::Posted::Kind::kAdd,
                                reinterpret_cast<uint64_t>(there),
                                addend,
                                sizeof addend,
                                {},
                                {}});
  return absl::OkStatus();
}

void SimulatedAccess::read_frames(int peer, const PublicEntry& entry, SimulatedTask& to) {
  perform({.kind = Operation::Kind::kFrames,
           .peer = peer,
           .bytes = entry.top - entry.sp,
           .entry = entry,
           .frames = &to});
}

void SimulatedAccess::read_parked(SimulatedBlock& block, Reference frames, SimulatedTask& to) {
  perform({.kind = Operation::Kind::kParked,
           .peer = frames.rank(),
           .address = frames.address(),
           .bytes = block.frames.top - block.frames.sp,
           .frames = &to});
}

void SimulatedAccess::release(Reference block) {
  if (block.rank() == rank()) return cluster_.free(cluster_.block_at(block.address()));
  cluster_.post(arrival(block.rank()), {block.rank(),
                                        Cluster::Posted::Kind::kRelease,
                                        block.address(),
                                        0,
                                        sizeof(uint64_t),
                                        {},
                                        {}});
}

}  // namespace cariama::tasks
