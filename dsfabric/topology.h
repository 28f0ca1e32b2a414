// Finds the places of a job's threads (rank, host, NUMA node, core), and binds threads to cores.
//
//   auto self = init_thread(fabric, 0, CallConsumer::kThread, Binding::kCore);
//   absl::StatusOr<ThreadPlace> there = where_is(fabric, 7, deadline);
//
// rank_of(), thread_of() and labels are the Fabric's own (fabric.h).
#ifndef CARIAMA_DSFABRIC_TOPOLOGY_H_
#define CARIAMA_DSFABRIC_TOPOLOGY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dsfabric/binding.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dtutils/wait.h"

namespace cariama {

// A core that this process may use, as hwloc sees it.
struct Core {
  int cpu = -1;  // the operating system's number of its first hardware thread
  int numa_node = -1;
};
// Returns the cores that this process may use (its affinity at the time of the call), grouped by
// NUMA node. Blocks for about 10 ms, while hwloc examines the machine. Error: INTERNAL (hwloc
// fails).
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<std::vector<Core>> usable_cores();

// The NUMA node and the last-level cache within which a thread is bound, as numbers that are valid
// on its host. A number is -1 if the thread may run in several nodes or caches, or if hwloc reports
// none.
struct Neighbourhood {
  int numa_node = -1;
  int core_complex = -1;
};
// Returns the neighbourhood of the calling thread. Blocks and fails as usable_cores().
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<Neighbourhood> this_neighbourhood();

// Returns the entry of `cores` for worker `index` of the process that is the `local_rank`th of its
// host. The workers of a host take the cores in turn, and start again from the first when there are
// more workers than cores. Requires: cores is not empty.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT const Core& core_for(const std::vector<Core>& cores,
                                                           uint32_t local_rank, uint32_t threads,
                                                           ThreadIndex index);

// Returns the number of processes of lower rank on this process's host.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT uint32_t local_rank(const Fabric& fabric);
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT const std::string& host_of(Fabric& fabric, Rank rank);

// Binds the calling thread to a core or NUMA node, then does Fabric::init_thread(): so the thread's
// memory is on its own NUMA node. If a launcher gave each process cores of its own (cariama-run
// --bind), the thread gets one of these. Errors, besides those of Fabric::init_thread: those of
// usable_cores, INTERNAL (the kernel refuses the binding).
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<std::unique_ptr<ThreadContext>> init_thread(
    Fabric& fabric, ThreadIndex index, CallConsumer consumer, Binding binding);

// A thread of the job.
struct ThreadPlace {
  Rank rank;
  ThreadIndex index;
  int numa_node = -1;  // node of its memory, or -1
  int cpu = -1;        // the CPU that it is bound to, or -1
  std::string host;
};
// Returns the place of a thread, as its process reports it. Runs calls while it waits. Errors:
// OUT_OF_RANGE (no such thread), NOT_FOUND (the thread has not called init_thread() yet, or has
// left), UNAVAILABLE, DEADLINE_EXCEEDED.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<ThreadPlace> where_is(Fabric& fabric,
                                                                           ThreadId thread,
                                                                           Deadline deadline);

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_TOPOLOGY_H_
