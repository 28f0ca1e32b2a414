// Positions by the names of their cells.
#ifndef CARIAMA_TESTS_HEX_TESTING_POSITIONS_H_
#define CARIAMA_TESTS_HEX_TESTING_POSITIONS_H_

#include <initializer_list>
#include <string_view>

#include "hex/board.h"

namespace cariama::hex::testing {

// The move of that name. Requires: the name is valid on the board.
inline Move at(const Board& board, std::string_view text) { return board.parse(text).value(); }

// A board with stones in the named cells, black to move.
inline Board make_board(int cols, int rows, std::initializer_list<std::string_view> black,
                        std::initializer_list<std::string_view> white = {}) {
  Board board(cols, rows);
  Board::Set sets[2];
  for (const auto cell : black) sets[0].set(at(board, cell));
  for (const auto cell : white) sets[1].set(at(board, cell));
  board.set_position(sets[0], sets[1], Color::kBlack);
  return board;
}

}  // namespace cariama::hex::testing

#endif  // CARIAMA_TESTS_HEX_TESTING_POSITIONS_H_
