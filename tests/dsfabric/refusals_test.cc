#include "dsfabric/collectives/refusals.h"

#include <chrono>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

TEST(Refusals, CountWhenTheyLast) {
  const absl::Status full = absl::ResourceExhaustedError("raise ulimit -n");
  const Refusals::Time start{};
  const Refusals::Time later = start + std::chrono::seconds(2);
  Refusals refusals;
  refusals.note(1, full, start);
  refusals.note(2, full, start);
  EXPECT_EQ(refusals.error(1, start), absl::OkStatus());
  EXPECT_EQ(refusals.error(1, later), full);
  EXPECT_EQ(refusals.error(0, later), absl::OkStatus());
  refusals.note(1, absl::DeadlineExceededError("late"), later);
  EXPECT_EQ(refusals.error(1, later), full);
  refusals.note(1, absl::OkStatus(), later);
  EXPECT_EQ(refusals.error(1, later), absl::OkStatus());
  refusals.note(1, full, later);
  EXPECT_EQ(refusals.error(1, later), absl::OkStatus());
  EXPECT_EQ(refusals.error(2, later), full);
}

}  // namespace
}  // namespace cariama::internal
