#include "hex/opening.h"

namespace cariama::hex {

Move fair_opening(const Board& board) {
  const int column = board.cols() >= 9 && board.rows() >= 9 ? 2 : 0;
  return static_cast<Move>(board.cols() + column);
}

bool should_swap(const Board& board, double win_rate, Solver& solver) {
  if (board.cells() <= kSolvedCells) {
    const Solution solution = solver.solve(board, {.seconds = 10});
    if (solution.winner) return solution.move == kSwapPieces;
  }
  return win_rate < 0.5;
}

}  // namespace cariama::hex
