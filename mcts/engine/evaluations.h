// Evaluations: the evaluator of one worker (evaluator.h), the positions that wait for it, and the
// rollouts that wait for evaluations of nodes.
//
// It runs no rollout: the worker adds positions, submits batches, and completes the rollouts of
// evaluated batches.
#ifndef CARIAMA_MCTS_ENGINE_EVALUATIONS_H_
#define CARIAMA_MCTS_ENGINE_EVALUATIONS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mcts/engine/job.h"
#include "mcts/engine/node.h"
#include "mcts/evaluator.h"
#include "mcts/options.h"
#include "mcts/values.h"

namespace cariama::mcts {

// A rollout that waits for an evaluation.
template <Game G>
struct PendingRollout {
  Job<G>* job = nullptr;  // nullptr: no rollout waits; the evaluation of the root of the search
  // The node to evaluate. nullptr: the position has no node, and only its value is used.
  Node<G>* node = nullptr;
  std::vector<Step<G>> path;  // from the node of the job to the position
};

// Not thread-safe: only its worker uses it. The primary template is the one of games without an
// evaluator.
template <Game G>
class Evaluations {
 public:
  explicit Evaluations(Host&) {}
};

template <Game G>
requires HasEvaluator<G>
class Evaluations<G> {
 public:
  using Move = typename G::Move;
  using Evaluator = typename G::Evaluator;
  using Pending = PendingRollout<G>;
  static constexpr bool kAsynchronous = AsynchronousEvaluator<Evaluator, G>;
  static_assert(kAsynchronous || SynchronousEvaluator<Evaluator, G>,
                "cariama: the game's Evaluator needs: void evaluate(std::span<Evaluation<G>>), or "
                "void submit(uint64_t token, std::span<Evaluation<G>>) and "
                "std::optional<uint64_t> poll()");
  static constexpr bool kWaits = requires(Evaluator & evaluator, std::chrono::microseconds most) {
    evaluator.wait(most);
  };
  static_assert(
      kWaits || !requires { &Evaluator::wait; },
      "cariama: the wait of the game's Evaluator is not: void "
      "wait(std::chrono::microseconds most)");

  // Positions that are evaluated together.
  struct Batch {
    uint64_t token = 0;
    std::vector<Pending> pending;
    std::vector<Evaluation<G>> positions;  // those of `pending`, in the same order
    std::vector<Move> moves;               // of all positions, one after the other
    std::vector<float> priors;
    std::vector<size_t> ends;  // for each position, the end of its moves in `moves`
    std::chrono::steady_clock::time_point submitted;
    bool cancelled = false;  // its rollouts have ended: only the evaluator still needs it
  };

  explicit Evaluations(Host& host) : source_(host.local<EvaluatorSource<G>>()) {}

  // Sets the options of a search. Requires: no rollout is pending. Thread-safe: the worker may be
  // in has_work() or poll().
  void begin(const EvaluationOptions& options) {
    begun_.store(std::chrono::steady_clock::now(), std::memory_order_relaxed);
    most_.store(options.batch, std::memory_order_relaxed);
    most_in_flight_.store(options.in_flight, std::memory_order_relaxed);
    timeout_seconds_.store(options.timeout_seconds, std::memory_order_relaxed);
  }

  // Returns how many more rollouts the worker may begin. Each takes at most one place: a position
  // of the next batch, or a rollout that waits for a node.
  [[nodiscard]] uint32_t room() const {
    const size_t used = std::max(next_.pending.size(), waiting_.size());
    const size_t most = most_.load(std::memory_order_relaxed);
    return static_cast<uint32_t>(most - std::min(used, most));
  }
  // Returns true if the worker has positions to submit, batches that may have ended, or rollouts
  // that can continue. Called by the worker.
  [[nodiscard]] bool has_work() const {
    return !next_.pending.empty() || live_in_flight() ||
           std::any_of(waiting_.begin(), waiting_.end(),
                       [](const Pending& one) { return !one.node->evaluation_pending(); });
  }
  [[nodiscard]] bool has_pending() const {
    return !next_.pending.empty() || !waiting_.empty() || live_in_flight();
  }

  // Adds a node to the next batch. Requires: the caller has claimed its evaluation.
  void add_node(Pending pending) {
    const Node<G>& node = *pending.node;
    Move moves[G::kMaxMoves];
    for (int i = 0; i < node.size(); ++i) moves[i] = node.move(i);
    add(std::move(pending), node.state(), std::span(moves, static_cast<size_t>(node.size())));
  }
  // Adds a position without a node to the next batch.
  void add_position(Pending pending, const G& position) {
    Move moves[G::kMaxMoves];
    const int count = internal::checked_moves(position, std::span(moves));
    add(std::move(pending), position, std::span(moves, static_cast<size_t>(count)));
  }
  // Adds a rollout that reached a node whose evaluation is pending.
  void add_waiting(Pending pending) { waiting_.push_back(std::move(pending)); }
  // Removes a waiting rollout that can continue, the first one of several, if its next position
  // would fit into the batch. Returns nullopt if there is none.
  [[nodiscard]] std::optional<Pending> take_ready() {
    if (next_.pending.size() >= most_.load(std::memory_order_relaxed)) return std::nullopt;
    const auto ready = std::find_if(waiting_.begin(), waiting_.end(), [](const Pending& one) {
      return !one.node->evaluation_pending();
    });
    if (ready == waiting_.end()) return std::nullopt;
    Pending taken = std::move(*ready);
    waiting_.erase(ready);
    return taken;
  }

  // Submits the next batch, unless it is empty or too many are in flight. Returns the number of its
  // positions. With a synchronous evaluator it blocks until the batch is evaluated. Throws the
  // exceptions of the evaluator.
  uint32_t submit() {
    if (next_.pending.empty()) return 0;
    if (version_ != source_.version() && !live_in_flight()) {
      evaluator_.reset();
      in_flight_.clear();
    }
    const size_t most = kAsynchronous ? most_in_flight_.load(std::memory_order_relaxed) : 1;
    if (in_flight_.size() >= most) return 0;
    if (evaluator_ == nullptr) {
      version_ = source_.version();
      evaluator_ = source_.make();
    }
    auto batch = std::make_unique<Batch>(std::exchange(next_, {}));
    batch->token = ++tokens_;
    batch->priors.assign(batch->moves.size(), std::numeric_limits<float>::quiet_NaN());
    for (size_t i = 0, at = 0; i < batch->positions.size(); at = batch->ends[i++]) {
      const size_t count = batch->ends[i] - at;
      batch->positions[i].moves = std::span(batch->moves).subspan(at, count);
      batch->positions[i].priors = std::span(batch->priors).subspan(at, count);
    }
    batch->submitted = std::chrono::steady_clock::now();
    in_flight_.push_back(std::move(batch));
    Batch& submitted = *in_flight_.back();
    if constexpr (kAsynchronous) {
      evaluator_->submit(submitted.token, std::span(submitted.positions));
    } else {
      evaluator_->evaluate(std::span(submitted.positions));
    }
    return static_cast<uint32_t>(submitted.positions.size());
  }
  // Returns a batch that is evaluated, or nullptr. Its nodes have their priors. Throws
  // std::runtime_error if the evaluator has written no valid results, or has not answered in time.
  [[nodiscard]] std::unique_ptr<Batch> poll() {
    while (!in_flight_.empty()) {
      std::unique_ptr<Batch> batch = take_finished();
      if (batch == nullptr) {
        check_time();
        return nullptr;
      }
      if (batch->cancelled) continue;
      for (const Evaluation<G>& one : batch->positions) check(one);
      for (size_t i = 0; i < batch->pending.size(); ++i) {
        Node<G>* node = batch->pending[i].node;
        if (node == nullptr) continue;
        for (int k = 0; k < node->size(); ++k) {
          node->set_prior(k, batch->positions[i].priors[static_cast<size_t>(k)]);
        }
        node->end_evaluation(true);
      }
      return batch;
    }
    return nullptr;
  }
  // Waits a short time for an asynchronous evaluator that has a batch.
  void wait() {
    if constexpr (kAsynchronous) {
      if (in_flight_.empty()) return;
      if constexpr (kWaits) {
        evaluator_->wait(kWait);
      } else {
        std::this_thread::yield();
      }
    }
  }

  // Removes all rollouts and all positions, and calls end(Pending&) for each rollout. The nodes are
  // not evaluated: a later rollout claims them again.
  template <typename End>
  void cancel(End&& end) {
    const auto end_batch = [&](Batch& batch) {
      for (Pending& one : batch.pending) {
        if (one.node != nullptr) one.node->end_evaluation(false);
        if (one.job != nullptr) end(one);
      }
    };
    for (const auto& batch : in_flight_) {
      if (!std::exchange(batch->cancelled, true)) end_batch(*batch);
    }
    end_batch(next_);
    next_ = {};
    for (Pending& one : std::exchange(waiting_, {})) end(one);
  }

 private:
  // The worker serves the calls of other processes between two waits.
  static constexpr std::chrono::microseconds kWait{100};

  void add(Pending pending, const G& position, std::span<const Move> moves) {
    next_.moves.insert(next_.moves.end(), moves.begin(), moves.end());
    next_.ends.push_back(next_.moves.size());
    next_.positions.push_back({position, {}, {}});
    next_.pending.push_back(std::move(pending));
  }
  [[nodiscard]] bool live_in_flight() const {
    return std::any_of(in_flight_.begin(), in_flight_.end(),
                       [](const auto& batch) { return !batch->cancelled; });
  }
  [[nodiscard]] std::unique_ptr<Batch> take_finished() {
    auto finished = in_flight_.begin();
    if constexpr (kAsynchronous) {
      const std::optional<uint64_t> token = evaluator_->poll();
      if (!token) return nullptr;
      finished = std::find_if(in_flight_.begin(), in_flight_.end(),
                              [&](const auto& batch) { return batch->token == *token; });
      if (finished == in_flight_.end()) {
        throw std::runtime_error("poll() of the evaluator returned the token " +
                                 std::to_string(*token) +
                                 ", which is not in flight: return each token of submit() once");
      }
    }
    std::unique_ptr<Batch> batch = std::move(*finished);
    in_flight_.erase(finished);
    return batch;
  }
  // The time between two searches does not count: no worker polls then.
  void check_time() const {
    const auto now = std::chrono::steady_clock::now();
    const auto begun = begun_.load(std::memory_order_relaxed);
    for (const auto& batch : in_flight_) {
      const std::chrono::duration<double> waited = now - std::max(batch->submitted, begun);
      if (waited.count() < timeout_seconds_.load(std::memory_order_relaxed)) continue;
      throw std::runtime_error("the evaluator has not answered a batch of " +
                               std::to_string(batch->positions.size()) + " positions for " +
                               std::to_string(waited.count()) +
                               " s: check the accelerator or server, or raise "
                               "SearchOptions::evaluation.timeout_seconds");
    }
  }
  static void check(const Evaluation<G>& one) {
    // Conditions that a NaN does not fulfil.
    for (const float value : internal::numbers_of(one.value)) {
      if (value >= 0 && value <= 1) continue;
      throw std::runtime_error("the evaluator returned the value " + std::to_string(value) +
                               ": write Evaluation::value of each position, 0 to 1");
    }
    for (size_t i = 0; i < one.priors.size(); ++i) {
      if (one.priors[i] >= 0 && std::isfinite(one.priors[i])) continue;
      throw std::runtime_error("the evaluator returned the prior " + std::to_string(one.priors[i]) +
                               " for move " + std::to_string(i) + " of " +
                               std::to_string(one.priors.size()) +
                               ": write Evaluation::priors of each move, finite and 0 or more");
    }
  }

  EvaluatorSource<G>& source_;
  std::atomic<uint32_t> most_{1};  // positions in a batch, and rollouts that wait
  std::atomic<uint32_t> most_in_flight_{1};
  std::atomic<double> timeout_seconds_{60};
  std::atomic<std::chrono::steady_clock::time_point> begun_{};  // of the last search
  uint64_t tokens_ = 0;
  uint64_t version_ = 0;  // of the source, at the creation of evaluator_
  Batch next_;
  std::deque<Pending> waiting_;
  std::vector<std::unique_ptr<Batch>> in_flight_;
  std::unique_ptr<Evaluator> evaluator_;  // after the batches, which its destructor may access
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_EVALUATIONS_H_
