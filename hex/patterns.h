// Patterns: facts about a position that need no search: dead and captured cells, dominated moves,
// bridges, and must-play regions.
//
//   FillIn<2> fill = fill_in(board);              // play as if these cells had stones
//   MustPlay<2> must = must_play(board, color);   // must.lost, or play in must.cells
//   Bits<2> weak = dominated(board, color);       // moves that need not be tried
//
// Sound: with these cells filled in and these moves omitted, the same side wins the position. Not
// complete: only the neighbours of a cell and chains of bridges are examined.
// (Dead and captured cells: Björnsson, Hayward, Johanson, van Rijswijck, "Dead cell analysis in Hex
// and the Shannon game", 2006. Must-play regions: Hayward et al., "Solving 7x7 Hex: virtual
// connections and game-state reduction", 2003.) For boards of 1, 2, 4 and 10 words. Thread-safe.
#ifndef CARIAMA_HEX_PATTERNS_H_
#define CARIAMA_HEX_PATTERNS_H_

#include <vector>

#include "hex/board.h"

namespace cariama::hex {

// Empty cells whose colour is decided. A cell is dead if its colour does not change the winner,
// however the other cells are filled. Cells are captured by a side if it can answer each stone of
// the opponent there by a reply that makes this stone dead: they count as stones of the side. The
// three sets are disjoint.
template <int kWords>
struct FillIn {
  Bits<kWords> dead;
  Bits<kWords> captured[2];  // by Color
  [[nodiscard]] Bits<kWords> all() const { return dead | captured[0] | captured[1]; }
};
// Finds the decided cells. Repeats until there are no further ones, since a filled cell can decide
// others. Takes about 2 µs on 11x11.
template <int kWords>
[[nodiscard]] FillIn<kWords> fill_in(const BasicBoard<kWords>& board);
// Returns the position with stones on these cells; dead cells become black. The side to move stays
// the same.
template <int kWords>
[[nodiscard]] BasicBoard<kWords> filled(const BasicBoard<kWords>& board,
                                        const FillIn<kWords>& fill);

// Returns dominated moves of `color`: moves for which another move, which is not in the set, is at
// least as good. A move is dominated if a stone of the opponent on the other move's cell would make
// the moved stone dead. If two moves dominate each other, one is returned. `answers`, if not null,
// receives the other moves. The position should be filled in before.
template <int kWords>
[[nodiscard]] Bits<kWords> dominated(const BasicBoard<kWords>& board, Color color,
                                     Bits<kWords>* answers = nullptr);

// A bridge: two stones of one side, or a stone and an edge of its side, with two common empty
// neighbours. If the opponent plays on one of these, a stone on the other one connects the two
// ends.
struct Bridge {
  Move from;
  Move to;          // kNoMove: the edge
  Move carrier[2];  // the two empty cells
};
// Returns all bridges of a side.
template <int kWords>
[[nodiscard]] std::vector<Bridge> bridges(const BasicBoard<kWords>& board, Color color);

// A chain of stones and disjoint bridges from edge to edge, which connects the edges even if the
// opponent moves first. carrier: the empty cells of the bridges.
template <int kWords>
struct Connection {
  bool connected = false;
  Bits<kWords> carrier;
};
// Searches for such a chain of `color`.
template <int kWords>
[[nodiscard]] Connection<kWords> connection(const BasicBoard<kWords>& board, Color color);

// Returns the move after which `color` has such a chain with the smallest carrier, or kNoMove.
// carrier: the empty cells needed, including the move. Takes about 20 µs on 11x11.
template <int kWords>
struct WinningMove {
  Move move = kNoMove;
  Bits<kWords> carrier;
};
template <int kWords>
[[nodiscard]] WinningMove<kWords> winning_move(const BasicBoard<kWords>& board, Color color);

// Returns the must-play region of `color`, which is to move: after every move outside of it the
// opponent can make a chain of stones and bridges from edge to edge. lost: every move loses.
// carrier: the cells of the opponent's chains that prove this. Takes about 20 µs on 11x11.
template <int kWords>
struct MustPlay {
  bool lost = false;
  Bits<kWords> cells;
  Bits<kWords> carrier;
};
template <int kWords>
[[nodiscard]] MustPlay<kWords> must_play(const BasicBoard<kWords>& board, Color color);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_PATTERNS_H_
