// Memory keys that cannot be confused, locators as plain data, and the uses that RDMAMemory
// records.
#include "dtutils/memory.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gtest/gtest.h"

namespace cariama {
namespace {

// A local key where a remote key belongs does not compile, and neither does a plain number.
template <typename From, typename To>
constexpr bool kPassesFor = std::is_convertible_v<From, To> || std::is_constructible_v<To, From> ||
                            std::is_assignable_v<To&, From>;
static_assert(!kPassesFor<LocalKey, RemoteKey> && !kPassesFor<RemoteKey, LocalKey>);
static_assert(!std::is_convertible_v<uint64_t, LocalKey> &&
              !std::is_convertible_v<uint64_t, RemoteKey>);
static_assert(!std::is_assignable_v<LocalKey&, uint64_t> &&
              !std::is_assignable_v<RemoteKey&, uint64_t>);
static_assert(!kPassesFor<LocalKey, uint64_t> && !kPassesFor<RemoteKey, uint64_t>);
static_assert(!kPassesFor<LocalKey, bool> && !kPassesFor<RemoteKey, bool>);
template <typename A, typename B>
concept Comparable = requires(A a, B b) {
  a == b;
};
static_assert(!Comparable<LocalKey, RemoteKey> && !Comparable<LocalKey, uint64_t>);
static_assert(Comparable<LocalKey, LocalKey> && Comparable<RemoteKey, RemoteKey>);

// A RemoteMemoryLocator is sent in messages, also between programs built by different compilers.
static_assert(std::is_trivially_copyable_v<RemoteMemoryLocator> &&
              std::is_standard_layout_v<RemoteMemoryLocator> && sizeof(RemoteMemoryLocator) == 32 &&
              std::has_unique_object_representations_v<RemoteMemoryLocator>);

TEST(RemoteMemoryLocatorTest, IsEqualAfterCopyAsBytes) {
  const RemoteMemoryLocator sent{.address = 0x1234, .length = 99, .key = {77}, .owner = 5};
  unsigned char message[sizeof sent];
  std::memcpy(message, &sent, sizeof sent);
  RemoteMemoryLocator received;
  std::memcpy(&received, message, sizeof received);
  EXPECT_EQ(received.address, 0x1234u);
  EXPECT_EQ(received.length, 99u);
  EXPECT_EQ(received.key, RemoteKey{77});
  EXPECT_EQ(received.owner, 5u);
}

TEST(RemoteMemoryLocatorTest, ASliceKeepsKeyAndOwner) {
  const RemoteMemoryLocator whole{.address = 4096, .length = 100, .key = {77}, .owner = 5};
  const RemoteMemoryLocator part = whole.slice(10, 20);
  EXPECT_EQ(part.address, 4106u);
  EXPECT_EQ(part.length, 20u);
  EXPECT_EQ(part.key, whole.key);
  EXPECT_EQ(part.owner, whole.owner);
}

TEST(AccessTest, EveryRightThatIsWantedMustBeGranted) {
  EXPECT_TRUE(has_access(Access::kAll, Access::kRemoteAtomic | Access::kRemoteRead));
  EXPECT_TRUE(has_access(Access::kRemoteRead, Access::kRemoteRead));
  EXPECT_FALSE(has_access(Access::kRemoteRead, Access::kRemoteRead | Access::kRemoteWrite));
  EXPECT_FALSE(has_access(Access::kLocalWrite, Access::kRemoteWrite));
}

class RDMAMemoryTest : public ::testing::Test {
 protected:
  // Records a transfer by queue pair `i`. It has ended when cell `i` exceeds its present value.
  bool use(uint32_t i) { return memory_.set_last_use(&cells_[i], cells_[i].flushed.load()); }
  void end(uint32_t i) { cells_[i].flushed.fetch_add(1); }

  FlushCell cells_[RDMAMemory::kMaxUses + 1];
  RDMAMemory memory_;
};

// A copy would know nothing of the transfers that are posted through the original later.
static_assert(!std::is_copy_constructible_v<RDMAMemory> && !std::is_copy_assignable_v<RDMAMemory>);
static_assert(std::is_nothrow_move_constructible_v<RDMAMemory>);

TEST_F(RDMAMemoryTest, MovesItsUses) {
  std::byte bytes[64];
  memory_ = RDMAMemory(bytes, sizeof bytes, nullptr);
  ASSERT_TRUE(use(0));
  RDMAMemory moved = std::move(memory_);
  EXPECT_EQ(moved.get_buffer(), bytes);
  EXPECT_EQ(moved.size(), sizeof bytes);
  EXPECT_FALSE(moved.is_free());
  EXPECT_EQ(memory_.get_buffer(), nullptr);
  EXPECT_EQ(memory_.size(), 0u);
  EXPECT_TRUE(memory_.is_free());
  memory_ = std::move(moved);
  EXPECT_FALSE(memory_.is_free());
  end(0);
  EXPECT_TRUE(memory_.is_free());
}

TEST_F(RDMAMemoryTest, IsFreeUntilItIsUsedAndWhenTheUseHasEnded) {
  EXPECT_TRUE(memory_.is_free());
  cells_[0].flushed = 41;
  ASSERT_TRUE(memory_.set_last_use(&cells_[0], 42));
  EXPECT_FALSE(memory_.is_free()) << "flushed is 41 and the tag is 42";
  cells_[0].flushed = 42;
  EXPECT_FALSE(memory_.is_free()) << "flushed = 42 ends uses with tags below 42 only";
  cells_[0].flushed = 43;
  EXPECT_TRUE(memory_.is_free());
}

TEST_F(RDMAMemoryTest, ALaterUseByTheSameQueuePairReplacesTheEarlier) {
  ASSERT_TRUE(memory_.set_last_use(&cells_[0], 1));
  ASSERT_TRUE(memory_.simple_use(&cells_[0]));
  ASSERT_TRUE(memory_.set_last_use(&cells_[0], 5));
  cells_[0].flushed = 2;
  EXPECT_FALSE(memory_.is_free());
  cells_[0].flushed = 6;
  EXPECT_TRUE(memory_.is_free());
}

// A later use replaces the earlier one also if other queue pairs use the memory at the same time.
TEST_F(RDMAMemoryTest, ALaterUseReplacesTheEarlierAmongOthers) {
  for (uint32_t i = 0; i < RDMAMemory::kMaxUses; ++i) ASSERT_TRUE(use(i));
  ASSERT_TRUE(memory_.set_last_use(&cells_[0], 5))
      << "a further use by the same queue pair needs no further entry";
  for (uint32_t i = 0; i < RDMAMemory::kMaxUses; ++i) end(i);
  EXPECT_FALSE(memory_.is_free());
  cells_[0].flushed = 6;
  EXPECT_TRUE(memory_.is_free());
}

// The memory is free after the last transfer, in whatever order the transfers end.
TEST_F(RDMAMemoryTest, IsFreeWhenAllQueuePairsAreDone) {
  for (uint32_t last = 0; last < RDMAMemory::kMaxUses; ++last) {
    memory_.clear_uses();
    for (uint32_t i = 0; i < RDMAMemory::kMaxUses; ++i) ASSERT_TRUE(use(i));
    for (uint32_t i = 0; i < RDMAMemory::kMaxUses; ++i) {
      if (i != last) end(i);
    }
    EXPECT_FALSE(memory_.is_free()) << last;
    end(last);
    EXPECT_TRUE(memory_.is_free()) << last;
  }
}

TEST_F(RDMAMemoryTest, RefusesMoreThanMaxUsesAndForgetsNone) {
  constexpr uint32_t kMost = RDMAMemory::kMaxUses;
  for (uint32_t i = 0; i < kMost; ++i) ASSERT_TRUE(use(i)) << i;
  EXPECT_FALSE(use(kMost));
  end(kMost);  // this use was refused, so its end changes nothing
  for (uint32_t i = 0; i < kMost; ++i) {
    EXPECT_FALSE(memory_.is_free()) << i << " is still in flight";
    end(i);
  }
  EXPECT_TRUE(memory_.is_free());
}

// The entry of a use that has ended is reused for another queue pair.
TEST_F(RDMAMemoryTest, EndedUsesMakeRoom) {
  constexpr uint32_t kMost = RDMAMemory::kMaxUses;
  for (uint32_t ended = 0; ended < kMost; ++ended) {
    memory_.clear_uses();
    for (uint32_t i = 0; i < kMost; ++i) ASSERT_TRUE(use(i));
    end(ended);
    EXPECT_FALSE(memory_.simple_use(&cells_[kMost]));
    EXPECT_TRUE(use(kMost)) << ended;
    for (uint32_t i = 0; i < kMost; ++i) {
      if (i != ended) end(i);
    }
    EXPECT_FALSE(memory_.is_free()) << "the new use is in flight";
    end(kMost);
    EXPECT_TRUE(memory_.is_free());
  }
}

TEST_F(RDMAMemoryTest, ClearedUsesMakeTheNextOneSimple) {
  ASSERT_TRUE(use(0));
  ASSERT_TRUE(use(1));
  EXPECT_FALSE(memory_.simple_use(&cells_[0]));
  end(0);
  end(1);
  memory_.clear_uses();
  EXPECT_TRUE(memory_.simple_use(&cells_[0]) && memory_.simple_use(&cells_[1]));
  EXPECT_TRUE(memory_.is_free());
}

}  // namespace
}  // namespace cariama
