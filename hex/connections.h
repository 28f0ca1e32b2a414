// Virtual connections: pairs of points that a side can connect against every play of the opponent.
//
//   Connections<2> own = find_connections(board, board.to_move());
//   if (own.move != kNoMove) ...         // this move wins
//   Connections<2> other = find_connections(board, opponent(board.to_move()));
//   if (other.connected) ...             // lost; otherwise the move must be in other.threatened
//
// H-search (Anshelevich, "A hierarchical approach to computer Hex", 2002). The carrier of
// a connection is the set of empty cells that it needs. A connection holds even if the opponent
// moves first. A semi-connection holds if the side moves first, on its key cell. Two rules derive
// new connections:
//   AND  Two connections with disjoint carriers meet at a point. If the point is a group of stones,
//        their far ends are connected. If it is an empty cell, their far ends are semi-connected,
//        with this cell as the key.
//   OR   Semi-connections between the same two points make a connection if no cell is in the
//        carriers of all of them: one move of the opponent cannot break them all.
// For each pair of points only the few smallest connections are stored. So the search is sound, but
// not complete: it does not find all connections.
//
// Instantiated for boards of 1, 2, 4 and 10 words. Thread-safe. Each calling thread keeps up to
// about 20 MB of memory per number of words.
#ifndef CARIAMA_HEX_CONNECTIONS_H_
#define CARIAMA_HEX_CONNECTIONS_H_

#include "hex/board.h"

namespace cariama::hex {

// The connections between the two edges of a side.
template <int kWords>
struct Connections {
  using Set = Bits<kWords>;
  bool connected = false;  // the edges are connected, even if the opponent moves first
  Set carrier;             // if connected: the empty cells that the connection needs
  Move move = kNoMove;     // after this move of the side the edges are connected; kNoMove: unknown
  Set move_carrier;        // the empty cells that this needs, the move included
  // The intersection of the carriers of all known semi-connections of the edges; all empty cells if
  // none is known; empty if connected. If the opponent is to move, it has to play in this set.
  Set threatened;
  // The union of the carriers that were used to compute `threatened`; `carrier` if connected.
  Set threats;
};

// The pairs of points between which connections are searched.
enum class Reach : uint8_t {
  // At least one of the points is a group of stones or an edge. Between two empty cells, only
  // adjacency and bridges are used. 4 µs on an empty 7x7 board, about 50 µs in the middle of
  // a game on 11x11.
  kStones,
  // Pairs of groups, and pairs of empty cells. Finds many more connections than kStones and takes
  // about a hundred times as long. With more than 200 points (13x13) it is the same as kStones.
  kCells,
};

// Finds connections of the two edges of `color`. effort: maximum number of connections from which
// new ones are derived.
template <int kWords>
[[nodiscard]] Connections<kWords> find_connections(const BasicBoard<kWords>& board, Color color,
                                                   Reach reach = Reach::kStones, int effort = 2000);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_CONNECTIONS_H_
