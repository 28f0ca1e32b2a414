// An independent, plain implementation of the winning condition, with which tests compare the fast
// ones. It shares no algorithm with hex/: it uses colours as text, a stack, and coordinates.
#ifndef CARIAMA_TESTS_HEX_TESTING_REFERENCE_H_
#define CARIAMA_TESTS_HEX_TESTING_REFERENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "hex/board.h"

namespace cariama::hex::testing {

// A position as text: 'b', 'w' or '.' for each cell, row by row.
struct Picture {
  int cols = 0;
  int rows = 0;
  std::string cells;
};

Picture picture(const Board& board);
// Returns the picture of a full board from the black cells of each row. All other cells are white.
Picture picture(const uint32_t* black_rows, int cols, int rows);

// Returns true if a colour is connected: 'b' from top to bottom, 'w' from left to right.
bool connected(const Picture& picture, char color);

// Number of boards in a test. It is smaller in builds with sanitizers, which are slow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__SANITIZE_UNDEFINED__)
inline constexpr int kBoards = 5'000;
#else
inline constexpr int kBoards = 100'000;
#endif

}  // namespace cariama::hex::testing

#endif  // CARIAMA_TESTS_HEX_TESTING_REFERENCE_H_
