// Site: one process's part of the distributed tree for one type of game (the term is explained at
// SiteBase in host.h). It contains the nodes that the process owns, their names for other
// processes, the jobs in flight, and the tickets of requests to other processes.
//
// The process that creates a node owns it. A node never moves to another process, except when it
// becomes the root (fetch()). The threads of the owner share the node. Other processes know only
// its name and request rollouts from it. worker.h contains the rollouts.
#ifndef CARIAMA_MCTS_SITE_H_
#define CARIAMA_MCTS_SITE_H_

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mcts/collector.h"
#include "mcts/command.h"
#include "mcts/host.h"
#include "mcts/job.h"
#include "mcts/mirroring.h"
#include "mcts/node.h"
#include "mcts/options.h"
#include "mcts/slot_table.h"
#include "mcts/transpositions.h"
#include "mcts/worker.h"

namespace cariama::mcts {

template <Game G>
class Site final : public CommandedSite<Site<G>> {
 public:
  explicit Site(Host& host)
      : host_(host), mirroring_(host, exported_), outstanding_(host.size()), shared_(host.size()) {
    for (uint32_t i = 0; i < host.threads(); ++i) {
      arenas_.push_back(std::make_unique<Arena>(0));
      workers_.push_back(std::make_unique<Worker<G>>(*this, host.thread(i)));
    }
    apply(SearchOptions::of<G>());
  }

  // Returns the site of the calling worker's process.
  [[nodiscard]] static Site& here() { return Host::site_here<Site>(); }

  bool work(uint32_t thread) override { return workers_[thread]->work(); }
  [[nodiscard]] bool has_work(uint32_t) override {
    return !jobs_.empty() || (root_open_.load(std::memory_order_seq_cst) &&
                              !root_job_.exhausted() && !waiting_.load(std::memory_order_seq_cst));
  }
  void lost(uint32_t rank) override {
    for (Ticket<G>& ticket : tickets_.take_if([&](const auto& t) { return t.rank == rank; })) {
      workers_[0]->give_up(ticket);
    }
  }

  // ---- Called by the workers.
  [[nodiscard]] Host& host() { return host_; }
  [[nodiscard]] const SearchOptions& options() const { return options_; }
  [[nodiscard]] Arena& arena(uint32_t thread) { return *arenas_[thread]; }
  [[nodiscard]] Worker<G>& worker(uint32_t thread) { return *workers_[thread]; }
  [[nodiscard]] JobQueue<G>& jobs() { return jobs_; }
  [[nodiscard]] SlotTable<Ticket<G>>& tickets() { return tickets_; }
  [[nodiscard]] SlotTable<Node<G>*>& exported() { return exported_; }
  [[nodiscard]] Transpositions<G>& transpositions() { return transpositions_; }
  [[nodiscard]] Mirroring<G>& mirroring() { return mirroring_; }
  [[nodiscard]] Job<G>& root_job() { return root_job_; }
  [[nodiscard]] bool root_open() const { return root_open_.load(std::memory_order_acquire); }
  [[nodiscard]] bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  void note_full() { full_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool full() const { return full_.load(std::memory_order_relaxed); }

  // The number of rollouts that this process has requested from `rank` and that are in flight,
  // without the shares of the root's rollouts.
  [[nodiscard]] std::atomic<int32_t>& outstanding(uint32_t rank) { return outstanding_[rank]; }
  // Rank 0: the number of the root's rollouts that `rank` has in its shares.
  [[nodiscard]] std::atomic<int32_t>& shared(uint32_t rank) { return shared_[rank]; }
  // Records whether this process waits for answers, since its rollouts of the root would be
  // deferred: they reach nodes whose owners have too many requests already. has_work() does not
  // count the root's rollouts while the process waits.
  void note_waiting(bool waiting) {
    if (waiting_.load(std::memory_order_relaxed) == waiting) return;
    waiting_.store(waiting, std::memory_order_seq_cst);
    if (!waiting && host_.threads() > 1) host_.wake_workers();
  }
  // Returns the rank of the process that has to create a new child of `parent`.
  [[nodiscard]] uint32_t place(const Node<G>& parent, const G& position, Random& random) {
    const uint32_t processes = host_.size();
    const uint32_t self = host_.rank();
    if (processes == 1) return self;
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
    return host_.alive(chosen) ? chosen : self;
  }

  // ---- Moving the new root to rank 0. Requires: no rollout is running.

  // Called by worker 0 of rank 0. Moves a node from its owner to this process and returns it. Its
  // children stay in their processes. Returns nullptr if the node cannot be moved: then it stays,
  // or it is freed with its subtree.
  Node<G>* fetch(RemoteNode name) {
    fetched_ = Fetched::kWaiting;
    fetched_node_ = nullptr;
    const SlotId id{name.slot, name.generation};
    const uint32_t origin = host_.id(host_.rank(), 0);
    PeerAggregators& aggregators = *Host::here().aggregators;
    if (!host_.alive(name.rank) ||
        !aggregators.call(host_.id(name.rank, 0), [id, origin] { here().on_fetch(id, origin); })) {
      return nullptr;
    }
    static_cast<void>(host_.work_until(
        [&] { return fetched_ == Fetched::kDone || !host_.alive(name.rank); }, kForever));
    return fetched_node_;
  }

  // ---- Freeing nodes. Requires, except for free_later(): no rollout is running.

  // Frees a node and its subtree. Sends calls that free the nodes in other processes.
  void free_subtree(Node<G>* top) {
    release(top);
    send_frees();
  }
  // Frees one node at the end of the search. Thread-safe.
  void free_later(Node<G>* node) {
    const std::lock_guard lock(orphans_mutex_);
    orphans_.push_back(node);
  }
  // Frees one node without its children. During a search, only the worker in whose arena the node
  // is may call this.
  void free_one(Node<G>* node) {
    nodes_.fetch_sub(1, std::memory_order_relaxed);
    node->destroy(*arenas_[node->maker()]);
  }
  // Handles a call that frees a subtree. While the collector has pointers to nodes, the call is
  // deferred.
  void on_free(SlotId id) {
    if (collecting_) {
      deferred_frees_.push_back(id);
      return;
    }
    if (std::optional<Node<G>*> node = exported_.take(id)) free_subtree(*node);
    ++frees_handled_;
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
  void collect_here() {
    while (collect_step()) {
    }
    finish_collection();
  }
  void clear_here() {
    for (auto& arena : arenas_) arena->clear();
    exported_.clear();
    transpositions_.clear();
    orphans_.clear();
    root_job_.node = nullptr;
    nodes_.store(0, std::memory_order_relaxed);
    full_.store(false, std::memory_order_relaxed);
  }
  void count_node() { nodes_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t live_bytes() const {
    uint64_t sum = 0;
    for (const auto& arena : arenas_) sum += arena->live_bytes();
    return sum;
  }
  // For tests: calls `function` for every node of this process. Requires: no rollout is running.
  template <typename Function>
  void for_each_node(Function&& function) {
    std::vector<Node<G>*> open;
    std::unordered_set<const Node<G>*> seen;
    if (root_job_.node != nullptr) open.push_back(root_job_.node);
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

  // ---- Called by Search in rank 0.

  void set_limits(const SearchOptions& options) {
    for (auto& arena : arenas_) arena->set_limit(options.memory_bytes / arenas_.size());
  }
  // Lets the workers of this process take rollouts of the root's job. seq_cst: see
  // Host::wake_workers().
  void open_root() { root_open_.store(true, std::memory_order_seq_cst); }
  void close_root() { root_open_.store(false, std::memory_order_seq_cst); }

 private:
  enum class Fetched : uint8_t { kWaiting, kDone };
  static constexpr uint32_t kNodesPerStep = 512;

  void begin_pass(uint32_t least) {
    collector_.begin_pass(least, root_job_.node, exported_.names());
  }
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
      ++frees_sent_;
      if (!Host::here().aggregators->call(host_.id(node.rank, 0), [id] { here().on_free(id); })) {
        --frees_sent_;  // not sent: the owner keeps the node until the tree is cleared
      }
    }
  }

  struct FetchedNode {
    G state;
    uint32_t moves;
  };

  // Handles the call of fetch() at the owner; on_fetched() handles its answer.
  void on_fetch(SlotId id, uint32_t origin) {
    PeerAggregators& aggregators = *Host::here().aggregators;
    const std::optional<Node<G>*> node = exported_.take(id);
    if (!node || (*node)->shared()) {  // a node with other parents cannot move
      if (node) free_subtree(*node);
      aggregators.call(origin, [] { here().on_fetched(nullptr, nullptr, 0); });
      return;
    }
    std::vector<MoveRecord<G>> records;
    for (int i = 0; i < (*node)->size(); ++i) {
      MoveRecord<G>& record = records.emplace_back((*node)->record(i));
      const auto child = (*node)->child(i);
      record.has_child = child.is_local() || child.is_remote();
      if (child.is_remote()) record.child = child.remote();
      if (child.is_local()) {
        const SlotId name = exported_.add(child.local());
        record.child = {static_cast<uint16_t>(host_.rank()), static_cast<uint16_t>(name.generation),
                        name.slot};
      }
    }
    const FetchedNode fetched{(*node)->state(), static_cast<uint32_t>(records.size())};
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
        --frees_handled_;  // on_free() counts a received call, but this one was not sent
      } else {
        remote_frees_.push_back(record.child);
      }
    }
    send_frees();
    aggregators.call(origin, [] { here().on_fetched(nullptr, nullptr, 0); });
  }
  void on_fetched(const FetchedNode* fetched, const void* data, uint64_t bytes) {
    fetched_ = Fetched::kDone;
    if (fetched == nullptr || bytes != fetched->moves * sizeof(MoveRecord<G>) ||
        fetched->moves > G::kMaxMoves) {
      return;
    }
    std::vector<MoveRecord<G>> records(fetched->moves);
    if (!records.empty()) std::memcpy(static_cast<void*>(records.data()), data, bytes);
    Node<G>* node =
        Node<G>::make(fetched->state, std::span<const MoveRecord<G>>(records), *arenas_[0], 0);
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
    if (node != nullptr) count_node();
    fetched_node_ = node;
  }

  friend class CommandedSite<Site<G>>;

  void apply(const SearchOptions& options) {
    options_ = options;
    set_limits(options);
  }
  CommandReply carry_out(const Command& command) {
    CommandReply reply{host_.rank(), command.number};
    switch (command.kind) {
      case CommandKind::kBegin:
        begin(command);
        break;
      case CommandKind::kStop:
        stopping_.store(true, std::memory_order_release);
        break;
      case CommandKind::kResume:
        mirroring_.begin(options_);
        stopping_.store(false, std::memory_order_release);
        break;
      case CommandKind::kQuiesce:
        mirroring_.quiesce();
        break;
      case CommandKind::kForget:
        mirroring_.forget();
        for (Node<G>* node : std::exchange(orphans_, {})) free_one(node);
        break;
      case CommandKind::kClear:
        clear_here();
        break;
      case CommandKind::kCollect:
        reply.collecting = collect_step();
        break;
      case CommandKind::kCollected:
        finish_collection();
        break;
      case CommandKind::kInform:
        break;
    }
    reply.posts_sent = frees_sent_ + mirroring_.sent();
    reply.posts_handled = frees_handled_ + mirroring_.handled();
    reply.statistics = statistics();
    return reply;
  }
  void begin(const Command& command) {
    apply(command.options);
    stopping_.store(false, std::memory_order_release);
    waiting_.store(false, std::memory_order_relaxed);
    mirroring_.begin(command.options);
    collections_ = 0;
    cpu_before_ = cpu_seconds();
    for (uint32_t i = 0; i < workers_.size(); ++i) {
      workers_[i]->begin(Random::mix(command.options.seed + command.number) +
                         host_.id(host_.rank(), i));
      host_.thread(i).idle_ns.store(0, std::memory_order_relaxed);
    }
    host_.activate(this);
  }
  // Returns the processor time of this process.
  [[nodiscard]] static double cpu_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  [[nodiscard]] Statistics statistics() const {
    Statistics sum;
    for (uint32_t i = 0; i < workers_.size(); ++i) {
      workers_[i]->add_to(sum);
      sum.idle_seconds +=
          1e-9 * static_cast<double>(host_.thread(i).idle_ns.load(std::memory_order_relaxed));
    }
    // Only the owning thread may read the channels of its aggregators. So the statistics contain
    // those of worker 0, which calls this function.
    if (PeerAggregators* aggregators = Host::here().aggregators.get(); aggregators != nullptr) {
      std::tie(sum.channels, sum.channels_behind) = aggregators->channels();
    }
    sum.collections = collections_;
    sum.cpu_seconds = cpu_seconds() - cpu_before_;
    sum.nodes = nodes_.load(std::memory_order_relaxed);
    sum.node_bytes = live_bytes();
    return sum;
  }

  Host& host_;
  SearchOptions options_;
  std::vector<std::unique_ptr<Arena>> arenas_;  // by thread
  std::vector<std::unique_ptr<Worker<G>>> workers_;
  JobQueue<G> jobs_;
  SlotTable<Ticket<G>> tickets_;
  SlotTable<Node<G>*> exported_;  // nodes whose parents are in other processes
  Transpositions<G> transpositions_;
  Mirroring<G> mirroring_;
  Job<G> root_job_;  // used in rank 0
  std::atomic<bool> root_open_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> full_{false};
  std::vector<std::atomic<int32_t>> outstanding_;
  std::vector<std::atomic<int32_t>> shared_;
  std::atomic<bool> waiting_{false};
  std::atomic<uint64_t> nodes_{0};
  std::mutex orphans_mutex_;
  std::vector<Node<G>*> orphans_;  // nodes of free_later()
  // Used by worker 0 only:
  Fetched fetched_ = Fetched::kDone;
  Node<G>* fetched_node_ = nullptr;
  std::vector<RemoteNode> remote_frees_;  // nodes for which send_frees() has to send calls
  Collector<G> collector_;
  bool collecting_ = false;  // the collector has pointers to nodes: on_free() must not free any
  std::vector<SlotId> deferred_frees_;  // on_free() calls that wait until collecting_ is false
  uint64_t frees_sent_ = 0;
  uint64_t frees_handled_ = 0;
  uint64_t collections_ = 0;
  double cpu_before_ = 0;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_SITE_H_
