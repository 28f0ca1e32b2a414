// The nodes of a process by the keys of their positions: so that a position to which several orders
// of moves lead has one node (SearchOptions::transpositions).
//
// What is counted of a move stays in each node that it is made from; what is known below the
// position is shared. Positions must not repeat in a line of the game, since the tree is walked
// down without looking for circles; and different positions must not have equal keys, which is a
// matter of luck with 64 bits: expect it after some billion nodes.
#ifndef CARIAMA_MCTS_TRANSPOSITIONS_H_
#define CARIAMA_MCTS_TRANSPOSITIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "mcts/node.h"

namespace cariama::mcts {

// Thread-safe; a lock for each new node. Some 40 bytes for each node besides the limit on memory.
template <Game G>
class Transpositions {
 public:
  // The node with that key, which gets one more parent; or nullptr.
  [[nodiscard]] Node<G>* find(uint64_t key) {
    Part& part = part_of(key);
    const std::lock_guard lock(part.mutex);
    const auto found = part.nodes.find(key);
    if (found == part.nodes.end()) return nullptr;
    found->second->add_parent();
    return found->second;
  }
  // The same, and `made` if there is none: the first parent is the one that a node is made for.
  [[nodiscard]] Node<G>* find_or_add(uint64_t key, Node<G>* made) {
    Part& part = part_of(key);
    const std::lock_guard lock(part.mutex);
    const auto [place, added] = part.nodes.try_emplace(key, made);
    if (!added) place->second->add_parent();
    return place->second;
  }
  // One parent less. True: there is none, and the node is the caller's.
  [[nodiscard]] bool drop_parent(Node<G>* node) {
    Part& part = part_of(node->key());
    const std::lock_guard lock(part.mutex);
    if (!node->drop_parent()) return false;
    const auto found = part.nodes.find(node->key());
    if (found != part.nodes.end() && found->second == node) part.nodes.erase(found);
    return true;
  }
  // While nobody uses it.
  void clear() {
    for (Part& part : parts_) part.nodes.clear();
  }

 private:
  static constexpr size_t kParts = 64;  // so that threads seldom meet

  struct alignas(64) Part {
    std::mutex mutex;
    std::unordered_map<uint64_t, Node<G>*> nodes;
  };
  [[nodiscard]] Part& part_of(uint64_t key) { return parts_[Random::mix(key) % kParts]; }

  std::array<Part, kParts> parts_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_TRANSPOSITIONS_H_
