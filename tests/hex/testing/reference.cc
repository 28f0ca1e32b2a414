#include "tests/hex/testing/reference.h"

namespace cariama::hex::testing {

Picture picture(const Board& board) {
  Picture result{board.cols(), board.rows(), {}};
  for (int cell = 0; cell < board.cells(); ++cell) {
    const auto color = board.at(static_cast<Move>(cell));
    result.cells += !color ? '.' : *color == Color::kBlack ? 'b' : 'w';
  }
  return result;
}

Picture picture(const uint32_t* black_rows, int cols, int rows) {
  Picture result{cols, rows, std::string(static_cast<size_t>(cols * rows), 'w')};
  for (int row = 0; row < rows; ++row) {
    for (int col = 0; col < cols; ++col) {
      if ((black_rows[row] >> col & 1) != 0) result.cells[row * cols + col] = 'b';
    }
  }
  return result;
}

bool connected(const Picture& picture, char color) {
  const int cols = picture.cols;
  const int rows = picture.rows;
  std::string unseen = picture.cells;
  std::vector<int> stack;
  const auto visit = [&](int col, int row) {
    if (col < 0 || row < 0 || col >= cols || row >= rows) return;
    char& cell = unseen[row * cols + col];
    if (cell != color) return;
    cell = '.';
    stack.push_back(row * cols + col);
  };
  if (color == 'b') {
    for (int col = 0; col < cols; ++col) visit(col, 0);
  } else {
    for (int row = 0; row < rows; ++row) visit(0, row);
  }
  while (!stack.empty()) {
    const int cell = stack.back();
    stack.pop_back();
    const int col = cell % cols;
    const int row = cell / cols;
    if (color == 'b' ? row == rows - 1 : col == cols - 1) return true;
    visit(col + 1, row);
    visit(col - 1, row);
    visit(col, row + 1);
    visit(col, row - 1);
    visit(col + 1, row - 1);
    visit(col - 1, row + 1);
  }
  return false;
}

}  // namespace cariama::hex::testing
