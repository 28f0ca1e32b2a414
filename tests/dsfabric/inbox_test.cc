// The queue of a thread's calls: no node is lost or duplicated, each producer's nodes stay in
// order, one consumer at a time.
#include "dsfabric/peers/inbox.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "dtutils/wait.h"
#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

struct Item : InboxNode {
  uint32_t producer = 0;
  uint32_t number = 0;
};

TEST(InboxTest, FirstInFirstOut) {
  Inbox inbox;
  Item items[3];
  EXPECT_TRUE(inbox.empty());
  ASSERT_TRUE(inbox.try_consume());
  EXPECT_EQ(inbox.pop(), nullptr);
  for (int round = 0; round < 3; ++round) {  // nodes may be pushed again
    for (Item& item : items) inbox.push(&item);
    EXPECT_FALSE(inbox.empty());
    for (Item& item : items) EXPECT_EQ(inbox.pop(), &item);
    EXPECT_EQ(inbox.pop(), nullptr);
    EXPECT_TRUE(inbox.empty());
    inbox.push(&items[round]);
    EXPECT_EQ(inbox.pop(), &items[round]);
  }
}

TEST(InboxTest, OneConsumerAtATime) {
  Inbox inbox;
  ASSERT_TRUE(inbox.try_consume());
  EXPECT_FALSE(inbox.try_consume());
  inbox.done();
  EXPECT_TRUE(inbox.try_consume());
}

TEST(InboxTest, ManyProducersAndConsumersInTurn) {
  constexpr uint32_t kProducers = 3, kConsumers = 2, kItems = 20'000;
  Inbox inbox;
  std::vector<std::vector<Item>> items(kProducers);
  for (auto& one : items) one = std::vector<Item>(kItems);
  // Guarded by try_consume() and done().
  std::vector<uint32_t> next(kProducers);
  uint64_t popped = 0;
  std::atomic<bool> finished{false};
  std::vector<std::thread> threads;
  for (uint32_t producer = 0; producer < kProducers; ++producer) {
    threads.emplace_back([&, producer] {
      for (uint32_t i = 0; i < kItems; ++i) {
        Item& item = items[producer][i];
        item.producer = producer;
        item.number = i;
        inbox.push(&item);
      }
    });
  }
  for (uint32_t consumer = 0; consumer < kConsumers; ++consumer) {
    threads.emplace_back([&] {
      const auto take = [&] {
        if (finished.load()) return true;
        if (!inbox.try_consume()) return false;
        for (int i = 0; i < 64; ++i) {
          auto* const item = static_cast<Item*>(inbox.pop());
          if (item == nullptr) break;
          EXPECT_EQ(item->number, next[item->producer]++);
          ++popped;
        }
        if (popped == uint64_t{kProducers} * kItems) finished = true;
        inbox.done();
        return finished.load();
      };
      EXPECT_TRUE(wait_until(take, deadline_after(std::chrono::seconds(60))));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(popped, uint64_t{kProducers} * kItems);
  for (uint32_t count : next) EXPECT_EQ(count, kItems);
}

}  // namespace
}  // namespace cariama::internal
