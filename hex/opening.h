// The opening under the swap rule: the choice of the first stone, and the decision whether to swap.
#ifndef CARIAMA_HEX_OPENING_H_
#define CARIAMA_HEX_OPENING_H_

#include "hex/board.h"
#include "hex/solver.h"

namespace cariama::hex {

// Returns a first move of about equal value for both sides, so that White gains little by a swap:
// c2 on 9x9 and larger boards, a2 on smaller ones. This is a convention of players, not a computed
// value. Requires: an empty board.
[[nodiscard]] Move fair_opening(const Board& board);

// Maximum number of cells with which should_swap() uses the solver. A proof takes about 0.1 s
// there.
inline constexpr int kSolvedCells = 25;

// Returns true if White should answer with kSwapPieces. On boards of up to kSolvedCells cells,
// `solver` proves the answer. On larger ones it follows from win_rate, 0 .. 1: the win rate of
// White's best move on the board. A swap gives the mirrored position with exchanged sides, so
// White's win rate after it is 1 - win_rate. Requires: board.may_swap().
[[nodiscard]] bool should_swap(const Board& board, double win_rate, Solver& solver);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_OPENING_H_
