#include "hex/patterns.h"

#include <array>
#include <bit>

namespace cariama::hex {
namespace {

// The code of a neighbourhood has two bits for each entry of Geometry::ring: 0 empty, 1 black, 2
// white. An edge counts as a stone of its owner.
constexpr unsigned stone_code(Color color) { return color == Color::kBlack ? 1 : 2; }

// Returns a table, by the code of a neighbourhood, that tells whether the cell is dead. Consecutive
// neighbours in the ring touch each other. So the colour of the cell matters only if the empty
// neighbours can be filled such that black has two or more separate runs in the ring; then white
// has as many.
std::array<bool, 4096> make_dead() {
  std::array<bool, 4096> dead{};
  const auto runs_of_black = [](unsigned code) {
    int runs = 0;
    for (unsigned i = 0; i < 6; ++i) {
      runs += (code >> (2 * i) & 3) == 1 && (code >> (2 * ((i + 1) % 6)) & 3) != 1;
    }
    return runs;
  };
  for (unsigned code = 0; code < dead.size(); ++code) {
    bool is_dead = (code & code >> 1 & 0x555) == 0;  // false for codes with a 3, which do not occur
    for (unsigned fill = 0; fill < 64 && is_dead; ++fill) {
      unsigned full = code;
      for (unsigned i = 0; i < 6; ++i) {
        if ((code >> (2 * i) & 3) == 0) full |= ((fill >> i & 1) + 1) << (2 * i);
      }
      is_dead = runs_of_black(full) <= 1;
    }
    dead[code] = is_dead;
  }
  return dead;
}
const std::array<bool, 4096>& dead_codes() {
  static const std::array<bool, 4096> table = make_dead();
  return table;
}

// The empty entries of a neighbourhood at which a stone of a colour makes the cell dead, as a bit
// mask.
struct Killers {
  uint8_t by[2] = {0, 0};  // by Color
};
const std::array<Killers, 4096>& killers() {
  static const std::array<Killers, 4096> table = [] {
    std::array<Killers, 4096> result;
    for (unsigned code = 0; code < result.size(); ++code) {
      for (int i = 0; i < 6; ++i) {
        if ((code >> (2 * i) & 3) != 0) continue;
        for (const Color color : {Color::kBlack, Color::kWhite}) {
          if (!dead_codes()[code | stone_code(color) << (2 * i)]) continue;
          result[code].by[static_cast<int>(color)] |= static_cast<uint8_t>(1U << i);
        }
      }
    }
    return result;
  }();
  return table;
}

// The stones of a position as an array, from which the codes of neighbourhoods are computed.
class StoneArray {
 public:
  template <int kWords>
  explicit StoneArray(const BasicBoard<kWords>& board) : shape_(board.geometry()) {
    stones_.fill(0);
    board.stones(Color::kBlack).for_each([&](int cell) { stones_[cell] = 1; });
    board.stones(Color::kWhite).for_each([&](int cell) { stones_[cell] = 2; });
  }
  [[nodiscard]] bool is_empty(unsigned cell) const {
    return cell < kMaxCells && stones_[cell] == 0;
  }
  [[nodiscard]] unsigned ring(int cell, int i) const { return shape_.ring[cell][i]; }
  void set(int cell, Color color) { stones_[cell] = static_cast<uint8_t>(stone_code(color)); }
  [[nodiscard]] unsigned code(int cell) const {
    unsigned code = 0;
    for (int i = 0; i < 6; ++i) {
      const unsigned other = shape_.ring[cell][i];
      const unsigned stone = other < kMaxCells               ? stones_[other]
                             : other == Geometry::kBlackEdge ? 1
                                                             : 2;
      code |= stone << (2 * i);
    }
    return code;
  }

 private:
  const Geometry& shape_;
  std::array<uint8_t, kMaxCells> stones_;
};

// The connected groups of a side. Group 0 is its first edge with all stones connected with it,
// group 1 the other edge.
template <int kWords>
class Groups {
 public:
  using Set = Bits<kWords>;

  Groups(const BasicBoard<kWords>& board, Color color) : board_(board), empty_(board.empty()) {
    const Geometry& shape = board.geometry();
    const bool black = color == Color::kBlack;
    const Set own = board.stones(color);
    const Set first(black ? shape.first_row : shape.first_column);
    const Set last(black ? shape.last_row : shape.last_column);
    Set rest = own;
    const auto add = [&](const Set& stones, const Set& edge) {
      rest = rest.without(stones);
      stones_.push_back(stones);
      liberties_.push_back((board.neighbours(stones) | edge) & empty_);
    };
    add(board.flood(first, own), first);
    solid_ = stones_[0].intersects(last);
    add(board.flood(last, own), last);
    while (rest.any()) add(board.flood(Set::single(rest.first()), own), Set());
  }

  [[nodiscard]] Connection<kWords> connect() const { return connect(-1); }

  // Searches for a chain of the position with an additional stone on the empty cell `extra` (-1: no
  // additional stone).
  [[nodiscard]] Connection<kWords> connect(int extra) const {
    if (solid_) return {true, {}};
    const int n = static_cast<int>(stones_.size());
    // Groups that touch the extra stone are one group, number `merged`.
    std::vector<Set> liberties = liberties_;
    std::vector<char> gone(static_cast<size_t>(n), 0);
    if (extra >= 0) {
      int merged = -1;
      const Set stone = Set::single(extra);
      for (int i = 0; i < n; ++i) {
        if (!liberties_[i].test(extra)) continue;
        if (merged < 0) {
          merged = i;
        } else {
          if (merged == 0 && i == 1) return {true, {}};
          liberties[merged] |= liberties[i];
          gone[i] = 1;
        }
      }
      const Set around = board_.neighbours(stone) & empty_;
      if (merged < 0) {
        liberties.push_back(around);
        gone.push_back(0);
      } else {
        liberties[merged] |= around;
      }
      for (Set& set : liberties) set = set.without(stone);
      // If group 1, the second edge, was merged into another group, that group is the goal.
      return search(liberties, gone, gone[1] != 0 ? merged : 1);
    }
    return search(liberties, gone, 1);
  }

  [[nodiscard]] const Set& empty() const { return empty_; }

 private:
  // Searches for a chain of bridges from group 0 to group `goal`, breadth first. The bridges of
  // a path have disjoint cells. So the opponent cannot break two of them by one move.
  static Connection<kWords> search(const std::vector<Set>& liberties, std::vector<char>& gone,
                                   int goal) {
    const int n = static_cast<int>(liberties.size());
    std::vector<Set> carriers(static_cast<size_t>(n));
    std::vector<int> queue = {0};
    gone[0] = 1;
    for (size_t at = 0; at < queue.size(); ++at) {
      const int from = queue[at];
      const Set usable = liberties[from].without(carriers[from]);
      for (int to = 1; to < n; ++to) {
        if (gone[to] != 0) continue;
        Set common = usable & liberties[to];
        if (!common.any()) continue;
        const int first = common.first();
        common.reset(first);
        if (!common.any()) continue;
        carriers[to] = carriers[from];
        carriers[to].set(first);
        carriers[to].set(common.first());
        if (to == goal) return {true, carriers[to]};
        gone[to] = 1;
        queue.push_back(to);
      }
    }
    return {};
  }

  const BasicBoard<kWords>& board_;
  Set empty_;
  std::vector<Set> stones_;
  std::vector<Set> liberties_;  // empty cells that touch the group
  bool solid_ = false;
};

}  // namespace

template <int kWords>
FillIn<kWords> fill_in(const BasicBoard<kWords>& board) {
  const std::array<bool, 4096>& dead = dead_codes();
  const std::array<Killers, 4096>& kill = killers();
  FillIn<kWords> fill;
  StoneArray cells(board);
  Bits<kWords> open = board.empty();
  // A newly decided cell can decide only its neighbours.
  Bits<kWords> pending = open;
  while (pending.any()) {
    Bits<kWords> decided;
    const auto decide = [&](int cell, Color color) {
      cells.set(cell, color);
      open.reset(cell);
      decided.set(cell);
    };
    pending.for_each([&](int cell) {
      if (!open.test(cell)) return;
      const unsigned code = cells.code(cell);
      if (dead[code]) {
        fill.dead.set(cell);
        decide(cell, Color::kBlack);
        return;
      }
      for (const Color color : {Color::kBlack, Color::kWhite}) {
        const int side = static_cast<int>(color);
        for (unsigned places = kill[code].by[side]; places != 0; places &= places - 1) {
          // If the opponent plays on one of the two cells, the side's answer on the other one makes
          // the opponent's stone dead. So the side has captured both.
          const int i = std::countr_zero(places);
          const int other = static_cast<int>(cells.ring(cell, i));
          if ((kill[cells.code(other)].by[side] >> (i + 3) % 6 & 1) == 0) continue;
          for (const int captured : {cell, other}) {
            fill.captured[side].set(captured);
            decide(captured, color);
          }
          return;
        }
      }
    });
    pending = board.neighbours(decided) & open;
  }
  return fill;
}

template <int kWords>
BasicBoard<kWords> filled(const BasicBoard<kWords>& board, const FillIn<kWords>& fill) {
  BasicBoard<kWords> result = board;
  result.set_position(board.stones(Color::kBlack) | fill.dead | fill.captured[0],
                      board.stones(Color::kWhite) | fill.captured[1], board.to_move());
  return result;
}

// Proof that a move x is not better than the cell y at which a stone of the opponent makes x dead.
// The side plays y instead of x and continues with the strategy for an imagined game, in which it
// has x and y is empty. If the opponent later plays x, the imagined opponent plays y, and x is dead
// in the imagined game. So the real position is at least as good as the imagined one.
template <int kWords>
Bits<kWords> dominated(const BasicBoard<kWords>& board, Color color, Bits<kWords>* answers) {
  const std::array<Killers, 4096>& kill = killers();
  const StoneArray cells(board);
  const int other_side = static_cast<int>(opponent(color));
  Bits<kWords> pruned;
  board.empty().for_each([&](int cell) {
    for (unsigned places = kill[cells.code(cell)].by[other_side]; places != 0;
         places &= places - 1) {
      const int killer = static_cast<int>(cells.ring(cell, std::countr_zero(places)));
      // A move that dominates another one now may be pruned later, but only for a move that is not
      // pruned. Domination is transitive, so a dominating move remains for each pruned move.
      if (pruned.test(killer)) continue;
      pruned.set(cell);
      if (answers != nullptr) answers->set(killer);
      return;
    }
  });
  return pruned;
}

template <int kWords>
std::vector<Bridge> bridges(const BasicBoard<kWords>& board, Color color) {
  std::vector<Bridge> found;
  const StoneArray cells(board);
  const Geometry& shape = board.geometry();
  const uint16_t edge = color == Color::kBlack ? Geometry::kBlackEdge : Geometry::kWhiteEdge;
  const Bits<kWords>& own = board.stones(color);
  own.for_each([&](int stone) {
    for (int i = 0; i < 6; ++i) {
      const unsigned a = shape.ring[stone][i];
      const unsigned b = shape.ring[stone][(i + 1) % 6];
      if (!cells.is_empty(a) || !cells.is_empty(b)) continue;
      const unsigned across = shape.across(stone, i);
      const Move carrier[2] = {static_cast<Move>(a), static_cast<Move>(b)};
      if (across == edge) {
        found.push_back({static_cast<Move>(stone), kNoMove, {carrier[0], carrier[1]}});
      } else if (across<kMaxCells&& static_cast<int>(across)> stone &&
                 own.test(static_cast<int>(across))) {
        found.push_back(
            {static_cast<Move>(stone), static_cast<Move>(across), {carrier[0], carrier[1]}});
      }
    }
  });
  return found;
}

template <int kWords>
Connection<kWords> connection(const BasicBoard<kWords>& board, Color color) {
  return Groups<kWords>(board, color).connect();
}

template <int kWords>
WinningMove<kWords> winning_move(const BasicBoard<kWords>& board, Color color) {
  const Groups<kWords> groups(board, color);
  WinningMove<kWords> found;
  int size = kMaxCells + 1;  // of the smallest carrier
  groups.empty().for_each([&](int cell) {
    const Connection<kWords> connection = groups.connect(cell);
    if (!connection.connected || connection.carrier.count() + 1 >= size) return;
    size = connection.carrier.count() + 1;
    found.move = static_cast<Move>(cell);
    found.carrier = connection.carrier;
    found.carrier.set(cell);
  });
  return found;
}

template <int kWords>
MustPlay<kWords> must_play(const BasicBoard<kWords>& board, Color color) {
  const Groups<kWords> groups(board, opponent(color));
  MustPlay<kWords> must;
  must.cells = groups.empty();
  const Connection<kWords> already = groups.connect();
  if (already.connected) return {true, {}, already.carrier};
  groups.empty().for_each([&](int cell) {
    const Connection<kWords> threat = groups.connect(cell);
    if (!threat.connected) return;
    Bits<kWords> carrier = threat.carrier;
    carrier.set(cell);
    if (carrier.contains(must.cells)) return;  // this threat does not narrow the region
    must.cells &= carrier;
    must.carrier |= carrier;
  });
  must.lost = !must.cells.any();
  return must;
}

#define CARIAMA_INSTANTIATE(n)                                           \
  template FillIn<n> fill_in(const BasicBoard<n>&);                      \
  template BasicBoard<n> filled(const BasicBoard<n>&, const FillIn<n>&); \
  template Bits<n> dominated(const BasicBoard<n>&, Color, Bits<n>*);     \
  template std::vector<Bridge> bridges(const BasicBoard<n>&, Color);     \
  template Connection<n> connection(const BasicBoard<n>&, Color);        \
  template WinningMove<n> winning_move(const BasicBoard<n>&, Color);     \
  template MustPlay<n> must_play(const BasicBoard<n>&, Color);
CARIAMA_INSTANTIATE(1)
CARIAMA_INSTANTIATE(2)
CARIAMA_INSTANTIATE(4)
CARIAMA_INSTANTIATE(10)
#undef CARIAMA_INSTANTIATE

}  // namespace cariama::hex
