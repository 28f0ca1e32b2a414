// CopyExchange: the copies that a process has of nodes of other processes (copies.h), and the calls
// about them: requests for copies, exchanges of counts with the owners, and the temporary names
// under which the owners export nodes for this.
//
// It reads and changes nodes of the local tree (tree.h), creates children at copies and offers them
// to the owners (offers.h), and calls WorkPool::note_answer() when a copy has arrived, or when an
// exchange, an offer or a creation has been answered. It runs no rollout.
#ifndef CARIAMA_MCTS_ENGINE_COPY_EXCHANGE_H_
#define CARIAMA_MCTS_ENGINE_COPY_EXCHANGE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dtutils/trace.h"
#include "mcts/engine/copies.h"
#include "mcts/engine/move_records.h"
#include "mcts/engine/offers.h"
#include "mcts/engine/slot_table.h"
#include "mcts/engine/tree.h"
#include "mcts/engine/work_pool.h"
#include "mcts/host.h"
#include "mcts/options.h"

namespace cariama::mcts {

// Thread-safe, except the functions for worker 0: these require that no rollout is running.
template <Game G>
class CopyExchange final : public LocalInstance {
 public:
  explicit CopyExchange(Host& host)
      : host_(host),
        tree_(host.local<LocalTree<G>>()),
        pool_(host.local<WorkPool<G>>()),
        has_root_copy_(host.size()) {
    for (uint32_t i = 0; i < host.threads(); ++i)
      arenas_.push_back(std::make_unique<Arena>(budget_));
  }

  [[nodiscard]] static CopyExchange& here() { return Host::local_here<CopyExchange>(); }

  // ---- Called by rollouts.

  struct Found {
    Node<G>* node = nullptr;  // the copied node, or nullptr
    Copy<G>* copy = nullptr;
    // The copy has counted many visits that the owner has not received. Further rollouts through
    // the copy would follow outdated statistics.
    bool stale = false;
  };
  // Returns the copy of a node that a rollout reaches by a move with this number of visits.
  // Requests a copy if there is none and the move has enough visits. The caller has checked that
  // the owner is alive (LocalTree::living_child()).
  [[nodiscard]] Found find(RemoteNode name, uint32_t visits) {
    Copy<G>* known = copies_.find(name);
    if (known == nullptr) {
      if (visits >= tree_.options().copy_visits) request(name);
      return {};
    }
    return found(*known);
  }
  // Returns true if a rollout may sample the position of a node instead of becoming a job of the
  // node's owner, which has too many: no copy of the node has arrived, and few rollouts have
  // sampled the position. Requests a copy if the move that leads to the node has at least an eighth
  // of copy_visits as its visits.
  [[nodiscard]] bool sample_instead(RemoteNode name, uint32_t visits) {
    Copy<G>* known = copies_.find(name);
    if (known == nullptr) {
      if (visits >= tree_.options().copy_visits / 8) request(name);
      known = copies_.find(name);
    }
    return known != nullptr && known->node.load(std::memory_order_relaxed) == nullptr &&
           known->samples.fetch_add(1, std::memory_order_relaxed) < tree_.options().busy_samples();
  }
  // Returns the copy of the root. Called in ranks other than 0.
  [[nodiscard]] Found find_root() {
    Copy<G>* known = root_.load(std::memory_order_acquire);
    return known == nullptr ? Found{} : found(*known);
  }
  // Starts an exchange of counts with the owner, unless one is in flight.
  void start_exchange(Copy<G>& copy, const Node<G>& node) {
    if (copy.exchange.begin()) send_counts(copy, node, /*last=*/false);
  }
  // Creates the child of a move of a copy in this process, and offers it to the owner of the
  // original. The owner adopts the node as the child of the move, unless there is one already.
  // Until the answer arrives the child is marked as being created. No rollout reaches the node
  // before, so the counts of the move at the copy are complete whatever the answer is.
  void offer_child(const Copy<G>& copy, Node<G>& node, int move) {
    const TraceScope trace("mcts", "offer child");
    if (!host_.alive(copy.name.rank) || !node.claim_child(move)) return;
    const auto obtained = tree_.obtain_exported(node.after(move), Host::here().index);
    if (obtained.node == nullptr) {
      node.set_child(move, {});
      return;
    }
    if (obtained.created) created_for_others_.fetch_add(1, std::memory_order_relaxed);
    const RemoteNode name = tree_.name_of(obtained.id);
    const Offer offer{{copy.name.slot, copy.name.generation},
                      host_.id(host_.rank(), Host::here().index),
                      static_cast<uint16_t>(move),
                      name};
    offers_.add({name, copy.name.rank, &node, offer.move});
    const bool sent = post(partner(copy.name.rank), [offer] { here().on_offered(offer); });
    // As in request_child(): this function or lost() ends the offer if the owner dies.
    if (!sent || !host_.alive(copy.name.rank)) offers_.abandon(copy.name.rank);
  }
  // Ends the creation of a child by another process: sets the child, or none if the process has
  // created none. Then answers the offers for the move that have arrived meanwhile.
  void end_creation(Node<G>& node, int move, typename Node<G>::Ref child) {
    node.set_child(move, child);
    pool_.note_answer();
    for (const Offer& offer : offers_.take_deferred(node, move)) answer_offer(node, offer);
  }
  // If `node` is a copy, notifies the owner of the original that the child of a move does not exist
  // any more. Without this notification the next exchange would store the name of the child in the
  // copy again.
  void report_unknown(const Node<G>& node, int move, RemoteNode child) {
    const Copy<G>* copy = nullptr;
    copies_.for_each([&](const Copy<G>& one) {
      if (one.node.load(std::memory_order_acquire) == &node) copy = &one;
    });
    if (copy != nullptr) report_unknown(*copy, move, child);
  }
  // Rank 0: announces the root if the tree has to spread now. Requires: the calling worker runs or
  // holds a rollout of the root, or none can begin. So the search does not end meanwhile.
  void spread_if_due() {
    if (tree_.begin_to_spread()) announce_root();
  }
  // Rank 0: the flag that process `rank` has a copy of the root.
  [[nodiscard]] std::atomic<bool>& has_root_copy(uint32_t rank) { return has_root_copy_[rank]; }

  // ---- Called by worker 0, for searches.

  // Requires: the process has no copies.
  void begin(const SearchOptions& options) {
    for (auto& arena : arenas_) arena->clear();
    // In addition to the memory for nodes. A small part suffices: few nodes are visited often.
    budget_.set_limit(options.memory_bytes / 16);
    full_.store(false, std::memory_order_relaxed);
    for (auto& has : has_root_copy_) has.store(false, std::memory_order_relaxed);
  }
  // Called in rank 0, by any worker: sends the name of the root to the workers of its index in the
  // other processes. They request copies of it, from which they begin rollouts.
  void announce_root() {
    if (host_.size() == 1) return;
    SlotId id;
    {
      const std::lock_guard lock(mutex_);
      id = export_temporarily(tree_.root());
    }
    const RemoteNode name = tree_.name_of(id);
    for (uint32_t rank = 0; rank < host_.size(); ++rank) {
      if (rank == host_.rank() || !host_.alive(rank)) continue;
      post(partner(rank), [name] { here().on_root(name); });
    }
    Host::here().aggregators->flush();
  }
  // Sends the remaining counts of all copies to their owners. Requires: no exchange is in flight.
  void send_last_counts() {
    copies_.for_each([&](Copy<G>& copy) {
      Node<G>* node = copy.node.load(std::memory_order_acquire);
      copy.exchange.acquire();
      if (node != nullptr) send_counts(copy, *node, /*last=*/true);
    });
  }
  // Drops all copies and all temporary names, and frees the nodes that this process had offered to
  // a process that died. Called by worker 0. Requires: no rollout is running.
  void drop_copies() {
    epoch_.fetch_add(1, std::memory_order_relaxed);
    root_.store(nullptr, std::memory_order_relaxed);
    copies_.clear();
    // Requests that the death of a process left without an answer.
    for (const RequestedChild& one : requested_.take([](const RequestedChild&) { return true; }))
      end_request(one, {});
    const std::vector<SlotId> abandoned = offers_.clear();
    {
      const std::lock_guard lock(mutex_);
      for (const SlotId id : temporary_ids_) static_cast<void>(tree_.exported().take(id));
      temporary_ids_.clear();
      ids_of_children_.clear();
    }
    for (const SlotId id : abandoned) tree_.free_exported(id);
  }

  // Returns the number of nodes that this process has created for parents in other processes, in
  // all searches.
  [[nodiscard]] uint64_t created_for_others() const {
    return created_for_others_.load(std::memory_order_relaxed);
  }
  // Handles the death of a process: the children that it was creating, and the offers to it, get no
  // answer.
  void lost(Rank rank) override {
    for (const RequestedChild& requested :
         requested_.take([&](const RequestedChild& one) { return one.rank == rank; })) {
      end_request(requested, {});
    }
    offers_.abandon(rank);
  }

 private:
  // A request about a copy.
  struct Request {
    SlotId node;         // the original, in the table of its owner
    ThreadId requester;  // the thread to answer to
    uint32_t index = 0;  // of the copy at the requester
    uint64_t epoch = 0;  // of the requester
  };
  // The answer to a request for a copy; a MoveRecord per move follows.
  struct Contents {
    G state;
    uint32_t index = 0;  // of the copy at the requester
    uint64_t epoch = 0;  // of the requester
  };
  using Offer = typename Offers<G>::Offer;
  using Ref = typename Node<G>::Ref;
  // Temporary names of the children of a copied node, by move.
  using Ids = std::vector<std::optional<SlotId>>;

  // Send a post. They return false only if the process of the thread has died, or if the contents
  // of a node do not fit into a call: then the node gets no copy. lost() and
  // LocalTree::living_child() end the requests of this process to a dead process.
  template <typename F>
  bool post(ThreadId thread, const F& function) {
    return Host::here().aggregators->post(thread, function);
  }
  template <typename F>
  bool post_buffer(ThreadId thread, const F& function, std::span<const std::byte> bytes) {
    return Host::here().aggregators->post_buffer(thread, function, bytes);
  }
  // Returns the thread of process `rank` with the index of the calling thread.
  [[nodiscard]] ThreadId partner(Rank rank) const { return host_.id(rank, Host::here().index); }

  // ---- In the process that has the copy.

  // Requests a copy of a node, unless this process has requested one or has no memory for it.
  void request(RemoteNode name) {
    if (full_.load(std::memory_order_relaxed) || !host_.alive(name.rank)) return;
    if (const Copy<G>* copy = copies_.add(name)) send_request(*copy);
  }
  void send_request(const Copy<G>& copy) {
    const Request request = request_for(copy);
    post(partner(copy.name.rank), [request] { here().on_request(request); });
  }
  [[nodiscard]] Request request_for(const Copy<G>& copy) const {
    return {{copy.name.slot, copy.name.generation},
            host_.id(host_.rank(), Host::here().index),
            copy.index,
            epoch_.load(std::memory_order_relaxed)};
  }
  void on_root(RemoteNode name) {
    if (!tree_.accepts(name)) return;
    Copy<G>* copy = copies_.add(name);
    if (copy == nullptr) return;
    root_.store(copy, std::memory_order_release);
    send_request(*copy);
  }
  void on_copy(const Contents& contents, const void* data, uint64_t bytes) {
    const TraceScope trace("mcts", "take copy", "bytes", bytes);
    Copy<G>* copy = copy_at(contents.index, contents.epoch);
    if (copy == nullptr) return;
    const auto decoded = decode_move_records<G>(data, bytes, host_.size());
    if (!decoded || (!decoded->empty() && !Node<G>::has_mover(contents.state))) {
      return internal::note_malformed("the contents of a node");
    }
    const std::vector<MoveRecord<G>>& records = *decoded;
    const uint32_t thread = Host::here().index;
    Node<G>* node = Node<G>::create(contents.state, std::span<const MoveRecord<G>>(records),
                                    *arenas_[thread], static_cast<uint16_t>(thread));
    if (node == nullptr) {
      // Rollouts that reach the node become jobs of its owner. The memory is free again when the
      // search ends: until then, a request for another copy would be as useless as this one.
      full_.store(true, std::memory_order_relaxed);
      copy->exchange.end();
      return;
    }
    node->set_refinements(kRefinements);  // only the owner refines a node
    std::vector<MoveCounts> counts;
    std::vector<size_t> unknown;
    for (size_t i = 0; i < records.size(); ++i) {
      counts.push_back(counts_of(records[i]));
      if (!take_child(*node, static_cast<int>(i), records[i])) unknown.push_back(i);
    }
    copy->exchange.set_common(std::move(counts));
    end_exchange(*copy, *node);
    copy->node.store(node, std::memory_order_release);
    pool_.note_answer();  // rollouts that wait for the owner continue at the copy
    for (const size_t i : unknown) report_unknown(*copy, static_cast<int>(i), records[i].child);
    if (copy == root_.load(std::memory_order_relaxed)) {
      const Rank rank = host_.rank();
      post(host_.id(0, thread), [rank] {
        if (rank < here().host_.size()) {
          here().has_root_copy(rank).store(true, std::memory_order_relaxed);
        }
      });
    }
  }

  [[nodiscard]] Found found(Copy<G>& copy) {
    Node<G>* node = copy.node.load(std::memory_order_acquire);
    if (node == nullptr) return {};
    exchange_if_due(copy, *node);
    const uint64_t visits = node->visits();
    return {node, &copy,
            copy.exchange.is_in_flight() && visits >= copy.due.load(std::memory_order_relaxed) +
                                                          kStalePeriods * period(visits)};
  }
  // A copy is too old for rollouts when an exchange takes longer than this number of periods.
  static constexpr uint64_t kStalePeriods = 4;
  // Returns the number of visits from one exchange to the next.
  [[nodiscard]] uint64_t period(uint64_t visits) const {
    return std::clamp<uint64_t>(
        visits / (uint64_t{tree_.options().exchange_divisor} * host_.size()), 8, 1024);
  }
  // Starts an exchange if it is due, or if the copy has an outcome that was not sent to the owner.
  void exchange_if_due(Copy<G>& copy, const Node<G>& node) {
    const bool proved =
        node.outcome() != Outcome::kOpen && !copy.outcome_sent.load(std::memory_order_relaxed);
    if (proved || node.visits() >= copy.due.load(std::memory_order_relaxed)) {
      start_exchange(copy, node);
    }
  }
  // Ends an exchange and computes when the next one is due.
  void end_exchange(Copy<G>& copy, const Node<G>& node) {
    const uint64_t visits = node.visits();
    copy.due.store(visits + period(visits), std::memory_order_relaxed);
    copy.exchange.end();
  }
  // Sends the counts since the last exchange to the owner. last: the owner sends no answer.
  void send_counts(Copy<G>& copy, const Node<G>& node, bool last) {
    if (!host_.alive(copy.name.rank)) return;
    copy.outcome_sent.store(node.outcome() != Outcome::kOpen, std::memory_order_relaxed);
    // The last counts of all copies are sent at the same time: they are small. A local vector, not
    // a reused member: sending may run received calls, which call this function for other copies.
    const std::vector<MoveCounts> grown = copy.exchange.take_grown(node, last);
    if (last && grown.empty()) return;
    const TraceScope trace("mcts", last ? "send last counts" : "exchange counts", "rank",
                           copy.name.rank);
    const Request request = request_for(copy);
    const bool sent = post_buffer(
        partner(copy.name.rank),
        [request, last](void* data, uint64_t bytes) {
          here().on_counts(request, last, data, bytes);
        },
        std::as_bytes(std::span(grown)));
    if (sent) return;
    copy.exchange.return_grown(grown);
    end_exchange(copy, node);
  }
  // Handles the answer to send_counts(): merges the owner's counts into the copy.
  void on_merge(uint32_t index, uint64_t epoch, bool full, const void* data, uint64_t bytes) {
    const TraceScope trace("mcts", "merge counts", "bytes", bytes);
    if (full) tree_.note_full();  // the owner has no memory for children
    Copy<G>* copy = copy_at(index, epoch);
    Node<G>* node = copy == nullptr ? nullptr : copy->node.load(std::memory_order_acquire);
    if (node == nullptr) return;
    const auto records = decode_move_records<G>(data, bytes, host_.size());
    if (!records) return internal::note_malformed("the counts of a node");
    if (records->size() != copy->exchange.common().size()) return;
    std::vector<std::pair<int, RemoteNode>> unknown;
    for (int i = 0; i < node->size(); ++i) {
      const MoveRecord<G>& record = (*records)[static_cast<size_t>(i)];
      copy->exchange.merge(*node, i, counts_of(record));
      // The owner may have evaluated or refined the node since it sent the copy.
      if constexpr (HasEvaluator<G> || RefinesPriors<G>) node->set_prior(i, record.prior);
      if (!take_child(*node, i, record)) unknown.emplace_back(i, record.child);
    }
    // After the loop: sending may run received calls.
    for (const auto& [move, child] : unknown) report_unknown(*copy, move, child);
    node->resolve();
    end_exchange(*copy, *node);
    exchange_if_due(*copy, *node);  // sends an outcome that was proved since send_counts()
    pool_.note_answer();
  }
  // Handles the answer to offer_child(). child: the child of the move at the owner, if it has one.
  void on_adopted(RemoteNode offered, std::optional<RemoteNode> child) {
    const RemoteNode name = child.value_or(RemoteNode{});
    const bool has_child = child.has_value() && tree_.accepts(name);
    const std::optional<typename Offers<G>::Sent> offer = offers_.take(offered);
    if (!offer) return;  // abandoned
    Node<G>& parent = *offer->copy;
    const int move = offer->move;
    const SlotId id{offered.slot, offered.generation};
    if (has_child && name == offered) {
      if (const auto adopted = tree_.exported().find(id)) {
        parent.set_child(move, Ref(*adopted));
        if ((*adopted)->outcome() != Outcome::kOpen) {
          parent.prove(move, (*adopted)->outcome());
          parent.resolve();
        }
      }
    } else {  // the owner has not adopted the offered node, so no rollout has reached it
      parent.set_child(move, has_child ? reference_to(name) : Ref());
      tree_.discard_exported(id, Host::here().index);
    }
    pool_.note_answer();
  }
  // Returns nullptr if the copy belonged to an earlier search.
  [[nodiscard]] Copy<G>* copy_at(uint32_t index, uint64_t epoch) {
    return epoch == epoch_.load(std::memory_order_relaxed) ? copies_.at(index) : nullptr;
  }
  [[nodiscard]] static MoveCounts counts_of(const MoveRecord<G>& record) {
    return {record.visits, record.verdict, 0, record.amaf_visits, record.amaf_value, record.value};
  }
  // Takes over the child of move i. A child that this process owns becomes a local reference.
  // Returns false, and leaves the move without the child, if the child does not exist any more:
  // this process owned it and does not know its name, or the owner has died.
  [[nodiscard]] bool take_child(Node<G>& node, int i, const MoveRecord<G>& record) {
    if (!record.has_child || node.child(i).is_local()) return true;
    const Ref child = reference_to(record.child);
    if (child.none()) {
      node.drop_child(i, record.child);
    } else {
      node.set_child(i, child);
    }
    return !child.none();
  }
  void report_unknown(const Copy<G>& copy, int move, RemoteNode child) {
    if (!host_.alive(copy.name.rank)) return;
    const SlotId original{copy.name.slot, copy.name.generation};
    post(partner(copy.name.rank),
         [original, move, child] { here().on_unknown(original, move, child); });
  }
  // Returns a reference to a node by its name. A node of this process becomes a local reference.
  // Returns none if this process does not know the name, or the owner has died.
  [[nodiscard]] Ref reference_to(RemoteNode name) {
    if (name.rank != host_.rank()) return host_.alive(name.rank) ? Ref(name) : Ref();
    const auto own = tree_.exported().find({name.slot, name.generation});
    return own ? Ref(*own) : Ref();
  }

  // ---- In the process that owns the node.

  // Exports a node under a temporary name, which is valid until drop_copies(). Requires: mutex_ is
  // locked.
  [[nodiscard]] SlotId export_temporarily(Node<G>* node) {
    const SlotId id = tree_.exported().add(node);
    temporary_ids_.push_back(id);
    return id;
  }
  // Returns the contents of a node for a copy. Gives temporary names to its local children.
  [[nodiscard]] std::vector<MoveRecord<G>> records_of(Node<G>& node) {
    const std::lock_guard lock(mutex_);
    return tree_.records_of(node,
                            [&](int i, Node<G>* child) { return id_of_child(node, i, child); });
  }
  // Returns the temporary name of the local child of move i. Requires: mutex_ is locked.
  [[nodiscard]] SlotId id_of_child(const Node<G>& node, int i, Node<G>* child) {
    Ids& ids = ids_of_children_[&node];
    ids.resize(static_cast<size_t>(node.size()));
    std::optional<SlotId>& id = ids[static_cast<size_t>(i)];
    if (!id) id = export_temporarily(child);
    return *id;
  }
  void on_request(const Request& request) {
    const TraceScope trace("mcts", "give copy");
    const std::optional<Node<G>*> node = tree_.exported().find(request.node);
    if (!node || request.epoch != epoch_.load(std::memory_order_relaxed)) return;
    const std::vector<MoveRecord<G>> records = records_of(**node);
    const Contents contents{(*node)->state(), request.index, request.epoch};
    const auto bytes = std::as_bytes(std::span(records));
    const bool sent = post_buffer(
        request.requester,
        [contents](void* data, uint64_t length) { here().on_copy(contents, data, length); }, bytes);
    if (!sent && bytes.size() > PeerAggregators::kMostBufferBytes) {
      internal::note_large_node(records.size());
    }
  }
  void on_offered(const Offer& offer) {
    if (!tree_.accepts(offer.name)) return;
    const std::optional<Node<G>*> node = tree_.exported().find(offer.parent);
    if (node && offer.move < (*node)->size()) {
      answer_offer(**node, offer);
    } else {
      send_child(offer, {});
    }
  }
  // Adopts a node of another process as the child of a move, unless there is a child. Answers with
  // the child of the move. If a third process is creating the child, the answer waits for
  // end_creation(): a process that got another answer would repeat its offer without end.
  void answer_offer(Node<G>& node, const Offer& offer) {
    const TraceScope trace("mcts", "answer offer");
    if (tree_.living_child(node, offer.move).none() && host_.alive(offer.name.rank)) {
      static_cast<void>(node.publish_child(offer.move, Ref(offer.name)));
    }
    if (offers_.defer(node, offer)) return;
    const Ref now = node.child(offer.move);
    std::optional<RemoteNode> child;
    if (now.is_remote()) child = now.remote();
    if (now.is_local()) {
      const std::lock_guard lock(mutex_);
      child = tree_.name_of(id_of_child(node, offer.move, now.local()));
    }
    send_child(offer, child);
  }
  void send_child(const Offer& offer, std::optional<RemoteNode> child) {
    const RemoteNode name = offer.name;
    post(offer.requester, [name, child] { here().on_adopted(name, child); });
  }
  void on_unknown(SlotId original, int move, RemoteNode child) {
    const std::optional<Node<G>*> node = tree_.exported().find(original);
    if (node && move >= 0 && move < (*node)->size()) (*node)->drop_child(move, child);
  }
  void on_counts(const Request& request, bool last, const void* data, uint64_t bytes) {
    const TraceScope trace("mcts", "take counts", "bytes", bytes);
    const std::optional<Node<G>*> found = tree_.exported().find(request.node);
    if (!found) return;
    Node<G>& node = **found;
    const auto counts = decode_move_counts(data, bytes, node.size());
    if (!counts) return internal::note_malformed("the counts of a copy");
    for (const MoveCounts& grown : *counts) node.add_counts(grown.move, grown, {});
    node.resolve();
    if (last || request.epoch != epoch_.load(std::memory_order_relaxed)) return;
    if (tree_.options().placement != Placement::kLocality) {
      tree_.create_children(node, Host::here().index, [&](int move, const G& position, Rank rank) {
        request_child({request.node, static_cast<uint16_t>(move), rank}, node, position);
      });
    }
    const bool full = tree_.full();
    const std::vector<MoveRecord<G>> records = records_of(node);
    const uint32_t index = request.index;
    const uint64_t epoch = request.epoch;
    static_cast<void>(post_buffer(
        request.requester,
        [index, epoch, full](void* answer, uint64_t length) {
          here().on_merge(index, epoch, full, answer, length);
        },
        std::as_bytes(std::span(records))));
  }
  // Requests the creation of a child in another process.
  void request_child(const RequestedChild& requested, Node<G>& node, const G& position) {
    if (!node.claim_child(requested.move)) return;
    const TraceScope trace("mcts", "request child", "rank", requested.rank);
    requested_.add(requested);
    const ThreadId requester = host_.id(host_.rank(), Host::here().index);
    const bool sent = post_buffer(
        partner(requested.rank),
        [requested, requester](void* data, uint64_t bytes) {
          here().on_create(requested, requester, data, bytes);
        },
        std::as_bytes(std::span(&position, 1)));
    // If the process dies, this function or lost() ends the request. None is missed: this function
    // checks alive() after the request was entered, and lost() runs after the process was marked as
    // dead.
    if (sent && host_.alive(requested.rank)) return;
    for (const RequestedChild& mine :
         requested_.take([&](const RequestedChild& one) { return one == requested; })) {
      end_request(mine, {});
    }
  }
  // child: the created node, or none.
  void end_request(const RequestedChild& requested, Ref child) {
    const std::optional<Node<G>*> node = tree_.exported().find(requested.node);
    if (node) end_creation(**node, requested.move, child);
  }
  void on_create(const RequestedChild& requested, ThreadId requester, const void* data,
                 uint64_t bytes) {
    const auto obtained = tree_.create_requested(data, bytes, Host::here().index);
    if (!obtained) return;
    if (obtained->created) created_for_others_.fetch_add(1, std::memory_order_relaxed);
    const SlotId id = obtained->id;
    const bool created = obtained->node != nullptr;
    const Outcome outcome = created ? obtained->node->outcome() : Outcome::kOpen;
    const bool sent = post(requester, [requested, id, created, outcome] {
      here().on_created(requested, id, created, outcome);
    });
    if (!sent && created) tree_.discard_exported(id, Host::here().index);
  }
  void on_created(const RequestedChild& requested, SlotId id, bool created, Outcome outcome) {
    const TraceScope trace("mcts", "child created", "rank", requested.rank);
    if (!created) tree_.note_full();
    const RemoteNode name{static_cast<uint16_t>(requested.rank),
                          static_cast<uint16_t>(id.generation), id.slot};
    created = created && tree_.accepts(name);
    for (const RequestedChild& one :
         requested_.take([&](const RequestedChild& known) { return known == requested; })) {
      end_request(one, created ? Ref(name) : Ref());
      const std::optional<Node<G>*> node = tree_.exported().find(one.node);
      if (!node || outcome == Outcome::kOpen) continue;
      (*node)->prove(one.move, outcome);
      (*node)->resolve();
    }
  }

  Host& host_;
  LocalTree<G>& tree_;
  WorkPool<G>& pool_;
  CopyTable<G> copies_;
  Offers<G> offers_;
  RequestedChildren requested_;
  ArenaBudget budget_{0};                       // of the copies
  std::vector<std::unique_ptr<Arena>> arenas_;  // by thread
  std::atomic<bool> full_{false};               // an arena has no memory for another copy
  std::atomic<Copy<G>*> root_{nullptr};
  std::atomic<uint64_t> epoch_{0};                // number of drop_copies() calls
  std::vector<std::atomic<bool>> has_root_copy_;  // by rank
  std::atomic<uint64_t> created_for_others_{0};
  std::mutex mutex_;  // guards the members below
  std::unordered_map<const Node<G>*, Ids> ids_of_children_;
  std::vector<SlotId> temporary_ids_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_COPY_EXCHANGE_H_
