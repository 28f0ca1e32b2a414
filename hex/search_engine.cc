#include "hex/search_engine.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtutils/diagnostics.h"
#include "mcts/paper/paper_search.h"
#include "mcts/search.h"

namespace cariama::hex {

mcts::SearchOptions SearchEngineOptions::default_search() {
  mcts::SearchOptions options = mcts::SearchOptions::of<HexGame<2>>();
  // Priors guide exploration. AMAF is less important beside them, so its weight falls earlier.
  options.selection.rule = mcts::SelectionRule::kPuct;
  options.selection.exploration = 0.7F;
  options.selection.amaf_equivalence = 150;
  return options;
}

void SearchEngineOptions::without_priors() {
  const bool amaf = search.selection.amaf_equivalence > 0;
  knowledge.priors = false;
  search.selection = mcts::SearchOptions::of<HexGame<2>>().selection;
  if (!amaf) without_amaf();
}

void SearchEngineOptions::without_amaf() {
  search.selection.amaf_equivalence = 0;
  if (knowledge.priors) return;  // with priors, PUCT needs no other exploration term
  search.selection.exploration = 0.7F;
  search.selection.first_play = 1;
}

// The interface of the searches for boards of one number of words.
class SearchEngine::Sized {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Sized() = default;
  [[nodiscard]] virtual bool fits(const Board& board) const = 0;
  // start: the begin of SearchEngine::search(). The limits and the times of the reports count from
  // there.
  virtual SearchReport run(const Board& board, Clock::time_point start, const SearchLimits& limits,
                           const std::atomic<bool>& stop,
                           const std::function<void(const SearchReport&)>& progress,
                           double interval, std::vector<mcts::Statistics>& statistics) = 0;
  virtual void clear() = 0;

 protected:
  [[nodiscard]] static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
};

template <int kWords>
class SearchEngine::SizedSearch : public Sized {
 public:
  using Game = HexGame<kWords>;
  using Result = mcts::SearchResult<Move>;

  SizedSearch(mcts::Host& host, const SearchEngineOptions& options)
      : search_(host, options.search), options_(options) {}

  [[nodiscard]] bool fits(const Board& board) const override { return words_for(board) == kWords; }
  [[nodiscard]] static int words_for(const Board& board) {
    return board.cells() <= 128 ? 2 : board.cells() <= 256 ? 4 : 10;
  }

  SearchReport run(const Board& board, Clock::time_point start, const SearchLimits& limits,
                   const std::atomic<bool>& stop,
                   const std::function<void(const SearchReport&)>& progress, double interval,
                   std::vector<mcts::Statistics>& statistics) override {
    // Each search gets its own seed, computed from the first one: the same seed gives the same
    // game.
    search_.options().seed = mcts::Random::mix(options_.search.seed + ++searches_);
    const Game game(board, options_.knowledge);
    follow(game);
    const double before = seconds_since(start);  // the solver's time and that of follow()
    typename mcts::Search<Game>::Progress report;
    if (progress) {
      report = [&](const Result& result) {
        statistics = result.processes;
        progress(translate(board, result, before));
      };
    }
    Result result = search_.run(game, limits_after(limits, before), &stop, report, interval);
    statistics = std::move(result.processes);
    return translate(board, result, before);
  }

  void clear() override {
    search_.clear();
    searches_ = 0;
  }

 protected:
  // Advances the tree to the position, if it is one or two moves after the position of the tree.
  void follow(const Game& game) {
    if (!search_.position()) return;
    const BasicBoard<kWords> before = search_.position()->board();
    const BasicBoard<kWords>& now = game.board();
    if (before.cols() != now.cols() || before.rows() != now.rows()) return;
    const int first = static_cast<int>(before.to_move());
    const Bits<kWords> added[2] = {now.stones(Color::kBlack).without(before.stones(Color::kBlack)),
                                   now.stones(Color::kWhite).without(before.stones(Color::kWhite))};
    const bool grown = now.stones(Color::kBlack).contains(before.stones(Color::kBlack)) &&
                       now.stones(Color::kWhite).contains(before.stones(Color::kWhite));
    if (!grown || added[first].count() != 1 || added[1 - first].count() > 1) return;
    search_.advance(static_cast<Move>(added[first].first()));
    if (added[1 - first].any()) search_.advance(static_cast<Move>(added[1 - first].first()));
  }

  // before: the seconds of the search that passed before the result's time began.
  [[nodiscard]] static SearchReport translate(const Board& board, const Result& result,
                                              double before) {
    SearchReport report;
    report.color = board.to_move();
    report.iterations = result.iterations;
    report.seconds = before + result.seconds;
    for (const mcts::MoveResult<Move>& one : result.moves) {
      MoveReport move;
      move.move = one.move;
      move.visits = one.visits;
      move.win_rate = one.value;
      move.prior = one.prior;
      if (one.verdict == mcts::Verdict::kWins) move.proven_win = true;
      if (one.verdict == mcts::Verdict::kLoses) move.proven_win = false;
      move.line = one.line;
      report.moves.push_back(std::move(move));
    }
    report.late = result.late;
    return report;
  }

  mcts::Search<Game> search_;
  SearchEngineOptions options_;
  uint64_t searches_ = 0;
};

template <int kWords>
class SearchEngine::SizedPaperSearch final : public SizedSearch<kWords> {
 public:
  using Base = SizedSearch<kWords>;
  using Game = typename Base::Game;
  using Clock = typename Base::Clock;

  SizedPaperSearch(mcts::Host& host, const SearchEngineOptions& options)
      : Base(host, options), paper_(host, options.search), options_(options) {}

  SearchReport run(const Board& board, typename Clock::time_point start, const SearchLimits& limits,
                   const std::atomic<bool>& stop,
                   const std::function<void(const SearchReport&)>& progress, double interval,
                   std::vector<mcts::Statistics>& statistics) override {
    paper_.options().seed = mcts::Random::mix(options_.search.seed + ++searches_);
    const double before = Base::seconds_since(start);
    typename mcts::PaperSearch<Game>::Progress report;
    if (progress) {
      report = [&](const auto& result) {
        statistics = result.processes;
        progress(Base::translate(board, result, before));
      };
    }
    auto result = paper_.run(Game(board, options_.knowledge), limits_after(limits, before), &stop,
                             report, interval);
    statistics = std::move(result.processes);
    return Base::translate(board, result, before);
  }
  void clear() override { searches_ = 0; }

 private:
  mcts::PaperSearch<Game> paper_;
  SearchEngineOptions options_;
  uint64_t searches_ = 0;
};

template <template <int> class Search>
std::unique_ptr<SearchEngine::Sized> SearchEngine::make(const Board& board) const {
  if (board.cells() <= 128) return std::make_unique<Search<2>>(host_, options_);
  if (board.cells() <= 256) return std::make_unique<Search<4>>(host_, options_);
  return std::make_unique<Search<10>>(host_, options_);
}

SearchEngine::SearchEngine(mcts::Host& host, const SearchEngineOptions& options)
    : host_(host), options_(options) {}
SearchEngine::~SearchEngine() = default;

SearchReport SearchEngine::search(const Board& board, const SearchLimits& limits,
                                  const std::atomic<bool>& stop,
                                  const std::function<void(const SearchReport&)>& progress,
                                  double interval) {
  statistics_.clear();
  const auto start = Sized::Clock::now();
  const Solution solution = solve(board, limits, stop);
  // The engine also searches a position that is proved to be lost, to find the move that is the
  // hardest to answer.
  if (solution.winner == board.to_move()) {
    SearchReport report;
    report.color = board.to_move();
    report.iterations = solution.nodes;
    report.seconds = std::chrono::duration<double>(Sized::Clock::now() - start).count();
    MoveReport move;
    move.move = solution.move;
    move.visits = solution.nodes;
    move.win_rate = 1;
    move.proven_win = true;
    move.line = {solution.move};
    report.moves.push_back(std::move(move));
    return report;
  }
  if (sized_ != nullptr && !sized_->fits(board)) clear();
  if (sized_ == nullptr) {
    sized_ = options_.paper ? make<SizedPaperSearch>(board) : make<SizedSearch>(board);
  }
  const auto rank_refuted_last = [&](SearchReport& report) {
    if (!solution.open.any() || report.moves[0].proven_win == true) return;
    std::stable_partition(report.moves.begin(), report.moves.end(), [&](const MoveReport& move) {
      return solution.open.test(move.move) && move.proven_win != false;
    });
  };
  std::function<void(const SearchReport&)> live;
  if (progress) {
    live = [&](const SearchReport& unranked) {
      SearchReport report = unranked;
      rank_refuted_last(report);
      progress(report);
    };
  }
  SearchReport report = sized_->run(board, start, limits, stop, live, interval, statistics_);
  for (const uint32_t rank : report.late) {
    report_once(absl::StrCat("hex.late.", rank),
                absl::StrCat("rank ", rank,
                             " did not end its part of a search in time: the result lacks its last "
                             "iterations, and the next search waits for it"),
                "look for a process that is stopped or gets no processor time");
  }
  rank_refuted_last(report);
  return report;
}

Solution SearchEngine::solve(const Board& board, const SearchLimits& limits,
                             const std::atomic<bool>& stop) {
  if (options_.solve_nodes == 0 || board.empty().count() > options_.solve_empties) return {};
  if (solver_ == nullptr) solver_ = std::make_unique<Solver>();
  Board plain(board.cols(), board.rows());
  plain.set_position(board.stones(Color::kBlack), board.stones(Color::kWhite), board.to_move());
  return solver_->solve(plain, {limits.seconds / 10, options_.solve_nodes, &stop});
}

void SearchEngine::clear() {
  if (sized_ != nullptr) sized_->clear();
  sized_.reset();
}

void SearchEngine::set_seed(uint64_t seed) {
  options_.search.seed = seed;
  clear();
}

}  // namespace cariama::hex
