#include "tasks/internal/victims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  Victims victims({{1, 2}, {}, {3, 4, 5}}, 1);
  EXPECT_EQ(victims.level_count(), 2u);
  const std::set<int> near{1, 2};
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(near.contains(victims.next()));
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(near.contains(victims.next()));
  }
  for (int i = 0; i < 3; ++i) static_cast<void>(victims.next());
  victims.succeeded();  // at the outer level: the next search begins inside
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(near.contains(victims.next()));
  EXPECT_EQ(victims.tried(0), 10u);
  EXPECT_EQ(victims.tried(1), 10u);
  EXPECT_EQ(victims.stolen(0), 0u);
  EXPECT_EQ(victims.stolen(1), 1u);
}

TEST(Victims, Nobody) {
  EXPECT_TRUE(Victims::uniform(0, 1, 1).empty());
  EXPECT_TRUE(Victims({{}, {}}, 1).empty());
}

}  // namespace
}  // namespace cariama::tasks
