#include "dtutils/diagnostics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "dtutils/wait.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama {
namespace {

size_t recorded(const std::string& key) {
  const std::vector<Diagnostic> all = reported_diagnostics();
  return static_cast<size_t>(
      std::count_if(all.begin(), all.end(), [&key](const Diagnostic& d) { return d.key == key; }));
}

TEST(Diagnostics, GoToStderrOnceAndAreRecorded) {
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(report_once("test.stderr", "no gold, using silver", "dig deeper"));
  EXPECT_FALSE(report_once("test.stderr", "no gold, using silver", "dig deeper"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "cariama: no gold, using silver: dig deeper\n");
  EXPECT_EQ(recorded("test.stderr"), 1u);
}

TEST(Diagnostics, GoToTheSinkInstead) {
  std::vector<Diagnostic> got;
  set_diagnostic_sink([&got](const Diagnostic& d) { got.push_back(d); });
  ::testing::internal::CaptureStderr();
  report_once("test.sink", "what", "remedy");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(static_cast<bool>(set_diagnostic_sink({})));
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].key, "test.sink");
  EXPECT_EQ(got[0].what, "what");
  EXPECT_EQ(got[0].remedy, "remedy");
}

TEST(Diagnostics, AreReportedOnceByManyThreads) {
  std::atomic<int> said{0};
  set_diagnostic_sink([&said](const Diagnostic&) { said.fetch_add(1); });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int key = 0; key < 50; ++key) {
        report_once("test.threads." + std::to_string(key), "what", "remedy");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  set_diagnostic_sink({});
  EXPECT_EQ(said.load(), 50);
}

// A sink may call report_once() itself: no lock is held while the sink runs.
TEST(Diagnostics, SinkMayReport) {
  set_diagnostic_sink([](const Diagnostic& d) {
    if (d.key == "test.outer") report_once("test.inner", "what", "remedy");
  });
  report_once("test.outer", "what", "remedy");
  set_diagnostic_sink({});
  EXPECT_EQ(recorded("test.inner"), 1u);
}

// Returns how often `part` occurs in `text`.
size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Diagnostics, ProcessesOfAGroupWriteEachKeyOnceTogether) {
  ::testing::internal::CaptureStderr();
  testing::run_test_processes(3, [](Exchange& exchange) {
    EXPECT_TRUE(report_once("test.group", "no gold, using silver", "dig deeper"));
    EXPECT_EQ(recorded("test.group"), 1u);
    // A key of one process only is written, whichever process it is.
    if (exchange.rank() == 2) report_once("test.rank2", "no silver, using iron", "dig deeper");
    EXPECT_TRUE(exchange.fence(deadline_after(std::chrono::seconds(30))).ok());
  });
  const std::string written = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(occurrences(written, "no gold, using silver: dig deeper\n"), 1u) << written;
  EXPECT_EQ(occurrences(written, "no silver, using iron: dig deeper\n"), 1u) << written;
}

TEST(Diagnostics, SinksGetWhatAnotherProcessHasWritten) {
  testing::run_test_processes(2, [](Exchange& exchange) {
    int got = 0;
    set_diagnostic_sink([&got](const Diagnostic&) { ++got; });
    report_once("test.group_sink", "what", "remedy");
    EXPECT_EQ(got, 1);
    set_diagnostic_sink({});
    EXPECT_TRUE(exchange.fence(deadline_after(std::chrono::seconds(30))).ok());
  });
}

TEST(Diagnostics, GroupsOfProcessesDoNotShare) {
  ::testing::internal::CaptureStderr();
  for (int group = 0; group < 2; ++group) {
    testing::run_test_processes(
        1, [](Exchange&) { report_once("test.groups", "no gold, using silver", "dig deeper"); });
  }
  const std::string written = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(occurrences(written, "no gold, using silver: dig deeper\n"), 2u) << written;
}

}  // namespace
}  // namespace cariama
