// Broadcasts in jobs of several shapes: every thread of every process runs a call exactly once.
#include "riutils/broadcast.h"

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama {
namespace {

using testing::LocalJob;
using testing::must;
using testing::soon;
using testing::transport_case;

class Broadcast : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string reason = testing::reason_to_skip(transport_case(GetParam()));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  [[nodiscard]] static testing::LocalJobOptions job(uint32_t processes, uint32_t threads) {
    testing::LocalJobOptions options;
    options.processes = processes;
    options.transport = transport_case(GetParam());
    options.fabric.threads = threads;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(On, Broadcast,
                         ::testing::Values("shm", "sim", "fault_shm", "verbs", "fault_verbs"),
                         [](const auto& info) { return std::string(info.param); });

std::atomic<uint64_t> runs[64];  // by global thread
std::atomic<uint64_t> good{0};
std::atomic<bool> ended[64];  // by global thread: the last broadcast has arrived

void start_counting() {
  for (auto& run : runs) run = 0;
  good = 0;
  for (auto& one : ended) one = false;
}
uint32_t me() { return running_fabric()->this_thread()->global_id(); }
// Each thread waits for its own flag: a flag set by a call in another thread would not wake it.
bool wait_for_the_end(Fabric& fabric) {
  const uint32_t self = fabric.this_thread()->global_id();
  return fabric.wait([self] { return ended[self].load(); }, soon());
}

TEST_P(Broadcast, RunsOnceOnEveryThread) {
  for (const auto& [processes, threads] :
       {std::pair(1u, 2u), std::pair(2u, 1u), std::pair(5u, 2u)}) {
    for (const uint32_t root : {0u, processes - 1}) {
      SCOPED_TRACE(std::to_string(processes) + " processes, root " + std::to_string(root));
      start_counting();
      const uint32_t total = processes * threads;
      LocalJob local(job(processes, threads));
      local.run([&, root = root](Fabric& fabric, uint32_t thread) {
        if (fabric.rank() == root && thread == 0) {
          for (uint64_t i = 0; i < 5; ++i) {
            Synchronizer done;
            ASSERT_TRUE(broadcast<RemoteNotify>(
                fabric,
                [i] {
                  if (runs[me()].fetch_add(1) == i) ++good;
                },
                done));
            ASSERT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
            EXPECT_EQ(done.status(), absl::OkStatus());
            // All threads have run the call when the Synchronizer is counted down.
            EXPECT_EQ(good.load(), (i + 1) * fabric.total_threads());
          }
          // The last broadcast ends the test in every thread.
          ASSERT_TRUE(broadcast(fabric, [] { ended[me()] = true; }));
        }
        ASSERT_TRUE(wait_for_the_end(fabric));
      });
      for (uint32_t i = 0; i < total; ++i) EXPECT_EQ(runs[i].load(), 5u) << i;
    }
  }
}

TEST_P(Broadcast, BuffersReachEveryThread) {
  static std::vector<RemoteMemoryLocator> targets;
  static std::atomic<uint32_t> named;
  static constexpr uint32_t kProcesses = 4;
  start_counting();
  targets.assign(kProcesses, {});
  named = 0;
  LocalJob local(job(kProcesses, 2));
  local.run([&](Fabric& fabric, uint32_t thread) {
    const auto check = [](void* buffer, uint64_t size) {
      const auto* bytes = static_cast<const uint8_t*>(buffer);
      bool same = size == 2000;
      for (uint64_t i = 0; i < size; ++i) same = same && bytes[i] == static_cast<uint8_t>(i * 7);
      if (same) ++good;
    };
    if (thread == 0) {
      RDMAMemory place = must(fabric.memory().allocate(2000));
      // The locator is valid for every other process: all processes of this job share one domain.
      targets[fabric.rank()] =
          must(internal::locate_for(fabric, (fabric.rank() + 1) % kProcesses, place, 0, 2000));
      ++named;
      for (uint32_t to = 0; to < kProcesses; ++to)
        must(call(fabric, 2 * to, [] {}));  // re-check `named`
      EXPECT_TRUE(fabric.wait([] { return named.load() == kProcesses; }, soon()));
    }
    if (fabric.rank() == 1 && thread == 0) {
      RDMAMemory source = must(fabric.memory().allocate(4096));
      for (uint64_t i = 0; i < 2000; ++i) {
        source.get_buffer()[100 + i] = static_cast<std::byte>(i * 7);
      }
      Synchronizer pulled, placed, wrong;
      EXPECT_TRUE(broadcast_buffer<RemoteNotify>(fabric, check, &source, 100, 2000, pulled));
      ASSERT_TRUE(fabric.wait([&] { return pulled.done(); }, soon()));
      EXPECT_EQ(pulled.status(), absl::OkStatus());
      EXPECT_EQ(good.load(), 8u);
      EXPECT_TRUE(
          broadcast_buffer<RemoteNotify>(fabric, check, &source, 100, 2000, targets, placed));
      ASSERT_TRUE(fabric.wait([&] { return placed.done(); }, soon()));
      EXPECT_EQ(placed.status(), absl::OkStatus());
      EXPECT_EQ(good.load(), 16u);
      EXPECT_FALSE(broadcast_buffer(fabric, check, &source, 4000, 2000, wrong));
      ASSERT_TRUE(broadcast(fabric, [] { ended[me()] = true; }));
    }
    ASSERT_TRUE(wait_for_the_end(fabric));
  });
}

TEST_P(Broadcast, ExceptionsComeBack) {
  start_counting();
  LocalJob local(job(3, 1));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      Synchronizer done;
      ASSERT_TRUE(broadcast<RemoteNotify>(
          fabric,
          [] {
            if (me() == 2) throw std::runtime_error("not here");
          },
          done));
      ASSERT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      EXPECT_EQ(done.status().code(), absl::StatusCode::kInternal);
      EXPECT_NE(done.status().message().find("not here"), std::string::npos) << done.status();
      ASSERT_TRUE(broadcast(fabric, [] { ended[me()] = true; }));
    }
    ASSERT_TRUE(wait_for_the_end(fabric));
  });
}

}  // namespace
}  // namespace cariama
