// NodeTable: the unique table of diagrams. It finds the index of a node by its content, and reads a
// node by its index. Not for users: Manager (bdd.h) owns it.
//
// A table of one process is an array of nodes in the order of their creation, so that nodes that
// were made together are read together, and an array of slots, which finds them by their hash. Its
// operations are plain loads and stores, without atomics.
//
// A table of a job is a distributed hash table (dht/hash_table.h): each process has a part of the
// buckets, selected by the hash of a node. Nodes never change, so a process copies nodes of parts
// that are not mapped into two caches, one by index and one by content. Look-ups of several nodes
// at a time overlap their round trips.
#ifndef CARIAMA_BDD_INTERNAL_NODE_TABLE_H_
#define CARIAMA_BDD_INTERNAL_NODE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bdd/edge.h"
#include "bdd/look_up_counts.h"
#include "dht/hash_table.h"
#include "dsfabric/collectives.h"
#include "dtutils/wait.h"

namespace cariama::bdd {

class NodeTable {
 public:
  // Bytes for a node in a table of one process: the node, and at most two slots. In a table of a
  // job: of a bucket.
  static constexpr size_t kPrivateNodeBytes = sizeof(Node) + 2 * sizeof(uint64_t);
  static constexpr size_t kBucketBytes = sizeof(Node);
  // Returned by find_or_put() if the table has no room.
  static constexpr uint64_t kFull = ~uint64_t{0};

  // Creates a table of one process for bytes / kPrivateNodeBytes nodes. Memory is used as nodes are
  // added. Errors: RESOURCE_EXHAUSTED.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<NodeTable>> create(uint64_t bytes);
  struct JobOptions {
    uint64_t bytes = 0;  // in each process
    // One-sided transfers for the parts of all processes, also where they are mapped.
    bool remote = false;
    // For rebuilding a table with nodes that have fitted into this size before: an insert examines
    // up to 131,072 buckets instead of 512 before it returns kFull.
    bool long_probes = false;
    uint32_t in_flight = 1;  // look-ups of the asynchronous functions and of batches, at least 1
    OperationsBy look_ups = OperationsBy::kAutomatic;  // in parts that are not mapped
  };
  // Creates a table of a job, with the memory of its look-ups. Collective. Errors: those of
  // HashTable::create, HashTable::access, TableAccess::reserve and agree() (dht/agreement.h);
  // INVALID_ARGUMENT (more than 2^40 buckets). Every process gets an error if one does.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<NodeTable>> create(Collectives& all,
                                                                         const JobOptions& options,
                                                                         Deadline deadline);
  ~NodeTable();
  NodeTable(const NodeTable&) = delete;
  NodeTable& operator=(const NodeTable&) = delete;

  // Returns the node with an index that find_or_put() of any process has returned, or the constant
  // for index 0. Blocks for a round trip if the node is in a part that is not mapped, and not in
  // the cache; throws std::runtime_error then if the owner of the node has failed, or if this
  // process has no memory for the look-up. Mapped parts stay readable after their owner has failed.
  [[nodiscard]] Node read(uint64_t index) const {
    if (nodes_ != nullptr) [[likely]]
      return nodes_[index];
    return read_shared(index);
  }
  // Returns the index of `node`; puts the node into the table if the table does not contain it. On
  // a part that is not mapped it blocks for no round trip if the node is in the node cache, else
  // for one if the owner executes it; by transfers for one to find the node or three to insert it,
  // and one for each further chunk. Throws like read().
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

  // ---- Several look-ups at a time. Many are in flight. Block and throw like read().

  // Sets nodes[i] to the node with index indices[i].
  void read(std::span<const uint64_t> indices, std::span<Node> nodes) const;
  // Sets indices[i] to the index of nodes[i], or to kFull.
  void find_or_put(std::span<const Node> nodes, std::span<uint64_t> indices);

  // ---- Asynchronous look-ups, in a job only.

  // A look-up that has ended. A read sets `node`, a find-or-put `index` (kFull: no room).
  struct Lookup {
    uint64_t tag;
    bool lost;  // the owner has failed, or this process has no memory for the look-up
    Node node;
    uint64_t index;
  };
  // Execute a look-up that needs no transfer. Otherwise return false.
  [[nodiscard]] bool read_here(uint64_t index, Node& node) const;
  [[nodiscard]] bool find_or_put_here(const Node& node, uint64_t& index);
  // Start a look-up. Return false if JobOptions::in_flight are active. poll() delivers the result
  // with `tag`.
  [[nodiscard]] bool start_read(uint64_t index, uint64_t tag) {
    return access_->start_read(index - 1, tag << 1);
  }
  [[nodiscard]] bool start_find_or_put(const Node& node, uint64_t tag) {
    return access_->start_find_or_put({node.first, node.second}, tag << 1 | 1);
  }
  // Calls on_end(Lookup) for each look-up that has ended. Never blocks.
  template <typename OnEnd>
  void poll(OnEnd&& on_end) {
    access_->poll([&](uint64_t tag, const TableResult& result, const TableKey<2>& key) {
      on_end(ended(tag, result, key));
    });
  }
  // Blocks until a look-up has ended, or none is active.
  void await_lookup() { access_->await_ended(); }
  // Throws the error of a look-up with Lookup::lost.
  [[noreturn, gnu::cold]] void lost() const;

  // Returns true if a part of the table is not mapped, so that look-ups take round trips.
  [[nodiscard]] bool is_remote() const { return nodes_ == nullptr && !nodes_are_mapped_; }
  // Returns the number of nodes in this process's part. In a job it reads the whole part.
  [[nodiscard]] uint64_t owned_nodes() const;
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  // Returns the counters of this process's look-ups; zeros after destroy().
  [[nodiscard]] LookUpCounts look_ups() const;
  // In a job: returns the lowest rank whose part is mapped in this process.
  [[nodiscard]] uint32_t first_mapped() const { return first_mapped_; }
  // Frees the memory of a job's table after all processes have called destroy(). Collective;
  // blocks. After an error nothing is freed, and the table may only be destroyed. The destructor of
  // a table that was not destroyed leaves this process's part allocated until the fabric ends.
  [[nodiscard]] absl::Status destroy(Deadline deadline);

 private:
  // Nodes in each of the two caches: 1.5 MiB.
  static constexpr size_t kCachedNodes = size_t{1} << 16;

  using Table = HashTable<2>;
  using Access = TableAccess<2>;
  struct CachedNode {
    uint64_t index;
    Node node;
  };

  NodeTable() = default;
  // In a job: allocates what look-ups need, when it is known whether all parts are mapped. Errors:
  // those of TableAccess::reserve.
  [[nodiscard]] absl::Status allocate_for_look_ups();
  [[nodiscard]] uint64_t insert(const Node& node, uint64_t at, uint64_t tag) {
    if (count_ >= room_) [[unlikely]]
      return kFull;
    nodes_[++count_] = node;
    slots_[at] = count_ | tag;
    const uint64_t index = count_;
    if (count_ >= grow_at_) [[unlikely]]
      add_slots();
    return index;
  }
  // Doubles the number of slots if there is memory for it; otherwise tries again later.
  void add_slots();
  // Uses `slots`, whose number is mask + 1.
  void adopt_slots(uint64_t* slots, uint64_t mask);
  [[nodiscard]] static uint64_t hash(const Node& node) {
    const uint64_t mixed = (node.first ^ node.first >> 33) * 0x9e3779b97f4a7c15 + node.second;
    const uint64_t product = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93;
    return product ^ product >> 32;
  }
  [[nodiscard]] Node read_shared(uint64_t index) const {
    if (index == 0) return Node::of(kNoVariable, 0, 0);
    if (parts_ != nullptr) [[likely]] {
      const uint64_t at = index - 1;
      const uint64_t* const bucket = parts_[at >> owner_shift_] + 2 * (at & position_mask_);
      // Relaxed: a word has one value besides 0, and no other memory depends on it.
      const auto word = [bucket](size_t i) {
        return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(bucket[i]))
            .load(std::memory_order_relaxed);
      };
      const TableKey<2> stored{word(0), word(1)};
      TableKey<2> key;
      decode_key(stored.data(), 2, key.data());
      return {key[0], key[1]};
    }
    return read_remote(index);
  }
  [[nodiscard]] uint64_t find_or_put_shared(const Node& node) {
    if (!nodes_are_mapped_) [[unlikely]] {
      uint64_t index;
      if (find_or_put_here(node, index)) return index;
      return find_or_put_remote(node);
    }
    return find_or_put_in_table(node);
  }
  [[nodiscard]] uint64_t find_or_put_in_table(const Node& node) {
    const TableResult result = access_->find_or_put({node.first, node.second});
    if (result.outcome == TableOutcome::kFull) return kFull;
    if (result.outcome > TableOutcome::kInserted) [[unlikely]]
      lost();
    remote_ += result.index >> owner_shift_ != rank_;
    return result.index + 1;
  }
  [[nodiscard, gnu::noinline]] uint64_t find_or_put_remote(const Node& node);
  [[nodiscard, gnu::noinline]] Node read_remote(uint64_t index) const;
  [[nodiscard]] CachedNode& cached(uint64_t index) const {
    return cache_[index * 0x9e3779b97f4a7c15 >> 48 & (kCachedNodes - 1)];
  }
  [[nodiscard]] CachedNode& cached(const Node& node) const {
    return cache_[kCachedNodes + (hash(node) & (kCachedNodes - 1))];
  }
  void add_to_cache(const CachedNode& node) const {
    if (cache_ != nullptr) cached(node.index) = cached(node.node) = node;
  }
  [[nodiscard]] Lookup ended(uint64_t tag, const TableResult& result, const TableKey<2>& key);

  // A table of this process. nodes_[0] is the constant. A slot has the index of a node in bits
  // 39..0, and the bits 63..40 of its hash.
  Node* nodes_ = nullptr;
  uint64_t* slots_ = nullptr;
  uint64_t mask_ = 0;  // number of slots - 1
  uint64_t count_ = 0;
  uint64_t limit_ = 0;
  // Three of four slots: from this number of nodes on, insert() adds slots.
  uint64_t grow_at_ = 0;
  // Seven of eight slots, or limit_ if that is less: with this number of nodes the table is full. A
  // look-up ends at an empty slot.
  uint64_t room_ = 0;

  // A table of a job.
  std::unique_ptr<Table> table_;
  std::unique_ptr<Access> access_;
  // If all parts are mapped: their buckets, by owner. They stay mapped if their owner fails; a
  // find-or-put notices the failure.
  std::unique_ptr<const uint64_t*[]> parts_;
  // The caches, if a part of the table is not mapped: places of indices, then those of contents.
  mutable std::unique_ptr<CachedNode[]> cache_;
  bool nodes_are_mapped_ = false;
  uint32_t owner_shift_ = 0;
  uint64_t position_mask_ = 0;
  uint32_t rank_ = 0;
  uint32_t first_mapped_ = 0;
  uint64_t remote_ = 0;

  uint64_t bytes_ = 0;
};

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_INTERNAL_NODE_TABLE_H_
