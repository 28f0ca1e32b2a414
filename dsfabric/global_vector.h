// A vector whose elements are spread over all processes of a job.
//
//   // Block distribution:
//   auto vector = GlobalVector<double>::create(all, 1'000'000, deadline);
//   // Cyclic distribution:
//   auto cyclic = GlobalVector<int>::create(all, 1000, deadline, {.block = 1});
//   for (size_t i = 0; i < vector->local().size(); ++i) {
//     vector->local()[i] = f(vector->global_index(i));
//   }
//   all.barrier(deadline);                                   // now every process may read them
//   auto x = vector->rget(memory, 12345).wait(deadline);
//   vector->get(memory, 100, std::span(buffer), deadline);   // may span processes
//
// Element i is in block i / block; blocks are assigned to the processes in turn. One block per
// process is the block distribution, blocks of one element are the cyclic distribution, and sizes
// in between are block-cyclic.
//
// Cost: creation is an all_gather of 32 bytes per process. Each process keeps the table: 32 P
// bytes.
#ifndef CARIAMA_DSFABRIC_GLOBAL_VECTOR_H_
#define CARIAMA_DSFABRIC_GLOBAL_VECTOR_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/collectives.h"
#include "dsfabric/global_memory.h"
#include "dsfabric/peer_error.h"
#include "dsfabric/remote_memory.h"
#include "dtutils/error.h"
#include "dtutils/wait.h"

namespace cariama {

struct GlobalVectorOptions {
  // Elements in a block. 0: one block for each process. Must be equal in all processes.
  size_t block = 0;
};

// Movable. Functions that only locate elements are thread-safe. The elements are ordinary memory,
// and their accesses are not synchronized. Each process frees its own part: all accesses must have
// ended (use a barrier) before the first process destroys its object.
template <typename T>
class GlobalVector {
 public:
  // Creates a vector of `size` zeroed elements. Collective over a kProcesses object. Errors: those
  // of all_gather and of RemoteMemory::allocate; INVALID_ARGUMENT (a kThreads object);
  // FAILED_PRECONDITION (the processes pass different sizes); UNAVAILABLE (a process that would own
  // a part is dead).
  [[nodiscard]] static absl::StatusOr<GlobalVector> create(
      Collectives& all, size_t size, Deadline deadline, const GlobalVectorOptions& options = {}) {
    Fabric& fabric = all.fabric();
    if (all.participants() != fabric.size()) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        "a global vector is created by processes, not by threads");
    }
    GlobalVector vector;
    vector.size_ = size;
    vector.rank_ = fabric.rank();
    vector.processes_ = fabric.size();
    vector.block_ = options.block != 0
                        ? options.block
                        : size / fabric.size() + (size % fabric.size() != 0 || size == 0 ? 1 : 0);
    auto memory = RemoteMemory::allocate(
        fabric, fabric.rank(), internal::bytes_of<T>(std::max<size_t>(1, vector.local_size())),
        deadline);
    // A process whose allocation failed takes part, too: its null address reports the failure to
    // the other processes.
    struct Part {
      std::array<uint64_t, 2> shape;
      GlobalAddress address;
    };
    Part mine{{size, vector.block_}, {}};
    if (memory.ok()) mine.address = memory->address();
    auto parts = all.all_gather(mine, deadline);
    if (!memory.ok()) return memory.status();
    if (!parts.ok()) return parts.status();
    for (uint32_t rank = 0; rank < parts->size(); ++rank) {
      const auto& part = (*parts)[rank];
      if (!part.has_value() || part->address.address == 0) {
        if (!part.has_value()) return dead_peer_error(fabric, rank, "no global vector");
        return make_error(
            absl::StatusCode::kUnavailable, ErrorScope::kPeer,
            "no global vector: " + fabric.label(rank) + " has no memory for its part");
      }
      if (part->shape != mine.shape) {
        return make_error(
            absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
            "no global vector: " + fabric.label(rank) + " wants " + std::to_string(part->shape[0]) +
                " elements in blocks of " + std::to_string(part->shape[1]) + ", this process " +
                std::to_string(size) + " in blocks of " + std::to_string(vector.block_));
      }
      vector.parts_.push_back(global_ptr<T>(part->address));
    }
    vector.memory_ = *std::move(memory);
    return vector;
  }

  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] size_t block() const { return block_; }

  // ---- Where elements are

  [[nodiscard]] Rank rank_of(size_t index) const {
    return static_cast<uint32_t>(index / block_ % processes_);
  }
  // Returns the element's index within the part of its process.
  [[nodiscard]] size_t local_index(size_t index) const {
    return index / block_ / processes_ * block_ + index % block_;
  }
  // Returns the global index of an element of this process's part.
  [[nodiscard]] size_t global_index(size_t local_index) const {
    return (local_index / block_ * processes_ + rank_) * block_ + local_index % block_;
  }
  // Requires: index < size().
  [[nodiscard]] global_ptr<T> operator[](size_t index) const {
    return parts_[rank_of(index)] + static_cast<ptrdiff_t>(local_index(index));
  }
  // This process's part, in the order of indices.
  [[nodiscard]] std::span<T> local() const {
    return {reinterpret_cast<T*>(memory_.address().address), local_size()};
  }

  // ---- Access through a thread's GlobalMemory. The blocking functions return OUT_OF_RANGE; the
  // others require index < size().

  [[nodiscard]] GlobalValue<T> rget(GlobalMemory& memory, size_t index) const {
    return memory.rget((*this)[index]);
  }
  [[nodiscard]] GlobalTransfer rput(GlobalMemory& memory, size_t index, const T& value) const {
    return memory.rput(value, (*this)[index]);
  }
  // Transfers elements [first, first + into.size()), which may be in several processes. All
  // transfers are in flight at the same time.
  [[nodiscard]] absl::Status get(GlobalMemory& memory, size_t first, std::span<T> into,
                                 Deadline deadline) const {
    return for_each_run(first, into.size(), deadline, [&](global_ptr<T> from, size_t at, size_t n) {
      return memory.rget(from, into.subspan(at, n));
    });
  }
  [[nodiscard]] absl::Status put(GlobalMemory& memory, size_t first, std::span<const T> values,
                                 Deadline deadline) const {
    return for_each_run(first, values.size(), deadline, [&](global_ptr<T> to, size_t at, size_t n) {
      return memory.rput(values.subspan(at, n), to);
    });
  }

 private:
  GlobalVector() = default;

  [[nodiscard]] size_t local_size() const {
    const size_t blocks = size_ / block_;
    const size_t rest = size_ % block_;
    const size_t turn = blocks % processes_;  // the process that has the last, incomplete block
    return blocks / processes_ * block_ + (rank_ < turn ? block_ : rank_ == turn ? rest : 0);
  }

  // Starts a transfer for each run of elements within one block, then waits for all of them.
  template <typename Start>
  [[nodiscard]] absl::Status for_each_run(size_t first, size_t count, Deadline deadline,
                                          Start&& start) const {
    if (first > size_ || count > size_ - first) {
      return make_error(absl::StatusCode::kOutOfRange, ErrorScope::kOperation,
                        "elements " + std::to_string(first) + " to " +
                            std::to_string(first + count) + " of a global vector of " +
                            std::to_string(size_));
    }
    std::vector<GlobalTransfer> in_flight;
    for (size_t done = 0; done < count;) {
      const size_t index = first + done;
      const size_t run = std::min(count - done, block_ - index % block_);
      in_flight.push_back(start((*this)[index], done, run));
      done += run;
    }
    absl::Status all;
    for (GlobalTransfer& transfer : in_flight) all.Update(transfer.wait(deadline));
    return all;
  }

  size_t size_ = 0;
  size_t block_ = 1;
  Rank rank_ = 0;
  uint32_t processes_ = 1;
  RemoteMemory memory_;
  std::vector<global_ptr<T>> parts_;  // by rank
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_GLOBAL_VECTOR_H_
