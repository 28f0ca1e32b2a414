// Games with an evaluator whose solution is known: eight plies of four moves each, whose results
// are scores that prove nothing. The first move decides a part of the score, so that the values of
// the first moves differ. Every position has one order of moves. solve() reads the value
// with perfect play from a table that exhaustive search has filled.
#ifndef CARIAMA_TESTS_MCTS_TESTING_EVALUATED_GAME_H_
#define CARIAMA_TESTS_MCTS_TESTING_EVALUATED_GAME_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "mcts/evaluator.h"
#include "mcts/game.h"
#include "mcts/random.h"

namespace cariama::mcts::testing {

class ScoreTree {
 public:
  using Move = uint8_t;
  static constexpr int kMaxMoves = 4;
  static constexpr uint32_t kPlies = 8;

  [[nodiscard]] int to_move() const { return static_cast<int>(played_ & 1); }
  int moves(std::span<Move> out) const {
    for (int i = 0; i < kMaxMoves; ++i) out[i] = static_cast<Move>(i);
    return kMaxMoves;
  }
  void play(Move move) {
    path_ = kMaxMoves * path_ + move;
    ++played_;
  }
  [[nodiscard]] std::optional<float> result() const {
    if (played_ < kPlies) return std::nullopt;
    return solve();
  }
  [[nodiscard]] uint64_t key() const { return Random::mix(uint64_t{played_} << 32 | path_); }
  [[nodiscard]] uint32_t played() const { return played_; }

  // Returns the value with perfect play, for player 0.
  [[nodiscard]] float solve() const {
    static const std::vector<std::vector<float>> kValues = values();
    return kValues[played_][path_];
  }
  [[nodiscard]] ScoreTree after(Move move) const {
    ScoreTree next = *this;
    next.play(move);
    return next;
  }
  // Returns a prior that depends only on the position and the move: high for a move whose value is
  // that of the position.
  [[nodiscard]] float prior(Move move) const {
    return after(move).solve() == solve() ? 0.6F : 0.1F;
  }

  friend bool operator==(const ScoreTree&, const ScoreTree&) = default;

 private:
  static std::vector<std::vector<float>> values() {
    std::vector<std::vector<float>> values(kPlies + 1);
    values[kPlies].resize(size_t{1} << 2 * kPlies);
    for (size_t i = 0; i < values[kPlies].size(); ++i) {
      const auto first = static_cast<float>((i >> (2 * kPlies - 2)) ^ 2);
      values[kPlies][i] =
          0.05F + 0.1F * first + 0.6F * static_cast<float>(Random::mix(i) % 1000) / 1000;
    }
    for (uint32_t ply = kPlies; ply-- > 0;) {
      for (size_t i = 0; i < size_t{1} << 2 * ply; ++i) {
        const std::span below = std::span(values[ply + 1]).subspan(kMaxMoves * i, kMaxMoves);
        values[ply].push_back(ply % 2 == 0 ? std::ranges::max(below) : std::ranges::min(below));
      }
    }
    return values;
  }

  uint32_t path_ = 0;
  uint32_t played_ = 0;
};

// Writes the value and the priors of the solution.
template <typename G>
void evaluate_exactly(std::span<Evaluation<G>> batch) {
  for (Evaluation<G>& one : batch) {
    one.value = one.position.solve();
    for (size_t i = 0; i < one.moves.size(); ++i) one.priors[i] = one.position.prior(one.moves[i]);
  }
}

class TestEvaluator;
struct EvaluatedGame : ScoreTree {
  using Evaluator = TestEvaluator;
};
// Calls a function. The default one evaluates exactly.
class TestEvaluator {
 public:
  using Function = std::function<void(std::span<Evaluation<EvaluatedGame>>)>;

  explicit TestEvaluator(Function function = evaluate_exactly<EvaluatedGame>)
      : function_(std::move(function)) {}
  void evaluate(std::span<Evaluation<EvaluatedGame>> batch) { function_(batch); }

 private:
  Function function_;
};

class TestServer;
struct ServedGame : ScoreTree {
  using Evaluator = TestServer;
};
// An asynchronous evaluator with a thread of its own. It answers when two batches are in flight or
// the worker waits, the last batch first. It answers at most `answers` batches.
class TestServer {
 public:
  struct Record {
    std::atomic<uint64_t> most_in_flight{0};
    std::atomic<uint64_t> positions{0};
  };

  explicit TestServer(uint64_t answers = ~uint64_t{0}, Record* record = nullptr)
      : left_(answers), record_(record), thread_([this] { serve(); }) {}
  ~TestServer() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void submit(uint64_t token, std::span<Evaluation<ServedGame>> batch) {
    {
      const std::lock_guard lock(mutex_);
      submitted_.emplace_back(token, batch);
      ++in_flight_;
      if (record_ != nullptr) {
        record_->positions += batch.size();
        record_->most_in_flight = std::max<uint64_t>(record_->most_in_flight, in_flight_);
      }
    }
    changed_.notify_all();
  }
  std::optional<uint64_t> poll() {
    const std::lock_guard lock(mutex_);
    if (finished_.empty()) return std::nullopt;
    const uint64_t token = finished_.front();
    finished_.pop_front();
    --in_flight_;
    return token;
  }
  void wait(std::chrono::microseconds most) {
    std::unique_lock lock(mutex_);
    waited_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, most, [&] { return !finished_.empty(); });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] {
        const size_t least = waited_ ? 1 : 2;
        return ending_ || (left_ > 0 && submitted_.size() >= least);
      });
      if (ending_) return;
      const auto [token, batch] = submitted_.back();  // the last one first
      submitted_.pop_back();
      waited_ = false;
      --left_;
      lock.unlock();
      evaluate_exactly(batch);
      lock.lock();
      finished_.push_back(token);
      changed_.notify_all();
    }
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::pair<uint64_t, std::span<Evaluation<ServedGame>>>> submitted_;
  std::deque<uint64_t> finished_;
  uint64_t in_flight_ = 0;
  uint64_t left_;
  Record* record_;
  bool waited_ = false;
  bool ending_ = false;
  std::thread thread_;  // last: uses the members above
};

}  // namespace cariama::mcts::testing

#endif  // CARIAMA_TESTS_MCTS_TESTING_EVALUATED_GAME_H_
