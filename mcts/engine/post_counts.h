// PostCounts: the posts of one worker. A post is a one-way call of a search that no answer
// confirms. CommandedSearch::quiesce() waits until the posts of all processes have run.
#ifndef CARIAMA_MCTS_ENGINE_POST_COUNTS_H_
#define CARIAMA_MCTS_ENGINE_POST_COUNTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dsfabric/ids.h"

namespace cariama::mcts {

// Only the worker that owns it may call the functions that change counts. All counts only grow.
class PostCounts {
 public:
  explicit PostCounts(uint32_t processes) : begun_(processes), ended_(processes) {}

  // Counts a post for process `to`. Called before the post is sent: its receiver must not count it
  // as ended before.
  void begin(Rank to) { add(begun_[to]); }
  // Counts a post from process `from` that has run. Called when its handler has returned: the posts
  // that the handler sent are counted before. A post for `from` that could not be sent counts here
  // as ended, too.
  void end(Rank from) { add(ended_[from]); }

  // Thread-safe. Acquire: a reader that observes a post in these counts also observes the effects
  // of its handler.
  [[nodiscard]] uint64_t begun(Rank to) const { return begun_[to].load(std::memory_order_acquire); }
  [[nodiscard]] uint64_t ended(Rank from) const {
    return ended_[from].load(std::memory_order_acquire);
  }

 private:
  static void add(std::atomic<uint64_t>& count) {
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  std::vector<std::atomic<uint64_t>> begun_;  // by rank
  std::vector<std::atomic<uint64_t>> ended_;  // by rank
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_POST_COUNTS_H_
