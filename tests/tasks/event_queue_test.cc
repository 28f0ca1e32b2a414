// EventQueue of the simulation, compared with a sorted container.
#include "tasks/internal/simulation/event_queue.h"

#include <cstdint>
#include <map>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace cariama::tasks {
namespace {

using Kind = EventQueue::Kind;

// Pushes and pops events at random, with delays from 0 to 2^40.
void exercise(uint64_t seed) {
  std::mt19937_64 random(seed);
  EventQueue queue(seed);
  std::map<int64_t, std::set<uint32_t>> expected;
  uint32_t number = 0;
  size_t size = 0;
  for (int step = 0; step < 20'000; ++step) {
    const bool pushes = size == 0 || random() % 100 < (step < 10'000 ? 60u : 40u);
    if (pushes) {
      const auto delay = static_cast<int64_t>(random() & ((uint64_t{1} << random() % 41) - 1));
      queue.push(queue.now() + delay, Kind::kPosted, number);
      expected[queue.now() + delay].insert(number++);
      ++size;
    } else {
      const EventQueue::Event event = queue.pop();
      ASSERT_EQ(event.time, expected.begin()->first);
      ASSERT_EQ(queue.now(), event.time);
      ASSERT_EQ(expected.begin()->second.erase(event.index), 1u);
      if (expected.begin()->second.empty()) expected.erase(expected.begin());
      --size;
    }
    ASSERT_EQ(queue.empty(), size == 0);
  }
}

TEST(EventQueue, EventsComeInTheOrderOfTheirTimes) {
  for (uint64_t seed = 1; seed <= 20; ++seed) exercise(seed);
}

TEST(EventQueue, TheSeedOrdersSimultaneousEvents) {
  std::set<uint32_t> firsts;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    EventQueue queue(seed);
    for (uint32_t i = 0; i < 4; ++i) queue.push(100, Kind::kRun, i);
    firsts.insert(queue.pop().index);
  }
  EXPECT_EQ(firsts.size(), 4u);
}

}  // namespace
}  // namespace cariama::tasks
