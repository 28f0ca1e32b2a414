#include "tasks/internal/victims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
#include <vector>

namespace cariama::tasks {
namespace {

constexpr VictimOrder kRandom = VictimOrder::kRandom;
constexpr VictimOrder kByDistance = VictimOrder::kByDistance;

TEST(Victims, RandomReachesAllOtherRanks) {
  for (const int block : {1, 2, 4}) {  // levels do not change the probabilities
    Victims victims = Victims::in_blocks(3, 8, std::vector<int>{block}, kRandom, 1);
    std::map<int, int> counts;
    for (int i = 0; i < 7000; ++i) ++counts[victims.next()];
    EXPECT_EQ(counts.size(), 7u);
    EXPECT_EQ(counts.count(3), 0u);
    for (const auto& [rank, count] : counts) {
      EXPECT_GT(count, 800) << rank;
      EXPECT_LT(count, 1200) << rank;
    }
  }
}

TEST(Victims, ASeedMakesTheSameChoices) {
  for (const VictimOrder order : {kRandom, kByDistance}) {
    const std::vector<int> blocks{10, 50};
    Victims a = Victims::in_blocks(0, 100, blocks, order, 5);
    Victims b = Victims::in_blocks(0, 100, blocks, order, 5);
    Victims c = Victims::in_blocks(0, 100, blocks, order, 6);
    int equal = 0;
    for (int i = 0; i < 1000; ++i) {
      const int choice = a.next();
      EXPECT_EQ(choice, b.next());
      equal += choice == c.next() ? 1 : 0;
    }
    EXPECT_LT(equal, order == kRandom ? 50 : 150);
  }
}

TEST(Victims, NearVictimsFirst) {
  Victims victims({{1, 2}, {}, {3, 4, 6}}, kByDistance, 1);
  const std::set<int> near{1, 2};
  const std::set<int> far{3, 4, 6};
  for (int round = 0; round < 20; ++round) {
    EXPECT_TRUE(near.contains(victims.next()));
    EXPECT_EQ(victims.level(), 0u);
    EXPECT_TRUE(far.contains(victims.next()));
    EXPECT_EQ(victims.level(), 2u);
  }
  EXPECT_TRUE(near.contains(victims.next()));
  victims.succeeded();  // the next search begins at the nearest level
  EXPECT_TRUE(near.contains(victims.next()));
}

// Hosts with two NUMA nodes, each with two core complexes of 2 cores. in_blocks() and
// ranks_by_distance() must give the same levels.
TEST(Victims, BlocksAndPlacesAgree) {
  constexpr int kRanks = 24;
  const std::vector<int> blocks{2, 4, 8};
  std::vector<WorkerPlace> places;
  for (int rank = 0; rank < kRanks; ++rank) {
    places.push_back({static_cast<uint64_t>(rank / 8), rank / 4 % 2, rank / 2 % 4});
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto levels = ranks_by_distance(places, rank);
    ASSERT_EQ(levels.size(), 4u);
    EXPECT_EQ(levels[0].size(), 1u);
    EXPECT_EQ(levels[1].size(), 2u);
    EXPECT_EQ(levels[2].size(), 4u);
    EXPECT_EQ(levels[3].size(), 16u);
    Victims by_blocks = Victims::in_blocks(rank, kRanks, blocks, kByDistance, 7);
    std::array<std::set<Rank>, 4> found;
    for (int i = 0; i < 4000; ++i) {
      const int victim = by_blocks.next();
      found[by_blocks.level()].insert(static_cast<uint32_t>(victim));
    }
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(found[i], std::set<Rank>(levels[i].begin(), levels[i].end())) << rank << " " << i;
    }
  }
}

// Equal numbers of nodes and complexes on different hosts are different places, and so are two
// unknown ones (-1).
TEST(Victims, UnknownPlacesAreNotShared) {
  const std::vector<WorkerPlace> places{
      {1, -1, -1}, {1, -1, -1}, {1, 0, -1}, {1, 0, -1}, {2, 0, 0}};
  const auto unknown = ranks_by_distance(places, 0);
  EXPECT_THAT(unknown[2], ::testing::ElementsAre(Rank{1}, Rank{2}, Rank{3}));
  EXPECT_THAT(unknown[3], ::testing::ElementsAre(Rank{4}));
  const auto node = ranks_by_distance(places, 2);
  EXPECT_THAT(node[1], ::testing::ElementsAre(Rank{3}));
  EXPECT_THAT(node[2], ::testing::ElementsAre(Rank{0}, Rank{1}));
  EXPECT_THAT(node[3], ::testing::ElementsAre(Rank{4}));
}

TEST(Victims, EmptyWithoutOtherRanks) {
  EXPECT_TRUE(Victims::in_blocks(0, 1, std::vector<int>{2}, kRandom, 1).empty());
  EXPECT_TRUE(Victims(std::vector<std::vector<Rank>>{{}, {}}, kByDistance, 1).empty());
}

}  // namespace
}  // namespace cariama::tasks
