// What this machine offers to a program that moves data: page sizes, NUMA, limits; and what falls
// short, with the remedy. cariama-info prints it, besides the devices; error texts draw on it.
//
//   const SystemInfo info = query_system_info();
//   for (const Shortfall& s : find_shortfalls(info)) printf("%s: %s\n", s.what.c_str(),
//   s.remedy.c_str());
//
// Everything is read from procfs, sysfs and the cgroup file systems: for set-up, never for a data
// path. What cannot be read is absent, never an error. All functions are thread-safe.
#ifndef CARIAMA_DTUTILS_SYSTEM_INFO_H_
#define CARIAMA_DTUTILS_SYSTEM_INFO_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "dtutils/export.h"

namespace cariama {

// In limits: there is none.
inline constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// A pool of huge pages, of one NUMA node or (numa_node -1) of the whole machine.
struct HugePagePool {
  int numa_node = -1;
  uint64_t page_bytes = 0;
  uint64_t total = 0;  // pages
  uint64_t free = 0;   // pages
};

// The chosen words of /sys/kernel/mm/transparent_hugepage ("madvise", "never", ...); "" if absent.
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

// How much memory a process may pin. A process with CAP_IPC_LOCK may pin everything.
struct MemoryLockLimit {
  uint64_t soft_bytes = 0;
  uint64_t hard_bytes = 0;
  bool may_exceed = false;  // CAP_IPC_LOCK
};

// What the control groups of this process allow, the tightest of all levels.
struct CgroupLimits {
  int version = 0;   // of the hierarchy that controls memory: 1, 2, or 0 without any
  std::string path;  // of the memory group
  uint64_t memory_bytes = kUnlimited;
  std::optional<double> cpus;  // CPU time per time; nothing: not limited
};

struct SystemInfo {
  std::string kernel;        // "6.1.0-18-amd64"
  std::string architecture;  // "x86_64"
  uint64_t page_bytes = 0;   // base page
  uint64_t memory_total_bytes = 0;
  uint64_t memory_available_bytes = 0;
  uint64_t open_files = 0;               // soft limit; one is used per superpage and per connection
  std::vector<int> cpus;                 // that this process may use
  std::vector<NumaNodeInfo> nodes;       // in ascending order of id; one without NUMA support
  std::vector<HugePagePool> huge_pages;  // machine and nodes, largest pages first
  TransparentHugePages transparent;
  MemoryLockLimit memory_lock;
  CgroupLimits cgroup;
  std::optional<int> ptrace_scope;  // of Yama; 0 or nothing: peers of this user are reachable
};

// Reads all of it. `root` replaces "/" in front of proc and sys, for tests; what is asked of the
// kernel by call (page size, limits, affinity) is asked of the real one.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT SystemInfo query_system_info(const std::string& root = "/");

// Something that costs speed or function, and what to do about it.
struct Shortfall {
  std::string name;  // "huge_pages", "memory_lock", ...: stable, for programs
  std::string what;
  std::string remedy;
};

// The shortfalls of a machine. Pure: depends on its argument alone.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::vector<Shortfall> find_shortfalls(const SystemInfo& info);

// Bytes that this process may use at all: the machine's memory, or the cgroup's limit when it is
// less.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT uint64_t usable_memory();

// NUMA nodes that have memory, ascending; {0} on machines without NUMA. Read once.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT const std::vector<int>& numa_nodes();
[[nodiscard]] CARIAMA_DTUTILS_EXPORT bool numa_node_exists(int node);
// "NUMA node 0", "NUMA nodes 0, 1", for error texts.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string numa_nodes_text();

// The node of the CPU that runs the calling thread now; the scheduler may move an unpinned thread
// at any time. A node without memory counts as the first that has some.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT int numa_node_of_this_thread();

// The node that holds the page of `address`; touches it if need be. -1 if the kernel does not tell.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT int numa_node_of_memory(const void* address);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_SYSTEM_INFO_H_
