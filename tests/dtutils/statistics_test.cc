#include "dtutils/statistics.h"

#include <atomic>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/testing/fail_allocation.h"
#include "tests/dtutils/testing/json.h"

namespace cariama {
namespace {

using ::testing::ElementsAre;
using testing::parse_json;

// An object with counters, built like those of the layers.
struct Pump {
  Counter strokes;
  Counter faults;
  CounterSet counters;

  Pump(const std::string& kind, const std::string& name)
      : counters(kind, name, [this] {
          return CounterSet::Values{{"strokes", strokes.value()}, {"faults", faults.value()}};
        }) {}
};

// The registry belongs to the process, so each test uses kinds of its own.
std::vector<Statistic> of_kind(const std::string& kind) {
  std::vector<Statistic> found;
  for (Statistic& statistic : statistics_snapshot()) {
    if (statistic.kind == kind) found.push_back(std::move(statistic));
  }
  return found;
}

TEST(StatisticsTest, SnapshotReadsLivingObjects) {
  Pump left("living", "left");
  Pump right("living", "right");
  left.strokes.add(3);
  right.faults.add();
  EXPECT_THAT(of_kind("living"), ElementsAre(Statistic{"living", "left", "strokes", 3},
                                             Statistic{"living", "left", "faults", 0},
                                             Statistic{"living", "right", "strokes", 0},
                                             Statistic{"living", "right", "faults", 1}));
}

// The destructor of a counted object must not throw.
TEST(StatisticsTest, AnObjectEndsWithoutMemory) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  auto pump = std::make_unique<Pump>("without memory", "pump");
  {
    const testing::FailAllocation fail(1);
    pump.reset();
    EXPECT_EQ(testing::failing_bytes, 0u) << "the test has failed no allocation";
  }
  EXPECT_TRUE(of_kind("without memory").empty());
}

TEST(StatisticsTest, ClosedObjectsAreSummedUp) {
  for (int i = 1; i <= 3; ++i) {
    Pump pump("closed", "pump");
    pump.strokes.add(i);
  }
  const Pump last("closed", "last");
  EXPECT_THAT(of_kind("closed"),
              ElementsAre(Statistic{"closed", std::string(kClosed), "strokes", 6},
                          Statistic{"closed", std::string(kClosed), "faults", 0},
                          Statistic{"closed", "last", "strokes", 0},
                          Statistic{"closed", "last", "faults", 0}));
}

TEST(StatisticsTest, RenameNamesLaterSnapshots) {
  Pump pump("renamed", "queue pair 7");
  pump.counters.rename("to rank 3");
  EXPECT_EQ(of_kind("renamed").at(0).instance, "to rank 3");
}

TEST(StatisticsTest, JsonIsOneObjectALine) {
  Pump pump("json", "a \"quoted\"\nname");
  pump.strokes.add(UINT64_MAX);
  std::istringstream lines(statistics_json());
  size_t found = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto parsed = parse_json(line);
    ASSERT_TRUE(parsed.has_value()) << line;
    if (parsed->at("name").string() != "json.strokes") continue;
    ++found;
    EXPECT_EQ(parsed->at("of").string(), "a \"quoted\"\nname");
    EXPECT_EQ(parsed->at("value").number_text(), "18446744073709551615");
  }
  EXPECT_EQ(found, 1U);
}

// Takes snapshots while threads count and while objects are created and destroyed. No snapshot
// shows a torn value, and at the end no count is lost.
TEST(StatisticsTest, SnapshotsDuringWrites) {
  constexpr int kThreads = 3;
  constexpr int kObjects = 50;
  constexpr int kStrokes = 200;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  std::atomic<uint64_t> shared{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kObjects; ++i) {
        Pump pump("beside", "x");
        for (int s = 0; s < kStrokes; ++s) {
          pump.strokes.add();
          ++shared;
        }
        pump.counters.rename("y");
      }
      running.fetch_sub(1);
    });
  }
  uint64_t last = 0;
  do {
    uint64_t sum = 0;
    for (const Statistic& statistic : of_kind("beside")) sum += statistic.value;
    EXPECT_GE(sum, last);
    last = sum;
  } while (running.load() != 0);
  for (std::thread& thread : threads) thread.join();
  constexpr uint64_t kAll = uint64_t{kThreads} * kObjects * kStrokes;
  EXPECT_EQ(shared, kAll);
  EXPECT_EQ(of_kind("beside").at(0), (Statistic{"beside", std::string(kClosed), "strokes", kAll}));
}

}  // namespace
}  // namespace cariama
