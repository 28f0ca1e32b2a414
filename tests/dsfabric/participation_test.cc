#include "dsfabric/fabric/participation.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/serializer.h"
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

TEST(ParticipationTest, AProcessThatHasLostItselfIsNotExcluded) {
  EXPECT_THAT(combine_reports(Said{says(1, 1), says(1, 1, {}, {1})}).without, IsEmpty());
}

template <typename Put>
std::string put_bytes(const Put& put) {
  std::string bytes;
  save_value(bytes, put);
  return bytes;
}
// Returns true if a process of a job of 4 accepts the bytes.
template <typename Put>
bool accepts(const std::string& bytes) {
  try {
    EXPECT_EQ(put_bytes(load_participation<Put>(std::as_bytes(std::span(bytes)), 4)), bytes);
    return true;
  } catch (const MalformedArguments&) {
    return false;
  }
}

// A report with such ranks would never agree with another one: finalize() would wait until its
// deadline, and name no process.
TEST(ParticipationReports, WithImpossibleRanksAreMalformed) {
  EXPECT_TRUE(accepts<ParticipationReport>(put_bytes(says(5, 3, {0, 1, 3}, {3}))));
  for (const std::vector<uint32_t>& ranks :
       std::vector<std::vector<uint32_t>>{{4}, {0, UINT32_MAX}, {1, 1}, {2, 1}, {0, 3, 2}}) {
    EXPECT_FALSE(accepts<ParticipationReport>(put_bytes(says(5, 3, ranks))));
    EXPECT_FALSE(accepts<ParticipationReport>(put_bytes(says(5, 3, {}, ranks))));
    EXPECT_FALSE(accepts<ParticipationResult>(put_bytes(ParticipationResult{5, 3, ranks, true})));
  }
  EXPECT_TRUE(accepts<ParticipationResult>(put_bytes(ParticipationResult{5, 3, {0, 3}, true})));
}

TEST(ParticipationReports, NameTheImpossibleRank) {
  const auto error_of = [](const std::vector<uint32_t>& lost) -> std::string {
    const std::string bytes = put_bytes(says(5, 3, lost));
    try {
      static_cast<void>(
          load_participation<ParticipationReport>(std::as_bytes(std::span(bytes)), 4));
    } catch (const MalformedArguments& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of({0, 1, 77}), "its list of ranks of a job of 4 contains 77");
  EXPECT_EQ(error_of({0, 3, 2}), "its list of ranks of a job of 4 contains 2 in the wrong place");
  EXPECT_EQ(error_of({0, 3}), "");
}

TEST(ParticipationReports, OfAnotherLengthAreMalformed) {
  const std::string report = put_bytes(says(5, 3, {1}, {1}));
  const std::string result = put_bytes(ParticipationResult{5, 3, {1}, true});
  EXPECT_TRUE(accepts<ParticipationReport>(report));
  EXPECT_TRUE(accepts<ParticipationResult>(result));
  for (size_t i = 0; i < report.size(); ++i) {
    EXPECT_FALSE(accepts<ParticipationReport>(report.substr(0, i)));
  }
  for (size_t i = 0; i < result.size(); ++i) {
    EXPECT_FALSE(accepts<ParticipationResult>(result.substr(0, i)));
  }
  EXPECT_FALSE(accepts<ParticipationReport>(report + '\0'));
  EXPECT_FALSE(accepts<ParticipationResult>(result + '\0'));
}

}  // namespace
}  // namespace cariama::internal
