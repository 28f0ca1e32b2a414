#include "hex/board.h"
#include "mcts/random.h"

#include <algorithm>
#include <atomic>
#include <memory>

namespace cariama::hex {
namespace {

constexpr int kDirections[6][2] = {{1, 0}, {0, 1}, {-1, 1}, {-1, 0}, {0, -1}, {1, -1}};

std::unique_ptr<Geometry> make_geometry(int cols, int rows) {
  auto geometry = std::make_unique<Geometry>();
  geometry->cols = cols;
  geometry->rows = rows;
  for (int cell = 0; cell < cols * rows; ++cell) {
    const int col = cell % cols;
    const int row = cell / cols;
    geometry->all.set(cell);
    if (col == 0) geometry->first_column.set(cell);
    if (col == cols - 1) geometry->last_column.set(cell);
    if (row == 0) geometry->first_row.set(cell);
    if (row == rows - 1) geometry->last_row.set(cell);
    for (int i = 0; i < 6; ++i) {
      const int c = col + kDirections[i][0];
      const int r = row + kDirections[i][1];
      geometry->ring[cell][i] = r < 0 || r >= rows   ? Geometry::kBlackEdge
                                : c < 0 || c >= cols ? Geometry::kWhiteEdge
                                                     : static_cast<uint16_t>(r * cols + c);
    }
  }
  return geometry;
}

uint64_t stone_key(Color color, int cell) {
  static const auto keys = [] {
    std::array<std::array<uint64_t, kMaxCells>, 2> table;
    mcts::Random random(
        0x4845585A4F425249);  // any constant: the keys are the same in every process
    for (auto& side : table) {
      for (uint64_t& key : side) key = random.next();
    }
    return table;
  }();
  return keys[static_cast<int>(color)][cell];
}

// Returns the number of separate runs of `color` in the ring around a cell; own edges count as
// stones. The stones of one run touch each other. So a new stone joins separate groups only if
// there are two or more runs.
template <typename Set>
int own_runs(const Geometry& geometry, const Set& own, Color color, int cell) {
  const uint16_t edge = color == Color::kBlack ? Geometry::kBlackEdge : Geometry::kWhiteEdge;
  unsigned ring = 0;
  for (int i = 0; i < 6; ++i) {
    const uint16_t other = geometry.ring[cell][i];
    if (other == edge || (other < kMaxCells && own.test(other))) ring |= 1U << i;
  }
  const unsigned rotated = (ring << 1 | ring >> 5) & 63;
  return std::popcount(ring & ~rotated);
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

const Geometry& Geometry::of(int cols, int rows) {
  static std::atomic<const Geometry*> made[kMaxSide + 1][kMaxSide + 1];
  std::atomic<const Geometry*>& slot = made[cols][rows];
  // Acquire: pairs with the release of the thread that created the object.
  if (const Geometry* geometry = slot.load(std::memory_order_acquire)) return *geometry;
  auto geometry = make_geometry(cols, rows);
  const Geometry* expected = nullptr;
  if (slot.compare_exchange_strong(expected, geometry.get(), std::memory_order_acq_rel)) {
    return *geometry.release();  // lives as long as the process
  }
  return *expected;
}

std::string_view color_name(Color color) { return color == Color::kBlack ? "black" : "white"; }

template <int kWords>
void BasicBoard<kWords>::play(Color color, Move move) {
  ++moves_;
  to_move_ = opponent(color);
  if (move == kSwapPieces) {
    const int stone = stones_[0].first();
    const Move mirror = mirrored(static_cast<Move>(stone), cols_);
    stones_[0].reset(stone);
    stones_[1].set(mirror);
    zobrist_ ^= stone_key(Color::kBlack, stone) ^ stone_key(Color::kWhite, mirror);
    return;
  }
  Set& own = stones_[static_cast<int>(color)];
  own.set(move);
  zobrist_ ^= stone_key(color, move);
  const Geometry& shape = geometry();
  if (own_runs(shape, own, color, move) < 2) return;
  const Set group = flood(Set::single(move), own);
  const bool black = color == Color::kBlack;
  if (group.intersects(Set(black ? shape.first_row : shape.first_column)) &&
      group.intersects(Set(black ? shape.last_row : shape.last_column))) {
    winner_ = static_cast<uint8_t>(1 + static_cast<int>(color));
  }
}

template <int kWords>
void BasicBoard<kWords>::set_position(const Set& black, const Set& white, Color to_move) {
  const Geometry& shape = geometry();
  stones_[0] = black;
  stones_[1] = white;
  to_move_ = to_move;
  moves_ = static_cast<uint16_t>(black.count() + white.count());
  zobrist_ = 0;
  black.for_each([&](int cell) { zobrist_ ^= stone_key(Color::kBlack, cell); });
  white.for_each([&](int cell) { zobrist_ ^= stone_key(Color::kWhite, cell); });
  winner_ = 0;
  if (flood(Set(shape.first_row), black).intersects(Set(shape.last_row))) winner_ = 1;
  if (flood(Set(shape.first_column), white).intersects(Set(shape.last_column))) winner_ = 2;
}

template <int kWords>
uint64_t BasicBoard<kWords>::key() const {
  const uint64_t rest = uint64_t{cols_} | uint64_t{rows_} << 8 |
                        static_cast<uint64_t>(to_move_) << 16 |
                        static_cast<uint64_t>(may_swap()) << 17;
  return zobrist_ ^ mcts::Random::mix(rest);
}

template <int kWords>
Bits<kWords> BasicBoard<kWords>::neighbours(const Set& set) const {
  const Geometry& shape = geometry();
  // The six neighbours are the shifts by 1, cols and cols - 1 in both directions. Border columns
  // are removed first where a shift would wrap around to the other side of the board.
  const Set left = set.without(Set(shape.first_column));
  const Set right = set.without(Set(shape.last_column));
  return (left.down(1) | right.up(1) | set.down(cols_) | set.up(cols_) | right.down(cols_ - 1) |
          left.up(cols_ - 1)) &
         Set(shape.all);
}

template <int kWords>
Bits<kWords> BasicBoard<kWords>::flood(const Set& seeds, const Set& within) const {
  Set reached = seeds & within;
  for (;;) {
    const Set more = reached | (neighbours(reached) & within);
    if (more == reached) return reached;
    reached = more;
  }
}

template <int kWords>
std::string BasicBoard<kWords>::name(Move move) const {
  return move == kSwapPieces ? "swap-pieces" : cell_name(move, cols_);
}

template <int kWords>
std::optional<Move> BasicBoard<kWords>::parse(std::string_view text) const {
  static constexpr std::string_view kSwap = "swap-pieces";
  if (std::equal(text.begin(), text.end(), kSwap.begin(), kSwap.end(),
                 [](char a, char b) { return lower(a) == b; })) {
    return kSwapPieces;
  }
  return parse_cell(text, cols_, rows_);
}

template class BasicBoard<1>;
template class BasicBoard<2>;
template class BasicBoard<4>;
template class BasicBoard<10>;

std::string cell_name(Move cell, int cols) {
  const int col = cell % cols;
  std::string text;
  if (col >= 26) text += static_cast<char>('a' + col / 26 - 1);
  text += static_cast<char>('a' + col % 26);
  return text + std::to_string(cell / cols + 1);
}

std::optional<Move> parse_cell(std::string_view text, int cols, int rows) {
  size_t i = 0;
  int col = 0;
  for (; i < text.size() && lower(text[i]) >= 'a' && lower(text[i]) <= 'z'; ++i) {
    col = col * 26 + (lower(text[i]) - 'a' + 1);
    if (col > cols) return std::nullopt;
  }
  int row = 0;
  const size_t digits = i;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    row = row * 10 + (text[i] - '0');
    if (row > rows) return std::nullopt;
  }
  if (col == 0 || row == 0 || i != text.size() || i == digits || text[digits] == '0') {
    return std::nullopt;
  }
  return static_cast<Move>((row - 1) * cols + col - 1);
}

}  // namespace cariama::hex
