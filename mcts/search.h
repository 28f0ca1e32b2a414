// Search: finds the best move of a game. This is the interface that programs use.
//
//   Search<ConnectFour> search(host);                       // host.h; rank 0, worker 0
//   auto result = search.run(position, {.seconds = 1});
//   position.play(result.moves[0].move);
//   search.advance(result.moves[0].move);                   // keeps the subtree of this move
//
// The tree grows in all processes and threads of the host. With one worker, a new host, the same
// seed and the same sequence of calls with limits in iterations give the same results.
//
// Several Search objects for one type of game may exist in a host. They share one tree, that of the
// last run: run() of another one frees it.
//
// Cost with P processes of T threads each, in messages (docs/mcts.md has the same table):
//   - 2 per batch of visits / batch_divisor rollouts (at most max_batch) that a process requests
//     from another one, and per share of the root's rollouts (at most 4096 rollouts).
//   - 2 per node that is created in another process than its parent's or is offered to the owner of
//     its parent, and per exchange of counts between a copied node and its owner (copies.h).
//   - 2 (P - 1) per command of rank 0: requests and answers.
//   - Begin of a search: 6 (P - 1), one command and the copies of the root. One command more if the
//     position is not the root of the tree that exists: 8 (P - 1).
//   - End of a search: at least 7 commands, 14 (P - 1), and one per copy for its last counts.
//   - advance(): at least 4 (P - 1), and one per freed node whose parent is in another process. 2
//     more if the new root is in another process.
// Thread i of a process exchanges messages about the tree only with thread i of each other process:
// P - 1 channels in each direction per thread. State that grows with P: 10 bytes per process of the
// job in each process, 200 more in rank 0, and in each thread 16 bytes per process, and 8 bytes and
// 1 bit per thread of the job.
#ifndef CARIAMA_MCTS_SEARCH_H_
#define CARIAMA_MCTS_SEARCH_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "mcts/engine/final_choice.h"
#include "mcts/engine/root_noise.h"
#include "mcts/engine/search_process.h"
#include "mcts/host.h"
#include "mcts/options.h"

namespace cariama::mcts {

// Not thread-safe: only worker 0 of rank 0, the thread that created its host, may use it. The host
// must outlive it. One search at a time in a host.
template <Game G>
class Search {
 public:
  using Move = typename G::Move;
  using Result = SearchResult<Move>;
  using Progress = std::function<void(const Result&)>;

  explicit Search(Host& host, const SearchOptions& options = SearchOptions::of<G>())
      : host_(host),
        process_(host.local<SearchProcess<G>>()),
        tree_(process_.tree()),
        job_(process_.pool().root_job()),
        options_(options) {}

  // Changes take effect at the next run(), that of reuse_tree at the next advance().
  [[nodiscard]] SearchOptions& options() { return options_; }

  // Searches for the best move of the player to move in `position`. Blocks until the search ends;
  // the calling thread runs rollouts and calls meanwhile. After another thread (or `progress`) has
  // set *stop, or at the end of the time, each worker ends its running function of the game, and
  // rank 0 exchanges the commands of the head of this file with all processes: in all at most 50 ms
  // if the functions of the game are short. A refine() or playout() that takes longer in rank 0
  // delays the end by its time. Another process that does not end its part in time, for example a
  // stopped one (SIGSTOP), delays it by at most 500 ms: the result names it (SearchResult::late).
  // The next function of a search waits for that process. If a process has not answered for
  // HostOptions::patience, also at the begin of a search or in one that ends by its iterations, the
  // searches leave it out. `progress` is called about every `interval`
  // seconds, in the calling thread. It must not call functions of the host or of its searches. If
  // it throws, the search ends and run() throws the exception. Also throws std::invalid_argument,
  // with the message of SearchOptions::validate(), if an option has no valid value, and if the
  // position is a chance position; std::bad_alloc if there is no memory for the root; the errors of
  // an evaluator (evaluator.h); an exception of a function of the game in this process; and
  // std::runtime_error if such a function returns or writes a number out of range (game.h). After
  // the last three the host cannot search: destroy it. Requires: the position has no result() and
  // at least one move.
  //
  // Keeps the tree. A later run() of the same position, or of the position that advance() has
  // reached, continues it, unless another Search object for this type of game has created a tree
  // since. Positions are compared by operator==, or if the type has none, byte by byte with their
  // padding. Every other position frees the tree first. The result contains all moves of a new
  // position. If advance() has reached the position, it contains the moves that expand() offered.
  //
  // If a process dies and the fabric continues without it, its part of the tree is lost and the
  // search continues.
  Result run(const G& position, const SearchLimits& limits = {},
             const std::atomic<bool>* stop = nullptr, const Progress& progress = nullptr,
             double interval = 0.5) {
    throw_if_invalid(options_);
    if (internal::is_chance(position)) {
      throw std::invalid_argument(
          "the position of the search is a chance position, in which no player chooses a move: "
          "play the outcome that has occurred, call advance() with it, and search then");
    }
    start_ = Clock::now();
    iterations_ = 0;
    host_.end_last_search();
    prepare(position);
    SearchOptions begun = options_;
    begun.memory_bytes = memory_bytes();
    process_.command(CommandKind::kBegin, begun);
    const bool ready = evaluate_root(limits, stop);
    if (ready) set_priors();
    double next_report = interval;
    const double patience = std::chrono::duration<double>(host_.patience()).count();
    double next_look = seconds() + patience;
    for (;;) {
      open(limits, ready);
      Pause pause = ready ? Pause::kNone : Pause::kEnd;
      while (pause == Pause::kNone) {
        bool due = false;
        static_cast<void>(host_.work_patiently([&] {
          pause = reason_to_pause(limits, stop);
          due = progress && seconds() >= next_report;
          return due || pause != Pause::kNone;
        }));
        if (pause == Pause::kNone && seconds() >= next_look) {
          look_for_late();
          next_look = seconds() + patience;
        }
        if (!due || pause != Pause::kNone) continue;
        try {
          progress(report());
        } catch (...) {
          // Otherwise the workers of all processes would continue, on nodes that a later call
          // frees. (After an exception of work_until() a rollout of this thread never ends, so
          // end_rollouts() would not return.)
          close();
          iterations_ += end_rollouts(host_, process_, job_, options_);
          process_.command(CommandKind::kDropCopies, options_);
          throw;
        }
        next_report = seconds() + interval;
      }
      close();
      if (!await_parts(limits, stop)) return report_without_late();
      iterations_ += end_rollouts(host_, process_, job_, options_);
      if (pause != Pause::kFull) break;
      process_.command(CommandKind::kDropCopies, options_);
      collect([&] { return time_is_up(limits, stop); });
    }
    Result result = report();  // its lines lead through copies of nodes, so before kDropCopies
    for (const CommandAnswer& answer : process_.command(CommandKind::kDropCopies, options_)) {
      result.processes.push_back(answer.statistics);
    }
    // After a death, kDropCopies frees the nodes that were offered to the dead process, and their
    // subtrees.
    if (host_.living() < host_.size()) quiesce(host_, process_, options_);
    return result;
  }

  // Makes a move in the position of the tree. Keeps the subtree of the move as the new tree if
  // there is one and options().reuse_tree is set. Frees all other nodes. Without such a subtree,
  // frees the tree. Does nothing if this object has no tree. Blocks until all processes have
  // answered, and runs calls meanwhile. Not within run().
  void advance(Move move) {
    if (!has_tree()) return;
    host_.end_last_search();
    const int at = options_.reuse_tree ? root().find(move) : -1;
    if (at < 0 || !tree_.advance_root(at)) {
      clear();
      return;
    }
    priors_.clear();
    root_->play(move);
    quiesce(host_, process_, options_);
  }
  // Returns the position of the tree's root, or nullopt if there is no tree, or if it is the tree
  // of another Search.
  [[nodiscard]] std::optional<G> position() const { return has_tree() ? root_ : std::nullopt; }

  // Frees the tree in all processes. Blocks until they have answered. Not within run().
  void clear() {
    host_.end_last_search();
    process_.command(CommandKind::kClear, options_);
    root_.reset();
    priors_.clear();
  }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Pause : uint8_t { kNone, kEnd, kFull };

  // The time that a search with a time limit waits after its end for the parts of the other
  // processes.
  static constexpr std::chrono::milliseconds kMargin{500};
  // Seconds between two calls of safe().
  static constexpr double kSafetyInterval = 0.01;
  // Limit of the root's visits: the counter of a move has 32 bits.
  static constexpr uint64_t kMaxVisits = 0x70000000;
  // Number of rollouts of a search without a limit, which never begins all of them: kMaxVisits ends
  // it before. It leaves room in the counters of Job, which are signed.
  static constexpr uint64_t kUnlimited = uint64_t{1} << 62;
  // SearchOptions::memory_bytes has room for this number of the largest nodes at least.
  static constexpr uint64_t kLeastNodes = 512;

  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }
  [[nodiscard]] Node<G>& root() { return *tree_.root(); }
  [[nodiscard]] uint64_t iterations() { return iterations_ + job_.completed(); }

  // Returns the limit of the nodes of a process. With room for a few nodes only, a search would
  // free nodes after every few rollouts.
  [[nodiscard]] uint64_t memory_bytes() const {
    return std::max<uint64_t>(options_.memory_bytes, kLeastNodes * Node<G>::most_bytes());
  }

  // Keeps the tree if its root has this position. Otherwise frees the tree and creates a new root.
  void prepare(const G& position) {
    if (!has_tree() || !same(*root_, position)) {
      clear();
      tree_.set_memory_limit(memory_bytes());
      tree_number_ = tree_.create_root(position, options_.seed);
      root_.emplace(position);
    }
  }
  // Games with an Evaluator: evaluates the root, so that its copies have its priors. Returns false
  // if the search has to end before the result is there.
  [[nodiscard]] bool evaluate_root(const SearchLimits& limits, const std::atomic<bool>* stop) {
    if constexpr (HasEvaluator<G>) {
      process_.worker(0).evaluate_root(root());
      static_cast<void>(host_.work_until(
          [&] { return root().evaluated() || time_is_up(limits, stop); }, kForever));
      if (!root().evaluated()) static_cast<void>(process_.worker(0).cancel_evaluations());
      return root().evaluated();
    }
    return true;
  }
  // Sets the priors of the root to those of the game, mixed with the noise of this search. The
  // copies of the root, which the other processes request later, contain them.
  void set_priors() {
    if (options_.root_noise.fraction == 0 && priors_.empty()) return;
    Node<G>& node = root();
    if (priors_.empty()) {
      for (int i = 0; i < node.size(); ++i) priors_.push_back(node.prior(i));
    }
    std::vector<float> mixed = priors_;
    Random random(Random::mix(options_.seed) ^ node.key());
    mix_noise(mixed, options_.root_noise, random);
    for (int i = 0; i < node.size(); ++i) node.set_prior(i, mixed[static_cast<size_t>(i)]);
    // Without noise, this search may refine the priors of the root.
    if (options_.root_noise.fraction == 0) priors_.clear();
  }
  // Returns true if there is a tree and this object has created it.
  [[nodiscard]] bool has_tree() const {
    return tree_.root() != nullptr && tree_.number() == tree_number_;
  }
  [[nodiscard]] static bool same(const G& a, const G& b) {
    if constexpr (std::equality_comparable<G>) {
      return a == b;
    } else {
      return std::memcmp(&a, &b, sizeof(G)) == 0;  // different padding only loses the old tree
    }
  }

  // ready: workers may begin rollouts. Otherwise the job of the root has none.
  void open(const SearchLimits& limits, bool ready) {
    job_.root = true;
    job_.node = tree_.root();
    if (!ready) {
      job_.start(0);
      return;
    }
    const uint64_t rollouts =
        limits.iterations == 0 ? kUnlimited : std::min(limits.iterations - iterations_, kUnlimited);
    job_.start(static_cast<int64_t>(rollouts));
    next_safety_ = seconds() + kSafetyInterval;
    process_.exchange().announce_root();
    process_.pool().open_root();
    host_.wake_workers();
  }

  [[nodiscard]] Pause reason_to_pause(const SearchLimits& limits, const std::atomic<bool>* stop) {
    if (root().outcome() != Outcome::kOpen) return Pause::kEnd;
    if (limits.iterations != 0 && iterations() >= limits.iterations) return Pause::kEnd;
    if (time_is_up(limits, stop) || root().visits() >= kMaxVisits) return Pause::kEnd;
    if (limits.seconds != 0) {
      const double now = seconds();
      if (options_.stop_when_safe && options_.choice.rule == FinalChoice::kMostVisits &&
          now >= next_safety_) {
        next_safety_ = now + kSafetyInterval;
        if (safe(now, limits.seconds)) return Pause::kEnd;
      }
    }
    return tree_.full() ? Pause::kFull : Pause::kNone;
  }
  [[nodiscard]] bool time_is_up(const SearchLimits& limits, const std::atomic<bool>* stop) const {
    return (stop != nullptr && stop->load(std::memory_order_relaxed)) ||
           (limits.seconds != 0 && seconds() >= limits.seconds);
  }
  // Returns true if no other move can reach the visits of the best move in the time that is left.
  // Moves that are proved losses, or pruned, do not count: rollouts choose them no more. Always
  // false in the first quarter of the time.
  [[nodiscard]] bool safe(double now, double limit) {
    uint64_t best = 0;
    uint64_t second = 0;
    for (int i = 0; i < root().size(); ++i) {
      if (rank_of(root().verdict(i)) < rank_of(Verdict::kOpen)) continue;
      const uint64_t visits = root().visits(i);
      if (visits > best) {
        second = std::exchange(best, visits);
      } else {
        second = std::max(second, visits);
      }
    }
    const double rate = static_cast<double>(iterations()) / now;
    return static_cast<double>(best - second) > 1.1 * rate * (limit - now) && now > limit / 4;
  }

  // Waits for the answers to close(), if the caller of run() expects its end at a time. Returns
  // false if a process is late.
  [[nodiscard]] bool await_parts(const SearchLimits& limits, const std::atomic<bool>* stop) {
    const bool stopped = stop != nullptr && stop->load(std::memory_order_relaxed);
    if (limits.seconds == 0 && !stopped) return true;
    const std::chrono::duration<double> left(
        stopped ? 0 : std::clamp(limits.seconds - seconds(), 0.0, 1e6));
    return process_.await_answers(
        deadline_after(kMargin + std::chrono::duration_cast<std::chrono::milliseconds>(left)));
  }
  // Called about every HostOptions::patience of a search. Leaves out the processes that have not
  // answered since the last call, and asks all again. Waits for answers that have arrived while
  // this process itself was stopped.
  void look_for_late() {
    if (!process_.await_answers(deadline_after(kMargin))) process_.leave_out_late();
    process_.begin_command(CommandKind::kInform, options_);
  }

  // Lets the workers of all processes cancel the rollouts that are not begun. Does not wait for
  // them.
  void close() {
    process_.pool().close_root();
    process_.begin_command(CommandKind::kStop, options_);
  }
  // Ends all rollouts in all processes and waits until no message of the search is in flight. The
  // copies of nodes remain, until kDropCopies. Returns the number of completed rollouts. Requires
  // that close() has run. Static: the Search may have been destroyed (Host::end_later()).
  static uint64_t end_rollouts(Host& host, SearchProcess<G>& process, Job<G>& job,
                               const SearchOptions& options) {
    process.complete_command();
    // This function ends the unstarted rollouts and the one pending operation that start() adds.
    // Workers may still put back rollouts that they had taken: then it ends these, too.
    if (!job.end_pending(job.take_all() + 1)) {
      while (!host.work_patiently([&] { return job.end_pending(job.take_all()); })) {
        process.command(CommandKind::kInform, options);
      }
    }
    const uint64_t completed = job.completed();
    if (host.size() > 1) {
      quiesce(host, process, options);
      process.command(CommandKind::kSendLastCounts, options);
      quiesce(host, process, options);
    }
    job.start(0);  // resets completed()
    static_cast<void>(job.end_pending(1));
    return completed;
  }
  // Returns the result after close(), before all processes have ended their parts.
  [[nodiscard]] Result report_without_late() {
    Result result = report();
    for (const Rank rank : process_.late()) result.late.push_back(rank);
    for (const CommandAnswer& answer : process_.answers()) {
      result.processes.push_back(answer.statistics);
    }
    host_.end_later([&host = host_, &process = process_, &job = job_, options = options_] {
      static_cast<void>(end_rollouts(host, process, job, options));
      process.command(CommandKind::kDropCopies, options);
      if (host.living() < host.size()) quiesce(host, process, options);
    });
    return result;
  }

  // Frees cold subtrees in all processes, in small steps, until each process has freed enough or
  // the condition holds.
  void collect(const std::function<bool()>& finished) {
    bool more = true;
    while (more && !finished()) {
      more = false;
      for (const CommandAnswer& answer : process_.command(CommandKind::kCollect, options_)) {
        more |= answer.collecting;
      }
    }
    process_.command(CommandKind::kCollected, options_);
    quiesce(host_, process_, options_);
    process_.command(CommandKind::kResume, options_);
  }
  static void quiesce(Host& host, SearchProcess<G>& process, const SearchOptions& options) {
    if (host.size() > 1) process.quiesce(options);
  }

  [[nodiscard]] Result report() {
    const Node<G>& node = root();
    Result result;
    result.player = node.player();
    result.iterations = iterations();
    result.seconds = seconds();
    result.outcome = node.outcome();
    for (const int i : ordered_moves(node, options_.choice)) {
      MoveResult<Move> move;
      move.move = node.move(i);
      move.visits = node.visits(i);
      move.verdict = node.verdict(i);
      move.prior = node.prior(i);
      if (move.verdict == Verdict::kWins || move.verdict == Verdict::kLoses) {
        move.value = move.verdict == Verdict::kWins ? 1 : 0;
      } else if (move.verdict == Verdict::kDraws) {
        move.value = 0.5;
      } else if (move.visits != 0) {
        move.value = std::clamp(node.value(i) / static_cast<double>(move.visits), 0.0, 1.0);
      }
      move.line = line(node, i);
      result.moves.push_back(std::move(move));
    }
    return result;
  }
  // Returns the child of a node, or its copy, or nullptr if this process has neither.
  [[nodiscard]] const Node<G>* known_child(const Node<G>& node, int move) {
    const auto child = node.child(move);
    return child.is_local()    ? child.local()
           : child.is_remote() ? process_.exchange().copied(child.remote())
                               : nullptr;
  }
  // Returns the moves that the search expects, up to a chance position.
  [[nodiscard]] std::vector<Move> line(const Node<G>& from, int move) {
    std::vector<Move> line{from.move(move)};
    const Node<G>* at = known_child(from, move);
    while (at != nullptr && at->size() != 0 && !at->is_chance() && line.size() < 64) {
      const Node<G>& node = *at;
      int best = 0;
      for (int i = 1; i < node.size(); ++i) {
        const auto key = [&](int at) {
          return std::pair(node.verdict(at) == Verdict::kWins, node.visits(at));
        };
        if (key(i) > key(best)) best = i;
      }
      if (node.visits(best) == 0) break;
      line.push_back(node.move(best));
      at = known_child(node, best);
    }
    return line;
  }

  Host& host_;
  SearchProcess<G>& process_;
  LocalTree<G>& tree_;
  Job<G>& job_;  // of the root
  SearchOptions options_;
  // The position of the root of the tree with this number. Another Search of the host may have
  // created a newer tree.
  std::optional<G> root_;
  uint64_t tree_number_ = 0;
  std::vector<float> priors_;  // of the root, without noise; empty if the root has no noise
  Clock::time_point start_;
  uint64_t iterations_ = 0;  // completed rollouts of this search before the last end_rollouts()
  double next_safety_ = 0;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_SEARCH_H_
