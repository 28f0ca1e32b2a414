#include "dsfabric/topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/workers.h"
#include "dsfabric/invocation/ask.h"
#include "dsfabric/peers/peer_table.h"
#include "dtutils/error.h"

namespace cariama {
namespace {

// An attachment: the CPUs that this process's threads are bound to.
class Bindings {
 public:
  explicit Bindings(Fabric& fabric) : cpus_(fabric.threads(), -1) {}
  void set(uint32_t index, int cpu) {
    const std::lock_guard lock(mutex_);
    cpus_[index] = cpu;
  }
  [[nodiscard]] int of(uint32_t index) {
    const std::lock_guard lock(mutex_);
    return cpus_[index];
  }

 private:
  std::mutex mutex_;
  std::vector<int> cpus_;
};

Bindings& bindings_of(Fabric& fabric) { return internal::attachment_of<Bindings>(fabric); }

// {1 if the thread exists, NUMA node, CPU}, as a trivially copyable answer.
using PlaceAnswer = std::array<int, 3>;

PlaceAnswer place_here(Fabric& fabric, uint32_t index) {
  const std::optional<int> node = internal::workers_of(fabric).node_of(index);
  if (!node.has_value()) return {0, -1, -1};
  return {1, *node, bindings_of(fabric).of(index)};
}

absl::Status topology_error(const char* what) {
  return make_error(absl::StatusCode::kInternal, ErrorScope::kProcess, what);
}

// The machine's topology, and the CPUs that the calling thread may use.
struct Machine {
  std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> topology{
      nullptr, hwloc_topology_destroy};
  cpu_set_t allowed;
};
absl::StatusOr<Machine> look_at_machine() {
  Machine machine;
  if (sched_getaffinity(0, sizeof machine.allowed, &machine.allowed) != 0) {
    return make_errno_error(errno, ErrorScope::kProcess, "sched_getaffinity");
  }
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return topology_error("hwloc could not be initialised");
  machine.topology.reset(topology);
  if (hwloc_topology_load(topology) != 0)
    return topology_error("hwloc could not examine the machine");
  return machine;
}

}  // namespace

absl::StatusOr<std::vector<Core>> usable_cores() {
  auto machine = look_at_machine();
  if (!machine.ok()) return machine.status();
  const hwloc_topology_t topology = machine->topology.get();
  const cpu_set_t& allowed = machine->allowed;
  std::vector<Core> cores;
  const int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t core =
        hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, static_cast<unsigned>(i));
    for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0;
         cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
      if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) continue;
      const int node = core->nodeset == nullptr ? -1 : hwloc_bitmap_first(core->nodeset);
      cores.push_back({cpu, node});
      break;  // one hardware thread per core
    }
  }
  if (cores.empty()) return topology_error("hwloc finds no core that this process may use");
  std::stable_sort(cores.begin(), cores.end(),
                   [](const Core& a, const Core& b) { return a.numa_node < b.numa_node; });
  return cores;
}

absl::StatusOr<Neighbourhood> this_neighbourhood() {
  auto machine = look_at_machine();
  if (!machine.ok()) return machine.status();
  const hwloc_topology_t topology = machine->topology.get();
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> cpus(hwloc_bitmap_alloc(),
                                                                           hwloc_bitmap_free);
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &machine->allowed)) hwloc_bitmap_set(cpus.get(), cpu);
  }
  // Returns the index of the object of this type that contains all allowed CPUs, or -1.
  const auto index_of = [&](hwloc_obj_type_t type) {
    for (hwloc_obj_t object = nullptr;
         (object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr;) {
      if (hwloc_bitmap_isincluded(cpus.get(), object->cpuset) != 0) {
        return static_cast<int>(object->logical_index);
      }
    }
    return -1;
  };
  return Neighbourhood{index_of(HWLOC_OBJ_NUMANODE), index_of(HWLOC_OBJ_L3CACHE)};
}

const Core& core_for(const std::vector<Core>& cores, uint32_t local_rank, uint32_t threads,
                     ThreadIndex index) {
  return cores[(uint64_t{local_rank} * threads + index) % cores.size()];
}

const std::string& host_of(Fabric& fabric, Rank rank) {
  return internal::job_of(fabric).host(rank);
}

uint32_t local_rank(const Fabric& fabric) {
  const internal::FabricJob& job = internal::job_of(const_cast<Fabric&>(fabric));
  uint32_t before = 0;
  for (uint32_t rank = 0; rank < fabric.rank(); ++rank) {
    before += job.same_host(rank) || job.host(rank) == job.host(fabric.rank());
  }
  return before;
}

absl::StatusOr<std::unique_ptr<ThreadContext>> init_thread(Fabric& fabric, ThreadIndex index,
                                                           CallConsumer consumer, Binding binding) {
  int bound = -1;
  if (binding != Binding::kNone) {
    auto cores = usable_cores();
    if (!cores.ok()) return cores.status();
    const Core& core = core_for(*cores, local_rank(fabric), fabric.threads(), index);
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const Core& one : *cores) {
      if (one.cpu == core.cpu || (binding == Binding::kNuma && one.numa_node == core.numa_node)) {
        CPU_SET(one.cpu, &set);
      }
    }
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
      return make_errno_error(
          errno, ErrorScope::kProcess,
          "binding worker " + std::to_string(index) + " to CPU " + std::to_string(core.cpu));
    }
    if (binding == Binding::kCore) bound = core.cpu;
  }
  auto context = fabric.init_thread(index, consumer);
  if (context.ok()) bindings_of(fabric).set(index, bound);
  return context;
}

absl::StatusOr<ThreadPlace> where_is(Fabric& fabric, ThreadId thread, Deadline deadline) {
  if (thread >= fabric.total_threads()) {
    return internal::no_such_thread(thread, fabric.total_threads());
  }
  ThreadPlace place;
  place.rank = fabric.rank_of(thread);
  place.index = fabric.index_of(thread);
  place.host = host_of(fabric, place.rank);
  auto question = internal::ask<PlaceAnswer>(
      fabric, place.rank, deadline, nullptr,
      [](ThreadIndex index) { return place_here(*running_fabric(), index); }, place.index);
  auto answer = question.wait(deadline);
  if (!answer.ok()) return answer.status();
  place.numa_node = (*answer)[1];
  place.cpu = (*answer)[2];
  if ((*answer)[0] != 0) return place;
  return make_error(absl::StatusCode::kNotFound, ErrorScope::kOperation,
                    "thread " + std::to_string(thread) +
                        " is not a worker: it has not called init_thread(), or has left");
}

}  // namespace cariama
