// LocalTree: one process's part of the distributed tree for one type of game. It owns the nodes
// that the process has created, their memory, their names for other processes, and the table of
// transpositions.
//
// The process that creates a node owns it. A node never moves to another process, except when it
// becomes the root (fetch()). The threads of the owner share the node. Other processes know only
// its name. A local tree sends calls only to the local trees of other processes, to free nodes and
// to move the root. It knows neither rollouts nor copies.
#ifndef CARIAMA_MCTS_ENGINE_TREE_H_
#define CARIAMA_MCTS_ENGINE_TREE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dtutils/statistics.h"
#include "dtutils/trace.h"
#include "mcts/engine/collector.h"
#include "mcts/engine/move_records.h"
#include "mcts/engine/node.h"
#include "mcts/engine/slot_table.h"
#include "mcts/engine/transpositions.h"
#include "mcts/host.h"
#include "mcts/options.h"

namespace cariama::mcts {

template <Game G>
class LocalTree final : public LocalInstance {
 public:
  explicit LocalTree(Host& host) : host_(host) {
    for (uint32_t i = 0; i < host.threads(); ++i) {
      threads_.push_back(std::make_unique<Thread>(budget_));
    }
    begin(SearchOptions::of<G>());
  }

  [[nodiscard]] static LocalTree& here() { return Host::local_here<LocalTree>(); }
  [[nodiscard]] Host& host() { return host_; }

  // Sets the options of the next search and resets the statistics. Called by worker 0. Requires: no
  // rollout is running.
  void begin(const SearchOptions& options) {
    options_ = options;
    set_memory_limit(options.memory_bytes);
    collections_ = 0;
    for (auto& thread : threads_) thread->counters.emplace();
  }
  void set_memory_limit(uint64_t bytes) { budget_.set_limit(bytes); }
  [[nodiscard]] const SearchOptions& options() const { return options_; }
  void add_to(Statistics& sum) const {
    for (const auto& thread : threads_) {
      sum.nodes_created += thread->counters->nodes_created.value();
      sum.transpositions += thread->counters->transpositions.value();
    }
    sum.collections += collections_;
    sum.nodes += nodes_.load(std::memory_order_relaxed);
    sum.node_bytes += live_bytes();
  }

  // ---- The begin of the search in one process (remote_playouts.h).

  // Rank 0: returns false as long as only this process grows the tree. Other ranks: returns true.
  // Thread-safe.
  [[nodiscard]] bool spreads() const { return spreads_.load(std::memory_order_relaxed); }
  // Called by worker 0 of rank 0, before rollouts begin: from now on only this process grows the
  // tree, until begin_to_spread() returns true.
  void grow_alone() { spreads_.store(false, std::memory_order_relaxed); }
  // Called in rank 0. Returns true once, when the tree has to spread over all processes: the root
  // has SearchOptions::spread_visits visits. Or this search has collected nodes, because a process
  // had no memory: the others may have some. At once in games with an Evaluator, whose positions
  // each process evaluates in batches. Thread-safe.
  [[nodiscard]] bool begin_to_spread() {
    if (spreads()) return false;
    const bool due = HasEvaluator<G> || host_.size() == 1 || collections_ != 0 ||
                     root_->visits() >= options_.spread_visits;
    return due && !spreads_.exchange(true, std::memory_order_relaxed);
  }

  // ---- Creating nodes. Thread-safe. `thread` is the index of the calling worker.

  // Returns the rank of the process that has to create a new child of `parent`. Throws
  // std::runtime_error if the game returned no player to move: the other process would ignore the
  // position.
  [[nodiscard]] uint32_t place(const Node<G>& parent, const G& position, Random& random) const {
    const uint32_t processes = host_.size();
    const uint32_t self = host_.rank();
    if (processes == 1 || !spreads()) return self;
    if (options_.placement == Placement::kLocality &&
        parent.visits() < uint64_t{options_.spread_expansions} * (options_.expand_visits + 1)) {
      return self;
    }
    uint32_t chosen = random.below(processes);
    if constexpr (HasKey<G>) {
      if (options_.placement == Placement::kHash) {
        chosen = static_cast<uint32_t>((position.key() >> 32) * processes >> 32);
      }
    }
    if (chosen == self || !host_.alive(chosen)) return self;
    if (!Node<G>::is_possible(position)) {
      internal::refuse_player(position.to_move(), players<G>());
    }
    return chosen;
  }
  // Creates the child of a move in this process. Returns nullptr if there is no memory, or another
  // process is creating the child. The node is complete before it is published, so no thread has to
  // wait for a thread that was interrupted in between. If several threads create the child at the
  // same time, one of the nodes is published and the others are freed.
  Node<G>* create_child(Node<G>& node, int move, const G& position, uint32_t thread) {
    Node<G>* created = obtain(position, thread).node;
    if (created == nullptr || node.publish_child(move, typename Node<G>::Ref(created)))
      return created;
    discard(created, thread);
    const auto child = node.child(move);
    return child.is_local() ? child.local() : nullptr;
  }
  // Returns a node for the position, with one more parent: a new node, or with transpositions an
  // existing one. Returns nullptr if there is no memory.
  struct Obtained {
    Node<G>* node = nullptr;
    bool created = false;
  };
  Obtained obtain(const G& position, uint32_t thread) {
    const bool shared = HasKey<G> && options_.transpositions;
    Thread& own = *threads_[thread];
    Node<G>* known = nullptr;
    if (shared) known = transpositions_.find(Node<G>::key_of(position));
    if (known == nullptr) {
      Node<G>* created = Node<G>::create(position, own.arena, static_cast<uint16_t>(thread),
                                         host_.thread(thread).random, true);
      if (created == nullptr) {
        note_full();
        return {};
      }
      known = shared ? transpositions_.find_or_add(created->key(), created) : created;
      if (known == created) {
        nodes_.fetch_add(1, std::memory_order_relaxed);
        own.counters->nodes_created.add();
        return {created, true};
      }
      created->destroy(own.arena);
    }
    own.counters->transpositions.add();
    return {known, false};
  }
  // Like obtain(), and exports the node: its parent is in another process.
  struct Exported {
    Node<G>* node = nullptr;
    bool created = false;
    SlotId id;  // valid if there is a node
  };
  Exported obtain_exported(const G& position, uint32_t thread) {
    const auto [node, created] = obtain(position, thread);
    return {node, created, node == nullptr ? SlotId{} : exported_.add(node)};
  }
  // Like obtain_exported(), for a position that another process has sent. Returns nothing if
  // `bytes` is not the size of a position, or if no player of the game is to move.
  [[nodiscard]] std::optional<Exported> create_requested(const void* data, uint64_t bytes,
                                                         uint32_t thread) {
    const std::optional<G> position = decode_position<G>(data, bytes);
    if (!position) return {};
    const TraceScope trace("mcts", "create child");
    if (!Node<G>::is_possible(*position)) {
      internal::note_malformed("no player is to move in a position");
      return {};
    }
    return obtain_exported(*position, thread);
  }
  // Creates children for moves that rollouts of other processes have often chosen at copies of this
  // node. The rollouts of this process may never choose these moves. Calls
  // create(move, position, rank) for a child that another process has to create.
  template <typename Create>
  void create_children(Node<G>& node, uint32_t thread, Create&& create) {
    for (int i = 0; i < node.size() && !full(); ++i) {
      if (node.visits(i) < options_.owner_expand_visits()) continue;
      if (!living_child(node, i).none() || node.closed(i)) continue;
      const G position = node.after(i);
      if (position.result()) continue;
      const uint32_t rank = place(node, position, host_.thread(thread).random);
      if (rank != host_.rank()) {
        create(i, position, rank);
        continue;
      }
      const Node<G>* created = create_child(node, i, position, thread);
      // If the outcome of the new node is proved, it is entered in the parent here: no rollout has
      // reached the node that would do so.
      if (created != nullptr && created->outcome() != Outcome::kOpen)
        node.prove(i, created->outcome());
    }
    node.resolve();
  }

  // Returns the child of a move. A child whose process has died is dropped: the move has no child
  // then, and gets a new one. Thread-safe.
  [[nodiscard]] typename Node<G>::Ref living_child(Node<G>& node, int move) const {
    const auto child = node.child(move);
    if (!child.is_remote() || host_.alive(child.remote().rank)) return child;
    node.drop_child(move, child.remote());
    return {};
  }

  // Returns true if refine() may change the priors of the node: not those of a root with noise,
  // since Search sets these at the beginning of each search.
  [[nodiscard]] bool sets_priors(const Node<G>& node) const {
    return options_.root_noise.fraction == 0 || &node != root_;
  }

  // Records that a process has no memory for nodes. The search pauses and collects cold nodes.
  void note_full() { full_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool full() const { return full_.load(std::memory_order_relaxed); }

  // ---- Names of nodes for other processes. Thread-safe.

  // The names of nodes whose parents, or copies, are in other processes.
  using ExportedNodes = SlotTable<Node<G>*, RemoteNode::kLastGeneration>;
  [[nodiscard]] ExportedNodes& exported() { return exported_; }
  [[nodiscard]] RemoteNode name_of(SlotId id) const {
    return {static_cast<uint16_t>(host_.rank()), static_cast<uint16_t>(id.generation), id.slot};
  }
  // Returns true if a node of this job can have this name, which a message contains.
  [[nodiscard]] bool accepts(RemoteNode name) const {
    if (is_possible(name, host_.size())) return true;
    internal::note_malformed("the name of a node");
    return false;
  }
  // Returns the contents of a node for another process. `id_of_child` returns the name of the local
  // child of move i.
  template <typename IdOfChild>
  [[nodiscard]] std::vector<MoveRecord<G>> records_of(Node<G>& node, IdOfChild&& id_of_child) {
    std::vector<MoveRecord<G>> records;
    records.reserve(static_cast<size_t>(node.size()));
    for (int i = 0; i < node.size(); ++i) {
      MoveRecord<G>& record = records.emplace_back(node.record(i));
      const auto child = living_child(node, i);
      record.has_child = child.is_local() || child.is_remote();
      if (child.is_remote()) record.child = child.remote();
      if (child.is_local()) record.child = name_of(id_of_child(i, child.local()));
    }
    return records;
  }

  // ---- The root. Called by worker 0 of rank 0. Requires: no rollout is running.

  [[nodiscard]] Node<G>* root() { return root_; }
  [[nodiscard]] const Node<G>* root() const { return root_; }
  // Returns the number of the tree: that of the last create_root().
  [[nodiscard]] uint64_t number() const { return number_; }
  // Creates the root of a new tree, and returns the tree's number. Requires: clear() has freed the
  // previous tree. Throws std::bad_alloc if there is no memory.
  uint64_t create_root(const G& position, uint64_t seed) {
    Random random(seed);
    // Not simplified: the result of a search has to contain all legal moves.
    root_ = Node<G>::create(position, threads_[0]->arena, 0, random, false);
    if (root_ == nullptr) throw std::bad_alloc();
    nodes_.fetch_add(1, std::memory_order_relaxed);
    return ++number_;
  }
  // Makes the child of a move of the root the new root, and frees all other nodes. Moves the child
  // to this process. Returns false, and leaves the tree unchanged except for this child, if the
  // child does not exist, cannot be moved, or has no moves.
  [[nodiscard]] bool advance_root(int move) {
    const auto child = root_->child(move);
    Node<G>* next = child.is_local()    ? child.local()
                    : child.is_remote() ? fetch(child.remote())
                                        : nullptr;
    if (next == nullptr || next->size() == 0) return false;
    root_->set_child(move, {});
    free_subtree(std::exchange(root_, next));
    return true;
  }

  // ---- Freeing nodes. Called by worker 0. Requires, except for discard() and discard_exported():
  // no rollout is running.

  // Drops the reference to a node that obtain() has returned and that has become no child. Frees
  // the node if it has no other parent. Thread-safe.
  void discard(Node<G>* node, uint32_t thread) {
    if (!transpositions_.drop_parent(node)) return;
    if (node->creator() == thread) {
      free_one(node);
    } else {  // the node is in the arena of another thread, which may be using it
      const std::lock_guard lock(discarded_mutex_);
      discarded_.push_back(node);
    }
  }
  // Frees an exported node with its subtree, unless it was freed before.
  void free_exported(SlotId id) {
    if (std::optional<Node<G>*> node = exported_.take(id)) free_subtree(*node);
  }
  // As discard(), for a node of obtain_exported() whose name no other process has. Thread-safe.
  void discard_exported(SlotId id, uint32_t thread) {
    if (const std::optional<Node<G>*> node = exported_.take(id)) discard(*node, thread);
  }
  // Frees the nodes that discard() could not free during the search.
  void free_discarded() {
    for (Node<G>* node : std::exchange(discarded_, {})) free_one(node);
  }
  // Frees cold subtrees, the coldest first, until half of the memory is free. One call works for
  // about a millisecond. Returns true if another step is needed. After the last step, or to stop
  // earlier, the caller calls finish_collection().
  bool collect_step() {
    if (!collecting_) {
      if (live_bytes() <= options_.memory_bytes / 2) return false;
      collecting_ = true;
      begin_pass(2 * std::max<uint32_t>(options_.expand_visits, 1));
    }
    bool more = true;
    for (uint32_t looks = 0; looks < kNodesPerStep && more; ++looks) {
      if (!collector_.between()) {
        collector_.step([&](Node<G>* node) { release(node); },
                        [&](RemoteNode node) { remote_frees_.push_back(node); });
      } else {
        more = next_top();
      }
    }
    send_frees();
    return more;
  }
  void finish_collection() {
    collecting_ = false;
    collector_.begin_pass(0, nullptr, {});
    for (const SlotId id : std::exchange(deferred_frees_, {})) on_free(id);
    ++collections_;
    full_.store(false, std::memory_order_relaxed);
  }
  // Runs a whole collection in this process.
  void collect() {
    while (collect_step()) {
    }
    finish_collection();
  }
  // Frees all nodes of this process.
  void clear() {
    for (auto& thread : threads_) thread->arena.clear();
    exported_.clear();
    transpositions_.clear();
    discarded_.clear();
    root_ = nullptr;
    nodes_.store(0, std::memory_order_relaxed);
    full_.store(false, std::memory_order_relaxed);
  }
  [[nodiscard]] uint64_t live_bytes() const { return budget_.live_bytes(); }
  // For tests: calls `function` for every node of this process. Requires: no rollout is running.
  template <typename Function>
  void for_each_node(Function&& function) {
    std::vector<Node<G>*> open;
    std::unordered_set<const Node<G>*> seen;
    if (root_ != nullptr) open.push_back(root_);
    exported_.for_each([&](Node<G>* node) { open.push_back(node); });
    while (!open.empty()) {
      Node<G>* node = open.back();
      open.pop_back();
      if (node->shared() && !seen.insert(node).second) continue;
      function(*node);
      for (int i = 0; i < node->size(); ++i) {
        if (const auto child = node->child(i); child.is_local()) open.push_back(child.local());
      }
    }
  }

 private:
  enum class Fetched : uint8_t { kWaiting, kDone };
  static constexpr uint32_t kNodesPerStep = 512;

  struct Counters {
    Counter nodes_created;
    Counter transpositions;
  };
  struct Thread {
    explicit Thread(ArenaBudget& budget) : arena(budget) {}
    Arena arena;
    std::optional<Counters> counters{std::in_place};
  };
  struct FetchedNode {
    G state;
    uint32_t moves;
    bool evaluated;
    uint8_t refinements;
  };

  // Frees one node without its children. During a search, only the worker in whose arena the node
  // is may call this.
  void free_one(Node<G>* node) {
    nodes_.fetch_sub(1, std::memory_order_relaxed);
    node->destroy(threads_[node->creator()]->arena);
  }
  // Frees a node and its subtree. Sends calls that free the nodes in other processes.
  void free_subtree(Node<G>* top) {
    release(top);
    send_frees();
  }
  // Handles a call that frees a subtree. While the collector has pointers to nodes, the call is
  // deferred.
  void on_free(SlotId id) {
    if (collecting_) {
      deferred_frees_.push_back(id);
      return;
    }
    free_exported(id);
  }

  void begin_pass(uint32_t least) { collector_.begin_pass(least, root_, exported_.names()); }
  // Moves the collector to the next top, or begins the next pass. Returns false if enough memory is
  // free, or the last pass is finished.
  bool next_top() {
    // Run the deferred on_free() calls now, so that the collector does not visit these nodes.
    collecting_ = false;
    for (const SlotId id : std::exchange(deferred_frees_, {})) on_free(id);
    collecting_ = true;
    if (collector_.next_top([&](SlotId id) { return exported_.find(id); })) return true;
    const uint32_t least = collector_.least();
    if (live_bytes() <= options_.memory_bytes / 2 || least >= Collector<G>::kLastLeast)
      return false;
    begin_pass(2 * least);
    return true;
  }
  // Frees the nodes of a subtree that are in this process. Adds the names of the other ones to
  // remote_frees_, for send_frees().
  void release(Node<G>* top) {
    std::vector<Node<G>*> open{top};
    while (!open.empty()) {
      Node<G>* node = open.back();
      open.pop_back();
      if (!transpositions_.drop_parent(node)) continue;
      for (int i = 0; i < node->size(); ++i) {
        const auto child = node->child(i);
        if (child.is_local()) open.push_back(child.local());
        if (child.is_remote()) remote_frees_.push_back(child.remote());
      }
      free_one(node);
    }
  }
  // Sends the calls that free nodes in other processes. Must not run while a function iterates over
  // nodes: a call whose channel has to grow blocks and runs received calls, whose on_free() would
  // free nodes that the iteration has still to visit. Such calls also run this function
  // recursively. Therefore each name is removed from the list before it is sent.
  void send_frees() {
    while (!remote_frees_.empty()) {
      const RemoteNode node = remote_frees_.back();
      remote_frees_.pop_back();
      if (!host_.alive(node.rank)) continue;
      const SlotId id{node.slot, node.generation};
      // If it is not sent, the owner keeps the node until the tree is cleared.
      static_cast<void>(
          Host::here().aggregators->post(host_.id(node.rank, 0), [id] { here().on_free(id); }));
    }
  }

  // Moves a node from its owner to this process and returns it. Its children stay in their
  // processes. Returns nullptr if the node cannot be moved: then it stays, or it is freed with its
  // subtree.
  Node<G>* fetch(RemoteNode name) {
    fetched_ = Fetched::kWaiting;
    fetched_node_ = nullptr;
    const SlotId id{name.slot, name.generation};
    const ThreadId origin = host_.id(host_.rank(), 0);
    PeerAggregators& aggregators = *Host::here().aggregators;
    if (!host_.alive(name.rank) ||
        !aggregators.call(host_.id(name.rank, 0), [id, origin] { here().on_fetch(id, origin); })) {
      return nullptr;
    }
    if (!host_.work_patiently(
            [&] { return fetched_ == Fetched::kDone || !host_.alive(name.rank); })) {
      host_.leave_out(name.rank);
    }
    return fetched_node_;
  }
  // Handles the call of fetch() at the owner; on_fetched() handles its answer.
  void on_fetch(SlotId id, ThreadId origin) {
    PeerAggregators& aggregators = *Host::here().aggregators;
    const std::optional<Node<G>*> node = exported_.take(id);
    if (!node || (*node)->shared()) {  // a node with other parents cannot move
      if (node) free_subtree(*node);
      aggregators.call(origin, [] { here().on_fetched(nullptr, nullptr, 0); });
      return;
    }
    const std::vector<MoveRecord<G>> records =
        records_of(**node, [&](int, Node<G>* child) { return exported_.add(child); });
    const FetchedNode fetched{(*node)->state(), static_cast<uint32_t>(records.size()),
                              (*node)->evaluated(), static_cast<uint8_t>((*node)->refinements())};
    static_cast<void>(transpositions_.drop_parent(*node));
    free_one(*node);
    const bool sent = aggregators.call_buffer(
        origin, [fetched](void* data, uint64_t bytes) { here().on_fetched(&fetched, data, bytes); },
        std::as_bytes(std::span(records)));
    if (sent) return;
    // The node does not fit into a call: free its subtree.
    for (const MoveRecord<G>& record : records) {
      if (!record.has_child) continue;
      if (record.child.rank == host_.rank()) {
        on_free({record.child.slot, record.child.generation});
      } else {
        remote_frees_.push_back(record.child);
      }
    }
    send_frees();
    aggregators.call(origin, [] { here().on_fetched(nullptr, nullptr, 0); });
  }
  void on_fetched(const FetchedNode* fetched, const void* data, uint64_t bytes) {
    fetched_ = Fetched::kDone;
    if (fetched == nullptr) return;
    const auto decoded = decode_move_records<G>(data, bytes, host_.size());
    if (!decoded || decoded->size() != fetched->moves ||
        (!decoded->empty() && !Node<G>::has_mover(fetched->state))) {
      return internal::note_malformed("the contents of a fetched node");
    }
    const std::vector<MoveRecord<G>>& records = *decoded;
    Node<G>* node = Node<G>::create(fetched->state, std::span<const MoveRecord<G>>(records),
                                    threads_[0]->arena, 0);
    if (node != nullptr) {
      if (!fetched->evaluated) node->end_evaluation(false);
      // A second refinement of level 0 would replace the priors of level 1.
      node->set_refinements(std::min<int>(fetched->refinements, kRefinements));
    }
    // Children that this process owns become local references.
    for (int i = 0; i < static_cast<int>(records.size()); ++i) {
      const MoveRecord<G>& record = records[i];
      if (!record.has_child) continue;
      if (node == nullptr) {  // no memory
        if (record.child.rank != host_.rank()) remote_frees_.push_back(record.child);
        continue;
      }
      if (record.child.rank != host_.rank()) continue;
      const std::optional<Node<G>*> child =
          exported_.take({record.child.slot, record.child.generation});
      node->set_child(i, child ? typename Node<G>::Ref(*child) : typename Node<G>::Ref());
    }
    send_frees();
    if (node != nullptr) nodes_.fetch_add(1, std::memory_order_relaxed);
    fetched_node_ = node;
  }

  Host& host_;
  SearchOptions options_;
  ArenaBudget budget_{0};  // of the nodes; declared before the arenas
  std::vector<std::unique_ptr<Thread>> threads_;
  ExportedNodes exported_;
  Transpositions<G> transpositions_;
  std::atomic<bool> full_{false};
  std::atomic<bool> spreads_{true};
  std::atomic<uint64_t> nodes_{0};
  std::mutex discarded_mutex_;
  std::vector<Node<G>*> discarded_;  // nodes that free_discarded() has to free
  // Used by worker 0 only:
  Node<G>* root_ = nullptr;  // in rank 0
  Fetched fetched_ = Fetched::kDone;
  Node<G>* fetched_node_ = nullptr;
  std::vector<RemoteNode> remote_frees_;  // nodes for which send_frees() has to send calls
  Collector<G> collector_;
  bool collecting_ = false;  // the collector has pointers to nodes: on_free() must not free any
  std::vector<SlotId> deferred_frees_;  // on_free() calls that wait until collecting_ is false
  uint64_t collections_ = 0;
  uint64_t number_ = 0;  // of the tree
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_TREE_H_
