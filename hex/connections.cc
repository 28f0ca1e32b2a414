#include "hex/connections.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace cariama::hex {
namespace {

// "Full" means a connection, "semi" a semi-connection, "goal" the pair of the two edges.
constexpr int kFulls = 3;         // stored connections per pair
constexpr int kSemis = 8;         // stored semi-connections per pair
constexpr int kGoalSemis = 48;    // stored semi-connections of the two edges
constexpr int kCombined = 4;      // semi-connections that one OR combines
constexpr int kMostPoints = 200;  // with more points Reach::kCells would need too much memory
// With more groups than this the board is full of stones, and the search is not tried.
constexpr int kMostGroups = 48;

template <int kWords>
class ConnectionSearch {
 public:
  using Set = Bits<kWords>;

  Connections<kWords> run(const BasicBoard<kWords>& board, Color color, Reach reach, int effort) {
    Connections<kWords> result;
    empty_ = board.empty();
    result.threatened = empty_;
    if (!find_groups(board, color)) {
      result.connected = true;
      result.threatened = {};
      return result;
    }
    if (groups_ > kMostGroups) return result;
    reach_ = points_ > kMostPoints ? Reach::kStones : reach;
    begin(board);
    for (size_t at = 0; at < queue_.size() && at < static_cast<size_t>(effort); ++at) {
      const Found found = queue_[at];
      if (!still_known(found)) continue;
      follow(found);
      if (!fulls(0, 1).empty()) break;
    }
    for (const Set& set : fulls(0, 1)) {
      if (result.connected && set.count() >= result.carrier.count()) continue;
      result.connected = true;
      result.carrier = set;
    }
    // The smallest carriers first: they narrow `threatened` most.
    std::sort(goal_semis_.begin(), goal_semis_.end(),
              [](const Semi& a, const Semi& b) { return a.set.count() < b.set.count(); });
    for (const Semi& semi : goal_semis_) {
      if (result.move == kNoMove) {
        result.move = semi.key;
        result.move_carrier = semi.set;
      }
      if (semi.set.contains(result.threatened)) continue;
      result.threatened &= semi.set;
      result.threats |= semi.set;
    }
    if (result.connected) {
      result.threatened = {};
      result.threats = result.carrier;
    }
    return result;
  }

 private:
  struct Semi {
    Set set;  // the carrier, including the key
    Move key;
  };
  // The connections of a pair. Their number is stored separately, in full_counts_ and semi_counts_:
  // only the numbers have to be cleared for a new search.
  struct Fulls {
    Set sets[kFulls];
  };
  struct Semis {
    Semi semis[kSemis];
  };
  // A new connection between two points, from which others are derived.
  struct Found {
    int group;
    int point;
    Set set;
  };

  // Returns the index of a pair of points. Points are numbered: first the groups, of which 0 and 1
  // contain the edges, then the cells. A pair has one index, independent of the order of its
  // points.
  [[nodiscard]] size_t pair(int group, int point) const {
    if (point < group) std::swap(group, point);
    return static_cast<size_t>(group) * static_cast<size_t>(points_) + static_cast<size_t>(point);
  }
  [[nodiscard]] std::span<const Set> fulls(int group, int point) const {
    const size_t at = pair(group, point);
    return {fulls_[at].sets, full_counts_[at]};
  }
  // A copy of the connections of a pair, for callers that add connections while they iterate.
  struct FullsCopy {
    int count;
    Fulls fulls;
    [[nodiscard]] const Set* begin() const { return fulls.sets; }
    [[nodiscard]] const Set* end() const { return fulls.sets + count; }
  };
  [[nodiscard]] FullsCopy copy_of_fulls(int group, int point) const {
    const size_t at = pair(group, point);
    return {full_counts_[at], fulls_[at]};
  }
  [[nodiscard]] int point_of(int cell) const { return groups_ + cell; }

  // Finds the groups of a side. Returns false if its edges are connected by stones already.
  bool find_groups(const BasicBoard<kWords>& board, Color color) {
    const Geometry& shape = board.geometry();
    const bool black = color == Color::kBlack;
    const Set own = board.stones(color);
    const Set first(black ? shape.first_row : shape.first_column);
    const Set last(black ? shape.last_row : shape.last_column);
    liberties_.clear();
    Set rest = own;
    const auto add = [&](const Set& stones, const Set& edge) {
      rest = rest.without(stones);
      liberties_.push_back((board.neighbours(stones) | edge) & empty_);
    };
    const Set from_first = board.flood(first, own);
    if (from_first.intersects(last)) return false;
    add(from_first, first);
    add(board.flood(last, own), last);
    while (rest.any()) add(board.flood(Set::single(rest.first()), own), {});
    groups_ = static_cast<int>(liberties_.size());
    points_ = groups_ + board.cells();
    return true;
  }

  void begin(const BasicBoard<kWords>& board) {
    board_ = &board;
    const int sources = reach_ == Reach::kStones ? groups_ : points_;
    const size_t pairs = static_cast<size_t>(sources) * static_cast<size_t>(points_);
    if (fulls_.size() < pairs) {
      fulls_.resize(pairs);
      semis_.resize(pairs);
    }
    full_counts_.assign(pairs, 0);
    semi_counts_.assign(pairs, 0);
    goal_semis_.clear();
    queue_.clear();
    for (int group = 0; group < groups_; ++group) {
      liberties_[static_cast<size_t>(group)].for_each(
          [&](int cell) { add_full(group, point_of(cell), {}); });
    }
    if (reach_ == Reach::kStones) return;
    empty_.for_each([&](int cell) {
      (board.neighbours(Set::single(cell)) & empty_).for_each([&](int other) {
        if (other > cell) add_full(point_of(cell), point_of(other), {});
      });
    });
  }

  // Stores a connection, unless a stored one has a carrier that is a part of `set`.
  void add_full(int group, int point, const Set& set) {
    if (point < group) std::swap(group, point);
    const size_t at = pair(group, point);
    Fulls& known = fulls_[at];
    uint8_t& count = full_counts_[at];
    for (int i = 0; i < count; ++i) {
      if (set.contains(known.sets[i])) return;
    }
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      if (!known.sets[i].contains(set)) known.sets[kept++] = known.sets[i];
    }
    count = static_cast<uint8_t>(kept);
    if (kept == kFulls) {
      int largest = 0;
      for (int i = 1; i < kFulls; ++i) {
        if (known.sets[i].count() > known.sets[largest].count()) largest = i;
      }
      if (known.sets[largest].count() <= set.count()) return;
      known.sets[largest] = set;
    } else {
      known.sets[count++] = set;
    }
    queue_.push_back({group, point, set});
  }
  [[nodiscard]] bool still_known(const Found& found) {
    const std::span<const Set> known = fulls(found.group, found.point);
    return std::find(known.begin(), known.end(), found.set) != known.end();
  }

  // Stores a semi-connection, unless a stored carrier is a part of `set`, and combines it with
  // others by OR.
  void add_semi(int group, int point, const Set& set, int key) {
    if (point < group) std::swap(group, point);
    const size_t at = pair(group, point);
    for (int i = 0; i < full_counts_[at]; ++i) {
      if (set.contains(fulls_[at].sets[i])) return;
    }
    const Semi made{set, static_cast<Move>(key)};
    if (group == 0 && point == 1) {
      add_goal(made);
      return;
    }
    Semis& known = semis_[at];
    uint8_t& count = semi_counts_[at];
    for (int i = 0; i < count; ++i) {
      if (set.contains(known.semis[i].set)) return;
    }
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      if (!known.semis[i].set.contains(set)) known.semis[kept++] = known.semis[i];
    }
    count = static_cast<uint8_t>(kept);
    if (kept == kSemis) {
      int largest = 0;
      for (int i = 1; i < kSemis; ++i) {
        if (known.semis[i].set.count() > known.semis[largest].set.count()) largest = i;
      }
      if (known.semis[largest].set.count() <= set.count()) return;
      known.semis[largest] = made;
    } else {
      known.semis[count++] = made;
    }
    combine(group, point, known.semis, count, set, set, 1);
  }
  void add_goal(const Semi& made) {
    for (const Semi& known : goal_semis_) {
      if (made.set.contains(known.set)) return;
    }
    std::erase_if(goal_semis_, [&](const Semi& known) { return known.set.contains(made.set); });
    if (goal_semis_.size() == kGoalSemis) return;
    goal_semis_.push_back(made);
    combine(0, 1, goal_semis_.data(), static_cast<int>(goal_semis_.size()), made.set, made.set, 1);
  }

  // The OR rule. common, all: intersection and union of the carriers of the `combined`
  // semi-connections that are combined so far.
  void combine(int group, int point, const Semi* semis, int count, const Set& common,
               const Set& all, int combined) {
    for (int i = 0; i < count; ++i) {
      const Set left = common & semis[i].set;
      if (left == common) continue;
      if (!left.any()) {
        add_full(group, point, all | semis[i].set);
      } else if (combined + 1 < kCombined) {
        combine(group, point, semis, i, left, all | semis[i].set, combined + 1);
      }
    }
  }

  // The AND rule: combines the new connection with all known ones that meet it at a point.
  void follow(const Found& found) {
    if (reach_ == Reach::kCells) {
      follow_any(found.group, found.point, found.set);
      follow_any(found.point, found.group, found.set);
    } else if (found.point >= groups_) {
      follow_cell(found.group, found.point - groups_, found.set);
    } else {
      follow_groups(found.group, found.point, found.set);
      follow_groups(found.point, found.group, found.set);
    }
  }
  void follow_cell(int group, int cell, const Set& set) {
    const int point = point_of(cell);
    Set with_key = set;
    with_key.set(cell);
    for (int other = 0; other < groups_; ++other) {
      if (other == group) continue;
      for (const Set& known : copy_of_fulls(other, point)) {
        if (!known.intersects(set)) add_semi(group, other, with_key | known, cell);
      }
      // From the other group through the stones of `group` to the cell.
      for (const Set& link : copy_of_fulls(group, other)) {
        if (!link.intersects(set) && !link.test(cell)) add_full(other, point, link | set);
      }
    }
    const Geometry& shape = board_->geometry();
    for (int i = 0; i < 6; ++i) {
      const unsigned a = shape.ring[cell][i];
      if (!usable(a, set)) continue;
      add_semi(group, point_of(static_cast<int>(a)), with_key, cell);
      const unsigned b = shape.ring[cell][(i + 1) % 6];
      if (!usable(b, set)) continue;
      const unsigned across = shape.across(cell, i);
      if (!usable(across, set)) continue;
      Set carrier = with_key;
      carrier.set(static_cast<int>(a));
      carrier.set(static_cast<int>(b));
      add_semi(group, point_of(static_cast<int>(across)), carrier, cell);
    }
  }
  [[nodiscard]] bool usable(unsigned cell, const Set& taken) const {
    return cell < kMaxCells && empty_.test(static_cast<int>(cell)) &&
           !taken.test(static_cast<int>(cell));
  }
  // Combines a connection between `group` and the group `through` with each connection between
  // `through` and a third point.
  void follow_groups(int group, int through, const Set& set) {
    for (int point = 0; point < points_; ++point) {
      if (point == group || point == through) continue;
      if (point >= groups_ && set.test(point - groups_)) continue;
      for (const Set& known : copy_of_fulls(through, point)) {
        if (!known.intersects(set)) add_full(group, point, set | known);
      }
    }
  }

  // Combines a connection between the points `from` and `through` with each connection between
  // `through` and a third point.
  void follow_any(int from, int through, const Set& set) {
    const bool stones = through < groups_;
    Set with_key = set;
    if (!stones) with_key.set(through - groups_);
    const auto in = [&](const Set& cells, int point) {
      return point >= groups_ && cells.test(point - groups_);
    };
    for (int point = 0; point < points_; ++point) {
      if (point == from || point == through) continue;
      if (fulls(through, point).empty() || in(set, point)) continue;
      for (const Set& known : copy_of_fulls(through, point)) {
        if (known.intersects(set) || in(known, from)) continue;
        if (stones) {
          add_full(from, point, set | known);
        } else {
          add_semi(from, point, with_key | known, through - groups_);
        }
      }
    }
  }

  const BasicBoard<kWords>* board_ = nullptr;
  Reach reach_ = Reach::kStones;
  Set empty_;
  int groups_ = 0;
  int points_ = 0;
  std::vector<Set> liberties_;  // of groups
  std::vector<Fulls> fulls_;
  std::vector<Semis> semis_;
  std::vector<uint8_t> full_counts_;  // of fulls_ and semis_
  std::vector<uint8_t> semi_counts_;
  std::vector<Semi> goal_semis_;
  std::vector<Found> queue_;
};

}  // namespace

template <int kWords>
Connections<kWords> find_connections(const BasicBoard<kWords>& board, Color color, Reach reach,
                                     int effort) {
  // Reuses its memory from call to call.
  static thread_local ConnectionSearch<kWords> search;
  return search.run(board, color, reach, effort);
}

#define CARIAMA_INSTANTIATE(n) \
  template Connections<n> find_connections(const BasicBoard<n>&, Color, Reach, int);
CARIAMA_INSTANTIATE(1)
CARIAMA_INSTANTIATE(2)
CARIAMA_INSTANTIATE(4)
CARIAMA_INSTANTIATE(10)
#undef CARIAMA_INSTANTIATE

}  // namespace cariama::hex
