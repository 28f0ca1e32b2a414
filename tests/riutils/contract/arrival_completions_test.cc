// One-sided calls cost their receiver no receive completion. Exception: with Arrival::kEvent each
// publication costs one.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama {
namespace {

using testing::LocalJob;
using testing::must;
using testing::soon;
using testing::transport_case;

// `order`: that of a simulated network, which delivers WRITEs in pieces unless it is kWrites.
struct CompletionsCase {
  const char* name;
  const char* transport;
  Arrival arrival;
  ArrivalOrder order = ArrivalOrder::kWrites;
};
void PrintTo(const CompletionsCase& completions, std::ostream* out) { *out << completions.name; }

class ArrivalCompletions : public ::testing::TestWithParam<CompletionsCase> {
 protected:
  void SetUp() override {
    const std::string reason = testing::reason_to_skip(transport_case(GetParam().transport));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};
INSTANTIATE_TEST_SUITE_P(
    On, ArrivalCompletions,
    ::testing::Values(CompletionsCase{"shm_mapped", "shm", Arrival::kAuto},
                      CompletionsCase{"shm_polled", "shm", Arrival::kPolled},
                      CompletionsCase{"shm_event", "shm", Arrival::kEvent},
                      CompletionsCase{"sim_polled", "sim", Arrival::kPolled},
                      CompletionsCase{"sim_trailing_within", "sim", Arrival::kTrailing,
                                      ArrivalOrder::kWithinWrite},
                      CompletionsCase{"sim_trailing_bytes", "sim", Arrival::kTrailing,
                                      ArrivalOrder::kBytes},
                      CompletionsCase{"sim_event", "sim", Arrival::kEvent},
                      CompletionsCase{"verbs_event", "verbs", Arrival::kEvent}),
    [](const auto& info) { return std::string(info.param.name); });

// Both processes of the job are in this program.
std::atomic<uint32_t> completions_ran{0};
std::atomic<bool> completions_ready{false};
std::atomic<bool> completions_measured{false};

constexpr uint32_t kSingleCalls = 8;
constexpr uint32_t kBatchedCalls = 20;

void count_completions_call() { ++completions_ran; }

// Rank 0. Sends one call that sets the channel up, kSingleCalls that are published one by one, and
// one batch. Each publication has run before the next one is sent.
void send_calls(Fabric& fabric, Arrival arrival) {
  const auto ran = [&](uint32_t calls) {
    return fabric.wait_polling([calls] { return completions_ran == calls; }, soon());
  };
  MessengerOptions options;
  options.first_chunk_bytes = options.chunk_bytes = 32 << 10;  // the first chunk takes all calls
  options.arrival = arrival;
  RDMAMessenger messenger(*fabric.this_thread(), fabric.thread_of(1), options);
  RDMAAggregator batches(messenger);
  ASSERT_TRUE(messenger.call([] { count_completions_call(); }));
  ASSERT_TRUE(ran(1));
  ASSERT_TRUE(fabric.wait_polling([] { return completions_ready.load(); }, soon()));
  const uint64_t events = messenger.statistics().events;
  for (uint32_t i = 0; i < kSingleCalls; ++i) {
    ASSERT_TRUE(messenger.call([] { count_completions_call(); }));
    ASSERT_TRUE(ran(1 + i + 1));
  }
  for (uint32_t i = 0; i < kBatchedCalls; ++i) {
    ASSERT_TRUE(batches.call([] { count_completions_call(); }));
  }
  ASSERT_TRUE(batches.flush().ok());
  ASSERT_TRUE(ran(1 + kSingleCalls + kBatchedCalls));
  ASSERT_TRUE(fabric.wait_polling([] { return completions_measured.load(); }, soon()));
  EXPECT_EQ(messenger.statistics().events - events,
            arrival == Arrival::kEvent ? kSingleCalls + 1 : 0u);
  EXPECT_EQ(messenger.statistics().wakes, 0u) << "the receiver polls";
  must(messenger.shutdown(soon()));
}

// Rank 1 polls, and does not sleep: to wake a sleeping thread takes a completion.
void receive_calls(Fabric& fabric, Arrival arrival) {
  ASSERT_TRUE(fabric.wait_polling([] { return completions_ran == 1; }, soon()));
  const uint64_t before = fabric.statistics().receives;
  completions_ready = true;
  constexpr uint32_t kAll = 1 + kSingleCalls + kBatchedCalls;
  ASSERT_TRUE(fabric.wait_polling([] { return completions_ran == kAll; }, soon()));
  EXPECT_EQ(fabric.statistics().receives - before,
            arrival == Arrival::kEvent ? kSingleCalls + 1 : 0u);
  completions_measured = true;
}

TEST_P(ArrivalCompletions, AreNoneExceptOneForEachAnnouncedPublication) {
  completions_ran = 0;
  completions_ready = completions_measured = false;
  testing::LocalJobOptions options;
  options.processes = 2;
  options.transport = transport_case(GetParam().transport);
  options.sim.write_order = GetParam().order;
  if (GetParam().order != ArrivalOrder::kWrites) {
    options.sim.torn_spread = std::chrono::nanoseconds(2000);
  }
  LocalJob local(options);
  local.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      send_calls(fabric, GetParam().arrival);
    } else {
      receive_calls(fabric, GetParam().arrival);
    }
  });
}

}  // namespace
}  // namespace cariama
