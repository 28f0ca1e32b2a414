#include "hex/opening.h"

#include <algorithm>

namespace cariama::hex {

Move fair_opening(const Board& board) {
  const int column = board.cols() >= 9 && board.rows() >= 9 ? 2 : 0;
  return static_cast<Move>(board.cols() + column);
}

double swap_proof_seconds(double move_seconds) {
  return move_seconds > 0 ? std::min(move_seconds / 4, kMaxSwapProof) : kMaxSwapProof;
}

std::optional<bool> prove_swap(const Board& board, Solver& solver, const SolveLimits& limits) {
  if (board.cells() > kSolvedCells) return std::nullopt;
  const Solution solution = solver.solve(board, limits);
  if (!solution.winner) return std::nullopt;
  return solution.move == kSwapPieces;
}

bool should_swap(std::optional<bool> proof, double win_rate) {
  return proof.value_or(win_rate < 0.5);
}

}  // namespace cariama::hex
