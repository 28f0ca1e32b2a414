// A process's part of the one distributed tree for a type of game: its nodes, what other processes
// call them, and the jobs under way.
//
// A node belongs to the process that made it and never moves, but for the root (search.h). The
// threads of that process share it; other processes only have its name, and ask for rollouts from
// it. What the workers do is in worker.h.
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

  // The site of the calling worker's process.
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

  // ---- For the workers.
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

  // Rollouts that this process has asked `rank` for and not got yet.
  [[nodiscard]] std::atomic<int32_t>& outstanding(uint32_t rank) { return outstanding_[rank]; }
  // Of these, shares of the root's.
  [[nodiscard]] std::atomic<int32_t>& shared(uint32_t rank) { return shared_[rank]; }
  // The rollouts of the root come to nodes whose owners have too much to do already: then this
  // process waits for answers.
  void note_waiting(bool waiting) {
    if (waiting_.load(std::memory_order_relaxed) == waiting) return;
    waiting_.store(waiting, std::memory_order_seq_cst);
    if (!waiting && host_.threads() > 1) host_.wake_workers();
  }
  // The process for a new node below `parent`.
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

  // ---- The root comes to rank 0, wherever its node was made. Nobody searches meanwhile.

  // In worker 0 of rank 0: brings the node here, and makes it the root. nullptr: it cannot be had.
  // Its children stay where they are.
  Node<G>* fetch(RemoteNode name) {
    fetched_ = Fetched::kWaiting;
    fetched_node_ = nullptr;
    const SlotId id{name.slot, name.generation};
    const uint32_t origin = host_.id(host_.rank(), 0);
    Lines& lines = *Host::here().lines;
    if (!host_.alive(name.rank) ||
        !lines.call(host_.id(name.rank, 0), [id, origin] { here().on_fetch(id, origin); })) {
      return nullptr;
    }
    static_cast<void>(host_.work_until(
        [&] { return fetched_ == Fetched::kDone || !host_.alive(name.rank); }, kForever));
    return fetched_node_;
  }

  // ---- Nodes that are not wanted any more. Nobody searches meanwhile.

  // With everything below; what lies in other processes is freed by calls.
  void free_subtree(Node<G>* top) {
    release(top);
    send_frees();
  }
  void free_later(Node<G>* node) {
    const std::lock_guard lock(orphans_mutex_);
    orphans_.push_back(node);
  }
  void free_one(Node<G>* node) {
    nodes_.fetch_sub(1, std::memory_order_relaxed);
    node->destroy(*arenas_[node->maker()]);
  }
  void on_free(SlotId id) {
    if (collecting_) {
      deferred_frees_.push_back(id);
      return;
    }
    if (std::optional<Node<G>*> node = exported_.take(id)) free_subtree(*node);
    ++frees_handled_;
  }
  // Frees cold subtrees, the coldest first, until half of the memory is free: in steps of about a
  // millisecond, until one returns false, or there is no time; then finish_collection().
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
  // All of it at once.
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
  // For tests: calls `function` for every node of this process.
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

  // ---- Rank 0 and the others.

  void set_limits(const SearchOptions& options) {
    for (auto& arena : arenas_) arena->set_limit(options.memory_bytes / arenas_.size());
  }
  void open_root() { root_open_.store(true, std::memory_order_seq_cst); }
  void close_root() { root_open_.store(false, std::memory_order_seq_cst); }

 private:
  enum class Fetched : uint8_t { kWaiting, kDone };
  static constexpr uint32_t kNodesPerStep = 512;

  void begin_pass(uint32_t least) {
    collector_.begin_pass(least, root_job_.node, exported_.names());
  }
  // Brings the collector to a node. False: enough is free, or there is no more.
  bool next_top() {
    // What others have freed meanwhile is not looked at any more.
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
  // Frees the subtree, as far as it is here; the rest is noted for send_frees().
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
  // Not while nodes are walked: a call whose channel has to grow waits, and runs incoming calls
  // meanwhile; their on_free() would free what the walk is about to look at. They also come here,
  // so each name leaves the list before it is sent.
  void send_frees() {
    while (!remote_frees_.empty()) {
      const RemoteNode node = remote_frees_.back();
      remote_frees_.pop_back();
      if (!host_.alive(node.rank)) continue;
      const SlotId id{node.slot, node.generation};
      ++frees_sent_;
      if (!Host::here().lines->call(host_.id(node.rank, 0), [id] { here().on_free(id); })) {
        --frees_sent_;  // its owner keeps it until everything is cleared
      }
    }
  }

  struct FetchedNode {
    G state;
    uint32_t moves;
  };

  void on_fetch(SlotId id, uint32_t origin) {
    Lines& lines = *Host::here().lines;
    const std::optional<Node<G>*> node = exported_.take(id);
    if (!node || (*node)->shared()) {  // other moves lead to it: it stays where it is
      if (node) free_subtree(*node);
      lines.call(origin, [] { here().on_fetched(nullptr, nullptr, 0); });
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
    const bool sent = lines.call_buffer(
        origin, [fetched](void* data, uint64_t bytes) { here().on_fetched(&fetched, data, bytes); },
        std::as_bytes(std::span(records)));
    if (sent) return;
    // Longer than a call may be: the subtree is given up.
    for (const MoveRecord<G>& record : records) {
      if (!record.has_child) continue;
      if (record.child.rank == host_.rank()) {
        on_free({record.child.slot, record.child.generation});
        --frees_handled_;  // nobody has sent it
      } else {
        remote_frees_.push_back(record.child);
      }
    }
    send_frees();
    lines.call(origin, [] { here().on_fetched(nullptr, nullptr, 0); });
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
    // Children that are here have an address again.
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
      case CommandKind::kSettle:
        mirroring_.settle();
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
  // Of this process.
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
    // Lines belong to their threads: those of worker 0 stand for all.
    if (Lines* lines = Host::here().lines.get(); lines != nullptr) {
      std::tie(sum.channels, sum.channels_behind) = lines->channels();
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
  Job<G> root_job_;  // rank 0's
  std::atomic<bool> root_open_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> full_{false};
  std::vector<std::atomic<int32_t>> outstanding_;
  std::vector<std::atomic<int32_t>> shared_;
  std::atomic<bool> waiting_{false};
  std::atomic<uint64_t> nodes_{0};
  std::mutex orphans_mutex_;
  std::vector<Node<G>*> orphans_;
  // Worker 0's.
  Fetched fetched_ = Fetched::kDone;
  Node<G>* fetched_node_ = nullptr;
  std::vector<RemoteNode> remote_frees_;  // to be sent
  Collector<G> collector_;
  bool collecting_ = false;  // the collector knows nodes that must not be freed by others
  std::vector<SlotId> deferred_frees_;  // for when it does not
  uint64_t frees_sent_ = 0;
  uint64_t frees_handled_ = 0;
  uint64_t collections_ = 0;
  double cpu_before_ = 0;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_SITE_H_
