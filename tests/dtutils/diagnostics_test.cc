#include "dtutils/diagnostics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

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

TEST(Diagnostics, AreSaidOnceByManyThreads) {
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

// A sink may use the functions itself: no lock is held around it.
TEST(Diagnostics, SinkMayReport) {
  set_diagnostic_sink([](const Diagnostic& d) {
    if (d.key == "test.outer") report_once("test.inner", "what", "remedy");
  });
  report_once("test.outer", "what", "remedy");
  set_diagnostic_sink({});
  EXPECT_EQ(recorded("test.inner"), 1u);
}

}  // namespace
}  // namespace cariama
