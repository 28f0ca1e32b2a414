// The opening under the swap rule: which first stone to offer, and when to take one.
#ifndef CARIAMA_HEX_OPENING_H_
#define CARIAMA_HEX_OPENING_H_

#include "hex/board.h"
#include "hex/solver.h"

namespace cariama::hex {

// A first move that White will not gladly take: near the acute corner, as players choose it (c2
// from 9x9 on, a2 below). A convention, not a computed value. Precondition: an empty board.
[[nodiscard]] Move fair_opening(const Board& board);

// Up to which size should_swap() asks the solver: a proof takes about 0.1 s there.
inline constexpr int kSolvedCells = 25;

// Whether White should answer with kSwapPieces. Proved by `solver` on boards of up to kSolvedCells;
// else as the search says: `win_rate`, 0 .. 1, is White's after the best reply on the board.
// Swapping leaves the mirrored position with the sides exchanged, so it is worth 1 - win_rate.
// Precondition: board.may_swap().
[[nodiscard]] bool should_swap(const Board& board, double win_rate, Solver& solver);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_OPENING_H_
