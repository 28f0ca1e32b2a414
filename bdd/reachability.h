// reach(): all states that a model reaches from its initial states, or the first that meet a goal.
//
//   Model model = load_model(manager, *read_model_file("anderson.4.bdd"));
//   absl::StatusOr<ReachResult> result = reach(model, {.strategy = Strategy::kSaturation});
//   std::puts(result->states.to_string().c_str());          // 29641
//
// In a job, every process calls reach() with an equal model and equal options; every process gets
// the result.
#ifndef CARIAMA_BDD_REACHABILITY_H_
#define CARIAMA_BDD_REACHABILITY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bdd/bdd.h"
#include "bdd/exact_count.h"
#include "bdd/export.h"
#include "bdd/model_file.h"

namespace cariama::bdd {

// The order in which transitions are applied.
//   kBfs         a level is the set of successors of the states that the previous level has added.
//                A complete search takes d + 1 levels, where d is the greatest distance of a state
//                from the initial states; the last level adds no state. A goal at distance k is
//                found at level k.
//   kChaining    in a level, each transition is applied to the states that the previous level has
//                added, and to those that the transitions before it have added. Fewer levels than
//                kBfs.
//   kSaturation  transitions that change variables near the leaves first, until they add nothing. A
//                level is the fixed point with the next group of transitions. Usually the fastest.
enum class Strategy : uint8_t { kBfs, kChaining, kSaturation };
[[nodiscard]] CARIAMA_BDD_EXPORT std::string_view strategy_name(Strategy strategy);

// The state of a search after a level.
struct ReachProgress {
  uint64_t level = 0;
  ExactCount states;       // reached so far
  uint64_t nodes = 0;      // of the set of these states
  uint64_t new_nodes = 0;  // of the set of the states that the level has added; 0 with kSaturation
  double seconds = 0;      // since the start, without the time for reports
};

struct ReachOptions {
  Strategy strategy = Strategy::kSaturation;
  // Stop at the first level that reaches a state of this set, and compute a trace to it.
  std::optional<Bdd> goal{};
  // Compute the reached states without successor, and a trace to one of them. Not done if the goal
  // is reached.
  bool deadlocks = false;
  // Called after each level, in every process of a job. In a job it must not throw.
  std::function<void(const ReachProgress&)> progress{};
  // Folder for checkpoints; "": none. After a level, if rank 0 measures that checkpoint_seconds
  // have passed since the last one, it replaces the checkpoint of the folder. reach() continues
  // from a checkpoint of the same model and strategy that it finds there. The last checkpoint is
  // that of the result. All processes of a job must see the same folder. Only one search at a time
  // can use a folder: a search locks the file reach.lock there until the search or its process
  // ends.
  std::string checkpoint{};
  double checkpoint_seconds = 5;
  // Stop after this number of levels (Strategy), those of a checkpoint that the search continues
  // included; 0: no limit. ReachResult::complete tells whether all states were reached by then. The
  // last checkpoint is that of the result, so a search with a higher limit continues from it.
  uint64_t max_levels = 0;
};

// One step of a trace: the group of transitions, and the state after it.
struct TraceStep {
  std::optional<size_t> group;   // nullopt: an initial state
  std::vector<uint64_t> values;  // of the integers of the state
};

struct ReachResult {
  Bdd reached;
  ExactCount states;
  uint64_t nodes = 0;
  uint64_t levels = 0;       // levels of this run and of the run whose checkpoint it continued
  uint64_t first_level = 0;  // level of that checkpoint; 0 without one
  double seconds = 0;        // search alone: without reports, checkpoints and traces
  bool complete = false;     // all reachable states are reached
  bool goal_reached = false;
  std::optional<Bdd> deadlocks{};
  // The trace to the goal, or to a deadlock: a shortest trace within the reached states. With kBfs
  // and a goal, it is a shortest trace of the model. Another strategy may not have reached the
  // states of a shorter trace.
  std::vector<TraceStep> trace;
  // The progress of each level of this run. Empty without options.progress: each entry takes a
  // count of the states.
  std::vector<ReachProgress> history;
};

// Blocks until the search has ended. Throws as the operations of the manager (bdd.h). Errors, which
// all processes of a job get: INVALID_ARGUMENT (the parts of the model do not fit together; the
// goal depends on variables that are no state bits; a checkpoint that is damaged, or of another
// model or strategy), FAILED_PRECONDITION (the processes see different checkpoints), those of
// read_file() and write_file() (files.h) for a checkpoint, UNAVAILABLE (another process had such an
// error; another search uses the folder of the checkpoint).
[[nodiscard]] CARIAMA_BDD_EXPORT absl::StatusOr<ReachResult> reach(const Model& model,
                                                                   const ReachOptions& options);

// Returns a shortest trace of the model within the states `within` from an initial state to a state
// of `goal`, an initial state first. Empty if there is none. Throws as the operations of the
// manager; std::invalid_argument if a set depends on variables that are no state bits, or if the
// model has no variables.
[[nodiscard]] CARIAMA_BDD_EXPORT std::vector<TraceStep> find_trace(const Model& model,
                                                                   const Bdd& within,
                                                                   const Bdd& goal);

// Returns the states of `states` that have no successor. Throws as the operations of the manager;
// std::invalid_argument if the model has no variables.
[[nodiscard]] CARIAMA_BDD_EXPORT Bdd find_deadlocks(const Model& model, const Bdd& states);

// Returns the placements of n queens on a board of n x n squares such that none attacks another.
// Variable i n + j: a queen in row i and column j. Throws as the operations of the manager;
// std::invalid_argument unless n is 1 to 96.
[[nodiscard]] CARIAMA_BDD_EXPORT Bdd queens(Manager& manager, uint32_t n);

// Returns a picture of states and nodes per level over time, in SVG.
[[nodiscard]] CARIAMA_BDD_EXPORT std::string progress_svg(
    const std::string& title, const std::vector<ReachProgress>& history);

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_REACHABILITY_H_
