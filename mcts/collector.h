// Finds the cold part of a process's tree, to be freed: a little at a time, so that whoever waits
// for the memory can be told to stop.
//
// A pass looks at every node, and gives up the subtrees below moves that were tried less than
// `least` times; the next pass asks for twice as many. Nothing of the tree may be freed by others
// between the steps of one top (a node without a parent in this process), since the way is kept.
#ifndef CARIAMA_MCTS_COLLECTOR_H_
#define CARIAMA_MCTS_COLLECTOR_H_

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mcts/job.h"
#include "mcts/node.h"

namespace cariama::mcts {

// Belongs to worker 0, while nobody searches.
template <Game G>
class Collector {
 public:
  static constexpr uint32_t kLastLeast = 1U << 30;

  // tops: names of nodes whose parents are elsewhere; the root has none.
  void begin_pass(uint32_t least, Node<G>* root, std::vector<SlotId> tops) {
    least_ = least;
    tops_ = std::move(tops);
    seen_.clear();
    open_.clear();
    if (root != nullptr) open_.push_back(root);
  }
  [[nodiscard]] uint32_t least() const { return least_; }

  // Between two tops: the rest may be changed now.
  [[nodiscard]] bool between() const { return open_.empty(); }
  // The next top: `find` says which node has a name, if one still has. False: the pass is over.
  template <typename Find>
  [[nodiscard]] bool next_top(Find&& find) {
    if (tops_.empty()) return false;
    if (const std::optional<Node<G>*> node = find(tops_.back())) open(*node);
    tops_.pop_back();
    return true;
  }
  // Looks at one node. Precondition: !between(). `release` is called for cold nodes of this
  // process, `elsewhere` for names of cold nodes of others.
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
  // A node with several parents (transpositions) is looked at once.
  void open(Node<G>* node) {
    if (!node->shared() || seen_.insert(node).second) open_.push_back(node);
  }

  uint32_t least_ = 0;
  std::vector<SlotId> tops_;
  std::vector<Node<G>*> open_;
  std::unordered_set<const Node<G>*> seen_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_COLLECTOR_H_
