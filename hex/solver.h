// Who wins a position with perfect play, proved. For small boards and late positions.
//
//   Solver solver({.table_bytes = 64 << 20});
//   Solution solution = solver.solve(board, {.seconds = 10});
//   if (solution.winner) ...            // else the limit came first
//
// Depth-first proof-number search (Nagai, "Df-pn algorithm for searching AND/OR trees and its
// applications", 2002): it works where least is missing to a proof. Of a position's moves half are
// looked at before the others, in the order in which 512 uniform playouts say that owning the cell
// goes with winning. A refutation is remembered with its carrier, the cells that it needs: only
// moves into it can be better, so every lost move narrows the rest. Dead and captured cells are
// filled in, dominated moves left out (patterns.h), virtual connections end the search early
// (connections.h). A transposition table keeps what is known of positions.
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
  const std::atomic<bool>* stop = nullptr;  // looked at every millisecond or two
};

struct Solution {
  std::optional<Color> winner;  // nullopt: a limit came first
  // A winning move of the side to move, if it wins (may be kSwapPieces). If it loses, one that
  // holds out, if there are empty cells. Without an answer, the one that looked best, if one was
  // looked at. Else kNoMove.
  Move move = kNoMove;
  Bits<10> carrier;  // the winner's proof needs these empty cells only
  // Without an answer: if any move wins, one of these does.
  Bits<10> open;
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
