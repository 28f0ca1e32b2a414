// What plays: the interface between a search and those who ask it (GTP, analysis, matches).
#ifndef CARIAMA_HEX_ENGINE_H_
#define CARIAMA_HEX_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hex/board.h"

namespace cariama::hex {

// The search ends at the first of these. With none, it ends when the engine sees no use in going
// on.
struct SearchLimits {
  double seconds = 0;       // 0: no limit
  uint64_t iterations = 0;  // 0: no limit
};

// What a search knows of one move, as seen by the side that would play it.
struct MoveReport {
  Move move = kNoMove;
  uint64_t visits = 0;
  double win_rate = 0.5;           // 0 .. 1
  double prior = 0;                // 0 .. 1, 0 if the engine has none
  std::optional<bool> proven_win;  // true: wins, false: loses, with certainty
  std::vector<Move> line;          // what it expects to be played, this move first
};

struct SearchReport {
  Color color = Color::kBlack;  // the side to move
  uint64_t iterations = 0;
  double seconds = 0;
  std::vector<MoveReport> moves;  // the best one first
};

class Engine {
 public:
  virtual ~Engine() = default;

  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string version() const = 0;

  // Thinks about the position for its side to move. Blocks. Precondition: the game is not over.
  //
  // limits: when to end. stop: true ends it within 50 ms, true from the start too; it is set from
  // another thread. progress: called about every `interval` seconds, if not null, in this thread or
  // in another one, never in two at a time, and not after search() has returned.
  //
  // Returns at least one move. All of them are legal, the first is the one to play: kSwapPieces may
  // be among them. The answer to a lost position is a legal move too.
  [[nodiscard]] virtual SearchReport search(
      const Board& board, const SearchLimits& limits, const std::atomic<bool>& stop,
      const std::function<void(const SearchReport&)>& progress, double interval) = 0;

  // Forgets what earlier searches found.
  virtual void clear() {}
  // The random numbers of the searches to come.
  virtual void set_seed(uint64_t seed) = 0;
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_ENGINE_H_
