// IndexMap: values of visited nodes during a traversal of diagrams.
#ifndef CARIAMA_BDD_INTERNAL_INDEX_MAP_H_
#define CARIAMA_BDD_INTERNAL_INDEX_MAP_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cariama::bdd::internal {

// Maps node indices, which are not 0, to values of 64 bits. Open addressing; at most half full.
class IndexMap {
 public:
  // Returns the value of `index`, or nullptr. Valid until the next insert().
  [[nodiscard]] const uint64_t* find(uint64_t index) const {
    for (size_t at = place(index);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].first == index) return &slots_[at].second;
      if (slots_[at].first == 0) return nullptr;
    }
  }
  // Requires: the map does not contain `index`.
  void insert(uint64_t index, uint64_t value) {
    if (2 * ++count_ > slots_.size()) grow();
    store(index, value);
  }
  [[nodiscard]] size_t size() const { return count_; }

 private:
  [[nodiscard]] size_t place(uint64_t index) const {
    return (index * 0x9e3779b97f4a7c15 >> 20) & (slots_.size() - 1);
  }
  void store(uint64_t index, uint64_t value) {
    size_t at = place(index);
    while (slots_[at].first != 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {index, value};
  }
  void grow() {
    auto old = std::exchange(slots_, std::vector<std::pair<uint64_t, uint64_t>>(2 * slots_.size()));
    for (const auto& [index, value] : old) {
      if (index != 0) store(index, value);
    }
  }

  std::vector<std::pair<uint64_t, uint64_t>> slots_{1024};
  size_t count_ = 0;
};

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_INDEX_MAP_H_
