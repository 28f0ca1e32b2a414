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
// A board is a plain value: trivially copyable, without pointers, the same bytes in every process.
// BasicBoard<2> (up to 128 cells, so 11x11) has 48 bytes, BasicBoard<4> (up to 16x16) 80,
// BasicBoard<10> = Board (up to 25x25) 176. Const functions may be called from any thread.
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
[[nodiscard]] std::string_view color_name(Color color);  // "black", "white"

inline constexpr int kMinSide = 3;
inline constexpr int kMaxSide = 25;
inline constexpr int kMaxCells = kMaxSide * kMaxSide;
constexpr bool is_board_size(int cols, int rows) {
  return cols >= kMinSide && cols <= kMaxSide && rows >= kMinSide && rows <= kMaxSide;
}

// A cell (row * cols + column, so below cells()), or kSwapPieces. Small numbers: an array of
// kMoveIds entries can be indexed with any legal move.
using Move = uint16_t;
inline constexpr Move kSwapPieces = kMaxCells;
inline constexpr int kMoveIds = kMaxCells + 1;
inline constexpr Move kNoMove = 0xFFFF;

// What follows from the size alone. Neighbours are listed around the cell, so that entry i + 1
// (cyclic) touches entry i.
struct Geometry {
  // In the place of a neighbour beyond the border: the edge that is there. In the obtuse corners
  // a place lies beyond two edges; it may stand for either, since its neighbours in the ring are
  // one of each.
  static constexpr uint16_t kBlackEdge = 0xFFFE;
  static constexpr uint16_t kWhiteEdge = 0xFFFF;

  // What the cell makes a bridge with over its places i and i + 1 in the ring: the one that touches
  // both besides it. Precondition: ring[cell][i] is a cell.
  [[nodiscard]] uint16_t across(int cell, int i) const { return ring[ring[cell][i]][(i + 1) % 6]; }

  int cols = 0;
  int rows = 0;
  std::array<std::array<uint16_t, 6>, kMaxCells> ring;
  Bits<10> all, first_column, last_column, first_row, last_row;

  // One object for each size, made at the first call and kept. Precondition: is_board_size().
  // Thread-safe.
  [[nodiscard]] static const Geometry& of(int cols, int rows);
};

// Off: the second move is a move as any other. On: White may instead answer the first stone with
// kSwapPieces, which replaces it by a white stone mirrored at the long diagonal. Only square boards
// have that diagonal: on rectangles, which are won for the side with the shorter way anyhow, the
// rule is always off.
enum class SwapRule : uint8_t { kOff = 0, kOn = 1 };

template <int kWords>
class BasicBoard {
 public:
  using Set = Bits<kWords>;

  BasicBoard() : BasicBoard(kMinSide, kMinSide) {}
  // An empty board, Black to move. Precondition: is_board_size() and fits().
  BasicBoard(int cols, int rows, SwapRule swap = SwapRule::kOff)
      : cols_(static_cast<uint8_t>(cols)),
        rows_(static_cast<uint8_t>(rows)),
        swap_(cols == rows ? swap : SwapRule::kOff) {}
  // The same position in another width. Precondition: it fits.
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
  [[nodiscard]] int moves_played() const { return moves_; }  // a swap counts
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

  // Who has connected its two edges. Never both; on a full board always one.
  [[nodiscard]] std::optional<Color> winner() const {
    if (winner_ == 0) return std::nullopt;
    return static_cast<Color>(winner_ - 1);
  }

  // Whether kSwapPieces is legal now: the rule is on, and one black stone is all there is.
  [[nodiscard]] bool may_swap() const {
    return swap_ == SwapRule::kOn && moves_ == 1 && to_move_ == Color::kWhite && !stones_[1].any();
  }
  [[nodiscard]] bool is_legal(Move move) const {
    if (move == kSwapPieces) return may_swap() && winner_ == 0;
    return move < cells() && winner_ == 0 && !at(move);
  }

  // Plays for the side to move. Precondition: is_legal(move).
  void play(Move move) { play(to_move_, move); }
  // Plays for `color`, whose turn it need not be; the other side is to move then. Precondition:
  // is_legal(move), and for kSwapPieces color is White.
  void play(Color color, Move move);

  // Replaces the stones; moves_played() becomes their number. Precondition: the sets are disjoint,
  // lie on the board, and at most one side is connected.
  void set_position(const Set& black, const Set& white, Color to_move);

  void set_to_move(Color color) { to_move_ = color; }

  // Zobrist key of size, stones and side to move: equal for transpositions, the same in every
  // process. Two different positions share a key with probability 2^-64. That a swap is possible
  // changes it too.
  [[nodiscard]] uint64_t key() const;

  // The cells of `within` that are joined with one of `seeds` through `within`. Seeds outside of
  // `within` are dropped.
  [[nodiscard]] Set flood(const Set& seeds, const Set& within) const;
  // The cells that touch one of `set`; those of the set itself only if they touch another.
  [[nodiscard]] Set neighbours(const Set& set) const;

  // "a1", or "swap-pieces".
  [[nodiscard]] std::string name(Move move) const;
  // A cell or "swap-pieces", in any case; nullopt if it is not on this board.
  [[nodiscard]] std::optional<Move> parse(std::string_view text) const;

  friend bool operator==(const BasicBoard&, const BasicBoard&) = default;

 private:
  Set stones_[2];
  uint64_t zobrist_ = 0;  // of the stones
  uint16_t moves_ = 0;
  uint8_t cols_;
  uint8_t rows_;
  Color to_move_ = Color::kBlack;
  SwapRule swap_;
  uint8_t winner_ = 0;  // 1 + Color
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

// The text of a cell on a board with that many columns, and back (any case). Beyond z the letters
// go on with aa, ab, ...
[[nodiscard]] std::string cell_name(Move cell, int cols);
[[nodiscard]] std::optional<Move> parse_cell(std::string_view text, int cols, int rows);

// The cell mirrored at the long diagonal of a square board, and the one seen after turning the
// board by 180 degrees. Turning keeps the game the same; mirroring exchanges the colours' roles.
constexpr Move mirrored(Move cell, int side) {
  return static_cast<Move>((cell % side) * side + cell / side);
}
constexpr Move turned(Move cell, int cells) { return static_cast<Move>(cells - 1 - cell); }

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_BOARD_H_
