#include "dtutils/system_info.h"

#include <linux/capability.h>
#include <numaif.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/huge_pages.h"
#include "dtutils/internal/sysfs.h"
#include "dtutils/internal/system_info_below.h"

namespace cariama {
namespace {

using internal::format_bytes;
using internal::read_meminfo;
using internal::read_number;
using internal::read_text;

constexpr const char* kNodeFolder = "/sys/devices/system/node";
constexpr const char* kThpFolder = "/sys/kernel/mm/transparent_hugepage";

// Returns the names of the entries of a folder; empty if it cannot be read.
std::vector<std::string> list_folder(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

void append_pools(const std::string& folder, int numa_node, std::vector<HugePagePool>& pools) {
  static constexpr std::string_view kPrefix = "hugepages-";
  for (const std::string& name : list_folder(folder)) {
    if (name.compare(0, kPrefix.size(), kPrefix) != 0) continue;
    uint64_t kilobytes = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), kilobytes);
    if (kilobytes == 0) continue;
    const std::string pool = folder + "/" + name + "/";
    pools.push_back({numa_node, kilobytes * 1024, read_number(pool + "nr_hugepages").value_or(0),
                     read_number(pool + "free_hugepages").value_or(0)});
  }
}

// One line of /proc/self/mountinfo that mounts a control group hierarchy.
struct CgroupMount {
  std::string point;
  bool version2 = false;
  std::vector<std::string> controllers;  // of version 1
};

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::vector<CgroupMount> cgroup_mounts(const std::string& root) {
  std::vector<CgroupMount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  std::string line;
  while (std::getline(file, line)) {
    // "31 30 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory", see proc(5).
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> left = split(std::string_view(line).substr(0, dash), ' ');
    const std::vector<std::string> right = split(std::string_view(line).substr(dash + 3), ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    if (right[0] == "cgroup2") mounts.push_back({left[4], true, {}});
    if (right[0] == "cgroup") mounts.push_back({left[4], false, split(right[2], ',')});
  }
  return mounts;
}

// The folders whose limits apply to this process for one controller: its group and all groups above
// it, up to the mount point. In a container the path may be the host's, which is not mounted; then
// the mount point is the group.
struct CgroupFolders {
  int version = 0;
  std::string path;
  std::vector<std::string> folders;
};

CgroupFolders find_cgroup(const std::string& root, const std::string& controller) {
  std::string path1;
  std::string path2;
  std::istringstream own(read_text(root + "/proc/self/cgroup").value_or(""));
  std::string line;
  while (std::getline(own, line)) {
    // "4:memory:/a/b" in version 1, "0::/a/b" in version 2.
    const std::vector<std::string> fields = split(line, ':');
    if (fields.size() < 3 || fields[2].empty() || fields[2][0] != '/') continue;
    if (fields[0] == "0" && fields[1].empty()) path2 = fields[2];
    const std::vector<std::string> controllers = split(fields[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      path1 = fields[2];
    }
  }
  CgroupFolders result;
  for (const CgroupMount& mount : cgroup_mounts(root)) {
    const bool controls = std::find(mount.controllers.begin(), mount.controllers.end(),
                                    controller) != mount.controllers.end();
    const std::string& path = mount.version2 ? path2 : path1;
    if (path.empty() || (!mount.version2 && !controls)) continue;
    // A controller of a version 1 hierarchy is not available in version 2.
    if (mount.version2 && !path1.empty()) continue;
    result = {mount.version2 ? 2 : 1, path, {}};
    const std::string base = root + mount.point;
    for (std::string group = path; group.size() > 1; group.resize(group.rfind('/'))) {
      std::error_code ignored;
      if (std::filesystem::is_directory(base + group, ignored)) {
        result.folders.push_back(base + group);
      }
    }
    result.folders.push_back(base);
    return result;
  }
  return result;
}

CgroupLimits query_cgroup(const std::string& root) {
  CgroupLimits limits;
  const CgroupFolders memory = find_cgroup(root, "memory");
  limits.version = memory.version;
  limits.path = memory.path;
  for (const std::string& folder : memory.folders) {
    // "max" in version 2 is not a number. Version 1 writes "no limit" as a huge multiple of a page.
    const std::optional<uint64_t> bytes =
        read_number(folder + (memory.version == 2 ? "/memory.max" : "/memory.limit_in_bytes"));
    if (bytes && *bytes < (uint64_t{1} << 62)) {
      limits.memory_bytes = std::min(limits.memory_bytes, *bytes);
    }
  }
  const CgroupFolders cpu = find_cgroup(root, "cpu");
  for (const std::string& folder : cpu.folders) {
    // Version 2 has "QUOTA PERIOD" with QUOTA "max" for no limit, version 1 has two files with -1
    // for no limit.
    const std::string text =
        cpu.version == 2 ? read_text(folder + "/cpu.max").value_or("")
                         : absl::StrCat(read_text(folder + "/cpu.cfs_quota_us").value_or(""), " ",
                                        read_text(folder + "/cpu.cfs_period_us").value_or(""));
    std::istringstream numbers(text);
    double quota = 0;
    double period = 0;
    if (!(numbers >> quota >> period) || quota <= 0 || period <= 0) continue;
    limits.cpus = std::min(limits.cpus.value_or(quota / period), quota / period);
  }
  return limits;
}

MemoryLockLimit query_memory_lock(const std::string& root) {
  MemoryLockLimit result;
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    result.soft_bytes = limit.rlim_cur == RLIM_INFINITY ? kUnlimited : limit.rlim_cur;
    result.hard_bytes = limit.rlim_max == RLIM_INFINITY ? kUnlimited : limit.rlim_max;
  }
  std::ifstream status(root + "/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    unsigned long long capabilities = 0;
    if (std::sscanf(line.c_str(), "CapEff: %llx", &capabilities) == 1) {
      result.may_exceed = (capabilities >> CAP_IPC_LOCK & 1) != 0;
    }
  }
  if (root.empty() && !status.is_open()) {  // no descriptor is left
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
    result.may_exceed = syscall(SYS_capget, &header, sets.data()) == 0 &&
                        (sets[0].effective >> CAP_IPC_LOCK & 1) != 0;
  }
  // Of other user namespaces than the first, the kernel ignores the capability. The first one maps
  // all ids to themselves.
  uint64_t inside = 0;
  uint64_t outside = 0;
  uint64_t count = UINT32_MAX;
  std::ifstream(root + "/proc/self/uid_map") >> inside >> outside >> count;
  result.may_exceed = result.may_exceed && inside == outside && count == UINT32_MAX;
  return result;
}

std::vector<NumaNodeInfo> query_nodes(const std::string& root, const SystemInfo& info) {
  std::vector<NumaNodeInfo> nodes;
  const std::string folder = root + kNodeFolder;
  for (const int id : internal::parse_list(read_text(folder + "/online").value_or(""))) {
    const std::string node = absl::StrCat(folder, "/node", id, "/");
    NumaNodeInfo& entry = nodes.emplace_back();
    entry.id = id;
    entry.total_bytes = read_meminfo(node + "meminfo", "MemTotal").value_or(0);
    entry.free_bytes = read_meminfo(node + "meminfo", "MemFree").value_or(0);
    entry.cpus = internal::parse_list(read_text(node + "cpulist").value_or(""));
    std::istringstream distances(read_text(node + "distance").value_or(""));
    for (int distance = 0; distances >> distance;) entry.distances.push_back(distance);
  }
  if (nodes.empty()) {
    nodes.push_back({0, info.memory_total_bytes, info.memory_available_bytes, info.cpus, {10}});
  }
  return nodes;
}

}  // namespace

std::vector<int> usable_cpus() {
  // The kernel's mask may have more than the 1024 CPUs of cpu_set_t: grow until the kernel accepts
  // the size.
  for (size_t count = 1024; count <= size_t{1} << 16; count *= 2) {
    cpu_set_t* const set = CPU_ALLOC(count);
    const size_t bytes = CPU_ALLOC_SIZE(count);
    const bool read = sched_getaffinity(0, bytes, set) == 0;
    std::vector<int> cpus;
    for (size_t cpu = 0; read && cpu < count; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(static_cast<int>(cpu));
    }
    CPU_FREE(set);
    if (read) return cpus;
  }
  return {};
}

MemoryLockLimit query_memory_lock_limit() { return query_memory_lock(""); }

SystemInfo query_system_info() { return internal::query_system_info_below("/"); }

SystemInfo internal::query_system_info_below(const std::string& root_folder) {
  std::string root = root_folder;
  while (!root.empty() && root.back() == '/') root.pop_back();

  SystemInfo info;
  utsname names{};
  if (uname(&names) == 0) {
    info.kernel = names.release;
    info.architecture = names.machine;
  }
  info.page_bytes = internal::base_page();
  info.memory_total_bytes = read_meminfo(root + "/proc/meminfo", "MemTotal").value_or(0);
  info.memory_available_bytes = read_meminfo(root + "/proc/meminfo", "MemAvailable").value_or(0);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    info.open_files = files.rlim_cur == RLIM_INFINITY ? kUnlimited : files.rlim_cur;
  }
  info.cpus = usable_cpus();
  info.nodes = query_nodes(root, info);
  append_pools(root + "/sys/kernel/mm/hugepages", -1, info.huge_pages);
  for (const NumaNodeInfo& node : info.nodes) {
    append_pools(absl::StrCat(root, kNodeFolder, "/node", node.id, "/hugepages"), node.id,
                 info.huge_pages);
  }
  std::stable_sort(
      info.huge_pages.begin(), info.huge_pages.end(),
      [](const HugePagePool& a, const HugePagePool& b) { return a.page_bytes > b.page_bytes; });
  const auto thp = [&root](const char* file) {
    return internal::chosen_word(read_text(absl::StrCat(root, kThpFolder, "/", file)).value_or(""));
  };
  info.transparent = {thp("enabled"), thp("shmem_enabled"), thp("defrag")};
  info.memory_lock = query_memory_lock(root);
  info.cgroup = query_cgroup(root);
  if (const std::optional<uint64_t> scope =
          read_number(root + "/proc/sys/kernel/yama/ptrace_scope")) {
    info.ptrace_scope = static_cast<int>(*scope);
  }
  return info;
}

std::vector<Shortfall> find_shortfalls(const SystemInfo& info) {
  std::vector<Shortfall> found;
  uint64_t free_huge_bytes = 0;
  for (const HugePagePool& pool : info.huge_pages) {
    if (pool.numa_node == -1) free_huge_bytes += pool.free * pool.page_bytes;
  }
  if (free_huge_bytes < internal::kHugePage) {
    found.push_back({"huge_pages", "no huge page is free: registered memory gets smaller pages",
                     "as root: echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages "
                     "(1 GiB); for 1 GiB pages boot with hugepagesz=1G hugepages=N"});
    const std::string& shared = info.transparent.shmem_enabled;
    // "never", the default, does not prevent MADV_COLLAPSE (Linux 6.1). A request for 0 bytes
    // changes nothing; it fails if the kernel does not know it.
    const bool collapses = shared == "never" && madvise(nullptr, 0, MADV_COLLAPSE) == 0;
    if (shared != "always" && shared != "advise" && shared != "within_size" && shared != "force" &&
        !collapses) {
      found.push_back({"transparent_shared",
                       "the kernel gives no transparent huge pages to shared memory",
                       absl::StrCat("as root: echo advise > ", kThpFolder, "/shmem_enabled")});
    }
  }
  if (info.memory_lock.soft_bytes != kUnlimited && !info.memory_lock.may_exceed) {
    found.push_back(
        {"memory_lock",
         absl::StrCat("memlock is ", format_bytes(info.memory_lock.soft_bytes),
                      ": an RDMA device can register no more than that (shm is not affected)"),
         info.memory_lock.soft_bytes < info.memory_lock.hard_bytes
             ? absl::StrCat("ulimit -l ", info.memory_lock.hard_bytes == kUnlimited
                                              ? "unlimited"
                                              : absl::StrCat(info.memory_lock.hard_bytes / 1024))
             : "add '* - memlock unlimited' to /etc/security/limits.conf and log in again, or "
               "LimitMEMLOCK=infinity to the service, or --ulimit memlock=-1 to docker run"});
  }
  if (info.cgroup.memory_bytes < info.memory_total_bytes) {
    found.push_back({"cgroup_memory",
                     absl::StrCat("the control group ", info.cgroup.path, " allows ",
                                  format_bytes(info.cgroup.memory_bytes), " of the machine's ",
                                  format_bytes(info.memory_total_bytes)),
                     absl::StrCat("raise its ",
                                  info.cgroup.version == 2 ? "memory.max" : "memory.limit_in_bytes",
                                  ", or keep CARIAMA_MEMORY_BUDGET below it")});
  }
  if (info.cgroup.cpus && *info.cgroup.cpus < static_cast<double>(info.cpus.size())) {
    found.push_back(
        {"cgroup_cpus",
         absl::StrCat("the control group allows the time of ", *info.cgroup.cpus, " CPUs on ",
                      info.cpus.size(), " CPUs: threads that poll will be throttled"),
         absl::StrCat("raise its ", info.cgroup.version == 2 ? "cpu.max" : "cpu.cfs_quota_us",
                      ", or run fewer threads and let them sleep")});
  }
  if (info.cpus.size() == 1) {
    found.push_back({"cpus", "this process may use one CPU: polling threads delay each other",
                     "widen the affinity (taskset, the launcher's binding), or let threads sleep"});
  }
  if (info.ptrace_scope.value_or(0) > 0) {
    found.push_back(
        {"ptrace_scope",
         absl::StrCat("Yama's ptrace_scope is ", *info.ptrace_scope,
                      ": memory that did not come from an allocator is out of reach for "
                      "peers of this host"),
         "as root: sysctl kernel.yama.ptrace_scope=0; or transfer from allocator memory"});
  }
  constexpr uint64_t kFewFiles = 4096;
  if (info.open_files < kFewFiles) {
    found.push_back({"open_files",
                     absl::StrCat("open files are limited to ", info.open_files,
                                  ", and each superpage and each connection needs some"),
                     "raise ulimit -n"});
  }
  return found;
}

uint64_t usable_memory() {
  // Called by every allocator that uses the default budget, so it reads only the memory total and
  // the cgroup files.
  const uint64_t total = read_meminfo("/proc/meminfo", "MemTotal").value_or(kUnlimited);
  return std::min(total, query_cgroup("").memory_bytes);
}

const std::vector<int>& numa_nodes() {
  static const auto* const nodes = [] {
    auto* const list = new std::vector<int>(
        internal::parse_list(read_text(absl::StrCat(kNodeFolder, "/has_memory")).value_or("")));
    if (list->empty()) list->push_back(0);
    return list;
  }();
  return *nodes;
}

bool numa_node_exists(int node) {
  return std::binary_search(numa_nodes().begin(), numa_nodes().end(), node);
}

std::string numa_nodes_text() {
  return absl::StrCat("NUMA node", numa_nodes().size() == 1 ? " " : "s ",
                      absl::StrJoin(numa_nodes(), ", "));
}

int numa_node_of_this_thread() {
  unsigned node = 0;
  if (getcpu(nullptr, &node) != 0) return numa_nodes().front();
  return numa_node_exists(static_cast<int>(node)) ? static_cast<int>(node) : numa_nodes().front();
}

int numa_node_of_memory(const void* address) {
  int node = -1;
  const long result =
      get_mempolicy(&node, nullptr, 0, const_cast<void*>(address), MPOL_F_NODE | MPOL_F_ADDR);
  return result == 0 ? node : -1;
}

}  // namespace cariama
