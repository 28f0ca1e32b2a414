// Offers and RequestedChildren: the records of the messages in flight by which processes agree on
// the child of a move (copy_exchange.h). A process that has created the child at a copy offers the
// node to the owner of the original, which adopts it or answers with another child. An owner
// requests a child from another process.
//
// tests/mcts/engine/offers_interleavings_test.cc runs this code in every interleaving of small
// instances.
#ifndef CARIAMA_MCTS_ENGINE_OFFERS_H_
#define CARIAMA_MCTS_ENGINE_OFFERS_H_

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "dsfabric/ids.h"
#include "mcts/engine/node.h"
#include "mcts/engine/slot_table.h"

namespace cariama::mcts {

// Removes the elements for which `condition` holds from `all`, and returns them.
template <typename T, typename Condition>
[[nodiscard]] std::vector<T> take_from(std::vector<T>& all, Condition&& condition) {
  const auto others =
      std::stable_partition(all.begin(), all.end(), [&](const T& one) { return !condition(one); });
  std::vector<T> taken(others, all.end());
  all.erase(others, all.end());
  return taken;
}

// A child of a node of this process that another process creates.
struct RequestedChild {
  SlotId node;
  uint16_t move = 0;
  Rank rank = 0;  // of the process that creates the child

  friend bool operator==(const RequestedChild&, const RequestedChild&) = default;
};

// The requested children that are in flight. Each is taken once: by the answer, or because the
// process has died. Thread-safe. A test replaces the mutex.
template <typename Mutex>
class BasicRequestedChildren {
 public:
  void add(const RequestedChild& requested) {
    const std::lock_guard<Mutex> lock(mutex_);
    requested_.push_back(requested);
  }
  // Removes the requested children for which `condition` holds, and returns them.
  template <typename Condition>
  [[nodiscard]] std::vector<RequestedChild> take(Condition&& condition) {
    const std::lock_guard<Mutex> lock(mutex_);
    return take_from(requested_, condition);
  }

 private:
  Mutex mutex_;
  std::vector<RequestedChild> requested_;
};
using RequestedChildren = BasicRequestedChildren<std::mutex>;

// Thread-safe, except clear(). A test replaces the node and the mutex.
template <typename NodeType, typename Mutex>
class BasicOffers {
 public:
  // The message: offers a node as the child of a move.
  struct Offer {
    SlotId parent;       // in the table of its owner
    ThreadId requester;  // the thread to answer to
    uint16_t move = 0;
    RemoteNode name;  // of the offered node
  };
  // An offer of this process that is in flight.
  struct Sent {
    RemoteNode name;           // of the offered node
    Rank owner = 0;            // of the original of the parent
    NodeType* copy = nullptr;  // of the parent
    uint16_t move = 0;
  };

  // ---- In the process that offers.

  void add(const Sent& offer) {
    const std::lock_guard<Mutex> lock(mutex_);
    sent_.push_back(offer);
  }
  // Removes the offer of a node, which has been answered. Returns nullopt if abandon() has removed
  // it. The memory of the copy lives until the next search begins.
  [[nodiscard]] std::optional<Sent> take(RemoteNode name) {
    const std::lock_guard<Mutex> lock(mutex_);
    const std::vector<Sent> taken =
        take_from(sent_, [&](const Sent& offer) { return offer.name == name; });
    return taken.empty() ? std::nullopt : std::optional(taken[0]);
  }
  // Removes the offers to an owner that has died. The owner may have adopted the nodes and have
  // told other processes their names, so rollouts may be at these nodes. Therefore they are freed
  // after the search: see clear().
  void abandon(Rank owner) {
    const std::lock_guard<Mutex> lock(mutex_);
    for (const Sent& offer :
         take_from(sent_, [&](const Sent& one) { return one.owner == owner; })) {
      abandoned_.push_back({offer.name.slot, offer.name.generation});
    }
  }

  // ---- In the process that owns the original of the parent.

  // If the child of the move is being created, enters the offer, which is to be answered when the
  // child has been created, and returns true.
  [[nodiscard]] bool defer(NodeType& parent, const Offer& offer) {
    const std::lock_guard<Mutex> lock(mutex_);
    if (!parent.child(offer.move).is_creating()) return false;
    deferred_.push_back({&parent, offer});
    return true;
  }
  // Removes the deferred offers for a move, and returns them. Called after the child was set. No
  // offer is missed: defer() has entered it before this function locks the mutex, or it reads the
  // child that was set.
  [[nodiscard]] std::vector<Offer> take_deferred(const NodeType& parent, int move) {
    const std::lock_guard<Mutex> lock(mutex_);
    std::vector<Offer> offers;
    for (const Deferred& one : take_from(deferred_, [&](const Deferred& known) {
           return known.parent == &parent && known.offer.move == move;
         })) {
      offers.push_back(one.offer);
    }
    return offers;
  }

  // Removes all offers: those that a death has left in flight. Returns the names of the nodes that
  // this process has offered and has to free. Requires: no rollout is running.
  [[nodiscard]] std::vector<SlotId> clear() {
    const std::lock_guard<Mutex> lock(mutex_);
    deferred_.clear();
    for (const Sent& offer : std::exchange(sent_, {})) {
      abandoned_.push_back({offer.name.slot, offer.name.generation});
    }
    return std::exchange(abandoned_, {});
  }

 private:
  struct Deferred {
    NodeType* parent;
    Offer offer;
  };

  Mutex mutex_;
  std::vector<Sent> sent_;
  std::vector<SlotId> abandoned_;
  std::vector<Deferred> deferred_;
};
template <Game G>
using Offers = BasicOffers<Node<G>, std::mutex>;

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_OFFERS_H_
