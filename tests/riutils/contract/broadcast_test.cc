// Broadcasts in jobs of several shapes: every thread of every process runs a call exactly once.
#include "riutils/broadcast.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "riutils/messenger_global.h"
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
      // Memory that is not registered is copied: it may be overwritten at once.
      std::vector<std::byte> bytes(2000);
      const auto send_bytes = [&](auto&&... targets_and_done) {
        for (uint64_t i = 0; i < 2000; ++i) bytes[i] = static_cast<std::byte>(i * 7);
        EXPECT_TRUE(broadcast_buffer<RemoteNotify>(fabric, check, std::span(std::as_const(bytes)),
                                                   targets_and_done...));
        std::fill(bytes.begin(), bytes.end(), std::byte{0});
      };
      Synchronizer copied(2);
      send_bytes(copied);
      send_bytes(targets, copied);
      ASSERT_TRUE(fabric.wait([&] { return copied.done(); }, soon()));
      EXPECT_EQ(copied.status(), absl::OkStatus());
      EXPECT_EQ(good.load(), 32u);
      Synchronizer empty;
      EXPECT_TRUE(broadcast_buffer<RemoteNotify>(
          fabric, [](void*, uint64_t size) { good += size == 0 ? 1 : 0; },
          std::span<const std::byte>(), empty));
      ASSERT_TRUE(fabric.wait([&] { return empty.done(); }, soon()));
      EXPECT_EQ(empty.status(), absl::OkStatus());
      EXPECT_EQ(good.load(), 40u);
      ASSERT_TRUE(broadcast(fabric, [] { ended[me()] = true; }));
    }
    ASSERT_TRUE(wait_for_the_end(fabric));
  });
}

// A closure that exceeds a receive unit, with every notification.
TEST_P(Broadcast, LongClosuresReachEveryThread) {
  struct Long {
    uint8_t bytes[9000];
  };
  start_counting();
  LocalJob local(job(5, 2));
  local.run([&](Fabric& fabric, uint32_t thread) {
    if (fabric.rank() == 2 && thread == 0) {
      Long data;
      for (size_t i = 0; i < sizeof data.bytes; ++i) data.bytes[i] = static_cast<uint8_t>(i * 11);
      const auto check = [data] {
        bool same = true;
        for (size_t i = 0; i < sizeof data.bytes; ++i) {
          same = same && data.bytes[i] == static_cast<uint8_t>(i * 11);
        }
        if (same) ++good;
        ++runs[me()];
      };
      Synchronizer sent, done;
      EXPECT_TRUE(broadcast(fabric, check));
      EXPECT_TRUE(broadcast<LocalNotify>(fabric, check, sent));
      EXPECT_TRUE(sent.done());
      EXPECT_TRUE(broadcast<RemoteNotify>(fabric, check, done));
      ASSERT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      EXPECT_EQ(done.status(), absl::OkStatus());
      ASSERT_TRUE(broadcast(fabric, [] { ended[me()] = true; }));
    }
    ASSERT_TRUE(wait_for_the_end(fabric));
    // The broadcasts may arrive in any order: this thread waits for the other two.
    const uint32_t self = fabric.this_thread()->global_id();
    ASSERT_TRUE(fabric.wait_polling([self] { return runs[self].load() == 3; }, soon()));
  });
  EXPECT_EQ(good.load(), 30u);
}

// Locators that together exceed a receive unit.
TEST_P(Broadcast, TargetsOfManyProcessesTravel) {
  static std::vector<RemoteMemoryLocator> targets;
  static std::atomic<uint32_t> named;
  static constexpr uint32_t kProcesses = 9;
  start_counting();
  targets.assign(kProcesses, {});
  named = 0;
  testing::LocalJobOptions options = job(kProcesses, 1);
  options.fabric.receive_unit_bytes = 256;
  LocalJob local(options);
  local.run([&](Fabric& fabric, uint32_t) {
    RDMAMemory place = must(fabric.memory().allocate(64));
    targets[fabric.rank()] =
        must(internal::locate_for(fabric, (fabric.rank() + 1) % kProcesses, place, 0, 64));
    ++named;
    if (fabric.rank() == 4) {
      ASSERT_TRUE(fabric.wait_polling([] { return named.load() == kProcesses; }, soon()));
      RDMAMemory source = must(fabric.memory().allocate(64));
      for (int i = 0; i < 64; ++i) source.get_buffer()[i] = static_cast<std::byte>(i);
      Synchronizer done;
      EXPECT_TRUE(broadcast_buffer<RemoteNotify>(
          fabric,
          [](void* buffer, uint64_t size) {
            if (size == 64 && static_cast<uint8_t*>(buffer)[63] == 63) ++good;
          },
          &source, 0, 64, targets, done));
      ASSERT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      EXPECT_EQ(done.status(), absl::OkStatus());
      EXPECT_EQ(good.load(), kProcesses);
      // A target of another process, and one that is too short.
      const std::vector<RemoteMemoryLocator> right = targets;
      for (const bool other : {true, false}) {
        targets = right;
        if (other) {
          std::swap(targets[0], targets[1]);
        } else {
          targets[3].length = 8;
        }
        Synchronizer refused;
        EXPECT_TRUE(broadcast_buffer<RemoteNotify>(
            fabric, [](void*, uint64_t) {}, &source, 0, 64, targets, refused));
        ASSERT_TRUE(fabric.wait([&] { return refused.done(); }, soon()));
        EXPECT_FALSE(refused.status().ok());
      }
      ASSERT_TRUE(broadcast(fabric, [] { ended[me()] = true; }));
    }
    ASSERT_TRUE(wait_for_the_end(fabric));
  });
}

template <typename Global>
void broadcast_one_sided(const testing::LocalJobOptions& options) {
  start_counting();
  LocalJob local(options);
  std::vector<RemoteMemoryLocator> targets(options.processes);
  local.run([&](Fabric& fabric, uint32_t thread) {
    // Any process may become the parent.
    RDMAMemory place = must(fabric.memory().allocate(100));
    if (thread == 0) {
      const uint32_t other = (fabric.rank() + 1) % options.processes;
      targets[fabric.rank()] = must(internal::locate_for(fabric, other, place, 0, 100));
    }
    // Worker 1 of process 3 has no object of this type: that process forwards by service calls.
    std::optional<Global> global;
    if (fabric.rank() != 3 || thread != 1) global.emplace(*fabric.this_thread());
    local.meet(fabric.total_threads());
    if (fabric.rank() == 1 && thread == 1) {
      struct Long {
        uint8_t bytes[9000];
      };
      for (uint64_t i = 0; i < 4; ++i) {
        Synchronizer done;
        ASSERT_TRUE((*global).template broadcast<RemoteNotify>(
            [i] {
              if (runs[me()].fetch_add(1) == i) ++good;
            },
            done));
        ASSERT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
        EXPECT_EQ(done.status(), absl::OkStatus());
        EXPECT_EQ(good.load(), (i + 1) * fabric.total_threads());
      }
      good = 0;
      Synchronizer big, buffer;
      const Long data{};
      ASSERT_TRUE(
          (*global).template broadcast<RemoteNotify>([data] { good += 1 + data.bytes[7]; }, big));
      ASSERT_TRUE(fabric.wait([&] { return big.done(); }, soon()));
      EXPECT_EQ(big.status(), absl::OkStatus());
      RDMAMemory source = must(fabric.memory().allocate(100));
      std::memset(source.get_buffer(), 9, 100);
      ASSERT_TRUE((*global).template broadcast_buffer<RemoteNotify>(
          [](void* at, uint64_t size) {
            if (size == 100 && static_cast<uint8_t*>(at)[99] == 9) ++good;
          },
          &source, 0, 100, buffer));
      ASSERT_TRUE(fabric.wait([&] { return buffer.done(); }, soon()));
      EXPECT_EQ(buffer.status(), absl::OkStatus());
      EXPECT_EQ(good.load(), 2 * fabric.total_threads());
      // The calls may be stored while the buffers are written: no call may run before its buffer.
      good = 0;
      for (int i = 1; i <= 50; ++i) {
        Synchronizer placed;
        std::memset(source.get_buffer(), i, 100);
        ASSERT_TRUE((*global).template broadcast_buffer<RemoteNotify>(
            [i](void* at, uint64_t size) {
              if (size == 100 && static_cast<uint8_t*>(at)[99] == i) ++good;
            },
            &source, 0, 100, targets, placed));
        ASSERT_TRUE(fabric.wait([&] { return placed.done(); }, soon()));
        EXPECT_EQ(placed.status(), absl::OkStatus());
        EXPECT_EQ(good.load(), static_cast<uint64_t>(i) * fabric.total_threads());
      }
      ASSERT_TRUE((*global).broadcast([] { ended[me()] = true; }));
    }
    ASSERT_TRUE(wait_for_the_end(fabric));
    local.meet(fabric.total_threads());
    if (global) {
      EXPECT_TRUE(global->shutdown_all(soon()).ok());
    }
  });
}

TEST_P(Broadcast, OneSided) { broadcast_one_sided<RDMAMessengerGlobal>(job(5, 2)); }
TEST_P(Broadcast, OneSidedByAnAggregator) { broadcast_one_sided<RDMAAggregatorGlobal>(job(4, 2)); }

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
