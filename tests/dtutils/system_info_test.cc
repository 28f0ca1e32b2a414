#include "dtutils/system_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "dtutils/internal/system_info_below.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;

// A directory tree with the proc and sys files of an invented machine.
class FakeRoot {
 public:
  FakeRoot() {
    char name[] = "/tmp/cariama_root_XXXXXX";
    const char* const made = mkdtemp(name);
    EXPECT_NE(made, nullptr);
    path_ = made;
  }
  ~FakeRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  void file(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = path_ + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string mount_line(const std::string& point, const std::string& type, const std::string& opts) {
  return "31 30 0:28 / " + point + " rw,nosuid shared:9 - " + type + " " + type + " " + opts + "\n";
}

TEST(SystemInfo, ReadsPoolsNodesAndSettings) {
  const FakeRoot root;
  root.file("/proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable: 8000 kB\n");
  root.file("/proc/sys/kernel/yama/ptrace_scope", "2\n");
  root.file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.file("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
            "always within_size [advise] never deny force\n");
  root.file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "12\n");
  root.file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "7\n");
  root.file("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "1\n");
  root.file("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "0\n");
  const std::string node = "/sys/devices/system/node/";
  root.file(node + "online", "0,2\n");
  root.file(node + "node0/meminfo", "Node 0 MemTotal:  9000 kB\nNode 0 MemFree:  100 kB\n");
  root.file(node + "node0/cpulist", "0-3,8\n");
  root.file(node + "node0/distance", "10 21\n");
  root.file(node + "node2/meminfo", "Node 2 MemTotal:  7000 kB\nNode 2 MemFree:  200 kB\n");
  root.file(node + "node2/cpulist", "\n");
  root.file(node + "node2/distance", "21 10\n");
  root.file(node + "node2/hugepages/hugepages-2048kB/nr_hugepages", "5\n");
  root.file(node + "node2/hugepages/hugepages-2048kB/free_hugepages", "4\n");

  const SystemInfo info = internal::query_system_info_below(root.path());
  EXPECT_EQ(info.memory_total_bytes, uint64_t{16000000} * 1024);
  EXPECT_EQ(info.memory_available_bytes, 8000u * 1024);
  EXPECT_EQ(info.ptrace_scope, 2);
  EXPECT_EQ(info.transparent.enabled, "madvise");
  EXPECT_EQ(info.transparent.shmem_enabled, "advise");
  EXPECT_EQ(info.transparent.defrag, "");
  ASSERT_EQ(info.nodes.size(), 2u);
  EXPECT_EQ(info.nodes[0].cpus, (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(info.nodes[1].id, 2);
  EXPECT_EQ(info.nodes[1].total_bytes, 7000u * 1024);
  EXPECT_EQ(info.nodes[1].free_bytes, 200u * 1024);
  EXPECT_TRUE(info.nodes[1].cpus.empty());
  EXPECT_EQ(info.nodes[1].distances, (std::vector<int>{21, 10}));
  ASSERT_EQ(info.huge_pages.size(), 3u);
  EXPECT_EQ(info.huge_pages[0].page_bytes, uint64_t{1} << 30);
  EXPECT_EQ(info.huge_pages[1].numa_node, -1);
  EXPECT_EQ(info.huge_pages[1].total, 12u);
  EXPECT_EQ(info.huge_pages[1].free, 7u);
  EXPECT_EQ(info.huge_pages[2].numa_node, 2);
  EXPECT_EQ(info.huge_pages[2].free, 4u);
}

TEST(SystemInfo, EmptyMachineIsNoError) {
  const FakeRoot root;
  const SystemInfo info = internal::query_system_info_below(root.path());
  ASSERT_EQ(info.nodes.size(), 1u) << "a machine without NUMA has one node";
  EXPECT_EQ(info.nodes[0].id, 0);
  EXPECT_EQ(info.nodes[0].distances, (std::vector<int>{10}));
  EXPECT_TRUE(info.huge_pages.empty());
  EXPECT_EQ(info.cgroup.version, 0);
  EXPECT_EQ(info.cgroup.memory_bytes, kUnlimited);
  EXPECT_FALSE(info.cgroup.cpus.has_value());
  EXPECT_FALSE(info.ptrace_scope.has_value());
  EXPECT_FALSE(info.memory_lock.may_exceed);
}

TEST(Cgroup, Version2TakesTheSmallestLimitOfAllLevels) {
  const FakeRoot root;
  root.file("/proc/self/cgroup", "0::/user.slice/job\n");
  root.file("/proc/self/mountinfo", mount_line("/sys/fs/cgroup", "cgroup2", "rw"));
  root.file("/sys/fs/cgroup/user.slice/memory.max", "2000000\n");
  root.file("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
  root.file("/sys/fs/cgroup/user.slice/job/memory.max", "max\n");
  root.file("/sys/fs/cgroup/user.slice/job/cpu.max", "150000 100000\n");
  const CgroupLimits limits = internal::query_system_info_below(root.path()).cgroup;
  EXPECT_EQ(limits.version, 2);
  EXPECT_EQ(limits.path, "/user.slice/job");
  EXPECT_EQ(limits.memory_bytes, 2000000u);
  EXPECT_EQ(limits.cpus, 1.5);
}

TEST(Cgroup, Version1HasAFolderPerController) {
  const FakeRoot root;
  root.file("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/\n0::/\n");
  root.file("/proc/self/mountinfo",
            mount_line("/sys/fs/cgroup/memory", "cgroup", "rw,memory") +
                mount_line("/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct") +
                mount_line("/sys/fs/cgroup/unified", "cgroup2", "rw"));
  root.file("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  root.file("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000000\n");
  root.file("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  root.file("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  const CgroupLimits limits = internal::query_system_info_below(root.path()).cgroup;
  EXPECT_EQ(limits.version, 1);
  EXPECT_EQ(limits.path, "/a/b");
  EXPECT_EQ(limits.memory_bytes, 5000000u);
  EXPECT_FALSE(limits.cpus.has_value());

  root.file("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(internal::query_system_info_below(root.path()).cgroup.cpus, 0.5);
}

// In a container the group's path is that of the host, and only the group itself is mounted.
TEST(Cgroup, ContainerSeesItsGroupAtTheMount) {
  const FakeRoot root;
  root.file("/proc/self/cgroup", "0::/../../kubepods/pod1\n");
  root.file("/proc/self/mountinfo", mount_line("/sys/fs/cgroup", "cgroup2", "rw"));
  root.file("/sys/fs/cgroup/memory.max", "123456789\n");
  EXPECT_EQ(internal::query_system_info_below(root.path()).cgroup.memory_bytes, 123456789u);
}

TEST(Cgroup, MalformedFilesAreIgnored) {
  const FakeRoot root;
  root.file("/proc/self/cgroup", "\n::\n0:\nx\n0::no-slash\n");
  root.file("/proc/self/mountinfo",
            "short\n1 2 - \n" + mount_line("/sys/fs/cgroup", "cgroup2", "rw"));
  root.file("/sys/fs/cgroup/memory.max", "12x\n");
  root.file("/sys/fs/cgroup/cpu.max", "0 0\n");
  const CgroupLimits limits = internal::query_system_info_below(root.path()).cgroup;
  EXPECT_EQ(limits.memory_bytes, kUnlimited);
  EXPECT_FALSE(limits.cpus.has_value());
}

TEST(MemoryLock, CapabilityIsBitFourteen) {
  const FakeRoot root;
  root.file("/proc/self/status", "Name:\ttest\nCapEff:\t0000000000004000\n");
  EXPECT_TRUE(internal::query_system_info_below(root.path()).memory_lock.may_exceed);
  root.file("/proc/self/uid_map", "         0          0 4294967295\n");
  EXPECT_TRUE(internal::query_system_info_below(root.path()).memory_lock.may_exceed);
  root.file("/proc/self/uid_map", "         0       1000          1\n");
  EXPECT_FALSE(internal::query_system_info_below(root.path()).memory_lock.may_exceed)
      << "root of a user namespace";
  root.file("/proc/self/uid_map", "         0          0 4294967295\n");
  root.file("/proc/self/status", "Name:\ttest\nCapEff:\t000001ffffffbfff\n");
  EXPECT_FALSE(internal::query_system_info_below(root.path()).memory_lock.may_exceed);
}

TEST(SystemInfo, ValuesOfThisMachineAreConsistent) {
  const SystemInfo info = query_system_info();
  EXPECT_FALSE(info.kernel.empty());
  EXPECT_FALSE(info.architecture.empty());
  EXPECT_EQ(info.page_bytes, static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_GT(info.memory_total_bytes, 0u);
  EXPECT_LE(info.memory_available_bytes, info.memory_total_bytes);
  EXPECT_FALSE(info.cpus.empty());
  ASSERT_FALSE(info.nodes.empty());
  for (const NumaNodeInfo& node : info.nodes) {
    EXPECT_EQ(node.distances.size(), info.nodes.size());
  }
  EXPECT_LE(usable_memory(), info.memory_total_bytes);
  EXPECT_GT(usable_memory(), 0u);
}

TEST(Numa, ThisThreadAndItsMemoryAreOnNodesThatExist) {
  ASSERT_FALSE(numa_nodes().empty());
  EXPECT_TRUE(std::is_sorted(numa_nodes().begin(), numa_nodes().end()));
  EXPECT_TRUE(numa_node_exists(numa_node_of_this_thread()));
  EXPECT_FALSE(numa_node_exists(-1));
  EXPECT_FALSE(numa_node_exists(4711));
  int local = 1;
  const int node = numa_node_of_memory(&local);
  if (node != -1) {
    EXPECT_TRUE(numa_node_exists(node));
  }
  EXPECT_EQ(numa_node_of_memory(nullptr), -1);
  EXPECT_THAT(numa_nodes_text(), HasSubstr(std::to_string(numa_nodes().front())));
}

SystemInfo comfortable() {
  SystemInfo info;
  info.memory_total_bytes = uint64_t{64} << 30;
  info.open_files = 1 << 20;
  info.cpus = {0, 1, 2, 3};
  info.huge_pages = {{-1, uint64_t{2} << 20, 512, 512}};
  info.transparent = {"madvise", "advise", "madvise"};
  info.memory_lock = {kUnlimited, kUnlimited, false};
  return info;
}

// Returns the shortfall of `info`. Requires: there is exactly one, and it has this name.
Shortfall only(const SystemInfo& info, const std::string& name) {
  const std::vector<Shortfall> found = find_shortfalls(info);
  EXPECT_EQ(found.size(), 1u) << name;
  if (found.empty()) return {};
  EXPECT_EQ(found[0].name, name);
  EXPECT_FALSE(found[0].remedy.empty());
  return found[0];
}

TEST(Shortfalls, NoneOnAComfortableMachine) { EXPECT_TRUE(find_shortfalls(comfortable()).empty()); }

TEST(Shortfalls, HugePages) {
  SystemInfo info = comfortable();
  info.huge_pages[0].free = 0;
  EXPECT_THAT(only(info, "huge_pages").remedy, HasSubstr("nr_hugepages"));
  info.transparent.shmem_enabled = "deny";
  EXPECT_EQ(find_shortfalls(info).size(), 2u);
  EXPECT_EQ(find_shortfalls(info)[1].name, "transparent_shared");
  info.huge_pages.push_back({-1, uint64_t{1} << 30, 1, 1});  // 1 GiB pages suffice, too
  EXPECT_TRUE(find_shortfalls(info).empty());
}

TEST(Shortfalls, MemoryLockUnlessTheProcessMayExceedIt) {
  SystemInfo info = comfortable();
  info.memory_lock = {65536, 65536, false};
  EXPECT_THAT(only(info, "memory_lock").what, HasSubstr("memlock is 64 KiB"));
  EXPECT_THAT(only(info, "memory_lock").remedy, HasSubstr("limits.conf"));
  info.memory_lock.hard_bytes = kUnlimited;
  EXPECT_EQ(only(info, "memory_lock").remedy, "ulimit -l unlimited");
  info.memory_lock.hard_bytes = uint64_t{1} << 20;
  EXPECT_EQ(only(info, "memory_lock").remedy, "ulimit -l 1024");
  info.memory_lock.may_exceed = true;
  EXPECT_TRUE(find_shortfalls(info).empty());
}

TEST(Shortfalls, ControlGroups) {
  SystemInfo info = comfortable();
  info.cgroup = {2, "/job", uint64_t{1} << 30, std::nullopt};
  EXPECT_THAT(only(info, "cgroup_memory").what, HasSubstr("1 GiB of the machine's 64 GiB"));
  EXPECT_THAT(only(info, "cgroup_memory").remedy, HasSubstr("memory.max"));
  info.cgroup = {1, "/job", kUnlimited, 1.5};
  EXPECT_THAT(only(info, "cgroup_cpus").what, HasSubstr("1.5"));
  EXPECT_THAT(only(info, "cgroup_cpus").remedy, HasSubstr("cpu.cfs_quota_us"));
  info.cgroup.cpus = 4;
  EXPECT_TRUE(find_shortfalls(info).empty());
}

TEST(Shortfalls, CpusFilesAndPtrace) {
  SystemInfo info = comfortable();
  info.cpus = {3};
  EXPECT_THAT(only(info, "cpus").remedy, HasSubstr("taskset"));
  info = comfortable();
  info.open_files = 1024;
  EXPECT_THAT(only(info, "open_files").what, HasSubstr("1024"));
  info = comfortable();
  info.ptrace_scope = 0;
  EXPECT_TRUE(find_shortfalls(info).empty());
  info.ptrace_scope = 1;
  EXPECT_THAT(only(info, "ptrace_scope").remedy, HasSubstr("kernel.yama.ptrace_scope=0"));
}

}  // namespace
}  // namespace cariama
