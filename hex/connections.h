// Virtual connections: what a side can connect whatever the opponent does.
//
//   Connections<2> own = find_connections(board, board.to_move());
//   if (own.move != kNoMove) ...         // plays it and wins
//   Connections<2> other = find_connections(board, opponent(board.to_move()));
//   if (other.connected) ...             // lost; else the move has to be in other.threatened
//
// H-search (Anshelevich, "A hierarchical approach to computer Hex", 2002) with two rules. AND: what
// is connected with a stone by cells of its own is connected through it; through an empty cell, if
// the side plays there first: a semi-connection, with that cell as key. OR: semi-connections that
// have no cell in common to all of them make a connection, since the opponent can spoil only
// some. For each pair of points a few are kept, the smallest ones. So all that is found is true,
// and by far not all that is true is found.
//
// For boards of 1, 2, 4 and 10 words. Thread-safe. Each thread that calls it keeps up to some 20 MB
// for each of these.
#ifndef CARIAMA_HEX_CONNECTIONS_H_
#define CARIAMA_HEX_CONNECTIONS_H_

#include "hex/board.h"

namespace cariama::hex {

// About a side's two edges.
template <int kWords>
struct Connections {
  using Set = Bits<kWords>;
  bool connected = false;  // even if the opponent is to move
  Set carrier;             // then: the empty cells that it takes
  Move move = kNoMove;     // if the side is to move, it is connected after this; kNoMove: unknown
  Set move_carrier;        // the empty cells that it takes, the move included
  // The cells that all known ways to connect by one move have in common: all empty cells, if there
  // is none. The opponent has to play there now.
  Set threatened;
  Set threats;  // the cells of those ways, as far as they narrow `threatened`
};

// Between which points connections are looked for.
enum class Reach : uint8_t {
  // A group of stones or an edge, and another one or an empty cell; between two empty cells only
  // touching ones and bridges are known. 4 µs on an empty 7x7, some 50 µs in the middle of 11x11.
  kStones,
  // Also two empty cells: finds much more, for a hundred times as much. Above 200 points (13x13)
  // the same as kStones.
  kCells,
};

// effort: how many connections are followed at most.
template <int kWords>
[[nodiscard]] Connections<kWords> find_connections(const BasicBoard<kWords>& board, Color color,
                                                   Reach reach = Reach::kStones, int effort = 2000);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_CONNECTIONS_H_
