// A job of processes with one thread each on the simulated cluster, where computing takes virtual
// time, too: how a program would scale past the cores of this machine.
//
//   VirtualCluster cluster({.processes = 16});
//   cluster.run([&](Fabric& fabric) {
//     VirtualCluster::spend(std::chrono::microseconds(5));  // what the program would compute
//     call(fabric, 1, ...);                                 // arrives after the fabric's latency
//   });
//   cluster.process(3).idle;
//
// The processes are threads of this one, of which one runs at a time: the one whose clock is
// behind. The network is moved to its clock before. Who waits rests until a message arrives at its
// endpoint. So a message that leaves at some virtual time is seen neither earlier nor later than it
// would be, except for what a process does between two calls of spend().
#ifndef CARIAMA_BENCH_SUPPORT_VIRTUAL_CLUSTER_H_
#define CARIAMA_BENCH_SUPPORT_VIRTUAL_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "dsfabric/fabric.h"
#include "dtutils/sim/sim_fabric.h"

namespace cariama::bench {

struct VirtualClusterOptions {
  uint32_t processes = 2;
  SimOptions sim{};
};

class VirtualCluster {
 public:
  // Of one process: its clock, and how much of that it computed, as spend() says, and waited.
  struct Process {
    SimTime clock{0};
    SimTime busy{0};
    SimTime idle{0};
  };

  explicit VirtualCluster(const VirtualClusterOptions& options);
  ~VirtualCluster();
  VirtualCluster(const VirtualCluster&) = delete;
  VirtualCluster& operator=(const VirtualCluster&) = delete;

  // Starts the processes, runs `body` in each, and ends the job; returns the first error of setting
  // it up or ending it. Blocks. Once.
  [[nodiscard]] absl::Status run(const std::function<void(Fabric&)>& body);

  // Within run(), by one of its processes: it computes for so long. Others may run meanwhile, so
  // the caller must hold no lock that they want.
  static void spend(SimTime time);

  // Within run(), by one of its processes; or after it.
  [[nodiscard]] Process process(uint32_t rank) const;

 private:
  class Turns;

  VirtualClusterOptions options_;
  std::shared_ptr<SimFabric> sim_;
  std::unique_ptr<Turns> turns_;
};

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_VIRTUAL_CLUSTER_H_
