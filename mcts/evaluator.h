// An evaluator: policy and value of positions, computed for batches of positions, for example by a
// neural network. It replaces the playouts and value() of a game. The game names its type:
//
//   class Network;
//   struct MyGame { using Evaluator = Network; ... };        // game.h
//   class Network {
//    public:
//     explicit Network(std::shared_ptr<const Weights> weights);
//     void evaluate(std::span<mcts::Evaluation<MyGame>> batch) {
//       for (auto& one : batch) {
//         one.value = ...;                                   // for player 0, 0 to 1; with kPlayers
//                                                            //   an array
//         for (size_t i = 0; i < one.moves.size(); ++i) one.priors[i] = ...;
//       }
//     }
//   };
//   mcts::provide_evaluator<MyGame>(host, [=] { return std::make_unique<Network>(weights); });
//
// Each worker of each process has an evaluator of its own, so that the evaluator may have scratch
// memory. A rollout that reaches a node for the first time does not wait for its evaluation: the
// worker adds the position to a batch and begins other rollouts. Rollouts that reach a node whose
// evaluation is pending continue when it has ended. The worker evaluates the batch when it is full
// (EvaluationOptions::batch), when as many rollouts wait for nodes, or when the worker has nothing
// else to do, so that the size of the batches and their delay follow the load. The owner of a node
// evaluates it, and the result is stored in the node. A batch that is in flight at the end of a
// search is discarded, so a later search evaluates its nodes again. A position without a node
// (SearchOptions::expand_visits, copies of remote nodes) is evaluated at each visit, so a batch may
// contain it several times.
//
// While a function of the evaluator, or the factory, runs, its worker runs no calls, and other
// processes wait for it. So use the asynchronous form if evaluate() takes long.
//
// For an accelerator or a server process the evaluator has an asynchronous form. It has these
// functions instead of evaluate() (with both forms these are used):
//
//     void submit(uint64_t token, std::span<mcts::Evaluation<MyGame>> batch);
//     std::optional<uint64_t> poll();
//     void wait(std::chrono::microseconds most);             // optional
//
//   submit() starts the evaluation of a batch and returns. poll() returns the token of a batch
//   whose values and priors are written, or nullopt; it does not block. The evaluator may access
//   the batch until poll() returns its token, or until the evaluator's destructor returns, also by
//   other threads, whose writes happen before poll() returns the token. Batches may end in any
//   order. At most EvaluationOptions::in_flight batches are in flight for each worker; a discarded
//   one counts until poll() returns its token. wait() blocks until poll() would return a token, or
//   for the given time of 100 us; it may return earlier. A worker calls it while a batch is in
//   flight and it has nothing else to do. Without wait() it polls, and uses its core fully.
//
// What the evaluator guarantees:
//  - It writes the value, 0 to 1, and all priors: finite numbers of 0 or more. The priors of a node
//    need not add up to 1. It writes nothing else of the batch, and evaluate() keeps no pointer to
//    the batch.
//  - Results depend only on the position, also in other processes. If they differ a little (by
//    rounding, or by the other positions of the batch), the search is not repeatable.
//  - Evaluators of several threads work at the same time. Each is created and used in the thread of
//    its worker. It is destroyed there when another factory replaces it, otherwise with the host,
//    in the thread that destroys the host, when the worker has ended.
//
// Errors are an exception of a function of the evaluator, a value or prior out of range, a batch
// that takes longer than EvaluationOptions::timeout_seconds, and no factory. In rank 0
// Search::run() throws. In another rank Host::serve() throws, and the search continues without this
// process. After an error the host of that process cannot search: destroy it.
//
// The end of a search waits for the evaluate() that is running, but not for batches in flight: it
// ignores their results.
#ifndef CARIAMA_MCTS_EVALUATOR_H_
#define CARIAMA_MCTS_EVALUATOR_H_

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "mcts/game.h"
#include "mcts/host.h"
#include "mcts/values.h"

namespace cariama::mcts {

// A position to evaluate, and the results.
template <typename G>
struct Evaluation {
  // For a node: its state, which expand() may have simplified.
  G position;
  // The moves that need a prior, in no certain order. For a node: all its moves, those of expand()
  // or moves(), also those with a verdict. For the root of a new tree, and for a position without a
  // node: all legal moves.
  std::span<const typename G::Move> moves;
  std::span<float> priors;  // written by the evaluator: of moves[i], in the order of `moves`
  ValueOf<G> value = not_written();  // written by the evaluator: for player 0, or for each player

  [[nodiscard]] static constexpr ValueOf<G> not_written() {
    ValueOf<G> value{};
    for (float& one : internal::numbers_of(value)) one = std::numeric_limits<float>::quiet_NaN();
    return value;
  }
};

// An evaluator that returns when the batch is evaluated.
template <typename E, typename G>
concept SynchronousEvaluator = requires(E& evaluator, std::span<Evaluation<G>> batch) {
  evaluator.evaluate(batch);
};
// An evaluator that works while the search goes on.
template <typename E, typename G>
concept AsynchronousEvaluator = requires(E& evaluator, uint64_t token,
                                         std::span<Evaluation<G>> batch) {
  evaluator.submit(token, batch);
  { evaluator.poll() } -> std::same_as<std::optional<uint64_t>>;
};

// Creates the evaluators of one process.
template <typename G>
class EvaluatorSource final : public LocalInstance {
 public:
  using Evaluator = typename G::Evaluator;
  using Factory = std::function<std::unique_ptr<Evaluator>()>;

  explicit EvaluatorSource(Host&) {}

  // Replaces the factory; see provide_evaluator().
  void set(Factory factory) {
    const std::lock_guard lock(mutex_);
    factory_ = std::move(factory);
    version_.fetch_add(1, std::memory_order_release);
  }
  // Returns the number of set() calls. Thread-safe.
  [[nodiscard]] uint64_t version() const { return version_.load(std::memory_order_acquire); }
  // Thread-safe. Throws std::logic_error if there is no factory and the evaluator has no default
  // constructor.
  [[nodiscard]] std::unique_ptr<Evaluator> make() {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Evaluator> made;
    if (factory_) {
      made = factory_();
    } else if constexpr (std::default_initializable<Evaluator>) {
      made = std::make_unique<Evaluator>();
    }
    if (made == nullptr) {
      throw std::logic_error(
          "this process has no evaluator: call mcts::provide_evaluator() with a factory that "
          "returns one, in every process, before Host::serve() and before the first search");
    }
    return made;
  }

 private:
  std::mutex mutex_;
  Factory factory_;
  std::atomic<uint64_t> version_{0};
};

// Sets the factory of the evaluators of this process. Each worker calls it before its first
// evaluation, in its own thread, one worker at a time. The factory must not call this function.
// Without this call, or with an empty function, the evaluators are default-constructed. Called by
// the thread that created the host, in every process of the job: before serve() in ranks other than
// 0 (ProgramOptions::prepare), and while no search is running in rank 0. So only rank 0 can replace
// the factory later, from the next search on. The other processes of a job keep their factory: with
// several processes a search would mix the results of both, so start a new job instead. Nodes of a
// tree that is reused have the priors and values of the previous evaluators until Search::clear().
template <Game G>
requires HasEvaluator<G>
void provide_evaluator(Host& host,
                       std::function<std::unique_ptr<typename G::Evaluator>()> factory) {
  host.local<EvaluatorSource<G>>().set(std::move(factory));
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_EVALUATOR_H_
