// Calls that are not refused although calls to other processes have used up deferred_bytes: the
// sender does not repeat them.
#include <atomic>

#include "dsfabric/fabric.h"
#include "dsfabric/remote_memory.h"
#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

// Ranks 1 and 2 do not receive until rank 0 lets them.
class UnlimitedCalls : public ::testing::Test {
 protected:
  [[nodiscard]] static LocalJobOptions job_of(uint32_t processes, const char* transport) {
    LocalJobOptions options{.processes = processes, .transport = transport_case(transport)};
    options.fabric.service_threads = 0;
    options.fabric.receive_units = 2;
    options.fabric.deferred_bytes = 1;
    return options;
  }
  static void connect(Fabric& fabric, Rank rank) {
    Synchronizer connected;
    must(service_call<RemoteNotify>(
        fabric, rank, [] {}, connected));
    must(fabric.wait(connected, soon()));
  }
  // For rank 0: uses up the credits for ranks 1 and 2, and deferred_bytes with calls to rank 2.
  void use_up(Fabric& fabric) {
    stall_ = true;
    EXPECT_TRUE(wait_until([&] { return stalled_.load() == 2; }, soon()));
    for (const Rank rank : {Rank(1), Rank(2)}) {
      absl::Status sent;
      while (sent.ok()) sent = service_call<Fail>(fabric, rank, [] {}).status();
      EXPECT_TRUE(absl::IsResourceExhausted(sent)) << sent;
    }
    for (const Rank rank : {Rank(2), Rank(1)}) {
      absl::Status deferred;
      while (deferred.ok()) deferred = service_call<RetryAsync>(fabric, rank, [] {}).status();
      EXPECT_TRUE(absl::IsResourceExhausted(deferred)) << deferred;
    }
  }
  // For ranks 1 and 2: receives nothing while rank 0 sends.
  void stall(Fabric& fabric) {
    EXPECT_TRUE(fabric.wait_polling([&] { return stall_.load(); }, soon()));
    ++stalled_;
    EXPECT_TRUE(wait_until([&] { return go_.load(); }, soon()));
  }
  // Runs calls until `count` processes have called this function.
  void meet(Fabric& fabric, int count) {
    ++ended_;
    EXPECT_TRUE(fabric.wait_polling([&] { return ended_.load() >= count; }, soon()));
  }

  std::atomic<bool> stall_{false};
  std::atomic<int> stalled_{0};
  std::atomic<bool> go_{false};
  std::atomic<int> ended_{0};
};

TEST_F(UnlimitedCalls, RemoteMemoryIsFreed) {
  constexpr size_t kBytes = 4096;
  LocalJob job(job_of(3, "shm"));
  std::atomic<uint64_t> address{0};
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      RemoteMemory memory = must(RemoteMemory::allocate(fabric, 1, kBytes, soon()));
      address = memory.address().address;
      connect(fabric, 2);
      use_up(fabric);
      memory.free();
      go_ = true;
    } else {
      stall(fabric);
      if (fabric.rank() == 1) {
        EXPECT_TRUE(fabric.wait_polling(
            [&] { return !RemoteMemory::contains(fabric, address, kBytes); }, soon()));
      }
    }
    meet(fabric, 3);
  });
}

// Ranks 1 and 2 are not connected to the lost process, so that they learn of its loss from rank 0
// only.
TEST_F(UnlimitedCalls, ADeathIsReported) {
  LocalJobOptions options = job_of(4, "fault_shm");
  options.finalize = false;
  LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      for (const uint32_t rank : {1u, 2u, 3u}) connect(fabric, rank);
      use_up(fabric);
      job.faults(0)->lose_peer(fabric.label(3));
      Synchronizer never;
      const CallResult lost = service_call<RemoteNotify>(
          fabric, 3, [] {}, never);
      EXPECT_TRUE(absl::IsUnavailable(lost.ok() ? fabric.wait(never, soon()) : lost.status()));
      EXPECT_TRUE(fabric.wait_polling([&] { return !fabric.peer_status(3).ok(); }, soon()));
      go_ = true;
    } else if (fabric.rank() != 3) {
      stall(fabric);
      EXPECT_TRUE(fabric.wait_polling([&] { return !fabric.peer_status(3).ok(); }, soon()));
    }
    meet(fabric, 4);
  });
}

}  // namespace
}  // namespace cariama::testing
