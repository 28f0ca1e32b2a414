#include "dsfabric/collectives/refusals.h"

#include <chrono>
#include <thread>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

TEST(Refusals, CountWhenTheyLast) {
  const absl::Status full = absl::ResourceExhaustedError("raise ulimit -n");
  Refusals refusals;
  refusals.note(1, full);
  refusals.note(2, full);
  EXPECT_EQ(refusals.error(1), absl::OkStatus());
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(refusals.error(1), full);
  EXPECT_EQ(refusals.error(0), absl::OkStatus());
  refusals.note(1, absl::DeadlineExceededError("late"));
  EXPECT_EQ(refusals.error(1), full);
  refusals.note(1, absl::OkStatus());
  EXPECT_EQ(refusals.error(1), absl::OkStatus());
  refusals.note(1, full);
  EXPECT_EQ(refusals.error(1), absl::OkStatus());
  EXPECT_EQ(refusals.error(2), full);
}

}  // namespace
}  // namespace cariama::internal
