// Simulates the scaling of fork-join programs beyond this machine: the real code of deque, join and
// victim selection runs on a simulated network (tasks/simulation.h), or the real code of the task
// pool (tasks/pool_simulation.h).
//
//   bench_tasks_sim btc --depth 36 --grain 12 --workers 480,3840
//   bench_tasks_sim uts --tree T1L --cost 170 --workers 480,3840
//   bench_tasks_sim nqueens --n 15 --grain 3 --workers 480,3840
//   bench_tasks_sim uts --tree T1L --cost 2500 --model pool --steal 10
//
// Efficiency is work / (workers * makespan). Relative efficiency is relative to the first number of
// workers, as in the paper (section 6.4). Every count is compared with the known one.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "bench/support/flags.h"
#include "bench/support/network_flags.h"
#include "bench/support/pool_bench.h"
#include "bench/support/report.h"
#include "bench/support/simulated_trees.h"
#include "bench/support/summary.h"
#include "bench/support/task_programs.h"
#include "bench/support/uts_tree.h"
#include "tasks/pool_simulation.h"
#include "tasks/simulation.h"

ABSL_FLAG(std::vector<std::string>, workers, (std::vector<std::string>{"480", "3840"}),
          "numbers of workers");
ABSL_FLAG(uint64_t, seed, 1, "seed of all random choices");
ABSL_FLAG(bool, json, false, "print one JSON object per line");
ABSL_FLAG(int, depth, 24, "btc: depth of the tree");
ABSL_FLAG(int, iter, 1, "btc: how often a task forks two children and joins them");
ABSL_FLAG(int, n, 14, "nqueens: the size of the board, up to 18");
ABSL_FLAG(std::string, tree, "T1", "uts: T1 to T5, T1L to T3L, paper8 to paper12");
ABSL_FLAG(int, grain, 0, "btc, nqueens: subtrees of at most this many levels are not forked");
ABSL_FLAG(
    double, cost, 0,
    "ns of a node with its forks and joins; 0: the value that bench_tasks measured on one core of "
    "a Zen 4 (btc 5, uts 140, nqueens 400)");
ABSL_FLAG(std::vector<std::string>, near_latency, (std::vector<std::string>{"500"}),
          "one-way latency within a host in ns: one value, or the values within a core complex, a "
          "NUMA node and a host; --latency: between hosts");
ABSL_FLAG(std::vector<std::string>, blocks, (std::vector<std::string>{"8", "32", "64"}),
          "numbers of consecutive workers of a core complex, a NUMA node and a host");
ABSL_FLAG(double, jitter, 0, "maximum jitter in ns");
ABSL_FLAG(uint64_t, frame, 1024, "bytes of a task's frames");
ABSL_FLAG(std::string, model, "uni", "uni (tasks that migrate), or pool (tasks of a pool)");
ABSL_FLAG(std::string, victims, "random", "uni: random, or distance (near ones first)");
ABSL_FLAG(std::string, join, "greedy", "uni: greedy, or wait-queue");
ABSL_FLAG(std::string, steal, "1", "pool: tasks handed over at a time: 1 to 64, or half");
ABSL_FLAG(double, own_atomic, 1000,
          "pool: time in ns of a compare-and-swap of a worker on its own request cell");
ABSL_FLAG(uint64_t, cells, uint64_t{1} << 16,
          "pool: cells of a worker's deque from which thieves steal, PoolOptions::cells");
ABSL_FLAG(uint64_t, stack, uint64_t{64} << 20, "pool: bytes of the stack of a worker");
ABSL_FLAG(double, limit, 3600, "limit of the virtual time in seconds");

namespace cariama::bench {
namespace {

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "bench_tasks_sim: %s\n", text.c_str());
  std::exit(1);
}

struct Program {
  std::unique_ptr<SimulatedProgram> tree;
  SimulatedCount expected;
  double cost = 0;  // ns
};

Program make_program(const std::string& name, Params& params) {
  Program program;
  const double asked = absl::GetFlag(FLAGS_cost);
  const auto cost = [&](double measured) {
    program.cost = asked > 0 ? asked : measured;
    params.set("cost", program.cost);
    return from_ns(program.cost);
  };
  const int grain = absl::GetFlag(FLAGS_grain);
  if (name == "btc") {
    const int depth = absl::GetFlag(FLAGS_depth);
    const int iter = absl::GetFlag(FLAGS_iter);
    if (depth < 1 || iter < 1 || iter > 8 || depth * iter > 50) {
      fail("--depth or --iter is out of range");
    }
    program.tree = simulated_btc(depth, iter, grain, cost(5));
    program.expected.nodes = btc_value(depth, iter);
    params.set("depth", static_cast<uint64_t>(depth));
    params.set("iter", static_cast<uint64_t>(iter));
    params.set("grain", static_cast<uint64_t>(grain));
  } else if (name == "uts") {
    const std::optional<UtsKnown> known = uts_named(absl::GetFlag(FLAGS_tree));
    if (!known.has_value()) fail("uts: there is no tree " + absl::GetFlag(FLAGS_tree));
    program.tree = simulated_uts(known->options, cost(140));
    program.expected = {known->count.nodes, known->count.leaves, known->count.max_depth};
    params.set("tree", absl::GetFlag(FLAGS_tree));
  } else if (name == "nqueens") {
    const int n = absl::GetFlag(FLAGS_n);
    if (n < 4 || n > 18) fail("--n is from 4 to 18");
    program.tree = simulated_queens(n, grain, cost(400));
    program.expected.leaves = queens_value(n);
    params.set("n", static_cast<uint64_t>(n));
    params.set("grain", static_cast<uint64_t>(grain));
  } else {
    fail("the program is btc, uts or nqueens");
  }
  return program;
}

// The results that both models report.
struct Simulated {
  bool finished = false;
  std::string violation;
  SimTime makespan{0};
  SimulatedCount count;
  double efficiency = 0;
  uint64_t events = 0;
  std::vector<std::pair<std::string, uint64_t>> counters;
  std::optional<SimTime> termination{};  // pool
  std::optional<PoolStatistics> pool{};
};

template <typename Result>
Simulated common_part(const absl::StatusOr<Result>& simulated, int workers) {
  if (!simulated.ok()) fail(std::string(simulated.status().message()));
  return {simulated->finished,
          simulated->violation,
          simulated->makespan,
          simulated->count,
          simulated->efficiency(workers),
          simulated->events,
          simulated->statistics.counters()};
}

Simulated run_uni(const SimulatedProgram& tree, const SimulationOptions& options) {
  return common_part(simulate(tree, options), options.workers);
}

Simulated run_pool(const SimulatedProgram& tree, const SimulationOptions& cluster) {
  PoolSimulationOptions options{.cluster = cluster,
                                .cells = absl::GetFlag(FLAGS_cells),
                                .own_atomic = from_ns(absl::GetFlag(FLAGS_own_atomic)),
                                .stack_bytes = absl::GetFlag(FLAGS_stack)};
  const std::string steal = absl::GetFlag(FLAGS_steal);
  if (steal == "half") {
    options.steal = kStealHalf;
  } else if (!absl::SimpleAtoi(steal, &options.steal)) {
    fail("--steal is from 1 to 64, or half");
  }
  const absl::StatusOr<PoolSimulationResult> result = simulate_pool(tree, options);
  Simulated simulated = common_part(result, cluster.workers);
  simulated.termination = result->termination;
  simulated.pool = result->statistics;
  return simulated;
}

// One value, or one for each level within a host.
std::array<SimTime, kVictimLevels> latencies(SimTime between_hosts) {
  const std::vector<std::string> near = absl::GetFlag(FLAGS_near_latency);
  if (near.size() != 1 && near.size() != kVictimLevels - 1) {
    fail("--near_latency has one value, or three");
  }
  std::array<SimTime, kVictimLevels> all{};
  for (size_t level = 0; level + 1 < kVictimLevels; ++level) {
    double ns = 0;
    const std::string& text = near[near.size() == 1 ? 0 : level];
    if (!absl::SimpleAtod(text, &ns) || !(ns >= 0 && ns <= 1e9)) fail("--near_latency: " + text);
    all[level] = from_ns(ns);
  }
  all.back() = between_hosts;
  return all;
}

std::array<int, kVictimLevels - 1> blocks() {
  std::array<int, kVictimLevels - 1> all{};
  const std::vector<std::string> given = absl::GetFlag(FLAGS_blocks);
  if (given.size() != all.size()) fail("--blocks has three values");
  for (size_t level = 0; level < all.size(); ++level) {
    if (!absl::SimpleAtoi(given[level], &all[level])) fail("--blocks: " + given[level]);
  }
  return all;
}

int run(const std::string& name) {
  Params common;
  const Program program = make_program(name, common);
  const std::string model = absl::GetFlag(FLAGS_model);
  if (model != "uni" && model != "pool") fail("--model is uni or pool");
  const bool is_pool = model == "pool";
  const std::string victims = absl::GetFlag(FLAGS_victims);
  if (victims != "distance" && victims != "random") fail("--victims is distance or random");
  const std::string join = absl::GetFlag(FLAGS_join);
  if (join != "greedy" && join != "wait-queue") fail("--join is greedy or wait-queue");
  const SimOptions network = network_options(absl::GetFlag(FLAGS_seed));
  SimulationOptions options{
      .seed = network.seed,
      .victim_order = victims == "random" ? VictimOrder::kRandom : VictimOrder::kByDistance,
      .join = join == "greedy" ? JoinPolicy::kGreedy : JoinPolicy::kWaitQueue,
      .blocks = blocks(),
      .latency = latencies(network.latency),
      .jitter = from_ns(absl::GetFlag(FLAGS_jitter)),
      .gigabytes_per_second = network.gigabytes_per_second,
      .message_gap = network.message_gap,
      .frame_bytes = absl::GetFlag(FLAGS_frame),
      .limit = SimTime(static_cast<int64_t>(absl::GetFlag(FLAGS_limit) * 1e12))};
  common.set("model", model);
  if (is_pool) {
    common.set("steal", absl::GetFlag(FLAGS_steal));
    common.set("own_atomic", absl::GetFlag(FLAGS_own_atomic));
    common.set("cells", absl::GetFlag(FLAGS_cells));
    common.set("stack", absl::GetFlag(FLAGS_stack));
  } else {
    common.set("victims", victims);
    common.set("join", join);
    common.set("frame", absl::GetFlag(FLAGS_frame));
  }
  common.set("seed", absl::GetFlag(FLAGS_seed));
  set_network_params(common);
  common.set("near_latency", absl::StrJoin(absl::GetFlag(FLAGS_near_latency), ","));
  common.set("blocks", absl::StrJoin(absl::GetFlag(FLAGS_blocks), ","));
  common.set("jitter", absl::GetFlag(FLAGS_jitter));

  const Report report(absl::GetFlag(FLAGS_json), {"workers"});
  std::optional<double> first;
  for (const std::string& text : absl::GetFlag(FLAGS_workers)) {
    if (!absl::SimpleAtoi(text, &options.workers)) fail("--workers: " + text);
    progress(name + ": " + text + " workers");
    const auto begin = std::chrono::steady_clock::now();
    const Simulated result =
        is_pool ? run_pool(*program.tree, options) : run_uni(*program.tree, options);
    const double real =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    progress("");
    if (!result.violation.empty()) fail(result.violation);
    if (!result.finished) fail("it has not ended within --limit");
    if ((program.expected.nodes != 0 && result.count.nodes != program.expected.nodes) ||
        (program.expected.leaves != 0 && result.count.leaves != program.expected.leaves)) {
      fail("a wrong count");
    }
    Params params = common;
    params.set("workers", static_cast<uint64_t>(options.workers));
    const auto row = [&](const std::string& what, double value, const char* unit) {
      report.row(name + "_" + what, params, summarize({value}), unit);
    };
    if (!first.has_value()) first = result.efficiency;
    const auto nodes = static_cast<double>(result.count.nodes);
    row("efficiency", result.efficiency, "ratio");
    row("relative_efficiency", result.efficiency / *first, "ratio");
    row("makespan", static_cast<double>(result.makespan.count()) * 1e-9, "ms");
    if (result.termination.has_value()) {
      row("termination", static_cast<double>(result.termination->count()) * 1e-9, "ms");
    }
    row("nodes", nodes, "count");
    row("nodes_per_second", nodes / (static_cast<double>(result.makespan.count()) * 1e-12), "1/s");
    for (const auto& [counter, value] : result.counters) {
      row(counter, static_cast<double>(value), "count");
    }
    for (size_t level = 0; result.pool.has_value() && level < kVictimLevels; ++level) {
      const PoolStatistics& pool = *result.pool;
      const auto mean = [&](const char* what, uint64_t sum, uint64_t number) {
        if (number == 0) return;
        row(std::string(what) + kLevelNames[level],
            static_cast<double>(sum) / static_cast<double>(number), "ns");
      };
      mean("mean_steal_", pool.steal_ns[level], pool.stolen[level]);
      mean("mean_failed_attempt_", pool.failed_ns[level], pool.tried[level] - pool.stolen[level]);
    }
    row("events", static_cast<double>(result.events), "count");
    row("real_seconds", real, "s");
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "simulates fork and join of tasks on many workers.\n"
      "  bench_tasks_sim btc|uts|nqueens [options]";
  const std::vector<char*> arguments = cariama::bench::parse_flags(argc, argv, kUsage);
  if (arguments.size() != 2) {
    std::fprintf(stderr, "usage: bench_tasks_sim btc|uts|nqueens [options], see --help\n");
    return 1;
  }
  return cariama::bench::run(arguments[1]);
}
