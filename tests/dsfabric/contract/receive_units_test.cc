// The receive units of a process: many senders share a budget of them, and idle senders return
// them.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "dsfabric/fabric.h"
#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

constexpr uint32_t kUnitBytes = 512;
constexpr uint64_t kSharedUnits = 4;
constexpr uint32_t kSenders = 3;
constexpr uint64_t kCalls = 200;

// The number of the next call, by rank of its sender.
std::array<std::atomic<uint64_t>, 1 + kSenders> units_test_next;
std::atomic<uint64_t> units_test_wrong;
std::atomic<bool> units_test_grown;
std::atomic<bool> units_test_returned;

// The bytes of the receive units that are not reserved.
uint64_t shared_bytes(const Fabric& fabric) {
  const FabricStatistics now = fabric.statistics();
  return now.receive_bytes - now.connections * kUnitBytes;
}

// Runs in the receiver.
void take(uint32_t from, uint64_t number) {
  if (units_test_next[from] != number) ++units_test_wrong;
  ++units_test_next[from];
  const uint64_t bytes = shared_bytes(*running_fabric());
  if (bytes > kSharedUnits * kUnitBytes) ++units_test_wrong;
  if (bytes > 0) units_test_grown = true;
}

void send_numbered(Fabric& fabric, uint64_t number) {
  const uint32_t from = fabric.rank();
  must(call(fabric, 0, [from, number] { take(from, number); }));
}

class ReceiveUnitsContract : public ::testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_to_skip(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    for (auto& next : units_test_next) next = 0;
    units_test_wrong = 0;
    units_test_grown = units_test_returned = false;
  }
  LocalJobOptions job_of(uint32_t processes) {
    LocalJobOptions options{.processes = processes, .transport = GetParam()};
    options.fabric.receive_units = 8;
    options.fabric.receive_unit_bytes = kUnitBytes;
    options.fabric.reserved_units = 1;
    options.fabric.shared_unit_bytes = kSharedUnits * kUnitBytes;
    return options;
  }
};

// The senders together would use 24 units. There are 7: one for each of them, and the budget.
TEST_P(ReceiveUnitsContract, ManySendersShareTheBudget) {
  LocalJobOptions options = job_of(1 + kSenders);
  options.fabric.return_units_after = std::chrono::hours(1);
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) {
      for (uint64_t i = 0; i < kCalls; ++i) send_numbered(fabric, i);
      return;
    }
    EXPECT_TRUE(fabric.wait(
        [] {
          for (uint32_t from = 1; from <= kSenders; ++from) {
            if (units_test_next[from] < kCalls) return false;
          }
          return true;
        },
        soon()));
    EXPECT_EQ(shared_bytes(fabric), kSharedUnits * kUnitBytes);
  });
  EXPECT_EQ(units_test_wrong, 0u);
  if (job.sim() != nullptr && !GetParam().fault) {  // a fault device posts receives late
    EXPECT_EQ(job.sim()->statistics().receiver_not_ready, 0u);
  }
}

TEST_P(ReceiveUnitsContract, AnIdleSenderReturnsItsUnits) {
  LocalJobOptions options = job_of(2);
  options.fabric.heartbeat = std::chrono::milliseconds(1);
  options.fabric.return_units_after = std::chrono::milliseconds(0);
  LocalJob job(options);
  static std::atomic<uint64_t> sent;
  sent = 0;
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) {
      const Deadline end = soon();
      while (!units_test_grown && std::chrono::steady_clock::now() < end)
        send_numbered(fabric, sent++);
      EXPECT_TRUE(fabric.wait_polling([] { return units_test_returned.load(); }, soon()));
      for (uint64_t i = 0; i < kCalls; ++i) send_numbered(fabric, sent++);
      return;
    }
    EXPECT_TRUE(fabric.wait_polling([] { return units_test_grown.load(); }, soon()));
    EXPECT_TRUE(fabric.wait_polling([&] { return shared_bytes(fabric) == 0; }, soon()));
    units_test_returned = true;
  });
  EXPECT_EQ(units_test_wrong, 0u);
  EXPECT_EQ(units_test_next[1], sent);
}

INSTANTIATE_TEST_SUITE_P(On, ReceiveUnitsContract, ::testing::ValuesIn(every_transport()),
                         transport_of);

}  // namespace
}  // namespace cariama::testing
