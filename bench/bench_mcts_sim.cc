// Simulates the scaling of the distributed tree search beyond the cores of this machine: the real
// search and the real transport code run on a simulated cluster (bench/support/virtual_cluster.h),
// with Hex from the empty board.
//
//   bench_mcts_sim --processes 1,2,4,8,16,32
//
// The network and the computing times are simulated. A playout with the rest of its rollout takes
// --playout ns, which bench_mcts measures with one process. A message takes --message ns of
// processor time, both ends together. Each process has one thread. All pairs of processes have the
// same distance.
// Rows, by policy=locality and paper (the paper's tree):
//
//   iterations_per_second    completed rollouts (the paper's completions) per virtual second
//   visits_per_second        started rollouts, including rollouts for other processes
//   relative_efficiency      iterations per second and process, relative to the first row
//   idle_share               share of the processes' time
//   idle_no_share, idle_answers, idle_deferred
//                            by cause (mcts::IdleCause), without the time after the last playout;
//                            --policies locality only
//   idle_late                idle time after the first 5 ms of the search, until the last playout
//   message_share            share of the processes' time spent on sending and receiving
//   messages_per_iteration, bytes_per_iteration
//   deferred_share           share of the visits whose selection was deferred and started again
//   sampled_share            share of the rollouts that sampled the position of a node of another
//                            process (mcts::Statistics::sampled_instead)
//   least_node_share         smallest share of the nodes that a process owns, times P
//   real_seconds             duration of the simulation
//
// With --games the only row is wins, in percent.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "bench/support/flags.h"
#include "bench/support/network_flags.h"
#include "bench/support/plain_search.h"
#include "bench/support/report.h"
#include "bench/support/virtual_cluster.h"
#include "hex/hex_game.h"
#include "hex/search_engine.h"
#include "mcts/paper/paper_search.h"
#include "mcts/search.h"

ABSL_FLAG(std::vector<std::string>, processes, (std::vector<std::string>{"1", "2", "4", "8", "16"}),
          "numbers of processes");
ABSL_FLAG(std::vector<std::string>, policies, (std::vector<std::string>{"locality", "paper"}),
          "locality: the default search; paper: the paper's tree");
ABSL_FLAG(int, size, 11, "board size, 5 to 11");
ABSL_FLAG(uint64_t, iterations, 50000, "iterations per process");
ABSL_FLAG(double, playout, 5000, "policy=locality: ns of a rollout with its playout");
ABSL_FLAG(double, paper_playout, 2000, "policy=paper: ns of one of the 16 playouts of a rollout");
ABSL_FLAG(double, message, 1000, "processor time of a message in ns, both ends together");
ABSL_FLAG(double, byte, 0.1, "processor time of a byte of a message in ns");
ABSL_FLAG(uint32_t, spread_visits, cariama::mcts::SearchOptions().spread_visits,
          "policy=locality: visits of the root from which the tree spreads over all processes "
          "(mcts::SearchOptions)");
ABSL_FLAG(uint32_t, playouts_in_flight, cariama::mcts::SearchOptions().playouts_in_flight,
          "policy=locality: playouts that rank 0 requests from each other process before that");
ABSL_FLAG(uint64_t, seed, 1, "seed of all random choices");
ABSL_FLAG(
    uint64_t, games, 0,
    "plays this number of games of the distributed search against a sequential search with the "
    "same number of iterations, instead of the measurement");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "bench_mcts_sim: %s\n", text.c_str());
  std::exit(1);
}

double to_seconds(SimTime time) { return std::chrono::duration<double>(time).count(); }

struct Costs {
  SimTime playout;
  double message = 0;  // ns
  double byte = 0;     // ns
};
Costs costs;                                              // costs of the running simulation
constexpr SimTime kStart = std::chrono::milliseconds(5);  // the start of a search

// The idle time of the processes by its cause. Not guarded by a lock: one simulated process runs at
// a time.
struct IdleTimes {
  const VirtualCluster* cluster = nullptr;           // nullptr: not recording
  SimTime begin{0};                                  // of the search
  std::vector<SimTime> seen;                         // idle time of each process when last recorded
  std::array<double, mcts::kIdleCauses> by_cause{};  // virtual seconds
  double late = 0;                                   // after the first 5 ms of the search
};
IdleTimes idle_times;

// Hex whose playouts take virtual time: that of the playout, and that of the messages that the
// thread has sent since the previous playout.
class TimedGame : public hex::HexGame<2> {
 public:
  using HexGame<2>::HexGame;

  class Playouts : public HexGame<2>::Playouts {
   public:
    using HexGame<2>::Playouts::Playouts;
    float run(const TimedGame& game, std::optional<Move> last, mcts::Random& random,
              mcts::Owned<kAmafIds>* owned) {
      record_idle();
      const mcts::PeerAggregators& aggregators = *mcts::Host::here().aggregators;
      const uint64_t messages = aggregators.messages();
      const uint64_t bytes = aggregators.bytes();
      const double sent = costs.message * static_cast<double>(messages - messages_) +
                          costs.byte * static_cast<double>(bytes - bytes_);
      messages_ = messages;
      bytes_ = bytes;
      VirtualCluster::spend(costs.playout + from_ns(sent));
      return HexGame<2>::Playouts::run(game, last, random, owned);
    }

   private:
    // Adds the time that this process has been idle since its last playout.
    static void record_idle() {
      if (idle_times.cluster == nullptr) return;
      const uint32_t rank = mcts::Host::here().host->rank();
      const VirtualCluster::Process process = idle_times.cluster->process(rank);
      const double idle = to_seconds(process.idle - idle_times.seen[rank]);
      idle_times.seen[rank] = process.idle;
      const mcts::IdleCause cause =
          mcts::Host::local_here<mcts::WorkPool<TimedGame>>().idle_cause();
      idle_times.by_cause[static_cast<size_t>(cause)] += idle;
      if (process.clock - idle_times.begin > kStart) idle_times.late += idle;
    }

    uint64_t messages_ = mcts::Host::here().aggregators->messages();
    uint64_t bytes_ = mcts::Host::here().aggregators->bytes();
  };
};
static_assert(mcts::HasPlayouts<TimedGame> && mcts::HasRefine<TimedGame>);

struct Outcome {
  mcts::Statistics sum;
  uint64_t iterations = 0;
  uint64_t least_nodes = 0;
  double seconds = 0;  // virtual time
  double idle = 0;     // idle virtual seconds, summed over the processes
};

// Calls body(host) in the process of rank 0; the other processes serve its searches.
template <typename Body>
void run_in_rank_0(VirtualCluster& cluster, Body&& body) {
  const absl::Status ran = cluster.run([&](Fabric& fabric) {
    auto host = mcts::Host::create(&fabric);
    if (!host.ok()) fail(std::string(host.status().message()));
    if ((*host)->rank() != 0) {
      if (const absl::Status served = (*host)->serve(); !served.ok()) {
        fail(std::string(served.message()));
      }
      return;
    }
    body(**host);
    (*host)->end();
  });
  if (!ran.ok()) fail(std::string(ran.message()));
}

template <typename Search>
Outcome simulate(uint32_t processes, const SimOptions& sim, const mcts::SearchOptions& options) {
  const int size = absl::GetFlag(FLAGS_size);
  const TimedGame game(hex::Board(size, size));
  Outcome outcome;
  VirtualCluster cluster({.processes = processes, .sim = sim});
  const auto idle = [&] {
    SimTime sum{0};
    for (uint32_t rank = 0; rank < processes; ++rank) sum += cluster.process(rank).idle;
    return sum;
  };
  run_in_rank_0(cluster, [&](mcts::Host& host) {
    Search search(host, options);
    // A first search, not measured, establishes the connections between all processes.
    search.options().spread_visits = 0;
    static_cast<void>(search.run(game, {.iterations = 1000}));
    search.options() = options;
    search.clear();
    const SimTime begin = cluster.process(0).clock;
    const SimTime idle_before = idle();
    idle_times = {&cluster, begin, {}};
    for (uint32_t rank = 0; rank < processes; ++rank) {
      idle_times.seen.push_back(cluster.process(rank).idle);
    }
    const auto result =
        search.run(game, {.iterations = absl::GetFlag(FLAGS_iterations) * processes});
    outcome.seconds = to_seconds(cluster.process(0).clock - begin);
    outcome.idle = to_seconds(idle() - idle_before);
    idle_times.cluster = nullptr;
    outcome.iterations = result.iterations;
    outcome.least_nodes = UINT64_MAX;
    for (const mcts::Statistics& one : result.processes) {
      outcome.sum.visits += one.visits;
      outcome.sum.deferred_selections += one.deferred_selections;
      outcome.sum.messages += one.messages;
      outcome.sum.sampled_instead += one.sampled_instead;
      outcome.sum.bytes += one.bytes;
      outcome.sum.nodes += one.nodes;
      outcome.least_nodes = std::min(outcome.least_nodes, one.nodes);
    }
  });
  return outcome;
}

// Plays games of a distributed search against a sequential search (plain_search.h). Both sides have
// the same number of iterations for a move. The first two moves are random; each opening is played
// twice, with exchanged colours. Returns the number of games that the distributed search has won.
template <typename Search>
uint64_t play_games(uint32_t processes, const SimOptions& sim, mcts::SearchOptions options,
                    uint64_t games) {
  const uint64_t iterations = absl::GetFlag(FLAGS_iterations) * processes;
  const int size = absl::GetFlag(FLAGS_size);
  uint64_t wins = 0;
  VirtualCluster cluster({.processes = processes, .sim = sim});
  run_in_rank_0(cluster, [&](mcts::Host& host) {
    mcts::Random random(options.seed);
    Search search(host, options);
    hex::Move opening[2];
    for (uint64_t number = 0; number < games; ++number) {
      TimedGame game(hex::Board(size, size));
      hex::HexGame<2> plain{hex::Board(size, size)};
      for (hex::Move& move : opening) {
        hex::Move moves[TimedGame::kMaxMoves];
        const int count = game.moves(moves);
        if (number % 2 == 0) move = moves[random.below(static_cast<uint32_t>(count))];
        game.play(move);
        plain.play(move);
      }
      const int side = static_cast<int>(number % 2);
      while (!game.result()) {
        options.seed = search.options().seed = random.next();
        hex::Move move{};
        if (game.to_move() == side) {
          search.clear();  // the sequential search has no tree of an earlier move either
          move = search.run(game, {.iterations = iterations}).moves[0].move;
        } else {
          move = plain_search(plain, options, iterations).move;
        }
        game.play(move);
        plain.play(move);
      }
      if (*game.result() == (side == 0 ? 1.0F : 0.0F)) ++wins;
      progress(std::to_string(wins) + " of " + std::to_string(number + 1));
    }
  });
  return wins;
}

template <typename Search>
void run_policy(const std::string& policy, const SimOptions& sim, Params common,
                const Report& report) {
  mcts::SearchOptions options = hex::SearchEngineOptions::default_search();
  options.seed = absl::GetFlag(FLAGS_seed);
  options.spread_visits = absl::GetFlag(FLAGS_spread_visits);
  options.playouts_in_flight = absl::GetFlag(FLAGS_playouts_in_flight);
  common.set("policy", policy);
  common.set("playout", to_seconds(costs.playout) * 1e9);
  std::optional<double> first;
  for (const std::string& text : absl::GetFlag(FLAGS_processes)) {
    uint32_t processes = 0;
    if (!absl::SimpleAtoi(text, &processes) || processes < 1) fail("--processes: " + text);
    if (const uint64_t games = absl::GetFlag(FLAGS_games); games != 0) {
      Params params = common;
      params.set("processes", uint64_t{processes});
      const uint64_t wins = play_games<Search>(processes, sim, options, games);
      const double share = static_cast<double>(wins) / static_cast<double>(games);
      report.row("wins", params, summarize({100 * share}), "%");
      continue;
    }
    progress(policy + ": " + text + " processes");
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = simulate<Search>(processes, sim, options);
    const double real =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    progress("");
    Params params = common;
    params.set("processes", uint64_t{processes});
    const auto row = [&](const char* name, double value, const char* unit) {
      report.row(name, params, summarize({value}), unit);
    };
    const auto iterations = static_cast<double>(std::max<uint64_t>(outcome.iterations, 1));
    const auto messages = static_cast<double>(outcome.sum.messages);
    const auto bytes = static_cast<double>(outcome.sum.bytes);
    const auto visits = static_cast<double>(std::max<uint64_t>(outcome.sum.visits, 1));
    const double rate = iterations / outcome.seconds;
    if (!first) first = rate / processes;
    row("iterations_per_second", rate, "1/s");
    row("visits_per_second", visits / outcome.seconds, "1/s");
    row("relative_efficiency", rate / processes / *first, "ratio");
    const double time = outcome.seconds * processes;
    if (policy == "locality") {
      row("idle_no_share", 100 * idle_times.by_cause[0] / time, "%");
      row("idle_answers", 100 * idle_times.by_cause[1] / time, "%");
      row("idle_deferred", 100 * idle_times.by_cause[2] / time, "%");
    }
    row("idle_late", 100 * idle_times.late / time, "%");
    row("idle_share", 100 * outcome.idle / time, "%");
    row("message_share", 1e-7 * (costs.message * messages + costs.byte * bytes) / time, "%");
    row("messages_per_iteration", messages / iterations, "1");
    row("bytes_per_iteration", bytes / iterations, "B");
    row("deferred_share", 100 * static_cast<double>(outcome.sum.deferred_selections) / visits, "%");
    row("sampled_share", 100 * static_cast<double>(outcome.sum.sampled_instead) / iterations, "%");
    row("least_node_share",
        100 * static_cast<double>(outcome.least_nodes) * processes /
            static_cast<double>(std::max<uint64_t>(outcome.sum.nodes, 1)),
        "%");
    row("real_seconds", real, "s");
  }
}

int run() {
  const int size = absl::GetFlag(FLAGS_size);
  if (size < 5 || size > 11) fail("--size is from 5 to 11");
  const SimOptions sim = network_options(absl::GetFlag(FLAGS_seed));
  costs.message = absl::GetFlag(FLAGS_message);
  costs.byte = absl::GetFlag(FLAGS_byte);
  Params common;
  common.set("size", static_cast<uint64_t>(size));
  common.set("iterations", absl::GetFlag(FLAGS_iterations));
  common.set("spread_visits", uint64_t{absl::GetFlag(FLAGS_spread_visits)});
  common.set("playouts_in_flight", uint64_t{absl::GetFlag(FLAGS_playouts_in_flight)});
  common.set("message", costs.message);
  common.set("byte", costs.byte);
  set_network_params(common);
  common.set("seed", absl::GetFlag(FLAGS_seed));
  const Report report(absl::GetFlag(FLAGS_json), {"policy", "processes"});
  for (const std::string& policy : absl::GetFlag(FLAGS_policies)) {
    if (policy == "locality") {
      costs.playout = from_ns(absl::GetFlag(FLAGS_playout));
      run_policy<mcts::Search<TimedGame>>(policy, sim, common, report);
    } else if (policy == "paper") {
      costs.playout = from_ns(absl::GetFlag(FLAGS_paper_playout));
      run_policy<mcts::PaperSearch<TimedGame>>(policy, sim, common, report);
    } else {
      fail("--policies knows locality and paper");
    }
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "simulates a distributed search on many processes.\n  bench_mcts_sim [options]";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "usage: bench_mcts_sim [options], see --help\n");
    return 1;
  }
  return cariama::bench::run();
}
