// Runs searches in jobs of real processes, and in jobs whose processes are simulated within one
// process of the operating system.
#ifndef CARIAMA_TESTS_MCTS_TESTING_SEARCH_JOB_H_
#define CARIAMA_TESTS_MCTS_TESTING_SEARCH_JOB_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include "mcts/host.h"

namespace cariama::mcts::testing {

struct Shape {
  int processes;
  uint32_t threads;
};
inline void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.processes << "x" << shape.threads;
}

// Runs a job of this shape: `body` in rank 0, and `after` in all other ranks after `body` has
// returned. A failure in any process fails the test.
void run_search_job(const Shape& shape, const std::function<void(Host&)>& body,
                    const std::function<void(Host&)>& after = nullptr,
                    const HostOptions& options = {});

// Runs a job whose processes have one worker each within one process of the operating system:
// `body` in rank 0, and `after` in all other ranks after `body` has returned. transport: shm, sim,
// fault_shm or fault_sim. seed: of the random delays.
void run_transport_job(const std::string& transport, uint64_t seed,
                       const std::function<void(Host&)>& body,
                       const std::function<void(Host&)>& after = nullptr, uint32_t processes = 3);

// Runs `body` in rank 0 of a job whose processes have `threads` workers each, and serve() and then
// `after` in the other ranks. `before` runs in each process before that. The last process may die:
// the others continue, and the fabric is not finalized. A failure in a process that lives fails the
// test.
void run_with_a_victim(const Shape& shape, const std::function<void(Host&)>& body,
                       const std::function<void(Host&)>& after = nullptr,
                       const std::function<void(Host&)>& before = nullptr,
                       const HostOptions& host_options = {});

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_SEARCH_JOB_H_
