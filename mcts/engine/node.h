// A node of the tree: a position and the statistics of each move from it, in one block of memory.
//
// The statistics of a move are stored in the node in which the move is made (Seriema §5.3: each
// node has the counters of its children), as arrays. So the selection of a move reads a few
// consecutive cache lines and no child. The counters are relaxed atomics: the threads of one
// process share the tree without locks. A rollout counts its visits on the way down and its value
// on the way up. A move with rollouts in flight therefore has a lower mean value in the meantime,
// the virtual loss, unless add_value() adds an expected value (SelectionOptions::virtual_loss).
//
// Memory: 37 bytes per move plus the size of Move, 29 plus the size of Move in games without AMAF.
// The number of moves is padded to a multiple of 16.
#ifndef CARIAMA_MCTS_ENGINE_NODE_H_
#define CARIAMA_MCTS_ENGINE_NODE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "mcts/engine/arena.h"
#include "mcts/engine/count_exchange.h"
#include "mcts/engine/select_kernel.h"
#include "mcts/game.h"
#include "mcts/outcome.h"
#include "mcts/values.h"

namespace cariama::mcts {

// The name of a node in another process: the rank of its owner, and its slot and generation in the
// owner's table of exported nodes (slot_table.h).
struct RemoteNode {
  static constexpr uint16_t kLastGeneration = (1 << 13) - 1;

  uint16_t rank = 0;
  uint16_t generation = 0;  // at most kLastGeneration
  uint32_t slot = 0;

  friend bool operator==(const RemoteNode&, const RemoteNode&) = default;
};

// A reference to the child of a move, in one of four states: no child, child being created, child
// in this process, child in another process. 8 bytes.
//   bits 0-2   0: no child (all bits 0) or an aligned pointer; 1: being created; 3: remote
//   bits 3-15  remote: generation
//   bits 16-47 remote: slot
//   bits 48-63 remote: rank
template <typename NodeType>
class ChildRef {
 public:
  constexpr ChildRef() = default;
  explicit ChildRef(NodeType* node) : bits_(reinterpret_cast<uint64_t>(node)) {}
  explicit ChildRef(RemoteNode node)
      : bits_(uint64_t{node.rank} << 48 | uint64_t{node.slot} << 16 |
              uint64_t{node.generation} << 3 | 3) {}
  [[nodiscard]] static ChildRef creating() {
    ChildRef ref;
    ref.bits_ = 1;
    return ref;
  }

  [[nodiscard]] bool none() const { return bits_ == 0; }
  [[nodiscard]] bool is_creating() const { return (bits_ & 7) == 1; }
  [[nodiscard]] bool is_remote() const { return (bits_ & 7) == 3; }
  [[nodiscard]] bool is_local() const { return bits_ != 0 && (bits_ & 7) == 0; }
  [[nodiscard]] NodeType* local() const { return reinterpret_cast<NodeType*>(bits_); }
  [[nodiscard]] RemoteNode remote() const {
    return {static_cast<uint16_t>(bits_ >> 48), static_cast<uint16_t>(bits_ >> 3 & 0x1FFF),
            static_cast<uint32_t>(bits_ >> 16)};
  }

 private:
  uint64_t bits_ = 0;
};
static_assert(sizeof(ChildRef<int>) == 8);

// The contents of a node for one move. A node is sent to another process as an array of these.
template <Game G>
struct MoveRecord {
  typename G::Move move{};
  Verdict verdict = Verdict::kOpen;
  bool has_child = false;
  float prior = 0;
  uint32_t visits = 0;
  RemoteNode child;
  double value = 0;
  float amaf_visits = 0;
  float amaf_value = 0;
};

// One thread creates a node and publishes it by a release store of the ChildRef. After that all
// functions except destroy() are thread-safe.
template <Game G>
class Node {
 public:
  using Move = typename G::Move;
  using Ref = ChildRef<Node>;
  static constexpr bool kAmaf = HasAmaf<G>;
  // The arrays are padded to a multiple of this number of moves. The select kernels read groups of
  // this size.
  static constexpr int kGroup = 16;
  // At this number of AMAF visits a move counts no more playouts, and its AMAF mean stays as it is.
  // Its counters are floats: at 2^24 visits, adding 1 has no effect, but the sum of the values
  // would still grow, so that the mean would rise to 1. Below 2^23 a sum of halves is exact, too.
  static constexpr float kMaxAmafVisits = 1 << 23;
  // Added to the score of a closed move, so that selection never chooses it (is_selectable()).
  static constexpr float kClosed = -1e30F;

  // Creates a node. Returns nullptr if there is no memory. creator: the index of `arena` in its
  // process. simplify: see list_moves(). Throws std::runtime_error if a result or a prior of the
  // game is out of range.
  [[nodiscard]] static Node* create(const G& position, Arena& arena, uint16_t creator,
                                    Random& random, bool simplify) {
    G state = position;
    const uint64_t key = key_of(position);  // before expand() changes it
    Candidate<Move> moves[G::kMaxMoves];
    const std::optional<ValueOf<G>> result = internal::checked_result(state);
    int count = result ? 0 : internal::list_moves(state, std::span(moves), simplify);
    // expand() may have replaced the state by one in which the game has ended.
    const std::optional<ValueOf<G>> late = result ? result : internal::checked_result(state);
    if (late || count == 0) count = 0;
    const int padded = (count + kGroup - 1) / kGroup * kGroup;
    void* memory = arena.allocate(bytes_for(padded));
    if (memory == nullptr) return nullptr;
    // Shuffle: selection takes the first of several moves with equal scores.
    for (int i = count - 1; i > 0; --i) {
      std::swap(moves[i], moves[random.below(static_cast<uint32_t>(i + 1))]);
    }
    Node* node = new (memory) Node(state, key, static_cast<uint16_t>(count), creator);
    node->fill(std::span(moves, count));
    // The priors of a chance node are its probabilities, so it needs no evaluation.
    if (HasEvaluator<G> && count != 0 && !node->is_chance()) node->end_evaluation(false);
    if (count == 0) {
      node->outcome_.store(late ? outcome_of(*late) : Outcome::kDraw, std::memory_order_relaxed);
    } else {
      node->resolve();
    }
    return node;
  }
  // Creates a node with the statistics of `records`. All its children are remote, and its
  // evaluation has ended. Returns nullptr if there is no memory.
  [[nodiscard]] static Node* create(const G& state, std::span<const MoveRecord<G>> records,
                                    Arena& arena, uint16_t creator) {
    const auto count = static_cast<uint16_t>(records.size());
    void* memory = arena.allocate(bytes_for((count + kGroup - 1) / kGroup * kGroup));
    if (memory == nullptr) return nullptr;
    Node* node = new (memory) Node(state, key_of(state), count, creator);
    Candidate<Move> moves[G::kMaxMoves];
    for (int i = 0; i < count; ++i) {
      moves[i] = {records[i].move, records[i].prior, records[i].verdict};
    }
    node->fill(std::span(moves, count));
    for (int i = 0; i < count; ++i) {
      const MoveRecord<G>& record = records[i];
      if (record.visits != 0) node->enter(i, record.visits);
      node->template array<std::atomic<double>>(kValueAt)[i].store(record.value,
                                                                   std::memory_order_relaxed);
      if constexpr (kAmaf) {
        node->template array<std::atomic<float>>(kAmafAt)[i].store(record.amaf_visits,
                                                                   std::memory_order_relaxed);
        node->template array<std::atomic<float>>(kAmafValueAt)[i].store(record.amaf_value,
                                                                        std::memory_order_relaxed);
      }
      if (record.has_child) node->set_child(i, Ref(record.child));
    }
    if (count == 0) {  // selection needs a move or an outcome
      const std::optional<ValueOf<G>> result = state.result();
      node->outcome_.store(result ? outcome_of(*result) : Outcome::kDraw,
                           std::memory_order_relaxed);
    }
    node->resolve();
    return node;
  }
  [[nodiscard]] MoveRecord<G> record(int i) const {
    MoveRecord<G> record;
    record.move = move(i);
    record.verdict = verdict(i);
    record.prior = prior(i);
    record.visits = visits(i);
    record.value = value(i);
    if constexpr (kAmaf) {
      record.amaf_visits = amaf_visits(i);
      record.amaf_value = amaf_value(i);
    }
    return record;
  }
  // Frees the node. Requires: no thread uses the node, and `arena` is the arena of create().
  void destroy(Arena& arena) {
    const size_t bytes = bytes_for(padded_);
    this->~Node();
    arena.free(this, bytes);
  }
  [[nodiscard]] size_t bytes() const { return bytes_for(padded_); }
  // Returns the size of a node with kMaxMoves moves.
  [[nodiscard]] static constexpr size_t most_bytes() {
    return bytes_for((G::kMaxMoves + kGroup - 1) / kGroup * kGroup);
  }

  [[nodiscard]] const G& state() const { return state_; }
  // Returns the key of the position for which the node was created; state() may be a simplified
  // form of this position. Returns 0 in games without keys.
  [[nodiscard]] uint64_t key() const { return key_; }
  // Returns true if a player of the game, or chance, is to move in the position. Otherwise it has
  // no node with moves: create() throws.
  [[nodiscard]] static bool has_mover(const G& position) {
    return internal::is_chance(position) || internal::is_player<G>(position.to_move());
  }
  // Returns true if the position may have a node: has_mover(), or the game has ended.
  [[nodiscard]] static bool is_possible(const G& position) {
    if (has_mover(position) || position.result()) [[likely]]
      return true;
    Move moves[G::kMaxMoves];
    return internal::checked_moves(position, std::span(moves)) == 0;
  }
  [[nodiscard]] static uint64_t key_of(const G& position) {
    if constexpr (HasKey<G>) return position.key();
    return 0;
  }
  // Returns the player to move, for which the values of the moves count: 0 in a chance node.
  [[nodiscard]] int player() const { return player_; }
  // Returns true if the moves are the outcomes of a chance position, and the priors their
  // probabilities.
  [[nodiscard]] bool is_chance() const { return internal::is_chance(state_); }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] int padded() const { return padded_; }
  [[nodiscard]] uint16_t creator() const { return creator_; }
  [[nodiscard]] Move move(int i) const { return array<Move>(kMoveAt)[i]; }
  // Returns the position after move i.
  [[nodiscard]] G after(int i) const {
    G position = state_;
    position.play(move(i));
    return position;
  }
  // Returns the index of a move, or -1 if the node does not offer it.
  [[nodiscard]] int find(Move move) const {
    for (int i = 0; i < size_; ++i) {
      if (array<Move>(kMoveAt)[i] == move) return i;
    }
    return -1;
  }

  // Returns the number of rollouts that chose a move here, in flight or completed: of all moves, or
  // of move i.
  [[nodiscard]] uint64_t visits() const { return visits_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint32_t visits(int i) const {
    return array<std::atomic<uint32_t>>(kVisitsAt)[i].load(std::memory_order_relaxed);
  }
  // Returns the sum of the values, for player(), of the completed rollouts through move i, and of
  // the expected values of rollouts that other processes run.
  [[nodiscard]] double value(int i) const {
    return array<std::atomic<double>>(kValueAt)[i].load(std::memory_order_relaxed);
  }
  [[nodiscard]] float prior(int i) const {
    return array<std::atomic<float>>(kPriorAt)[i].load(std::memory_order_relaxed);
  }
  void set_prior(int i, float prior) {
    array<std::atomic<float>>(kPriorAt)[i].store(prior, std::memory_order_relaxed);
  }
  [[nodiscard]] float amaf_visits(int i) const {
    return array<std::atomic<float>>(kAmafAt)[i].load(std::memory_order_relaxed);
  }
  [[nodiscard]] float amaf_value(int i) const {
    return array<std::atomic<float>>(kAmafValueAt)[i].load(std::memory_order_relaxed);
  }
  [[nodiscard]] Ref child(int i) const {
    return array<std::atomic<Ref>>(kChildAt)[i].load(std::memory_order_acquire);
  }
  [[nodiscard]] Verdict verdict(int i) const {
    return array<std::atomic<Verdict>>(kVerdictAt)[i].load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool closed(int i) const { return verdict(i) != Verdict::kOpen; }
  // Returns the outcome to which move i is proved to lead. Requires: its verdict is neither kOpen
  // nor kPruned.
  [[nodiscard]] Outcome outcome(int i) const {
    const Verdict known = verdict(i);
    return known == Verdict::kDraws  ? Outcome::kDraw
           : known == Verdict::kWins ? win_of(player_)
                                     : win_of(1 - player_);
  }
  [[nodiscard]] Outcome outcome() const { return outcome_.load(std::memory_order_relaxed); }

  // Counts `count` rollouts that choose move i. Returns the visits of the move before.
  uint32_t enter(int i, uint32_t count = 1) {
    visits_.fetch_add(count, std::memory_order_relaxed);
    return array<std::atomic<uint32_t>>(kVisitsAt)[i].fetch_add(count, std::memory_order_relaxed);
  }
  // Removes `count` rollouts through move i from the visits: they ended without a value.
  void remove_visits(int i, uint32_t count) {
    visits_.fetch_sub(count, std::memory_order_relaxed);
    array<std::atomic<uint32_t>>(kVisitsAt)[i].fetch_sub(count, std::memory_order_relaxed);
  }
  // Adds the values of `count` completed rollouts through move i, with this sum. The selection
  // compares the moves of this node only, so the node counts the value for its player alone.
  void leave(int i, uint32_t count, const internal::SumOf<G>& sum) {
    double own = 0;
    if constexpr (kTwoPlayers<G>) {
      own = player_ == 0 ? sum : count - sum;
    } else {
      own = sum[player_];
    }
    array<std::atomic<double>>(kValueAt)[i].fetch_add(own, std::memory_order_relaxed);
  }
  // Adds to the value of move i without a visit. For rollouts in flight: the same value is
  // subtracted before leave() or remove_visits().
  void add_value(int i, double value) {
    array<std::atomic<double>>(kValueAt)[i].fetch_add(value, std::memory_order_relaxed);
  }
  // Counts a playout for all moves whose AMAF ids player() owned at the end of the playout.
  // Concurrent updates by several threads may get lost. The statistic tolerates this; an atomic
  // read-modify-write per move would be slower than the more exact statistic is worth.
  void count_amaf(const Sample<G>& sample) {
    if constexpr (kAmaf) {
      float own = 0;
      if constexpr (kTwoPlayers<G>) {
        own = player_ == 0 ? sample.value : 1 - sample.value;
      } else {
        own = sample.value[player_];
      }
      const auto& words = sample.owned.words[player_];
      const Move* moves = array<Move>(kMoveAt);
      auto* const amaf_visits = array<std::atomic<float>>(kAmafAt);
      auto* const amaf_value = array<std::atomic<float>>(kAmafValueAt);
      for (int i = 0; i < size_; ++i) {
        const auto id = static_cast<unsigned>(G::amaf_id(moves[i]));
        const auto bit = static_cast<float>(static_cast<int>(words[id >> 6] >> (id & 63) & 1));
        auto& visits = amaf_visits[i];
        auto& value = amaf_value[i];
        const float before = visits.load(std::memory_order_relaxed);
        const float by = before < kMaxAmafVisits ? bit : 0;
        visits.store(before + by, std::memory_order_relaxed);
        value.store(value.load(std::memory_order_relaxed) + by * own, std::memory_order_relaxed);
      }
    }
  }

  // Returns the counts of move i.
  [[nodiscard]] MoveCounts counts(int i) const {
    MoveCounts counts{visits(i), verdict(i), 0, 0, 0, value(i)};
    if constexpr (kAmaf) {
      counts.amaf_visits = amaf_visits(i);
      counts.amaf_value = amaf_value(i);
    }
    return counts;
  }
  // Adds the difference now - before, which was counted at a copy of the node or at its original,
  // to the counts of move i. AMAF statistics are added only if their difference is positive, and up
  // to kMaxAmafVisits.
  void add_counts(int i, const MoveCounts& now, const MoveCounts& before) {
    const uint32_t grown = now.visits - before.visits;
    // The difference is negative if remove_visits() has removed visits.
    visits_.fetch_add(static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(grown))),
                      std::memory_order_relaxed);
    add_difference(array<std::atomic<uint32_t>>(kVisitsAt)[i],
                   array<std::atomic<double>>(kValueAt)[i], now, before);
    if (now.verdict != Verdict::kOpen) set_verdict(i, now.verdict);
    if constexpr (kAmaf) {
      // Both or none of the two, so that the mean stays right.
      if (amaf_visits(i) >= kMaxAmafVisits) return;
      const auto grow = [](std::atomic<float>& to, float by) {
        if (by > 0) to.store(to.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
      };
      grow(array<std::atomic<float>>(kAmafAt)[i], now.amaf_visits - before.amaf_visits);
      grow(array<std::atomic<float>>(kAmafValueAt)[i], now.amaf_value - before.amaf_value);
    }
  }

  // Publishes `child` as the child of move i. Returns false if the move has a child already, or one
  // is being created.
  [[nodiscard]] bool publish_child(int i, Ref child) {
    Ref expected;
    // Release: pairs with the acquire in child(). A thread that finds the node sees its contents.
    return array<std::atomic<Ref>>(kChildAt)[i].compare_exchange_strong(
        expected, child, std::memory_order_release, std::memory_order_relaxed);
  }
  // Marks the child of move i as being created. Returns true for the one caller that has to create
  // it or to request its creation.
  [[nodiscard]] bool claim_child(int i) {
    Ref expected;
    return array<std::atomic<Ref>>(kChildAt)[i].compare_exchange_strong(expected, Ref::creating(),
                                                                        std::memory_order_acquire);
  }
  void set_child(int i, Ref ref) {
    array<std::atomic<Ref>>(kChildAt)[i].store(ref, std::memory_order_release);
  }
  // Removes the child of move i if it is still the node with this name, which does not exist any
  // more or whose process has died. A later rollout creates the child again.
  void drop_child(int i, RemoteNode name) {
    Ref expected(name);
    array<std::atomic<Ref>>(kChildAt)[i].compare_exchange_strong(expected, Ref(),
                                                                 std::memory_order_relaxed);
  }
  // Count the parents: the moves, in all processes, that have this node as their child. A node has
  // one parent unless transpositions are enabled.
  void add_parent() { parents_.fetch_add(1, std::memory_order_relaxed); }
  // Removes a parent. Returns true if no parent is left.
  [[nodiscard]] bool drop_parent() { return parents_.fetch_sub(1, std::memory_order_relaxed) == 1; }
  // Returns true if the node has several parents.
  [[nodiscard]] bool shared() const { return parents_.load(std::memory_order_relaxed) > 1; }
  // Returns the number of refinements: the level of the next one.
  [[nodiscard]] int refinements() const { return refined_.load(std::memory_order_relaxed); }
  // Returns true for exactly one caller per level, which then refines the node. Returns false if
  // the number of refinements is not `level`.
  [[nodiscard]] bool claim_refinement(int level) {
    auto expected = static_cast<uint8_t>(level);
    return refined_.compare_exchange_strong(expected, static_cast<uint8_t>(level + 1),
                                            std::memory_order_relaxed);
  }
  // Calls the game's refine(). Records its verdicts, the outcome that follows from them, and, if
  // `sets_priors`, its priors. Throws std::runtime_error if a prior is out of range.
  void refine(int level, bool sets_priors) requires HasRefine<G> {
    Candidate<Move> moves[G::kMaxMoves];
    Verdict verdicts[G::kMaxMoves];
    for (int i = 0; i < size_; ++i) {
      verdicts[i] = verdict(i);
      moves[i] = {move(i), prior(i), verdicts[i]};
    }
    state_.refine(std::span(moves, size_), std::span(verdicts, size_), level);
    if constexpr (RefinesPriors<G>) {
      internal::check_priors<Move>("refine()", std::span(moves, size_));
      for (int i = 0; i < size_ && sets_priors; ++i) set_prior(i, moves[i].prior);
    }
    for (int i = 0; i < size_; ++i) {
      if (verdicts[i] != Verdict::kOpen) set_verdict(i, verdicts[i]);
    }
    resolve();
  }
  // Sets the number of refinements. kRefinements disables further ones.
  void set_refinements(int count) {
    refined_.store(static_cast<uint8_t>(count), std::memory_order_relaxed);
  }

  // Games with an Evaluator: the evaluation of the node sets the priors. A node without moves needs
  // none. A copy never needs one: it has the priors of its original. No rollout selects a move of a
  // node before its evaluation has ended. In other games evaluated() is always true.
  [[nodiscard]] bool evaluated() const {
    // Acquire: pairs with the store in end_evaluation(). The priors are visible.
    return evaluation_.load(std::memory_order_acquire) == EvaluationState::kDone;
  }
  // seq_cst: see Host::wake_workers(). A rollout that waits continues when this is false.
  [[nodiscard]] bool evaluation_pending() const {
    return evaluation_.load(std::memory_order_seq_cst) == EvaluationState::kPending;
  }
  // Returns true for the one caller that has to evaluate the node.
  [[nodiscard]] bool claim_evaluation() {
    auto expected = EvaluationState::kNone;
    return evaluation_.compare_exchange_strong(expected, EvaluationState::kPending,
                                               std::memory_order_relaxed);
  }
  // Ends the evaluation after claim_evaluation(). done: set_prior() has set the priors. Otherwise a
  // later rollout claims it again.
  void end_evaluation(bool done) {
    evaluation_.store(done ? EvaluationState::kDone : EvaluationState::kNone,
                      std::memory_order_seq_cst);
  }

  // Records that move i leads to this outcome. The caller calls resolve() afterwards. In games of
  // other than two players it records only a win of the player to move: a verdict does not say
  // which other player wins.
  void prove(int i, Outcome outcome) {
    if constexpr (!kTwoPlayers<G>) {
      if (outcome != win_of(player_) || is_chance()) return;
    }
    set_verdict(i, outcome == Outcome::kDraw    ? Verdict::kDraws
                   : outcome == win_of(player_) ? Verdict::kWins
                                                : Verdict::kLoses);
  }
  void set_verdict(int i, Verdict verdict) {
    verdict = usable(verdict);
    auto& place = array<std::atomic<Verdict>>(kVerdictAt)[i];
    // A proved verdict never changes. kPruned may change to a proved verdict.
    Verdict known = place.load(std::memory_order_relaxed);
    while (known == Verdict::kOpen || (known == Verdict::kPruned && verdict != Verdict::kOpen)) {
      if (place.compare_exchange_weak(known, verdict, std::memory_order_relaxed)) break;
    }
    if (!is_selectable(verdict)) {
      array<std::atomic<float>>(kBiasAt)[i].store(kClosed, std::memory_order_relaxed);
    }
  }
  // Derives the outcome of the node from the verdicts of its moves, stores it, and returns it.
  // A node without moves, in which the game has ended, has the outcome that create() found.
  Outcome resolve() {
    if (const Outcome known = outcome(); known != Outcome::kOpen || size_ == 0) return known;
    if constexpr (HasChance<G>) {
      if (is_chance()) return resolve_chance();
    }
    bool open = false;
    bool draw = false;
    bool win = false;
    for (int i = 0; i < size_; ++i) {
      const Verdict known = verdict(i);
      open |= known == Verdict::kOpen;
      draw |= known == Verdict::kDraws;
      win |= known == Verdict::kWins;
    }
    if (!win && open) return Outcome::kOpen;
    // With other than two players all moves are pruned here, against the contract of expand().
    draw |= !kTwoPlayers<G>;
    const Outcome result = win ? win_of(player_) : draw ? Outcome::kDraw : win_of(1 - player_);
    outcome_.store(result, std::memory_order_relaxed);
    return result;
  }

  // Returns the arrays of the node for select_move().
  [[nodiscard]] internal::SelectJob select_job() const {
    internal::SelectJob job{};
    job.visits = array<int32_t>(kVisitsAt);
    job.value = array<double>(kValueAt);
    if constexpr (kAmaf) {
      job.amaf_visits = array<float>(kAmafAt);
      job.amaf_value = array<float>(kAmafValueAt);
    }
    job.prior = array<float>(kPriorAt);
    job.bias = array<float>(kBiasAt);
    job.padded = padded_;
    return job;
  }

 private:
  // Offset of each array, in bytes per (padded) move. The arrays are in order of descending
  // alignment.
  static constexpr size_t kChildAt = 0;
  static constexpr size_t kValueAt = kChildAt + sizeof(Ref);
  static constexpr size_t kAmafAt = kValueAt + sizeof(double);
  static constexpr size_t kAmafValueAt = kAmafAt + (kAmaf ? sizeof(float) : 0);
  static constexpr size_t kVisitsAt = kAmafValueAt + (kAmaf ? sizeof(float) : 0);
  static constexpr size_t kPriorAt = kVisitsAt + sizeof(uint32_t);
  static constexpr size_t kBiasAt = kPriorAt + sizeof(float);
  static constexpr size_t kMoveAt = kBiasAt + sizeof(float);
  static constexpr size_t kVerdictAt = kMoveAt + sizeof(Move);
  static constexpr size_t kMoveBytes = kVerdictAt + sizeof(Verdict);

  enum class EvaluationState : uint8_t { kNone, kPending, kDone };

  Node(const G& state, uint64_t key, uint16_t size, uint16_t creator)
      : state_(state),
        key_(key),
        size_(size),
        padded_(static_cast<uint16_t>((size + kGroup - 1) / kGroup * kGroup)),
        creator_(creator),
        player_(internal::is_chance(state) ? uint8_t{0}
                                           : internal::checked_player(state, size != 0)) {}

  // Returns the verdict, or kOpen if it says nothing that the search uses.
  [[nodiscard]] static constexpr Verdict usable(Verdict verdict) {
    const bool used = kTwoPlayers<G> || verdict == Verdict::kWins || verdict == Verdict::kPruned;
    return used ? verdict : Verdict::kOpen;
  }

  // Returns true if the selection considers moves with this verdict. In games with chance these
  // are also draws: other moves may stay open after any number of rollouts. If they are worse
  // than a draw, the mean value of the node is right only if rollouts choose the draw.
  [[nodiscard]] static constexpr bool is_selectable(Verdict verdict) {
    return verdict == Verdict::kOpen || (HasChance<G> && verdict == Verdict::kDraws);
  }
  [[nodiscard]] static constexpr size_t head_bytes() { return (sizeof(Node) + 63) / 64 * 64; }
  [[nodiscard]] static constexpr size_t bytes_for(int padded) {
    return head_bytes() + static_cast<size_t>(padded) * kMoveBytes;
  }

  // A chance node has an outcome only if all moves that are not impossible lead to it.
  Outcome resolve_chance() {
    Outcome common = Outcome::kOpen;
    for (int i = 0; i < size_; ++i) {
      if (prior(i) <= 0) continue;
      if (!closed(i) || (common != Outcome::kOpen && common != outcome(i))) return Outcome::kOpen;
      common = outcome(i);
    }
    outcome_.store(common, std::memory_order_relaxed);
    return common;
  }

  template <typename T>
  [[nodiscard]] T* array(size_t per_move) const {
    auto* self = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(this));
    return reinterpret_cast<T*>(self + head_bytes() + per_move * padded_);
  }
  // Initializes the arrays. The padding behind the moves is closed.
  void fill(std::span<const Candidate<Move>> moves) {
    for (int i = 0; i < padded_; ++i) {
      const bool real = i < size_;
      new (array<std::atomic<Ref>>(kChildAt) + i) std::atomic<Ref>(Ref());
      new (array<std::atomic<double>>(kValueAt) + i) std::atomic<double>(0);
      new (array<std::atomic<uint32_t>>(kVisitsAt) + i) std::atomic<uint32_t>(0);
      if constexpr (kAmaf) {
        new (array<std::atomic<float>>(kAmafAt) + i) std::atomic<float>(0);
        new (array<std::atomic<float>>(kAmafValueAt) + i) std::atomic<float>(0);
      }
      const Verdict verdict = real ? usable(moves[i].verdict) : Verdict::kPruned;
      new (array<std::atomic<float>>(kPriorAt) + i) std::atomic<float>(real ? moves[i].prior : 0);
      new (array<std::atomic<float>>(kBiasAt) + i)
          std::atomic<float>(is_selectable(verdict) ? 0 : kClosed);
      new (array<Move>(kMoveAt) + i) Move(real ? moves[i].move : Move{});
      new (array<std::atomic<Verdict>>(kVerdictAt) + i) std::atomic<Verdict>(verdict);
    }
  }

  G state_;
  uint64_t key_;
  std::atomic<uint64_t> visits_{0};
  std::atomic<uint32_t> parents_{1};
  uint16_t size_;
  uint16_t padded_;
  uint16_t creator_;
  uint8_t player_;
  std::atomic<Outcome> outcome_{Outcome::kOpen};
  std::atomic<uint8_t> refined_{0};
  std::atomic<EvaluationState> evaluation_{EvaluationState::kDone};
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_NODE_H_
