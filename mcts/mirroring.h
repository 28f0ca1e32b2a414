// The traffic of copies (mirror.h): asking for them, telling owners what was counted, and the names
// of nodes that are only for this.
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

// A part of a site. Functions are called by the workers of the process; those of worker 0 while
// nobody searches.
template <Game G>
class Mirroring {
 public:
  Mirroring(Host& host, SlotTable<Node<G>*>& exported)
      : host_(host), exported_(exported), ready_(host.size()) {
    for (uint32_t i = 0; i < host.threads(); ++i) arenas_.push_back(std::make_unique<Arena>(0));
  }

  // ---- For rollouts.

  // A copy that is `stale` lags too far behind, since its owner has not answered yet: what is
  // counted there now would be of little use.
  struct Found {
    Node<G>* node = nullptr;  // or there is none
    Mirror<G>* mirror = nullptr;
    bool stale = false;
  };
  // The copy of a node that a rollout comes to by a move with so many visits.
  [[nodiscard]] Found copy(RemoteNode name, uint32_t visits) {
    Mirror<G>* known = mirrors_.find(name);
    if (known == nullptr) {
      if (visits >= mirror_visits_) ask(name);
      return {};
    }
    return host_.alive(name.rank) ? found(*known) : Found{};
  }
  // That of the root, in other ranks than 0.
  [[nodiscard]] Found root() {
    Mirror<G>* known = root_.load(std::memory_order_acquire);
    return known == nullptr ? Found{} : found(*known);
  }
  // Exchanges counts with the owner now, if that is not under way.
  void hurry(Mirror<G>& mirror, const Node<G>& node) {
    if (mirror.exchanging.load(std::memory_order_relaxed) ||
        mirror.exchanging.exchange(true, std::memory_order_acquire)) {
      return;
    }
    send_counts(mirror, node, /*last=*/false);
  }
  // Rank 0: whether that process has a copy of the root.
  [[nodiscard]] std::atomic<bool>& ready(uint32_t rank) { return ready_[rank]; }

  // ---- For searches, by worker 0.

  void begin(const SearchOptions& options) {
    mirror_visits_ = options.mirror_visits;
    exchange_divisor_ = options.exchange_divisor;
    for (auto& arena : arenas_) {
      arena->clear();
      // Beside the memory for nodes: few nodes are hot.
      arena->set_limit(options.memory_bytes / 16 / arenas_.size());
    }
    for (auto& ready : ready_) ready.store(false, std::memory_order_relaxed);
  }
  // In rank 0: tells the others that they may begin rollouts of their own.
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
    Host::here().lines->flush();
  }
  // Tells all owners what they do not know yet. No answer to an earlier exchange is missing.
  void settle() {
    mirrors_.for_each([&](Mirror<G>& mirror) {
      Node<G>* node = mirror.node.load(std::memory_order_acquire);
      // What the last answer has left behind is seen.
      static_cast<void>(mirror.exchanging.load(std::memory_order_acquire));
      if (node != nullptr) send_counts(mirror, *node, /*last=*/true);
    });
  }
  // No copy is used any more.
  void forget() {
    epoch_.fetch_add(1, std::memory_order_relaxed);
    root_.store(nullptr, std::memory_order_relaxed);
    mirrors_.clear();
    const std::lock_guard lock(mutex_);
    for (const SlotId id : lent_names_) static_cast<void>(exported_.take(id));
    lent_names_.clear();
    lent_.clear();
  }

  // Calls that were sent to and run for other processes: equal in all together when nothing is
  // under way.
  [[nodiscard]] uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t handled() const { return handled_.load(std::memory_order_acquire); }

 private:
  struct Asking {
    SlotId node;
    uint32_t requester = 0;
    uint32_t index = 0;
    uint64_t epoch = 0;
  };
  struct Made {
    G state;
    uint32_t index = 0;
    uint64_t epoch = 0;
  };
  // Names of the children of a node, which are lent with it.
  using Names = std::vector<std::optional<SlotId>>;

  [[nodiscard]] static Mirroring& here() { return Host::site_here<Site<G>>().mirroring(); }

  template <typename F>
  void post(uint32_t thread, F&& function) {
    sent_.fetch_add(1, std::memory_order_relaxed);
    if (!Host::here().lines->call(thread, std::forward<F>(function))) {
      sent_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  template <typename F>
  bool post_buffer(uint32_t thread, F&& function, std::span<const std::byte> bytes) {
    sent_.fetch_add(1, std::memory_order_relaxed);
    if (Host::here().lines->call_buffer(thread, std::forward<F>(function), bytes)) return true;
    sent_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  // A call counts as handled when all that it does is done, calls that it sends are counted: else
  // what another thread is still at would be taken for settled. For the same reason calls count as
  // sent before they are.
  class Handling {
   public:
    explicit Handling(Mirroring& mirroring) : handled_(mirroring.handled_) {}
    ~Handling() { handled_.fetch_add(1, std::memory_order_release); }
    Handling(const Handling&) = delete;
    Handling& operator=(const Handling&) = delete;

   private:
    std::atomic<uint64_t>& handled_;
  };
  // The thread of that process which this one talks to.
  [[nodiscard]] uint32_t partner(uint32_t rank) const { return host_.id(rank, Host::here().index); }

  // ---- Where the copy is.

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
    node->refuse_refinement();    // the owner's business
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
  [[nodiscard]] uint64_t period(uint64_t visits) const {
    return std::clamp<uint64_t>(visits / exchange_divisor_, 8, 1024);
  }
  void tend(Mirror<G>& mirror, const Node<G>& node) {
    const bool news =
        node.outcome() != Outcome::kOpen && !mirror.told.load(std::memory_order_relaxed);
    if (news || node.visits() >= mirror.due.load(std::memory_order_relaxed)) hurry(mirror, node);
  }
  void put_off(Mirror<G>& mirror, const Node<G>& node) {
    const uint64_t visits = node.visits();
    mirror.due.store(visits + period(visits), std::memory_order_relaxed);
    mirror.exchanging.store(false, std::memory_order_release);
  }
  void send_counts(Mirror<G>& mirror, const Node<G>& node, bool last) {
    if (!host_.alive(mirror.name.rank)) return;
    mirror.told.store(node.outcome() != Outcome::kOpen, std::memory_order_relaxed);
    // Of its own: sending may run calls that come here for other copies.
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
    for (size_t i = 0; i < grown.size(); ++i) {  // another time
      MoveCounts& before = mirror.agreed[i];
      before.visits -= grown[i].visits;
      before.value -= grown[i].value;
      before.amaf_visits -= grown[i].amaf_visits;
      before.amaf_value -= grown[i].amaf_value;
    }
    put_off(mirror, node);
  }
  void on_merge(uint32_t index, uint64_t epoch, bool full, const void* data, uint64_t bytes) {
    const Handling handling(*this);
    if (full) Host::site_here<Site<G>>().note_full();  // it will make no children
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
    tend(*mirror, *node);  // what was proved meanwhile
    Host::site_here<Site<G>>().note_waiting(false);
  }
  [[nodiscard]] Mirror<G>* mirror_of(uint32_t index, uint64_t epoch) {
    return epoch == epoch_.load(std::memory_order_relaxed) ? mirrors_.at(index) : nullptr;
  }
  [[nodiscard]] static MoveCounts counts_of(const MoveRecord<G>& record) {
    return {record.visits, record.verdict, record.amaf_visits, record.amaf_value, record.value};
  }
  // A child that is here has an address.
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

  // ---- Where the node is.

  [[nodiscard]] SlotId lend(Node<G>* node) {
    const SlotId id = exported_.add(node);
    lent_names_.push_back(id);
    return id;
  }
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
  std::atomic<uint64_t> epoch_{0};
  std::vector<std::atomic<bool>> ready_;  // by rank
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> handled_{0};
  std::mutex mutex_;  // of what is below
  std::unordered_map<const Node<G>*, Names> lent_;
  std::vector<SlotId> lent_names_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_MIRRORING_H_
