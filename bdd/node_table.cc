#include "bdd/node_table.h"

#include <algorithm>
#include <bit>
#include <new>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "bdd/internal/pages.h"
#include "dht/agreement.h"

namespace cariama::bdd {
namespace {

// Nodes of other processes that a process keeps a copy of: 1.5 MiB, which fits a level-2 cache.
constexpr size_t kCachedNodes = size_t{1} << 16;

// Slots of a new table of one process.
constexpr uint64_t kInitialSlots = uint64_t{1} << 14;

// Longest probe path: with 512 buckets, a table is full at a load of about 0.83.
constexpr uint32_t kMaxChunks = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<NodeTable>> NodeTable::create(uint64_t bytes) {
  std::unique_ptr<NodeTable> table(new NodeTable);
  table->limit_ = std::bit_floor(std::max<uint64_t>(bytes, 1024) / kPrivateNodeBytes);
  table->bytes_ = table->limit_ * kPrivateNodeBytes;
  const uint64_t slots = std::min(kInitialSlots, 2 * table->limit_);
  try {
    table->nodes_ = static_cast<Node*>(internal::map_pages((table->limit_ + 1) * sizeof(Node)));
    table->slots_ = static_cast<uint64_t*>(internal::map_pages(slots * sizeof(uint64_t)));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("bdd: no memory for a node table of ", bytes, " bytes"));
  }
  table->mask_ = slots - 1;
  table->nodes_[0] = Node::of(kNoVariable, 0, 0);
  return table;
}

absl::StatusOr<std::unique_ptr<NodeTable>> NodeTable::create(Collectives& all, uint64_t bytes,
                                                             bool remote, bool long_probes,
                                                             Deadline deadline) {
  std::unique_ptr<NodeTable> table(new NodeTable);
  TableOptions options;
  options.buckets = std::bit_floor(std::max<uint64_t>(bytes, 1024) / kBucketBytes);
  options.max_chunks = long_probes ? 0 : kMaxChunks;
  options.force_remote = remote;
  auto shared = Table::create(all, options, deadline);
  if (!shared.ok()) return shared.status();
  table->table_ = *std::move(shared);
  const TableGeometry& geometry = table->table_->geometry();
  if ((uint64_t{geometry.processes} << geometry.shift) > kIndexMask) {
    return absl::InvalidArgumentError(
        "bdd: the node table has more than 2^40 buckets; choose a smaller most_table_bytes");
  }
  table->bytes_ = geometry.buckets * kBucketBytes;
  table->owner_shift_ = geometry.shift;
  table->rank_ = all.fabric().rank();
  table->nodes_are_mapped_ = !remote;
  table->first_mapped_ = table->rank_;
  auto access = table->table_->access();
  absl::Status usable = access.status();
  if (access.ok()) table->access_ = *std::move(access);
  for (uint32_t owner = 0; owner < geometry.processes && usable.ok(); ++owner) {
    usable = table->table_->core().attach(owner);
    const bool mapped = table->table_->core().share(owner).mapped.load() != nullptr;
    table->nodes_are_mapped_ &= mapped;
    if (mapped) table->first_mapped_ = std::min(table->first_mapped_, owner);
  }
  if (absl::Status agreed = agree(all, usable, "bdd: no node table", deadline); !agreed.ok()) {
    return agreed;
  }
  if (!table->nodes_are_mapped_) table->cache_ = std::make_unique<CachedNode[]>(kCachedNodes);
  return table;
}

NodeTable::~NodeTable() {
  internal::unmap_pages(nodes_, (limit_ + 1) * sizeof(Node));
  internal::unmap_pages(slots_, (mask_ + 1) * sizeof(uint64_t));
}

void NodeTable::add_slots() {
  const uint64_t mask = 2 * mask_ + 1;
  auto* const slots = static_cast<uint64_t*>(internal::map_pages((mask + 1) * sizeof(uint64_t)));
  for (uint64_t index = 1; index <= count_; ++index) {
    const uint64_t hashed = hash(nodes_[index]);
    uint64_t at = hashed & mask;
    while (slots[at] != 0) at = (at + 1) & mask;
    slots[at] = index | (hashed & ~kIndexMask);
  }
  internal::unmap_pages(slots_, (mask_ + 1) * sizeof(uint64_t));
  slots_ = slots;
  mask_ = mask;
}

Node NodeTable::read_remote(uint64_t index) const {
  CachedNode* const cached =
      cache_ == nullptr ? nullptr : &cache_[index * 0x9e3779b97f4a7c15 >> 48 & (kCachedNodes - 1)];
  if (cached != nullptr && cached->index == index) return cached->node;
  TableKey<2> key;
  if (access_->read(index - 1, key) != TableOutcome::kFound) lost();
  const Node node{key[0], key[1]};
  if (cached != nullptr) *cached = {index, node};
  return node;
}

void NodeTable::lost() const {
  throw std::runtime_error(
      absl::StrCat("bdd: a part of the node table is lost: ", access_->status().ToString()));
}

uint64_t NodeTable::owned_nodes() const {
  return nodes_ != nullptr ? count_ : table_->local_size();
}

absl::Status NodeTable::destroy(Deadline deadline) {
  access_.reset();
  return table_ == nullptr ? absl::OkStatus() : table_->destroy(deadline);
}

void NodeTable::abandon() {
  if (table_ != nullptr) table_->core().abandon();
}

}  // namespace cariama::bdd
