// No name of a slot table is used twice.
#include "mcts/engine/slot_table.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "gtest/gtest.h"
#include "mcts/engine/node.h"

namespace cariama::mcts {
namespace {

// Adds and takes `uses` objects, two at a time, and expects that all names differ and that only the
// names of the present objects are known. Returns the number of slots.
template <uint32_t kLast>
size_t use_up(SlotTable<int, kLast>& table, int uses) {
  std::set<std::pair<uint32_t, uint32_t>> seen;
  std::set<uint32_t> slots;
  SlotId outdated = table.add(0);
  EXPECT_EQ(table.take(outdated), 0);
  for (int i = 0; i < uses; ++i) {
    const SlotId first = table.add(i);
    const SlotId second = table.add(-i);
    for (const SlotId id : {first, second}) {
      EXPECT_LE(id.generation, kLast);
      EXPECT_TRUE(seen.insert({id.slot, id.generation}).second) << id.slot << ' ' << id.generation;
      slots.insert(id.slot);
    }
    EXPECT_FALSE(table.find(outdated));
    EXPECT_EQ(table.find(first), i);
    EXPECT_EQ(table.find(second), -i);
    if (i % 3 == 0) {
      EXPECT_EQ(table.take_if([](int) { return true; }).size(), 2u);
    } else {
      EXPECT_EQ(table.take(second), -i);
      EXPECT_EQ(table.take(first), i);
    }
    EXPECT_FALSE(table.take(first));
    outdated = second;
  }
  EXPECT_TRUE(table.names().empty());
  return slots.size();
}

// The name of a node has 13 bits for the generation: a slot wraps after 8192 nodes.
TEST(SlotTable, NamesOfNodesAreNotUsedTwice) {
  constexpr uint32_t kLast = RemoteNode::kLastGeneration;
  SlotTable<int, kLast> table;
  constexpr int kUses = 3 * (kLast + 1);
  // A slot serves all its generations before a table needs a further slot.
  EXPECT_LE(use_up(table, kUses), size_t{2 * kUses / (kLast + 1) + 2});
}

TEST(SlotTable, NamesAreNotUsedTwiceWhenGenerationsRunOut) {
  SlotTable<int> table;
  table.begin_at(UINT32_MAX - 3);
  EXPECT_GE(use_up(table, 50), 25u);
}

TEST(SlotTable, KeepsObjectsWhileOtherSlotsAreUsedUp) {
  SlotTable<int, 1> table;
  const SlotId kept = table.add(7);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(table.take(table.add(i)), i);
  EXPECT_EQ(table.find(kept), 7);
  table.clear();
  EXPECT_FALSE(table.find(kept));
}

}  // namespace
}  // namespace cariama::mcts
