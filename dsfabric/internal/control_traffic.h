// Calls by which this layer coordinates a job, counted beside all calls, so that the detection of
// termination can take them off: it would never find its own messages over.
#ifndef CARIAMA_DSFABRIC_INTERNAL_CONTROL_TRAFFIC_H_
#define CARIAMA_DSFABRIC_INTERNAL_CONTROL_TRAFFIC_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "dsfabric/fabric.h"

namespace cariama::internal {

// An attachment. Thread-safe.
//
// The counts err on the side of work that is still under way: what is taken off the calls that were
// begun is counted after them, what is taken off those that are over before them. Who subtracts
// reads in the opposite order: begun_to() before the fabric's count, over_from() after it. See
// quiescence.h.
class ControlTraffic {
 public:
  explicit ControlTraffic(Fabric& fabric) : begun_(fabric.size()), over_(fabric.size()) {}

  // Around a call to `rank`; `send` returns whether it was accepted. One that was not is over.
  template <typename Send>
  bool sending(uint32_t rank, Send&& send) {
    over_[rank].fetch_add(1, std::memory_order_seq_cst);
    const bool accepted = send();
    begun_[rank].fetch_add(1, std::memory_order_seq_cst);
    if (accepted) over_[rank].fetch_sub(1, std::memory_order_seq_cst);
    return accepted;
  }
  // By the call, while it runs.
  void arrived(uint32_t rank) { over_[rank].fetch_add(1, std::memory_order_seq_cst); }

  [[nodiscard]] uint64_t begun_to(uint32_t rank) const {
    return begun_[rank].load(std::memory_order_seq_cst);
  }
  [[nodiscard]] uint64_t over_from(uint32_t rank) const {
    return over_[rank].load(std::memory_order_seq_cst);
  }

 private:
  std::vector<std::atomic<uint64_t>> begun_;
  std::vector<std::atomic<uint64_t>> over_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_CONTROL_TRAFFIC_H_
