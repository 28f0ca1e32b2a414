// The options, limits, statistics and results of a search.
#ifndef CARIAMA_MCTS_OPTIONS_H_
#define CARIAMA_MCTS_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "mcts/export.h"
#include "mcts/game.h"
#include "mcts/outcome.h"

namespace cariama::mcts {

// The score by which a rollout selects a move, and its parameters (engine/selection.h).
enum class SelectionRule : uint8_t { kUcb, kPuct };

struct SelectionOptions {
  SelectionRule rule = SelectionRule::kUcb;
  float exploration = 0.7F;  // finite, 0 or more
  float first_play = 1.0F;   // value of a move without visits, 0 to 1
  // Number of visits at which the move's own mean has the same weight as its AMAF mean; finite, 0
  // or more. 0: no AMAF.
  float amaf_equivalence = 0;
  float bias = 0;  // weight of the priors with kUcb; finite, 0 or more
  // How a rollout that another process runs counts until its value arrives, 0 to 1. 1: as a loss
  // for the player of each of its moves. 0: with the value that its moves are expected to have, so
  // that only its visit counts (WU-UCT: Liu et al. 2020). Between 0 and 1: with this part of the
  // expected value taken off. Rollouts that wait for an Evaluator, and those that another thread of
  // the process is running, count as losses. Not in the paper's design.
  float virtual_loss = 1;
};

// The rule by which a search chooses the best move of the root: SearchResult::moves[0]. With both
// rules a proved win is chosen first, and a move that is proved to lose, or pruned, only if there
// is no other.
enum class FinalChoice : uint8_t {
  // The move with the most visits. A proved draw instead if the mean value of this move is below
  // that of a draw.
  kMostVisits,
  // The move with the highest lower confidence bound of its value (Roy 2019; Leela Zero, KataGo),
  // among the moves with at least ChoiceOptions::least_share times the visits of the most visited
  // move that is not proved or pruned. It may be better than the most visited move if the mean of
  // the latter has dropped late. A proved draw has the bound 0.5 and needs no visits. The search
  // stores no squares of values. So the bound is that of the Wilson score interval
  // (engine/final_choice.h): it needs only visits and mean, and assumes the largest variance that
  // values between 0 and 1 with this mean can have.
  kLowerConfidenceBound,
};

struct ChoiceOptions {
  FinalChoice rule = FinalChoice::kMostVisits;
  // kLowerConfidenceBound: number of standard deviations between mean and bound, 0 or more. A
  // larger value prefers moves with many visits.
  double deviations = 3;
  // kLowerConfidenceBound: a candidate has at least this share of the visits of the most visited
  // move; above 0, at most 1.
  double least_share = 0.15;
};

// Noise in the priors of the root, for games of a program against itself (Silver et al. 2017):
// searches of the same position with different seeds try different moves. The prior of move i is
//   (1 - fraction) * prior + fraction * S * d[i]
// where d is a sample of the symmetric Dirichlet distribution over the moves of the root, and S the
// sum of their priors. If all priors are 0, each counts as 1 / number of moves. The sample depends
// on the seed, the key() of the position, and the order of the root's moves. All processes use the
// same noise, and refine() changes no prior of the root. A game without key() needs a new seed for
// each position: otherwise each position with as many moves has the same sample. Noise has no
// effect on nodes below the root.
struct RootNoise {
  // 0 (no noise) to 1; AlphaZero used 0.25. Above 0 it needs a selection that uses priors: kPuct
  // with exploration above 0, or kUcb with bias above 0.
  double fraction = 0;
  // The parameter of the distribution, 0.0001 to 1000000. With a small value a few moves get nearly
  // all of the noise; with a large value each move gets the same. AlphaZero used about 10 / number
  // of moves: 0.3 in chess, 0.03 in Go.
  double concentration = 0.3;
};

// Games with an Evaluator (evaluator.h): how each worker forms batches of positions.
struct EvaluationOptions {
  // Limit of the positions in one batch, 1 to 65536. Also the limit of the rollouts of a worker
  // that wait for nodes whose evaluation is pending. Batches are smaller if the worker has nothing
  // else to do. A pending rollout counts as a loss for the player of each of its moves (virtual
  // loss), so large batches make the search explore more widely.
  uint32_t batch = 16;
  // Asynchronous evaluators: limit of the batches in flight of each worker, 1 to 65536.
  uint32_t in_flight = 2;
  // Asynchronous evaluators: a batch that takes longer is an error of the evaluator (evaluator.h).
  // Finite, above 0.
  double timeout_seconds = 60;
};

// Selects the process in which a new node is created.
enum class Placement : uint8_t {
  kLocality,  // the process of the rollout; at an original with many visits a random process
  kHash,      // chosen by the position's key(); random in games without key()
  kRandom,    // a random process, as in the paper
};
// Returns "locality", "hash" or "random".
[[nodiscard]] constexpr std::string_view placement_name(Placement placement) {
  return placement == Placement::kLocality ? "locality"
         : placement == Placement::kHash   ? "hash"
                                           : "random";
}

// Number of rollouts after which a worker polls for calls and checks limits: about 40 µs in Hex.
constexpr uint32_t kRolloutsPerPoll = 8;

// Options of the paper's design (Seriema §5.3; paper/paper_search.h).
struct PaperOptions {
  float exploration = 1.0F;             // C of UCB; finite, 0 or more
  uint32_t playouts = 16;               // per leaf
  uint32_t rollouts_per_thread = 4096;  // in one phase
  // Each thread works on the nodes of all threads of its process directly. Only calls to other
  // processes are sent. If false, calls are also sent between the threads of one process.
  bool only_remote = false;
};

// All processes use the same options: rank 0 sends its options at the beginning of each search.
// Values that are too small count as the smallest possible ones: 1 for playouts_per_leaf,
// max_batch, batch_divisor, exchange_divisor and queue_share, queue_target for queue_limit, and for
// memory_bytes the size of 512 nodes with Game::kMaxMoves moves (the paper's design: any value that
// has room for the root). Search::run() throws an exception for the values that validate() refuses.
struct SearchOptions {
  SelectionOptions selection{};
  ChoiceOptions choice{};  // not in the paper's design, which chooses the most visited move
  RootNoise root_noise{};  // not in the paper's design, which has no priors
  EvaluationOptions evaluation{};
  // Number of visits after which a move gets a child node. A node takes about 5 KB on an 11x11 Hex
  // board. This memory pays off only if later rollouts visit the node. In games with an Evaluator
  // each visit of a position without a node evaluates it anew, so of() sets 0.
  uint32_t expand_visits = 8;
  // Numbers of visits of a node at which refine() is called, if the game has it: for level 0, and
  // for level 1.
  uint32_t refine_visits = 32;
  uint32_t refine_again_visits = 4096;
  uint32_t playouts_per_leaf = 1;
  // Games with playouts and value(): the weight of value() in the result of a rollout, 0 to 1. The
  // playouts have the rest of the weight (Silver et al. 2016). 0: value() is not called. 1: no
  // playout runs. AMAF statistics count the same mean; with 1 they count nothing, so set
  // amaf_equivalence to 0 and selection.exploration above 0. Also in the paper's design.
  double value_weight = 0.5;
  Placement placement = Placement::kLocality;
  // One message requests visits / batch_divisor rollouts, at most max_batch, from another process;
  // `visits` are those of the move. So the rollouts in flight stay few compared with the completed
  // ones.
  uint32_t max_batch = 64;
  uint32_t batch_divisor = 4;
  // Number of visits of the root from which the tree spreads over all processes. Until then only
  // rank 0 selects moves and creates nodes, and the other processes run playouts, or value(), for
  // it (engine/remote_playouts.h): while the tree is small, selections of several processes know
  // too little of each other. Nodes of a kept tree stay in their processes, which extend them. 0:
  // the tree spreads at once, as it does in games with an Evaluator and after a collection of cold
  // nodes. kByLength: at once in searches without a limit of iterations, or with a limit of at
  // least kShortSearch for each worker of the job, and never in shorter ones. (A tree that has
  // grown in rank 0 spreads slowly, since rank 0 keeps its nodes.)
  static constexpr uint32_t kByLength = UINT32_MAX;
  static constexpr uint64_t kShortSearch = 1024;
  uint32_t spread_visits = kByLength;
  // Limit of the rollouts in flight whose playouts rank 0 has requested, for each worker of another
  // process, 0 to 1024. 2: one runs while the answer to the other one, and the next request, are in
  // flight. 0: the other processes have no part in the search before the tree spreads.
  uint32_t playouts_in_flight = 2;
  // Placement::kLocality: a child is placed in a random process if its parent has at least
  // spread_expansions * (expand_visits + 1) visits, otherwise in the parent's process; a child that
  // is created at a copy of its parent is placed in the process of the copy. The value is
  // small enough that every process owns a part of the searched tree, and large enough that a
  // subtree receives batches of rollouts.
  uint32_t spread_expansions = 12;
  // A process requests a copy of a remote child (copies.h) when the move has copy_visits visits, or
  // copy_visits / 8 if too many rollouts are in flight to the owner (queue_limit).
  // A copy and its owner exchange counts after visits / (exchange_divisor * processes) further
  // visits of the copy (at least 8, at most 1024). So the visits that a copy does not know, those
  // of all other copies together, are about visits / exchange_divisor.
  uint32_t copy_visits = 128;
  uint32_t exchange_divisor = 16;
  // Limit of the rollouts in flight that one process has requested from one other process: visits
  // of the root / queue_share, but at least queue_target and at most queue_limit, per thread. A
  // process also requests no more rollouts while more are in flight to all processes than are left
  // to start of its shares (in rank 0: of the root's job). At a limit, rollouts of the root and of
  // shares that need another process sample the position instead, a few times for one node, and
  // then are deferred.
  uint32_t queue_target = 32;
  uint32_t queue_limit = 1024;
  uint32_t queue_share = 64;
  // Limit of the bytes of the live nodes of a process. Copies of nodes of other processes take 1/16
  // more. The process maps more than both: each worker maps pages of 4 MiB, for nodes and for
  // copies, so that up to 8 MiB per worker are not used yet; and freed nodes stay mapped, for later
  // nodes of the same size, until the tree is freed. In a game whose later positions have fewer
  // moves, a process that keeps its tree may map a multiple of the limit.
  uint64_t memory_bytes = uint64_t{1} << 30;
  uint64_t seed = 1;
  bool reuse_tree = true;  // Search::advance() keeps the subtree of the move
  // Positions with equal key() share one node: one in the whole tree with Placement::kHash if the
  // tree spreads at once, otherwise one per process (transpositions.h). No effect in games without
  // key(). Requires: no position repeats in a sequence of moves, since rollouts do not check for
  // cycles. The table takes about 40 bytes per node in addition to memory_bytes. Off by default:
  // each new node needs one more look-up, which may cost more time than the shared nodes save.
  bool transpositions = false;
  // With a time limit and FinalChoice::kMostVisits: the search ends early when no other move can
  // get more visits than the best one in the time that is left.
  bool stop_when_safe = true;

  PaperOptions paper{};

  // Returns the number of visits of a move up to which rollouts sample it while its child is being
  // created. Later rollouts are deferred.
  [[nodiscard]] uint32_t sample_limit() const { return 2 * expand_visits + kRolloutsPerPoll; }

  // kHash and kRandom: returns the number of visits after which the owner of a node creates or
  // requests the child of a move that rollouts have chosen at copies of the node.
  [[nodiscard]] uint32_t owner_expand_visits() const { return sample_limit() / 2; }

  // Returns how many rollouts of one process sample the position of one node because too many
  // requests are in flight.
  [[nodiscard]] uint32_t busy_samples() const { return sample_limit() / 2; }

  // Checks selection, choice, value_weight, root_noise, evaluation, playouts_in_flight and paper.
  // Returns INVALID_ARGUMENT, with a message that names the option and its valid values, for a
  // value out of range, or for noise with a selection that uses no priors.
  [[nodiscard]] CARIAMA_MCTS_EXPORT absl::Status validate() const;

  // Returns spread_visits, for kByLength the number that it stands for in a search with this limit
  // of iterations (0: none) in a job with this number of workers.
  [[nodiscard]] constexpr uint32_t spread_visits_of(uint64_t iterations, uint64_t workers) const {
    if (spread_visits != kByLength) return spread_visits;
    return iterations == 0 || iterations / workers >= kShortSearch ? 0 : kByLength;
  }

  // Returns the options with values below their minimum raised to it, except memory_bytes
  // (Search::memory_bytes()).
  [[nodiscard]] SearchOptions possible() const {
    SearchOptions options = *this;
    for (uint32_t* const least :
         {&options.playouts_per_leaf, &options.max_batch, &options.batch_divisor,
          &options.exchange_divisor, &options.queue_share}) {
      *least = std::max<uint32_t>(*least, 1);
    }
    options.queue_limit = std::max(options.queue_limit, options.queue_target);
    return options;
  }

  // Returns the defaults for a game. In games with AMAF, AMAF statistics replace the exploration
  // term: exploration is 0. In games with an Evaluator the selection is kPuct (exploration 1,
  // first_play 0.5), each visited position gets a node, and spread_expansions is 12 * (8 + 1), so
  // that children are spread from the same number of visits on; value_weight and
  // playouts_per_leaf have no effect in these games. Begin with of(): default-constructed options
  // use neither AMAF statistics nor the priors of an Evaluator. In games without an Evaluator, of()
  // ignores priors, too. To use those of expand() and refine(), set selection.rule to kPuct and
  // selection.exploration above 0, or selection.bias above 0.
  template <Game G>
  [[nodiscard]] static SearchOptions of() {
    SearchOptions options;
    if constexpr (HasAmaf<G>) {
      options.selection.exploration = 0;
      options.selection.amaf_equivalence = 500;
      options.selection.first_play = 0.5F;
    }
    if constexpr (HasEvaluator<G>) {
      options.selection.rule = SelectionRule::kPuct;
      options.selection.exploration = 1;
      options.selection.first_play = 0.5F;
      options.spread_expansions *= options.expand_visits + 1;
      options.expand_visits = 0;
    }
    return options;
  }
};
static_assert(std::is_trivially_copyable_v<SearchOptions>);

// Throws std::invalid_argument with the message of options.validate() if this is an error.
CARIAMA_MCTS_EXPORT void throw_if_invalid(const SearchOptions& options);

// The search ends at the first limit that is reached, when the outcome of the root is proved, when
// `stop` of Search::run() is set, or at 1879048192 visits of the root, with those of earlier
// searches of the same tree. Without a limit only the last three end it.
struct SearchLimits {
  double seconds = 0;       // 0: no limit; less than 0: no time is left, the search ends at once
  uint64_t iterations = 0;  // 0: no limit
};

// Counters of one process for one search.
// visits = completions + handed_over + cancelled + deferred_selections.
struct Statistics {
  // Rollouts that this process began, for itself or at the request of another process, or that it
  // requested from another process together with one that it began. In rank 0 also the completed
  // rollouts of the shares that other processes ran.
  uint64_t visits = 0;
  // Of `visits`: rollouts that got their value in this process.
  uint64_t completions = 0;
  // Of `visits`: rollouts that another process continued at a node of its own, whose playouts it
  // ran, or which were a part of its share of the root's rollouts.
  uint64_t handed_over = 0;
  // Of `visits`: rollouts that found the outcome of their first node proved. They have no value.
  uint64_t cancelled = 0;
  // playouts_per_leaf for each rollout that ended with playouts or value(), also if no playout ran.
  // 0 in games with an Evaluator.
  uint64_t playouts = 0;
  // Positions that the evaluators of this process evaluated, and their batches.
  uint64_t evaluations = 0;
  uint64_t evaluation_batches = 0;
  uint64_t nodes_created = 0;           // nodes that this process created
  uint64_t nodes_created_remotely = 0;  // of `nodes_created`: for a parent elsewhere, offers too
  // Moves whose child is a node that existed already, for another move.
  uint64_t transpositions = 0;
  // Messages that requested rollouts from a node of another process.
  uint64_t remote_selections = 0;
  // Of `visits`: rollouts that were ended without a value, to be repeated later, since the child
  // was being created, too many requests were in flight, or a copy was out of date; and rollouts
  // whose evaluation was pending at the end of the search.
  uint64_t deferred_selections = 0;
  // Of `completions`: rollouts that sampled the position of a node of another process, since that
  // process had too many requests.
  uint64_t sampled_instead = 0;
  uint64_t messages = 0;  // calls sent
  uint64_t bytes = 0;     // size of the closures and buffers of these calls
  // Channels from worker 0 to other threads that were used since the worker started.
  uint64_t channels = 0;
  // Of `channels`: those that deferred more than one chunk of calls at some time.
  uint64_t channels_behind = 0;
  uint64_t collections = 0;  // collections of cold subtrees
  uint64_t nodes = 0;        // nodes in the tree at present
  uint64_t node_bytes = 0;   // their memory
  double idle_seconds = 0;   // time that threads slept without work, added up over the threads
  double cpu_seconds = 0;    // processor time of the process since the search began
};
static_assert(std::is_trivially_copyable_v<Statistics>);

// The search result for one move of the root, from the view of the player to move there.
template <typename Move>
struct MoveResult {
  Move move{};
  uint64_t visits = 0;
  // 0 .. 1: the mean of the rollouts, 0.5 without rollouts; 1, 0.5 or 0 if the move is proved to
  // win, to draw or to lose.
  double value = 0.5;
  double prior = 0;  // with the noise of SearchOptions::root_noise
  Verdict verdict = Verdict::kOpen;
  // The principal variation: this move, then in each node below it a move that is proved to win, or
  // else the most visited one, through the nodes of all processes. Ends before a move without
  // visits, at a chance position, at a node of a process that is dead or does not answer within
  // 50 ms, or after 64 moves. Behind the 32 best moves, at the first node of another process.
  std::vector<Move> line;
};

template <typename Move>
struct SearchResult {
  int player = 0;           // the player to move at the root
  uint64_t iterations = 0;  // completed rollouts of this search
  double seconds = 0;
  Outcome outcome = Outcome::kOpen;  // of the root
  // The best move first (ChoiceOptions). Empty if the position has ended or has no moves.
  std::vector<MoveResult<Move>> moves;
  // Games with kPlayers other than 2: the value of the root for each player. It is the mean of the
  // rollouts of this search, or the value of `outcome` if that is proved. Empty in games of two
  // players: these have the value of moves[0], and for the other player its difference from 1.
  std::vector<double> values;
  // By rank. In a progress report, and for processes that are in `late` or have died, the last
  // statistics that rank 0 knows: those of the begin of the search (0) if the process has not
  // answered since.
  std::vector<Statistics> processes;
  // The processes that had not ended their parts when the search returned (Search::run): the result
  // lacks their last rollouts.
  std::vector<uint32_t> late;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_OPTIONS_H_
