// Jobs that cariama-run places on two NUMA nodes and two RDMA devices. Each process has the cores,
// the device and the memory of its placement, and all processes can reach one another. Runs in a VM
// with two nodes and two devices. The processes run this program again, with --placed= and the
// expected places.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/collectives.h"
#include "dsfabric/peers/ports.h"
#include "dsfabric/quiescence.h"
#include "dsfabric/remote_memory.h"
#include "dsfabric/topology.h"
#include "dtutils/system_info.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama {
namespace {

using testing::must;
using testing::soon;

constexpr std::string_view kRole = "--placed=";

// The expected node of a process, and the device by which it reaches the others: "0/rxe1", "1/shm".
struct Expected {
  int node;
  std::string device;
};
std::string text_of(const std::vector<Expected>& places) {
  return absl::StrJoin(places, ",", [](std::string* out, const Expected& one) {
    absl::StrAppend(out, one.node, "/", one.device);
  });
}
std::vector<Expected> places_of(std::string_view text) {
  std::vector<Expected> places;
  for (const auto& one : absl::StrSplit(std::string(text), ',')) {
    const std::vector<std::string> parts = absl::StrSplit(one, '/');
    int node = -1;
    if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &node)) places.push_back({node, parts[1]});
  }
  return places;
}

// ---- What the processes do ----------------------------------------------------------------------

constexpr uint64_t kCalls = 200;
constexpr size_t kBytes = 512;  // so that the calls of one sender fill many chunks
std::atomic<uint64_t> good_buffers;
std::atomic<uint64_t> bad_buffers;

// The buffer of a call_buffer lies in a chunk of this process's memory, on its node.
const auto look_at_chunk = [](void* buffer, uint64_t size) {
  const int node = running_fabric()->this_thread()->numa_node();
  const bool right = size == kBytes && numa_node_of_memory(buffer) == node &&
                     numa_node_of_memory(static_cast<std::byte*>(buffer) + size - 1) == node;
  ++(right ? good_buffers : bad_buffers);
};

void expect_cores_of(int node) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  for (const NumaNodeInfo& one : query_system_info().nodes) {
    if (one.id == node) {
      EXPECT_THAT(one.cpus, ::testing::IsSupersetOf(cpus));
    }
  }
  EXPECT_EQ(numa_node_of_this_thread(), node);
}

// Memory requested by another process lies on the requested node of the requested process.
void expect_remote_memory(Fabric& fabric, uint32_t peer, const std::vector<Expected>& places) {
  const auto node_there = [&](const RemoteMemory& memory) {
    return must(async_call(fabric, peer, [at = memory.address().address] {
                  return numa_node_of_memory(reinterpret_cast<const void*>(at));
                }).get(soon()));
  };
  const RemoteMemory near = must(RemoteMemory::allocate_near(fabric, peer, 4096, soon()));
  EXPECT_EQ(node_there(near), places[peer].node);
  for (const int node : numa_nodes()) {
    const RemoteMemory there = must(RemoteMemory::allocate(fabric, peer, 4096, soon(), node));
    EXPECT_EQ(node_there(there), node);
  }
}

void expect_to_be_placed(const std::vector<Expected>& places) {
  auto fabric = must(Fabric::create());
  ASSERT_EQ(fabric->size(), places.size());
  const uint32_t me = fabric->rank();
  const Expected& mine = places[me];
  expect_cores_of(mine.node);  // bound by the launcher
  auto self = must(init_thread(*fabric, 0, CallConsumer::kThread, Binding::kCore));
  expect_cores_of(mine.node);
  EXPECT_EQ(self->numa_node(), mine.node);
  EXPECT_EQ(numa_node_of_memory(self->buffers().allocate()->get_buffer()), mine.node);
  Collectives all(*fabric);
  TerminationDetector detector(*fabric);
  must(all.barrier(soon()));

  const std::vector<std::byte> data(kBytes, std::byte{7});
  MessengerOptions small;
  small.chunk_bytes = 4096;
  RDMAMessengerGlobal messengers(*self, small);
  for (uint32_t peer = 0; peer < fabric->size(); ++peer) {
    if (peer == me) continue;
    EXPECT_EQ(must(where_is(*fabric, peer, soon())).numa_node, places[peer].node);
    EXPECT_EQ(must(async_call(*fabric, peer, [] { return running_fabric()->rank(); }).get(soon())),
              peer);
    const std::string device = internal::ports_of(*fabric).device(peer)->description();
    EXPECT_EQ(device.substr(0, device.find(' ')), mine.device) << device;
    expect_remote_memory(*fabric, peer, places);
    for (uint64_t i = 0; i < kCalls; ++i) {
      must(messengers.call_buffer(peer, look_at_chunk, std::span(data)).status());
    }
  }
  must(detector.wait(soon()));
  EXPECT_EQ(good_buffers.load(), kCalls * (fabric->size() - 1));
  EXPECT_EQ(bad_buffers.load(), 0u);
  must(messengers.shutdown_all(soon()));
  must(fabric->finalize(soon()));
}

// ---- Starting them ------------------------------------------------------------------------------

// Returns the number of packets that a device has sent since it was created.
uint64_t packets_of(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/hw_counters/sent_pkts");
  uint64_t packets = 0;
  file >> packets;
  EXPECT_TRUE(file) << device << " does not count what it sends";
  return packets;
}

class PlacedJob : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(numa_nodes(), ::testing::SizeIs(2)) << "run this on a machine with two NUMA nodes";
    before_[0] = packets_of("rxe0");
    before_[1] = packets_of("rxe1");
  }
  // Returns the number of packets that a device has sent in this test.
  [[nodiscard]] uint64_t sent(int device) const {
    return packets_of("rxe" + std::to_string(device)) - before_[device];
  }
  // Runs a job, and returns its exit code. The expectations of its processes determine the code.
  [[nodiscard]] static int run(const std::string& transport, const std::string& options,
                               const std::vector<Expected>& places) {
    const std::string command =
        absl::StrCat("CARIAMA_TRANSPORT=", transport, " ", CARIAMA_PROGRAM_DIR, "/cariama-run ",
                     options, " --tag-output --timeout 200 /proc/", getpid(), "/exe ",
                     std::string(kRole), text_of(places));
    std::fflush(nullptr);
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  }

 private:
  uint64_t before_[2] = {};
};

TEST_F(PlacedJob, GoesThroughAllPairsOfANodeAndADevice) {
  // Without -n there is one process for each pair of node and device.
  EXPECT_EQ(
      run("verbs", "--place zone-endpoint", {{0, "rxe0"}, {0, "rxe1"}, {1, "rxe0"}, {1, "rxe1"}}),
      0);
  EXPECT_GT(sent(0), 0u);
  EXPECT_GT(sent(1), 0u);
}

TEST_F(PlacedJob, IsOnItsNodesInSharedMemoryToo) {
  EXPECT_EQ(run("shm", "-n 3 --place zone-endpoint", {{0, "shm"}, {0, "shm"}, {1, "shm"}}), 0);
  EXPECT_EQ(sent(0), 0u);
  EXPECT_EQ(sent(1), 0u);
}

// The file's placement differs from every default order. The device that is not assigned must stay
// unused.
TEST_F(PlacedJob, FollowsThePlaceFile) {
  char name[] = "/tmp/cariama-place-XXXXXX";
  const int file = mkstemp(name);
  ASSERT_GE(file, 0);
  close(file);
  std::ofstream(name) << "0 1 rxe1\n1 0 rxe1:1  # the other node\n";
  EXPECT_EQ(
      run("verbs", absl::StrCat("-n 2 --bind core --place ", name), {{1, "rxe1"}, {0, "rxe1"}}), 0);
  EXPECT_EQ(sent(0), 0u);
  EXPECT_GT(sent(1), 0u);
  // Two processes on different devices communicate.
  std::ofstream(name) << "0 1 rxe0\n1 0 rxe1\n";
  EXPECT_EQ(run("verbs", absl::StrCat("-n 2 --place ", name), {{1, "rxe0"}, {0, "rxe1"}}), 0);
  EXPECT_GT(sent(0), 0u);
  unlink(name);
}

// Checks that the expectations above can fail: a wrongly placed process fails its job.
TEST_F(PlacedJob, WrongPlacementFails) {
  EXPECT_EQ(run("shm", "-n 2 --place zone-endpoint", {{0, "shm"}, {1, "shm"}}), 1);
  EXPECT_EQ(run("verbs", "-n 2 --place zone-endpoint", {{0, "rxe0"}, {0, "rxe0"}}), 1);
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  const std::string_view role = argc > 1 ? argv[1] : "";
  ::testing::InitGoogleTest(&argc, argv);
  if (role.substr(0, cariama::kRole.size()) != cariama::kRole) return RUN_ALL_TESTS();
  // Failed expectations outside of a test are printed and recorded; return them as the exit code.
  cariama::expect_to_be_placed(cariama::places_of(role.substr(cariama::kRole.size())));
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}
