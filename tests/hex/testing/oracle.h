// Random positions that are small enough for exhaustive search, and the search.
#ifndef CARIAMA_TESTS_HEX_TESTING_ORACLE_H_
#define CARIAMA_TESTS_HEX_TESTING_ORACLE_H_

#include <map>

#include "hex/board.h"
#include "mcts/random.h"

namespace cariama::hex::testing {

// Finds the winner with perfect play by exhaustive search.
class Oracle {
 public:
  Color winner(const Board& board) {
    if (board.winner()) return *board.winner();
    const auto known = known_.find(board.key());
    if (known != known_.end()) return known->second;
    Color result = opponent(board.to_move());
    board.empty().for_each([&](int cell) {
      if (result == board.to_move()) return;
      Board next = board;
      next.play(static_cast<Move>(cell));
      result = winner(next);
    });
    return known_[board.key()] = result;
  }
  bool wins(const Board& board, Move move) {
    Board next = board;
    next.play(move);
    return winner(next) == board.to_move();
  }

 private:
  std::map<uint64_t, Color> known_;
};

// Returns a board of 9 to 20 cells without a winner. It has at most max_open empty cells, unless
// a random stone would have ended the game before.
inline Board random_board(mcts::Random& random, int max_open) {
  const int cols = 3 + static_cast<int>(random.below(3));
  const int rows = 3 + static_cast<int>(random.below(2));
  Board board(cols, rows);
  while ((board.empty().count() > max_open || random.below(4) != 0) && board.empty().any()) {
    const Move move = static_cast<Move>(random.below(static_cast<uint32_t>(board.cells())));
    if (!board.is_legal(move)) continue;
    Board next = board;
    next.play(random.below(2) == 0 ? Color::kBlack : Color::kWhite, move);
    if (next.winner()) break;
    board = next;
  }
  board.set_to_move(random.below(2) == 0 ? Color::kBlack : Color::kWhite);
  return board;
}

}  // namespace cariama::hex::testing

#endif  // CARIAMA_TESTS_HEX_TESTING_ORACLE_H_
