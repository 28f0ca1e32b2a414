// GameRecord: the position of a running game and its moves, which can be taken back.
#ifndef CARIAMA_HEX_GAME_RECORD_H_
#define CARIAMA_HEX_GAME_RECORD_H_

#include <vector>

#include "hex/board.h"

namespace cariama::hex {

struct Step {
  Color color = Color::kBlack;
  Move move = kNoMove;
};

// Not thread-safe. Takes about 176 bytes per move.
class GameRecord {
 public:
  // Starts from the position `start`, which may contain stones.
  explicit GameRecord(const Board& start) : boards_{start} {}

  [[nodiscard]] const Board& start() const { return boards_.front(); }
  [[nodiscard]] const Board& board() const { return boards_.back(); }
  [[nodiscard]] const std::vector<Step>& steps() const { return steps_; }

  // Returns true if `color` may play the move now, even if the other side is to move. Only White
  // may swap.
  [[nodiscard]] bool may_play(Color color, Move move) const {
    return board().is_legal(move) && (move != kSwapPieces || color == Color::kWhite);
  }
  // Plays a move. Returns false without an effect if may_play() is false.
  bool play(Color color, Move move) {
    if (!may_play(color, move)) return false;
    Board next = board();
    next.play(color, move);
    boards_.push_back(next);
    steps_.push_back({color, move});
    return true;
  }
  // Takes the last move back, also a swap. Returns false if there is no move.
  bool undo() {
    if (steps_.empty()) return false;
    steps_.pop_back();
    boards_.pop_back();
    return true;
  }

 private:
  std::vector<Board> boards_;  // the positions after 0, 1, ... moves
  std::vector<Step> steps_;
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_GAME_RECORD_H_
