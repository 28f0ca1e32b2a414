#include "hex/web/search_queue.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "hex/opening.h"

namespace cariama::hex {
namespace {

// run() looks for `stop` at least this often, also without a search.
constexpr std::chrono::milliseconds kStopInterval{50};

bool is_proved(const SearchReport& report) {
  return !report.moves.empty() && report.moves[0].proven_win.has_value();
}

}  // namespace

class SearchQueue::Search {
 public:
  explicit Search(const SearchOrder& order) : order_(order) {}

 private:
  friend class SearchQueue;
  const SearchOrder order_;
  SearchView view_;         // guarded by mutex_
  bool cancelled_ = false;  // guarded by mutex_
};

SearchQueue::SearchQueue(Engine& engine, Loads loads, const SearchQueueOptions& options)
    : engine_(engine), loads_(std::move(loads)), options_(options) {}
SearchQueue::~SearchQueue() = default;

std::shared_ptr<SearchQueue::Search> SearchQueue::submit(const SearchOrder& order) {
  auto search = std::make_shared<Search>(order);
  const std::lock_guard lock(mutex_);
  if (waiting_.size() + (running_ != nullptr ? 1 : 0) >= options_.most) return nullptr;
  search->view_.ended = closed_;
  search->view_.version = 1;
  if (!closed_) {
    waiting_.push_back(search);
    announce_order();
  }
  return search;
}

SearchView SearchQueue::wait(const Search& search, uint64_t version, Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return search.view_.version != version; });
  return search.view_;
}

void SearchQueue::cancel(Search& search) {
  const std::lock_guard lock(mutex_);
  search.cancelled_ = true;
  if (running_.get() == &search) {
    interrupt_.store(true);
    return;
  }
  std::erase_if(waiting_, [&](const auto& other) { return other.get() == &search; });
  search.view_.ended = true;
  ++search.view_.version;
  announce_order();
}

void SearchQueue::announce_order() {
  size_t ahead = running_ != nullptr ? 1 : 0;
  for (const std::shared_ptr<Search>& search : waiting_) {
    if (search->view_.ahead != ahead) ++search->view_.version;
    search->view_.ahead = ahead++;
  }
  changed_.notify_all();
}

void SearchQueue::run(const std::atomic<bool>& stop) {
  while (!stop.load()) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, kStopInterval, [&] { return !waiting_.empty(); })) continue;
      running_ = std::move(waiting_.front());
      waiting_.pop_front();
      running_->view_.ahead = 0;
      ++running_->view_.version;
      interrupt_.store(false);
      announce_order();
    }
    run_turn(*running_, stop);
    const std::lock_guard lock(mutex_);
    if (running_->cancelled_) running_->view_.ended = true;
    ++running_->view_.version;
    if (!running_->view_.ended) waiting_.push_back(std::move(running_));
    running_.reset();
    announce_order();
  }
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const std::shared_ptr<Search>& search : waiting_) {
    search->view_.ended = true;
    ++search->view_.version;
  }
  waiting_.clear();
  changed_.notify_all();
}

void SearchQueue::run_turn(Search& search, const std::atomic<bool>& stop) {
  const SearchOrder& order = search.order_;
  if (order.choose_move && order.board.swap_rule() == SwapRule::kOn &&
      order.board.moves_played() == 0) {
    end(search, std::nullopt);  // the opening under the swap rule needs no search
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  std::optional<bool> swap;
  if (order.choose_move && order.board.may_swap()) {
    swap = prove_swap(order.board, solver_,
                      {.seconds = swap_proof_seconds(order.seconds), .stop = &interrupt_});
  }
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  uint64_t iterations = 0;
  for (;;) {
    const double limit = order.seconds > 0
                             ? std::min(options_.slice, std::max(order.seconds - seconds, 0.001))
                             : options_.slice;
    const auto totals = [&](SearchReport report) {
      report.seconds += seconds;
      report.iterations += iterations;
      return report;
    };
    const auto live = [&](const SearchReport& report) {
      if (stop.load()) interrupt_.store(true);
      publish(search, totals(report));
    };
    const SearchReport report =
        engine_.search(order.board, {limit, 0}, interrupt_, live, options_.interval);
    // The engine has reached a limit of its tree, and would reach it again. A slice that used its
    // time without an iteration is no such case: the machine was busy.
    const bool full = report.iterations == 0 && report.seconds < limit / 2;
    {
      const std::lock_guard lock(mutex_);
      search.view_.processes = loads_(report.seconds);
    }
    publish(search, totals(report));
    seconds += report.seconds;
    iterations += report.iterations;
    if (stop.load() || interrupt_.load()) return;
    if (is_proved(report) || full || (order.seconds > 0 && seconds >= order.seconds)) {
      end(search, swap);
      return;
    }
    const std::lock_guard lock(mutex_);
    if (order.seconds == 0 && seconds >= options_.turn && !waiting_.empty()) return;
  }
}

void SearchQueue::publish(Search& search, SearchReport report) {
  const std::lock_guard lock(mutex_);
  search.view_.report = std::move(report);
  ++search.view_.version;
  changed_.notify_all();
}

void SearchQueue::end(Search& search, std::optional<bool> swap) {
  // Only this thread changes the report, so it needs no lock here.
  const Move move =
      search.order_.choose_move ? chosen(search.order_, search.view_.report, swap) : kNoMove;
  const std::lock_guard lock(mutex_);
  search.view_.move = move;
  search.view_.ended = true;
}

Move SearchQueue::chosen(const SearchOrder& order, const SearchReport& report,
                         std::optional<bool> swap) {
  if (report.moves.empty()) return fair_opening(order.board);
  const MoveReport& best = report.moves[0];
  if (order.board.may_swap() && should_swap(swap, best.win_rate)) return kSwapPieces;
  return best.move;
}

}  // namespace cariama::hex
