// The parts of a broadcast that a process accepts from its parent in the tree.
#include "riutils/internal/broadcast_wire.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "riutils/internal/broadcast_tree.h"

namespace cariama::internal {
namespace {

using Buffer = BroadcastPart::Buffer;
constexpr uint64_t kTarget = sizeof(RemoteMemoryLocator);

// A job of 7 processes; the root is rank 5. Rank 2 has place 4, the parent 5, and the child 3.
constexpr uint32_t kTreeSize = 7;
constexpr uint32_t kTreeRoot = 5;
constexpr uint32_t kReceiver = 2;

BroadcastPart broadcast_part(Buffer buffer) {
  BroadcastPart part;
  part.root = kTreeRoot;
  part.function_bytes = 24;
  part.buffer = buffer;
  if (buffer != Buffer::kNone) part.size = 100;
  if (buffer == Buffer::kPull) part.source.length = 100;
  return part;
}
bool possible(const BroadcastPart& part, uint64_t bytes, uint32_t parent = kTreeRoot) {
  return is_possible(part, bytes, kReceiver, parent, kTreeSize);
}

TEST(BroadcastTree, ReachesEachProcessOnce) {
  for (uint32_t processes = 1; processes < 40; ++processes) {
    const BroadcastTree tree(processes / 3, processes);
    std::vector<int> reached(processes);
    std::vector<uint64_t> open{0};
    while (!open.empty()) {
      const uint64_t place = open.back();
      open.pop_back();
      ++reached[tree.rank_of(place)];
      EXPECT_EQ(tree.place_of(tree.rank_of(place)), place);
      uint64_t below = 1;
      for (const uint64_t child : tree.children(place)) {
        EXPECT_EQ(BroadcastTree::parent(child), place);
        below += tree.subtree_size(child);
        open.push_back(child);
      }
      EXPECT_EQ(below, tree.subtree_size(place)) << processes << " processes, place " << place;
    }
    EXPECT_EQ(reached, std::vector<int>(processes, 1));
  }
}

TEST(BroadcastPart, IsAcceptedFromTheParent) {
  EXPECT_TRUE(possible(broadcast_part(Buffer::kNone), 24));
  EXPECT_TRUE(possible(broadcast_part(Buffer::kPull), 24));
  EXPECT_TRUE(possible(broadcast_part(Buffer::kPlaced), 24 + 3 * kTarget));
  // Without a function, and with a buffer of no bytes.
  BroadcastPart empty = broadcast_part(Buffer::kPull);
  empty.function_bytes = empty.size = empty.source.length = 0;
  EXPECT_TRUE(possible(empty, 0));
}

// No process but the parent sends a part, and the root receives none: a part from another process
// would make this process forward the broadcast again.
TEST(BroadcastPart, IsRefusedFromOtherProcesses) {
  for (uint32_t parent = 0; parent < kTreeSize + 2; ++parent) {
    EXPECT_EQ(possible(broadcast_part(Buffer::kNone), 24, parent), parent == kTreeRoot) << parent;
    EXPECT_FALSE(is_possible(broadcast_part(Buffer::kNone), 24, kTreeRoot, parent, kTreeSize))
        << parent;
  }
  BroadcastPart part = broadcast_part(Buffer::kNone);
  for (const uint32_t root : {kReceiver, kTreeSize, UINT32_MAX}) {
    part.root = root;
    for (uint32_t parent = 0; parent < kTreeSize; ++parent)
      EXPECT_FALSE(possible(part, 24, parent));
  }
}

TEST(BroadcastPart, WithOtherSizesIsRefused) {
  for (const Buffer buffer : {Buffer::kNone, Buffer::kPull}) {
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{23}, 24 + kTarget}) {
      EXPECT_FALSE(possible(broadcast_part(buffer), bytes));
    }
  }
  for (const uint64_t targets : {0, 1, 2, 4}) {  // the subtree has 3 processes
    EXPECT_FALSE(possible(broadcast_part(Buffer::kPlaced), 24 + targets * kTarget));
  }
  EXPECT_FALSE(possible(broadcast_part(Buffer::kPlaced), 24 + 3 * kTarget - 1));
  BroadcastPart part = broadcast_part(Buffer::kNone);
  part.function_bytes = UINT64_MAX - 7;
  EXPECT_FALSE(possible(part, 24));
  part = broadcast_part(Buffer::kPlaced);
  part.function_bytes = 24 - kTarget;  // as many bytes as are beyond it, modulo 2^64
  EXPECT_FALSE(possible(part, 24 + 2 * kTarget));
  part = broadcast_part(Buffer::kPull);
  part.source.length = 99;
  EXPECT_FALSE(possible(part, 24));
  part = broadcast_part(Buffer::kNone);
  part.size = 1;
  EXPECT_FALSE(possible(part, 24));
  part = broadcast_part(Buffer::kNone);
  part.buffer = static_cast<Buffer>(3);
  EXPECT_FALSE(possible(part, 24));
}

TEST(BroadcastPart, GivesTheFunctionAndTheTargets) {
  const BroadcastPart part = broadcast_part(Buffer::kPlaced);
  std::vector<RemoteMemoryLocator> targets(3);
  for (uint32_t i = 0; i < 3; ++i) targets[i] = {i + 1, 100, {}, i, 0};
  std::string payload(24, 'f');
  payload.append(reinterpret_cast<const char*>(targets.data()), 3 * kTarget);
  const std::vector<RemoteMemoryLocator> taken = take_targets(part, payload);
  EXPECT_EQ(payload, std::string(24, 'f'));
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_EQ(std::memcmp(taken.data(), targets.data(), 3 * kTarget), 0);
}

}  // namespace
}  // namespace cariama::internal
