// A search in a job of real processes.
#ifndef CARIAMA_TESTS_MCTS_TESTING_SEARCH_JOB_H_
#define CARIAMA_TESTS_MCTS_TESTING_SEARCH_JOB_H_

#include <cstdint>
#include <functional>
#include <ostream>

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

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_SEARCH_JOB_H_
