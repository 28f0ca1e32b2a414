// RemoteAccess: one-sided operations on the registered memory of peers. None of them needs the
// peer's CPU. It is the only interface to the transport that the scheduler and the deques use.
//
// All workers have their memory at equal addresses (stack_region.h, pinned_area.h), so (peer,
// address) names remote memory. The implementation finds the keys. `local` of a read is registered
// memory of this worker. `local` of a write may be any memory up to 120 bytes; above that it is
// registered memory, too.
//
// peer == rank() is allowed and accesses this worker's memory. If peers change a word by atomics,
// its owner must change it by these, too, because the atomics of a network card and those of a CPU
// need not be atomic to each other. A compare-and-swap that fails is a change, too: the device may
// write the old value back, and thereby undo a store that a CPU or a WRITE has made meanwhile.
// Linux's soft-RoCE does so before kernel 6.3 (rxe_resp.c, atomic_reply()). An owner that
// recognizes the old value may store while no atomic of a peer can succeed (pool/request_cell.h).
//
// Errors: UNAVAILABLE, with scope kPeer or kLink, if the peer has failed; this ends the run. Any
// other error (the memory is not registered) ends the process. The Status names the peer.
// Thread-compatible.
#ifndef CARIAMA_TASKS_INTERNAL_REMOTE_ACCESS_H_
#define CARIAMA_TASKS_INTERNAL_REMOTE_ACCESS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/memory.h"
#include "dtutils/wait.h"

namespace cariama::tasks {

// A piece of a read: `bytes` bytes from `address` of the peer to `local`.
struct ReadPiece {
  uint64_t address;
  void* local;
  size_t bytes;
};

class RemoteAccess {
 public:
  virtual ~RemoteAccess() = default;
  RemoteAccess(const RemoteAccess&) = delete;
  RemoteAccess& operator=(const RemoteAccess&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Reads the pieces in order: the contents of a piece are at least as new as those of the piece
  // before it. Aligned 8-byte words are read atomically. At most 4 pieces, else INVALID_ARGUMENT.
  // Blocks for one round trip in total.
  [[nodiscard]] virtual absl::Status read(int peer, std::span<const ReadPiece> pieces) = 0;
  [[nodiscard]] absl::Status read(int peer, uint64_t address, void* local, size_t bytes) {
    const ReadPiece piece{address, local, bytes};
    return read(peer, std::span(&piece, 1));
  }

  // Writes `bytes` bytes from `local` to `address` of the peer. Does not wait until the peer can
  // observe the write; the peer observes it before later operations of this worker. The caller may
  // reuse `local` when the function returns.
  [[nodiscard]] virtual absl::Status write(int peer, uint64_t address, const void* local,
                                           size_t bytes) = 0;

  // Atomic operations on an aligned 8-byte word. Return the old value. Block for one round trip.
  [[nodiscard]] virtual absl::StatusOr<uint64_t> fetch_add(int peer, uint64_t address,
                                                           uint64_t addend) = 0;
  [[nodiscard]] virtual absl::StatusOr<uint64_t> compare_swap(int peer, uint64_t address,
                                                              uint64_t expected,
                                                              uint64_t desired) = 0;
  // Like fetch_add(), but does not wait for the completion and does not return the old value.
  [[nodiscard]] virtual absl::Status post_add(int peer, uint64_t address, uint64_t addend) = 0;

  // Registers a segment of this worker's pinned area and publishes it to the peers. Implements
  // PinnedArea::RegisterSegment.
  [[nodiscard]] virtual absl::Status add_segment(size_t index, const MemorySource& source) = 0;

  // Returns the address in this process of [address, address + bytes) of the peer's region, or
  // nullptr if loads and stores cannot reach it. The result does not change.
  [[nodiscard]] virtual void* mapped(int peer, uint64_t address, size_t bytes) = 0;

  // Returns the number of dependent round trips so far: the waits for a remote operation.
  [[nodiscard]] uint64_t round_trips() const { return round_trips_; }

  // Returns the rank of the first peer to which an operation has failed with UNAVAILABLE or
  // DEADLINE_EXCEEDED, or -1.
  [[nodiscard]] int failed_peer() const { return failed_peer_; }

  // From now on, operations that need the CPU of a peer (served atomics) wait for it until
  // `deadline`, and then return DEADLINE_EXCEEDED. Other operations complete without it.
  void set_deadline(Deadline deadline) { deadline_ = deadline; }

 protected:
  RemoteAccess(int rank, int size) : rank_(rank), size_(size) {}

  uint64_t round_trips_ = 0;
  int failed_peer_ = -1;
  Deadline deadline_ = kForever;

 private:
  const int rank_;
  const int size_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_REMOTE_ACCESS_H_
