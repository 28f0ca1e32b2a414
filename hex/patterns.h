// What a position decides by itself: cells that cannot matter, cells that belong to one side
// already, bridges, and the region in which a side has to answer.
//
//   FillIn<2> fill = fill_in(board);              // play as if these cells were set
//   MustPlay<2> must = must_play(board, color);   // must.lost, or play in must.cells
//   Bits<2> weak = dominated(board, color);       // moves that another move is at least as good as
//
// All of it is sound: a side that wins the position wins it with these cells filled in and these
// moves left out. It is not complete: only neighbourhoods and chains of bridges are looked at.
// (Dead and captured cells: Björnsson, Hayward, Johanson, van Rijswijck, "Dead cell analysis in Hex
// and the Shannon game", 2006. Must-play regions: Hayward et al., "Solving 7x7 Hex: virtual
// connections and game-state reduction", 2003.) For boards of 1, 2, 4 and 10 words. Thread-safe.
#ifndef CARIAMA_HEX_PATTERNS_H_
#define CARIAMA_HEX_PATTERNS_H_

#include <vector>

#include "hex/board.h"

namespace cariama::hex {

// Empty cells whose colour is settled. Dead: no way to fill the rest lets the cell matter.
// Captured: whatever the opponent plays there, a reply makes his stone dead, so the side owns them
// now. The three sets are disjoint.
template <int kWords>
struct FillIn {
  Bits<kWords> dead;
  Bits<kWords> captured[2];  // by Color
  [[nodiscard]] Bits<kWords> all() const { return dead | captured[0] | captured[1]; }
};
// Deduces to the end: a cell filled in can decide further ones. About 2 µs on 11x11.
template <int kWords>
[[nodiscard]] FillIn<kWords> fill_in(const BasicBoard<kWords>& board);
// The position with them set: dead cells as black stones. The side to move stays.
template <int kWords>
[[nodiscard]] BasicBoard<kWords> filled(const BasicBoard<kWords>& board,
                                        const FillIn<kWords>& fill);

// Moves of `color` that some other move, which is not in the set, is at least as good as: the
// opponent's answer there would kill the stone. Of two such moves that kill each other one stays.
// `answers`, if given, receives those other moves. Meant for a position that was filled in.
template <int kWords>
[[nodiscard]] Bits<kWords> dominated(const BasicBoard<kWords>& board, Color color,
                                     Bits<kWords>* answers = nullptr);

// Two stones of one side, or a stone and an own edge, that have two empty cells in common: if the
// opponent takes one of these, the other one joins them.
struct Bridge {
  Move from;
  Move to;          // kNoMove: the edge
  Move carrier[2];  // the empty cells
};
template <int kWords>
[[nodiscard]] std::vector<Bridge> bridges(const BasicBoard<kWords>& board, Color color);

// Whether the side is connected from edge to edge even if the opponent moves next: by stones and
// bridges whose cells are all different. carrier: these cells.
template <int kWords>
struct Connection {
  bool connected = false;
  Bits<kWords> carrier;
};
template <int kWords>
[[nodiscard]] Connection<kWords> connection(const BasicBoard<kWords>& board, Color color);

// The move after which `color` is connected in that way, and the cells needed for it, the move
// included; kNoMove if there is none. About 20 µs on 11x11.
template <int kWords>
struct WinningMove {
  Move move = kNoMove;
  Bits<kWords> carrier;
};
template <int kWords>
[[nodiscard]] WinningMove<kWords> winning_move(const BasicBoard<kWords>& board, Color color);

// Where `color` has to move, if it is to move: every other move lets the opponent connect. lost: no
// move helps. carrier: the opponent's cells that show it. About 20 µs on 11x11.
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
