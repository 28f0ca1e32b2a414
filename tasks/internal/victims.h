// Whom to steal from.
//
// Victims are tried by level of distance: each level at random, as many attempts as it has workers,
// before the next one out is tried; then it begins anew at the innermost. With one level that is
// random stealing.
#ifndef CARIAMA_TASKS_INTERNAL_VICTIMS_H_
#define CARIAMA_TASKS_INTERNAL_VICTIMS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cariama::tasks {

// Thread-compatible. A seed makes the same choices again.
class Victims {
 public:
  // `levels[i]` are the ranks at distance i, this one not among them. Empty levels are left out.
  Victims(std::vector<std::vector<int>> levels, uint64_t seed)
      : random_(seed * 0x9E3779B97F4A7C15 + 1) {
    for (std::vector<int>& ranks : levels) {
      if (!ranks.empty()) levels_.push_back({std::move(ranks), 0, 0});
    }
  }
  // All other ranks at one distance.
  static Victims uniform(int rank, int size, uint64_t seed) {
    std::vector<std::vector<int>> levels(1);
    for (int other = 0; other < size; ++other) {
      if (other != rank) levels[0].push_back(other);
    }
    return {std::move(levels), seed + static_cast<uint64_t>(rank)};
  }

  [[nodiscard]] bool empty() const { return levels_.empty(); }

  // The next one to try. Precondition: !empty().
  [[nodiscard]] int next() {
    if (attempts_ == levels_[level_].ranks.size()) {
      attempts_ = 0;
      level_ = (level_ + 1) % levels_.size();
    }
    ++attempts_;
    Level& level = levels_[level_];
    ++level.tried;
    return level.ranks[draw() % level.ranks.size()];
  }

  // The attempt on the last one succeeded: the next search begins at the innermost level.
  void succeeded() {
    ++levels_[level_].stolen;
    level_ = 0;
    attempts_ = 0;
  }

  // Per level: how often it was tried, and with success.
  [[nodiscard]] size_t level_count() const { return levels_.size(); }
  [[nodiscard]] uint64_t tried(size_t level) const { return levels_[level].tried; }
  [[nodiscard]] uint64_t stolen(size_t level) const { return levels_[level].stolen; }

 private:
  struct Level {
    std::vector<int> ranks;
    uint64_t tried;
    uint64_t stolen;
  };

  uint64_t draw() {  // xorshift64*, Marsaglia 2003
    random_ ^= random_ >> 12;
    random_ ^= random_ << 25;
    random_ ^= random_ >> 27;
    return random_ * 0x2545F4914F6CDD1D >> 32;
  }

  std::vector<Level> levels_;
  size_t level_ = 0;
  size_t attempts_ = 0;
  uint64_t random_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_VICTIMS_H_
