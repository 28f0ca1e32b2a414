// Counts the calls by which this layer coordinates a job (control calls). Termination detection
// subtracts them from the counts of all calls, because its own messages are always in flight while
// it counts.
#ifndef CARIAMA_DSFABRIC_CALLS_CONTROL_TRAFFIC_H_
#define CARIAMA_DSFABRIC_CALLS_CONTROL_TRAFFIC_H_

#include <atomic>
#include <cstdint>

#include "dsfabric/internal/per_peer.h"

namespace cariama {
class Fabric;
}  // namespace cariama

namespace cariama::internal {

// An attachment. Thread-safe.
//
// The counts err on the side of unfinished work. A begun control call is counted here after the
// fabric has counted it as begun. An ended control call is counted here before the fabric counts it
// as ended. The subtracting thread reads in the opposite order: begun_to() before the fabric's
// begun count, ended_from() after the fabric's ended count. So B can only be too large, and F too
// small. See quiescence.h.
class ControlTraffic {
 public:
  explicit ControlTraffic(Fabric& fabric);

  // Wraps a control call to `rank`. `send` returns true if the call was accepted. A call that was
  // not accepted counts as ended.
  template <typename Send>
  bool sending(uint32_t rank, Send&& send) {
    Count& count = counts_.get(rank);
    count.ended.fetch_add(1, std::memory_order_seq_cst);
    bool accepted = false;
    try {
      accepted = send();
    } catch (...) {  // no memory: the call is not accepted
      count.begun.fetch_add(1, std::memory_order_seq_cst);
      throw;
    }
    count.begun.fetch_add(1, std::memory_order_seq_cst);
    if (accepted) count.ended.fetch_sub(1, std::memory_order_seq_cst);
    return accepted;
  }
  // As CallCounts::reserve(): arrived() then does not allocate.
  void reserve(uint32_t rank) { static_cast<void>(counts_.get(rank)); }
  // Called by the running control call: counts it as ended.
  void arrived(uint32_t rank) { counts_.get(rank).ended.fetch_add(1, std::memory_order_seq_cst); }

  [[nodiscard]] uint64_t begun_to(uint32_t rank) const {
    const Count* const count = counts_.find(rank);
    return count == nullptr ? 0 : count->begun.load(std::memory_order_seq_cst);
  }
  [[nodiscard]] uint64_t ended_from(uint32_t rank) const {
    const Count* const count = counts_.find(rank);
    return count == nullptr ? 0 : count->ended.load(std::memory_order_seq_cst);
  }

 private:
  struct Count {
    std::atomic<uint64_t> begun{0};
    std::atomic<uint64_t> ended{0};
  };
  PerPeer<Count> counts_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_CONTROL_TRAFFIC_H_
