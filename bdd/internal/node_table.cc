#include "bdd/internal/node_table.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bdd/internal/pages.h"
#include "dht/agreement.h"

namespace cariama::bdd {
namespace {

// Slots of a new table of one process.
constexpr uint64_t kInitialSlots = uint64_t{1} << 14;

// Longest probe path: with 512 buckets, a table is full at a load of about 0.83.
constexpr uint32_t kMaxChunks = 1;

constexpr std::string_view kNoLookUpMemory = "bdd: no memory for the look-ups in a node table";

}  // namespace

absl::StatusOr<std::unique_ptr<NodeTable>> NodeTable::create(uint64_t bytes) {
  std::unique_ptr<NodeTable> table(new NodeTable);
  table->limit_ = std::bit_floor(std::max<uint64_t>(bytes, 1024) / kPrivateNodeBytes);
  table->bytes_ = table->limit_ * kPrivateNodeBytes;
  const uint64_t slots = std::min(kInitialSlots, 2 * table->limit_);
  try {
    table->nodes_ = static_cast<Node*>(internal::map_pages((table->limit_ + 1) * sizeof(Node)));
    table->adopt_slots(static_cast<uint64_t*>(internal::map_pages(slots * sizeof(uint64_t))),
                       slots - 1);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("bdd: no memory for a node table of ", bytes, " bytes"));
  }
  table->nodes_[0] = Node::of(kNoVariable, 0, 0);
  return table;
}

absl::StatusOr<std::unique_ptr<NodeTable>> NodeTable::create(Collectives& all,
                                                             const JobOptions& options,
                                                             Deadline deadline) {
  std::unique_ptr<NodeTable> table(new NodeTable);
  TableOptions of_table;
  of_table.buckets = std::bit_floor(std::max<uint64_t>(options.bytes, 1024) / kBucketBytes);
  of_table.max_chunks = options.long_probes ? 0 : kMaxChunks;
  of_table.force_remote = options.remote;
  of_table.operations = options.look_ups;
  auto shared = Table::create(all, of_table, deadline);
  if (!shared.ok()) return shared.status();
  table->table_ = *std::move(shared);
  const TableGeometry& geometry = table->table_->geometry();
  // Every process returns such an error, so every process frees its share: but not after
  // DEADLINE_EXCEEDED, when the operation that all processes take part in is still in progress.
  const auto fail = [&](absl::Status error) {
    if (!absl::IsDeadlineExceeded(error)) static_cast<void>(table->destroy(deadline));
    return error;
  };
  if ((uint64_t{geometry.processes} << geometry.shift) > kIndexMask) {
    return fail(absl::InvalidArgumentError(
        "bdd: the node table has more than 2^40 buckets; choose a smaller max_table_bytes"));
  }
  table->bytes_ = geometry.buckets * kBucketBytes;
  table->owner_shift_ = geometry.shift;
  table->position_mask_ = (uint64_t{1} << geometry.shift) - 1;
  table->rank_ = all.fabric().rank();
  table->nodes_are_mapped_ = !options.remote;
  table->first_mapped_ = table->rank_;
  absl::Status usable = status_of(kNoLookUpMemory, [&] {
    auto access = table->table_->access({.in_flight = options.in_flight});
    if (!access.ok()) return access.status();
    table->access_ = *std::move(access);
    for (uint32_t owner = 0; owner < geometry.processes; ++owner) {
      if (absl::Status attached = table->table_->core().attach(owner); !attached.ok()) {
        return of_one_process(attached);
      }
      const bool mapped = table->table_->core().mapped(owner).load() != nullptr;
      table->nodes_are_mapped_ &= mapped;
      if (mapped) table->first_mapped_ = std::min(table->first_mapped_, owner);
    }
    return absl::OkStatus();
  });
  // Whether a share can be mapped may differ between the processes (their limits differ), and
  // is_remote() decides which collective functions they call.
  const auto mapped_by_all = all.all_reduce(
      uint32_t{table->nodes_are_mapped_}, [](uint32_t a, uint32_t b) { return a & b; }, deadline);
  if (!mapped_by_all.ok()) return fail(mapped_by_all.status());
  table->nodes_are_mapped_ = *mapped_by_all != 0;
  if (usable.ok())
    usable = status_of(kNoLookUpMemory, [&] { return table->allocate_for_look_ups(); });
  if (absl::Status agreed = agree(all, usable, "bdd: no node table", deadline); !agreed.ok()) {
    return fail(std::move(agreed));
  }
  return table;
}

absl::Status NodeTable::allocate_for_look_ups() {
  if (!nodes_are_mapped_) {
    cache_ = std::make_unique<CachedNode[]>(2 * kCachedNodes);
    // Operations of diagrams cannot continue without this memory.
    return access_->reserve();
  }
  const uint32_t processes = table_->geometry().processes;
  parts_ = std::make_unique<const uint64_t*[]>(processes);
  for (uint32_t owner = 0; owner < processes; ++owner) {
    parts_[owner] = table_->core().mapped(owner).load();
    if (parts_[owner] == nullptr) {  // the owner has failed since
      parts_.reset();
      break;
    }
  }
  return absl::OkStatus();
}

NodeTable::~NodeTable() {
  internal::unmap_pages(nodes_, (limit_ + 1) * sizeof(Node));
  internal::unmap_pages(slots_, (mask_ + 1) * sizeof(uint64_t));
}

void NodeTable::add_slots() {
  const uint64_t mask = 2 * mask_ + 1;
  uint64_t* slots = nullptr;
  try {
    slots = static_cast<uint64_t*>(internal::map_pages((mask + 1) * sizeof(uint64_t)));
  } catch (const std::bad_alloc&) {
    grow_at_ += mask_ / 32;
    return;
  }
  for (uint64_t index = 1; index <= count_; ++index) {
    const uint64_t hashed = hash(nodes_[index]);
    uint64_t at = hashed & mask;
    while (slots[at] != 0) at = (at + 1) & mask;
    slots[at] = index | (hashed & ~kIndexMask);
  }
  internal::unmap_pages(slots_, (mask_ + 1) * sizeof(uint64_t));
  adopt_slots(slots, mask);
}

void NodeTable::adopt_slots(uint64_t* slots, uint64_t mask) {
  slots_ = slots;
  mask_ = mask;
  const uint64_t count = mask + 1;
  room_ = std::min(limit_, count - count / 8);
  // The largest number of slots is twice the limit.
  grow_at_ = count < 2 * limit_ ? count - count / 4 : std::numeric_limits<uint64_t>::max();
}

Node NodeTable::read_remote(uint64_t index) const {
  Node node;
  if (read_here(index, node)) return node;
  TableKey<2> key;
  if (access_->read(index - 1, key) != TableOutcome::kFound) lost();
  node = {key[0], key[1]};
  add_to_cache({index, node});
  return node;
}

uint64_t NodeTable::find_or_put_remote(const Node& node) {
  const uint64_t index = find_or_put_in_table(node);
  if (index != kFull) add_to_cache({index, node});
  return index;
}

bool NodeTable::read_here(uint64_t index, Node& node) const {
  if (index == 0) {
    node = Node::of(kNoVariable, 0, 0);
    return true;
  }
  if (cache_ != nullptr && cached(index).index == index) {
    node = cached(index).node;
    return true;
  }
  if (!access_->is_mapped(index - 1)) return false;
  TableKey<2> key;
  if (access_->read(index - 1, key) != TableOutcome::kFound) return false;
  node = {key[0], key[1]};
  return true;
}

bool NodeTable::find_or_put_here(const Node& node, uint64_t& index) {
  // Index 0 is that of the constant, which is not in the cache.
  if (cache_ != nullptr && cached(node).node == node && cached(node).index != 0) {
    index = cached(node).index;
    return true;
  }
  if (!access_->is_mapped({node.first, node.second})) return false;
  index = find_or_put_in_table(node);
  return true;
}

NodeTable::Lookup NodeTable::ended(uint64_t tag, const TableResult& result,
                                   const TableKey<2>& key) {
  Lookup lookup{tag >> 1, false, {key[0], key[1]}, kFull};
  if (result.outcome == TableOutcome::kFound || result.outcome == TableOutcome::kInserted) {
    lookup.index = result.index + 1;
    add_to_cache({lookup.index, lookup.node});
    if ((tag & 1) != 0) remote_ += result.index >> owner_shift_ != rank_;
  } else {
    lookup.lost = result.outcome != TableOutcome::kFull;
  }
  return lookup;
}

void NodeTable::read(std::span<const uint64_t> indices, std::span<Node> nodes) const {
  std::vector<size_t> missing;
  std::vector<uint64_t> remote;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (nodes_ != nullptr) {
      nodes[i] = nodes_[indices[i]];
    } else if (!read_here(indices[i], nodes[i])) {
      missing.push_back(i);
      remote.push_back(indices[i] - 1);
    }
  }
  if (missing.empty()) return;
  std::vector<TableKey<2>> keys(remote.size());
  if (access_->read(remote, keys) != TableOutcome::kFound) lost();
  for (size_t i = 0; i < missing.size(); ++i) nodes[missing[i]] = {keys[i][0], keys[i][1]};
}

void NodeTable::find_or_put(std::span<const Node> nodes, std::span<uint64_t> indices) {
  if (nodes_ != nullptr) {
    for (size_t i = 0; i < nodes.size(); ++i) indices[i] = find_or_put(nodes[i]);
    return;
  }
  std::vector<TableKey<2>> keys(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) keys[i] = {nodes[i].first, nodes[i].second};
  std::vector<TableResult> results(nodes.size());
  access_->find_or_put(keys, results);
  for (size_t i = 0; i < nodes.size(); ++i) {
    indices[i] = results[i].outcome == TableOutcome::kFull ? kFull : results[i].index + 1;
    if (results[i].outcome == TableOutcome::kFull) continue;
    if (results[i].outcome > TableOutcome::kInserted) lost();
    remote_ += results[i].index >> owner_shift_ != rank_;
  }
}

void NodeTable::lost() const {
  if (absl::IsResourceExhausted(access_->status())) {
    throw std::runtime_error(absl::StrCat("bdd: no memory for a look-up in the node table: ",
                                          access_->status().ToString()));
  }
  throw std::runtime_error(
      absl::StrCat("bdd: a part of the node table is lost: ", access_->status().ToString()));
}

uint64_t NodeTable::owned_nodes() const {
  return nodes_ != nullptr ? count_ : table_->local_size();
}

LookUpCounts NodeTable::look_ups() const {
  LookUpCounts counts;
  if (access_ == nullptr) return counts;
  const TableStatistics statistics = access_->statistics();
  counts.remote_find_or_puts = remote_;
  counts.round_trips =
      statistics.remote_reads + statistics.find_round_trips + statistics.insert_round_trips;
  counts.owner_look_ups = statistics.owner_operations;
  counts.owner_calls = statistics.owner_calls;
  return counts;
}

absl::Status NodeTable::destroy(Deadline deadline) {
  parts_.reset();
  access_.reset();
  return table_ == nullptr ? absl::OkStatus() : table_->destroy(deadline);
}

}  // namespace cariama::bdd
