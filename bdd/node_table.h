// NodeTable: the unique table of diagrams. It finds the index of a node by its content, and reads a
// node by its index.
//
// A table of one process is an array of nodes in the order of their creation, so that nodes that
// were made together are read together, and an array of slots, which finds them by their hash. Its
// operations are plain loads and stores, without atomics.
//
// A table of a job is a distributed hash table (dht/hash_table.h): each process has a part of the
// buckets, selected by the hash of a node. Nodes never change, so a process copies nodes of parts
// that are not mapped into a cache.
#ifndef CARIAMA_BDD_NODE_TABLE_H_
#define CARIAMA_BDD_NODE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bdd/edge.h"
#include "bdd/export.h"
#include "dht/hash_table.h"
#include "dsfabric/collectives.h"
#include "dtutils/wait.h"

namespace cariama::bdd {

class CARIAMA_BDD_EXPORT NodeTable {
 public:
  // Bytes for a node in a table of one process: the node, and at most two slots. In a table of a
  // job: of a bucket.
  static constexpr size_t kPrivateNodeBytes = sizeof(Node) + 2 * sizeof(uint64_t);
  static constexpr size_t kBucketBytes = sizeof(Node);
  // Returned by find_or_put() if the table has no room.
  static constexpr uint64_t kFull = ~uint64_t{0};

  // A table of this process for bytes / kPrivateNodeBytes nodes. Memory is used as nodes are added.
  // Errors: RESOURCE_EXHAUSTED.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<NodeTable>> create(uint64_t bytes);
  // A table of a job, with `bytes` in each process. Collective. `remote`: one-sided transfers for
  // the parts of all processes, also where they are mapped. Errors: those of HashTable::create,
  // HashTable::access and agree() (dht/agreement.h); INVALID_ARGUMENT (more than 2^40 buckets).
  // Every process gets an error if one does. `long_probes`: an insert examines up to 131,072
  // buckets instead of 512, for nodes that did fit into a table of this size.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<NodeTable>> create(
      Collectives& all, uint64_t bytes, bool remote, bool long_probes, Deadline deadline);
  ~NodeTable();
  NodeTable(const NodeTable&) = delete;
  NodeTable& operator=(const NodeTable&) = delete;

  // Returns the node with an index that find_or_put() of any process has returned, or the constant
  // for index 0. Blocks for a round trip if the node is in a part that is not mapped, and not in
  // the cache. Throws std::runtime_error if the owner of the node has failed.
  [[nodiscard]] Node read(uint64_t index) const {
    if (nodes_ != nullptr) [[likely]]
      return nodes_[index];
    return read_shared(index);
  }
  // Returns the index of `node`, which is put into the table if it is not there. Blocks for two or
  // more round trips if its part is not mapped. Throws like read().
  [[nodiscard]] uint64_t find_or_put(const Node& node) {
    if (nodes_ == nullptr) return find_or_put_shared(node);
    const uint64_t hashed = hash(node);
    const uint64_t tag = hashed & ~kIndexMask;
    for (uint64_t at = hashed & mask_;; at = (at + 1) & mask_) {
      const uint64_t slot = slots_[at];
      if (slot == 0) return insert(node, at, tag);
      const uint64_t index = slot & kIndexMask;
      if ((slot & ~kIndexMask) == tag && nodes_[index] == node) return index;
    }
  }

  // Returns the number of nodes in this process's part. In a job it reads the whole part.
  [[nodiscard]] uint64_t owned_nodes() const;
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  // Returns the number of find_or_put() calls on nodes of other processes.
  [[nodiscard]] uint64_t remote_find_or_puts() const { return remote_; }
  // In a job: returns the lowest rank whose part is mapped in this process.
  [[nodiscard]] uint32_t first_mapped() const { return first_mapped_; }
  // Frees the memory of a job's table after all processes have called it. Collective. After an
  // error nothing is freed, and the table may only be destroyed.
  [[nodiscard]] absl::Status destroy(Deadline deadline);
  // Makes the destructor leave this process's part allocated until the fabric ends: other processes
  // may still use it.
  void abandon();

 private:
  using Table = HashTable<2>;
  using Access = TableAccess<2>;
  struct CachedNode {
    uint64_t index;
    Node node;
  };

  NodeTable() = default;
  [[nodiscard]] uint64_t insert(const Node& node, uint64_t at, uint64_t tag) {
    if (count_ == limit_) [[unlikely]]
      return kFull;
    nodes_[++count_] = node;
    slots_[at] = count_ | tag;
    // At most three of four slots are in use.
    if (4 * count_ > 3 * mask_) [[unlikely]] {
      const uint64_t index = count_;
      if (mask_ + 1 < 2 * limit_) add_slots();
      return index;
    }
    return count_;
  }
  void add_slots();
  [[nodiscard]] static uint64_t hash(const Node& node) {
    const uint64_t mixed = (node.first ^ node.first >> 33) * 0x9e3779b97f4a7c15 + node.second;
    const uint64_t product = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93;
    return product ^ product >> 32;
  }
  [[nodiscard]] Node read_shared(uint64_t index) const {
    if (index == 0) return Node::of(kNoVariable, 0, 0);
    if (nodes_are_mapped_) [[likely]] {
      TableKey<2> key;
      if (access_->read(index - 1, key) == TableOutcome::kFound) [[likely]]
        return {key[0], key[1]};
    }
    return read_remote(index);
  }
  [[nodiscard]] uint64_t find_or_put_shared(const Node& node) {
    const TableResult result = access_->find_or_put({node.first, node.second});
    if (result.outcome == TableOutcome::kFull) return kFull;
    if (result.outcome > TableOutcome::kInserted) [[unlikely]]
      lost();
    remote_ += result.index >> owner_shift_ != rank_;
    return result.index + 1;
  }
  [[nodiscard, gnu::noinline]] Node read_remote(uint64_t index) const;
  [[noreturn, gnu::cold]] void lost() const;

  // A table of this process. nodes_[0] is the constant. A slot has the index of a node in bits
  // 39..0, and the bits 63..40 of its hash.
  Node* nodes_ = nullptr;
  uint64_t* slots_ = nullptr;
  uint64_t mask_ = 0;  // number of slots - 1
  uint64_t count_ = 0;
  uint64_t limit_ = 0;

  // A table of a job.
  std::unique_ptr<Table> table_;
  std::unique_ptr<Access> access_;
  mutable std::unique_ptr<CachedNode[]> cache_;  // of nodes that are not mapped
  bool nodes_are_mapped_ = false;
  uint32_t owner_shift_ = 0;
  uint32_t rank_ = 0;
  uint32_t first_mapped_ = 0;
  uint64_t remote_ = 0;

  uint64_t bytes_ = 0;
};

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_NODE_TABLE_H_
