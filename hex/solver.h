// Solver: proves the winner of a position with perfect play. For small boards and late positions.
//
//   Solver solver({.table_bytes = 64 << 20});
//   Solution solution = solver.solve(board, {.seconds = 10});
//   if (solution.winner) ...            // nullopt: a limit was reached first
//
// Depth-first proof-number search (Nagai, "Df-pn algorithm for searching AND/OR trees and its
// applications", 2002): it expands the position that is closest to a proof. The moves of a position
// are ordered by 512 uniform playouts: by how often the side wins when it owns the cell at the end.
// The first half of the moves is searched before the other half. The refutation of a move is stored
// with its carrier, the set of cells that it needs. Only moves in the carrier can break the
// refutation, so each lost move reduces the set of moves that may win. Dead and captured cells are
// filled in, dominated moves are omitted (patterns.h), and virtual connections end the search early
// (connections.h). A transposition table stores the results of positions.
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
  size_t table_bytes = size_t{64} << 20;  // size of the transposition table, at least 1 MiB
};

// The search ends without a result at the first limit that is reached.
struct SolveLimits {
  double seconds = 0;                       // 0: no limit
  uint64_t nodes = 0;                       // 0: no limit
  const std::atomic<bool>* stop = nullptr;  // true ends the search; polled every 1 to 2 ms
};

struct Solution {
  std::optional<Color> winner;  // nullopt: a limit was reached first
  // If the side to move wins: a winning move (may be kSwapPieces). If it loses: a move that
  // resists, if there are empty cells. Without a result: the most promising move, if one was
  // searched. Otherwise kNoMove.
  Move move = kNoMove;
  Bits<10> carrier;  // the empty cells that the proof needs; other cells do not matter
  // Without a result: the moves that are not refuted. If the side to move wins, one of them wins.
  Bits<10> open;
  uint64_t nodes = 0;
};

// Not thread-safe. The table is kept between calls.
class Solver {
 public:
  explicit Solver(const SolverOptions& options = {});
  ~Solver();

  // Solves a position for its side to move. Considers a swap if board.may_swap().
  [[nodiscard]] Solution solve(const Board& board, const SolveLimits& limits = {});

  // Returns all winning moves of the side to move, in ascending order. The limits hold for each
  // move. Returns nullopt if one is reached.
  [[nodiscard]] std::optional<std::vector<Move>> winning_moves(const Board& board,
                                                               const SolveLimits& limits = {});

 private:
  class Search;
  template <int kWords>
  class SizedSearch;

  size_t table_bytes_;
  std::unique_ptr<Search> search_;  // for the number of words of the last board
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_SOLVER_H_
