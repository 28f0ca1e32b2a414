// Transpositions: a table of the nodes of a process by the keys of their positions. With it,
// a position that several orders of moves reach has one node (SearchOptions::transpositions).
//
// The counts of a move stay in the node in which the move is made, one per parent. The subtree
// below the position is shared. Requires: no position repeats in a sequence of moves, since
// rollouts do not check for cycles. Requires: different positions have different keys. With keys of
// 64 bits the first collision is to be expected after some billion nodes.
#ifndef CARIAMA_MCTS_ENGINE_TRANSPOSITIONS_H_
#define CARIAMA_MCTS_ENGINE_TRANSPOSITIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "mcts/engine/node.h"

namespace cariama::mcts {

// Thread-safe, except clear(). Takes a lock per new node. The table takes about 40 bytes per node,
// in addition to SearchOptions::memory_bytes.
template <Game G>
class Transpositions {
 public:
  // Returns the node with this key and adds a parent to it, or returns nullptr.
  [[nodiscard]] Node<G>* find(uint64_t key) {
    Part& part = part_of(key);
    const std::lock_guard lock(part.mutex);
    const auto found = part.nodes.find(key);
    if (found == part.nodes.end()) return nullptr;
    found->second->add_parent();
    return found->second;
  }
  // Returns the node with this key and adds a parent to it. If there is none, enters `created` and
  // returns it; a new node counts its first parent already.
  [[nodiscard]] Node<G>* find_or_add(uint64_t key, Node<G>* created) {
    Part& part = part_of(key);
    const std::lock_guard lock(part.mutex);
    const auto [place, added] = part.nodes.try_emplace(key, created);
    if (!added) place->second->add_parent();
    return place->second;
  }
  // Removes a parent of the node. Returns true if no parent is left. Then the node has left the
  // table, and the caller frees it.
  [[nodiscard]] bool drop_parent(Node<G>* node) {
    Part& part = part_of(node->key());
    const std::lock_guard lock(part.mutex);
    if (!node->drop_parent()) return false;
    const auto found = part.nodes.find(node->key());
    if (found != part.nodes.end() && found->second == node) part.nodes.erase(found);
    return true;
  }
  // Removes all nodes. Requires: no other thread uses the table.
  void clear() {
    for (Part& part : parts_) part.nodes.clear();
  }

 private:
  static constexpr size_t kParts = 64;  // many locks, so that threads seldom contend for one

  struct alignas(64) Part {
    std::mutex mutex;
    std::unordered_map<uint64_t, Node<G>*> nodes;
  };
  [[nodiscard]] Part& part_of(uint64_t key) { return parts_[Random::mix(key) % kParts]; }

  std::array<Part, kParts> parts_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_TRANSPOSITIONS_H_
