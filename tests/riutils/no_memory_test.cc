// Receivers that find no memory to report the end of a call: no call runs twice, and each end is
// reported once. In every arrival mode on every transport that supports it. Senders whose transport
// finds no memory for a transfer: no call is lost, and the channel goes on. A process that finds no
// memory while it reports the failure of another one.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "dsfabric/completions.h"
#include "dsfabric/send_call.h"
#include "dtutils/fault/fault_device.h"
#include "dtutils/wait.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "riutils/messenger.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/fail_allocation.h"
#include "tests/riutils/testing/channel_rig.h"

namespace cariama {
namespace {

using internal::WhenNoRoom;
using testing::ChannelRig;
using testing::RigOptions;
using testing::RigTransport;

std::vector<uint64_t>* no_memory_log = nullptr;

struct QuietCall {
  uint64_t number;
  void operator()() const { no_memory_log->push_back(number); }
};

// The receiver reports the end of this call.
struct ThrowingCall {
  uint64_t number;
  void operator()() const {
    no_memory_log->push_back(number);
    throw std::runtime_error("a call that throws");
  }
};

class NoMemory : public ::testing::TestWithParam<RigOptions> {
 protected:
  void SetUp() override { no_memory_log = &log_; }

  std::vector<uint64_t> log_;
};
INSTANTIATE_TEST_SUITE_P(On, NoMemory, ::testing::ValuesIn(testing::every_rig()),
                         [](const auto& info) { return testing::rig_name(info.param); });

TEST_P(NoMemory, AReportIsRepeatedAndNoCallRunsAgain) {
  constexpr uint64_t kCalls = 8;
  constexpr WhenNoRoom kWhen = WhenNoRoom::of(Retry, false);
  ChannelRig rig(GetParam(), {.max_chunks = 4, .chunk_bytes = 1024});
  for (uint64_t i = 0; i < kCalls; ++i) {
    const CallResult sent = i == 3 || i == 6
                                ? rig.sender().send<true>(make_call(ThrowingCall{i}), kWhen)
                                : rig.sender().send<true>(make_call(QuietCall{i}), kWhen);
    ASSERT_TRUE(sent.ok());
  }
  ASSERT_TRUE(rig.sender().flush().ok());
  int failures = 3;
  rig.on_finished = [&] {
    if (failures-- > 0) throw std::bad_alloc();
  };
  int exceptions = 0;
  for (int i = 0; i < 100'000 && log_.size() < kCalls; ++i) {
    try {
      rig.receive();
    } catch (const std::bad_alloc&) {
      ++exceptions;
      EXPECT_EQ(log_.size(), 4u) << "no later call has run";
    }
  }
  ASSERT_TRUE(rig.receive_all());
  EXPECT_EQ(log_, (std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(rig.outcomes, (std::vector<CallOutcome>{CallOutcome::kThrew, CallOutcome::kThrew}));
  // The first failure ends the round. Each later one leaves run(), which had no other call to run.
  EXPECT_EQ(exceptions, 2);
  EXPECT_TRUE(rig.breaks.empty());
}

std::vector<RigOptions> fault_rigs() {
  std::vector<RigOptions> rigs = testing::every_rig();
  std::erase_if(rigs, [](const RigOptions& rig) {
    return rig.transport != RigTransport::kFaultShm && rig.transport != RigTransport::kFaultSim;
  });
  return rigs;
}

class NoMemoryForTransfers : public NoMemory {
 protected:
  static constexpr WhenNoRoom kWhen = WhenNoRoom::of(Retry, false);
};
INSTANTIATE_TEST_SUITE_P(On, NoMemoryForTransfers, ::testing::ValuesIn(fault_rigs()),
                         [](const auto& info) { return testing::rig_name(info.param); });

// The first transfer of each call finds no memory: that of its publication, or that of the end
// marker of the chunk in which it has no room.
TEST_P(NoMemoryForTransfers, PublicationsAndEndMarkersAreRepeated) {
  constexpr uint64_t kCalls = 200;
  ChannelRig rig(GetParam(), {.max_chunks = 4, .chunk_bytes = 1024});
  ASSERT_TRUE(rig.sender().setup().ok());
  uint64_t end_markers = 0;
  std::vector<uint64_t> expected;
  while (expected.size() < kCalls) {
    const QuietCall call{expected.size()};
    const uint64_t before = rig.sender().accepted_bytes();
    rig.faults->deny_memory(1);
    EXPECT_THROW(static_cast<void>(rig.sender().send<false>(make_call(call), kWhen)),
                 std::bad_alloc);
    rig.faults->deny_memory(0);
    if (rig.sender().accepted_bytes() != before) {
      ASSERT_TRUE(rig.sender().flush().ok());  // the call was accepted, but not published
    } else {
      ++end_markers;
      const CallResult sent = rig.sender().send<false>(make_call(call), kWhen);
      ASSERT_TRUE(sent.ok()) << sent;
    }
    expected.push_back(call.number);
    rig.receive();
  }
  ASSERT_TRUE(rig.receive_all());
  EXPECT_EQ(log_, expected);
  EXPECT_GE(end_markers, 2u);
  EXPECT_TRUE(rig.sender().failure().ok()) << rig.sender().failure();
  EXPECT_TRUE(rig.breaks.empty());
}

TEST_P(NoMemoryForTransfers, TheEndOfAChannelIsRepeated) {
  ChannelRig rig(GetParam(), {.max_chunks = 4, .chunk_bytes = 1024});
  ASSERT_TRUE(rig.sender().send<false>(make_call(QuietCall{0}), kWhen).ok());
  rig.faults->deny_memory(1);
  const absl::Status ended = rig.sender().shutdown(deadline_after(testing::kPatience));
  EXPECT_TRUE(ended.ok()) << ended;
  ASSERT_NE(rig.receiver(), nullptr);
  EXPECT_TRUE(wait_until(
      [&] {
        rig.receive();
        return rig.receiver()->ended();
      },
      deadline_after(testing::kPatience)));
  EXPECT_EQ(log_, std::vector<uint64_t>{0});
  EXPECT_TRUE(rig.breaks.empty());
}

// In a job: the receiver is idle when it has consumed a chunk. Its transport has no memory for the
// transfer of the count, for the credit of an event that wakes it, or to arm a remote doorbell.
TEST(NoMemoryInAJob, AnIdleReceiverGoesOn) {
  using testing::must;
  static FaultControl* faults;
  static std::atomic<bool> finished;
  finished = false;
  testing::LocalJob job({.processes = 2, .transport = testing::transport_case("fault_shm")});
  faults = job.faults(1);
  ASSERT_NE(faults, nullptr);
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait([] { return finished.load(); }, testing::soon()));
      return;
    }
    RDMAMessenger messenger(*fabric.this_thread(), 1);
    must(messenger.call([] { faults->deny_memory(3); }));
    must(messenger.shutdown(testing::soon()));
    EXPECT_EQ(messenger.statistics().chunks_filled, 1u);
    EXPECT_TRUE(fabric.wait_polling([&] { return messenger.statistics().chunks_consumed == 1; },
                                    testing::soon()));
    faults->deny_memory(0);
    must(call(fabric, 1, [] { finished = true; }));
  });
}

// The call of rank 0 ends by the failure of rank 2, in the service thread. The callback of the call
// makes the next allocation of this thread fail, with which the failure would be passed on to the
// channels. The rest of the report is repeated: rank 1, which is not connected to rank 2, hears of
// the failure from rank 0.
TEST(FailuresWithoutMemory, AreReportedWhenThereIsMemory) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  testing::LocalJobOptions options{.processes = 3,
                                   .transport = testing::transport_case("fault_shm")};
  options.faults = [](uint64_t seed) {
    FaultOptions faults;
    faults.seed = seed;
    return faults;
  };
  options.fabric.heartbeat = std::chrono::milliseconds(20);
  options.finalize = false;
  testing::LocalJob job(options);
  static std::atomic<const size_t*> failing;  // that of the service thread
  static std::atomic<bool> told;
  failing = nullptr;
  told = false;
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(
          wait_until([&] { return absl::IsUnavailable(fabric.peer_status(2)); }, testing::soon()));
      told = true;
      return;
    }
    if (fabric.rank() == 2) {
      // Runs no calls, so that the call of rank 0 waits.
      EXPECT_TRUE(wait_until([] { return told.load(); }, testing::soon()));
      return;
    }
    RDMAMessenger messenger(*fabric.this_thread(), 1);
    testing::must(messenger.setup());
    // The callback of a thread that is no worker runs in the thread that ends the call.
    std::thread([&] {
      testing::must(call(
          fabric, fabric.thread_of(2), [] {}, on_consumed([](const absl::Status& lost) {
            EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
            failing = &testing::failing_bytes;
            testing::failing_bytes = 1;
          })));
    }).join();
    job.faults(0)->lose_peer(fabric.label(2));
    // Does not poll: the service thread detects the failure.
    EXPECT_TRUE(wait_until([] { return told.load(); }, testing::soon()));
    ASSERT_NE(failing.load(), nullptr);
    EXPECT_EQ(*failing.load(), 0u) << "no allocation has failed";
    EXPECT_EQ(messenger.shutdown(testing::soon()), absl::OkStatus());
  });
}

std::atomic<uint64_t> calls_of_destroyed;

// A messenger that is destroyed with a batch that it has not published, by a thread that finds no
// memory: its calls run nevertheless.
TEST(MessengersWithoutMemory, AreDestroyed) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  calls_of_destroyed = 0;
  uint64_t destroyed = 0;
  testing::LocalJob job({.processes = 2});
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) return;  // finalize() runs the calls
    for (size_t skips = 0; testing::failing_bytes == 0; ++skips) {
      ASSERT_LT(skips, 1000u);
      std::optional<RDMAMessenger> messenger(std::in_place, *fabric.this_thread(),
                                             fabric.thread_of(1));
      testing::must(messenger->setup());
      testing::must(messenger->call([] { ++calls_of_destroyed; }));
      testing::failing_skips = skips;
      testing::failing_bytes = 1;
      messenger.reset();
      ++destroyed;
    }
    testing::failing_bytes = testing::failing_skips = 0;
  });
  EXPECT_EQ(calls_of_destroyed, destroyed);
}

}  // namespace
}  // namespace cariama
