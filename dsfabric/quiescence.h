// Termination detection: determines whether a job has no work left. That is, every call has run,
// and every call and task that it caused. Covers work on all paths.
//
//   TerminationDetector detector(fabric);           // in every process, in the same order
//   call(fabric, 3, [] { ... calls that call ... });
//   detector.wait(deadline_after(60s));             // collective
//
// Work is counted in units. A call is one unit, whether send-based or one-sided. Other layers count
// their own units (a task, for example), and register their counters. A unit is begun by one
// process for one process, and ends in the latter. New units are begun only by a unit that has not
// ended, or by a participant before it enters wait(). A call in the batch of an aggregator was
// begun: flush() before wait(), or wait() does not end.
//
// Algorithm and proof (Mattern 1987, the four-counter method, of which two comparisons suffice).
// Every process counts the units begun and the units ended, summed over all paths, with two rules:
//   (1) a unit is counted as begun before any process can receive it;
//   (2) the process that ran a unit counts it as ended after all units that it caused were begun.
// The participants execute waves. In a wave each participant reads its counts, and all get the sums
// B and F (units begun, units ended). No participant reads for wave k+1 before wave k has ended.
// wait() returns when the F of a wave equals the B of the next.
//
// Safety. Let T be a moment between the two waves; every participant has entered wait(). Counts
// only grow. All reads of F came before T, and all reads of B after it. So F <= ended(T) <=
// begun(T) <= B; the inequality in the middle holds because of (1): a unit that has ended was
// begun. F = B makes all four equal: at T every unit begun had ended. From T on only units can
// begin units, so no unit was begun after T.
//
// Termination. Once every unit has ended, the counts no longer change. The first wave that begins
// after that reads F = ended = begun, and the next wave reads B = begun.
//
// Fabric::finalize() detects the end of a job by the same waves, over the bootstrap's store
// (fabric/shutdown.h). mcts detects the end of a search's one-way calls by them, over its commands
// (mcts/engine/command.h). The detectors of the task pool that the papers describe, status cells
// and root exit, are variants (tasks/pool.h).
//
// The messages of the waves are calls themselves. They are subtracted from the counts in an order
// that can only make B larger and F smaller; when no message is in flight, the subtraction is exact
// (control_traffic.h).
//
// Process failures. wait() ends with UNAVAILABLE, unless CollectiveOptions::leave_out_dead is set:
// then the job continues without the failed processes. Units to and from a dead
// process are not counted any more. Two waves are compared only if in both of them all participants
// had detected the same deaths, and the collectives had left out the same processes. As a
// consequence, wait() may return while a call that a dead process had sent is still running.
//
// Cost. A wave is an all_reduce of 32 bytes: 2 ceil(log2 P) steps, 2 (P - 1) messages. For a wave a
// process reads its counts for each process of the job; counts that do not exist take no memory. A
// quiet job takes two waves. A busy job executes 8 waves immediately, then pauses, up to 10 ms,
// between waves.
#ifndef CARIAMA_DSFABRIC_QUIESCENCE_H_
#define CARIAMA_DSFABRIC_QUIESCENCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/collectives.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dtutils/wait.h"

namespace cariama {

// The units of one path, as this process counts them. Thread-safe: called by any thread, at any
// time. Both counts only grow and follow rules (1) and (2). Read them with memory order seq_cst or
// acquire, and increment them with release.
class CARIAMA_DSFABRIC_EXPORT WorkCounter {
 public:
  virtual ~WorkCounter() = default;
  // Returns the number of units that were begun here for process `rank`.
  [[nodiscard]] virtual uint64_t begun(Rank rank) const = 0;
  // Returns the number of units from process `rank` that have ended here. A unit for process `rank`
  // that could not be sent is also counted here as ended.
  [[nodiscard]] virtual uint64_t ended(Rank rank) const = 0;
};

// Adds a counter to the termination detectors of a fabric, for the lifetime of this object. Create
// it in every process, before the first unit is begun. Destroy it when no detector is waiting.
class CARIAMA_DSFABRIC_EXPORT WorkRegistration {
 public:
  // Requires: `fabric` and `counter` outlive this object.
  WorkRegistration(Fabric& fabric, const WorkCounter& counter);
  ~WorkRegistration();
  WorkRegistration(const WorkRegistration&) = delete;
  WorkRegistration& operator=(const WorkRegistration&) = delete;

 private:
  Fabric& fabric_;
  const WorkCounter& counter_;
};

// The comparison of successive waves, for one participant. Every participant passes the sums of
// each wave in order.
class WaveComparison {
 public:
  // Returns true if every begun unit had ended at the moment between the previous wave and this
  // one. `setting` identifies the set of failed processes, which must be equal in both waves.
  [[nodiscard]] bool ended(uint64_t begun, uint64_t ended, uint64_t setting) {
    const bool quiet = has_previous_ && ended_before_ == begun && setting == setting_;
    has_previous_ = true;
    ended_before_ = ended;
    setting_ = setting;
    return quiet;
  }
  void reset() { has_previous_ = false; }

 private:
  bool has_previous_ = false;
  uint64_t ended_before_ = 0;
  uint64_t setting_ = 0;
};

class CARIAMA_DSFABRIC_EXPORT TerminationDetector {
 public:
  // Sends nothing. As for Collectives, objects of different processes are matched by creation
  // order: every process creates the same objects in the same order.
  explicit TerminationDetector(Fabric& fabric, const CollectiveOptions& options = {});
  TerminationDetector(const TerminationDetector&) = delete;
  TerminationDetector& operator=(const TerminationDetector&) = delete;

  // Blocks until the job has no work left. All participants call wait(), and begin no units outside
  // of calls until it has returned. Runs calls meanwhile. The threads that do not call wait() must
  // run their calls. Errors: as Collectives. After DEADLINE_EXCEEDED the operation is still in
  // progress: call it again. (A unit that never ends causes this error.)
  [[nodiscard]] absl::Status wait(Deadline deadline);

  // Returns the number of waves that this process has taken part in.
  [[nodiscard]] uint64_t waves() const { return collectives_.statistics().operations; }

 private:
  Collectives collectives_;
  std::vector<WaveComparison> comparisons_;  // one for each participant in this process
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_QUIESCENCE_H_
