// PaperSearch: a search in the paper's design (Seriema §5.3), for comparison. It has the interface
// of Search (search.h).
//
//   PaperSearch<ConnectFour> search(host);
//   auto result = search.run(position, {.seconds = 1});
//
// The search consists of phases of at most options.paper.rollouts_per_thread rollouts per thread of
// the job. A phase begins when all rollouts of the previous phase have completed. No AMAF, no
// solver, no tree reuse, no collection of cold nodes: the search also ends when a thread's node
// memory is full or a process has died.
//
// Cost: the owner of each node is a random thread of the job, so a rollout takes about one message
// per level of the tree on the way down and one on the way up. Every thread has a channel to every
// other thread. After each phase rank 0 asks for the statistics: 2 (P - 1) messages.
#ifndef CARIAMA_MCTS_PAPER_PAPER_SEARCH_H_
#define CARIAMA_MCTS_PAPER_PAPER_SEARCH_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "mcts/host.h"
#include "mcts/options.h"
#include "mcts/paper/engine/paper_tree.h"
#include "mcts/values.h"

namespace cariama::mcts {

// Not thread-safe: only worker 0 of rank 0 may use it. One search at a time in a host.
template <Game G>
class PaperSearch {
 public:
  static_assert(!HasEvaluator<G>,
                "cariama: PaperSearch runs playouts, so its game has no Evaluator: use Search");
  static_assert(!HasChance<G>,
                "cariama: PaperSearch has no chance positions: use Search for a game with chance");
  static_assert(kTwoPlayers<G>,
                "cariama: PaperSearch has two players: use Search for a game with kPlayers");
  using Move = typename G::Move;
  using Result = SearchResult<Move>;
  using Progress = std::function<void(const Result&)>;

  explicit PaperSearch(Host& host, const SearchOptions& options = SearchOptions::of<G>())
      : host_(host), tree_(host.local<PaperTree<G>>()), options_(options) {}

  // Changes take effect at the next run().
  [[nodiscard]] SearchOptions& options() { return options_; }

  // Searches for the best move of the player to move in `position`. The parameters have the meaning
  // that they have in Search::run. Blocks until the search ends; the calling thread works
  // meanwhile. If `progress` throws, the search ends and run() throws the exception; the host can
  // search again. Throws std::invalid_argument and std::logic_error as Search::run() does.
  Result run(const G& position, const SearchLimits& limits = {},
             const std::atomic<bool>* stop = nullptr, const Progress& progress = nullptr,
             double interval = 0.5) {
    if (const absl::Status idle = host_.begin_search("PaperSearch::run()"); !idle.ok()) {
      throw std::logic_error(std::string(idle.message()));
    }
    struct Running {
      Host& host;
      ~Running() { host.end_search(); }
    };
    const Running running{host_};
    throw_if_invalid(options_);
    start_ = Clock::now();
    host_.end_last_search();
    tree_.command(CommandKind::kBegin, options_);
    statistics_.assign(host_.size(), {});
    tree_.set_root(position);
    const uint64_t phase =
        uint64_t{options_.paper.rollouts_per_thread} * host_.size() * host_.threads();
    uint64_t begun = 0;
    double next_report = interval;
    const auto finished = [&] {
      return (stop != nullptr && stop->load(std::memory_order_relaxed)) ||
             (limits.seconds != 0 && seconds() >= limits.seconds) || tree_.full() ||
             host_.living() < host_.size();
    };
    while (!finished() && (limits.iterations == 0 || begun < limits.iterations)) {
      const uint64_t rollouts =
          limits.iterations == 0 ? phase : std::min(phase, limits.iterations - begun);
      begun += rollouts;
      tree_.begin_phase(rollouts);
      bool due = false;
      do {
        work_on([&] {
          const bool ended = tree_.completed() == begun || finished();
          due = !ended && progress && seconds() >= next_report;
          return ended || due;
        });
        if (!due) continue;
        try {
          progress(report());
        } catch (...) {
          // Otherwise the workers of all processes would continue the phase, on nodes that the next
          // run() frees.
          end_phase(begun);
          tree_.quiesce(options_);
          throw;
        }
        next_report = seconds() + interval;
      } while (due);
      end_phase(begun);
    }
    // A rollout may complete before the call arrives that tells the parent the name of the new
    // node.
    tree_.quiesce(options_);
    tree_.command(CommandKind::kInform, options_);
    return report();
  }

  void clear() {}  // no effect: each run() starts with a new tree

 private:
  using Clock = std::chrono::steady_clock;

  // Works until the condition holds. A process that is stopped meanwhile is left out.
  void work_on(const std::function<bool()>& condition) {
    while (!host_.work_patiently(condition)) tree_.command(CommandKind::kInform, options_);
  }
  // Ends the phase: the rollouts that have begun complete, the others never begin. begun: the
  // number of the rollouts of this search; the function subtracts those that did not begin.
  void end_phase(uint64_t& begun) {
    begun -= tree_.end_phase();
    work_on([&] { return tree_.completed() == begun || host_.living() < host_.size(); });
    ask();
  }
  // Asks all processes for their statistics: those of a process that dies in a later phase are the
  // last ones that are known. Does not wait for the answers. Does nothing while answers are
  // missing, because it would drop them.
  void ask() {
    if (!tree_.late().empty()) return;
    tree_.update(statistics_);
    tree_.begin_command(CommandKind::kInform, options_);
  }
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }
  [[nodiscard]] Result report() {
    PaperNode<G>& root = tree_.root();
    tree_.update(statistics_);
    Result result;
    result.processes = statistics_;
    result.player = root.player;
    result.iterations = tree_.completed();
    result.seconds = seconds();
    for (int i = 0; i < root.size; ++i) {
      const auto& edge = root.edge(i);
      MoveResult<Move> move;
      move.move = root.move(i);
      move.visits = edge.visits.load(std::memory_order_relaxed);
      if (move.visits != 0) {
        move.value = std::clamp(
            edge.wins.load(std::memory_order_relaxed) / static_cast<double>(move.visits), 0.0, 1.0);
      }
      move.line = {move.move};
      result.moves.push_back(std::move(move));
    }
    std::stable_sort(result.moves.begin(), result.moves.end(),
                     [](const auto& a, const auto& b) { return a.visits > b.visits; });
    return result;
  }

  Host& host_;
  PaperTree<G>& tree_;
  SearchOptions options_;
  Clock::time_point start_;
  std::vector<Statistics> statistics_;  // by rank: the last ones that are known
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_PAPER_PAPER_SEARCH_H_
