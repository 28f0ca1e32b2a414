// Properties of this machine that determine the speed of data transfers: page sizes, NUMA, limits;
// and the shortfalls with their remedies. cariama-info prints them, together with the devices;
// error texts use them.
//
//   const SystemInfo info = query_system_info();
//   for (const Shortfall& s : find_shortfalls(info)) {
//     printf("%s: %s\n", s.what.c_str(), s.remedy.c_str());
//   }
//
// The values are read from procfs, sysfs and the cgroup file systems: for set-up, never for a data
// path. A value that cannot be read is absent; it is never an error. All functions are thread-safe.
#ifndef CARIAMA_DTUTILS_SYSTEM_INFO_H_
#define CARIAMA_DTUTILS_SYSTEM_INFO_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "dtutils/export.h"

namespace cariama {

// Marks a limit that does not exist.
inline constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// A pool of huge pages, of one NUMA node or (numa_node -1) of the whole machine.
struct HugePagePool {
  int numa_node = -1;
  uint64_t page_bytes = 0;
  uint64_t total = 0;  // pages
  uint64_t free = 0;   // pages
};

// The selected words of /sys/kernel/mm/transparent_hugepage ("madvise", "never", ...); "" if
// absent.
struct TransparentHugePages {
  std::string enabled;
  std::string shmem_enabled;
  std::string defrag;
};

struct NumaNodeInfo {
  int id = 0;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  std::vector<int> cpus;
  std::vector<int> distances;  // to the nodes of SystemInfo::nodes, in their order; 10 is local
};

// Limit of the memory that a process may pin. A process with CAP_IPC_LOCK in the first user
// namespace may pin any amount.
struct MemoryLockLimit {
  uint64_t soft_bytes = 0;
  uint64_t hard_bytes = 0;
  bool may_exceed = false;  // by CAP_IPC_LOCK
};

// Limits of the control groups of this process; each is the tightest of all levels.
struct CgroupLimits {
  int version = 0;   // of the hierarchy that controls memory: 1, 2, or 0 without any
  std::string path;  // of the memory group
  uint64_t memory_bytes = kUnlimited;
  std::optional<double> cpus;  // CPU time per time; empty: no limit
};

struct SystemInfo {
  std::string kernel;        // "6.1.0-18-amd64"
  std::string architecture;  // "x86_64"
  uint64_t page_bytes = 0;   // base page
  uint64_t memory_total_bytes = 0;
  uint64_t memory_available_bytes = 0;
  uint64_t open_files = 0;          // soft limit; each superpage and each connection uses one file
  std::vector<int> cpus;            // CPUs that this process may use
  std::vector<NumaNodeInfo> nodes;  // in ascending order of id; one without NUMA support
  std::vector<HugePagePool> huge_pages;  // machine and nodes, largest pages first
  TransparentHugePages transparent;
  MemoryLockLimit memory_lock;
  CgroupLimits cgroup;
  // Yama's; 0 or absent: processes of this user may access each other's memory.
  std::optional<int> ptrace_scope;
};

// Returns the limit of this process, and whether the calling thread may exceed it. Reads one file.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT MemoryLockLimit query_memory_lock_limit();
// Reads all fields.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT SystemInfo query_system_info();

// A property that costs speed or function, and its remedy.
struct Shortfall {
  std::string name;  // "huge_pages", "memory_lock", ...: stable, for programs
  std::string what;
  std::string remedy;
};

// Returns the shortfalls of a machine. Depends on its argument only.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::vector<Shortfall> find_shortfalls(const SystemInfo& info);

// Returns the bytes of memory that this process may use: the machine's memory, or the cgroup's
// limit if it is smaller.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT uint64_t usable_memory();

// Returns the CPUs on which the calling thread may run (its affinity), ascending. One system call.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::vector<int> usable_cpus();

// Returns the NUMA nodes that have memory, ascending; {0} on machines without NUMA. Reads them
// once.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT const std::vector<int>& numa_nodes();
[[nodiscard]] CARIAMA_DTUTILS_EXPORT bool numa_node_exists(int node);
// Returns "NUMA node 0" or "NUMA nodes 0, 1", for error texts.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string numa_nodes_text();

// Returns the node of the CPU that runs the calling thread now; the scheduler may move an unpinned
// thread at any time. For a node without memory it returns the first node that has memory.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT int numa_node_of_this_thread();

// Returns the node that holds the page of `address`; reads the page if it is not yet present.
// Returns -1 if the kernel does not tell the node.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT int numa_node_of_memory(const void* address);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_SYSTEM_INFO_H_
