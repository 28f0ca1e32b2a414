// Throughput of the distributed tree search: Hex from the empty board, one search per policy, each
// for the same time. bench_mcts -n P -t T sets the number of processes and threads. Rows, by
// policy=locality, hash, random, transpositions (hash, with one node for each position) and paper
// (the paper's tree, with its 16 playouts per leaf):
//
//   iterations_per_second      completed rollouts
//   visits_per_second          started rollouts, including rollouts for other processes
//   playouts_per_second
//   overhead_share             share of the processor time of all processes that is neither playout
//                              nor tree arithmetic. The time of these two is that of a plain
//                              sequential search with as many iterations, measured in the same run
//                              (bench/support/plain_search.h)
//   idle_share                 share of the workers' time
//   messages_per_iteration, bytes_per_iteration
//   least_node_share           smallest share of the nodes that a process owns, times P
//   stop_to_answer, .._p99     with policy=locality, on the tree of that search: time from the stop
//                              request of another thread to the end of the search
//   short_search               with policy=locality: time of a search with a new tree and this
//                              number of iterations. 1: almost only its begin and its end
//
// For a scaling figure run all shapes for which the machine has cores, with --json.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "bench/support/flags.h"
#include "bench/support/plain_search.h"
#include "bench/support/report.h"
#include "hex/hex_game.h"
#include "hex/search_engine.h"
#include "mcts/paper/paper_search.h"
#include "mcts/program.h"
#include "mcts/search.h"

namespace cariama::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Game = hex::HexGame<2>;

constexpr char kHelp[] =
    "bench_mcts [-n P] [-t T] [--size N] [--seconds S] [--json]\n"
    "  Searches the empty board of Hex with each node placement, and with the paper's tree.\n"
    "  --size N      board size, 5 to 11 (11)\n"
    "  --seconds S   duration of each search (2)\n"
    "  --help        this text\n"
    "  --version     prints the version of Cariama\n";

struct Arguments {
  int size = 11;
  double seconds = 2;
  bool json = false;
};

mcts::SearchOptions options_of(mcts::Placement placement) {
  mcts::SearchOptions options = hex::SearchEngineOptions::default_search();
  options.placement = placement;
  options.stop_when_safe = false;
  return options;
}

template <typename Result>
void report_search(const Report& report, const char* policy, const Arguments& arguments,
                   mcts::Host& host, const Result& result, double plain_seconds) {
  mcts::Statistics sum;
  uint64_t least = UINT64_MAX;
  for (const mcts::Statistics& one : result.processes) {
    sum.visits += one.visits;
    sum.playouts += one.playouts;
    sum.messages += one.messages;
    sum.bytes += one.bytes;
    sum.nodes += one.nodes;
    sum.idle_seconds += one.idle_seconds;
    sum.cpu_seconds += one.cpu_seconds;
    least = std::min(least, one.nodes);
  }
  Params params;
  params.set("policy", policy);
  params.set("size", static_cast<uint64_t>(arguments.size));
  params.set("processes", uint64_t{host.size()});
  params.set("threads", uint64_t{host.threads()});
  params.set("seconds", arguments.seconds);
  const auto row = [&](const char* name, double value, const char* unit) {
    report.row(name, params, summarize({value}), unit);
  };
  const auto iterations = static_cast<double>(std::max<uint64_t>(result.iterations, 1));
  const double workers = host.size() * host.threads();
  const double idle = sum.idle_seconds / (result.seconds * workers);
  row("iterations_per_second", iterations / result.seconds, "1/s");
  row("visits_per_second", static_cast<double>(sum.visits) / result.seconds, "1/s");
  row("playouts_per_second", static_cast<double>(sum.playouts) / result.seconds, "1/s");
  if (plain_seconds > 0 && sum.cpu_seconds > 0) {
    row("overhead_share", 100 * (1 - plain_seconds / sum.cpu_seconds), "%");
  }
  row("idle_share", 100 * idle, "%");
  row("messages_per_iteration", static_cast<double>(sum.messages) / iterations, "1");
  row("bytes_per_iteration", static_cast<double>(sum.bytes) / iterations, "B");
  row("least_node_share",
      100 * static_cast<double>(least) * host.size() /
          static_cast<double>(std::max<uint64_t>(sum.nodes, 1)),
      "%");
}

// Returns the times in milliseconds from a stop request by another thread to the end of the search.
std::vector<double> stop_delays(mcts::Search<Game>& search, const Game& game) {
  std::vector<double> delays;
  for (int i = 0; i < 50; ++i) {
    std::atomic<bool> stop{false};
    std::atomic<Clock::rep> asked{0};
    std::thread asking([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5 + i % 10));
      asked = Clock::now().time_since_epoch().count();
      stop = true;
    });
    static_cast<void>(search.run(game, {}, &stop));
    const auto answered = Clock::now();
    asking.join();
    delays.push_back(std::chrono::duration<double, std::milli>(
                         answered - Clock::time_point(Clock::duration(asked.load())))
                         .count());
  }
  return delays;
}

// Returns the times in milliseconds of searches that begin with a new tree.
std::vector<double> search_times(mcts::Search<Game>& search, const Game& game,
                                 uint64_t iterations) {
  std::vector<double> times;
  for (int i = 0; i < 50; ++i) {
    search.clear();
    const auto start = Clock::now();
    static_cast<void>(search.run(game, {.iterations = iterations}));
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  return times;
}

struct Policy {
  const char* name;
  mcts::Placement placement;
  bool transpositions = false;
};

int measure(const Arguments& arguments, mcts::Host& host) {
  const Report report(arguments.json, {"policy", "processes", "threads", "iterations"});
  const Game game(hex::Board(arguments.size, arguments.size));
  mcts::Search<Game> search(host);
  for (const Policy& policy :
       {Policy{"hash", mcts::Placement::kHash}, Policy{"random", mcts::Placement::kRandom},
        Policy{"transpositions", mcts::Placement::kHash, true},
        Policy{"locality", mcts::Placement::kLocality}}) {
    search.options() = options_of(policy.placement);
    search.options().transpositions = policy.transpositions;
    search.clear();
    const auto result = search.run(game, {.seconds = arguments.seconds});
    const double plain = plain_search(game, search.options(), result.iterations).seconds;
    report_search(report, policy.name, arguments, host, result, plain);
  }
  Params params;
  params.set("policy", "locality");
  params.set("processes", uint64_t{host.size()});
  params.set("threads", uint64_t{host.threads()});
  std::vector<double> delays = stop_delays(search, game);
  report.row("stop_to_answer", params, summarize(delays), "ms");
  report.row("stop_to_answer_p99", params, summarize({percentile(delays, 0.99)}), "ms");
  for (const uint64_t iterations : {uint64_t{1}, uint64_t{100}, uint64_t{1000}, uint64_t{10000}}) {
    params.set("iterations", iterations);
    report.row("short_search", params, summarize(search_times(search, game, iterations)), "ms");
  }
  search.clear();
  mcts::PaperSearch<Game> paper(host, options_of(mcts::Placement::kRandom));
  const auto result = paper.run(game, {.seconds = arguments.seconds});
  report_search(report, "paper", arguments, host, result, 0);
  return 0;
}

int run(int argc, char** argv) {
  mcts::Program program(argc, argv);
  Arguments arguments;
  const auto& words = program.arguments();
  std::string error = program.error();
  bool good = error.empty();
  for (size_t i = 0; i < words.size() && good; ++i) {
    if (words[i] == "--help") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (words[i] == "--version") return print_version("bench_mcts");
    if (words[i] == "--json") {
      arguments.json = true;
    } else if (i + 1 < words.size() && words[i] == "--size") {
      good = absl::SimpleAtoi(words[++i], &arguments.size) && arguments.size >= 5 &&
             arguments.size <= 11;
    } else if (i + 1 < words.size() && words[i] == "--seconds") {
      good = absl::SimpleAtod(words[++i], &arguments.seconds) && arguments.seconds > 0 &&
             arguments.seconds <= 1e6;
    } else {
      good = false;
    }
    if (!good) error = "cannot use " + words[i];
  }
  if (!good) {
    std::fprintf(stderr, "bench_mcts: %s\n\n%s", error.c_str(), kHelp);
    return 2;
  }
  return program.run([&](mcts::Host& host) { return measure(arguments, host); });
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) { return cariama::bench::run(argc, argv); }
