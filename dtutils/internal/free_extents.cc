#include "dtutils/internal/free_extents.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <optional>
#include <set>
#include <utility>

namespace cariama::internal {
namespace {

uintptr_t align_up(uintptr_t address, size_t alignment) {
  return (address + alignment - 1) & ~(uintptr_t{alignment} - 1);
}

// Returns the start of the aligned range within the extent, or an empty optional if it does not
// fit.
std::optional<uintptr_t> place_in(Extent extent, size_t bytes, size_t alignment) {
  const uintptr_t start = align_up(extent.address, alignment);
  if (start < extent.address || start > extent.end() || extent.end() - start < bytes) {
    return std::nullopt;
  }
  return start;
}

}  // namespace

struct FreeExtents::Node {
  Extent extent;
  uint64_t priority = 0;
  size_t largest = 0;  // bytes of the largest extent of this subtree
  Node* left = nullptr;
  Node* right = nullptr;

  void update() {
    largest = extent.bytes;
    if (left != nullptr) largest = std::max(largest, left->largest);
    if (right != nullptr) largest = std::max(largest, right->largest);
  }
};

struct FreeExtents::Entry {
  std::unique_ptr<Node> node;                               // of the tree
  std::set<std::pair<size_t, uintptr_t>>::node_type place;  // in by_size_
};

FreeExtents::~FreeExtents() {
  while (!by_size_.empty()) remove({by_size_.begin()->second, by_size_.begin()->first});
}

FreeExtents::Node* FreeExtents::find_first(Node* node, uintptr_t from, size_t bytes) {
  // At most one path is searched without result: subtrees left of `from` are not entered, and a
  // subtree right of it whose `largest` is large enough always contains the answer.
  if (node == nullptr || node->largest < bytes) return nullptr;
  if (node->extent.address >= from) {
    if (Node* const found = find_first(node->left, from, bytes)) return found;
    if (node->extent.bytes >= bytes) return node;
  }
  return find_first(node->right, from, bytes);
}

void FreeExtents::split(Node* node, uintptr_t address, Node** below, Node** from) {
  if (node == nullptr) {
    *below = *from = nullptr;
  } else if (node->extent.address < address) {
    *below = node;
    split(node->right, address, &node->right, from);
    node->update();
  } else {
    *from = node;
    split(node->left, address, below, &node->left);
    node->update();
  }
}

FreeExtents::Node* FreeExtents::merge(Node* left, Node* right) {
  if (left == nullptr) return right;
  if (right == nullptr) return left;
  Node* const top = left->priority > right->priority ? left : right;
  if (top == left) {
    left->right = merge(left->right, right);
  } else {
    right->left = merge(left, right->left);
  }
  top->update();
  return top;
}

const FreeExtents::Node* FreeExtents::predecessor(uintptr_t address) const {
  const Node* best = nullptr;
  for (const Node* node = root_; node != nullptr;) {
    if (node->extent.address < address) {
      best = node;
      node = node->right;
    } else {
      node = node->left;
    }
  }
  return best;
}

const FreeExtents::Node* FreeExtents::at(uintptr_t address) const {
  const Node* node = root_;
  while (node != nullptr && node->extent.address != address) {
    node = address < node->extent.address ? node->left : node->right;
  }
  return node;
}

FreeExtents::Entry FreeExtents::make_entry() {
  std::set<std::pair<size_t, uintptr_t>> place;
  place.emplace();
  // The priorities only have to be uncorrelated with the addresses.
  auto node = std::make_unique<Node>();
  node->priority = random_.next();
  return {std::move(node), place.extract(place.begin())};
}

void FreeExtents::add(Extent extent, Entry entry) noexcept {
  Node* const node = entry.node.release();
  node->extent = extent;
  node->largest = extent.bytes;
  node->left = node->right = nullptr;
  Node* below = nullptr;
  Node* from = nullptr;
  split(root_, extent.address, &below, &from);
  root_ = merge(merge(below, node), from);
  entry.place.value() = {extent.bytes, extent.address};
  by_size_.insert(std::move(entry.place));
  free_bytes_ += extent.bytes;
}

FreeExtents::Entry FreeExtents::remove(Extent extent) noexcept {
  Node* below = nullptr;
  Node* middle = nullptr;
  Node* above = nullptr;
  split(root_, extent.address, &below, &middle);
  split(middle, extent.address + 1, &middle, &above);
  assert(middle != nullptr && middle->extent == extent);
  root_ = merge(below, above);
  free_bytes_ -= extent.bytes;
  return {std::unique_ptr<Node>(middle), by_size_.extract(std::pair(extent.bytes, extent.address))};
}

void FreeExtents::carve(Extent extent, uintptr_t start, size_t bytes) {
  const uintptr_t end = start + bytes;
  const Extent before{extent.address, start - extent.address};
  const Extent after{end, extent.end() - end};
  if (before.bytes != 0 && after.bytes != 0) {
    Entry second = make_entry();
    add(before, remove(extent));
    add(after, std::move(second));
    return;
  }
  Entry entry = remove(extent);
  if (before.bytes != 0) {
    add(before, std::move(entry));
  } else if (after.bytes != 0) {
    add(after, std::move(entry));
  }
}

std::optional<uintptr_t> FreeExtents::take_best(size_t bytes, size_t alignment) {
  for (auto it = by_size_.lower_bound({bytes, 0}); it != by_size_.end(); ++it) {
    const Extent extent{it->second, it->first};
    if (const std::optional<uintptr_t> start = place_in(extent, bytes, alignment)) {
      carve(extent, *start, bytes);
      return start;
    }
  }
  return std::nullopt;
}

std::optional<uintptr_t> FreeExtents::take_first(size_t bytes, size_t alignment) {
  uintptr_t from = 0;
  while (Node* const node = find_first(root_, from, bytes)) {
    const Extent extent = node->extent;
    if (const std::optional<uintptr_t> start = place_in(extent, bytes, alignment)) {
      carve(extent, *start, bytes);
      return start;
    }
    from = extent.end();
  }
  return std::nullopt;
}

Extent FreeExtents::insert(Extent extent, Extent bounds) {
  assert(extent.bytes > 0 && extent.address >= bounds.address && extent.end() <= bounds.end());
  std::optional<Entry> entry;
  if (const Node* const before = predecessor(extent.address);
      before != nullptr && before->extent.end() == extent.address &&
      before->extent.address >= bounds.address) {
    const Extent joined = before->extent;
    entry = remove(joined);
    extent = {joined.address, joined.bytes + extent.bytes};
  }
  if (const Node* const after = at(extent.end());
      after != nullptr && after->extent.end() <= bounds.end()) {
    const Extent joined = after->extent;
    entry = remove(joined);
    extent.bytes += joined.bytes;
  }
  if (!entry) entry = make_entry();
  add(extent, *std::move(entry));
  return extent;
}

void FreeExtents::erase(Extent extent) { remove(extent); }

}  // namespace cariama::internal
