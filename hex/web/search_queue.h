// SearchQueue: clients in any number of threads share one engine. One search runs at a time.
//
//   SearchQueue queue(engine, [&](double seconds) { return loads(seconds); });
//   queue.run(stop);                                      // worker 0 of rank 0: runs the searches
//
//   auto search = queue.submit({.board = board});         // any other thread
//   SearchView view;
//   do {
//     view = queue.wait(*search, view.version, deadline_after(std::chrono::seconds(1)));
//   } while (!view.ended);
//   queue.cancel(*search);
//
// A search without a time limit is an analysis: it ends when it is cancelled or when the outcome is
// proved. If another search waits, an analysis runs for a turn of SearchQueueOptions::turn seconds
// and then goes to the end of the queue. A search with a time limit is not interrupted. The engine
// has one tree. So if the search of another position ran in between, an analysis starts with an
// empty tree at its next turn.
//
// The queue divides each search into slices, because the engine reports the statistics of its
// processes at the end of a search. The engine keeps its tree between the slices.
#ifndef CARIAMA_HEX_WEB_SEARCH_QUEUE_H_
#define CARIAMA_HEX_WEB_SEARCH_QUEUE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "dtutils/wait.h"
#include "hex/engine.h"
#include "hex/solver.h"

namespace cariama::hex {

// The load of one process in the last slice.
struct ProcessLoad {
  bool alive = true;
  double iterations_per_second = 0;
  double idle_share = 0;  // 0 .. 1, of the time of all threads of the process
  double messages_per_second = 0;
};

// Requires: the game has not ended on the board.
struct SearchOrder {
  Board board;
  double seconds = 0;        // 0: no limit
  bool choose_move = false;  // the result contains the move that the engine would play
};

struct SearchView {
  uint64_t version = 0;  // grows with every change
  size_t ahead = 0;      // number of searches before this one; 0: this search runs or has ended
  bool ended = false;
  SearchReport report;  // of this turn; without moves until the first report
  std::vector<ProcessLoad> processes;
  Move move = kNoMove;  // SearchOrder::choose_move: the engine's move, once the search has ended
};

struct SearchQueueOptions {
  double slice = 0.5;      // seconds
  double interval = 0.15;  // seconds between two reports
  double turn = 5;         // seconds
  size_t most = 24;        // maximum number of searches in the queue, with the running one
};

// Thread-safe, except run().
class SearchQueue {
 public:
  class Search;
  // Returns the load of each process in the engine's last search, which took `seconds`.
  using Loads = std::function<std::vector<ProcessLoad>(double seconds)>;

  SearchQueue(Engine& engine, Loads loads, const SearchQueueOptions& options = {});
  ~SearchQueue();
  SearchQueue(const SearchQueue&) = delete;
  SearchQueue& operator=(const SearchQueue&) = delete;

  // Appends a search. Returns nullptr if the queue contains options.most searches already.
  [[nodiscard]] std::shared_ptr<Search> submit(const SearchOrder& order);
  // Blocks until the view has another version than `version`, or until the deadline.
  [[nodiscard]] SearchView wait(const Search& search, uint64_t version, Deadline deadline);
  // Ends the search. The engine stops within 50 ms. Idempotent.
  void cancel(Search& search);

  // Runs the searches in the calling thread until `stop` is set. It checks `stop` after each slice.
  // A signal handler may set it. All searches have ended when run() returns, and searches that are
  // submitted later end immediately.
  void run(const std::atomic<bool>& stop);

 private:
  void run_turn(Search& search, const std::atomic<bool>& stop);
  // Replaces the report.
  void publish(Search& search, SearchReport report);
  // Ends the search, with the engine's move if the order asks for one. swap: the result of
  // prove_swap(), if the board allows a swap.
  void end(Search& search, std::optional<bool> swap);
  [[nodiscard]] static Move chosen(const SearchOrder& order, const SearchReport& report,
                                   std::optional<bool> swap);
  void announce_order();  // Requires: mutex_ is locked.

  Engine& engine_;
  Loads loads_;
  const SearchQueueOptions options_;
  Solver solver_;  // for prove_swap(); used by run() only
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Search>> waiting_;
  std::shared_ptr<Search> running_;
  bool closed_ = false;
  std::atomic<bool> interrupt_{false};  // ends the engine's search
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_WEB_SEARCH_QUEUE_H_
