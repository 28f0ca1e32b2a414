// Calls whose senders wait, and run other calls meanwhile.
#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "dtutils/synchronizer.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A call that waits for room in the buffer of its own process runs other calls meanwhile. One of
// them changes the argument. The call that waits has its former value.
TEST(WaitingCalls, AnArgumentMayChangeMeanwhile) {
  static std::string text;
  static std::vector<size_t> lengths;
  text = std::string(100, 'x');
  lengths.clear();
  LocalJob job({.processes = 1, .fabric = {.buffered_bytes = 1024}});
  job.run([&](Fabric& fabric, uint32_t) {
    for (int i = 0; i < 20; ++i) {
      must(call(
          fabric, 0,
          [](const std::string& its) {
            EXPECT_EQ(its, std::string(its.size(), 'x'));
            lengths.push_back(its.size());
            text += text.size() < 400 ? text : "";
          },
          text));
    }
    while (fabric.process_calls() != 0) {
    }
  });
  ASSERT_EQ(lengths.size(), 20u);
  // Calls waited: a later one has a longer text than the first one.
  EXPECT_EQ(lengths.front(), 100u);
  EXPECT_EQ(lengths.back(), 400u);
}

TEST(WaitingCalls, AnErrorSaysWhyTheThreadRunsNoCalls) {
  LocalJob job({.processes = 1});
  job.run([&](Fabric& fabric, uint32_t) {
    const auto text_of = [](const absl::Status& status) { return std::string(status.message()); };
    const auto late = [&] {
      const Synchronizer never(1);
      return text_of(fabric.wait(never, Deadline::min()));
    };
    EXPECT_THAT(late(), Not(HasSubstr("ran no calls")));
    std::thread([&] {
      EXPECT_THAT(late(), HasSubstr("it has not called init_thread()"));
      Future<void> run = async_call(fabric, 0, [] {});
      EXPECT_THAT(text_of(run.get(Deadline::min())), HasSubstr("it has not called init_thread()"));
    }).join();
    std::string inside;
    must(call(fabric, 0, [text = &inside, wait = &late] { *text = (*wait)(); }));
    while (inside.empty()) fabric.process_calls();
    EXPECT_THAT(inside, HasSubstr("inside of a call"));
  });
}

}  // namespace
}  // namespace cariama::testing
