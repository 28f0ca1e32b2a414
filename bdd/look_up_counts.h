// Counters of the look-ups of nodes in the table of a job.
#ifndef CARIAMA_BDD_LOOK_UP_COUNTS_H_
#define CARIAMA_BDD_LOOK_UP_COUNTS_H_

#include <cstdint>

namespace cariama::bdd {

// The look-ups of one process.
struct LookUpCounts {
  // Find-or-puts of nodes in the parts of other processes, mapped or not. Those that a cache of
  // nodes answers do not count.
  uint64_t remote_find_or_puts = 0;
  // Sum of the round trips of all look-ups of this process. Look-ups that were in flight at the
  // same time are counted one by one.
  uint64_t round_trips = 0;
  uint64_t owner_look_ups = 0;  // look-ups in calls to the owners of the nodes
  uint64_t owner_calls = 0;     // the calls that carried them

  LookUpCounts& operator+=(const LookUpCounts& other) {
    remote_find_or_puts += other.remote_find_or_puts;
    round_trips += other.round_trips;
    owner_look_ups += other.owner_look_ups;
    owner_calls += other.owner_calls;
    return *this;
  }
};

}  // namespace cariama::bdd

#endif  // CARIAMA_BDD_LOOK_UP_COUNTS_H_
