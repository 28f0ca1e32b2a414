// The programs of bench_tasks as trees for the simulation (tasks/simulation.h): the same forks and
// joins, node for node, with a cost for each node.
#ifndef CARIAMA_BENCH_SUPPORT_SIMULATED_TREES_H_
#define CARIAMA_BENCH_SUPPORT_SIMULATED_TREES_H_

#include <cstdint>
#include <memory>

#include "bench/support/uts_tree.h"
#include "tasks/simulation.h"

namespace cariama::bench {

// `cost` is the time of a node, including its fork and join. A subtree of at most `grain` levels is
// simulated as one interval with the cost of all its nodes: it forks nothing, but its worker still
// serves thieves. This makes trees of 10^12 nodes possible. Since only coarser tasks can be stolen
// then, the simulated efficiency is too low rather than too high.
[[nodiscard]] std::unique_ptr<SimulatedProgram> simulated_btc(int depth, int iter, int grain,
                                                              SimTime cost);
// Forks by halves over the children, like uts_tasks(TaskLoop::kHalves).
[[nodiscard]] std::unique_ptr<SimulatedProgram> simulated_uts(const UtsOptions& options,
                                                              SimTime cost);
// A node is a legal placement, a leaf is a solution. Requires: n <= 31.
[[nodiscard]] std::unique_ptr<SimulatedProgram> simulated_queens(int n, int grain, SimTime cost);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_SIMULATED_TREES_H_
