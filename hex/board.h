// The rules of Hex: boards of 3x3 to 25x25 cells and rectangles, the swap rule, win by connection.
//
//   Board board(11, 11, SwapRule::kOn);
//   board.play(*board.parse("f6"));          // black, at the centre
//   if (board.may_swap()) board.play(kSwapPieces);
//   if (board.winner()) ...
//
// Black moves first and joins the top row with the bottom row; White joins the left column with the
// right one. The cell of column c and row r (both from 0) is named by a letter for the column and
// r + 1: a1 is the top left corner. It touches (c±1, r), (c, r±1), (c+1, r-1) and (c-1, r+1).
//
// A board is a plain value: trivially copyable, without pointers, with the same bytes in every
// process. Sizes: BasicBoard<2> (up to 128 cells, enough for 11x11) 48 bytes, BasicBoard<4> (up to
// 16x16) 80 bytes, BasicBoard<10> = Board (up to 25x25) 176 bytes. Const functions are thread-safe.
#ifndef CARIAMA_HEX_BOARD_H_
#define CARIAMA_HEX_BOARD_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "hex/bits.h"

namespace cariama::hex {

enum class Color : uint8_t { kBlack = 0, kWhite = 1 };
constexpr Color opponent(Color color) {
  return color == Color::kBlack ? Color::kWhite : Color::kBlack;
}
[[nodiscard]] std::string_view color_name(Color color);  // returns "black" or "white"

inline constexpr int kMinSide = 3;
inline constexpr int kMaxSide = 25;
inline constexpr int kMaxCells = kMaxSide * kMaxSide;
constexpr bool is_board_size(int cols, int rows) {
  return cols >= kMinSide && cols <= kMaxSide && rows >= kMinSide && rows <= kMaxSide;
}

// A cell, as row * cols + column, or kSwapPieces. Every legal move is smaller than kMoveIds, so it
// can be the index of an array with kMoveIds entries.
using Move = uint16_t;
inline constexpr Move kSwapPieces = kMaxCells;
inline constexpr int kMoveIds = kMaxCells + 1;
inline constexpr Move kNoMove = 0xFFFF;

// Tables that depend only on the size of the board. ring[cell] lists the neighbours around a cell:
// entry i + 1 (cyclic) touches entry i.
struct Geometry {
  // Entries of a ring for neighbours beyond the border: the edge that is there. In an obtuse corner
  // one entry is beyond two edges. That entry names either edge. The choice has no effect, because
  // the entries beside it in the ring name one edge each.
  static constexpr uint16_t kBlackEdge = 0xFFFE;
  static constexpr uint16_t kWhiteEdge = 0xFFFF;

  // Returns the cell or edge to which `cell` has a bridge over its ring entries i and i + 1: the
  // other common neighbour of both. Requires: ring[cell][i] is a cell.
  [[nodiscard]] uint16_t across(int cell, int i) const { return ring[ring[cell][i]][(i + 1) % 6]; }

  int cols = 0;
  int rows = 0;
  std::array<std::array<uint16_t, 6>, kMaxCells> ring;
  Bits<10> all, first_column, last_column, first_row, last_row;

  // Returns the object for a size. The first call creates it; it is never freed. Requires:
  // is_board_size(). Thread-safe.
  [[nodiscard]] static const Geometry& of(int cols, int rows);
};

// The swap rule. kOff: no swap. kOn: White may answer the first stone with kSwapPieces, which
// replaces this stone by a white stone mirrored at the long diagonal. Rectangles have no such
// diagonal, so the rule is always off there. On rectangles the side with the shorter distance
// always wins.
enum class SwapRule : uint8_t { kOff = 0, kOn = 1 };

template <int kWords>
class BasicBoard {
 public:
  using Set = Bits<kWords>;

  BasicBoard() : BasicBoard(kMinSide, kMinSide) {}
  // Creates an empty board with Black to move. Requires: is_board_size() and fits().
  BasicBoard(int cols, int rows, SwapRule swap = SwapRule::kOff)
      : cols_(static_cast<uint8_t>(cols)),
        rows_(static_cast<uint8_t>(rows)),
        swap_(cols == rows ? swap : SwapRule::kOff) {}
  // Converts a position from another number of words. Requires: fits() for its size.
  template <int kOther>
  explicit BasicBoard(const BasicBoard<kOther>& other)
      : BasicBoard(other.cols(), other.rows(), other.swap_rule()) {
    set_position(Set(other.stones(Color::kBlack)), Set(other.stones(Color::kWhite)),
                 other.to_move());
    moves_ = static_cast<uint16_t>(other.moves_played());
  }

  static constexpr bool fits(int cols, int rows) { return cols * rows <= kWords * 64; }

  [[nodiscard]] int cols() const { return cols_; }
  [[nodiscard]] int rows() const { return rows_; }
  [[nodiscard]] int cells() const { return cols_ * rows_; }
  [[nodiscard]] Color to_move() const { return to_move_; }
  [[nodiscard]] SwapRule swap_rule() const { return swap_; }
  [[nodiscard]] int moves_played() const { return moves_; }  // includes a swap
  [[nodiscard]] const Geometry& geometry() const { return Geometry::of(cols_, rows_); }

  [[nodiscard]] const Set& stones(Color color) const { return stones_[static_cast<int>(color)]; }
  [[nodiscard]] Set empty() const {
    return Set(geometry().all).without(stones_[0]).without(stones_[1]);
  }
  [[nodiscard]] std::optional<Color> at(Move cell) const {
    if (stones_[0].test(cell)) return Color::kBlack;
    if (stones_[1].test(cell)) return Color::kWhite;
    return std::nullopt;
  }

  // Returns the side that has connected its two edges. Both sides never do; on a full board exactly
  // one side does.
  [[nodiscard]] std::optional<Color> winner() const {
    if (winner_ == 0) return std::nullopt;
    return static_cast<Color>(winner_ - 1);
  }

  // Returns true if kSwapPieces is legal now: the rule is on, and the first black stone is the only
  // stone.
  [[nodiscard]] bool may_swap() const {
    return swap_ == SwapRule::kOn && moves_ == 1 && to_move_ == Color::kWhite && !stones_[1].any();
  }
  [[nodiscard]] bool is_legal(Move move) const {
    if (move == kSwapPieces) return may_swap() && winner_ == 0;
    return move < cells() && winner_ == 0 && !at(move);
  }

  // Plays a move for the side to move. Requires: is_legal(move).
  void play(Move move) { play(to_move_, move); }
  // Plays a move for `color`, even if the other side is to move. Afterwards the opponent of `color`
  // is to move. Requires: is_legal(move), and for kSwapPieces color == kWhite.
  void play(Color color, Move move);

  // Replaces all stones. moves_played() becomes the number of stones. Requires: the sets are
  // disjoint and on the board, and at most one side is connected.
  void set_position(const Set& black, const Set& white, Color to_move);

  void set_to_move(Color color) { to_move_ = color; }

  // Returns the Zobrist key of size, stones, side to move, and may_swap(). It is equal for equal
  // positions, however they were reached, and the same in every process. Two different positions
  // have the same key with probability 2^-64.
  [[nodiscard]] uint64_t key() const;

  // Returns the cells of `within` that are connected with a cell of `seeds` by cells of `within`.
  // Ignores seeds outside of `within`.
  [[nodiscard]] Set flood(const Set& seeds, const Set& within) const;
  // Returns all cells that touch a cell of `set`. A cell of `set` is included only if it touches
  // another cell of `set`.
  [[nodiscard]] Set neighbours(const Set& set) const;

  // Returns the text of a move: "a1" for a cell, or "swap-pieces".
  [[nodiscard]] std::string name(Move move) const;
  // Parses a cell or "swap-pieces", in upper or lower case. Returns nullopt if the text is neither,
  // or the cell is not on this board.
  [[nodiscard]] std::optional<Move> parse(std::string_view text) const;

  friend bool operator==(const BasicBoard&, const BasicBoard&) = default;

 private:
  Set stones_[2];
  uint64_t zobrist_ = 0;  // Zobrist key of the stones alone
  uint16_t moves_ = 0;
  uint8_t cols_;
  uint8_t rows_;
  Color to_move_ = Color::kBlack;
  SwapRule swap_;
  uint8_t winner_ = 0;  // 1 + Color, or 0: no winner
  uint8_t reserved_ = 0;
};

using Board = BasicBoard<10>;

extern template class BasicBoard<1>;
extern template class BasicBoard<2>;
extern template class BasicBoard<4>;
extern template class BasicBoard<10>;

static_assert(std::is_trivially_copyable_v<BasicBoard<2>>);
static_assert(sizeof(BasicBoard<2>) == 48);
static_assert(sizeof(BasicBoard<4>) == 80);
static_assert(sizeof(BasicBoard<10>) == 176);

// Convert a cell to its text on a board of this size, and back. The text may be in upper or lower
// case. The letters after z are aa, ab, ...
[[nodiscard]] std::string cell_name(Move cell, int cols);
[[nodiscard]] std::optional<Move> parse_cell(std::string_view text, int cols, int rows);

// mirrored(): the cell mirrored at the long diagonal of a square board; this exchanges the roles of
// the colours.
constexpr Move mirrored(Move cell, int side) {
  return static_cast<Move>((cell % side) * side + cell / side);
}

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_BOARD_H_
