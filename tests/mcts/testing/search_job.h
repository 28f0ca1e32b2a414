// Searches in jobs: of real processes, and of such as one process of the operating system holds.
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

// Runs `body` in rank 0 of such a job, and `after` in all other ranks when that is over. What fails
// in one of them fails the test.
void run_search_job(const Shape& shape, const std::function<void(Host&)>& body,
                    const std::function<void(Host&)>& after = nullptr,
                    const HostOptions& options = {});

// The same in three processes with one worker each, over a transport that one process of the
// operating system can hold: shm, sim, fault_shm, fault_sim. The seed is that of the delays.
void run_transport_job(const std::string& transport, uint64_t seed,
                       const std::function<void(Host&)>& body,
                       const std::function<void(Host&)>& after = nullptr);

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_SEARCH_JOB_H_
