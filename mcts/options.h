// What can be chosen about a search, and what it says about itself.
#ifndef CARIAMA_MCTS_OPTIONS_H_
#define CARIAMA_MCTS_OPTIONS_H_

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "mcts/game.h"
#include "mcts/node.h"
#include "mcts/selection.h"

namespace cariama::mcts {

// In which process a new node is made.
enum class Placement : uint8_t {
  kLocality,  // where its parent is, but for children of large nodes: by chance
  kHash,      // by the position's key(); by chance in games without
  kRandom,    // by chance, as in the paper
};
// "locality", "hash", "random".
[[nodiscard]] constexpr std::string_view placement_name(Placement placement) {
  return placement == Placement::kLocality ? "locality"
         : placement == Placement::kHash   ? "hash"
                                           : "random";
}

// The paper's own design (Seriema §5.3; paper_search.h).
struct PaperOptions {
  float exploration = 1.0F;             // C of UCB
  uint32_t playouts = 16;               // per leaf
  uint32_t rollouts_per_thread = 4096;  // of a phase
  // Threads act for each other within a process; only calls to other processes are made.
  bool only_remote = false;
};

// Equal in all processes: the search of rank 0 brings them along.
struct SearchOptions {
  SelectionOptions selection{};
  // A move gets a node of its own when it has been tried so often. A node costs about 4 KB on
  // 11x11, and is worth it only if it is visited again.
  uint32_t expand_visits = 8;
  // When refine() is asked, if the game has it: first, and again for more.
  uint32_t refine_visits = 32;
  uint32_t refine_again_visits = 4096;
  uint32_t playouts_per_leaf = 1;
  Placement placement = Placement::kLocality;
  // Rollouts that one message asks another process for: visits / batch_divisor, at most max_batch,
  // so that what is not known yet stays small beside what is.
  uint32_t max_batch = 64;
  uint32_t batch_divisor = 16;
  // Placement::kLocality: subtrees stay together up to this size, in units of what a move has when
  // it gets a node. Small enough that every process gets its part of what is searched, large enough
  // for a batch.
  uint32_t spread_expansions = 4;
  // Visits of a move from which on a process wants a copy of its child, if that is elsewhere
  // (mirror.h); and a copy and its owner tell each other what they counted after visits /
  // exchange_divisor of its own (at least 8, at most 1024): the copy lags behind by so much.
  uint32_t mirror_visits = 256;
  uint32_t exchange_divisor = 32;
  // A process that was asked for visits / queue_share by the root's (at least queue_target, at most
  // queue_limit, per thread) gets no more from it for a while.
  uint32_t queue_target = 32;
  uint32_t queue_limit = 1024;
  uint32_t queue_share = 64;
  uint64_t memory_bytes = uint64_t{1} << 30;  // for nodes, per process
  uint64_t seed = 1;
  bool reuse_tree = true;
  // Positions with equal key() get one node: in the whole tree with Placement::kHash, else within
  // each process (transpositions.h). Off: a node that is made costs a look-up more, which is not
  // always won back.
  bool transpositions = false;
  // With a time limit: ends when no other move can catch up with the best one.
  bool stop_when_safe = true;

  PaperOptions paper{};

  // The defaults for a game: with AMAF statistics these take the place of exploration.
  template <Game G>
  [[nodiscard]] static SearchOptions of() {
    SearchOptions options;
    if constexpr (HasAmaf<G>) {
      options.selection.exploration = 0;
      options.selection.amaf_equivalence = 500;
      options.selection.first_play = 0.5F;
    }
    return options;
  }
};
static_assert(std::is_trivially_copyable_v<SearchOptions>);

// The search ends at the first of these, or when the root is proved.
struct SearchLimits {
  double seconds = 0;       // 0: no limit
  uint64_t iterations = 0;  // 0: no limit
};

// What one process did in a search. Counts.
struct Statistics {
  uint64_t visits = 0;               // rollouts begun here, also on behalf of other processes
  uint64_t completions = 0;          // of these, ended here with a value
  uint64_t handed_over = 0;          // of these, gone on in another process
  uint64_t cancelled = 0;            // of these, given up: stopped, or lost with a process
  uint64_t playouts = 0;             //
  uint64_t nodes_made = 0;           // here
  uint64_t nodes_made_remotely = 0;  // of these, for a parent in another process
  uint64_t transpositions = 0;       // moves that lead to a node that another one had led to
  uint64_t remote_selections = 0;    // messages that asked another process for rollouts
  uint64_t deferred_selections = 0;  // of visits: begun again later, since the child was being
                                     // created, or its owner had too much to do
  uint64_t messages = 0;             // calls sent
  uint64_t bytes = 0;                // of their arguments
  uint64_t channels = 0;             // of worker 0 to other threads, used since it began
  uint64_t channels_behind = 0;      // of these, that ever held back more than a chunk
  uint64_t collections = 0;          // of cold subtrees
  uint64_t nodes = 0;                // in the tree now
  uint64_t node_bytes = 0;           // of these
  double idle_seconds = 0;           // of threads that found nothing to do
  double cpu_seconds = 0;            // processor time of the process since the search began
};
static_assert(std::is_trivially_copyable_v<Statistics>);

// What is known of a move of the root, as seen by its player.
template <typename Move>
struct MoveResult {
  Move move{};
  uint64_t visits = 0;
  double value = 0.5;  // 0 .. 1
  double prior = 0;
  Verdict verdict = Verdict::kOpen;
  std::vector<Move> line;  // what is expected to follow, this move first; within this process
};

template <typename Move>
struct SearchResult {
  int player = 0;           // to move at the root
  uint64_t iterations = 0;  // rollouts of this search that are over
  double seconds = 0;
  Outcome outcome = Outcome::kOpen;     // of the root
  std::vector<MoveResult<Move>> moves;  // the best one first; never empty
  std::vector<Statistics> processes;    // by rank; only at the end of a search
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_OPTIONS_H_
