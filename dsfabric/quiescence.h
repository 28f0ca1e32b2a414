// Whether a job has nothing left to do: every call has been run, and whatever it caused as well.
// The detection of termination, for work on any path.
//
//   TerminationDetector detector(fabric);           // in every process, in the same order
//   call(fabric, 3, [] { ... calls that call ... });
//   detector.wait(deadline_after(60s));             // collective
//
// Work comes in units: a call is one, send-based or one-sided; other layers count theirs (a task)
// and register the counts. A unit is begun by one process for one process, and over there. Only a
// unit that is under way, or a participant before it enters wait(), begins new units.
//
// How, and why it is right (Mattern 1987, the four counters, of which two comparisons are enough).
// Every process has a count of units begun and one of units over, summed over all paths, with two
// rules:
//   (1) a unit is counted as begun before anybody can see it;
//   (2) it is counted as over by the process that ran it, after all units that it caused were
//       begun.
// The participants take part in waves. In a wave each reads its counts, and all learn the sums B
// and F (units begun, units over). Nobody reads for wave k+1 before wave k has ended. wait()
// returns when the F of a wave equals the B of the next.
// Never early. Let T be a moment between the two waves; everybody has entered wait(). Counts only
// grow. All reads of F came before T, and all reads of B after it. So F <= over(T) <= begun(T) <=
// B; the one in the middle holds because of (1): what is over has begun. F = B makes all of them
// equal: at T no unit was under way. Since only units begin units now, none has been since.
// Always ends. If no unit is under way any more, counts stand still: the first wave that begins
// after that reads F = over = begun, and the next one B = begun.
// The messages of the waves are calls themselves; they are taken off the counts in an order that
// can only make B larger and F smaller, and by nothing when all is quiet (control_traffic.h).
//
// Deaths, if the fabric goes on without the dead. Units to and from a dead process are not counted
// any more; two waves are only compared if in both of them all participants knew of the same
// deaths, and those were left out. So what a dead process has asked for, and is only being run now,
// is not waited for.
//
// Cost. A wave is an all_reduce of 32 bytes: 2 ceil(log2 P) steps, 2 (P - 1) messages. A quiet job
// takes two. A busy one takes 8 at once, then pauses, up to 10 ms, between them.
#ifndef CARIAMA_DSFABRIC_QUIESCENCE_H_
#define CARIAMA_DSFABRIC_QUIESCENCE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/collectives.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dtutils/wait.h"

namespace cariama {

// The units of one path, as this process counts them. Called by any thread, at any time. Both
// counts only grow, and keep rules (1) and (2); read them with memory order seq_cst or acquire,
// count with release.
class CARIAMA_DSFABRIC_EXPORT WorkCounter {
 public:
  virtual ~WorkCounter() = default;
  // Units for process `rank` that were begun here.
  [[nodiscard]] virtual uint64_t begun(uint32_t rank) const = 0;
  // Units from process `rank` that are over here. One that could not be sent is over here, as if it
  // came from the process that it was for.
  [[nodiscard]] virtual uint64_t over(uint32_t rank) const = 0;
};

// Makes the detectors of a fabric count a path, for as long as it lives. Make it before the first
// unit is begun, in every process; end it when no detector waits.
class CARIAMA_DSFABRIC_EXPORT WorkRegistration {
 public:
  // Both must outlive it.
  WorkRegistration(Fabric& fabric, const WorkCounter& counter);
  ~WorkRegistration();
  WorkRegistration(const WorkRegistration&) = delete;
  WorkRegistration& operator=(const WorkRegistration&) = delete;

 private:
  Fabric& fabric_;
  const WorkCounter& counter_;
};

// The comparison of waves: for every participant of a detection, with the sums of each wave in
// order.
class WaveComparison {
 public:
  // True: at the moment between the wave before and this one, no unit was under way. `setting`
  // stands for what has to be the same in both: who is counted.
  [[nodiscard]] bool ended(uint64_t begun, uint64_t over, uint64_t setting) {
    const bool quiet = over_before_.has_value() && *over_before_ == begun && setting == setting_;
    over_before_ = over;
    setting_ = setting;
    return quiet;
  }
  void reset() { over_before_.reset(); }

 private:
  std::optional<uint64_t> over_before_;
  uint64_t setting_ = 0;
};

class CARIAMA_DSFABRIC_EXPORT TerminationDetector {
 public:
  // As Collectives: sends nothing, is matched by the order of creation.
  explicit TerminationDetector(Fabric& fabric, const CollectiveOptions& options = {});
  TerminationDetector(const TerminationDetector&) = delete;
  TerminationDetector& operator=(const TerminationDetector&) = delete;

  // Waits until the job has nothing left to do; all participants call it, and begin nothing by
  // themselves until it has returned. Runs calls meanwhile; other threads that have calls must run
  // them. Errors: as Collectives. After DEADLINE_EXCEEDED the promise still holds: call it again.
  // (Units under way that never end look like this.)
  [[nodiscard]] absl::Status wait(Deadline deadline);

  // Waves that this process has taken part in.
  [[nodiscard]] uint64_t waves() const { return collectives_.statistics().operations; }

 private:
  Collectives collectives_;
  std::vector<WaveComparison> comparisons_;  // of each member in this process
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_QUIESCENCE_H_
