// The order of the uses of a thread when their numbers wrap.
#include "dtutils/internal/use_queue.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

// All uses begin at one time, so only their numbers tell their order.
TEST(UseQueue, KeepsTheOrderOfUsesWhenTheirNumbersWrap) {
  constexpr int kUses = 6;
  use_numbers().begun = UINT32_MAX - 2;
  UseQueue queue(8);
  for (uint64_t i = 0; i < kUses; ++i) {
    RegionUse use;
    use.bytes = i;
    number_use(use);
    EXPECT_EQ(use.thread, use_numbers().thread);
    queue.push(use);
  }
  EXPECT_EQ(use_numbers().begun, 3u);  // the numbers have wrapped
  uint64_t overwritten = 0;
  UseRecord last;
  ASSERT_TRUE(queue.pop(last, overwritten));
  for (uint64_t i = 1; i < kUses; ++i) {
    UseRecord next;
    ASSERT_TRUE(queue.pop(next, overwritten));
    EXPECT_EQ(next.bytes, i);
    EXPECT_TRUE(last.precedes(next)) << i;
    EXPECT_FALSE(next.precedes(last)) << i;
    last = next;
  }
  UseRecord none;
  EXPECT_FALSE(queue.pop(none, overwritten));
  EXPECT_EQ(overwritten, 0u);
}

}  // namespace
}  // namespace cariama::internal
