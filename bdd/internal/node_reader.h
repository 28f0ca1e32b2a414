// NodeReader: the nodes of some functions, for a traversal that reads each of them.
#ifndef CARIAMA_BDD_INTERNAL_NODE_READER_H_
#define CARIAMA_BDD_INTERNAL_NODE_READER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bdd/edge.h"
#include "bdd/internal/index_map.h"
#include "bdd/internal/node_table.h"

namespace cariama::bdd::internal {

// If a part of the table is not mapped, the constructor copies all nodes of the functions, 16 bytes
// each and up to 64 bytes for the map of their indices. It reads the nodes of equal distance from a
// root together, so the copy takes about one round trip for each level of the functions.
class NodeReader {
 public:
  NodeReader(const NodeTable& table, std::span<const Edge> functions) : table_(table) {
    if (!table.is_remote()) return;
    std::vector<uint64_t> next;
    const auto visit = [&](Edge edge) {
      const uint64_t index = edge & kIndexMask;
      if (index == 0 || places_.find(index) != nullptr) return;
      places_.insert(index, nodes_.size() + next.size());
      next.push_back(index);
    };
    for (const Edge function : functions) visit(function);
    while (!next.empty()) {
      const size_t before = nodes_.size();
      nodes_.resize(before + next.size());
      table.read(next, std::span(nodes_).subspan(before));
      next.clear();
      for (size_t i = before, end = nodes_.size(); i < end; ++i) {
        visit(nodes_[i].low());
        visit(nodes_[i].high());
      }
    }
  }

  // Requires: `index` is the index of a node of the functions.
  [[nodiscard]] Node read(uint64_t index) const {
    return table_.is_remote() ? nodes_[*places_.find(index)] : table_.read(index);
  }

 private:
  const NodeTable& table_;
  IndexMap places_;
  std::vector<Node> nodes_;
};

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_NODE_READER_H_
