#include "dsfabric/internal/roll_call.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Said = std::vector<std::optional<Presence>>;

Presence says(uint64_t begun, uint64_t over, std::vector<uint32_t> lost = {},
              std::vector<uint32_t> lost_before = {}) {
  return {.begun = begun, .over = over, .lost = std::move(lost), .lost_before = lost_before};
}

TEST(RollCallTest, SumsUp) {
  const RollCall result = call_roll(Said{says(1, 4), says(2, 5), says(3, 6)});
  EXPECT_EQ(result.begun, 6u);
  EXPECT_EQ(result.over, 15u);
  EXPECT_THAT(result.without, IsEmpty());
  EXPECT_TRUE(result.agreed);
}

// Agreed only once all who are there leave out just those who are not.
TEST(RollCallTest, TheDeadAreLeftOutByAllOrByNobody) {
  RollCall result = call_roll(Said{says(1, 1, {1}), {}, says(1, 1), says(5, 5, {1})});
  EXPECT_THAT(result.without, ElementsAre(1));
  EXPECT_EQ(result.begun, 7u);
  EXPECT_FALSE(result.agreed);
  result = call_roll(Said{says(1, 1, {1}), {}, says(1, 1, {1}), says(5, 5, {1})});
  EXPECT_TRUE(result.agreed);
}

// It was killed after it spoke: that it lives is certain only if it comes once more.
TEST(RollCallTest, WhoSpokeBeforeItDiedCostsNobodyHisPlace) {
  RollCall result = call_roll(Said{says(1, 1), says(1, 1), says(1, 1, {1})});
  EXPECT_THAT(result.without, IsEmpty());
  EXPECT_FALSE(result.agreed);
  result = call_roll(Said{says(1, 1), {}, says(1, 1, {1}, {1})});
  EXPECT_THAT(result.without, ElementsAre(1));
}

TEST(RollCallTest, OfTwoThatLostEachOtherTheHigherGoes) {
  // Whoever noticed it, and both.
  for (const Said& said :
       {Said{says(1, 1), says(1, 1, {3}, {3}), says(1, 1), says(9, 9)},
        Said{says(1, 1), says(1, 1), says(1, 1), says(9, 9, {1}, {1})},
        Said{says(1, 1), says(1, 1, {3}, {3}), says(1, 1), says(9, 9, {1}, {1})}}) {
    const RollCall result = call_roll(said);
    EXPECT_THAT(result.without, ElementsAre(3));
    EXPECT_EQ(result.begun, 3u);
    EXPECT_FALSE(result.agreed);
  }
}

// 2 has lost 1 as well as 3. It goes, and 3 has no reason to.
TEST(RollCallTest, WhoGoesTakesNobodyAlong) {
  const RollCall result =
      call_roll(Said{says(1, 1), says(1, 1, {2}, {2}), says(1, 1, {1, 3}, {1, 3}), says(1, 1)});
  EXPECT_THAT(result.without, ElementsAre(2));
}

TEST(RollCallTest, RanksThatDoNotExistAreNobody) {
  EXPECT_THAT(call_roll(Said{says(1, 1, {7}, {7}), says(1, 1, {}, {1})}).without, IsEmpty());
}

}  // namespace
}  // namespace cariama::internal
