// Playouts: random games from a position to the full board, and who won them.
//
//   UniformPlayouts uniform(seed);                       // vectorised: tens of millions a second
//   UniformResult result = uniform.run(board, 32);       // result.black_wins of 32
//
//   PolicyPlayouts policy(board.cols(), board.rows());   // replies to threatened bridges
//   Random random(seed);
//   policy.prepare(board);
//   for (int i = 0; i < 16; ++i) wins += policy.run(random) == Color::kBlack;
//
// Both fill the board completely: exactly one side is connected then, and a stone set after the
// other side was connected changes nothing. The side to move sets the first stone, so the sides get
// equally many cells, or the side to move one more.
#ifndef CARIAMA_HEX_PLAYOUT_H_
#define CARIAMA_HEX_PLAYOUT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "hex/board.h"
#include "hex/random.h"

namespace cariama::hex {

struct UniformKernels;  // internal/uniform_kernel.h

// Which vector instructions playouts use.
enum class Simd : uint8_t { kPortable, kAVX2, kAVX512 };
[[nodiscard]] std::string_view simd_name(Simd simd);  // "portable", "avx2", "avx512"
// What this processor and this build have, slowest first; kPortable is always there.
[[nodiscard]] std::span<const Simd> available_simd();
// The fastest of them, or what the environment variable CARIAMA_HEX_SIMD names, if it is available.
// Decided at the first call. Thread-safe.
[[nodiscard]] Simd default_simd();

struct UniformResult {
  int playouts = 0;
  int black_wins = 0;
};

// For each cell, in how many playouts Black owned it in the end, and in how many of these Black
// won. That is all that AMAF statistics need: a uniform filling has no order of moves.
struct Ownership {
  std::array<uint32_t, kMaxCells> black{};
  std::array<uint32_t, kMaxCells> black_and_won{};
};

// Uniformly random playouts: every assignment of the empty cells that gives each side its number of
// cells is exactly equally likely, and playouts are independent of each other. Playouts run in
// batches; others than multiples of batch() waste the rest of the last one. The same seed and
// variant give the same results on every machine. One thread at a time; 136 bytes.
class UniformPlayouts {
 public:
  // Precondition: simd is one of available_simd().
  explicit UniformPlayouts(uint64_t seed, Simd simd = default_simd());

  // Playouts done at a time on a board of that many columns.
  [[nodiscard]] int batch(int cols) const;

  // `n` playouts from `board`. Adds to *owned, if given. Does not care whether the game is over.
  // Precondition: n >= 0.
  template <int kWords>
  UniformResult run(const BasicBoard<kWords>& board, int n, Ownership* owned = nullptr) {
    return run(Position::of(board), n, owned, nullptr);
  }

  // As run(), and appends the black cells of each playout in its end: rows() words for each, bit c
  // of word r is the cell of column c and row r. For tests and for those who want masks.
  template <int kWords>
  UniformResult run_with_boards(const BasicBoard<kWords>& board, int n,
                                std::vector<uint32_t>& boards) {
    return run(Position::of(board), n, nullptr, &boards);
  }

 private:
  struct Position {
    int cols;
    int rows;
    bool black_to_move;
    std::array<uint32_t, kMaxSide> black;
    std::array<uint32_t, kMaxSide> empty;

    template <int kWords>
    static Position of(const BasicBoard<kWords>& board) {
      Position position{board.cols(), board.rows(), board.to_move() == Color::kBlack, {}, {}};
      take_rows(board.stones(Color::kBlack), position.cols, position.rows, position.black);
      take_rows(board.empty(), position.cols, position.rows, position.empty);
      return position;
    }
    template <int kWords>
    static void take_rows(const Bits<kWords>& set, int cols, int rows,
                          std::array<uint32_t, kMaxSide>& out) {
      for (int row = 0, bit = 0; row < rows; ++row, bit += cols) {
        const int word = bit >> 6;
        const int shift = bit & 63;
        uint64_t bits = set.words[word] >> shift;
        if (word + 1 < kWords && shift + cols > 64) bits |= set.words[word + 1] << (64 - shift);
        out[row] = static_cast<uint32_t>(bits & ((uint64_t{1} << cols) - 1));
      }
    }
  };
  UniformResult run(const Position& position, int n, Ownership* owned,
                    std::vector<uint32_t>* boards);

  const UniformKernels* kernels_;
  std::array<uint64_t, 16> state_;  // of the generators
};

// Playouts that save bridges: if the last stone intruded into a bridge of the side to move, that
// side completes it; otherwise the stone falls on a uniformly random empty cell. About the biggest
// gain in strength that a playout policy brings (mcts-hex facts: 12 of 16 games against uniform
// ones at equal counts). One thread at a time; about 6 KB.
class PolicyPlayouts {
 public:
  // Precondition: is_board_size().
  PolicyPlayouts(int cols, int rows);

  // The position that run() starts from. Precondition: of the size given to the constructor.
  template <int kWords>
  void prepare(const BasicBoard<kWords>& board) {
    start(board.to_move());
    board.stones(Color::kBlack).for_each([&](int cell) { put(cell, Color::kBlack); });
    board.stones(Color::kWhite).for_each([&](int cell) { put(cell, Color::kWhite); });
    board.empty().for_each([&](int cell) { add_empty(cell); });
  }

  // One playout from there; its winner. `last`: the move that led to the position, which the first
  // stone may have to answer.
  Color run(Random& random, Move last = kNoMove);

  // The black cells at the end of the last run().
  template <int kWords>
  [[nodiscard]] Bits<kWords> black_cells() const {
    Bits<kWords> black;
    int cell = 0;
    for (int row = 0; row < rows_; ++row) {
      const uint8_t* colors = &colors_[(row + 1) * stride_ + 1];
      for (int col = 0; col < cols_; ++col, ++cell) {
        black.words[cell >> 6] |= uint64_t{colors[col] & 1U} << (cell & 63);
      }
    }
    return black;
  }

 private:
  static constexpr int kPadded = (kMaxSide + 2) * (kMaxSide + 2);

  [[nodiscard]] int place(int cell) const { return places_[cell]; }
  void start(Color to_move);
  void put(int cell, Color color) { start_[place(cell)] = color == Color::kBlack ? 1 : 2; }
  void add_empty(int cell) {
    index_[place(cell)] = static_cast<uint16_t>(num_open_);
    open_[num_open_++] = static_cast<uint16_t>(place(cell));
  }
  [[nodiscard]] Color walk_border() const;

  int cols_;
  int rows_;
  int stride_;
  Color to_move_ = Color::kBlack;
  int num_open_ = 0;
  std::array<int, 6> around_;               // to the neighbours, as Geometry::ring
  std::array<uint16_t, kMaxCells> places_;  // cells in the padded board
  std::array<uint16_t, kMaxCells> open_;    // the empty cells, in any order
  std::array<uint16_t, kPadded> index_;     // where they stand there
  std::array<uint8_t, kPadded> frame_;      // an empty board within its edges
  std::array<uint8_t, kPadded> start_;      // the position
  std::array<uint8_t, kPadded> colors_;     // the playout
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_PLAYOUT_H_
