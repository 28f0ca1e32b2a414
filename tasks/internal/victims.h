// Whom to steal from.
//
// Victims are tried by level of distance: each level at random, as many attempts as it has workers
// (kMostAttempts at most), before the next one out is tried; then it begins anew at the innermost.
// With one level that is random stealing.
#ifndef CARIAMA_TASKS_INTERNAL_VICTIMS_H_
#define CARIAMA_TASKS_INTERNAL_VICTIMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

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
  std::vector<std::vector<int>> levels(4);
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
  // An idle worker that has gone out to a level of 10^5 workers looks again near by, where work may
  // have come meanwhile, before it has asked them all.
  static constexpr uint64_t kMostAttempts = 16;

  // `levels[i]` are the ranks at distance i, ascending, this one not among them. May be empty.
  Victims(const std::vector<std::vector<int>>& levels, uint64_t seed) : Victims(seed) {
    for (const std::vector<int>& ranks : levels) {
      Level& level = levels_.emplace_back();
      for (const int rank : ranks) level.add(rank, rank + 1);
    }
  }
  // All other ranks at one distance.
  static Victims uniform(int rank, int size, uint64_t seed) { return in_blocks(rank, size, {}, seed); }
  // A regular machine: ranks of the same block of blocks[0] consecutive ones are at distance 0,
  // those of the same blocks[1] otherwise at distance 1, ...; all others one further.
  // Precondition: each block is a multiple of the one before.
  static Victims in_blocks(int rank, int size, std::span<const int> blocks, uint64_t seed) {
    Victims victims(seed + static_cast<uint64_t>(rank));
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
      inner = outer;
    }
    return victims;
  }

  [[nodiscard]] bool empty() const {
    return std::all_of(levels_.begin(), levels_.end(), [](const Level& l) { return l.count == 0; });
  }

  // The next one to try. Precondition: !empty().
  [[nodiscard]] int next() {
    while (attempts_ == std::min(kMostAttempts, levels_[level_].count)) {
      attempts_ = 0;
      level_ = (level_ + 1) % levels_.size();
    }
    ++attempts_;
    return levels_[level_].rank(draw() % levels_[level_].count);
  }

  // Where the last one was.
  [[nodiscard]] size_t level() const { return level_; }

  // The attempt on the last one succeeded: the next search begins at the innermost level.
  void succeeded() {
    level_ = 0;
    attempts_ = 0;
  }

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
      const auto after = std::upper_bound(runs.begin(), runs.end(), index,
                                          [](uint64_t i, const Run& run) { return i < run.before; });
      const Run& run = *(after - 1);
      return run.begin + static_cast<int>(index - run.before);
    }
  };

  explicit Victims(uint64_t seed) : random_(seed * 0x9E3779B97F4A7C15 + 1) {}

  uint64_t draw() {  // xorshift64*, Marsaglia 2003
    random_ ^= random_ >> 12;
    random_ ^= random_ << 25;
    random_ ^= random_ >> 27;
    return random_ * 0x2545F4914F6CDD1D >> 32;
  }

  std::vector<Level> levels_;
  size_t level_ = 0;
  uint64_t attempts_ = 0;
  uint64_t random_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_VICTIMS_H_
