#include "hex/solver.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "hex/connections.h"
#include "hex/patterns.h"
#include "hex/playout.h"

namespace cariama::hex {

// Hides the width of the board.
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

  explicit SizedSearch(size_t table_bytes) : playouts_(1) {
    size_t entries = 1;
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
    const Outcome outcome = search(Position(board));
    Solution solution;
    solution.nodes = nodes_;
    if (stopped_) return solution;
    solution.winner = outcome.winner;
    solution.move = outcome.move;
    solution.carrier = Bits<10>(outcome.carrier);
    // Lost, or decided by the filled in cells alone: any cell goes on.
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
    Color winner = Color::kBlack;
    Move move = kNoMove;
    Set carrier;
  };
  struct Entry {
    uint64_t key = 0;
    Set carrier;
    Move move = kNoMove;
    Color winner = Color::kBlack;
    bool used = false;
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

  // Fills in and searches. The carrier of the filled position holds in the real one if the cells
  // that the winner has captured are added: there he has the answer that the deduction is made of.
  // Dead cells, and those of the loser, may well be the loser's.
  Outcome search(const Position& board) {
    if (board.winner()) return {*board.winner(), kNoMove, {}};
    const FillIn<kWords> fill = fill_in(board);
    const bool some = fill.all().any();
    Outcome outcome = search_filled(some ? filled(board, fill) : board);
    if (some) outcome.carrier |= fill.captured[static_cast<int>(outcome.winner)];
    return outcome;
  }

  Outcome search_filled(const Position& board) {
    if (board.winner()) return {*board.winner(), kNoMove, {}};
    ++nodes_;
    if (out_of_time()) return {};
    Entry& entry = table_[board.key() & (table_.size() - 1)];
    if (entry.used && entry.key == board.key()) return {entry.winner, entry.move, entry.carrier};
    const Outcome outcome = expand(board);
    if (!stopped_) entry = {board.key(), outcome.carrier, outcome.move, outcome.winner, true};
    return outcome;
  }

  Outcome expand(const Position& board) {
    const Color own = board.to_move();
    if (const auto win = winning_move(board, own); win.move != kNoMove) {
      return {own, win.move, win.carrier};
    }
    MustPlay<kWords> must = must_play(board, own);
    Outcome lost{opponent(own), kNoMove, must.carrier};
    if (must.lost) return lost;
    if (const auto ways = find_connections(board, own); ways.move != kNoMove) {
      return {own, ways.move, ways.move_carrier};
    }
    const auto threats = find_connections(board, opponent(own));
    if (threats.connected) return {opponent(own), kNoMove, threats.carrier};
    must.cells &= threats.threatened;
    lost.carrier |= threats.threats;
    Set answers;
    const Set weak = dominated(board, own, &answers);
    Set open = must.cells;
    if (open.intersects(weak)) {
      // A dominated move loses because its answer does, which the opponent must be able to play.
      open = open.without(weak);
      lost.carrier |= answers;
    }
    std::array<std::pair<float, Move>, 64 * kWords> order;
    const int n = sort_moves(board, open, order.data());
    for (int i = 0; i < n; ++i) {
      const Move move = order[i].second;
      if (!open.test(move)) continue;
      Position next = board;
      next.play(move);
      const Outcome reply = search(next);
      if (stopped_) return {};
      if (reply.winner == own) {
        Outcome won{own, move, reply.carrier};
        won.carrier.set(move);
        return won;
      }
      if (lost.move == kNoMove) lost.move = move;
      open &= reply.carrier;
      lost.carrier |= reply.carrier;
    }
    return lost;
  }

  int sort_moves(const Position& board, const Set& open, std::pair<float, Move>* order) {
    owned_.black.fill(0);
    owned_.black_and_won.fill(0);
    const int n = 128;
    const UniformResult result = playouts_.run(board, n, &owned_);
    const bool black = board.to_move() == Color::kBlack;
    int count = 0;
    open.for_each([&](int cell) {
      // The share of own wins among the playouts in which the cell was own.
      const int black_owned = static_cast<int>(owned_.black[cell]);
      const int black_won = static_cast<int>(owned_.black_and_won[cell]);
      const int visits = black ? black_owned : n - black_owned;
      const int wins = black ? black_won : (n - result.black_wins) - (black_owned - black_won);
      const float value = (static_cast<float>(wins) + 1) / (static_cast<float>(visits) + 2);
      order[count++] = {-value, static_cast<Move>(cell)};
    });
    std::sort(order, order + count);
    return count;
  }

  SolveLimits limits_;
  Clock::time_point end_;
  bool stopped_ = false;
  uint64_t nodes_ = 0;
  UniformPlayouts playouts_;
  Ownership owned_;
  std::vector<Entry> table_;
};

Solver::Solver(const SolverOptions& options)
    : table_bytes_(std::max(options.table_bytes, size_t{1} << 20)) {}
Solver::~Solver() = default;

Solution Solver::solve(const Board& board, const SolveLimits& limits) {
  const int words = board.cells() <= 64 ? 1 : board.cells() <= 128 ? 2 : 10;
  if (search_ == nullptr || search_->words() != words) {
    search_.reset();
    if (words == 1) {
      search_ = std::make_unique<SizedSearch<1>>(table_bytes_);
    } else if (words == 2) {
      search_ = std::make_unique<SizedSearch<2>>(table_bytes_);
    } else {
      search_ = std::make_unique<SizedSearch<10>>(table_bytes_);
    }
  }
  if (!board.may_swap()) return search_->solve(board, limits);
  // White may also take the stone: then Black is to move against it.
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
