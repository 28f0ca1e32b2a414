// PaperTree: a process's part of the tree in the paper's design (Seriema §2.1, §5.3), and the work
// of its threads, for comparison.
//
// Every node is owned by a thread. A rollout is a chain of calls:
//   1. Selection: calls from owner to owner down the tree. Each node first tries all its moves, in
//      random order, then selects by UCB.
//   2. Expansion: a call_buffer with the position to a uniformly random thread of the job. This
//      thread creates the node and sends its name to the parent's owner. Selections that reach the
//      move before the name arrives wait in the parent (deferred selection).
//   3. Simulation: the owner of the new leaf sends a request, through a wait-free queue, to
//      a uniformly random thread of its process. That thread runs 16 playouts.
//   4. Back-propagation: calls from owner to owner up the tree add the result.
// Visits are counted on the way down and wins on the way up, by relaxed atomics in the parent. This
// has the effect of a virtual loss.
#ifndef CARIAMA_MCTS_PAPER_ENGINE_PAPER_TREE_H_
#define CARIAMA_MCTS_PAPER_ENGINE_PAPER_TREE_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dtutils/statistics.h"
#include "mcts/engine/arena.h"
#include "mcts/engine/command.h"
#include "mcts/engine/node.h"
#include "mcts/game.h"
#include "mcts/host.h"
#include "mcts/options.h"
#include "mcts/paper/engine/spsc_ring.h"

namespace cariama::mcts {

// The name of a node in the whole job: the thread that owns it and its number there.
struct PaperName {
  static constexpr uint32_t kNobody = UINT32_MAX;
  uint32_t thread = kNobody;
  uint32_t index = 0;
};

// A node. Its edges contain the counters of its children. The edges and then the moves follow the
// object in memory, so its size is a multiple of their alignment.
template <Game G>
struct alignas(8) PaperNode {
  using Move = typename G::Move;
  struct Edge {
    std::atomic<uint32_t> visits{0};
    std::atomic<uint32_t> waiting{0};  // deferred selections
    std::atomic<double> wins{0};       // of the player to move in this node; 0 .. 1 per rollout
    std::atomic<uint64_t> child{0};    // 0 (none yet), kLost, or pack(name)
  };
  static_assert(alignof(Edge) <= 8 && alignof(Move) <= 8);
  static constexpr uint64_t kLost = UINT64_MAX;  // no memory for the child

  [[nodiscard]] static uint64_t pack(PaperName name) {
    return (uint64_t{name.thread} + 1) << 32 | name.index;
  }
  [[nodiscard]] static PaperName unpack(uint64_t child) {
    return {static_cast<uint32_t>(child >> 32) - 1, static_cast<uint32_t>(child)};
  }
  [[nodiscard]] Edge& edge(int i) { return reinterpret_cast<Edge*>(this + 1)[i]; }
  [[nodiscard]] Move& move(int i) { return reinterpret_cast<Move*>(&edge(size))[i]; }
  [[nodiscard]] static size_t bytes(int size) {
    return sizeof(PaperNode) + static_cast<size_t>(size) * (sizeof(Edge) + sizeof(Move));
  }

  explicit PaperNode(const G& position) : state(position) {}

  PaperName self;
  PaperName parent;
  uint32_t parent_edge = 0;
  uint16_t size = 0;  // number of moves
  uint8_t player = 0;
  bool terminal = false;  // the game has ended
  // Number of moves that were tried; the moves are tried in their (random) order. May exceed size.
  std::atomic<uint32_t> tried{0};
  float value = 0;  // result for player 0, if the game has ended
  G state;
};

template <Game G>
class PaperTree final : public CommandedSearch<PaperTree<G>> {
 public:
  using NodeType = PaperNode<G>;

  explicit PaperTree(Host& host) : host_(host) {
    for (uint32_t i = 0; i < host.threads(); ++i) {
      threads_.push_back(std::make_unique<Thread>(i, host.threads(), budget_));
    }
  }

  [[nodiscard]] Host& host() { return host_; }

  bool work(uint32_t index) override {
    Thread& self = *threads_[index];
    bool worked = false;
    for (auto& ring : self.requests) {
      for (int i = 0; i < kSlice; ++i) {
        const std::optional<NodeType*> leaf = ring->pop();
        if (!leaf) break;
        simulate(self, **leaf);
        worked = true;
      }
    }
    // Only threads of the root's process start rollouts.
    for (int i = 0; i < kSlice && begin_rollout(); ++i) {
      self.counters->visits.add();
      select(self, *root_);
      worked = true;
    }
    if (worked && aggregators() != nullptr) aggregators()->flush();
    return worked;
  }
  [[nodiscard]] bool has_work(uint32_t index) override {
    if (to_begin_.load(std::memory_order_seq_cst) > 0) return true;
    for (const auto& ring : threads_[index]->requests) {
      if (!ring->empty()) return true;
    }
    return false;
  }

  // ---- Called by PaperSearch in worker 0 of rank 0.
  void set_root(const G& position) {
    const std::optional<PaperName> name = make_node(*threads_[0], position, {}, 0);
    if (!name) throw std::bad_alloc();
    root_ = find(*name);
  }
  [[nodiscard]] NodeType& root() { return *root_; }
  // Begins a phase with this number of rollouts.
  void begin_phase(uint64_t rollouts) {
    to_begin_.store(static_cast<int64_t>(rollouts), std::memory_order_seq_cst);
    host_.wake_workers();
  }
  // Ends the phase. Returns the number of its rollouts that were not begun.
  uint64_t end_phase() {
    return static_cast<uint64_t>(
        std::max<int64_t>(to_begin_.exchange(0, std::memory_order_acq_rel), 0));
  }
  [[nodiscard]] uint64_t completed() const { return completed_.load(std::memory_order_acquire); }
  [[nodiscard]] bool full() const { return full_.load(std::memory_order_relaxed); }
  // For tests: calls `function` for every node of this process. Requires: no rollout is running.
  template <typename Function>
  void for_each_node(Function&& function) {
    for (const auto& thread : threads_) {
      for (uint32_t i = 0; i < thread->next; ++i) {
        function(*find({host_.id(host_.rank(), thread->index), i}));
      }
    }
  }

 private:
  friend class CommandedSearch<PaperTree<G>>;
  static constexpr int kSlice = 4;  // rollouts to begin, and simulations per queue, in one work()
  static constexpr uint32_t kBlock = 1024;      // nodes per block
  static constexpr uint32_t kBlocks = 1 << 16;  // maximum number of blocks of a thread

  struct Counters {
    Counter visits;
    Counter completions;
    Counter handed_over;
    Counter playouts;
    Counter nodes_created;
    Counter nodes_created_remotely;
    Counter remote_selections;
    Counter deferred_selections;
  };
  struct Thread {
    Thread(uint32_t number, uint32_t threads, ArenaBudget& budget)
        : index(number), arena(budget), blocks(kBlocks) {
      for (uint32_t i = 0; i < threads; ++i) {
        requests.push_back(std::make_unique<SpscRing<NodeType*, 1024>>());
      }
    }
    const uint32_t index;
    Arena arena;
    Random random{0};
    std::optional<internal::Evaluator<G>> evaluator;
    std::optional<Counters> counters{std::in_place};
    uint64_t messages_before = 0;
    uint64_t bytes_before = 0;
    // The nodes of this thread by number: blocks of pointers. This thread publishes them one after
    // the other. All threads of the process may read them.
    struct Block {
      std::atomic<NodeType*> nodes[kBlock] = {};
    };
    std::vector<std::atomic<Block*>> blocks;
    std::vector<std::unique_ptr<Block>> owned;
    uint32_t next = 0;
    // Requests to simulate a leaf: one queue from each thread of the process.
    std::vector<std::unique_ptr<SpscRing<NodeType*, 1024>>> requests;
  };

  [[nodiscard]] static PaperTree& here() { return Host::local_here<PaperTree>(); }
  [[nodiscard]] static PeerAggregators* aggregators() { return Host::here().aggregators.get(); }
  [[nodiscard]] Thread& self() { return *threads_[Host::here().index]; }
  [[nodiscard]] uint32_t self_id() const { return host_.id(host_.rank(), Host::here().index); }
  [[nodiscard]] bool is_here(uint32_t thread) const {
    return thread / host_.threads() == host_.rank();
  }

  // Returns the node with this name, or nullptr if no node of this process has it.
  [[nodiscard]] NodeType* find(PaperName name) {
    if (name.thread == PaperName::kNobody || !is_here(name.thread)) return nullptr;
    if (name.index / kBlock >= kBlocks) return nullptr;
    Thread& owner = *threads_[name.thread % host_.threads()];
    auto* block = owner.blocks[name.index / kBlock].load(std::memory_order_acquire);
    return block == nullptr ? nullptr
                            : block->nodes[name.index % kBlock].load(std::memory_order_acquire);
  }

  // Takes one rollout of the phase. Returns false if none is left.
  [[nodiscard]] bool begin_rollout() {
    int64_t left = to_begin_.load(std::memory_order_relaxed);
    while (left > 0) {
      if (to_begin_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  // Returns true if the calling thread may access nodes of this owner directly. Otherwise it has to
  // send a call. In a host without a fabric there are no calls: threads access all nodes directly.
  [[nodiscard]] bool acts_for(uint32_t owner) const {
    return owner == self_id() ||
           ((options_.paper.only_remote || aggregators() == nullptr) && is_here(owner));
  }
  // Runs function(tree) for the owner of a node: directly if acts_for(owner), otherwise by a call
  // to the owner.
  template <typename F>
  void at(uint32_t owner, F function) {
    if (acts_for(owner)) {
      function(*this);
      return;
    }
    static_cast<void>(aggregators()->post(owner, [function] { function(here()); }));
  }

  // Continues a rollout at a node of this process: selects moves until the rollout needs another
  // thread, waits, or completes.
  void select(Thread& self, NodeType& from) {
    NodeType* node = &from;
    for (;;) {
      if (node->terminal) {
        complete_at(self, *node, node->value);
        return;
      }
      const uint32_t next = node->tried.load(std::memory_order_relaxed) < node->size
                                ? node->tried.fetch_add(1, std::memory_order_relaxed)
                                : node->size;
      const int chosen = next < node->size ? static_cast<int>(next) : best(*node);
      auto& edge = node->edge(chosen);
      edge.visits.fetch_add(1, std::memory_order_relaxed);
      if (next < node->size) {
        create(self, *node, chosen);
        return;
      }
      uint64_t child = edge.child.load(std::memory_order_seq_cst);
      if (child == 0) {
        // Deferred selection. This thread increments `waiting` and then reads `child`; on_create()
        // stores `child` and then exchanges `waiting`. All four operations are seq_cst. So at least
        // one of the two threads observes the other's write and resumes the selection.
        self.counters->deferred_selections.add();
        edge.waiting.fetch_add(1, std::memory_order_seq_cst);
        if (edge.child.load(std::memory_order_seq_cst) != 0) resume(self, *node, chosen);
        return;
      }
      if (child == NodeType::kLost) {
        sample_instead(self, *node, chosen);
        return;
      }
      const PaperName name = NodeType::unpack(child);
      NodeType* below = find(name);
      if (below != nullptr && acts_for(name.thread)) {
        node = below;
        continue;
      }
      send_selections(self, name, 1);
      return;
    }
  }
  // Sends `count` rollouts to the owner of a node, to be continued there.
  void send_selections(Thread& self, PaperName name, uint32_t count) {
    if (!is_here(name.thread)) {
      self.counters->remote_selections.add(count);
      self.counters->handed_over.add(count);
    }
    const bool from_elsewhere = !is_here(name.thread);
    at(name.thread, [name, count, from_elsewhere](PaperTree& tree) {
      Thread& owner = tree.self();
      NodeType* node = tree.find(name);
      for (uint32_t i = 0; node != nullptr && i < count; ++i) {
        if (from_elsewhere) owner.counters->visits.add();
        tree.select(owner, *node);
      }
    });
  }
  // Continues the rollouts that wait for the child of a move. Requires: the child was stored.
  void resume(Thread& self, NodeType& node, int chosen) {
    auto& edge = node.edge(chosen);
    const uint32_t waiting = edge.waiting.exchange(0, std::memory_order_seq_cst);
    if (waiting == 0) return;
    const uint64_t child = edge.child.load(std::memory_order_acquire);
    if (child == NodeType::kLost) {
      for (uint32_t i = 0; i < waiting; ++i) sample_instead(self, node, chosen);
    } else {
      send_selections(self, NodeType::unpack(child), waiting);
    }
  }

  // Returns the move with the highest UCB score.
  [[nodiscard]] int best(NodeType& node) const {
    uint64_t total = 1;
    for (int i = 0; i < node.size; ++i) {
      total += node.edge(i).visits.load(std::memory_order_relaxed);
    }
    const float log = std::log(static_cast<float>(total));
    int chosen = 0;
    float highest = -1;
    for (int i = 0; i < node.size; ++i) {
      const auto& edge = node.edge(i);
      const float visits =
          std::max(1.0F, static_cast<float>(edge.visits.load(std::memory_order_relaxed)));
      const float score = static_cast<float>(edge.wins.load(std::memory_order_relaxed)) / visits +
                          options_.paper.exploration * std::sqrt(log / visits);
      if (score > highest) {
        highest = score;
        chosen = i;
      }
    }
    return chosen;
  }

  // Expansion: requests the child of a move from a random thread of the job.
  void create(Thread& self, NodeType& node, int chosen) {
    G position = node.state;
    position.play(node.move(chosen));
    const uint32_t owner = self.random.below(host_.size() * host_.threads());
    const PaperName parent = node.self;
    const auto edge = static_cast<uint32_t>(chosen);
    if (acts_for(owner)) {
      on_create(self, position, parent, edge, false);
      return;
    }
    const bool elsewhere = !is_here(owner);
    if (elsewhere) self.counters->handed_over.add();
    static_cast<void>(aggregators()->post_buffer(
        owner,
        [parent, edge, elsewhere](void* data, uint64_t bytes) {
          PaperTree& tree = here();
          Thread& maker = tree.self();
          if (bytes == sizeof(G)) {
            alignas(G) std::byte copy[sizeof(G)];
            std::memcpy(copy, data, sizeof(G));
            if (elsewhere) maker.counters->visits.add();
            tree.on_create(maker, *std::launder(reinterpret_cast<const G*>(copy)), parent, edge,
                           elsewhere);
          }
        },
        std::as_bytes(std::span(&position, 1))));
  }
  // Creates the child, sends its name to the parent's owner, and requests a simulation. elsewhere:
  // the request came from another process.
  void on_create(Thread& self, const G& position, PaperName parent, uint32_t edge, bool elsewhere) {
    const std::optional<PaperName> name = make_node(self, position, parent, edge);
    if (elsewhere && name) self.counters->nodes_created_remotely.add();
    const uint64_t child = name ? NodeType::pack(*name) : NodeType::kLost;
    at(parent.thread, [parent, edge, child](PaperTree& tree) {
      NodeType* node = tree.find(parent);
      if (node == nullptr || edge >= node->size) return;
      node->edge(static_cast<int>(edge)).child.store(child, std::memory_order_seq_cst);
      tree.resume(tree.self(), *node, static_cast<int>(edge));
    });
    if (!name) {
      full_.store(true, std::memory_order_relaxed);
      const float value = play_out(self, position);
      self.counters->completions.add();
      bring_up(parent, edge, value);
      return;
    }
    request_simulation(self, *find(*name));
  }
  // Creates a node in the memory of `self`. Returns nullopt if there is no memory.
  std::optional<PaperName> make_node(Thread& self, const G& position, PaperName parent,
                                     uint32_t edge) {
    Candidate<typename G::Move> moves[G::kMaxMoves];
    const std::optional<float> result = internal::checked_result(position);
    G state = position;
    const int size = result ? 0 : internal::list_moves(state, std::span(moves), false);
    void* memory =
        self.next / kBlock < kBlocks ? self.arena.allocate(NodeType::bytes(size)) : nullptr;
    if (memory == nullptr) return std::nullopt;
    auto* node = new (memory) NodeType(position);
    node->parent = parent;
    node->parent_edge = edge;
    node->size = static_cast<uint16_t>(size);
    node->player = internal::checked_player(position, size != 0);
    node->terminal = result.has_value() || size == 0;
    node->value = result.value_or(0.5F);
    for (int i = size - 1; i > 0; --i) {
      std::swap(moves[i], moves[self.random.below(static_cast<uint32_t>(i + 1))]);
    }
    for (int i = 0; i < size; ++i) new (&node->edge(i)) typename NodeType::Edge();
    for (int i = 0; i < size; ++i) node->move(i) = moves[i].move;
    // The owner is the thread in whose memory the node is, even if another thread accesses it
    // directly.
    const PaperName name{host_.id(host_.rank(), self.index), self.next++};
    auto& block = self.blocks[name.index / kBlock];
    if (name.index % kBlock == 0) {
      self.owned.push_back(std::make_unique<typename Thread::Block>());
      block.store(self.owned.back().get(), std::memory_order_release);
    }
    node->self = name;
    block.load(std::memory_order_relaxed)
        ->nodes[name.index % kBlock]
        .store(node, std::memory_order_release);
    self.counters->nodes_created.add();
    return name;
  }

  // ---- Simulation and back-propagation

  void request_simulation(Thread& self, NodeType& leaf) {
    const uint32_t to = self.random.below(host_.threads());
    Thread& other = *threads_[to];
    if (&other == &self || !other.requests[self.index]->push(&leaf)) {
      simulate(self, leaf);
    } else {
      host_.wake_workers();
    }
  }
  void simulate(Thread& self, NodeType& leaf) {
    complete_at(self, leaf, leaf.terminal ? leaf.value : play_out(self, leaf.state));
  }
  // Completes a rollout at a move whose child cannot be created for lack of memory: simulates the
  // position after the move here.
  void sample_instead(Thread& self, NodeType& node, int chosen) {
    G position = node.state;
    position.play(node.move(chosen));
    const std::optional<float> result = internal::checked_result(position);
    const float value = result ? *result : play_out(self, position);
    self.counters->completions.add();
    bring_up(node.self, static_cast<uint32_t>(chosen), value);
  }
  // Runs the playouts of a simulation and returns the mean of their results for player 0.
  float play_out(Thread& self, const G& position) {
    if (!self.evaluator) self.evaluator.emplace(position, self.random, options_.value_weight);
    float sum = 0;
    self.evaluator->run(position, std::nullopt, self.random, options_.paper.playouts,
                        [&](const Sample<G>& sample) { sum += sample.value; });
    self.counters->playouts.add(options_.paper.playouts);
    return sum / static_cast<float>(options_.paper.playouts);
  }
  void complete_at(Thread& self, NodeType& leaf, float value) {
    self.counters->completions.add();
    bring_up(leaf.parent, leaf.parent_edge, value);
  }
  // Back-propagation: adds the value of a rollout to the edge of its parent, then to the edges of
  // all ancestors, by calls to their owners. At the root, counts the rollout as completed.
  void bring_up(PaperName parent, uint32_t edge, float value) {
    if (parent.thread == PaperName::kNobody) {
      completed_.fetch_add(1, std::memory_order_acq_rel);
      return;
    }
    at(parent.thread, [parent, edge, value](PaperTree& tree) {
      NodeType* node = tree.find(parent);
      if (node == nullptr || edge >= node->size) return;
      node->edge(static_cast<int>(edge))
          .wins.fetch_add(node->player == 0 ? value : 1 - value, std::memory_order_relaxed);
      tree.bring_up(node->parent, node->parent_edge, value);
    });
  }

  // ---- Commands

  CommandAnswer carry_out(const Command& command) {
    if (command.kind == CommandKind::kBegin) {
      options_ = command.options;
      completed_.store(0, std::memory_order_relaxed);
      full_.store(false, std::memory_order_relaxed);
      root_ = nullptr;
      budget_.set_limit(options_.memory_bytes);
      for (uint32_t i = 0; i < threads_.size(); ++i) {
        Thread& thread = *threads_[i];
        thread.arena.clear();
        for (auto& block : thread.blocks) block.store(nullptr, std::memory_order_relaxed);
        thread.owned.clear();
        thread.next = 0;
        thread.random = Random(options_.seed + host_.id(host_.rank(), i));
        thread.evaluator.reset();
        thread.counters.emplace();
        if (PeerAggregators* aggregators = host_.thread(i).aggregators.get();
            aggregators != nullptr) {
          thread.messages_before = aggregators->messages();
          thread.bytes_before = aggregators->bytes();
        }
        host_.thread(i).idle_ns.store(0, std::memory_order_relaxed);
      }
      host_.activate(this);
    }
    CommandAnswer answer;
    for (uint32_t i = 0; i < threads_.size(); ++i) {
      add_to(answer.statistics, i);
    }
    return answer;
  }
  // Returns true if the rings of requests of all threads are empty.
  [[nodiscard]] bool has_no_work() const {
    for (const auto& thread : threads_) {
      for (const auto& ring : thread->requests) {
        if (!ring->empty()) return false;
      }
    }
    return true;
  }
  void add_to(Statistics& sum, uint32_t i) {
    const Thread& thread = *threads_[i];
    const Counters& counters = *thread.counters;
    sum.visits += counters.visits.value();
    sum.completions += counters.completions.value();
    sum.handed_over += counters.handed_over.value();
    sum.playouts += counters.playouts.value();
    sum.nodes_created += counters.nodes_created.value();
    sum.nodes_created_remotely += counters.nodes_created_remotely.value();
    sum.remote_selections += counters.remote_selections.value();
    sum.deferred_selections += counters.deferred_selections.value();
    sum.nodes += counters.nodes_created.value();
    sum.node_bytes += thread.arena.live_bytes();
    HostThread& worker = host_.thread(i);
    if (worker.aggregators != nullptr) {
      sum.messages += worker.aggregators->messages() - thread.messages_before;
      sum.bytes += worker.aggregators->bytes() - thread.bytes_before;
    }
    if (worker.aggregators != nullptr && i == Host::here().index) {
      const auto [channels, behind] = worker.aggregators->channels();
      sum.channels += channels;
      sum.channels_behind += behind;
    }
    sum.idle_seconds += 1e-9 * static_cast<double>(worker.idle_ns.load(std::memory_order_relaxed));
  }

  Host& host_;
  SearchOptions options_;
  ArenaBudget budget_{0};  // of the nodes; declared before the arenas
  std::vector<std::unique_ptr<Thread>> threads_;
  NodeType* root_ = nullptr;
  std::atomic<int64_t> to_begin_{0};
  std::atomic<uint64_t> completed_{0};
  std::atomic<bool> full_{false};
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_PAPER_ENGINE_PAPER_TREE_H_
