// Playouts: random games from a position to the full board, and their winners.
//
//   UniformPlayouts uniform(seed);                       // vectorised: tens of millions per second
//   UniformResult result = uniform.run(board, 32);       // result.black_wins of 32
//
//   PolicyPlayouts policy(board.cols(), board.rows());   // saves threatened bridges
//   mcts::Random random(seed);
//   policy.prepare(board);
//   for (int i = 0; i < 16; ++i) wins += policy.run(random) == Color::kBlack;
//
// Both fill the board completely. On a full board exactly one side is connected, and stones that
// are set after a side was connected do not change the winner. The side to move sets the first
// stone. So both sides set the same number of stones, or the side to move sets one more.
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
#include "mcts/random.h"

namespace cariama::hex {

struct UniformKernels;  // internal/uniform_kernel.h

// The vector instructions that playouts use.
enum class Simd : uint8_t { kPortable, kAVX2, kAVX512 };
[[nodiscard]] std::string_view simd_name(Simd simd);  // "portable", "avx2", "avx512"
// Returns the variants that this processor and this build support, the slowest first. Always
// contains kPortable.
[[nodiscard]] std::span<const Simd> available_simd();
// Returns the fastest available variant, or the one that the environment variable CARIAMA_HEX_SIMD
// names, if it is available. The first call decides. Thread-safe.
[[nodiscard]] Simd default_simd();

struct UniformResult {
  int playouts = 0;
  int black_wins = 0;
};

// For each cell, the number of playouts in which Black owned it at the end, and the number of these
// that Black won. AMAF statistics need no more than this, since a uniform filling has no order of
// moves.
struct Ownership {
  std::array<uint32_t, kMaxCells> black{};
  std::array<uint32_t, kMaxCells> black_and_won{};
};

// Uniformly random playouts. All assignments of the empty cells that give each side its number of
// cells have exactly the same probability. Playouts are independent of each other. They run in
// batches of batch(); a number that is no multiple of it wastes the rest of the last batch. The
// same seed and variant give the same results on every machine. Not thread-safe. Takes 136 bytes.
class UniformPlayouts {
 public:
  // Requires: available_simd() contains simd.
  explicit UniformPlayouts(uint64_t seed, Simd simd = default_simd());

  // Returns the number of playouts in one batch on a board with `cols` columns.
  [[nodiscard]] int batch(int cols) const;

  // Runs n playouts from `board`. Adds to *owned if it is not null. The game may have ended
  // already. Requires: n >= 0.
  template <int kWords>
  UniformResult run(const BasicBoard<kWords>& board, int n, Ownership* owned = nullptr) {
    return run(Position::of(board), n, owned, nullptr);
  }

  // Runs n playouts from `board` and appends the black cells at the end of each playout to
  // `boards`: rows() words per playout; bit c of word r is the cell in column c and row r.
  // Requires: n >= 0.
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
  std::array<uint64_t, 16> state_;  // of the random number generators
};

// Playouts that save bridges: if the last stone intrudes into a bridge of the side to move, this
// side completes the bridge; otherwise it plays on a uniformly random empty cell. Among playout
// policies this rule gives about the largest gain in strength (12 wins of 16 games against uniform
// playouts at the same number of playouts). Not thread-safe. Takes about 6 KB.
class PolicyPlayouts {
 public:
  // Requires: is_board_size().
  PolicyPlayouts(int cols, int rows);

  // Sets the position from which run() starts. Requires: it has the size given to the constructor.
  template <int kWords>
  void prepare(const BasicBoard<kWords>& board) {
    start(board.to_move());
    board.stones(Color::kBlack).for_each([&](int cell) { put(cell, Color::kBlack); });
    board.stones(Color::kWhite).for_each([&](int cell) { put(cell, Color::kWhite); });
    board.empty().for_each([&](int cell) { add_empty(cell); });
  }

  // Runs one playout and returns its winner. last: the last move before the position; if it
  // intrudes into a bridge, the first stone of the playout saves the bridge.
  Color run(mcts::Random& random, Move last = kNoMove);

  // Returns the black cells at the end of the last run().
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
  // A place is an index in the padded board, which has a row or column of edge cells on each side.
  std::array<int, 6> around_;               // offsets of the neighbours, in the order of the ring
  std::array<uint16_t, kMaxCells> places_;  // places of the cells
  std::array<uint16_t, kMaxCells> open_;    // places of the empty cells, in any order
  std::array<uint16_t, kPadded> index_;     // index in open_ of an empty place
  std::array<uint8_t, kPadded> frame_;      // an empty board with its edges
  std::array<uint8_t, kPadded> start_;      // the position of prepare()
  std::array<uint8_t, kPadded> colors_;     // the board of the playout
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_PLAYOUT_H_
