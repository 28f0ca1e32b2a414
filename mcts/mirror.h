// Copies of the hot nodes of other processes, for the time of a search.
//
// Nearly every rollout passes the root and the few nodes that the search likes best. A process that
// had to ask their owners each time would wait most of the time, and the owners would do all the
// work. So every process has a copy of the root, from which it begins rollouts of its own (a share
// of the root's), and of each node of another process that its rollouts pass often. A copy counts
// like the original. Now and then its process sends the owner what was counted since the last time,
// and gets back what the owner knows by then, which comes from all processes. Copies make no
// children: that is for the owner. (Replication of hot nodes: Graf et al. 2011.)
#ifndef CARIAMA_MCTS_MIRROR_H_
#define CARIAMA_MCTS_MIRROR_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "mcts/job.h"
#include "mcts/node.h"

namespace cariama::mcts {

template <Game G>
struct Mirror {
  RemoteNode name;
  uint32_t index = 0;                   // in its process
  std::atomic<Node<G>*> node{nullptr};  // nullptr: asked for
  std::atomic<bool> exchanging{true};   // an answer of the owner is on its way
  std::atomic<uint64_t> due{0};         // visits at which the next exchange is wanted
  std::atomic<bool> told{false};        // the owner was sent its outcome
  std::vector<MoveCounts> agreed;       // what the owner has counted, as far as known here
};

// The copies of a process. Thread-safe, but clear().
template <Game G>
class MirrorTable {
 public:
  static constexpr uint32_t kMost = 4096;

  [[nodiscard]] Mirror<G>* find(RemoteNode name) const {
    for (uint32_t at = home(name);; ++at) {
      Mirror<G>* known = places_[at % kPlaces].load(std::memory_order_acquire);
      if (known == nullptr || same(known->name, name)) return known;
    }
  }
  // nullptr: it is there already, or there are too many.
  [[nodiscard]] Mirror<G>* add(RemoteNode name) {
    const std::lock_guard lock(mutex_);
    if (all_.size() >= kMost) return nullptr;
    uint32_t at = home(name);
    for (;; ++at) {
      const Mirror<G>* known = places_[at % kPlaces].load(std::memory_order_relaxed);
      if (known == nullptr) break;
      if (same(known->name, name)) return nullptr;
    }
    auto& made = all_.emplace_back(std::make_unique<Mirror<G>>());
    made->name = name;
    made->index = static_cast<uint32_t>(all_.size() - 1);
    places_[at % kPlaces].store(made.get(), std::memory_order_release);
    return made.get();
  }
  [[nodiscard]] Mirror<G>* at(uint32_t index) {
    const std::lock_guard lock(mutex_);
    return index < all_.size() ? all_[index].get() : nullptr;
  }
  template <typename Function>
  void for_each(Function&& function) {
    const std::lock_guard lock(mutex_);
    for (const auto& mirror : all_) function(*mirror);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    for (auto& place : places_) place.store(nullptr, std::memory_order_relaxed);
    all_.clear();
  }

 private:
  static constexpr uint32_t kPlaces = 2 * kMost;

  [[nodiscard]] static uint32_t home(RemoteNode name) {
    return static_cast<uint32_t>(Random::mix(uint64_t{name.rank} << 32 | name.slot) % kPlaces);
  }
  [[nodiscard]] static bool same(RemoteNode a, RemoteNode b) {
    return a.rank == b.rank && a.slot == b.slot && a.generation == b.generation;
  }

  std::mutex mutex_;
  std::array<std::atomic<Mirror<G>*>, kPlaces> places_{};
  std::vector<std::unique_ptr<Mirror<G>>> all_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_MIRROR_H_
