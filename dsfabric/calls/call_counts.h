// The numbers of calls that a process has begun and ended, for each peer that is their destination
// or source. Termination detection reads them.
#ifndef CARIAMA_DSFABRIC_CALLS_CALL_COUNTS_H_
#define CARIAMA_DSFABRIC_CALLS_CALL_COUNTS_H_

#include <atomic>
#include <cstdint>

#include "dsfabric/internal/per_peer.h"

namespace cariama::internal {

// Thread-safe. Takes 64 bytes for each process with which this process has exchanged calls, and the
// terms of PerPeer.
class CallCounts {
 public:
  explicit CallCounts(uint32_t size) : counts_(size) {}

  // Allocates the counts of process `rank`: begin() and end() then do not allocate, so that no
  // count is lost for want of memory. Called before the first call to or from the process. Throws
  // std::bad_alloc.
  void reserve(uint32_t rank) { static_cast<void>(counts_.get(rank)); }
  // Counts a call to `rank` as begun. Called before the call can run anywhere. So, summed over all
  // processes, ended never exceeds begun. Throws std::bad_alloc unless the counts are reserved, and
  // then has not counted.
  void begin(uint32_t rank) { counts_.get(rank).begun.fetch_add(1, std::memory_order_seq_cst); }
  // Counts a call as ended. Called when a call from `rank` has ended here and every call that it
  // caused was begun, or when a call to `rank` could not be sent. Requires: reserve() or begin()
  // was called for `rank`. Does not allocate.
  void end(uint32_t rank) { counts_.get(rank).ended.fetch_add(1, std::memory_order_seq_cst); }

  [[nodiscard]] uint64_t begun(uint32_t rank) const {
    const Count* const count = counts_.find(rank);
    return count == nullptr ? 0 : count->begun.load(std::memory_order_seq_cst);
  }
  [[nodiscard]] uint64_t ended(uint32_t rank) const {
    const Count* const count = counts_.find(rank);
    return count == nullptr ? 0 : count->ended.load(std::memory_order_seq_cst);
  }

 private:
  // A cache line for each process, since threads that call different processes count at the same
  // time.
  struct alignas(64) Count {
    std::atomic<uint64_t> begun{0};
    std::atomic<uint64_t> ended{0};
  };
  PerPeer<Count> counts_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_CALL_COUNTS_H_
