// A job of several Fabrics within one operating-system process, for tests: every process of the job
// has its own threads, and they meet through a bootstrap and a broker in memory.
//
//   LocalJob job({.processes = 3, .transport = transport_case("sim"), .seed = 7});
//   job.run([](Fabric& fabric, uint32_t thread) {
//     must(call(fabric, 0, [] { ... }));
//   });
//
// On sim (and fault over sim) the job runs in steps: one thread at a time, and whenever a thread
// waits, the next thread is drawn from the seed. So a seed replays a run exactly, and a loop over
// seeds explores schedules. On all other transports the threads run freely.
#ifndef CARIAMA_TESTS_DSFABRIC_TESTING_LOCAL_JOB_H_
#define CARIAMA_TESTS_DSFABRIC_TESTING_LOCAL_JOB_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/fabric.h"
#include "dtutils/fault/fault_device.h"
#include "dtutils/sim/sim_fabric.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {

// "shm", "sim", "fault_shm", "fault_sim", "verbs", "fault_verbs": one of every_transport().
[[nodiscard]] TransportCase transport_case(std::string_view name);

// Expects that `status` tells users of calls that `rank` is dead: UNAVAILABLE, the label of the
// process, and no word of queue pairs, which those users do not have.
void expect_dead(const absl::Status& status, const Fabric& fabric, Rank rank);

// The deadline of waits that should succeed, so that a defect fails a test instead of hanging it.
[[nodiscard]] Deadline soon();

struct LocalJobOptions {
  uint32_t processes = 2;
  TransportCase transport{"shm", Transport::kShm};
  uint64_t seed = 1;
  // `threads` is per process. on_failure is kContinue, because all ranks share one process. In
  // steps, an unset heartbeat and an unset return_units_after are one hour: what depends on real
  // time cannot be replayed.
  FabricOptions fabric{};
  // Options of fault transports; their seed is derived from `seed` and the rank. Default: benign.
  std::function<FaultOptions(uint64_t seed)> faults = FaultOptions::benign;
  SimOptions sim{};         // SimOptions::seed is set to `seed`
  bool init_thread = true;  // each thread is a kThread worker while it runs the body
  // The threads continue to run calls after their bodies, until the end. If false, later calls to
  // them run in finalize().
  bool threads_stay = true;
  bool finalize = true;  // after the bodies of a process have returned
};

// The store through which the processes exchange set-up data (local_store.h).
struct LocalStore;
// Schedules a job in steps. Threads are identified by their numbers.
class Stepper;

class LocalJob {
 public:
  explicit LocalJob(LocalJobOptions options);
  ~LocalJob();
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  // Starts all processes, runs `body` once in every thread of each, waits for all threads, and ends
  // the job. A failed expectation, an exception, or an error of finalize() fails the test. May be
  // called once.
  void run(const std::function<void(Fabric& fabric, uint32_t thread)>& body);

  // A barrier for bodies: blocks until `parties` threads in all have called it. Runs no calls.
  void meet(uint32_t parties);

  // The simulated cluster, or nullptr. Endpoint numbers are ranks.
  [[nodiscard]] SimFabric* sim() const { return sim_.get(); }
  // The control of the faults of `rank` (of all ranks, on sim), or nullptr.
  [[nodiscard]] FaultControl* faults(uint32_t rank) const;

 private:
  struct Process;

  void make_devices();
  void run_thread(uint32_t rank, uint32_t thread,
                  const std::function<void(Fabric&, uint32_t)>& body);

  LocalJobOptions options_;
  uint32_t threads_;
  std::shared_ptr<SimFabric> sim_;
  std::vector<std::shared_ptr<FaultControl>> controls_;
  std::shared_ptr<LocalStore> store_;
  std::unique_ptr<Stepper> stepper_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::atomic<uint64_t> met_{0};
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DSFABRIC_TESTING_LOCAL_JOB_H_
