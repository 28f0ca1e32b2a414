// Collector: finds the cold subtrees of a process's tree, which the caller frees. It works in small
// steps, so that the caller can stop in between.
//
// A pass visits every node and detaches the subtrees below moves with fewer than `least` visits.
// The caller doubles `least` from pass to pass. A top is a node without a parent in this process.
// Requires: between the first and the last step of one top, other code frees no node, since the
// collector keeps pointers to nodes that it has still to visit.
#ifndef CARIAMA_MCTS_ENGINE_COLLECTOR_H_
#define CARIAMA_MCTS_ENGINE_COLLECTOR_H_

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mcts/engine/node.h"
#include "mcts/engine/slot_table.h"

namespace cariama::mcts {

// Not thread-safe: only worker 0 may use it, while no rollout is running.
template <Game G>
class Collector {
 public:
  static constexpr uint32_t kLastLeast = 1U
                                         << 30;  // the caller begins no pass with a larger `least`

  // Begins a pass. root: the root of the search, or nullptr. tops: names of the nodes whose parents
  // are in other processes.
  void begin_pass(uint32_t least, Node<G>* root, std::vector<SlotId> tops) {
    least_ = least;
    tops_ = std::move(tops);
    seen_.clear();
    open_.clear();
    if (root != nullptr) open_.push_back(root);
  }
  [[nodiscard]] uint32_t least() const { return least_; }

  // Returns true between two tops: the collector has no pointers to nodes, so nodes may be freed.
  [[nodiscard]] bool between() const { return open_.empty(); }
  // Opens the next top for collection. `find` returns the node with a name, or nullopt if there is
  // none any more. Returns false if the pass is finished.
  template <typename Find>
  [[nodiscard]] bool next_top(Find&& find) {
    if (tops_.empty()) return false;
    if (const std::optional<Node<G>*> node = find(tops_.back())) open(*node);
    tops_.pop_back();
    return true;
  }
  // Visits one node. Requires: !between(). Calls `release` for cold children in this process and
  // `elsewhere` for the names of cold children in other processes.
  template <typename Release, typename Elsewhere>
  void step(Release&& release, Elsewhere&& elsewhere) {
    Node<G>* node = open_.back();
    open_.pop_back();
    for (int i = 0; i < node->size(); ++i) {
      const auto child = node->child(i);
      if (child.none()) continue;
      if (node->visits(i) >= least_) {
        if (child.is_local()) open(child.local());
        continue;
      }
      if (child.is_local()) {
        release(child.local());
      } else if (child.is_remote()) {
        elsewhere(child.remote());
      }
      node->set_child(i, {});
    }
  }

 private:
  // A node with several parents (transpositions) is visited once.
  void open(Node<G>* node) {
    if (!node->shared() || seen_.insert(node).second) open_.push_back(node);
  }

  uint32_t least_ = 0;
  std::vector<SlotId> tops_;
  std::vector<Node<G>*> open_;
  std::unordered_set<const Node<G>*> seen_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_COLLECTOR_H_
