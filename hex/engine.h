// Engine: the interface of a search for GTP, analysis and matches.
#ifndef CARIAMA_HEX_ENGINE_H_
#define CARIAMA_HEX_ENGINE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hex/board.h"
#include "mcts/options.h"

namespace cariama::hex {

// If no limit is set, the engine decides when a search ends.
using mcts::SearchLimits;

// Returns the limits of a part of a search that begins when `seconds` have passed. At least 1 ms of
// a time limit remains.
[[nodiscard]] inline SearchLimits limits_after(SearchLimits limits, double seconds) {
  if (limits.seconds > 0) limits.seconds = std::max(limits.seconds - seconds, 0.001);
  return limits;
}

// The search result for one move, from the view of the side that makes the move.
struct MoveReport {
  Move move = kNoMove;
  uint64_t visits = 0;
  double win_rate = 0.5;           // 0 .. 1
  double prior = 0;                // 0 .. 1; 0 if the engine has no priors
  std::optional<bool> proven_win;  // true: a proved win, false: a proved loss, nullopt: not proved
  std::vector<Move> line;          // principal variation; begins with this move
};

struct SearchReport {
  Color color = Color::kBlack;  // the side to move
  uint64_t iterations = 0;
  double seconds = 0;             // since the call of search(), with the time of a solver
  std::vector<MoveReport> moves;  // the best move first
  // The ranks of the processes that had not ended their parts of the search when it returned: the
  // report lacks their last iterations.
  std::vector<uint32_t> late{};
};

class Engine {
 public:
  virtual ~Engine() = default;

  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string version() const = 0;

  // Searches for the best move of the side to move. Blocks. Requires: the game has not ended.
  //
  // stop: another thread may set it at any time, also before the call. The search then ends within
  // 50 ms. progress: if not null, called about every `interval` seconds, by the calling thread or
  // another one. The calls never overlap, and none happens after search() has returned.
  //
  // Returns at least one move, also for a lost position. All moves are legal; the first one is the
  // best. kSwapPieces may be among them.
  [[nodiscard]] virtual SearchReport search(
      const Board& board, const SearchLimits& limits, const std::atomic<bool>& stop,
      const std::function<void(const SearchReport&)>& progress, double interval) = 0;

  // Drops the results of earlier searches.
  virtual void clear() {}
  // Sets the seed of the random numbers of later searches.
  virtual void set_seed(uint64_t seed) = 0;
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_ENGINE_H_
