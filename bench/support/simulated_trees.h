// The programs of bench_tasks as trees for the simulation (tasks/simulation.h): the same forks and
// joins, node for node, with a cost for each node.
#ifndef CARIAMA_BENCH_SUPPORT_SIMULATED_TREES_H_
#define CARIAMA_BENCH_SUPPORT_SIMULATED_TREES_H_

#include <cstdint>
#include <memory>

#include "bench/support/uts_tree.h"
#include "tasks/simulation.h"

namespace cariama::bench {

// `cost` is that of a node (fork and join included). Subtrees of `grain` levels and less are one
// stretch of their nodes' cost, in which nothing is forked, but thieves are attended to: so that
// trees of 10^12 nodes can be simulated. What can be stolen is coarser then: errs to the worse.
[[nodiscard]] std::unique_ptr<SimulatedProgram> simulated_btc(int depth, int iter, int grain,
                                                              SimTime cost);
// Forks by halves over the children, as uts_tasks(TaskLoop::kHalves).
[[nodiscard]] std::unique_ptr<SimulatedProgram> simulated_uts(const UtsOptions& options,
                                                              SimTime cost);
// A node is a legal placement, a leaf a solution. n is at most 31.
[[nodiscard]] std::unique_ptr<SimulatedProgram> simulated_queens(int n, int grain, SimTime cost);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_SIMULATED_TREES_H_
