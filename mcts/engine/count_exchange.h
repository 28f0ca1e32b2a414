// CountExchange: the state of the exchanges of counts between a copy of a node and its original.
//
//   process of the copy                      owner of the original
//   begin()
//   grown = take_grown()         ── grown →  adds `grown` to the original
//   merge(counts), end()         ← counts ─  reads the counts of the original
//
// `common` is the part of the copy's counts that the original has, or gets by the message in
// flight. Rollouts update copy and original at any time.
//
// No visit and no value is lost or counted twice. A rollout changes the counts of a copy by atomic
// additions. take_grown() reads each count once: it returns the difference from `common`, and makes
// `common` the value that it has read. So each change is in exactly one message. merge() adds the
// difference of the original from `common` to the counts of the copy. So the changes that were not
// sent are still the difference between the copy and `common`. Only one exchange is in flight for a
// copy: merge() compares with the `common` of its own take_grown().
//
// tests/mcts/engine/count_exchange_interleavings_test.cc runs this code in every interleaving of
// small instances.
#ifndef CARIAMA_MCTS_ENGINE_COUNT_EXCHANGE_H_
#define CARIAMA_MCTS_ENGINE_COUNT_EXCHANGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "mcts/game.h"

namespace cariama::mcts {

// The counts of a move, or a difference of two such counts. In a difference `visits` may wrap
// around to represent a negative number.
struct MoveCounts {
  uint32_t visits = 0;
  Verdict verdict = Verdict::kOpen;
  uint16_t move = 0;  // index of the move in its node; set in messages only
  float amaf_visits = 0;
  float amaf_value = 0;
  double value = 0;
};
static_assert(sizeof(MoveCounts) == 24);

// Adds now - before to the visits and the value of a move.
template <typename Visits, typename Value>
void add_difference(Visits& visits, Value& value, const MoveCounts& now, const MoveCounts& before) {
  visits.fetch_add(now.visits - before.visits, std::memory_order_relaxed);
  value.fetch_add(now.value - before.value, std::memory_order_relaxed);
}

// begin(), is_in_flight(): thread-safe. All other functions: only by the thread that executes the
// exchange that is in flight, or while no thread calls begin().
template <template <typename> typename Atomic>
class BasicCountExchange {
 public:
  // Begins an exchange. Returns false if one is in flight. Acquire: pairs with the release in
  // end().
  [[nodiscard]] bool begin() {
    return !in_flight_.load(std::memory_order_relaxed) &&
           !in_flight_.exchange(true, std::memory_order_acquire);
  }
  void end() { in_flight_.store(false, std::memory_order_release); }
  [[nodiscard]] bool is_in_flight() const { return in_flight_.load(std::memory_order_relaxed); }
  // Makes the effects of the last exchange visible. Requires: no exchange is in flight.
  void acquire() const { static_cast<void>(in_flight_.load(std::memory_order_acquire)); }

  // Sets the counts of the original with which the copy was created.
  void set_common(std::vector<MoveCounts> counts) { common_ = std::move(counts); }
  // The counts that copy and original have in common, by move.
  [[nodiscard]] std::span<const MoveCounts> common() const { return common_; }

  // Returns the counts since the last exchange, of the moves that have changed. last: without the
  // moves of which only the AMAF statistics have changed. The caller sends them to the owner.
  template <typename Node>
  [[nodiscard]] std::vector<MoveCounts> take_grown(const Node& node, bool last) {
    std::vector<MoveCounts> grown;
    grown.reserve(common_.size());
    for (size_t i = 0; i < common_.size(); ++i) {
      const MoveCounts now = node.counts(static_cast<int>(i));
      MoveCounts& before = common_[i];
      const MoveCounts by{now.visits - before.visits,         now.verdict,
                          static_cast<uint16_t>(i),           now.amaf_visits - before.amaf_visits,
                          now.amaf_value - before.amaf_value, now.value - before.value};
      const bool played = by.visits != 0 || by.value != 0 || now.verdict != before.verdict;
      if (!played && (last || (by.amaf_visits == 0 && by.amaf_value == 0))) continue;
      grown.push_back(by);
      before = now;
    }
    return grown;
  }
  // Reverts take_grown(): the message was not sent. The next exchange sends these counts.
  void return_grown(std::span<const MoveCounts> grown) {
    for (const MoveCounts& by : grown) {
      MoveCounts& before = common_[by.move];
      before.visits -= by.visits;
      before.value -= by.value;
      before.amaf_visits -= by.amaf_visits;
      before.amaf_value -= by.amaf_value;
    }
  }
  // Merges the counts of move i of the original, which the owner sent, into the copy.
  template <typename Node>
  void merge(Node& node, int i, const MoveCounts& original) {
    MoveCounts& common = common_[static_cast<size_t>(i)];
    node.add_counts(i, original, common);
    common = original;
  }

 private:
  Atomic<bool> in_flight_{true};  // initially: the request for the copy
  std::vector<MoveCounts> common_;
};

using CountExchange = BasicCountExchange<std::atomic>;

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_COUNT_EXCHANGE_H_
