// What fork and join cost, and what further workers bring: fib, binary task creation, unbalanced
// tree search and n queens, on worker processes of this host.
//
//   bench_tasks fib --workers 1            cost of a spawn and join beside a plain call
//   bench_tasks uts --tree T3 --workers 2  nodes per second: plain recursion, 1 worker, 2 workers
//   bench_tasks uts -t 1 -a 3 -b 4 -r 0 -d 10
//
// In each repetition plain recursion, one worker and all workers run one after the other: ratios
// are between these. Every result is compared with the known one; a wrong one ends the program.
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "bench/support/report.h"
#include "bench/support/summary.h"
#include "bench/support/task_programs.h"
#include "bench/support/uts_tree.h"
#include "dtutils/process_group.h"
#include "tasks/runtime.h"

ABSL_FLAG(int, workers, 2, "worker processes, 1 to 256");
ABSL_FLAG(int, repetitions, 5, "how often each is measured; the median, least and most are shown");
ABSL_FLAG(bool, json, false, "one JSON object a line");
ABSL_FLAG(bool, statistics, false, "also print what the workers counted in the last repetition");
ABSL_FLAG(int, n, 0, "fib: the argument (32); nqueens: the size of the board (12)");
ABSL_FLAG(int, depth, 0, "btc: depth of the tree (20; 10 with --iter 2)");
ABSL_FLAG(int, iter, 1, "btc: how often a task forks two children and joins them");
ABSL_FLAG(std::string, tree, "",
          "uts: T1 to T5, T1L to T3L, paper8 to paper10 (T1, unless letters are given)");
ABSL_FLAG(int, t, -1, "uts: type, 0 binomial, 1 geometric, 2 hybrid");
ABSL_FLAG(int, a, 0, "uts: shape of a geometric tree, 0 linear, 1 exponential, 2 cyclic, 3 fixed");
ABSL_FLAG(double, b, 4.0, "uts: (expected) number of children of the root");
ABSL_FLAG(int, d, 6, "uts: depth parameter of geometric trees");
ABSL_FLAG(double, q, 15.0 / 64.0, "uts: binomial, probability of children");
ABSL_FLAG(int, m, 4, "uts: binomial, how many children");
ABSL_FLAG(int, r, 0, "uts: seed");
ABSL_FLAG(double, f, 0.5, "uts: hybrid, where the type changes");
ABSL_FLAG(std::string, loop, "halves", "uts, nqueens: halves, or per-child (one fork for each)");
ABSL_FLAG(std::string, join, "greedy", "greedy or wait-queue");
ABSL_FLAG(uint64_t, stack, uint64_t{64} << 20, "bytes of the uni-address stack of a worker");
ABSL_FLAG(uint64_t, seed, 1, "of the choice of victims");

namespace cariama::bench {
namespace {

// A program: the same work in two ways; both return what is checked.
struct Program {
  std::string name;
  std::string unit;  // of what is counted
  double work = 0;   // how many of them
  UtsCount expected;
  std::function<UtsCount()> plain;
  UtsCount (*tasks)(int, int);  // runs as the first task
  int first = 0;                // its arguments
  int second = 0;
};

struct Measured {
  double seconds = 0;
  UtsCount result;
  TaskStatistics statistics;  // summed over the workers
};

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "bench_tasks: %s\n", text.c_str());
  std::exit(1);
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TaskOptions task_options() {
  TaskOptions options;
  options.stack_bytes = absl::GetFlag(FLAGS_stack);
  options.join =
      absl::GetFlag(FLAGS_join) == "greedy" ? JoinPolicy::kGreedy : JoinPolicy::kWaitQueue;
  options.seed = absl::GetFlag(FLAGS_seed);
  options.timeout = std::chrono::minutes(10);
  return options;
}

// Runs the program on `workers` processes; once before it is timed, so that their stacks exist.
Measured run_tasks(const Program& program, int workers, bool warm) {
  const size_t slots = static_cast<size_t>(workers) + 1;
  void* memory = mmap(nullptr, slots * sizeof(Measured), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory");
  auto* const results = static_cast<Measured*>(memory);
  const absl::Status status = run_processes(
      workers,
      [&](Exchange& exchange) {
        auto runtime = TaskRuntime::create(exchange, task_options());
        if (!runtime.ok()) {
          std::fprintf(stderr, "bench_tasks: %s\n", runtime.status().ToString().c_str());
          return 1;
        }
        const auto root = [tasks = program.tasks, first = program.first, second = program.second] {
          return tasks(first, second);
        };
        absl::StatusOr<UtsCount> count = UtsCount{};
        if (warm) count = (*runtime)->run(root);
        if (count.ok()) {
          (*runtime)->reset_statistics();
          const double seconds = seconds_of([&] { count = (*runtime)->run(root); });
          results[exchange.rank()].statistics = (*runtime)->statistics();
          if (exchange.rank() == 0) {
            results[workers].seconds = seconds;
            results[workers].result = *count;
          }
        }
        if (!count.ok()) {
          std::fprintf(stderr, "bench_tasks: %s\n", count.status().ToString().c_str());
          return 1;
        }
        return 0;
      },
      {.timeout = std::chrono::minutes(10)});
  if (!status.ok()) fail(std::string(status.message()));
  Measured measured = results[workers];
  for (int rank = 0; rank < workers; ++rank) {
    const TaskStatistics& from = results[rank].statistics;
    TaskStatistics& sum = measured.statistics;
    sum.steals += from.steals;
    sum.steal_attempts += from.steal_attempts;
    sum.stolen_bytes += from.stolen_bytes;
    sum.steal_trips += from.steal_trips;
    sum.suspensions += from.suspensions;
    sum.suspended_bytes += from.suspended_bytes;
    sum.published += from.published;
    sum.idle_ns += from.idle_ns;
    sum.stack_high_water = std::max(sum.stack_high_water, from.stack_high_water);
  }
  munmap(memory, slots * sizeof(Measured));
  if (measured.result != program.expected) fail(program.name + ": a wrong result from tasks");
  return measured;
}

UtsCount just(uint64_t number) { return {number, 0, 0}; }
TaskLoop loop_of(int value) { return static_cast<TaskLoop>(value); }

Program make_program(const std::string& name, Params& params) {
  Program program;
  program.name = name;
  const int n = absl::GetFlag(FLAGS_n);
  const std::string loop = absl::GetFlag(FLAGS_loop);
  if (loop != "halves" && loop != "per-child") fail("--loop is halves or per-child");
  const TaskLoop forks = loop == "halves" ? TaskLoop::kHalves : TaskLoop::kPerChild;
  if (name == "fib") {
    const int argument = n == 0 ? 32 : n;
    if (argument < 2 || argument > 60) fail("--n is from 2 to 60 for fib");
    params.set("n", static_cast<uint64_t>(argument));
    program.unit = "spawns";
    program.work = static_cast<double>(fib_spawns(argument));
    program.expected = just(fib_value(argument));
    program.plain = [argument] { return just(static_cast<uint64_t>(fib_plain(argument))); };
    program.tasks = [](int x, int) { return just(static_cast<uint64_t>(fib_tasks(x))); };
    program.first = argument;
  } else if (name == "btc") {
    const int iter = absl::GetFlag(FLAGS_iter);
    int depth = absl::GetFlag(FLAGS_depth);
    if (depth == 0) depth = iter == 1 ? 20 : 10;
    if (iter < 1 || iter > 8 || depth < 1 || depth > 40) fail("--depth or --iter is out of range");
    params.set("depth", static_cast<uint64_t>(depth));
    params.set("iter", static_cast<uint64_t>(iter));
    program.unit = "tasks";
    program.expected = just(btc_value(depth, iter));
    program.work = static_cast<double>(program.expected.nodes);
    program.plain = [=] { return just(btc_plain(depth, iter)); };
    program.tasks = [](int d, int i) { return just(btc_tasks(d, i)); };
    program.first = depth;
    program.second = iter;
  } else if (name == "uts") {
    std::string tree = absl::GetFlag(FLAGS_tree);
    UtsOptions options;
    if (absl::GetFlag(FLAGS_t) >= 0) {
      if (!tree.empty()) fail("uts: give --tree, or letters");
      options = {.t = absl::GetFlag(FLAGS_t),
                 .a = absl::GetFlag(FLAGS_a),
                 .b = absl::GetFlag(FLAGS_b),
                 .d = absl::GetFlag(FLAGS_d),
                 .q = absl::GetFlag(FLAGS_q),
                 .m = absl::GetFlag(FLAGS_m),
                 .r = absl::GetFlag(FLAGS_r),
                 .f = absl::GetFlag(FLAGS_f)};
      program.expected = uts_sequential(options, uts_root(options));
    } else {
      if (tree.empty()) tree = "T1";
      const std::optional<UtsKnown> known = uts_named(tree);
      if (!known.has_value()) fail("uts: there is no tree " + tree);
      options = known->options;
      program.expected = known->count;
      params.set("tree", tree);
    }
    params.set("loop", loop);
    params.set("t", static_cast<uint64_t>(options.t));
    params.set("a", static_cast<uint64_t>(options.a));
    params.set("b", options.b);
    params.set("d", static_cast<uint64_t>(options.d));
    params.set("q", options.q);
    params.set("m", static_cast<uint64_t>(options.m));
    params.set("r", static_cast<uint64_t>(options.r));
    set_uts_tree(options);
    program.unit = "nodes";
    program.work = static_cast<double>(program.expected.nodes);
    program.plain = [options] { return uts_sequential(options, uts_root(options)); };
    program.tasks = [](int forks, int) { return uts_tasks(loop_of(forks)); };
    program.first = static_cast<int>(forks);
  } else if (name == "nqueens") {
    const int argument = n == 0 ? 12 : n;
    if (argument < 1 || argument > 18) fail("--n is from 1 to 18 for nqueens");
    params.set("n", static_cast<uint64_t>(argument));
    params.set("loop", loop);
    program.unit = "solutions";
    program.expected = just(queens_value(argument));
    program.work = static_cast<double>(program.expected.nodes);
    program.plain = [argument] { return just(queens_plain(argument)); };
    program.tasks = [](int size, int forks) { return just(queens_tasks(size, loop_of(forks))); };
    program.first = argument;
    program.second = static_cast<int>(forks);
  } else {
    fail("the program is fib, btc, uts or nqueens");
  }
  return program;
}

void print_statistics(const TaskStatistics& s) {
  std::fprintf(
      stderr,
      "steals %llu of %llu attempts, %.1f round trips and %.0f bytes each; suspensions "
      "%llu, %.0f bytes each; published %llu; idle %.3f s; stack %llu bytes\n",
      static_cast<unsigned long long>(s.steals), static_cast<unsigned long long>(s.steal_attempts),
      s.steals == 0 ? 0.0 : static_cast<double>(s.steal_trips) / static_cast<double>(s.steals),
      s.steals == 0 ? 0.0 : static_cast<double>(s.stolen_bytes) / static_cast<double>(s.steals),
      static_cast<unsigned long long>(s.suspensions),
      s.suspensions == 0
          ? 0.0
          : static_cast<double>(s.suspended_bytes) / static_cast<double>(s.suspensions),
      static_cast<unsigned long long>(s.published), static_cast<double>(s.idle_ns) * 1e-9,
      static_cast<unsigned long long>(s.stack_high_water));
}

int run(const std::string& name) {
  const int workers = absl::GetFlag(FLAGS_workers);
  const int repetitions = absl::GetFlag(FLAGS_repetitions);
  if (workers < 1 || workers > 256) fail("--workers is from 1 to 256");
  if (repetitions < 1) fail("--repetitions must be 1 or more");
  if (absl::GetFlag(FLAGS_join) != "greedy" && absl::GetFlag(FLAGS_join) != "wait-queue") {
    fail("--join is greedy or wait-queue");
  }
  Params params;
  params.set("workers", static_cast<uint64_t>(workers));
  params.set("join", absl::GetFlag(FLAGS_join));
  params.set("stack", absl::GetFlag(FLAGS_stack));
  const Program program = make_program(name, params);
  const Report report(absl::GetFlag(FLAGS_json), {"workers"});

  std::vector<double> plain;
  std::vector<double> one;
  std::vector<double> all;
  Measured last;
  for (int i = 0; i < repetitions; ++i) {
    progress(name + ": " + std::to_string(i + 1) + " of " + std::to_string(repetitions));
    UtsCount count;
    plain.push_back(seconds_of([&] { count = program.plain(); }));
    if (count != program.expected) fail(name + ": a wrong result from plain recursion");
    last = run_tasks(program, 1, true);
    one.push_back(last.seconds);
    if (workers > 1) {
      last = run_tasks(program, workers, true);
      all.push_back(last.seconds);
    }
  }
  progress("");

  const auto each = [&](const std::vector<double>& seconds, double factor) {
    std::vector<double> values;
    values.reserve(seconds.size());
    for (const double s : seconds) values.push_back(factor * s / program.work);
    return summarize(values);
  };
  const std::string per = name + "_per_" + program.unit.substr(0, program.unit.size() - 1);
  report.row(per + "_plain", params, each(plain, 1e9), "ns");
  report.row(per + "_one_worker", params, each(one, 1e9), "ns");
  std::vector<double> cost;
  for (size_t i = 0; i < one.size(); ++i) cost.push_back(1e9 * (one[i] - plain[i]) / program.work);
  report.row(per + "_cost", params, summarize(cost), "ns");
  report.row(name + "_one_worker_over_plain", params, summarize(ratios(plain, one)), "ratio");
  if (workers > 1) {
    report.row(per, params, each(all, 1e9), "ns");
    report.row(name + "_speed_up", params, summarize(ratios(one, all)), "ratio");
  }
  if (name == "uts") {
    const auto exact = [&](const char* what, uint64_t value) {
      report.row(what, params, summarize({static_cast<double>(value)}), "count");
    };
    exact("nodes", last.result.nodes);
    exact("max_depth", last.result.max_depth);
    exact("leaves", last.result.leaves);
    std::vector<double> rates;
    for (const double s : workers > 1 ? all : one) rates.push_back(program.work / s);
    report.row("nodes_per_second", params, summarize(rates), "1/s");
  }
  if (absl::GetFlag(FLAGS_statistics)) print_statistics(last.statistics);
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "measures fork and join of tasks on worker processes.\n"
      "  bench_tasks fib|btc|uts|nqueens [options]");
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() != 2) {
    std::fprintf(stderr, "usage: bench_tasks fib|btc|uts|nqueens [options], see --help\n");
    return 1;
  }
  return cariama::bench::run(arguments[1]);
}
