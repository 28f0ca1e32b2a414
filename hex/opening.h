// The opening under the swap rule: the choice of the first stone, and the decision whether to swap.
#ifndef CARIAMA_HEX_OPENING_H_
#define CARIAMA_HEX_OPENING_H_

#include <optional>

#include "hex/board.h"
#include "hex/solver.h"

namespace cariama::hex {

// Returns a first move of about equal value for both sides, so that White gains little by a swap:
// c2 on 9x9 and larger boards, a2 on smaller ones. This is a convention of players, not a computed
// value. Requires: an empty board.
[[nodiscard]] Move fair_opening(const Board& board);

// Maximum number of cells with which prove_swap() uses the solver. A proof takes about 0.1 s there.
inline constexpr int kSolvedCells = 25;

// Limit of SolveLimits::seconds for a proof, for moves without a shorter limit.
inline constexpr double kMaxSwapProof = 10;

// Returns SolveLimits::seconds for the proof before a move with a limit of `move_seconds` (0:
// none): at most a quarter of it. The solver may take this time twice, for the board and for the
// board after a swap, so at least a half remains for the search.
[[nodiscard]] double swap_proof_seconds(double move_seconds);

// Proves whether White should answer with kSwapPieces. Returns nullopt on boards with more than
// kSolvedCells cells, and if a limit was reached first. Requires: board.may_swap().
[[nodiscard]] std::optional<bool> prove_swap(const Board& board, Solver& solver,
                                             const SolveLimits& limits);

// Returns true if White should answer with kSwapPieces: if `proof`, the result of prove_swap(),
// says so, or without a proof if win_rate, 0 .. 1, is below 0.5. This is the win rate of White's
// best move on the board. A swap gives the mirrored position with exchanged sides, so White's win
// rate after it is 1 - win_rate.
[[nodiscard]] bool should_swap(std::optional<bool> proof, double win_rate);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_OPENING_H_
