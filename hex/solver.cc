#include "hex/solver.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <utility>
#include <vector>

#include "hex/connections.h"
#include "hex/patterns.h"
#include "hex/playout.h"

namespace cariama::hex {
namespace {

// These values were the fastest on the problems of 6x6 to 8x8 in tests/hex/data (docs/hex.md).
constexpr int kPlayouts = 512;        // playouts that order the moves of a node
constexpr double kWidth = 0.5;        // share of a node's moves that is searched first
constexpr int kEffort = 100;          // see find_connections()
constexpr float kDoubt = 4;           // initial proof numbers of a move are at most 1 + kDoubt
constexpr uint32_t kMost = 1U << 28;  // a proof number of this value means: cannot be proved

}  // namespace

// The interface of the searches for all numbers of words.
class Solver::Search {
 public:
  virtual ~Search() = default;
  [[nodiscard]] virtual int words() const = 0;
  virtual Solution solve(const Board& board, const SolveLimits& limits) = 0;
};

template <int kWords>
class Solver::SizedSearch : public Solver::Search {
 public:
  using Set = Bits<kWords>;
  using Position = BasicBoard<kWords>;

  explicit SizedSearch(size_t table_bytes) {
    size_t entries = kBucket;
    while (entries * 2 * sizeof(Entry) <= table_bytes) entries *= 2;
    table_.resize(entries);
  }

  int words() const override { return kWords; }

  Solution solve(const Board& board, const SolveLimits& limits) override {
    limits_ = limits;
    end_ = limits.seconds > 0 ? Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(limits.seconds))
                              : Clock::time_point::max();
    nodes_ = 0;
    stopped_ = false;
    ++age_;
    const Outcome outcome = search(Position(board));
    Solution solution;
    solution.nodes = nodes_;
    solution.winner = outcome.winner;
    solution.move = outcome.move;
    solution.open = Bits<10>(outcome.open);
    if (!solution.winner) return solution;
    solution.carrier = Bits<10>(outcome.carrier);
    // The position is lost, or the filled-in cells decide it: any empty cell is a move.
    if ((solution.move == kNoMove || board.at(solution.move)) && !board.winner()) {
      const Bits<10> empty = board.empty();
      const Bits<10> near = solution.carrier & empty;
      if (empty.any()) solution.move = static_cast<Move>(near.any() ? near.first() : empty.first());
    }
    return solution;
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Outcome {
    std::optional<Color> winner;
    Move move = kNoMove;
    Set carrier;
    Set open;
  };
  // Proof and disproof number, for the side to move: estimates of the number of positions that have
  // to be solved to prove that the side wins, and that it loses. 0: proved.
  struct Numbers {
    uint32_t win = 1;
    uint32_t loss = 1;
  };
  // The entry of a position in the transposition table.
  struct Entry {
    uint64_t key = 0;
    Set carrier;  // of the proof; of an unsolved position: of the refutations found so far
    Set open;     // the moves that may win
    Numbers numbers;
    Move move = kNoMove;  // the winning move, or the most promising one
    Color winner = Color::kBlack;
    bool used = false;
    bool solved = false;
    uint8_t age = 0;   // of the last solve() that used the entry
    uint8_t work = 0;  // logarithm of the number of positions below it that were opened
  };
  // Positions whose keys have the same low bits share a bucket.
  static constexpr size_t kBucket = 2;
  // A move of a node on the current path. Its numbers are those of the position after the move.
  // They are stored here, too, since the table may overwrite them.
  struct Child {
    Move move;
    uint64_t key;
    Numbers numbers;
  };
  // A position with its decided cells filled in. The cells that the winner has captured belong to
  // the carrier of a proof: the winner needs them to answer there. Dead cells and the cells that
  // the loser has captured do not: the proof holds even if they belong to the loser.
  struct Filled {
    explicit Filled(const Position& position) : board(position) {
      const FillIn<kWords> fill = fill_in(position);
      if (!fill.all().any()) return;
      board = filled(position, fill);
      captured[0] = fill.captured[0];
      captured[1] = fill.captured[1];
    }
    Position board;
    Set captured[2];
  };

  bool out_of_time() {
    if ((nodes_ & 63) == 0) {
      stopped_ = stopped_ ||
                 (limits_.stop != nullptr && limits_.stop->load(std::memory_order_relaxed)) ||
                 Clock::now() >= end_;
    }
    stopped_ = stopped_ || (limits_.nodes != 0 && nodes_ > limits_.nodes);
    return stopped_;
  }

  [[nodiscard]] Entry* bucket_of(uint64_t key) {
    return &table_[(key & (table_.size() / kBucket - 1)) * kBucket];
  }
  // Returns the entry of the position, or nullptr. Valid until the next store().
  [[nodiscard]] const Entry* find(uint64_t key) {
    Entry* const bucket = bucket_of(key);
    for (size_t i = 0; i < kBucket; ++i) {
      if (!bucket[i].used || bucket[i].key != key) continue;
      bucket[i].age = age_;
      return &bucket[i];
    }
    return nullptr;
  }
  // Stores an entry in place of the position's former one, of an unused one, of one that this
  // solve() has not used, or of the one with the least work.
  void store(Entry& entry) {
    entry.age = age_;
    Entry* const bucket = bucket_of(entry.key);
    const auto value = [&](const Entry& other) {
      if (other.used && other.key == entry.key) return -1;
      return !other.used ? 0 : other.age != age_ ? 1 : 2 + other.work;
    };
    *std::min_element(bucket, bucket + kBucket,
                      [&](const Entry& a, const Entry& b) { return value(a) < value(b); }) = entry;
  }
  [[nodiscard]] Entry find_or_open(const Position& board) {
    if (const Entry* known = find(board.key())) return *known;
    Entry entry = opened(board);
    store(entry);
    return entry;
  }

  Outcome search(const Position& board) {
    if (board.winner()) return {*board.winner(), kNoMove, {}, {}};
    Entry node = find_or_open(board);
    while (!node.solved && !out_of_time()) work(board, node, kMost, kMost);
    if (!node.solved) return {std::nullopt, node.move, {}, node.open};
    return {node.winner, node.move, node.carrier, {}};
  }

  // Stores the result of a solved position.
  static void store_result(Entry& node, Color winner, Move move, const Set& carrier,
                           Color to_move) {
    node.solved = true;
    node.winner = winner;
    node.move = move;
    node.carrier = carrier;
    node.numbers = winner == to_move ? Numbers{0, kMost} : Numbers{kMost, 0};
  }

  // Returns the entry of a new position: solved, if its connections decide it, or with its open
  // moves.
  Entry opened(const Position& position) {
    ++nodes_;
    Entry node;
    node.key = position.key();
    node.used = true;
    const Color own = position.to_move();
    const Color other = opponent(own);
    const Filled now(position);
    const Set& own_captured = now.captured[static_cast<int>(own)];
    const Set& other_captured = now.captured[static_cast<int>(other)];
    if (now.board.winner()) {
      const Color winner = *now.board.winner();
      store_result(node, winner, kNoMove, now.captured[static_cast<int>(winner)], own);
      return node;
    }
    const auto ways = find_connections(now.board, own, Reach::kStones, kEffort);
    if (ways.move != kNoMove) {
      store_result(node, own, ways.move, ways.move_carrier | own_captured, own);
      return node;
    }
    const auto threats = find_connections(now.board, other, Reach::kStones, kEffort);
    if (threats.connected) {
      store_result(node, other, kNoMove, threats.carrier | other_captured, own);
      return node;
    }
    node.open = threats.threatened;
    node.carrier = threats.threats | other_captured;
    Set answers;
    const Set weak = dominated(now.board, own, &answers);
    if (node.open.intersects(weak)) {
      // A dominated move loses if the move that dominates it does. In the proof, the opponent plays
      // on that cell, so the cell belongs to the carrier.
      node.open = node.open.without(weak);
      node.carrier |= answers;
    }
    if (!node.open.any()) {
      store_result(node, other, kNoMove, node.carrier, own);
      return node;
    }
    node.numbers = {1, static_cast<uint32_t>(width(node.open.count()))};
    return node;
  }

  // Returns how many of `moves` open moves are searched.
  static int width(int moves) { return 1 + static_cast<int>(kWidth * moves); }

  // Searches an open position until it is solved, one of its numbers reaches its bound, or a limit
  // is reached. Stores the result in the table.
  void work(const Position& position, Entry& node, uint32_t win_bound, uint32_t loss_bound) {
    const Filled now(position);
    const uint64_t nodes_before = nodes_;
    const size_t begin = children_.size();
    add_children(now.board, node.open);
    while (!node.solved && !stopped_) {
      const std::optional<Choice> choice = choose(now, node, begin);
      if (!choice) break;
      if (node.numbers.win >= win_bound || node.numbers.loss >= loss_bound || out_of_time()) break;
      Position next = now.board;
      next.play(children_[choice->child].move);
      Entry child = find_or_open(next);
      if (!child.solved) {
        // Search the child until its number exceeds the second-best one by a margin, or the numbers
        // of this node reach their bounds. The margin (a quarter) avoids frequent changes between
        // the two children.
        const uint32_t margin = std::min(kMost, choice->second + choice->second / 4 + 1);
        work(next, child, loss_bound - choice->others, std::min(win_bound, margin));
      }
      children_[choice->child].numbers = child.numbers;
      take(now, node, children_[choice->child].move, child);
    }
    children_.resize(begin);
    node.work = std::max(node.work, static_cast<uint8_t>(std::bit_width(nodes_ - nodes_before)));
    store(node);
  }

  struct Choice {
    size_t child;
    uint32_t second;  // the smallest `loss` number of the other children
    uint32_t others;  // the part of the node's `loss` number for the other children
  };
  // Returns the most promising open move, and computes the node's numbers from those of its moves.
  // Returns nullopt if the node is solved.
  std::optional<Choice> choose(const Filled& now, Entry& node, size_t begin) {
    for (size_t i = begin; i < children_.size(); ++i) {
      Child& child = children_[i];
      const Entry* known = node.open.test(child.move) ? find(child.key) : nullptr;
      if (known == nullptr) continue;
      child.numbers = known->numbers;
      if (known->solved) take(now, node, child.move, *known);
      if (node.solved) return std::nullopt;
    }
    Choice choice{0, kMost, 0};
    uint32_t best = kMost;
    uint32_t most = 0;
    const int looked_at = std::min(width(node.open.count()), node.open.count());
    int left = looked_at;
    for (size_t i = begin; i < children_.size() && left > 0; ++i) {
      const Child& child = children_[i];
      if (!node.open.test(child.move)) continue;
      --left;
      most = std::max(most, child.numbers.win);
      if (child.numbers.loss < best) {
        choice.child = i;
        choice.second = best;
        best = child.numbers.loss;
      } else {
        choice.second = std::min(choice.second, child.numbers.loss);
      }
    }
    node.move = children_[choice.child].move;
    // The disproof number is the largest one of the children plus one for each other child. A sum
    // would count the same work several times, since different children lead to the same positions
    // (Ueda et al., "Weak proof-number search", 2008).
    choice.others = static_cast<uint32_t>(looked_at - 1);
    node.numbers = {best, std::min(kMost - 1, most + choice.others)};
    return choice;
  }

  // Updates a node by the result of a solved child. If the move wins, the node is solved. If the
  // move loses, only moves in the carrier of its refutation stay open.
  static void take(const Filled& now, Entry& node, Move move, const Entry& child) {
    if (!child.solved) return;
    const Color own = now.board.to_move();
    if (child.winner == own) {
      Set carrier = child.carrier | now.captured[static_cast<int>(own)];
      carrier.set(move);
      store_result(node, own, move, carrier, own);
      return;
    }
    node.open.reset(move);
    node.open &= child.carrier;
    node.carrier |= child.carrier;
    if (!node.open.any()) store_result(node, opponent(own), move, node.carrier, own);
  }

  // Adds the open moves to children_, the most promising first: by the share of wins among the
  // uniform playouts in which the side owns the cell. The order is the same at each visit of the
  // position.
  void add_children(const Position& board, const Set& open) {
    owned_.black.fill(0);
    owned_.black_and_won.fill(0);
    UniformPlayouts playouts(board.key());
    const UniformResult result = playouts.run(board, kPlayouts, &owned_);
    const bool black = board.to_move() == Color::kBlack;
    order_.clear();
    open.for_each([&](int cell) {
      // visits: playouts in which the side to move owns the cell; wins: those of them that it wins.
      const int black_owned = static_cast<int>(owned_.black[cell]);
      const int black_won = static_cast<int>(owned_.black_and_won[cell]);
      const int visits = black ? black_owned : kPlayouts - black_owned;
      const int wins =
          black ? black_won : (kPlayouts - result.black_wins) - (black_owned - black_won);
      const float value = (static_cast<float>(wins) + 1) / (static_cast<float>(visits) + 2);
      order_.emplace_back(-value, static_cast<Move>(cell));
    });
    std::sort(order_.begin(), order_.end());
    for (const auto& [negative, move] : order_) {
      Position next = board;
      next.play(move);
      children_.push_back({move,
                           next.key(),
                           {1 + static_cast<uint32_t>(kDoubt * negative * negative),
                            1 + static_cast<uint32_t>(kDoubt * (1 + negative))}});
    }
  }

  SolveLimits limits_;
  Clock::time_point end_;
  bool stopped_ = false;
  uint8_t age_ = 0;
  uint64_t nodes_ = 0;
  Ownership owned_;
  std::vector<std::pair<float, Move>> order_;
  std::vector<Child> children_;  // the moves of all nodes on the current path, node after node
  std::vector<Entry> table_;
};

Solver::Solver(const SolverOptions& options)
    : table_bytes_(std::max(options.table_bytes, size_t{1} << 20)) {}
Solver::~Solver() = default;

Solution Solver::solve(const Board& board, const SolveLimits& limits) {
  const int cells = board.cells();
  const int words = cells <= 64 ? 1 : cells <= 128 ? 2 : cells <= 256 ? 4 : 10;
  if (search_ == nullptr || search_->words() != words) {
    search_.reset();
    if (words == 1) {
      search_ = std::make_unique<SizedSearch<1>>(table_bytes_);
    } else if (words == 2) {
      search_ = std::make_unique<SizedSearch<2>>(table_bytes_);
    } else if (words == 4) {
      search_ = std::make_unique<SizedSearch<4>>(table_bytes_);
    } else {
      search_ = std::make_unique<SizedSearch<10>>(table_bytes_);
    }
  }
  if (!board.may_swap()) return search_->solve(board, limits);
  // White may also swap. Then White has the mirrored stone and Black is to move.
  Board plain(board.cols(), board.rows());
  plain.set_position(board.stones(Color::kBlack), board.stones(Color::kWhite), Color::kWhite);
  Solution solution = search_->solve(plain, limits);
  if (solution.winner != Color::kBlack) return solution;
  Board swapped = board;
  swapped.play(kSwapPieces);
  Solution taken = search_->solve(swapped, limits);
  taken.nodes += solution.nodes;
  if (taken.winner == Color::kBlack) {
    solution.nodes = taken.nodes;
    return solution;
  }
  taken.move = kSwapPieces;
  return taken;
}

std::optional<std::vector<Move>> Solver::winning_moves(const Board& board,
                                                       const SolveLimits& limits) {
  std::vector<Move> winning;
  for (int id = 0; id < kMoveIds; ++id) {
    const Move move = static_cast<Move>(id);
    if (!board.is_legal(move)) continue;
    Board next = board;
    next.play(move);
    const Solution solution = solve(next, limits);
    if (!solution.winner) return std::nullopt;
    if (*solution.winner == board.to_move()) winning.push_back(move);
  }
  return winning;
}

}  // namespace cariama::hex
