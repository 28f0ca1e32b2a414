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
// Several Search objects may exist in a host, and search one after the other. A host has one tree
// for each type of game: run() and start() of a Search free the tree that another one has created.
//
// Cost with P processes of T threads each, in messages (docs/mcts.md has the same table):
//   - 2 per batch of visits / batch_divisor rollouts (at most max_batch) that a process requests
//     from another one, and per share of the root's rollouts (at most 4096 rollouts).
//   - 2 per node that is created in another process than its parent's or is offered to the owner of
//     its parent, and per exchange of counts between a copied node and its owner (copies.h).
//   - 2 (P - 1) per command of rank 0: requests and answers.
//   - Progress report: one command. Lines of a report or a result: 2 each time that the line of one
//     of the 32 best moves enters another process (engine/lines.h).
//   - 2 per rollout whose playouts another process runs before the tree spreads.
//   - Begin of a search: 6 (P - 1), one command and the copies of the root. One command more if the
//     position is not the root of the tree that exists: 8 (P - 1).
//   - End of a search: at least 7 commands, 14 (P - 1), and one per copy for its last counts.
//   - advance(): at least 4 (P - 1), and one per freed node whose parent is in another process. 2
//     more if the new root is in another process.
// Thread i of a process exchanges messages about the tree only with thread i of each other process:
// P - 1 channels in each direction per thread. State that grows with P: 10 bytes per process of the
// job in each process, 200 more in rank 0, and in each thread 20 bytes per process, and 8 bytes and
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
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/doorbell.h"
#include "dtutils/error.h"
#include "mcts/engine/lines.h"
#include "mcts/engine/results.h"
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

  // Changes take effect at the next run() or start(), that of reuse_tree at the next advance().
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
  // searches leave it out. A process that takes no part is reported (report_once(), diagnostics.h):
  // one that the searches leave out, one that has died, and one that has completed no rollout of a
  // search of a second or more.
  //
  // `progress` is called about every `interval` seconds, in the calling thread, with the result so
  // far and the statistics of all processes. It must not call functions of the host or of its
  // searches, except stop(). If it throws, the search ends and run() throws the exception. Also
  // throws std::logic_error if the calling thread may not search now (see start()),
  // std::invalid_argument, with the message of SearchOptions::validate(), if an option has no valid
  // value, and if the position is a chance position; std::bad_alloc if there is no memory for the
  // root; the errors of an evaluator (evaluator.h); an exception of a function of the game in this
  // process; and std::runtime_error if such a function returns or writes a number out of range
  // (game.h). After the last three the host cannot search: destroy it. Requires: the position has
  // no result() and at least one move.
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
    if (const absl::Status idle = host_.begin_search("Search::run()"); !idle.ok()) {
      throw std::logic_error(std::string(idle.message()));
    }
    return ended_by_exception([&] {
      begin(position, {limits, stop, progress, interval});
      static_cast<void>(work(kForever));
      return end();
    });
  }

  // The parts of run(), for a program that has an event loop of its own. Worker 0 of rank 0 works
  // within poll() and finish() only: a loop that rarely calls poll() delays all processes. (The
  // other workers of rank 0 and the other processes work all the time, the latter within serve().)
  //
  //   absl::Status started = search.start(position, {.seconds = 5}, progress, 0.2);
  //   ...                                                           // in each turn of the loop:
  //   absl::StatusOr<bool> ended = search.poll();
  //   if (!ended.ok() || *ended) result = search.finish();
  //
  // Begins a search as run() does. Does not wait for other processes, with one exception: if the
  // last result has named a late process (SearchResult::late), it waits for that process, at most
  // for HostOptions::patience. poll() and finish() call `progress`, in their calling thread.
  // Errors: FAILED_PRECONDITION if a search of this host is running, also one of another Search
  // object; in a thread other than worker 0 of rank 0; in a handler of a call; after Host::end().
  // INVALID_ARGUMENT and RESOURCE_EXHAUSTED where run() throws std::invalid_argument and
  // std::bad_alloc.
  [[nodiscard]] absl::Status start(const G& position, const SearchLimits& limits = {},
                                   const Progress& progress = nullptr, double interval = 0.5) {
    if (absl::Status idle = host_.begin_search("Search::start()"); !idle.ok()) return idle;
    return without_exceptions([&] { begin(position, {limits, nullptr, progress, interval}); });
  }
  // Runs calls and rollouts in the calling thread, for about `most`, and sleeps if there are none;
  // with 0 one slice of some tens of microseconds, without a sleep. Takes longer if a function of
  // the game does, and by at most 500 ms if a process has not answered for HostOptions::patience.
  // A pause to free nodes (SearchOptions::memory_bytes) begins with the end of all rollouts: about
  // as long as finish(). Returns true if the search has ended by its limits, by a proof or by
  // stop(): then call finish(). Errors: FAILED_PRECONDITION if this object has no search, and as
  // for start(); for an exception of `progress`, of the game or of its evaluator INTERNAL, or as
  // for start(). After another error than FAILED_PRECONDITION the search has no result.
  [[nodiscard]] absl::StatusOr<bool> poll(
      std::chrono::microseconds most = std::chrono::milliseconds(1)) {
    if (absl::Status may = check_running("Search::poll()"); !may.ok()) return may;
    bool ended = phase_ == Phase::kEnded;
    absl::Status worked = without_exceptions([&] {
      if (!ended) static_cast<void>(host_.step());
      ended = work(deadline_after(most));
    });
    if (!worked.ok()) return worked;
    return ended;
  }
  // Requests the end of the running search; the next poll() or finish() begins it. No effect if
  // none is running. Thread-safe. Does not block.
  void stop() { stopped_.store(true, std::memory_order_relaxed); }
  // Ends the search, also before its limits, and returns its result. Blocks as run() does after
  // *stop has been set: at most 50 ms, or 500 ms with a late process, if the functions of the game
  // are short; a search that has ended by its iterations waits at most HostOptions::patience
  // instead. SearchResult::seconds is the time from start() on. Errors: those of poll().
  [[nodiscard]] absl::StatusOr<Result> finish() {
    if (absl::Status may = check_running("Search::finish()"); !may.ok()) return may;
    std::optional<Result> result;
    absl::Status ended = without_exceptions([&] {
      if (phase_ != Phase::kEnded) stop();
      static_cast<void>(work(kForever));
      result = end();
    });
    if (!ended.ok()) return ended;
    return *std::move(result);
  }
  // Returns true from start() until finish(), or an error of poll().
  [[nodiscard]] bool running() const { return phase_ != Phase::kNone; }

  // Ends a running search as finish() does. Not within `progress`.
  ~Search() {
    if (running()) static_cast<void>(finish());
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  // Makes a move in the position of the tree. Keeps the subtree of the move as the new tree if
  // there is one and options().reuse_tree is set. Frees all other nodes. Without such a subtree,
  // frees the tree. Does nothing if this object has no tree. Blocks until all processes have
  // answered, and runs calls meanwhile. Throws std::logic_error where start() returns
  // FAILED_PRECONDITION: a search of the host is running, for example.
  void advance(Move move) {
    throw_unless_idle("Search::advance()");
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

  // Frees the tree in all processes, also that of another Search object. Blocks until they have
  // answered. Throws as advance() does.
  void clear() {
    throw_unless_idle("Search::clear()");
    host_.end_last_search();
    begin_clear();
    process_.complete_command();
  }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Pause : uint8_t { kNone, kEnd, kFull };
  // The course of a search. Each phase but kEnded may take many calls of work().
  enum class Phase : uint8_t {
    kNone,        // there is no search
    kBeginning,   // the processes begin
    kEvaluating,  // an evaluator has the root
    kSearching,
    kCollecting,  // the tree is full: all processes free cold nodes, no rollout runs
    kEnded,       // no process begins rollouts any more; end() gives the result
  };
  struct Order {
    SearchLimits limits;
    const std::atomic<bool>* stop = nullptr;
    Progress progress;
    double interval = 0;
  };

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

  // ---- The course of a search

  // Calls a part of the search. An exception ends the search.
  template <typename Part>
  auto ended_by_exception(Part&& part) {
    struct Working {
      bool& flag;
      ~Working() { flag = false; }
    };
    working_ = true;
    const Working working{working_};
    try {
      return part();
    } catch (...) {
      leave();
      throw;
    }
  }
  template <typename Part>
  [[nodiscard]] absl::Status without_exceptions(Part&& part) {
    try {
      ended_by_exception(part);
    } catch (...) {
      return internal::status_of(std::current_exception());
    }
    return absl::OkStatus();
  }
  void leave() {
    phase_ = Phase::kNone;
    order_ = {};
    host_.end_search();
  }
  [[nodiscard]] absl::Status check_running(const char* function) const {
    if (absl::Status caller = host_.check_caller(function); !caller.ok()) return caller;
    if (running() && !working_) return absl::OkStatus();
    return make_error(
        absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
        std::string(function) + (running() ? ": called by a function of its own search"
                                           : ": this object has no running search"),
        running() ? "call it outside of the progress function and of the game"
                  : "call start() first");
  }
  void throw_unless_idle(const char* function) const {
    if (const absl::Status idle = host_.check_idle(function); !idle.ok()) {
      throw std::logic_error(std::string(idle.message()));
    }
  }

  // Requires: Host::begin_search() has succeeded.
  void begin(const G& position, Order order) {
    throw_if_invalid(options_);
    if (internal::is_chance(position)) {
      throw std::invalid_argument(
          "the position of the search is a chance position, in which no player chooses a move: "
          "play the outcome that has occurred, call advance() with it, and search then");
    }
    start_ = Clock::now();
    order_ = std::move(order);
    stopped_.store(false, std::memory_order_relaxed);
    iterations_ = 0;
    late_ = false;
    asked_ = false;
    next_report_ = order_.interval;
    statistics_.assign(host_.size(), {});
    current_ = options_;
    current_.memory_bytes = memory_bytes();
    current_.spread_visits = options_.spread_visits_of(order_.limits.iterations,
                                                       uint64_t{host_.size()} * host_.threads());
    host_.end_last_search();
    prepare(position);
    // The calls of this thread to one other process run in order, so that the process clears the
    // tree before it begins. The search does not wait for the former.
    process_.begin_command(CommandKind::kBegin, current_);
    next_look_ = deadline_after(host_.patience());
    phase_ = Phase::kBeginning;
  }
  // Works until the search has ended, for end() (returns true), or the deadline has passed.
  // Requires: begin() has run.
  [[nodiscard]] bool work(Deadline deadline) {
    while (phase_ != Phase::kEnded) {
      bool more = false;
      switch (phase_) {
        case Phase::kBeginning:
          more = work_until([&] { return process_.late().empty() || time_is_up(); }, deadline);
          if (more) begin_evaluation();
          break;
        case Phase::kEvaluating:
          more =
              work_until([&] { return !begun_ || root().evaluated() || time_is_up(); }, deadline);
          if (more) begin_rollouts();
          break;
        case Phase::kSearching:
          more = search(deadline);
          break;
        case Phase::kCollecting:
          more = collect(deadline);
          break;
        case Phase::kNone:
        case Phase::kEnded:
          break;
      }
      if (!more) return false;
    }
    return true;
  }
  // Works until the condition holds. Returns false if the deadline passes first.
  template <typename Condition>
  [[nodiscard]] bool work_until(const Condition& condition, Deadline deadline) {
    for (;;) {
      if (host_.work_until(condition, std::min(deadline, next_look_))) return true;
      if (Clock::now() >= next_look_) {
        look_for_late();
      } else if (Clock::now() >= deadline) {
        return false;
      }
    }
  }
  // All processes have begun, or there is no time left for a rollout. Games with an Evaluator:
  // evaluates the root, so that its copies have its priors.
  void begin_evaluation() {
    begun_ = process_.late().empty();
    if (begun_) process_.worker(0).evaluate_root(root());
    phase_ = Phase::kEvaluating;
  }
  void begin_rollouts() {
    ready_ = begun_ && root().evaluated();
    if (ready_) {
      set_priors();
    } else {
      static_cast<void>(process_.worker(0).cancel_evaluations());
    }
    open();
  }
  // Phase kSearching. Returns false if the deadline has passed.
  [[nodiscard]] bool search(Deadline deadline) {
    Pause pause = Pause::kNone;
    const auto event = [&] {
      pause = reason_to_pause();
      return pause != Pause::kNone || report_is_due();
    };
    if (!work_until(event, deadline)) return false;
    if (pause == Pause::kNone) {
      give_report();
      return true;
    }
    close();
    phase_ = Phase::kEnded;
    if (pause != Pause::kFull) return true;
    late_ = !await_parts();
    if (late_) return true;
    end_all_rollouts();
    phase_ = Phase::kCollecting;
    return true;
  }
  // Phase kCollecting: frees cold subtrees in all processes, in small steps, until each process has
  // freed enough or the time is up. Returns false if the deadline has passed.
  [[nodiscard]] bool collect(Deadline deadline) {
    bool more = false;
    if (!time_is_up()) {
      for (const CommandAnswer& answer : process_.command(CommandKind::kCollect, current_)) {
        more |= answer.collecting;
      }
    }
    if (more) return Clock::now() < deadline;
    process_.command(CommandKind::kCollected, current_);
    quiesce(host_, process_, current_);
    process_.command(CommandKind::kResume, current_);
    open();
    return true;
  }
  // Requires: work() has returned true.
  Result end() {
    Result result = late_ || !await_parts() ? report_without_late() : complete();
    report_idle_processes(host_, result.processes, seconds(), iterations());
    leave();
    return result;
  }
  // Ends the rollouts of a search that may go on.
  void end_all_rollouts() {
    iterations_ += end_rollouts(host_, process_, job_, current_);
    process_.command(CommandKind::kDropCopies, current_);
  }
  [[nodiscard]] Result complete() {
    iterations_ += end_rollouts(host_, process_, job_, current_);
    process_.lines().follow(root(), current_.choice, {});
    Result result = report();
    process_.command(CommandKind::kDropCopies, current_);
    note_statistics();
    result.processes = statistics_;
    // After a death, kDropCopies frees the nodes that were offered to the dead process, and their
    // subtrees.
    if (host_.living() < host_.size()) quiesce(host_, process_, current_);
    return result;
  }

  // A report is due when the interval has passed. It then waits for the statistics of the other
  // processes and for the lines, at most for Lines::kMargin.
  [[nodiscard]] bool report_is_due() {
    if (!order_.progress) return false;
    if (!asked_) return seconds() >= next_report_;
    return (process_.late().empty() && process_.lines().ended()) || Clock::now() >= answers_due_;
  }
  void give_report() {
    if (!asked_) {
      asked_ = true;
      answers_due_ = deadline_after(Lines<G>::kMargin);
      const std::vector<Rank> late = process_.late();
      process_.lines().begin(root(), current_.choice, late);
      if (late.empty()) ask();  // otherwise it would drop the answers to the last command
      return;
    }
    asked_ = false;
    Result result = report();
    note_statistics();
    result.processes = statistics_;
    report_idle_processes(host_, result.processes, seconds(), iterations());
    try {
      order_.progress(result);
    } catch (...) {
      // Otherwise the workers of all processes would continue, on nodes that a later call frees.
      // (After an exception of work_until() a rollout of this thread never ends, so end_rollouts()
      // would not return.)
      close();
      end_all_rollouts();
      throw;
    }
    next_report_ = seconds() + order_.interval;
  }
  // Records the answers to the last command.
  void note_statistics() { process_.update(statistics_); }

  // Keeps the tree if its root has this position. Otherwise frees the tree and creates a new root.
  void prepare(const G& position) {
    if (!has_tree() || !same(*root_, position)) {
      begin_clear();
      tree_.set_memory_limit(current_.memory_bytes);
      tree_number_ = tree_.create_root(position, current_.seed);
      root_.emplace(position);
    }
  }
  // Frees the tree in this process. The other processes do so before their next command.
  void begin_clear() {
    process_.begin_command(CommandKind::kClear, current_);
    root_.reset();
    priors_.clear();
  }
  // Sets the priors of the root to those of the game, mixed with the noise of this search. The
  // copies of the root, which the other processes request later, contain them.
  void set_priors() {
    if (current_.root_noise.fraction == 0 && priors_.empty()) return;
    Node<G>& node = root();
    if (priors_.empty()) {
      for (int i = 0; i < node.size(); ++i) priors_.push_back(node.prior(i));
    }
    std::vector<float> mixed = priors_;
    Random random(Random::mix(current_.seed) ^ node.key());
    mix_noise(mixed, current_.root_noise, random);
    for (int i = 0; i < node.size(); ++i) node.set_prior(i, mixed[static_cast<size_t>(i)]);
    // Without noise, this search may refine the priors of the root.
    if (current_.root_noise.fraction == 0) priors_.clear();
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

  // Begins the phase kSearching. Lets workers begin rollouts, if all processes have begun and the
  // root is evaluated.
  void open() {
    phase_ = Phase::kSearching;
    job_.root = true;
    job_.node = tree_.root();
    if (!ready_) {
      job_.start(0);
      return;
    }
    const uint64_t limit = order_.limits.iterations;
    const uint64_t rollouts = limit == 0 ? kUnlimited : std::min(limit - iterations_, kUnlimited);
    job_.start(static_cast<int64_t>(rollouts));
    next_safety_ = seconds() + kSafetyInterval;
    tree_.grow_alone();
    process_.exchange().spread_if_due();
    process_.pool().open_root();
    host_.wake_workers();
  }

  [[nodiscard]] Pause reason_to_pause() {
    const SearchLimits& limits = order_.limits;
    if (!ready_ || root().outcome() != Outcome::kOpen) return Pause::kEnd;
    if (limits.iterations != 0 && iterations() >= limits.iterations) return Pause::kEnd;
    if (time_is_up() || root().visits() >= kMaxVisits) return Pause::kEnd;
    if (limits.seconds != 0) {
      const double now = seconds();
      if (current_.stop_when_safe && current_.choice.rule == FinalChoice::kMostVisits &&
          now >= next_safety_) {
        next_safety_ = now + kSafetyInterval;
        if (safe(now, limits.seconds)) return Pause::kEnd;
      }
    }
    return tree_.full() ? Pause::kFull : Pause::kNone;
  }
  [[nodiscard]] bool told_to_stop() const {
    return stopped_.load(std::memory_order_relaxed) ||
           (order_.stop != nullptr && order_.stop->load(std::memory_order_relaxed));
  }
  [[nodiscard]] bool time_is_up() const {
    return told_to_stop() || (order_.limits.seconds != 0 && seconds() >= order_.limits.seconds);
  }
  // Returns true if no other move can reach the visits of the best move in the time that is left.
  // Always false in the first quarter of the time.
  [[nodiscard]] bool safe(double now, double limit) {
    const double rate = static_cast<double>(iterations()) / now;
    return now > limit / 4 && most_visits_are_safe(root(), 1.1 * rate * (limit - now));
  }

  // Waits for the answers to close(), if the program expects the end of the search at a time.
  // Returns false if a process is late.
  [[nodiscard]] bool await_parts() {
    const bool stopped = told_to_stop();
    const double limit = order_.limits.seconds;
    if (limit == 0 && !stopped) return true;
    const std::chrono::duration<double> left(stopped ? 0 : std::clamp(limit - seconds(), 0.0, 1e6));
    return process_.await_answers(
        deadline_after(kMargin + std::chrono::duration_cast<std::chrono::milliseconds>(left)));
  }
  // Called when a command was sent HostOptions::patience ago. Leaves out the processes that have
  // not answered it, and asks all again. Waits for answers that have arrived while this process
  // itself was stopped.
  void look_for_late() {
    if (!process_.await_answers(deadline_after(kMargin))) process_.leave_out_late();
    note_statistics();
    ask();
  }
  // Asks all processes for their statistics.
  void ask() {
    process_.begin_command(CommandKind::kInform, current_);
    next_look_ = deadline_after(host_.patience());
  }

  // Lets the workers of all processes cancel the rollouts that are not begun. Does not wait for
  // them.
  void close() {
    process_.pool().close_root();
    process_.begin_command(CommandKind::kStop, current_);
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
    const std::vector<Rank> late = process_.late();
    process_.lines().follow(root(), current_.choice, late);
    Result result = report();
    result.late.assign(late.begin(), late.end());
    note_statistics();
    result.processes = statistics_;
    host_.end_later([&host = host_, &process = process_, &job = job_, options = current_] {
      static_cast<void>(end_rollouts(host, process, job, options));
      process.command(CommandKind::kDropCopies, options);
      if (host.living() < host.size()) quiesce(host, process, options);
    });
    return result;
  }

  static void quiesce(Host& host, SearchProcess<G>& process, const SearchOptions& options) {
    if (host.size() > 1) process.quiesce(options);
  }

  [[nodiscard]] Result report() {
    Result result =
        result_of(root(), current_.choice, process_.lines(), iterations(), job_.value());
    result.seconds = seconds();
    return result;
  }

  Host& host_;
  SearchProcess<G>& process_;
  LocalTree<G>& tree_;
  Job<G>& job_;  // of the root
  SearchOptions options_;
  SearchOptions current_;  // of the running search
  // The position of the root of the tree with this number. Another Search of the host may have
  // created a newer tree.
  std::optional<G> root_;
  uint64_t tree_number_ = 0;
  std::vector<float> priors_;  // of the root, without noise; empty if the root has no noise
  Phase phase_ = Phase::kNone;
  Order order_;
  std::atomic<bool> stopped_{false};
  bool working_ = false;  // within run(), start(), poll() or finish()
  bool begun_ = false;    // all processes have answered the begin
  bool ready_ = false;    // rollouts may begin
  bool late_ = false;     // a process has not ended its part before a collection
  bool asked_ = false;    // a report waits for statistics and lines, until answers_due_
  Deadline answers_due_;
  Deadline next_look_;  // for processes that have not answered the last command
  double next_report_ = 0;
  std::vector<Statistics> statistics_;  // by rank: the last ones that are known
  Clock::time_point start_;
  uint64_t iterations_ = 0;  // completed rollouts of this search before the last end_rollouts()
  double next_safety_ = 0;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_SEARCH_H_
