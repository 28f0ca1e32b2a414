// Cost of fork and join, and speed-up by more workers: fib, binary task creation, unbalanced tree
// search and n queens, on worker processes of this host.
//
//   bench_tasks fib --workers 1            cost of a spawn and join, compared with a plain call
//   bench_tasks uts --tree T3 --workers 2  nodes per second: plain recursion, 1 worker, 2 workers
//   bench_tasks steal                      duration of each step of a steal
//   bench_tasks fib --model pool           also as tasks of a pool (tasks/pool.h)
//   bench_tasks wake                       time until a sleeping worker runs a forked task
//   bench_tasks stack                      bytes of the uni-address stack for each level of depth
//   cariama-run -n 4 bench_tasks btc       on the workers of a job (also with mpirun and srun)
//   bench_tasks uts -t 1 -a 3 -b 4 -r 0 -d 10
//
// Each repetition runs plain recursion, one worker and all workers one after the other; ratios are
// computed within a repetition. Every result is compared with the known one; a wrong result ends
// the program.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "bench/support/flags.h"
#include "bench/support/global_programs.h"
#include "bench/support/pool_bench.h"
#include "bench/support/pool_programs.h"
#include "bench/support/report.h"
#include "bench/support/steal_bench.h"
#include "bench/support/summary.h"
#include "bench/support/task_programs.h"
#include "bench/support/task_workers.h"
#include "bench/support/tbb_programs.h"
#include "bench/support/uts_tree.h"
#include "dtutils/exchange_connect.h"
#include "dtutils/wait.h"
#include "tasks/runtime.h"

ABSL_FLAG(int, workers, 2, "worker processes, 1 to 256");
ABSL_FLAG(int, repetitions, 5, "repetitions of each row; median, minimum and maximum are shown");
ABSL_FLAG(bool, json, false, "print one JSON object per line");
ABSL_FLAG(bool, statistics, false, "also print the workers' counters of the last repetition");
ABSL_FLAG(int, n, 0, "fib: the argument (32); nqueens: the size of the board (12)");
ABSL_FLAG(int, depth, 0, "btc: depth of the tree (26; 13 with --iter 2)");
ABSL_FLAG(int, iter, 1, "btc: how often a task forks two children and joins them");
ABSL_FLAG(std::string, tree, "",
          "uts: T1 to T5, T1L to T3L, paper8 to paper10 (T1, unless letters are given)");
ABSL_FLAG(int, t, -1, "uts: type, 0 binomial, 1 geometric, 2 hybrid");
ABSL_FLAG(int, a, 0, "uts: shape of a geometric tree, 0 linear, 1 exponential, 2 cyclic, 3 fixed");
ABSL_FLAG(double, b, 4.0, "uts: (expected) number of children of the root");
ABSL_FLAG(int, d, 6, "uts: depth parameter of geometric trees");
ABSL_FLAG(double, q, 15.0 / 64.0, "uts: binomial, probability of children");
ABSL_FLAG(int, m, 4, "uts: binomial, number of children");
ABSL_FLAG(int, r, 0, "uts: seed");
ABSL_FLAG(double, f, 0.5, "uts: hybrid, where the type changes");
ABSL_FLAG(std::string, loop, "halves", "uts, nqueens: halves, or per-child (one fork for each)");
ABSL_FLAG(std::string, join, "greedy", "greedy or wait-queue");
ABSL_FLAG(uint64_t, least_steals, 0,
          "fail if all workers together stole fewer tasks in the last repetition");
ABSL_FLAG(std::string, peer, "", "fib, uts, nqueens: also measure tbb (oneTBB task groups)");
ABSL_FLAG(std::string, deque, "split", "split, the, or private (thieves send requests)");
ABSL_FLAG(std::string, scheme, "uni", "placement of stacks: uni, crude, or iso");
ABSL_FLAG(std::string, atomics, "device", "device, or served (by a thread of their owner)");
ABSL_FLAG(uint64_t, stack, uint64_t{64} << 20, "bytes of the uni-address stack of a worker");
ABSL_FLAG(std::vector<std::string>, frames, (std::vector<std::string>{"1024", "3055", "16384"}),
          "steal: bytes of frames");
ABSL_FLAG(int, steals, 1000, "steal, wake: number of samples");
ABSL_FLAG(int, pause, 20,
          "wake: idle ms before each sample, so that the other worker falls asleep");
ABSL_FLAG(bool, stopped, false, "steal: from a worker that is stopped by SIGSTOP");
ABSL_FLAG(std::string, model, "",
          "uni (tasks that migrate), or pool (also measures tasks of a pool); steal "
          "--stopped: started, or tied (tasks that have begun are never stolen)");
ABSL_FLAG(std::string, steal, "1", "pool: tasks handed over at a time: 1 to 64, or half");
ABSL_FLAG(std::string, termination, "detector", "pool: detector, or scan (of the status cells)");
ABSL_FLAG(uint64_t, seed, 1, "seed of the choice of victims");
ABSL_FLAG(std::string, victims, "random", "random, or distance (near ones first)");

namespace cariama::bench {
namespace {

// A program: the same work by plain recursion and by tasks. Both return the result to be checked.
struct Program {
  std::string name;
  std::string unit;  // unit of work
  double work = 0;   // number of units
  UtsCount expected;
  std::function<UtsCount()> plain;
  UtsCount (*tasks)(int, int);  // runs as the root task
  int first = 0;                // its arguments
  int second = 0;
  std::function<UtsCount()> tbb{};  // the same on oneTBB, if there is a version
  PoolRun pool{};                   // the same on a task pool, if there is a version
  size_t matrix = 0;                // side of the matrices in global memory, or 0
  size_t sorted = 0;                // length of the array in global memory, or 0
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

template <typename T>
T one_of(const char* flag, const std::string& given,
         const std::vector<std::pair<std::string, T>>& values) {
  for (const auto& [name, value] : values) {
    if (name == given) return value;
  }
  fail(std::string("--") + flag + " has no value " + given);
}

TaskOptions task_options() {
  TaskOptions options;
  options.stack_bytes = absl::GetFlag(FLAGS_stack);
  options.join =
      one_of<JoinPolicy>("join", absl::GetFlag(FLAGS_join),
                         {{"greedy", JoinPolicy::kGreedy}, {"wait-queue", JoinPolicy::kWaitQueue}});
  options.deque = one_of<DequeKind>(
      "deque", absl::GetFlag(FLAGS_deque),
      {{"split", DequeKind::kSplit}, {"the", DequeKind::kThe}, {"private", DequeKind::kPrivate}});
  options.atomics = one_of<RemoteAtomics>(
      "atomics", absl::GetFlag(FLAGS_atomics),
      {{"device", RemoteAtomics::kDevice}, {"served", RemoteAtomics::kServed}});
  options.scheme = one_of<StackScheme>(
      "scheme", absl::GetFlag(FLAGS_scheme),
      {{"uni", StackScheme::kUni}, {"crude", StackScheme::kCrude}, {"iso", StackScheme::kIso}});
  options.seed = absl::GetFlag(FLAGS_seed);
  options.victim_order = one_of<VictimOrder>(
      "victims", absl::GetFlag(FLAGS_victims),
      {{"random", VictimOrder::kRandom}, {"distance", VictimOrder::kByDistance}});
  options.timeout = std::chrono::minutes(10);
  return options;
}

// Runs the program on `workers` workers, first once untimed, so that their stacks exist.
Measured run_tasks(TaskWorkers& all, const Program& program, int workers) {
  const auto measure = [&](TaskRuntime& runtime, Exchange& exchange) -> std::string {
    const auto root = [tasks = program.tasks, first = program.first, second = program.second] {
      return tasks(first, second);
    };
    absl::StatusOr<UtsCount> count = runtime.run(root);
    if (count.ok()) {
      runtime.reset_statistics();
      Measured mine;
      mine.seconds = seconds_of([&] { count = runtime.run(root); });
      mine.statistics = runtime.statistics();
      if (count.ok()) mine.result = *count;
      // After the fence the values of all workers are those of this repetition.
      if (!put_value(exchange, "measured", mine).ok() ||
          !exchange.fence(deadline_after(std::chrono::minutes(10))).ok()) {
        fail("a worker has ended");
      }
    }
    if (!count.ok()) fail(count.status().ToString());
    if (exchange.rank() != 0) return "";
    Measured sum;
    for (int rank = 0; rank < exchange.size(); ++rank) {
      const auto each =
          get_value<Measured>(exchange, rank, "measured", deadline_after(std::chrono::minutes(10)));
      if (!each.ok()) fail(each.status().ToString());
      if (rank == 0) sum = *each;
      if (rank != 0) sum.statistics.add(each->statistics);
    }
    return {reinterpret_cast<const char*>(&sum), sizeof sum};
  };
  const bool global = program.matrix + program.sorted != 0;
  const std::string bytes =
      !global
          ? all.run(workers, task_options(), measure)
          : all.run_on_fabric(workers, task_options(), [&](TaskRuntime& runtime, Fabric& fabric) {
              const GlobalArrays arrays(fabric, program.matrix, program.sorted);
              return measure(runtime, fabric.bootstrap());
            });
  Measured measured;
  if (!all.reports()) return measured;
  if (bytes.size() != sizeof measured) fail("no result");
  std::memcpy(static_cast<void*>(&measured), bytes.data(), sizeof measured);
  if (measured.result != program.expected) fail(program.name + ": a wrong result from tasks");
  return measured;
}

// Runs the program on oneTBB, in a process of its own: this process must stay single-threaded,
// since it forks.
double run_tbb(const Program& program, int threads) {
  double seconds = 0;
  int ends[2];
  if (pipe(ends) != 0) fail("no pipe");
  const absl::Status status = run_processes(
      1,
      [&](Exchange&) {
        UtsCount count;
        on_tbb(threads, [&] { count = program.tbb(); });  // untimed: starts the threads
        on_tbb(threads, [&] { seconds = seconds_of([&] { count = program.tbb(); }); });
        if (count != program.expected) fail(program.name + ": a wrong result from oneTBB");
        return write(ends[1], &seconds, sizeof seconds) == sizeof seconds ? 0 : 1;
      },
      {.timeout = std::chrono::minutes(30)});
  if (!status.ok()) fail(std::string(status.message()));
  if (read(ends[0], &seconds, sizeof seconds) != sizeof seconds) fail("no result from oneTBB");
  close(ends[0]);
  close(ends[1]);
  return seconds;
}

UtsCount just(uint64_t number) { return {number, 0, 0}; }
absl::StatusOr<UtsCount> count_of(const absl::StatusOr<uint64_t>& number) {
  if (!number.ok()) return number.status();
  return just(*number);
}
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
    program.pool = [argument](TaskPool& pool) { return count_of(fib_pool(pool, argument)); };
    program.tasks = [](int x, int) { return just(static_cast<uint64_t>(fib_tasks(x))); };
    program.tbb = [argument] { return just(tbb_fib(argument)); };
    program.first = argument;
  } else if (name == "btc") {
    const int iter = absl::GetFlag(FLAGS_iter);
    int depth = absl::GetFlag(FLAGS_depth);
    if (depth == 0) depth = iter == 1 ? 26 : 13;  // at least half a second on one worker
    if (iter < 1 || iter > 8 || depth < 1 || depth > 40) fail("--depth or --iter is out of range");
    params.set("depth", static_cast<uint64_t>(depth));
    params.set("iter", static_cast<uint64_t>(iter));
    program.unit = "tasks";
    program.expected = just(btc_value(depth, iter));
    program.work = static_cast<double>(program.expected.nodes);
    program.plain = [=] { return just(btc_plain(depth, iter)); };
    program.pool = [=](TaskPool& pool) { return count_of(btc_pool(pool, depth, iter)); };
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
    program.tbb = [options] { return tbb_uts(options); };
    program.pool = [forks](TaskPool& pool) { return uts_pool(pool, forks); };
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
    program.pool = [=](TaskPool& pool) { return count_of(queens_pool(pool, argument, forks)); };
    program.tasks = [](int size, int forks) { return just(queens_tasks(size, loop_of(forks))); };
    program.tbb = [argument] { return just(tbb_queens(argument)); };
    program.first = argument;
    program.second = static_cast<int>(forks);
  } else if (name == "matmul" || name == "cilksort") {
    const bool matmul = name == "matmul";
    const int argument = n == 0 ? (matmul ? 512 : 1 << 21) : n;
    if (argument < 64 || (matmul && argument % 64 != 0)) fail("--n: a multiple of 64 for matmul");
    params.set("n", static_cast<uint64_t>(argument));
    const auto size = static_cast<size_t>(argument);
    program.unit = matmul ? "products" : "numbers";
    program.work = matmul ? static_cast<double>(size) * static_cast<double>(size * size)
                          : static_cast<double>(size);
    (matmul ? program.matrix : program.sorted) = size;
    program.plain = [=] { return just(matmul ? matmul_plain(size) : sort_plain(size)); };
    program.expected = program.plain();
    program.tasks = [](int cells, int is_matmul) {
      const auto number = static_cast<size_t>(cells);
      return just(is_matmul != 0 ? matmul_tasks(number) : sort_tasks(number));
    };
    if (matmul) program.pool = [=](TaskPool& pool) { return count_of(matmul_pool(pool, size)); };
    program.first = argument;
    program.second = matmul ? 1 : 0;
  } else {
    fail("the program is fib, btc, uts, nqueens, matmul, cilksort, steal, wake or stack");
  }
  return program;
}

// Prints a table of all counters, and three ratios of them.
void print_statistics(const TaskStatistics& s) {
  for (const auto& [name, value] : s.counters()) {
    std::fprintf(stderr, "%24s %20llu\n", name.c_str(), static_cast<unsigned long long>(value));
  }
  const auto each = [](const char* name, uint64_t sum, uint64_t count) {
    if (count == 0) return;
    std::fprintf(stderr, "%24s %20.1f\n", name,
                 static_cast<double>(sum) / static_cast<double>(count));
  };
  each("bytes per steal", s.stolen_bytes, s.steals);
  each("round trips per steal", s.steal_trips, s.steals);
  each("bytes per suspension", s.suspended_bytes, s.suspensions);
}

int run_steal(TaskWorkers& all, const Report& report, Params params) {
  std::string model = absl::GetFlag(FLAGS_model);
  if (model.empty()) model = "started";
  if (model != "started" && model != "tied") fail("--model is started or tied");
  if (all.size() != 2) fail("steal is between 2 workers");
  if (absl::GetFlag(FLAGS_stopped)) {
    params.set("model", model);
    const bool stolen = steals_from_stopped(all, task_options(), model == "tied");
    if (!all.reports()) return 0;
    report.row("steal_from_stopped_victim", params, summarize({stolen ? 1.0 : 0.0}), "count");
    if (stolen) return 0;
    std::fprintf(stderr, "bench_tasks: the task did not continue while its victim was stopped\n");
    return 1;
  }
  std::vector<size_t> frames;
  for (const std::string& text : absl::GetFlag(FLAGS_frames)) {
    size_t bytes = 0;
    if (!absl::SimpleAtoi(text, &bytes) || bytes > size_t{1} << 20) fail("--frames: " + text);
    frames.push_back(bytes);
  }
  measure_steals(all, task_options(), frames, absl::GetFlag(FLAGS_steals), report, params);
  measure_page_faults(all, task_options(), 3055, report, params);
  measure_reserved(all, task_options(), report, params);
  return 0;
}

// Measures the bytes of the uni-address stack per level of depth (differences in the paper's Table
// 4): the difference between two sizes of each program, on one worker.
int run_stack(TaskWorkers& all, const Report& report, const Params& params) {
  const auto used = [&](const std::string& name, int size) {
    const std::vector<std::string> trees{"paper8", "paper9", "paper10"};
    if (name == "uts") absl::SetFlag(&FLAGS_tree, trees[static_cast<size_t>(size - 8)]);
    absl::SetFlag(&FLAGS_depth, size);
    absl::SetFlag(&FLAGS_n, size);
    Params unused;
    return static_cast<double>(
        run_tasks(all, make_program(name, unused), 1).statistics.stack_high_water);
  };
  const auto rows = [&](const std::string& name, int iter, int small, int large) {
    absl::SetFlag(&FLAGS_iter, iter);
    const double first = used(name, small);
    const double second = used(name, large);
    Params row = params;
    row.set("iter", static_cast<uint64_t>(iter));
    report.row("stack_" + name + "_per_level", row, summarize({(second - first) / (large - small)}),
               "bytes");
    report.row("stack_" + name, row, summarize({second}), "bytes");
  };
  rows("btc", 1, 8, 16);
  rows("btc", 2, 4, 8);
  rows("uts", 1, 8, 10);
  rows("nqueens", 1, 8, 12);
  return 0;
}

PoolOptions pool_options() {
  PoolOptions options;
  const std::string steal = absl::GetFlag(FLAGS_steal);
  if (steal == "half") {
    options.steal = kStealHalf;
  } else if (!absl::SimpleAtoi(steal, &options.steal) || options.steal < 1 || options.steal > 64) {
    fail("--steal is from 1 to 64, or half");
  }
  options.termination = one_of<PoolTermination>(
      "termination", absl::GetFlag(FLAGS_termination),
      {{"detector", PoolTermination::kDetector}, {"scan", PoolTermination::kStatusScan}});
  options.seed = absl::GetFlag(FLAGS_seed);
  options.timeout = std::chrono::minutes(10);
  return options;
}

int run(const std::string& name, char* const* argv) {
  const int repetitions = absl::GetFlag(FLAGS_repetitions);
  if (absl::GetFlag(FLAGS_workers) < 1 || absl::GetFlag(FLAGS_workers) > 256) {
    fail("--workers is from 1 to 256");
  }
  if (repetitions < 1) fail("--repetitions must be 1 or more");
  if (absl::GetFlag(FLAGS_steals) < 1) fail("--steals must be 1 or more");
  static_cast<void>(task_options());  // reports invalid options before workers exist
  TaskWorkers processes(absl::GetFlag(FLAGS_workers), argv);
  const int workers = processes.size();
  Params params;
  params.set("workers", static_cast<uint64_t>(workers));
  params.set("join", absl::GetFlag(FLAGS_join));
  params.set("deque", absl::GetFlag(FLAGS_deque));
  params.set("scheme", absl::GetFlag(FLAGS_scheme));
  params.set("atomics", absl::GetFlag(FLAGS_atomics));
  params.set("stack", absl::GetFlag(FLAGS_stack));
  params.set("victims", absl::GetFlag(FLAGS_victims));
  const Report report(absl::GetFlag(FLAGS_json), {"workers", "frame", "iter"});
  if (name == "steal") return run_steal(processes, report, params);
  if (name == "wake") {
    if (workers != 2) fail("wake is between 2 workers");
    measure_wakes(processes, task_options(), absl::GetFlag(FLAGS_steals),
                  std::chrono::milliseconds(absl::GetFlag(FLAGS_pause)), report, params);
    return 0;
  }
  if (name == "stack") return run_stack(processes, report, params);
  const Program program = make_program(name, params);

  std::vector<double> plain;
  std::vector<double> one;
  std::vector<double> all;
  std::vector<double> tbb_one;
  std::vector<double> tbb_all;
  const std::string peer = absl::GetFlag(FLAGS_peer);
  if (!peer.empty() && peer != "tbb") fail("--peer is tbb");
  if (peer == "tbb" && (!tbb_is_there() || !program.tbb || processes.is_job())) {
    fail("oneTBB is compared on fib, uts and nqueens, without a launcher, if libtbb-dev was there");
  }
  const std::string model = absl::GetFlag(FLAGS_model);
  if (!model.empty() && model != "uni" && model != "pool") fail("--model is uni or pool");
  if (model == "pool" && !program.pool) fail("--model pool: fib, btc, uts, nqueens or matmul");
  std::optional<PoolBench> pools;
  if (model == "pool") pools.emplace(processes, pool_options(), program.pool, program.matrix);
  Measured last;
  for (int i = 0; i < repetitions; ++i) {
    progress(name + ": " + std::to_string(i + 1) + " of " + std::to_string(repetitions));
    if (processes.reports()) {
      UtsCount count;
      plain.push_back(seconds_of([&] { count = program.plain(); }));
      if (count != program.expected) fail(name + ": a wrong result from plain recursion");
    }
    const bool all_only = processes.is_job() && program.matrix + program.sorted != 0;
    if (!all_only) {
      last = run_tasks(processes, program, 1);
      one.push_back(last.seconds);
    }
    if (peer == "tbb") {
      tbb_one.push_back(run_tbb(program, 1));
      tbb_all.push_back(run_tbb(program, workers));
    }
    if (workers > 1 || all_only) {
      last = run_tasks(processes, program, workers);
      all.push_back(last.seconds);
    }
    if (pools.has_value()) pools->measure(workers, all_only, program.expected);
  }
  progress("");
  if (!processes.reports()) return 0;

  const auto each = [&](const std::vector<double>& seconds, double factor) {
    std::vector<double> values;
    values.reserve(seconds.size());
    for (const double s : seconds) values.push_back(factor * s / program.work);
    return summarize(values);
  };
  const std::string per = name + "_per_" + program.unit.substr(0, program.unit.size() - 1);
  report.row(per + "_plain", params, each(plain, 1e9), "ns");
  if (!one.empty()) {
    report.row(per + "_one_worker", params, each(one, 1e9), "ns");
    std::vector<double> cost;
    for (size_t i = 0; i < one.size(); ++i) {
      cost.push_back(1e9 * (one[i] - plain[i]) / program.work);
    }
    report.row(per + "_cost", params, summarize(cost), "ns");
    report.row(name + "_one_worker_over_plain", params, summarize(ratios(plain, one)), "ratio");
    if (!tbb_one.empty()) {
      std::vector<double> times;
      for (size_t i = 0; i < one.size(); ++i) {
        times.push_back((tbb_one[i] - plain[i]) / (one[i] - plain[i]));
      }
      report.row(per + "_tbb_one_thread", params, each(tbb_one, 1e9), "ns");
      report.row(name + "_tbb_cost_over_ours", params, summarize(times), "ratio");
    }
  }
  if (!all.empty()) {
    report.row(per, params, each(all, 1e9), "ns");
    if (!one.empty()) report.row(name + "_speed_up", params, summarize(ratios(one, all)), "ratio");
    if (!tbb_all.empty()) {
      report.row(per + "_tbb", params, each(tbb_all, 1e9), "ns");
      report.row(name + "_tbb_over_ours", params, summarize(ratios(tbb_all, all)), "ratio");
    }
  }
  if (pools.has_value()) {
    Params pool_params = params;
    pool_params.set("steal", absl::GetFlag(FLAGS_steal));
    pool_params.set("termination", absl::GetFlag(FLAGS_termination));
    pools->report(report, pool_params, {name, per, program.work, plain, one, all});
    if (absl::GetFlag(FLAGS_statistics)) pools->print_statistics();
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
  report.row(name + "_steals", params, summarize({static_cast<double>(last.statistics.steals)}),
             "count");
  for (const auto& [counter, value] : last.statistics.counters()) {
    if (!counter.starts_with("attempts_") && !counter.starts_with("steals_")) continue;
    report.row(name + "_" + counter, params, summarize({static_cast<double>(value)}), "count");
  }
  if (absl::GetFlag(FLAGS_statistics)) print_statistics(last.statistics);
  if (last.statistics.steals < absl::GetFlag(FLAGS_least_steals)) {
    fail(name + ": only " + std::to_string(last.statistics.steals) + " tasks were stolen");
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "measures fork and join of tasks on worker processes.\n"
      "  bench_tasks fib|btc|uts|nqueens|matmul|cilksort|steal|wake|stack [options]";
  const std::vector<char*> arguments = cariama::bench::parse_flags(argc, argv, kUsage);
  if (arguments.size() != 2) {
    std::fprintf(stderr,
                 "usage: bench_tasks fib|btc|uts|nqueens|matmul|cilksort|steal|wake|stack "
                 "[options], see --help\n");
    return 1;
  }
  return cariama::bench::run(arguments[1], argv);
}
