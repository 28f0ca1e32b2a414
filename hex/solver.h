// Who wins a position with perfect play, proved. For small boards and late positions.
//
//   Solver solver({.table_bytes = 64 << 20});
//   Solution solution = solver.solve(board, {.seconds = 10});
//   if (solution.winner) ...            // else the limit came first
//
// Depth-first search for a winning move (alpha-beta with the two values that Hex has). A refutation
// is remembered with its carrier, the cells that it needs: only moves into it can be better, so
// every lost move narrows the rest. Dead and captured cells are filled in, dominated moves left
// out, chains of bridges end the search early (patterns.h). A transposition table keeps winner and
// carrier. Moves are tried in the order in which uniform playouts, of which a hundred take two
// microseconds, say that owning the cell goes with winning.
#ifndef CARIAMA_HEX_SOLVER_H_
#define CARIAMA_HEX_SOLVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "hex/board.h"

namespace cariama::hex {

struct SolverOptions {
  size_t table_bytes = size_t{64} << 20;  // of the transposition table, at least 1 MiB
};

// The search ends without an answer at the first of these.
struct SolveLimits {
  double seconds = 0;                       // 0: no limit
  uint64_t nodes = 0;                       // 0: no limit
  const std::atomic<bool>* stop = nullptr;  // looked at every few microseconds
};

struct Solution {
  std::optional<Color> winner;  // nullopt: a limit came first
  // A winning move of the side to move, if it wins (may be kSwapPieces); else one that holds out,
  // if there are empty cells; else kNoMove.
  Move move = kNoMove;
  Bits<10> carrier;  // the winner's proof needs these empty cells only
  uint64_t nodes = 0;
};

// One thread at a time. The table is kept between calls.
class Solver {
 public:
  explicit Solver(const SolverOptions& options = {});
  ~Solver();

  // Takes the swap rule into account where it applies.
  [[nodiscard]] Solution solve(const Board& board, const SolveLimits& limits = {});

  // All winning moves of the side to move, ascending; nullopt if a limit came first.
  [[nodiscard]] std::optional<std::vector<Move>> winning_moves(const Board& board,
                                                               const SolveLimits& limits = {});

 private:
  class Search;
  template <int kWords>
  class SizedSearch;

  size_t table_bytes_;
  std::unique_ptr<Search> search_;  // for the width last used
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_SOLVER_H_
