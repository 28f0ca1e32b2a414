#include "dsfabric/fabric/participation.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Said = std::vector<std::optional<ParticipationReport>>;

ParticipationReport says(uint64_t begun, uint64_t ended, std::vector<uint32_t> lost = {},
                         std::vector<uint32_t> lost_before = {}) {
  return {.begun = begun, .ended = ended, .lost = std::move(lost), .lost_before = lost_before};
}

TEST(ParticipationTest, SumsUp) {
  const ParticipationResult result = combine_reports(Said{says(1, 4), says(2, 5), says(3, 6)});
  EXPECT_EQ(result.begun, 6u);
  EXPECT_EQ(result.ended, 15u);
  EXPECT_THAT(result.without, IsEmpty());
  EXPECT_TRUE(result.agreed);
}

// `agreed` is true only if the `lost` of all remaining processes equals the excluded set.
TEST(ParticipationTest, AgreementNeedsEqualLostSets) {
  ParticipationResult result =
      combine_reports(Said{says(1, 1, {1}), {}, says(1, 1), says(5, 5, {1})});
  EXPECT_THAT(result.without, ElementsAre(1));
  EXPECT_EQ(result.begun, 7u);
  EXPECT_FALSE(result.agreed);
  result = combine_reports(Said{says(1, 1, {1}), {}, says(1, 1, {1}), says(5, 5, {1})});
  EXPECT_TRUE(result.agreed);
}

// Rank 1 was killed after it sent its report. It is known to be alive only if it reports again.
TEST(ParticipationTest, AReportBeforeDeathExcludesNoLiveProcess) {
  ParticipationResult result = combine_reports(Said{says(1, 1), says(1, 1), says(1, 1, {1})});
  EXPECT_THAT(result.without, IsEmpty());
  EXPECT_FALSE(result.agreed);
  result = combine_reports(Said{says(1, 1), {}, says(1, 1, {1}, {1})});
  EXPECT_THAT(result.without, ElementsAre(1));
}

TEST(ParticipationTest, OfTwoThatLostEachOtherTheHigherRankIsExcluded) {
  // The lower rank, the higher rank, or both have detected the loss.
  for (const Said& said :
       {Said{says(1, 1), says(1, 1, {3}, {3}), says(1, 1), says(9, 9)},
        Said{says(1, 1), says(1, 1), says(1, 1), says(9, 9, {1}, {1})},
        Said{says(1, 1), says(1, 1, {3}, {3}), says(1, 1), says(9, 9, {1}, {1})}}) {
    const ParticipationResult result = combine_reports(said);
    EXPECT_THAT(result.without, ElementsAre(3));
    EXPECT_EQ(result.begun, 3u);
    EXPECT_FALSE(result.agreed);
  }
}

// Rank 2 has lost 1 and 3. Rank 2 is excluded; rank 3 remains.
TEST(ParticipationTest, AnExcludedProcessExcludesNoOther) {
  const ParticipationResult result = combine_reports(
      Said{says(1, 1), says(1, 1, {2}, {2}), says(1, 1, {1, 3}, {1, 3}), says(1, 1)});
  EXPECT_THAT(result.without, ElementsAre(2));
}

TEST(ParticipationTest, InvalidRanksAreIgnored) {
  EXPECT_THAT(combine_reports(Said{says(1, 1, {7}, {7}), says(1, 1, {}, {1})}).without, IsEmpty());
}

}  // namespace
}  // namespace cariama::internal
