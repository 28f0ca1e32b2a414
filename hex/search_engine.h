// The engine that plays: a Monte-Carlo tree search (mcts/) over HexGame, in all processes and
// threads of a host.
//
//   SearchEngine engine(host);
//   run_gtp(engine, 0, 1);
#ifndef CARIAMA_HEX_SEARCH_ENGINE_H_
#define CARIAMA_HEX_SEARCH_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hex/engine.h"
#include "hex/hex_game.h"
#include "hex/solver.h"
#include "mcts/host.h"
#include "mcts/options.h"

namespace cariama::hex {

struct SearchEngineOptions {
  mcts::SearchOptions search = default_search();
  HexKnowledge knowledge{};
  // The paper's design instead (mcts/paper_search.h), with the playouts of `knowledge`.
  bool paper = false;
  // Before it searches, a position with at most solve_empties empty cells is given to the solver,
  // for so many nodes (some 20 µs each) and a tenth of the time at most. 0: never. Where it finds
  // no end, none of the moves that it has refuted is played.
  uint64_t solve_nodes = 10000;
  int solve_empties = 60;

  // What was measured best on 11x11 (docs/hex.md).
  [[nodiscard]] static mcts::SearchOptions default_search();
  // For ablations: the same without priors or AMAF, with constants that suit what is left.
  void without_priors();
  void without_amaf();
};

// Belongs to worker 0 of rank 0. What the solver proves is played at once. The tree is kept from
// move to move of a game.
class SearchEngine final : public Engine {
 public:
  explicit SearchEngine(mcts::Host& host, const SearchEngineOptions& options = {});
  ~SearchEngine() override;

  [[nodiscard]] std::string name() const override { return "Cariama"; }
  [[nodiscard]] std::string version() const override { return "0.1.0"; }
  // As Engine::search; progress is called in this thread.
  [[nodiscard]] SearchReport search(const Board& board, const SearchLimits& limits,
                                    const std::atomic<bool>& stop,
                                    const std::function<void(const SearchReport&)>& progress,
                                    double interval) override;
  void clear() override;
  void set_seed(uint64_t seed) override;

  // What each process did in the last search, by rank; empty if the solver answered.
  [[nodiscard]] const std::vector<mcts::Statistics>& statistics() const { return statistics_; }

 private:
  class Sized;
  template <int kWords>
  class SizedSearch;
  template <int kWords>
  class SizedPaperSearch;
  template <template <int> class Search>
  [[nodiscard]] std::unique_ptr<Sized> make(const Board& board) const;

  // What the solver finds, without the swap, which is the session's business. Nothing, if it is
  // not asked.
  [[nodiscard]] Solution solve(const Board& board, const SearchLimits& limits,
                               const std::atomic<bool>& stop);

  mcts::Host& host_;
  SearchEngineOptions options_;
  std::unique_ptr<Solver> solver_;  // made at first use: it has a large table
  std::unique_ptr<Sized> sized_;    // for the width of the last board
  std::vector<mcts::Statistics> statistics_;
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_SEARCH_ENGINE_H_
