// An independent, plain implementation of who is connected, to judge the fast ones by. It shares no
// code with hex/: colours as text, a stack, coordinates.
#ifndef CARIAMA_TESTS_HEX_TESTING_REFERENCE_H_
#define CARIAMA_TESTS_HEX_TESTING_REFERENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "hex/board.h"

namespace cariama::hex::testing {

// Row by row, 'b', 'w' or '.'.
struct Picture {
  int cols = 0;
  int rows = 0;
  std::string cells;
};

Picture picture(const Board& board);
// Of a full board, from the black cells of each row; everything else is white.
Picture picture(const uint32_t* black_rows, int cols, int rows);

// Whether 'b' joins top and bottom, or 'w' left and right.
bool connected(const Picture& picture, char color);

// How many boards a test looks at: fewer where every access is checked, since there the count is
// not the point.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_UNDEFINED__)
inline constexpr int kBoards = 5'000;
#else
inline constexpr int kBoards = 100'000;
#endif

}  // namespace cariama::hex::testing

#endif  // CARIAMA_TESTS_HEX_TESTING_REFERENCE_H_
