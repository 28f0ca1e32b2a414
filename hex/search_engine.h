// SearchEngine: the engine of cariama-hex, a Monte-Carlo tree search (mcts/) over HexGame in all
// processes and threads of a host.
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
  // Use the paper's design (mcts/paper/paper_search.h), with the playouts of `knowledge`.
  bool paper = false;
  // Positions with at most solve_empties empty cells are first given to the solver, for at most
  // solve_nodes nodes (about 20 µs each; 0: never) and a tenth of the time. If the solver finds no
  // result, moves that it has refuted are ranked behind the others.
  uint64_t solve_nodes = 10000;
  int solve_empties = 60;

  // Returns the options with the best results on 11x11 (docs/hex.md).
  [[nodiscard]] static mcts::SearchOptions default_search();
  // For ablations: switch priors or AMAF off, and set the selection constants for this case.
  void without_priors();
  void without_amaf();
};

// Not thread-safe: only worker 0 of rank 0 may use it. If the solver proves a win, search() returns
// the winning move without a tree search. The tree is kept from move to move of a game.
class SearchEngine final : public Engine {
 public:
  explicit SearchEngine(mcts::Host& host, const SearchEngineOptions& options = {});
  ~SearchEngine() override;

  [[nodiscard]] std::string name() const override { return "Cariama"; }
  [[nodiscard]] std::string version() const override { return "0.1.0"; }
  // See Engine::search. `progress` is called in the calling thread. The time limit includes the
  // solver and the change of the tree to the new position, which cannot be interrupted: it waits
  // for all processes (mcts::Search::advance). If that takes longer, the search takes 1 ms more.
  // The first time that a process is in SearchReport::late, report_once() (diagnostics.h) says so.
  [[nodiscard]] SearchReport search(const Board& board, const SearchLimits& limits,
                                    const std::atomic<bool>& stop,
                                    const std::function<void(const SearchReport&)>& progress,
                                    double interval) override;
  void clear() override;
  void set_seed(uint64_t seed) override;

  // The statistics of the processes in the last search, by rank; within `progress`, those of the
  // running search. Empty if the solver gave the answer, and during a search in the paper's design.
  [[nodiscard]] const std::vector<mcts::Statistics>& statistics() const { return statistics_; }

 private:
  class Sized;
  template <int kWords>
  class SizedSearch;
  template <int kWords>
  class SizedPaperSearch;
  template <template <int> class Search>
  [[nodiscard]] std::unique_ptr<Sized> make(const Board& board) const;

  // Returns the result of the solver, or an empty result if the options exclude this position. It
  // ignores the swap rule: the GTP session decides about a swap.
  [[nodiscard]] Solution solve(const Board& board, const SearchLimits& limits,
                               const std::atomic<bool>& stop);

  mcts::Host& host_;
  SearchEngineOptions options_;
  std::unique_ptr<Solver> solver_;  // created at the first use, since it has a large table
  std::unique_ptr<Sized> sized_;    // the search for the number of words of the last board
  std::vector<mcts::Statistics> statistics_;
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_SEARCH_ENGINE_H_
