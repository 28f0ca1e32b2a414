// A job of several Fabrics within one operating-system process, for tests: every process of the job
// has its own threads, and they meet through a bootstrap and a broker in memory.
//
//   LocalJob job({.processes = 3, .transport = transport_case("sim"), .seed = 7});
//   job.run([](Fabric& fabric, uint32_t thread) {
//     must(call(fabric, 0, [] { ... }));
//   });
//
// On sim (and fault over sim) the job runs in steps: one thread at a time, and which one is next is
// drawn from the seed whenever a thread waits. So a seed replays a run exactly, and a loop over
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

// Waits that should succeed end by then, so that a defect fails a test instead of hanging it.
[[nodiscard]] Deadline soon();

struct LocalJobOptions {
  uint32_t processes = 2;
  TransportCase transport{"shm", Transport::kShm};
  uint64_t seed = 1;
  // threads is per process, as always. on_failure is kContinue: all ranks share one process. In
  // steps the heartbeat, if it is not set, never comes: one that does is real time, and does not
  // replay.
  FabricOptions fabric{};
  // Of fault transports; its seed is derived from `seed` and the rank. Default: benign.
  std::function<FaultOptions(uint64_t seed)> faults = FaultOptions::benign;
  SimOptions sim{};         // its seed is `seed`
  bool init_thread = true;  // each thread is a worker while it runs the body, a kThread one
  // They go on running calls after their bodies, until the end; else what is called of them then
  // runs in finalize().
  bool threads_stay = true;
  bool finalize = true;  // after the bodies of a process have returned
};

// What the processes meet through (local_store.h).
struct LocalStore;
// What a job in steps is stepped by. Threads take part in the order of their numbers.
class Stepper;

class LocalJob {
 public:
  explicit LocalJob(LocalJobOptions options);
  ~LocalJob();
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  // Starts all processes, runs `body` once in every thread of each, waits for all, and ends the
  // job. What fails (an expectation, an exception, finalize) fails the test. Once.
  void run(const std::function<void(Fabric& fabric, uint32_t thread)>& body);

  // For bodies: waits until so many others, `parties` in all, have come to the barrier of that
  // name. Does not run calls.
  void meet(uint32_t parties);

  // The simulated cluster, or nullptr. Endpoint numbers are ranks.
  [[nodiscard]] SimFabric* sim() const { return sim_.get(); }
  // The switch of the faults of `rank` (of all, on sim), or nullptr.
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
