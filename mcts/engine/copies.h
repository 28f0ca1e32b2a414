// Local copies of frequently visited nodes of other processes, for the duration of a search
// (replication of hot nodes: Graf et al. 2011).
//
// Nearly every rollout passes the root and a few nodes below it. If a process had to send a request
// to the owners of these nodes for each rollout, it would wait most of the time, and the owners
// would do all the work. Therefore every process has a copy of the root, from which it begins a
// share of the root's rollouts, and a copy of each remote node that its rollouts visit often. A
// copy counts visits and values like the original. From time to time, its process sends the counts
// since the last exchange to the owner, and the owner sends back its total counts, which include
// those of all processes. With Placement::kLocality a process creates children at its copy and
// offers them to the owner; with other placements only the owner has children created, for moves
// that the counts of the copies show.
#ifndef CARIAMA_MCTS_ENGINE_COPIES_H_
#define CARIAMA_MCTS_ENGINE_COPIES_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "mcts/engine/count_exchange.h"
#include "mcts/engine/node.h"

namespace cariama::mcts {

// The record of one copy.
template <Game G>
struct Copy {
  RemoteNode name;     // of the original
  uint32_t index = 0;  // in the CopyTable
  // The copied node. nullptr: the owner has not answered the request, or there was no memory.
  std::atomic<Node<G>*> node{nullptr};
  CountExchange exchange;            // with the owner
  std::atomic<uint64_t> due{0};      // visits at which the next exchange is due
  std::atomic<uint32_t> samples{0};  // rollouts that sampled the position before `node` arrived
  std::atomic<bool> outcome_sent{false};  // the outcome of the node was sent to the owner
};

// The copies of a process. Thread-safe, except clear().
template <Game G>
class CopyTable {
 public:
  static constexpr uint32_t kMost = 4096;  // maximum number of copies

  // Returns the copy of a node, or nullptr. Without a lock.
  [[nodiscard]] Copy<G>* find(RemoteNode name) const {
    for (uint32_t at = home(name);; ++at) {
      Copy<G>* known = places_[at % kPlaces].load(std::memory_order_acquire);
      if (known == nullptr || known->name == name) return known;
    }
  }
  // Adds a copy. Returns nullptr if the node has one already, or the table is full.
  [[nodiscard]] Copy<G>* add(RemoteNode name) {
    // Without a lock: with a full table, every rollout that reaches a node without a copy calls
    // this function.
    if (size_.load(std::memory_order_relaxed) >= kMost) return nullptr;
    const std::lock_guard lock(mutex_);
    if (all_.size() >= kMost) return nullptr;
    uint32_t at = home(name);
    for (;; ++at) {
      const Copy<G>* known = places_[at % kPlaces].load(std::memory_order_relaxed);
      if (known == nullptr) break;
      if (known->name == name) return nullptr;
    }
    auto& made = all_.emplace_back(std::make_unique<Copy<G>>());
    made->name = name;
    made->index = static_cast<uint32_t>(all_.size() - 1);
    places_[at % kPlaces].store(made.get(), std::memory_order_release);
    size_.store(static_cast<uint32_t>(all_.size()), std::memory_order_relaxed);
    return made.get();
  }
  // Returns the copy with this index, or nullptr.
  [[nodiscard]] Copy<G>* at(uint32_t index) {
    const std::lock_guard lock(mutex_);
    return index < all_.size() ? all_[index].get() : nullptr;
  }
  template <typename Function>
  void for_each(Function&& function) {
    const std::lock_guard lock(mutex_);
    for (const auto& copy : all_) function(*copy);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    for (auto& place : places_) place.store(nullptr, std::memory_order_relaxed);
    all_.clear();
    size_.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kPlaces = 2 * kMost;

  [[nodiscard]] static uint32_t home(RemoteNode name) {
    return static_cast<uint32_t>(Random::mix(uint64_t{name.rank} << 32 | name.slot) % kPlaces);
  }

  std::mutex mutex_;
  std::array<std::atomic<Copy<G>*>, kPlaces> places_{};
  std::vector<std::unique_ptr<Copy<G>>> all_;
  std::atomic<uint32_t> size_{0};  // of all_
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_COPIES_H_
