// Counts the calls by which this layer coordinates a job (control calls). Termination detection
// subtracts them from the counts of all calls, because its own messages are always in flight while
// it counts.
#ifndef CARIAMA_DSFABRIC_CALLS_CONTROL_TRAFFIC_H_
#define CARIAMA_DSFABRIC_CALLS_CONTROL_TRAFFIC_H_

#include <atomic>
#include <cstdint>
#include <vector>

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
    ended_[rank].fetch_add(1, std::memory_order_seq_cst);
    const bool accepted = send();
    begun_[rank].fetch_add(1, std::memory_order_seq_cst);
    if (accepted) ended_[rank].fetch_sub(1, std::memory_order_seq_cst);
    return accepted;
  }
  // Called by the running control call: counts it as ended.
  void arrived(uint32_t rank) { ended_[rank].fetch_add(1, std::memory_order_seq_cst); }

  [[nodiscard]] uint64_t begun_to(uint32_t rank) const {
    return begun_[rank].load(std::memory_order_seq_cst);
  }
  [[nodiscard]] uint64_t ended_from(uint32_t rank) const {
    return ended_[rank].load(std::memory_order_seq_cst);
  }

 private:
  std::vector<std::atomic<uint64_t>> begun_;
  std::vector<std::atomic<uint64_t>> ended_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_CONTROL_TRAFFIC_H_
