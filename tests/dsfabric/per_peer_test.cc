// Records that are created on first use, and the records that a fabric has of its peers.
#include "dsfabric/internal/per_peer.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "dsfabric/fabric.h"
#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using internal::PerPeer;

TEST(PerPeer, CreatesRecordsOnFirstUseOnly) {
  PerPeer<uint32_t> records(1000);
  EXPECT_EQ(records.size(), 1000u);
  EXPECT_EQ(records.count(), 0u);
  EXPECT_EQ(records.find(999), nullptr);
  EXPECT_EQ(records.get(999, 7u), 7u);
  EXPECT_EQ(records.get(999, 8u), 7u);
  EXPECT_EQ(records.get(31, 3u), 3u);
  EXPECT_EQ(records.get(32, 4u), 4u);
  EXPECT_EQ(records.find(998), nullptr);
  EXPECT_EQ(*records.find(999), 7u);
  std::vector<std::pair<uint32_t, uint32_t>> seen;
  records.for_each([&](uint32_t rank, uint32_t record) { seen.emplace_back(rank, record); });
  const std::vector<std::pair<uint32_t, uint32_t>> expected{{31, 3}, {32, 4}, {999, 7}};
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(records.count(), 3u);
}

// All threads get one record, so that no count is lost.
TEST(PerPeer, ThreadsThatRaceToCreateARecordShareIt) {
  constexpr uint32_t kRecords = 200;
  constexpr uint32_t kThreads = 4;
  PerPeer<std::atomic<uint32_t>> records(kRecords);
  std::atomic<uint32_t> waiting{kThreads};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      --waiting;
      while (waiting != 0) std::this_thread::yield();
      for (uint32_t rank = 0; rank < kRecords; ++rank) ++records.get(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(records.count(), kRecords);
  records.for_each(
      [&](uint32_t, const std::atomic<uint32_t>& count) { EXPECT_EQ(count.load(), kThreads); });
}

// Of P processes, the one that calls k others has k records, each of these has one, and the others
// have none.
TEST(PerPeer, AFabricHasRecordsOfTheProcessesThatItHasUsed) {
  constexpr uint32_t kProcesses = 12;
  const std::vector<uint32_t> called{2, 5, 11};
  LocalJob job({.processes = kProcesses, .transport = transport_case("sim")});
  std::atomic<bool> done{false};
  std::vector<uint64_t> records(kProcesses);
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      EXPECT_EQ(fabric.statistics().peer_records, 0u);
      for (const uint32_t rank : called) {
        must(async_call(fabric, fabric.thread_of(Rank(rank)), [] {}).get(soon()));
      }
      // Asking for the state of a process is no use of it.
      must(fabric.peer_status(Rank(7)));
      done = true;
    }
    EXPECT_TRUE(fabric.wait([&] { return done.load(); }, soon()));
    records[fabric.rank()] = fabric.statistics().peer_records;
  });
  std::vector<uint64_t> expected(kProcesses);
  expected[0] = called.size();
  for (const uint32_t rank : called) expected[rank] = 1;
  EXPECT_EQ(records, expected);
}

}  // namespace
}  // namespace cariama::testing
