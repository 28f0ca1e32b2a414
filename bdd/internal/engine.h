// Engine: the objects by which one process executes operations: the node table, the operation
// cache, and the transition groups of a model.
#ifndef CARIAMA_BDD_INTERNAL_ENGINE_H_
#define CARIAMA_BDD_INTERNAL_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bdd/edge.h"
#include "bdd/internal/batch.h"
#include "bdd/internal/host_memory.h"
#include "bdd/internal/node_table.h"
#include "bdd/internal/operation_cache.h"
#include "dsfabric/fabric.h"

namespace cariama::bdd::internal {

// Thrown by an operation for which the node table has no room. Manager catches it, collects or
// grows, and repeats the operation.
class NoRoom : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Numbers of the operations in keys of the operation cache. 0 is no operation.
enum class Op : uint8_t {
  kNone,
  kAnd,
  kXor,
  kIte,
  kExists,
  kAndExists,
  kNext,
  kPrevious,
  kCompose,
  kSaturate,
};

[[nodiscard]] constexpr uint64_t key_of(Op op, Edge edge) {
  return edge | static_cast<uint64_t>(op) << 40;
}

// A transition relation over the variables `variables` (a conjunction of unprimed variables).
struct Group {
  Edge relation;
  Edge variables;
  uint32_t first_variable;  // the smallest of `variables`
  uint32_t end_of_equal;    // index after the last group with the same first_variable

  friend bool operator==(const Group&, const Group&) = default;
};

struct Engine {
  Engine(std::unique_ptr<NodeTable> nodes, size_t cache_bytes)
      : table(std::move(nodes)), cache(cache_bytes) {}
  // In a job: `memory` holds the cache of the processes of this host.
  Engine(std::unique_ptr<NodeTable> nodes, HostMemory memory)
      : table(std::move(nodes)), cache_memory(std::move(memory)), cache(cache_memory.bytes()) {}

  [[nodiscard]] Sons sons(Edge edge) const {
    const Node node = table->read(edge & kIndexMask);
    return {node.variable(), negate_if(node.low(), edge), negate_if(node.high(), edge)};
  }
  [[nodiscard]] uint32_t variable(Edge edge) const {
    return table->read(edge & kIndexMask).variable();
  }
  // Returns the edge of the function "if variable then high else low". Throws NoRoom.
  [[nodiscard]] Edge make(uint32_t variable, Edge low, Edge high) {
    if (low == high) return low;
    const Edge mark = low & kMark;
    const uint64_t index = table->find_or_put(Node::of(variable, low ^ mark, high ^ mark));
    if (index == NodeTable::kFull) [[unlikely]]
      no_room();
    return index | mark;
  }
  [[noreturn, gnu::cold]] void no_room() {
    is_full = true;
    throw NoRoom("the node table is full");
  }

  cariama::internal::FabricUse use;  // in a job
  std::unique_ptr<NodeTable> table;
  HostMemory cache_memory;  // of a shared cache
  OperationCache cache;
  std::unique_ptr<Batch> batch;  // nullptr: each step waits for its look-ups
  // Set when the table has no room in this process. Until the next attempt each further step of a
  // task throws when it begins: its result would be discarded.
  bool is_full = false;
  std::vector<Group> groups;  // in ascending order of first_variable
  uint64_t group_set = 0;     // number of the value of `groups`
};

// The engine of the worker process in which a task currently runs. A task that may have migrated
// must read this variable again.
extern Engine* worker_engine;

}  // namespace cariama::bdd::internal

#endif  // CARIAMA_BDD_INTERNAL_ENGINE_H_
