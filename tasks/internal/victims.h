// The choice of victims.
//
// VictimOrder::kByDistance: one attempt on a random worker of each level, from the nearest level to
// the farthest, then again from the nearest. After a successful steal the next attempt is on the
// nearest level. Each level gets only one attempt, because near workers mostly have small tasks: in
// a simulation of 480 workers (tasks/simulation.h), as many attempts as a level has workers made
// ten times as many steals and took 5 % longer.
//
// VictimOrder::kRandom: each attempt is on a random worker; levels serve only the statistics.
//
// shuffle() serves the task pools, which try every worker of a level once, in random order, before
// they go to the next level.
#ifndef CARIAMA_TASKS_INTERNAL_VICTIMS_H_
#define CARIAMA_TASKS_INTERNAL_VICTIMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dsfabric/ids.h"
#include "dtutils/random.h"
#include "tasks/runtime.h"

namespace cariama::tasks {

// Where a worker runs. Two workers at the same place have the same number. -1: the place is
// unknown, or the worker may run at several such places.
struct WorkerPlace {
  uint64_t host = 0;
  int numa_node = -1;     // number within the host
  int core_complex = -1;  // number, within the host, of the cores that share a last-level cache
};

// Returns the ranks at each distance (VictimLevel) from `rank`. places[r] is the place of rank r.
// Two unknown places count as different.
[[nodiscard]] inline std::vector<std::vector<Rank>> ranks_by_distance(
    std::span<const WorkerPlace> places, int rank) {
  std::vector<std::vector<Rank>> levels(kVictimLevels);
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
    if (other != rank) levels[level].emplace_back(static_cast<uint32_t>(other));
  }
  return levels;
}

// Chooses the victims of one worker. Memory: a few words for each run of consecutive ranks in a
// level. Thread-compatible. Equal seeds give equal choices.
class Victims {
 public:
  // `levels[i]` holds the ranks at distance i in ascending order, without this worker's rank. It
  // may be empty.
  Victims(const std::vector<std::vector<Rank>>& levels, VictimOrder order, uint64_t seed)
      : Victims(order, seed) {
    for (const std::vector<Rank>& ranks : levels) {
      Level& level = levels_.emplace_back();
      for (const Rank rank : ranks) {
        level.add(static_cast<int>(rank), static_cast<int>(rank) + 1);
      }
      count_ += level.count;
    }
    succeeded();
  }
  // Returns the victims on a regular machine. Ranks in the same block of blocks[i] consecutive
  // ranks are at distance i, for the least such i; all other ranks are at distance blocks.size().
  // Requires: each block size is a multiple of the one before.
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
  [[nodiscard]] size_t count() const { return count_; }

  // Returns the rank of the next victim to try. Requires: !empty().
  [[nodiscard]] int next() {
    uint32_t index = 0;
    if (order_ == VictimOrder::kRandom) {
      index = random_.below(count_);
      for (level_ = 0; index >= levels_[level_].count; ++level_) index -= levels_[level_].count;
    } else {
      do level_ = (level_ + 1) % levels_.size();
      while (levels_[level_].count == 0);
      index = random_.below(levels_[level_].count);
    }
    return levels_[level_].rank(index);
  }

  [[nodiscard]] size_t levels() const { return levels_.size(); }
  // Stores all ranks of a level to `ranks`, in random order. Takes O(size of the level) time.
  void shuffle(size_t level, std::vector<int>& ranks) {
    ranks.clear();
    for (const Run& run : levels_[level].runs) {
      for (int rank = run.begin; rank < run.end; ++rank) ranks.push_back(rank);
    }
    random_.shuffle(ranks);
  }

  // Returns the distance of the victim that next() returned last.
  [[nodiscard]] size_t level() const { return level_; }

  // Call it after a successful steal from the victim that next() returned last.
  void succeeded() { level_ = levels_.size() - 1; }

 private:
  struct Run {
    int begin;
    int end;
    uint32_t before;  // number of ranks of the level in earlier runs
  };
  struct Level {
    std::vector<Run> runs;
    uint32_t count = 0;

    void add(int begin, int end) {
      if (begin == end) return;
      if (!runs.empty() && runs.back().end == begin) {
        runs.back().end = end;
      } else {
        runs.push_back({begin, end, count});
      }
      count += static_cast<uint32_t>(end - begin);
    }
    [[nodiscard]] int rank(uint32_t index) const {
      const auto after =
          std::upper_bound(runs.begin(), runs.end(), index,
                           [](uint32_t i, const Run& run) { return i < run.before; });
      const Run& run = *(after - 1);
      return run.begin + static_cast<int>(index - run.before);
    }
  };

  Victims(VictimOrder order, uint64_t seed) : order_(order), random_(seed) {}

  VictimOrder order_;
  std::vector<Level> levels_;
  uint32_t count_ = 0;  // number of ranks in all levels
  size_t level_ = 0;
  Random random_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_VICTIMS_H_
