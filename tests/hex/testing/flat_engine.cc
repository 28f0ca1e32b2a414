#include "tests/hex/testing/flat_engine.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace cariama::hex::testing {

SearchReport FlatEngine::search(const Board& board, const SearchLimits& limits,
                                const std::atomic<bool>& stop,
                                const std::function<void(const SearchReport&)>& progress,
                                double interval) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  ++searches;
  this->limits = limits;
  struct Tried {
    Move move;
    uint64_t playouts = 0;
    uint64_t wins = 0;
    bool decides = false;
  };
  std::vector<Tried> tried;
  board.empty().for_each([&](int cell) { tried.push_back({static_cast<Move>(cell)}); });
  const Color own = board.to_move();
  uint64_t iterations = 0;
  const auto report = [&] {
    SearchReport result{own, iterations, seconds(), {}};
    std::vector<Tried> sorted = tried;
    const auto rate = [](const Tried& one) {
      return (static_cast<double>(one.wins) + 1) / (static_cast<double>(one.playouts) + 2) +
             (one.decides ? 1 : 0);
    };
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const Tried& a, const Tried& b) { return rate(a) > rate(b); });
    for (const Tried& one : sorted) {
      MoveReport move;
      move.move = one.move;
      move.visits = one.playouts;
      move.win_rate = std::min(1.0, rate(one));
      if (one.decides) move.proven_win = true;
      move.line = {one.move};
      result.moves.push_back(move);
    }
    return result;
  };
  double next_report = interval;
  do {
    for (Tried& one : tried) {
      Board next = board;
      next.play(one.move);
      one.decides = next.winner() == own;
      const UniformResult result = playouts_.run(next, 32);
      one.playouts += 32;
      one.wins +=
          static_cast<uint64_t>(own == Color::kBlack ? result.black_wins : 32 - result.black_wins);
      iterations += 32;
      if (stop.load(std::memory_order_relaxed)) return report();
    }
    if (progress && seconds() >= next_report) {
      progress(report());
      next_report = seconds() + interval;
    }
    if (limits.seconds > 0 && seconds() >= limits.seconds) break;
    if (limits.iterations > 0 && iterations >= limits.iterations) break;
  } while (!stop.load(std::memory_order_relaxed));
  return report();
}

}  // namespace cariama::hex::testing
