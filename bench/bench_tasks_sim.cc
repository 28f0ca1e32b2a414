// Simulates the scaling of fork-join programs beyond this machine: the real code of deque, join and
// victim selection runs on a simulated network (tasks/simulation.h).
//
//   bench_tasks_sim btc --depth 36 --grain 12 --workers 480,3840
//   bench_tasks_sim uts --tree T1L --cost 170 --workers 480,3840
//   bench_tasks_sim nqueens --n 15 --grain 3 --workers 480,3840
//
// Efficiency is work / (workers * makespan). Relative efficiency is relative to the first number of
// workers, as in the paper (section 6.4). Every count is compared with the known one.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "bench/support/flags.h"
#include "bench/support/network_flags.h"
#include "bench/support/report.h"
#include "bench/support/simulated_trees.h"
#include "bench/support/summary.h"
#include "bench/support/task_programs.h"
#include "bench/support/uts_tree.h"
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
ABSL_FLAG(double, near_latency, 500,
          "one-way latency within a host in ns; --latency: between hosts");
ABSL_FLAG(double, jitter, 0, "maximum jitter in ns");
ABSL_FLAG(uint64_t, frame, 1024, "bytes of a task's frames");
ABSL_FLAG(std::string, victims, "random", "random, or distance (near ones first)");
ABSL_FLAG(std::string, join, "greedy", "greedy, or wait-queue");
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

int run(const std::string& name) {
  Params common;
  const Program program = make_program(name, common);
  const std::string victims = absl::GetFlag(FLAGS_victims);
  if (victims != "distance" && victims != "random") fail("--victims is distance or random");
  const std::string join = absl::GetFlag(FLAGS_join);
  if (join != "greedy" && join != "wait-queue") fail("--join is greedy or wait-queue");
  const SimOptions network = network_options(absl::GetFlag(FLAGS_seed));
  SimulationOptions options{
      .seed = network.seed,
      .victim_order = victims == "random" ? VictimOrder::kRandom : VictimOrder::kByDistance,
      .join = join == "greedy" ? JoinPolicy::kGreedy : JoinPolicy::kWaitQueue,
      .jitter = from_ns(absl::GetFlag(FLAGS_jitter)),
      .gigabytes_per_second = network.gigabytes_per_second,
      .message_gap = network.message_gap,
      .frame_bytes = absl::GetFlag(FLAGS_frame),
      .limit = SimTime(static_cast<int64_t>(absl::GetFlag(FLAGS_limit) * 1e12))};
  const SimTime near = from_ns(absl::GetFlag(FLAGS_near_latency));
  options.latency = {near, near, near, network.latency};
  common.set("victims", victims);
  common.set("join", join);
  common.set("seed", absl::GetFlag(FLAGS_seed));
  set_network_params(common);
  common.set("near_latency", absl::GetFlag(FLAGS_near_latency));
  common.set("jitter", absl::GetFlag(FLAGS_jitter));
  common.set("frame", absl::GetFlag(FLAGS_frame));

  const Report report(absl::GetFlag(FLAGS_json), {"workers"});
  std::optional<double> first;
  for (const std::string& text : absl::GetFlag(FLAGS_workers)) {
    if (!absl::SimpleAtoi(text, &options.workers)) fail("--workers: " + text);
    progress(name + ": " + text + " workers");
    const auto begin = std::chrono::steady_clock::now();
    const absl::StatusOr<SimulationResult> simulated = simulate(*program.tree, options);
    if (!simulated.ok()) fail(std::string(simulated.status().message()));
    const SimulationResult& result = *simulated;
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
    const double efficiency = result.efficiency(options.workers);
    if (!first.has_value()) first = efficiency;
    const auto nodes = static_cast<double>(result.count.nodes);
    row("efficiency", efficiency, "ratio");
    row("relative_efficiency", efficiency / *first, "ratio");
    row("makespan", static_cast<double>(result.makespan.count()) * 1e-9, "ms");
    row("nodes", nodes, "count");
    row("nodes_per_second", nodes / (static_cast<double>(result.makespan.count()) * 1e-12), "1/s");
    for (const auto& [counter, value] : result.statistics.counters()) {
      row(counter, static_cast<double>(value), "count");
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
