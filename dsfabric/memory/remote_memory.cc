#include "dsfabric/remote_memory.h"

#include <cstring>
#include <optional>
#include <string>

#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/workers.h"
#include "dsfabric/internal/unlimited_call.h"
#include "dsfabric/invocation/ask.h"
#include "dsfabric/memory/remote_heap.h"
#include "dsfabric/peers/fabric_memory.h"
#include "dsfabric/peers/peer_table.h"
#include "dsfabric/peers/ports.h"
#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"

namespace cariama {
namespace internal {
namespace {

RemoteHeap& heap_of(Fabric& fabric) { return attachment_of<RemoteHeap>(fabric); }

// The answer to an allocation request.
struct Allocation {
  uint32_t code = 0;
  std::string text;
  std::array<uint64_t, 3> place{};  // address, keys

  template <typename Archive>
  void serialize(Archive& archive) {
    archive(code, text, place);
  }
};

Allocation answer(const absl::StatusOr<GlobalAddress>& address) {
  Allocation allocation;
  if (address.ok()) {
    allocation.place = {address->address, address->keys[0].value, address->keys[1].value};
  } else {
    allocation.code = static_cast<uint32_t>(address.status().code());
    allocation.text = std::string(address.status().message());
  }
  return allocation;
}

}  // namespace

RemoteHeap::RemoteHeap(Fabric& fabric)
    : fabric_(fabric), fabric_rank_(fabric.rank()), processes_(fabric.size()) {
  for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
    const Device* const device = ports_of(fabric).device(rank);
    if (device != nullptr) domains_[key_slot(*device)] = ports_of(fabric).domain(rank);
  }
}

absl::StatusOr<GlobalAddress> RemoteHeap::allocate(size_t bytes, int numa_node) {
  GeneralAllocator* allocator = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<GeneralAllocator>& at = allocators_[numa_node];
    if (at == nullptr) {
      auto pages = memory_of(fabric_).allocator(numa_node);
      if (!pages.ok()) return pages.status();
      auto made = GeneralAllocator::create(*std::move(pages), fabric_.options().general_memory);
      if (!made.ok()) return made.status();
      at = *std::move(made);
    }
    allocator = at.get();
  }
  auto memory = allocator->allocate(bytes);
  if (!memory.ok()) return memory.status();
  std::memset(memory->get_buffer(), 0, memory->size());
  const GlobalAddress address = address_of(*memory);
  const std::lock_guard lock(mutex_);
  pieces_.emplace(address.address, Piece{*std::move(memory), allocator});
  return address;
}

GlobalAddress RemoteHeap::address_of(const RDMAMemory& memory) const {
  GlobalAddress address;
  address.address = reinterpret_cast<uint64_t>(memory.get_buffer());
  address.rank = fabric_rank_;
  for (size_t slot = 0; slot < domains_.size(); ++slot) {
    if (domains_[slot] != nullptr) address.keys[slot] = memory.locator(domains_[slot]).key;
  }
  return address;
}

void RemoteHeap::publish(uint64_t address, uint64_t name) {
  const std::lock_guard lock(mutex_);
  const auto at = pieces_.find(address);
  if (at == pieces_.end()) return;
  if (at->second.name.has_value()) {
    auto entry = addresses_.extract(*at->second.name);
    entry.key() = name;
    addresses_.insert(std::move(entry));
  } else {
    addresses_.emplace(name, address);
  }
  at->second.name = name;
}

absl::StatusOr<GlobalAddress> RemoteHeap::find(uint64_t name) const {
  const std::lock_guard lock(mutex_);
  const auto at = addresses_.find(name);
  if (at == addresses_.end()) {
    return make_error(absl::StatusCode::kNotFound, ErrorScope::kOperation,
                      "there is no memory of this name");
  }
  return address_of(pieces_.at(at->second).memory);
}

bool RemoteHeap::free(uint64_t address) {
  Piece piece;
  {
    const std::lock_guard lock(mutex_);
    const auto at = pieces_.find(address);
    if (at == pieces_.end()) return false;
    piece = std::move(at->second);
    if (piece.name.has_value()) addresses_.erase(*piece.name);
    pieces_.erase(at);
  }
  return piece.allocator->free(std::move(piece.memory)).ok();
}

bool RemoteHeap::contains(uint64_t address, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto at = pieces_.upper_bound(address);
  if (at == pieces_.begin()) return false;
  --at;
  const uint64_t offset = address - at->first;
  return offset <= at->second.memory.size() && bytes <= at->second.memory.size() - offset;
}

size_t RemoteHeap::allocations() const {
  const std::lock_guard lock(mutex_);
  return pieces_.size();
}

}  // namespace internal

namespace {

// Returns the address that process `rank` has answered.
absl::StatusOr<GlobalAddress> address_from(const Fabric& fabric, Rank rank,
                                           const absl::StatusOr<internal::Allocation>& allocation) {
  if (!allocation.ok()) return allocation.status();
  if (allocation->code != 0) {
    return make_error(static_cast<absl::StatusCode>(allocation->code), ErrorScope::kOperation,
                      fabric.label(rank) + ": " + allocation->text);
  }
  GlobalAddress address;
  address.address = allocation->place[0];
  address.keys = {RemoteKey{allocation->place[1]}, RemoteKey{allocation->place[2]}};
  address.rank = rank;
  return address;
}

// Runs `call` in the owner's service; `call` returns an Allocation.
template <typename Call, typename... Args>
absl::StatusOr<GlobalAddress> ask_for(Fabric& fabric, Rank rank, Deadline deadline, Call call,
                                      Args... args) {
  // If the answer comes after the deadline, free the memory: the requester does not know it.
  const auto late = [&fabric, rank](const internal::Allocation& allocation) {
    if (allocation.code != 0) return;
    static_cast<void>(internal::unlimited_service_call(
        fabric, rank,
        [address = allocation.place[0]] { internal::heap_of(*running_fabric()).free(address); }));
  };
  auto question = internal::ask<internal::Allocation>(fabric, rank, deadline, late, call, args...);
  return address_from(fabric, rank, question.wait(deadline));
}

}  // namespace

RemoteMemoryLocator locator_of(const Fabric& fabric, const GlobalAddress& place, uint64_t bytes) {
  const Device* const device = internal::ports_of(const_cast<Fabric&>(fabric)).device(place.rank);
  const size_t slot = device == nullptr ? 0 : internal::key_slot(*device);
  return {place.address, bytes, place.keys[slot], place.rank, 0};
}

absl::StatusOr<RemoteMemory> RemoteMemory::allocate(Fabric& fabric, Rank rank, size_t bytes,
                                                    Deadline deadline, int numa_node) {
  absl::StatusOr<GlobalAddress> address =
      rank == fabric.rank()
          ? internal::heap_of(fabric).allocate(bytes, numa_node)
          : ask_for(
                fabric, rank, deadline,
                [](uint64_t wanted, int node) {
                  return internal::answer(
                      internal::heap_of(*running_fabric()).allocate(wanted, node));
                },
                uint64_t{bytes}, numa_node);
  if (!address.ok()) return address.status();
  return RemoteMemory(fabric, *address, bytes);
}

absl::StatusOr<RemoteMemory> RemoteMemory::allocate_near(Fabric& fabric, ThreadId thread,
                                                         size_t bytes, Deadline deadline) {
  if (thread >= fabric.total_threads()) {
    return internal::no_such_thread(thread, fabric.total_threads());
  }
  const Rank rank = fabric.rank_of(thread);
  // Asks the service even for threads of this process.
  auto address = ask_for(
      fabric, rank, deadline,
      [](uint64_t wanted, ThreadIndex index) {
        Fabric& here = *running_fabric();
        const std::optional<int> node = internal::workers_of(here).node_of(index);
        if (!node.has_value()) {
          return internal::answer(
              make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                         "thread " + std::to_string(index) + " of the process is no worker",
                         "let it call init_thread() first"));
        }
        return internal::answer(internal::heap_of(here).allocate(wanted, *node));
      },
      uint64_t{bytes}, fabric.index_of(thread));
  if (!address.ok()) return address.status();
  return RemoteMemory(fabric, *address, bytes);
}

uint64_t RemoteMemory::new_name(Fabric& fabric) { return internal::heap_of(fabric).new_name(); }

void RemoteMemory::publish(uint64_t name) const {
  internal::heap_of(*fabric_).publish(address_.address, name);
}

bool RemoteMemory::contains(Fabric& fabric, uint64_t address, size_t bytes) {
  return internal::heap_of(fabric).contains(address, bytes);
}

absl::StatusOr<GlobalAddress> RemoteMemory::find(Fabric& fabric, Rank rank, uint64_t name,
                                                 Deadline deadline) {
  if (rank == fabric.rank()) return internal::heap_of(fabric).find(name);
  auto question = internal::ask<internal::Allocation>(
      fabric, rank, deadline, nullptr,
      [](uint64_t name) {
        return internal::answer(internal::heap_of(*running_fabric()).find(name));
      },
      name);
  // The wait runs no calls: a call could use an object whose address is not known yet. Without
  // service threads it also polls, because two processes that ask each other would wait for ever.
  const auto answered = [&] { return question.answered(); };
  const bool in_time = fabric.options().service_threads != 0
                           ? wait_until(answered, deadline)
                           : fabric.wait_polling(answered, deadline);
  if (!in_time) {
    return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                      fabric.label(rank) + " did not answer in time",
                      internal::peer_remedy(internal::PeerRemedy::kSilent));
  }
  return address_from(fabric, rank, question.wait(Deadline::min()));
}

void RemoteMemory::free() {
  const GlobalAddress address = std::exchange(address_, {});
  if (address.address == 0) return;
  if (address.rank == fabric_->rank()) {
    internal::heap_of(*fabric_).free(address.address);
    return;
  }
  // If this call cannot be sent, the owner is dead or the job has ended; then nothing needs to be
  // freed.
  static_cast<void>(internal::unlimited_service_call(
      *fabric_, address.rank,
      [place = address.address] { internal::heap_of(*running_fabric()).free(place); }));
}

}  // namespace cariama
