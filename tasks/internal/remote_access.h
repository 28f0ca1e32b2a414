// What the scheduler needs of a network: one-sided operations on the registered memory of its
// peers, none of which needs the peer's CPU. The scheduler and the deques know nothing else of
// transports.
//
// Workers have their memory at equal addresses (stack_region.h, pinned_area.h), so (peer, address)
// names remote memory; an implementation knows the keys. `local` is always memory of the own
// worker, registered in the same way.
//
// peer == rank() is allowed, and means the own memory: a word that peers change by atomics may be
// changed by its owner only in this way, because the atomics of a card and those of a CPU need not
// exclude each other.
//
// Errors end the job (a peer is gone, or memory is not what it was said to be): the Status names
// the peer. Thread-compatible.
#ifndef CARIAMA_TASKS_INTERNAL_REMOTE_ACCESS_H_
#define CARIAMA_TASKS_INTERNAL_REMOTE_ACCESS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/memory.h"
#include "tasks/export.h"

namespace cariama::tasks {

// A piece to be read: `bytes` from `address` of the peer to `local`.
struct ReadPiece {
  uint64_t address;
  void* local;
  size_t bytes;
};

class CARIAMA_TASKS_EXPORT RemoteAccess {
 public:
  virtual ~RemoteAccess() = default;
  RemoteAccess(const RemoteAccess&) = delete;
  RemoteAccess& operator=(const RemoteAccess&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Reads the pieces, each after the one before (what a piece shows is at least as new). One round
  // trip for all. Aligned words of 8 bytes are read whole. Blocks until done.
  [[nodiscard]] virtual absl::Status read(int peer, std::span<const ReadPiece> pieces) = 0;
  [[nodiscard]] absl::Status read(int peer, uint64_t address, void* local, size_t bytes) {
    const ReadPiece piece{address, local, bytes};
    return read(peer, std::span(&piece, 1));
  }

  // Writes. `local` may be reused on return. The peer sees it before anything that is issued to it
  // later; nobody waits for that.
  [[nodiscard]] virtual absl::Status write(int peer, uint64_t address, const void* local,
                                           size_t bytes) = 0;

  // 8 bytes, aligned. Return the old value. Block for one round trip.
  [[nodiscard]] virtual absl::StatusOr<uint64_t> fetch_add(int peer, uint64_t address,
                                                           uint64_t addend) = 0;
  [[nodiscard]] virtual absl::StatusOr<uint64_t> compare_swap(int peer, uint64_t address,
                                                              uint64_t expected,
                                                              uint64_t desired) = 0;
  // As fetch_add, but nobody waits for it, and the old value is lost.
  [[nodiscard]] virtual absl::Status post_add(int peer, uint64_t address, uint64_t addend) = 0;

  // Makes a segment of the own pinned area known to peers: PinnedArea's RegisterSegment.
  [[nodiscard]] virtual absl::Status add_segment(size_t index, const MemorySource& source) = 0;

  // Where [address, address + bytes) of the peer's region lies in this process, or nullptr if it
  // cannot be reached by loads and stores. Stays so.
  [[nodiscard]] virtual void* mapped(int peer, uint64_t address, size_t bytes) = 0;

  // Dependent round trips so far (waits for a remote operation).
  [[nodiscard]] uint64_t round_trips() const { return round_trips_; }

 protected:
  RemoteAccess(int rank, int size) : rank_(rank), size_(size) {}

  uint64_t round_trips_ = 0;

 private:
  const int rank_;
  const int size_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_REMOTE_ACCESS_H_
