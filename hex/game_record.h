// A game as it is being played: the position, and all moves that led to it, which can be taken
// back.
#ifndef CARIAMA_HEX_GAME_RECORD_H_
#define CARIAMA_HEX_GAME_RECORD_H_

#include <vector>

#include "hex/board.h"

namespace cariama::hex {

struct Step {
  Color color = Color::kBlack;
  Move move = kNoMove;
};

// One thread at a time. 176 bytes a move.
class GameRecord {
 public:
  // Starts from `start`, which may hold stones.
  explicit GameRecord(const Board& start) : boards_{start} {}

  [[nodiscard]] const Board& start() const { return boards_.front(); }
  [[nodiscard]] const Board& board() const { return boards_.back(); }
  [[nodiscard]] const std::vector<Step>& steps() const { return steps_; }

  // Whether `color`, whose turn it need not be, may play `move` now. Only White swaps.
  [[nodiscard]] bool may_play(Color color, Move move) const {
    return board().is_legal(move) && (move != kSwapPieces || color == Color::kWhite);
  }
  // False, and nothing changes, if it may not.
  bool play(Color color, Move move) {
    if (!may_play(color, move)) return false;
    Board next = board();
    next.play(color, move);
    boards_.push_back(next);
    steps_.push_back({color, move});
    return true;
  }
  // Takes the last move back, a swap too. False if there is none.
  bool undo() {
    if (steps_.empty()) return false;
    steps_.pop_back();
    boards_.pop_back();
    return true;
  }

 private:
  std::vector<Board> boards_;  // after 0, 1, ... moves
  std::vector<Step> steps_;
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_GAME_RECORD_H_
