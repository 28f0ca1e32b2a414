// Free ranges of addresses, found by size (best fit) or by address (first fit), in O(log n).
//
// insert() joins neighbours within the bounds that the caller passes: ranges of different
// registrations must not be joined even if they are adjacent. Not thread-safe.
#ifndef CARIAMA_DTUTILS_INTERNAL_FREE_EXTENTS_H_
#define CARIAMA_DTUTILS_INTERNAL_FREE_EXTENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "dtutils/random.h"

namespace cariama::internal {

// Returns the address of `memory` as the number that extents contain.
[[nodiscard]] inline uintptr_t address_of(const std::byte* memory) {
  return reinterpret_cast<uintptr_t>(memory);
}

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

  // Takes `bytes` at a multiple of `alignment` (a power of two) out of the smallest extent that can
  // hold them; among equal sizes, the one at the lowest address. Returns the start of the range, or
  // an empty optional if no extent is large enough. O(log n); an alignment to which the extents are
  // not aligned adds a step per extent smaller than bytes + alignment. Throws std::bad_alloc, and
  // then has changed nothing.
  [[nodiscard]] std::optional<uintptr_t> take_best(size_t bytes, size_t alignment);

  // Takes `bytes` at a multiple of `alignment` out of the extent at the lowest address that can
  // hold them. Otherwise like take_best().
  [[nodiscard]] std::optional<uintptr_t> take_first(size_t bytes, size_t alignment);

  // Adds a range and joins it with free neighbours inside `bounds`. Returns the resulting extent.
  // Requires: the range overlaps no free range. Throws std::bad_alloc, unless the range has such a
  // neighbour, and then has changed nothing.
  Extent insert(Extent extent, Extent bounds);

  // Removes an extent. Requires: the extent is exactly one that insert() returned.
  void erase(Extent extent);

  // Returns true if exactly this extent is free and is not part of a larger one.
  [[nodiscard]] bool contains(Extent extent) const {
    return by_size_.contains({extent.bytes, extent.address});
  }

  [[nodiscard]] size_t free_bytes() const { return free_bytes_; }
  [[nodiscard]] size_t count() const { return by_size_.size(); }
  [[nodiscard]] size_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  // A treap: a search tree by address and a heap by random priority, hence balanced in expectation.
  // Each node stores the size of the largest extent of its subtree, by which first fit descends.
  struct Node;
  // What an extent needs in both orders.
  struct Entry;

  static Node* find_first(Node* node, uintptr_t from, size_t bytes);
  static void split(Node* node, uintptr_t address, Node** below, Node** from);
  static Node* merge(Node* left, Node* right);
  // Return the extent with the highest address below `address`, and the extent that starts at
  // `address`.
  [[nodiscard]] const Node* predecessor(uintptr_t address) const;
  [[nodiscard]] const Node* at(uintptr_t address) const;

  // Allocates an entry. The functions below do not allocate: an exception between them would lose
  // an extent.
  [[nodiscard]] Entry make_entry();
  void add(Extent extent, Entry entry) noexcept;
  Entry remove(Extent extent) noexcept;
  // Removes [start, start + bytes) from the extent.
  void carve(Extent extent, uintptr_t start, size_t bytes);

  Node* root_ = nullptr;
  std::set<std::pair<size_t, uintptr_t>> by_size_;
  size_t free_bytes_ = 0;
  Random random_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_FREE_EXTENTS_H_
