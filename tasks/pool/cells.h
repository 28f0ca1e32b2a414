// The memory of a pool worker that its peers access: request, status and transfer cells, and the
// cells of the deque. All of it is one registered memory region, at the same address in every
// worker; private cells follow directly behind it.
//
//   PoolArea | cells that can be stolen | private cells
#ifndef CARIAMA_TASKS_POOL_CELLS_H_
#define CARIAMA_TASKS_POOL_CELLS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "tasks/internal/atomic_server.h"
#include "tasks/internal/queue_pair_access.h"
#include "tasks/internal/stack_region.h"
#include "tasks/pool.h"

namespace cariama::tasks {

// Between 0x7e8000000000 and the uni-address region, so that a process may have both runtimes.
inline constexpr uintptr_t kPoolAddress = 0x7e8000000000;
inline constexpr size_t kMostPoolBytes = kRegionAddress - kPoolAddress;

// The most tasks that a victim hands over at a time.
inline constexpr uint32_t kMostParcels = 64;

// Returns the most tasks of one hand-over.
[[nodiscard]] inline uint64_t most_parcels(const PoolOptions& options) {
  return options.steal == kStealHalf ? kMostParcels : options.steal;
}

// Cell::state of a stolen task. The low byte is one of these. The other bits are the number of
// bytes in the payload: of the result, or of the exception in one of two forms (failure.h).
inline constexpr uint64_t kRunning = 0;
inline constexpr uint64_t kDone = 1;
inline constexpr uint64_t kFailedNamed = 2;
inline constexpr uint64_t kFailedHashed = 3;
inline constexpr int kStateBits = 8;

// PoolArea::status.
inline constexpr uint64_t kIdle = 0;
inline constexpr uint64_t kWorking = 1;
inline constexpr uint64_t kLeft = 2;  // the worker left the run with an error

// The name of a task's cell: its owner, and the index of the cell in the owner's deque.
struct Origin {
  uint32_t rank;
  uint32_t index;
  [[nodiscard]] uint64_t word() const { return uint64_t{rank} << 32 | index; }
  [[nodiscard]] static Origin of(uint64_t word) {
    return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word)};
  }
};

// The contents of a request cell that are neither pool::internal::kOpen nor kBlocked: which thief
// asks, and the number of its request, so that each answer belongs to one request.
inline constexpr int kThiefBits = 24;
[[nodiscard]] constexpr uint64_t request_id_of(int rank, uint64_t number) {
  return number << kThiefBits | static_cast<uint64_t>(rank);
}
[[nodiscard]] constexpr int rank_of_request(uint64_t request_id) {
  return static_cast<int>(request_id & ((uint64_t{1} << kThiefBits) - 1));
}
// Number 0 is not used, so a request id differs from kOpen and kBlocked.
static_assert(request_id_of(0, 1) > pool::internal::kBlocked);
// Returns true if a request id in the request cell of worker `rank` names another worker of
// `workers`.
[[nodiscard]] constexpr bool names_a_thief(uint64_t request_id, int rank, int workers) {
  return rank_of_request(request_id) < workers && rank_of_request(request_id) != rank;
}

// The decoded Cell::state of a stolen task that has ended.
struct EndOfTask {
  uint64_t kind;   // kDone, kFailedNamed or kFailedHashed, unless the thief wrote another value
  uint64_t bytes;  // valid bytes in the payload, at most pool::kPayloadBytes
  [[nodiscard]] static constexpr EndOfTask decode(uint64_t word) {
    return {word & ((uint64_t{1} << kStateBits) - 1),
            std::min<uint64_t>(word >> kStateBits, pool::kPayloadBytes)};
  }
  [[nodiscard]] constexpr bool has_failed() const {
    return kind == kFailedNamed || kind == kFailedHashed;
  }
};

// A task that a victim hands over to a thief.
struct Parcel {
  uint32_t function;  // FunctionId
  uint32_t bytes;     // of the arguments
  uint64_t origin;    // where the thief writes the result
  std::byte payload[pool::kPayloadBytes];
};
static_assert(sizeof(Parcel) == 112);

// Returns true if a victim can hand over such a task: the arguments lie in the payload, and the
// result has a cell among the `shared_cells` cells of one of `workers` workers.
[[nodiscard]] inline bool is_possible(const Parcel& parcel, uint64_t shared_cells, int workers) {
  const Origin origin = Origin::of(parcel.origin);
  return parcel.bytes <= pool::kPayloadBytes && origin.index < shared_cells &&
         origin.rank < static_cast<uint32_t>(workers);
}

// A task of another worker in a thief's deque, which got it in one steal with others and has not
// begun it. Its cell has a kind of its own; Cell::state and Cell::thief contain the values that the
// functions below store in them, not a state and a thief.
struct ForeignTask {
  uint32_t function;  // FunctionId
  uint32_t bytes;     // of the arguments
  uint64_t sender;    // the rank that handed the task over

  // Sets all of `cell` but the payload.
  static void store(pool::internal::Cell& cell, const Parcel& parcel, uint64_t sender) {
    cell.kind = &kKind;
    cell.state.store(parcel.function | uint64_t{parcel.bytes} << 32, std::memory_order_relaxed);
    cell.thief = sender;
    cell.origin = parcel.origin;
  }
  [[nodiscard]] static bool is_in(const pool::internal::Cell& cell) { return cell.kind == &kKind; }
  // Requires: is_in(cell).
  [[nodiscard]] static ForeignTask load(const pool::internal::Cell& cell) {
    const uint64_t word = cell.state.load(std::memory_order_relaxed);
    return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32), cell.thief};
  }

 private:
  static constexpr pool::internal::Kind kKind{nullptr, nullptr, 0, 0};
};

struct TransferCell {
  uint64_t count;  // 0: the victim has no task to spare
  Parcel parcels[kMostParcels];
};
// Returns the number of tasks in the transfer cell of a thief that has room for `most` tasks, or
// nullopt if the victim's answer is malformed.
[[nodiscard]] inline std::optional<uint32_t> tasks_in(const TransferCell& transfer, uint64_t most,
                                                      uint64_t shared_cells, int workers) {
  if (transfer.count > std::min<uint64_t>(most, kMostParcels)) return std::nullopt;
  for (uint64_t i = 0; i < transfer.count; ++i) {
    if (!is_possible(transfer.parcels[i], shared_cells, workers)) return std::nullopt;
  }
  return static_cast<uint32_t>(transfer.count);
}

struct PoolArea {
  alignas(64) std::atomic<uint64_t> request;  // kOpen, kBlocked, or a thief's request id
  alignas(64) std::atomic<uint64_t> status;   // kIdle, kWorking or kLeft
  // The id of this worker's request that the victim has answered; the answer is in `transfer`.
  alignas(64) std::atomic<uint64_t> answer;
  alignas(64) TransferCell transfer;
  alignas(64) TransferCell outgoing;  // source of the writes to the transfer cells of thieves
  uint64_t status_copy;               // buffer for reads of the status of a peer
  AccessArea access;
};
static_assert(sizeof(PoolArea) == 15488, "pool.h states the memory of each worker");

// Offsets in the registered memory of a pool.
[[nodiscard]] inline size_t cells_offset(int workers) {
  return whole_pages(sizeof(PoolArea) + static_cast<size_t>(workers) * sizeof(AtomicCell));
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_POOL_CELLS_H_
