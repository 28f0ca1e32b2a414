// A process's part of the one distributed tree for a type of game: its nodes, what other processes
// call them, the jobs under way, and what is known of the other processes' load.
//
// A node belongs to the process that made it and never moves, but for the root (search.h). The
// threads of that process share it; other processes only have its name, and ask for rollouts from
// it. What the workers do is in worker.h.
#ifndef CARIAMA_MCTS_SITE_H_
#define CARIAMA_MCTS_SITE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "mcts/command.h"
#include "mcts/host.h"
#include "mcts/job.h"
#include "mcts/node.h"
#include "mcts/options.h"
#include "mcts/slot_table.h"
#include "mcts/worker.h"

namespace cariama::mcts {

template <Game G>
class Site final : public CommandedSite<Site<G>> {
 public:
  explicit Site(Host& host)
      : host_(host), outstanding_(host.size()), load_(host.size()), window_(host.size()) {
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
  [[nodiscard]] Job<G>& root_job() { return root_job_; }
  [[nodiscard]] bool root_open() const { return root_open_.load(std::memory_order_acquire); }
  [[nodiscard]] bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  void note_full() { full_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool full() const { return full_.load(std::memory_order_relaxed); }

  // Rollouts that this process has asked `rank` for and not got yet.
  [[nodiscard]] std::atomic<int32_t>& outstanding(uint32_t rank) { return outstanding_[rank]; }
  // The rollouts of the root come to nodes whose owners have too much to do already: then this
  // process takes nodes from the others, if it was able to begin some rollouts, and waits for
  // answers, if not.
  void note_hungry(bool hungry) { hungry_.store(hungry, std::memory_order_relaxed); }
  void note_waiting(bool waiting) {
    if (waiting_.load(std::memory_order_relaxed) == waiting) return;
    waiting_.store(waiting, std::memory_order_seq_cst);
    if (waiting) {
      note_hungry(true);
    } else if (host_.threads() > 1) {
      host_.wake_workers();
    }
  }
  // Rollouts that this process has been asked for and not begun.
  void queued(int64_t change) { queued_.fetch_add(change, std::memory_order_relaxed); }

  [[nodiscard]] LoadReport load() {
    LoadReport load;
    load.own = own_load();
    load.least_rank = least_loaded_.load(std::memory_order_relaxed);
    load.least = load_of(load.least_rank);
    return load;
  }
  void note_load(uint32_t rank, const LoadReport& load) {
    load_[rank].store(load.own, std::memory_order_relaxed);
    const uint32_t known = least_loaded_.load(std::memory_order_relaxed);
    if (load.least_rank < host_.size() && load.least_rank != host_.rank() &&
        load.least < load_of(known)) {
      load_[load.least_rank].store(load.least, std::memory_order_relaxed);
      least_loaded_.store(load.least_rank, std::memory_order_relaxed);
    }
    if (load.own < load_of(known)) least_loaded_.store(rank, std::memory_order_relaxed);
  }
  // Rollouts per thread that should be under way to a process, so that it always has some: more
  // while its answers say that it has run out of them, whatever the reason.
  [[nodiscard]] uint32_t window(uint32_t rank) const {
    return window_[rank].load(std::memory_order_relaxed);
  }
  void adapt_window(uint32_t rank, bool starved) {
    const uint32_t now = window(rank);
    const uint32_t next = starved ? std::min(now + 4, options_.queue_limit)
                                  : std::max(now - 1, options_.queue_target);
    window_[rank].store(next, std::memory_order_relaxed);
  }
  // The process for a new node.
  [[nodiscard]] uint32_t place(const G& position, Random& random) {
    const uint32_t processes = host_.size();
    const uint32_t self = host_.rank();
    if (processes == 1) return self;
    uint32_t chosen = self;
    if (options_.placement == Placement::kLocality) {
      // Two drawn by lot and the one that is said to have the least: their number does not depend
      // on the number of processes.
      const uint32_t some[] = {least_loaded_.load(std::memory_order_relaxed),
                               random.below(processes), random.below(processes)};
      uint32_t least = LoadReport::kPlenty;
      for (const uint32_t rank : some) {
        const uint32_t load = load_of(rank);
        if (rank == self || !host_.alive(rank) || load >= window(rank) || load >= least) continue;
        least = load;
        chosen = rank;
      }
      // What was said gets old.
      if (random.below(256) == 0) {
        for (const uint32_t rank : some) {
          load_[rank].store(load_[rank].load(std::memory_order_relaxed) / 2,
                            std::memory_order_relaxed);
        }
      }
      return chosen;
    }
    if (options_.placement == Placement::kHash) {
      if constexpr (HasKey<G>) {
        chosen = static_cast<uint32_t>((position.key() >> 32) * processes >> 32);
        return host_.alive(chosen) ? chosen : self;
      }
    }
    chosen = random.below(processes);
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
    std::vector<Node<G>*> open{top};
    while (!open.empty()) {
      Node<G>* node = open.back();
      open.pop_back();
      for (int i = 0; i < node->size(); ++i) {
        const auto child = node->child(i);
        if (child.is_local()) open.push_back(child.local());
        if (child.is_remote()) free_remote(child.remote());
      }
      free_one(node);
    }
  }
  void free_one(Node<G>* node) {
    nodes_.fetch_sub(1, std::memory_order_relaxed);
    node->destroy(*arenas_[node->maker()]);
  }
  void free_remote(RemoteNode node) {
    if (!host_.alive(node.rank)) return;
    ++frees_sent_;
    const SlotId id{node.slot, node.generation};
    Host::here().lines->call(host_.id(node.rank, 0), [id] { Site::here().on_free(id); });
  }
  void on_free(SlotId id) {
    if (std::optional<Node<G>*> node = exported_.take(id)) free_subtree(*node);
    ++frees_handled_;
  }
  // Frees the subtrees below moves of `top` and its descendants that were tried less than `least`
  // times.
  void collect(Node<G>* top, uint32_t least) {
    std::vector<Node<G>*> open{top};
    while (!open.empty()) {
      Node<G>* node = open.back();
      open.pop_back();
      for (int i = 0; i < node->size(); ++i) {
        const auto child = node->child(i);
        if (child.none()) continue;
        const bool cold = node->visits(i) < least;
        if (child.is_local()) {
          if (cold) {
            free_subtree(child.local());
          } else {
            open.push_back(child.local());
          }
        } else if (cold && child.is_remote()) {
          free_remote(child.remote());
        }
        if (cold) node->set_child(i, {});
      }
    }
  }
  // Until a part of the memory is free: the coldest first.
  void collect_here() {
    const uint64_t goal = options_.memory_bytes / 2;
    for (uint32_t least = 2 * std::max<uint32_t>(options_.expand_visits, 1);
         live_bytes() > goal && least < (1U << 30); least *= 2) {
      std::vector<Node<G>*> tops;
      if (root_job_.node != nullptr) tops.push_back(root_job_.node);
      exported_.for_each([&](Node<G>* node) { tops.push_back(node); });
      for (Node<G>* top : tops) collect(top, least);
    }
    ++collections_;
    full_.store(false, std::memory_order_relaxed);
  }
  void clear_here() {
    for (auto& arena : arenas_) arena->clear();
    exported_.clear();
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
    if (root_job_.node != nullptr) open.push_back(root_job_.node);
    exported_.for_each([&](Node<G>* node) { open.push_back(node); });
    while (!open.empty()) {
      Node<G>* node = open.back();
      open.pop_back();
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
  struct FetchedNode {
    G state;
    uint32_t moves;
  };

  void on_fetch(SlotId id, uint32_t origin) {
    Lines& lines = *Host::here().lines;
    const std::optional<Node<G>*> node = exported_.take(id);
    if (!node) {
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
        free_remote(record.child);
      }
    }
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
        if (record.child.rank != host_.rank()) free_remote(record.child);
        continue;
      }
      if (record.child.rank != host_.rank()) continue;
      const std::optional<Node<G>*> child =
          exported_.take({record.child.slot, record.child.generation});
      node->set_child(i, child ? typename Node<G>::Ref(*child) : typename Node<G>::Ref());
    }
    if (node != nullptr) count_node();
    fetched_node_ = node;
  }

  friend class CommandedSite<Site<G>>;

  [[nodiscard]] uint32_t load_of(uint32_t rank) const {
    const int32_t asked =
        outstanding_[rank].load(std::memory_order_relaxed) / static_cast<int32_t>(host_.threads());
    return std::max(load_[rank].load(std::memory_order_relaxed),
                    static_cast<uint32_t>(std::max(asked, 0)));
  }
  [[nodiscard]] uint32_t own_load() const {
    // The root's process can always begin another rollout, unless these end where others are busy.
    if (root_job_.node != nullptr && !hungry_.load(std::memory_order_relaxed)) {
      return LoadReport::kPlenty;
    }
    const int64_t queued = queued_.load(std::memory_order_relaxed) / host_.threads();
    return static_cast<uint32_t>(std::clamp<int64_t>(queued, 0, LoadReport::kPlenty));
  }
  void apply(const SearchOptions& options) {
    options_ = options;
    set_limits(options);
  }
  CommandReply carry_out(const Command& command) {
    switch (command.kind) {
      case CommandKind::kBegin:
        begin(command);
        break;
      case CommandKind::kStop:
        stopping_.store(true, std::memory_order_release);
        break;
      case CommandKind::kResume:
        stopping_.store(false, std::memory_order_release);
        break;
      case CommandKind::kClear:
        clear_here();
        break;
      case CommandKind::kCollect:
        collect_here();
        break;
      case CommandKind::kInform:
        break;
    }
    return {host_.rank(), command.number, frees_sent_, frees_handled_, statistics()};
  }
  void begin(const Command& command) {
    apply(command.options);
    stopping_.store(false, std::memory_order_release);
    hungry_.store(false, std::memory_order_relaxed);
    waiting_.store(false, std::memory_order_relaxed);
    for (uint32_t rank = 0; rank < host_.size(); ++rank) {
      load_[rank].store(rank == 0 ? LoadReport::kPlenty : 0, std::memory_order_relaxed);
      window_[rank].store(command.options.queue_target, std::memory_order_relaxed);
    }
    least_loaded_.store(host_.size() - 1, std::memory_order_relaxed);
    collections_ = 0;
    for (uint32_t i = 0; i < workers_.size(); ++i) {
      workers_[i]->begin(Random::mix(command.options.seed + command.number) +
                         host_.id(host_.rank(), i));
      host_.thread(i).idle_ns.store(0, std::memory_order_relaxed);
    }
    host_.activate(this);
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
  Job<G> root_job_;               // rank 0's
  std::atomic<bool> root_open_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> full_{false};
  std::vector<std::atomic<int32_t>> outstanding_;
  std::vector<std::atomic<uint32_t>> load_;
  std::vector<std::atomic<uint32_t>> window_;
  std::atomic<uint32_t> least_loaded_{0};
  std::atomic<bool> hungry_{false};
  std::atomic<bool> waiting_{false};
  std::atomic<int64_t> queued_{0};
  std::atomic<uint64_t> nodes_{0};
  // Worker 0's.
  Fetched fetched_ = Fetched::kDone;
  Node<G>* fetched_node_ = nullptr;
  uint64_t frees_sent_ = 0;
  uint64_t frees_handled_ = 0;
  uint64_t collections_ = 0;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_SITE_H_
