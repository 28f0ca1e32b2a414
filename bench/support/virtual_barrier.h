// Lets the processes of a VirtualCluster begin a measurement at the same virtual time.
#ifndef CARIAMA_BENCH_SUPPORT_VIRTUAL_BARRIER_H_
#define CARIAMA_BENCH_SUPPORT_VIRTUAL_BARRIER_H_

#include <cstdint>
#include <functional>

#include "bench/support/virtual_cluster.h"
#include "dsfabric/fabric.h"
#include "dtutils/wait.h"

namespace cariama::bench {

// The processes share this object without a lock, since one of them runs at a time.
class VirtualBarrier {
 public:
  VirtualBarrier(VirtualCluster& cluster, uint32_t processes)
      : cluster_(cluster), taking_part_(processes) {}

  // Called by every process that takes part: waits for all of them, and runs calls meanwhile. The
  // last one runs `last` first. All continue at the same virtual time, at which the messages of
  // before have arrived. Returns false if the deadline came first (real time).
  [[nodiscard]] bool meet(Fabric& fabric, const std::function<void()>& last, Deadline deadline);
  // The calling process takes no part any more. Called between two meetings.
  void leave() { --taking_part_; }

  [[nodiscard]] uint32_t taking_part() const { return taking_part_; }
  // Returns the virtual time at which the processes continued.
  [[nodiscard]] SimTime start() const { return start_; }
  [[nodiscard]] SimTime now(const Fabric& fabric) const {
    return cluster_.process(fabric.rank()).clock;
  }

 private:
  VirtualCluster& cluster_;
  uint32_t taking_part_;
  uint32_t reached_ = 0;
  uint64_t meetings_ = 0;
  SimTime latest_{0};  // clock of the process that came last
  SimTime start_{0};
};

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_VIRTUAL_BARRIER_H_
