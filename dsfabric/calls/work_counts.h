// The counts that the two users of termination detection share (quiescence.h has the algorithm, its
// proof, and WaveComparison). The waves of TerminationDetector are collectives. Those of
// Fabric::finalize() are rounds over the bootstrap's store, since they must also work between
// processes that never connected.
#ifndef CARIAMA_DSFABRIC_CALLS_WORK_COUNTS_H_
#define CARIAMA_DSFABRIC_CALLS_WORK_COUNTS_H_

#include <cstdint>
#include <vector>

#include "dsfabric/calls/call_counts.h"
#include "dsfabric/calls/call_sources.h"
#include "dsfabric/calls/control_traffic.h"
#include "dtutils/random.h"

namespace cariama::internal {

struct WorkCounts {
  // Adds the calls to and from `rank`, on all paths; with `control`, without the control calls.
  void add_calls(uint32_t rank, const CallCounts& counts, const CallSources& sources,
                 const ControlTraffic* control) {
    // ControlTraffic explains the order of these reads.
    const uint64_t control_begun = control == nullptr ? 0 : control->begun_to(rank);
    begun += counts.begun(rank) + sources.begun(rank) - control_begun;
    const uint64_t calls_ended = counts.ended(rank) + sources.ended(rank);
    ended += calls_ended - (control == nullptr ? 0 : control->ended_from(rank));
  }

  uint64_t begun = 0;
  uint64_t ended = 0;
};

// Returns a number for a set of ranks: equal sets have equal numbers, in each order of their
// elements. Different sets have different numbers except with a negligible probability.
template <typename Ranks>
[[nodiscard]] uint64_t number_of(const Ranks& ranks) {
  uint64_t sum = 0;
  for (const uint32_t rank : ranks) sum += Random::mix((uint64_t{rank} + 1) * Random::kStep);
  return sum;
}

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_WORK_COUNTS_H_
