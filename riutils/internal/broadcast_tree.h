// The tree along which a broadcast is forwarded.
#ifndef CARIAMA_RIUTILS_INTERNAL_BROADCAST_TREE_H_
#define CARIAMA_RIUTILS_INTERNAL_BROADCAST_TREE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace cariama::internal {

// A binomial tree over the processes of a job. A place is a rank counted from the root: the root
// has place 0. Place v has the children v + 2^i for all 2^i below the lowest set bit of v (the
// root: for all 2^i below the number of processes). The subtree of v is the places from v up to the
// next place that is no descendant of v.
class BroadcastTree {
 public:
  // Requires: root < processes.
  BroadcastTree(uint32_t root, uint32_t processes) : root_(root), processes_(processes) {}

  [[nodiscard]] uint64_t place_of(uint32_t rank) const {
    return (rank + uint64_t{processes_} - root_) % processes_;
  }
  [[nodiscard]] uint32_t rank_of(uint64_t place) const {
    return static_cast<uint32_t>((place + root_) % processes_);
  }
  // Requires: place != 0.
  [[nodiscard]] static uint64_t parent(uint64_t place) { return place & (place - 1); }
  // The child with the largest subtree comes first.
  [[nodiscard]] std::vector<uint64_t> children(uint64_t place) const {
    std::vector<uint64_t> children;
    for (uint64_t bit = lowest_bit(place) >> 1; bit != 0; bit >>= 1) {
      if (place + bit < processes_) children.push_back(place + bit);
    }
    return children;
  }
  // Returns the number of processes in the subtree, this one included.
  [[nodiscard]] uint64_t subtree_size(uint64_t place) const {
    return std::min(lowest_bit(place), processes_ - place);
  }

 private:
  [[nodiscard]] uint64_t lowest_bit(uint64_t place) const {
    uint64_t bit = 1;
    while (bit < processes_ && (place & bit) == 0) bit <<= 1;
    return bit;
  }

  const uint32_t root_;
  const uint64_t processes_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_BROADCAST_TREE_H_
