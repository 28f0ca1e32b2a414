// The messages about copies of nodes (mirror.h): requests for copies, exchanges of counts with the
// owners, and the temporary names under which owners export their nodes for this.
#ifndef CARIAMA_MCTS_MIRRORING_H_
#define CARIAMA_MCTS_MIRRORING_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "mcts/host.h"
#include "mcts/mirror.h"
#include "mcts/options.h"
#include "mcts/slot_table.h"

namespace cariama::mcts {

template <Game G>
class Site;

// The part of a site that manages copies. The workers of the process call its functions. The
// functions for worker 0 require that no rollout is running.
template <Game G>
class Mirroring {
 public:
  Mirroring(Host& host, SlotTable<Node<G>*>& exported)
      : host_(host), exported_(exported), ready_(host.size()) {
    for (uint32_t i = 0; i < host.threads(); ++i) arenas_.push_back(std::make_unique<Arena>(0));
  }

  // ---- Called by rollouts.

  struct Found {
    Node<G>* node = nullptr;  // the copy, or nullptr
    Mirror<G>* mirror = nullptr;
    // The counts of the copy are too old, since the owner has not answered the last exchange.
    // Rollouts through the copy would follow outdated statistics.
    bool stale = false;
  };
  // Returns the copy of a node that a rollout reaches by a move with this number of visits.
  // Requests a copy if there is none and the move has enough visits.
  [[nodiscard]] Found copy(RemoteNode name, uint32_t visits) {
    Mirror<G>* known = mirrors_.find(name);
    if (known == nullptr) {
      if (visits >= mirror_visits_) ask(name);
      return {};
    }
    return host_.alive(name.rank) ? found(*known) : Found{};
  }
  // Returns the copy of the root. Called in ranks other than 0.
  [[nodiscard]] Found root() {
    Mirror<G>* known = root_.load(std::memory_order_acquire);
    return known == nullptr ? Found{} : found(*known);
  }
  // Starts an exchange of counts with the owner, unless one is in flight.
  void hurry(Mirror<G>& mirror, const Node<G>& node) {
    if (mirror.exchanging.load(std::memory_order_relaxed) ||
        mirror.exchanging.exchange(true, std::memory_order_acquire)) {
      return;
    }
    send_counts(mirror, node, /*last=*/false);
  }
  // Rank 0: the flag that process `rank` has a copy of the root.
  [[nodiscard]] std::atomic<bool>& ready(uint32_t rank) { return ready_[rank]; }

  // ---- Called by worker 0, for searches.

  void begin(const SearchOptions& options) {
    mirror_visits_ = options.mirror_visits;
    exchange_divisor_ = options.exchange_divisor;
    for (auto& arena : arenas_) {
      arena->clear();
      // In addition to the memory for nodes. A small part suffices: few nodes are visited often.
      arena->set_limit(options.memory_bytes / 16 / arenas_.size());
    }
    for (auto& ready : ready_) ready.store(false, std::memory_order_relaxed);
  }
  // Called in rank 0: sends the name of the root to the other processes. They request copies of it,
  // from which they begin rollouts.
  void offer(Node<G>* root) {
    if (host_.size() == 1) return;
    SlotId id;
    {
      const std::lock_guard lock(mutex_);
      id = lend(root);
    }
    const RemoteNode name{static_cast<uint16_t>(host_.rank()), static_cast<uint16_t>(id.generation),
                          id.slot};
    for (uint32_t rank = 0; rank < host_.size(); ++rank) {
      if (rank == host_.rank() || !host_.alive(rank)) continue;
      post(host_.id(rank, 0), [name] { here().on_offer(name); });
    }
    Host::here().aggregators->flush();
  }
  // Sends the remaining counts of all copies to their owners. Requires: no exchange is in flight.
  void quiesce() {
    mirrors_.for_each([&](Mirror<G>& mirror) {
      Node<G>* node = mirror.node.load(std::memory_order_acquire);
      // Acquire: pairs with the release in put_off(). The effects of the last answer are visible.
      static_cast<void>(mirror.exchanging.load(std::memory_order_acquire));
      if (node != nullptr) send_counts(mirror, *node, /*last=*/true);
    });
  }
  // Drops all copies and all temporary names. Requires: no thread uses a copy.
  void forget() {
    epoch_.fetch_add(1, std::memory_order_relaxed);
    root_.store(nullptr, std::memory_order_relaxed);
    mirrors_.clear();
    const std::lock_guard lock(mutex_);
    for (const SlotId id : lent_names_) static_cast<void>(exported_.take(id));
    lent_names_.clear();
    lent_.clear();
  }

  // Return the number of calls that this process has sent to other processes, and that it has run
  // for them. Added up over all processes, both are equal when no call is in flight.
  [[nodiscard]] uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t handled() const { return handled_.load(std::memory_order_acquire); }

 private:
  // A request about a copy.
  struct Asking {
    SlotId node;             // the original, in the table of its owner
    uint32_t requester = 0;  // global id of the thread to answer to
    uint32_t index = 0;      // of the mirror at the requester
    uint64_t epoch = 0;      // of the requester
  };
  // The answer to a request for a copy; a MoveRecord per move follows.
  struct Made {
    G state;
    uint32_t index = 0;  // of the mirror at the requester
    uint64_t epoch = 0;  // of the requester
  };
  // Temporary names of the children of a copied node, by move.
  using Names = std::vector<std::optional<SlotId>>;

  [[nodiscard]] static Mirroring& here() { return Host::site_here<Site<G>>().mirroring(); }

  // Send a call without a reply and count it. The call is counted before it is sent: the receiver
  // must never have counted more calls than the senders.
  template <typename F>
  void post(uint32_t thread, F&& function) {
    sent_.fetch_add(1, std::memory_order_relaxed);
    if (!Host::here().aggregators->call(thread, std::forward<F>(function))) {
      sent_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  template <typename F>
  bool post_buffer(uint32_t thread, F&& function, std::span<const std::byte> bytes) {
    sent_.fetch_add(1, std::memory_order_relaxed);
    if (Host::here().aggregators->call_buffer(thread, std::forward<F>(function), bytes))
      return true;
    sent_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  // Counts a received call as run when its handler returns. By then the calls that the handler
  // sends are counted as sent. Otherwise quiesce() could return while another thread is still in a
  // handler that is about to send a call.
  class Handling {
   public:
    explicit Handling(Mirroring& mirroring) : handled_(mirroring.handled_) {}
    ~Handling() { handled_.fetch_add(1, std::memory_order_release); }
    Handling(const Handling&) = delete;
    Handling& operator=(const Handling&) = delete;

   private:
    std::atomic<uint64_t>& handled_;
  };
  // Returns the global id of the thread of process `rank` with the index of the calling thread.
  [[nodiscard]] uint32_t partner(uint32_t rank) const { return host_.id(rank, Host::here().index); }

  // ---- In the process that has the copy.

  // Requests a copy of a node.
  void ask(RemoteNode name) {
    Mirror<G>* mirror = mirrors_.add(name);
    if (mirror != nullptr) ask(*mirror);
  }
  void ask(const Mirror<G>& mirror) {
    const Asking asking{{mirror.name.slot, mirror.name.generation},
                        host_.id(host_.rank(), Host::here().index),
                        mirror.index,
                        epoch_.load(std::memory_order_relaxed)};
    post(partner(mirror.name.rank), [asking] { here().on_ask(asking); });
  }
  void on_offer(RemoteNode name) {
    const Handling handling(*this);
    Mirror<G>* mirror = mirrors_.add(name);
    if (mirror == nullptr) return;
    root_.store(mirror, std::memory_order_release);
    ask(*mirror);
  }
  void on_copy(const Made& made, const void* data, uint64_t bytes) {
    const Handling handling(*this);
    const size_t count = bytes / sizeof(MoveRecord<G>);
    Mirror<G>* mirror = mirror_of(made.index, made.epoch);
    if (mirror == nullptr || count > G::kMaxMoves) return;
    std::vector<MoveRecord<G>> records(count);
    std::memcpy(static_cast<void*>(records.data()), data, count * sizeof(MoveRecord<G>));
    const uint32_t thread = Host::here().index;
    Node<G>* node = Node<G>::make(made.state, std::span<const MoveRecord<G>>(records),
                                  *arenas_[thread], static_cast<uint16_t>(thread));
    if (node == nullptr) return;  // no memory
    node->refuse_refinement();    // only the owner refines a node
    mirror->agreed.resize(count);
    for (size_t i = 0; i < count; ++i) {
      mirror->agreed[i] = counts_of(records[i]);
      take_child(*node, static_cast<int>(i), records[i]);
    }
    put_off(*mirror, *node);
    mirror->node.store(node, std::memory_order_release);
    if (mirror == root_.load(std::memory_order_relaxed)) {
      const uint32_t rank = host_.rank();
      post(host_.id(0, thread), [rank] {
        const Handling handling(here());
        if (rank < here().host_.size()) here().ready(rank).store(true, std::memory_order_relaxed);
      });
    }
  }

  [[nodiscard]] Found found(Mirror<G>& mirror) {
    Node<G>* node = mirror.node.load(std::memory_order_acquire);
    if (node == nullptr) return {};
    tend(mirror, *node);
    const uint64_t visits = node->visits();
    return {node, &mirror,
            mirror.exchanging.load(std::memory_order_relaxed) &&
                visits >= mirror.due.load(std::memory_order_relaxed) + period(visits)};
  }
  // Returns the number of visits from one exchange to the next.
  [[nodiscard]] uint64_t period(uint64_t visits) const {
    return std::clamp<uint64_t>(visits / exchange_divisor_, 8, 1024);
  }
  // Starts an exchange if it is due, or if the copy has an outcome that was not sent to the owner.
  void tend(Mirror<G>& mirror, const Node<G>& node) {
    const bool news =
        node.outcome() != Outcome::kOpen && !mirror.told.load(std::memory_order_relaxed);
    if (news || node.visits() >= mirror.due.load(std::memory_order_relaxed)) hurry(mirror, node);
  }
  // Ends an exchange and computes when the next one is due.
  void put_off(Mirror<G>& mirror, const Node<G>& node) {
    const uint64_t visits = node.visits();
    mirror.due.store(visits + period(visits), std::memory_order_relaxed);
    mirror.exchanging.store(false, std::memory_order_release);
  }
  // Sends the counts since the last exchange to the owner. last: the owner sends no answer.
  void send_counts(Mirror<G>& mirror, const Node<G>& node, bool last) {
    if (!host_.alive(mirror.name.rank)) return;
    mirror.told.store(node.outcome() != Outcome::kOpen, std::memory_order_relaxed);
    // A local vector, not a reused member: sending may run received calls, which call this function
    // for other copies.
    std::vector<MoveCounts> grown;
    grown.reserve(static_cast<size_t>(node.size()));
    for (int i = 0; i < node.size(); ++i) {
      const MoveCounts now = node.counts(i);
      MoveCounts& before = mirror.agreed[static_cast<size_t>(i)];
      grown.push_back({now.visits - before.visits, now.verdict,
                       now.amaf_visits - before.amaf_visits, now.amaf_value - before.amaf_value,
                       now.value - before.value});
      before = now;
    }
    const Asking asking{{mirror.name.slot, mirror.name.generation},
                        host_.id(host_.rank(), Host::here().index),
                        mirror.index,
                        epoch_.load(std::memory_order_relaxed)};
    const bool sent = post_buffer(
        partner(mirror.name.rank),
        [asking, last](void* data, uint64_t bytes) { here().on_counts(asking, last, data, bytes); },
        std::as_bytes(std::span(grown)));
    if (sent) return;
    for (size_t i = 0; i < grown.size(); ++i) {  // not sent: the next exchange sends these counts
      MoveCounts& before = mirror.agreed[i];
      before.visits -= grown[i].visits;
      before.value -= grown[i].value;
      before.amaf_visits -= grown[i].amaf_visits;
      before.amaf_value -= grown[i].amaf_value;
    }
    put_off(mirror, node);
  }
  // Handles the answer to send_counts(): merges the owner's counts into the copy.
  void on_merge(uint32_t index, uint64_t epoch, bool full, const void* data, uint64_t bytes) {
    const Handling handling(*this);
    if (full) Host::site_here<Site<G>>().note_full();  // the owner has no memory for children
    Mirror<G>* mirror = mirror_of(index, epoch);
    Node<G>* node = mirror == nullptr ? nullptr : mirror->node.load(std::memory_order_acquire);
    if (node == nullptr || bytes != mirror->agreed.size() * sizeof(MoveRecord<G>)) return;
    for (int i = 0; i < node->size(); ++i) {
      MoveRecord<G> record;
      std::memcpy(static_cast<void*>(&record),
                  static_cast<const std::byte*>(data) + static_cast<size_t>(i) * sizeof record,
                  sizeof record);
      MoveCounts& agreed = mirror->agreed[static_cast<size_t>(i)];
      const MoveCounts now = counts_of(record);
      node->add_counts(i, now, agreed);
      agreed = now;
      take_child(*node, i, record);
    }
    node->resolve();
    put_off(*mirror, *node);
    tend(*mirror, *node);  // sends an outcome that was proved since send_counts()
    Host::site_here<Site<G>>().note_waiting(false);
  }
  // Returns nullptr if the mirror belonged to an earlier search.
  [[nodiscard]] Mirror<G>* mirror_of(uint32_t index, uint64_t epoch) {
    return epoch == epoch_.load(std::memory_order_relaxed) ? mirrors_.at(index) : nullptr;
  }
  [[nodiscard]] static MoveCounts counts_of(const MoveRecord<G>& record) {
    return {record.visits, record.verdict, record.amaf_visits, record.amaf_value, record.value};
  }
  // Takes over the child of move i. A child that this process owns becomes a local reference.
  void take_child(Node<G>& node, int i, const MoveRecord<G>& record) {
    using Ref = typename Node<G>::Ref;
    if (!record.has_child || node.child(i).is_local()) return;
    if (record.child.rank != host_.rank()) {
      node.set_child(i, Ref(record.child));
      return;
    }
    const auto child = exported_.find({record.child.slot, record.child.generation});
    if (child) node.set_child(i, Ref(*child));
  }

  // ---- In the process that owns the node.

  // Exports a node under a temporary name, which is valid until forget(). Requires: mutex_ is
  // locked.
  [[nodiscard]] SlotId lend(Node<G>* node) {
    const SlotId id = exported_.add(node);
    lent_names_.push_back(id);
    return id;
  }
  // Returns the contents of a node for a copy. Gives temporary names to its local children.
  [[nodiscard]] std::vector<MoveRecord<G>> records_of(const Node<G>& node) {
    const std::lock_guard lock(mutex_);
    std::vector<MoveRecord<G>> records;
    records.reserve(static_cast<size_t>(node.size()));
    Names& names = lent_[&node];
    names.resize(static_cast<size_t>(node.size()));
    for (int i = 0; i < node.size(); ++i) {
      MoveRecord<G>& record = records.emplace_back(node.record(i));
      const auto child = node.child(i);
      record.has_child = child.is_local() || child.is_remote();
      if (child.is_remote()) record.child = child.remote();
      if (!child.is_local()) continue;
      std::optional<SlotId>& name = names[static_cast<size_t>(i)];
      if (!name) name = lend(child.local());
      record.child = {static_cast<uint16_t>(host_.rank()), static_cast<uint16_t>(name->generation),
                      name->slot};
    }
    return records;
  }
  void on_ask(const Asking& asking) {
    const Handling handling(*this);
    const std::optional<Node<G>*> node = exported_.find(asking.node);
    if (!node || asking.epoch != epoch_.load(std::memory_order_relaxed)) return;
    const std::vector<MoveRecord<G>> records = records_of(**node);
    const Made made{(*node)->state(), asking.index, asking.epoch};
    post_buffer(
        asking.requester, [made](void* data, uint64_t bytes) { here().on_copy(made, data, bytes); },
        std::as_bytes(std::span(records)));
  }
  void on_counts(const Asking& asking, bool last, const void* data, uint64_t bytes) {
    const Handling handling(*this);
    const std::optional<Node<G>*> found = exported_.find(asking.node);
    if (!found) return;
    Node<G>& node = **found;
    if (bytes != static_cast<size_t>(node.size()) * sizeof(MoveCounts)) return;
    for (int i = 0; i < node.size(); ++i) {
      MoveCounts grown;
      std::memcpy(&grown,
                  static_cast<const std::byte*>(data) + static_cast<size_t>(i) * sizeof grown,
                  sizeof grown);
      node.add_counts(i, grown, {});
    }
    node.resolve();
    if (last || asking.epoch != epoch_.load(std::memory_order_relaxed)) return;
    Site<G>& site = Host::site_here<Site<G>>();
    site.worker(Host::here().index).grow(node);
    const bool full = site.full();
    const std::vector<MoveRecord<G>> records = records_of(node);
    const uint32_t index = asking.index;
    const uint64_t epoch = asking.epoch;
    static_cast<void>(post_buffer(
        asking.requester,
        [index, epoch, full](void* answer, uint64_t length) {
          here().on_merge(index, epoch, full, answer, length);
        },
        std::as_bytes(std::span(records))));
  }

  Host& host_;
  SlotTable<Node<G>*>& exported_;
  uint32_t mirror_visits_ = 0;
  uint32_t exchange_divisor_ = 1;
  MirrorTable<G> mirrors_;
  std::vector<std::unique_ptr<Arena>> arenas_;  // by thread
  std::atomic<Mirror<G>*> root_{nullptr};
  std::atomic<uint64_t> epoch_{0};        // number of forget() calls
  std::vector<std::atomic<bool>> ready_;  // by rank
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> handled_{0};
  std::mutex mutex_;  // guards the members below
  std::unordered_map<const Node<G>*, Names> lent_;
  std::vector<SlotId> lent_names_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_MIRRORING_H_
