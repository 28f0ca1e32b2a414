// Free ranges of addresses, found by size (best fit) or by address (first fit), in O(log n).
//
// Neighbours are joined when they are given back, within the bounds that the caller names: ranges
// of different registrations must not grow together even if they touch. Not thread-safe.
#ifndef CARIAMA_DTUTILS_INTERNAL_FREE_EXTENTS_H_
#define CARIAMA_DTUTILS_INTERNAL_FREE_EXTENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

namespace cariama::internal {

struct Extent {
  uintptr_t address = 0;
  size_t bytes = 0;

  [[nodiscard]] uintptr_t end() const { return address + bytes; }
  friend bool operator==(const Extent&, const Extent&) = default;
};

class FreeExtents {
 public:
  FreeExtents() = default;
  ~FreeExtents();
  FreeExtents(const FreeExtents&) = delete;
  FreeExtents& operator=(const FreeExtents&) = delete;

  // Takes `bytes` at a multiple of `alignment` (a power of two) out of the smallest extent that
  // holds them; the one at the lowest address among equals. Nothing if no extent does. O(log n); an
  // alignment to which the extents are not aligned adds a step per extent smaller than bytes +
  // alignment.
  [[nodiscard]] std::optional<uintptr_t> take_best(size_t bytes, size_t alignment);

  // The same out of the extent at the lowest address.
  [[nodiscard]] std::optional<uintptr_t> take_first(size_t bytes, size_t alignment);

  // Adds a range, which must not overlap a free one, joined with neighbours inside `bounds`.
  // Returns the extent that came out.
  Extent insert(Extent extent, Extent bounds);

  // Removes an extent as insert() returned it.
  void erase(Extent extent);

  // Whether exactly this extent is free, not joined with more.
  [[nodiscard]] bool contains(Extent extent) const {
    return by_size_.contains({extent.bytes, extent.address});
  }

  [[nodiscard]] size_t free_bytes() const { return free_bytes_; }
  [[nodiscard]] size_t count() const { return by_size_.size(); }
  [[nodiscard]] size_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  // A treap: a search tree by address, a heap by random priority, hence balanced in expectation.
  // Each node knows the largest extent beneath it, which is what first fit descends by.
  struct Node;

  static Node* find_first(Node* node, uintptr_t from, size_t bytes);
  static void split(Node* node, uintptr_t address, Node** below, Node** from);
  static Node* merge(Node* left, Node* right);
  // The extent with the highest address below `address`; the one that starts there.
  [[nodiscard]] const Node* predecessor(uintptr_t address) const;
  [[nodiscard]] const Node* at(uintptr_t address) const;

  void add(Extent extent);
  void remove(Extent extent);
  // Carves [start, start + bytes) out of the extent.
  void carve(Extent extent, uintptr_t start, size_t bytes);

  Node* root_ = nullptr;
  std::set<std::pair<size_t, uintptr_t>> by_size_;
  size_t free_bytes_ = 0;
  uint64_t random_ = 0x9e3779b97f4a7c15;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_FREE_EXTENTS_H_
