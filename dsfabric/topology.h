// Where the threads of a job are: rank, host, NUMA node, core; and binding them to cores.
//
//   auto self = init_thread(fabric, 0, CallConsumer::kThread, Binding::kCore);
//   absl::StatusOr<ThreadPlace> there = where_is(fabric, 7, deadline);
//
// rank_of(), global ids and labels are the Fabric's own (fabric.h).
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
// The cores that this process may use (its affinity when it is asked), those of one NUMA node
// together. Blocks for the time that hwloc looks at the machine, some 10 ms. Error: INTERNAL (hwloc
// refuses).
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<std::vector<Core>> usable_cores();

// What the calling thread shares with others of its host: numbers that are equal for threads that
// are bound within the same NUMA node, or the same last-level cache; -1 where it may run in
// several, or hwloc knows none. Blocks and fails as usable_cores().
struct Neighbourhood {
  int numa_node = -1;
  int core_complex = -1;
};
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<Neighbourhood> this_neighbourhood();

// Which of `cores` worker `index` of a process gets that is the `local_rank`th of its host: the
// workers of a host take them in turn, and begin again when there are no more. Precondition: cores
// is not empty.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT const Core& core_for(const std::vector<Core>& cores,
                                                           uint32_t local_rank, uint32_t threads,
                                                           uint32_t index);

// How many processes of lower rank are on this process's host.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT uint32_t local_rank(const Fabric& fabric);
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT const std::string& host_of(Fabric& fabric, uint32_t rank);

// Fabric::init_thread, of a thread that is bound first: its memory is then that of its own NUMA
// node. A launcher that gave each process cores of its own (cariama-run --bind) is respected: the
// thread gets one of these. Errors, besides: those of usable_cores, INTERNAL (the kernel refuses).
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<std::unique_ptr<ThreadContext>> init_thread(
    Fabric& fabric, uint32_t index, CallConsumer consumer, Binding binding);

// A thread of the job.
struct ThreadPlace {
  uint32_t rank = 0;
  uint32_t index = 0;  // within its process
  int numa_node = -1;  // where its memory is, or -1
  int cpu = -1;        // that it is bound to, or -1
  std::string host;
};
// Asks its process. Runs calls meanwhile. Errors: OUT_OF_RANGE (no such thread), NOT_FOUND (it has
// not come yet, or has left), UNAVAILABLE, DEADLINE_EXCEEDED.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<ThreadPlace> where_is(Fabric& fabric,
                                                                           uint32_t thread,
                                                                           Deadline deadline);

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_TOPOLOGY_H_
