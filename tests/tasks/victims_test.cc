#include "tasks/internal/victims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
#include <vector>

namespace cariama::tasks {
namespace {

TEST(Victims, UniformReachesEverybodyButItself) {
  Victims victims = Victims::uniform(3, 8, 1);
  std::map<int, int> counts;
  for (int i = 0; i < 7000; ++i) ++counts[victims.next()];
  EXPECT_EQ(counts.size(), 7u);
  EXPECT_EQ(counts.count(3), 0u);
  for (const auto& [rank, count] : counts) {
    EXPECT_GT(count, 800) << rank;
    EXPECT_LT(count, 1200) << rank;
  }
}

TEST(Victims, ASeedMakesTheSameChoices) {
  Victims a = Victims::uniform(0, 100, 5);
  Victims b = Victims::uniform(0, 100, 5);
  Victims c = Victims::uniform(0, 100, 6);
  int equal = 0;
  for (int i = 0; i < 1000; ++i) {
    const int choice = a.next();
    EXPECT_EQ(choice, b.next());
    equal += choice == c.next() ? 1 : 0;
  }
  EXPECT_LT(equal, 50);
}

TEST(Victims, NearOnesFirst) {
  Victims victims({{1, 2}, {}, {3, 4, 6}}, 1);
  const std::set<int> near{1, 2};
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(near.contains(victims.next()));
      EXPECT_EQ(victims.level(), 0u);
    }
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE((std::set<int>{3, 4, 6}).contains(victims.next()));
      EXPECT_EQ(victims.level(), 2u);
    }
  }
  for (int i = 0; i < 3; ++i) static_cast<void>(victims.next());
  victims.succeeded();  // at the outer level: the next search begins inside
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(near.contains(victims.next()));
}

TEST(Victims, ALargeLevelIsLeftAfterSomeAttempts) {
  Victims victims = Victims::in_blocks(0, 100'000, std::vector<int>{2}, 1);
  int near = 0;
  for (uint64_t i = 0; i < 10 * (1 + Victims::kMostAttempts); ++i) near += victims.next() == 1;
  EXPECT_EQ(near, 10);
}

// Two complexes of 2 cores in each of two nodes of each host: who is where, by blocks and by places.
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
    Victims by_blocks = Victims::in_blocks(rank, kRanks, blocks, 7);
    std::array<std::set<int>, 4> found;
    for (int i = 0; i < 4000; ++i) {
      const int victim = by_blocks.next();
      found[by_blocks.level()].insert(victim);
    }
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(found[i], std::set<int>(levels[i].begin(), levels[i].end())) << rank << " " << i;
    }
  }
}

// Numbers of nodes and complexes repeat on each host, and -1 is no place.
TEST(Victims, UnknownPlacesAreNotShared) {
  const std::vector<WorkerPlace> places{{1, -1, -1}, {1, -1, -1}, {1, 0, -1}, {1, 0, -1}, {2, 0, 0}};
  const auto unknown = ranks_by_distance(places, 0);
  EXPECT_THAT(unknown[2], ::testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(unknown[3], ::testing::ElementsAre(4));
  const auto node = ranks_by_distance(places, 2);
  EXPECT_THAT(node[1], ::testing::ElementsAre(3));
  EXPECT_THAT(node[2], ::testing::ElementsAre(0, 1));
  EXPECT_THAT(node[3], ::testing::ElementsAre(4));
}

TEST(Victims, Nobody) {
  EXPECT_TRUE(Victims::uniform(0, 1, 1).empty());
  EXPECT_TRUE(Victims({{}, {}}, 1).empty());
}

}  // namespace
}  // namespace cariama::tasks
