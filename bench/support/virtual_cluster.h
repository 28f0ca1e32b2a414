// A job of processes with one thread each on the simulated cluster, in which computing takes
// virtual time too. It shows how a program would scale beyond the cores of this machine.
//
//   VirtualCluster cluster({.processes = 16});
//   cluster.run([&](Fabric& fabric) {
//     VirtualCluster::spend(std::chrono::microseconds(5));  // the time of a computation
//     call(fabric, 1, ...);                                 // arrives after the fabric's latency
//   });
//   cluster.process(3).idle;
//
// The simulated processes are threads of this process, of which one runs at a time: the one with
// the smallest clock. Before it runs, the network is advanced to its clock. A waiting process
// sleeps until a message arrives at its endpoint. So a message arrives at the virtual time at which
// it would arrive in reality, with this exception: the time between two calls of spend() does not
// advance the clock.
//
// Memory: the processes share one list of the job's processes (JobDirectory).
#ifndef CARIAMA_BENCH_SUPPORT_VIRTUAL_CLUSTER_H_
#define CARIAMA_BENCH_SUPPORT_VIRTUAL_CLUSTER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/fabric.h"
#include "dsfabric/fabric_options.h"
#include "dtutils/sim/sim_fabric.h"

namespace cariama::testing {
struct LocalStore;
}  // namespace cariama::testing

namespace cariama::bench {

struct VirtualClusterOptions {
  uint32_t processes = 2;
  SimOptions sim{};
  // Options of all fabrics; those that the simulation needs are overwritten.
  FabricOptions fabric{};
  // A waiting process polls after this time at the latest: some conditions become true without a
  // message, for example that another process has joined the job. See wake_all(), too. A wait that
  // lasts long takes a poll of each process in each such time.
  SimTime longest_sleep = std::chrono::microseconds(50);
  // Of each simulated process, without a guard page. 0: the system's default, with one.
  size_t stack_bytes = 0;
  // False: the job ends after the bodies, without Fabric::finalize(), which has a real thread for
  // each process. True: each process calls it after its body, if the body has not.
  bool finalize = true;
};

class VirtualCluster {
 public:
  // The virtual times of one process: its clock, the part spent by spend(), and the part waited.
  struct Process {
    SimTime clock{0};
    SimTime busy{0};
    SimTime idle{0};
  };

  explicit VirtualCluster(const VirtualClusterOptions& options);
  ~VirtualCluster();
  VirtualCluster(const VirtualCluster&) = delete;
  VirtualCluster& operator=(const VirtualCluster&) = delete;

  // Starts the processes, runs `body` in each, and ends the job. Blocks. May be called once.
  // Returns the first error of setting up or ending the job.
  [[nodiscard]] absl::Status run(const std::function<void(Fabric&)>& body);

  // Called within run() by one of its processes: advances the process's clock by `time`. Other
  // processes may run meanwhile, so the caller must not hold a lock that they need.
  static void spend(SimTime time);

  // Called within run() by one of its processes that has made a condition true for which others may
  // wait: all waiting processes poll, at the current virtual time.
  void wake_all();

  // Called within run() by process `rank`, which must then return from its body: simulates the
  // death of the process. It takes no part in the end of the job.
  void kill(uint32_t rank);

  // Returns the times of a process. Called within run() by one of its processes, or after run().
  [[nodiscard]] Process process(uint32_t rank) const;
  [[nodiscard]] uint32_t processes() const { return options_.processes; }
  [[nodiscard]] const SimFabric& network() const { return *sim_; }
  // Returns the number of operations of `rank` on the store through which the processes exchange
  // data before they are connected: values put, values got, and fences.
  [[nodiscard]] uint64_t store_operations(uint32_t rank) const;

 private:
  class Turns;

  VirtualClusterOptions options_;
  std::shared_ptr<SimFabric> sim_;
  std::shared_ptr<testing::LocalStore> store_;
  std::vector<std::shared_ptr<Device>> devices_;  // until the processes have taken them
  std::unique_ptr<Turns> turns_;
  std::vector<bool> killed_;
};

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_VIRTUAL_CLUSTER_H_
