// Whom to steal from.
//
// By distance: one attempt at a random worker of each level, from the innermost outwards, and so on
// from the innermost; after a success the search begins there, too. One attempt and no more:
// what near workers have is mostly small: in the simulation of 480 workers (tasks/simulation.h) as
// many attempts as a level has workers made ten times as many steals, and lost 5 % to this.
// At random: all workers are alike, and levels are only counted.
#ifndef CARIAMA_TASKS_INTERNAL_VICTIMS_H_
#define CARIAMA_TASKS_INTERNAL_VICTIMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tasks/runtime.h"

namespace cariama::tasks {

// Where a worker runs: numbers that are equal for those that are there together, -1 if it may run
// in several places.
struct WorkerPlace {
  uint64_t host = 0;
  int numa_node = -1;
  int core_complex = -1;  // cores that share their last-level cache
};

// The ranks at each distance (VictimLevel) from `rank`, which is at places[rank]. An unknown place
// counts as one that is not shared.
[[nodiscard]] inline std::vector<std::vector<int>> ranks_by_distance(
    std::span<const WorkerPlace> places, int rank) {
  std::vector<std::vector<int>> levels(kVictimLevels);
  const WorkerPlace& here = places[static_cast<size_t>(rank)];
  for (int other = 0; other < static_cast<int>(places.size()); ++other) {
    const WorkerPlace& there = places[static_cast<size_t>(other)];
    const auto shared = [](int a, int b) { return a == b && a != -1; };
    size_t level = 3;
    if (there.host == here.host) {
      level = 2;
      if (shared(there.numa_node, here.numa_node)) level = 1;
      if (shared(there.core_complex, here.core_complex)) level = 0;
    }
    if (other != rank) levels[level].push_back(other);
  }
  return levels;
}

// Memory: a few words for each run of consecutive ranks in a level, however many they are. Thread-
// compatible. A seed makes the same choices again.
class Victims {
 public:
  // `levels[i]` are the ranks at distance i, ascending, this one not among them. May be empty.
  Victims(const std::vector<std::vector<int>>& levels, VictimOrder order, uint64_t seed)
      : Victims(order, seed) {
    for (const std::vector<int>& ranks : levels) {
      Level& level = levels_.emplace_back();
      for (const int rank : ranks) level.add(rank, rank + 1);
      count_ += level.count;
    }
    succeeded();
  }
  // A regular machine: ranks of the same block of blocks[0] consecutive ones are at distance 0,
  // those of the same blocks[1] otherwise at distance 1, ...; all others one further.
  // Precondition: each block is a multiple of the one before.
  static Victims in_blocks(int rank, int size, std::span<const int> blocks, VictimOrder order,
                           uint64_t seed) {
    Victims victims(order, seed + static_cast<uint64_t>(rank));
    std::pair<int, int> inner{rank, rank + 1};
    for (size_t i = 0; i <= blocks.size(); ++i) {
      std::pair<int, int> outer{0, size};
      if (i < blocks.size()) {
        outer.first = rank / blocks[i] * blocks[i];
        outer.second = std::min(size, outer.first + blocks[i]);
      }
      Level& level = victims.levels_.emplace_back();
      level.add(outer.first, inner.first);
      level.add(inner.second, outer.second);
      victims.count_ += level.count;
      inner = outer;
    }
    victims.succeeded();
    return victims;
  }

  [[nodiscard]] bool empty() const { return count_ == 0; }

  // The next one to try. Precondition: !empty().
  [[nodiscard]] int next() {
    uint64_t index = 0;
    if (order_ == VictimOrder::kRandom) {
      index = draw() % count_;
      for (level_ = 0; index >= levels_[level_].count; ++level_) index -= levels_[level_].count;
    } else {
      do level_ = (level_ + 1) % levels_.size();
      while (levels_[level_].count == 0);
      index = draw() % levels_[level_].count;
    }
    return levels_[level_].rank(index);
  }

  // Where the last one was.
  [[nodiscard]] size_t level() const { return level_; }

  // The attempt on the last one succeeded.
  void succeeded() { level_ = levels_.size() - 1; }

 private:
  struct Run {
    int begin;
    int end;
    uint64_t before;  // how many ranks of the level are in the runs before this one
  };
  struct Level {
    std::vector<Run> runs;
    uint64_t count = 0;

    void add(int begin, int end) {
      if (begin == end) return;
      if (!runs.empty() && runs.back().end == begin) {
        runs.back().end = end;
      } else {
        runs.push_back({begin, end, count});
      }
      count += static_cast<uint64_t>(end - begin);
    }
    [[nodiscard]] int rank(uint64_t index) const {
      const auto after =
          std::upper_bound(runs.begin(), runs.end(), index,
                           [](uint64_t i, const Run& run) { return i < run.before; });
      const Run& run = *(after - 1);
      return run.begin + static_cast<int>(index - run.before);
    }
  };

  Victims(VictimOrder order, uint64_t seed)
      : order_(order), random_(seed * 0x9E3779B97F4A7C15 + 1) {}

  uint64_t draw() {  // xorshift64*, Marsaglia 2003
    random_ ^= random_ >> 12;
    random_ ^= random_ << 25;
    random_ ^= random_ >> 27;
    return random_ * 0x2545F4914F6CDD1D >> 32;
  }

  VictimOrder order_;
  std::vector<Level> levels_;
  uint64_t count_ = 0;  // of all levels
  size_t level_ = 0;
  uint64_t random_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_VICTIMS_H_
