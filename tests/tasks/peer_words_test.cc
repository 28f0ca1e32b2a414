// Words of peers that a worker refuses.
#include "tasks/internal/peer_words.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace cariama::tasks {
namespace {

constexpr uint64_t word_of_rank(int rank) { return Reference(rank, kPinnedAddress + 64).word(); }

TEST(PeerWords, StatesBeyondTheSlotsAreImpossible) {
  for (uint32_t first = 0; first < 256; ++first) {
    for (uint32_t count = 0; count < 256; ++count) {
      const PublicState state = PublicState::decode(PublicState{7, first, count}.encode());
      EXPECT_EQ(state.version, 7u);
      EXPECT_EQ(state.is_possible(), first + count <= kPublicSlots) << first << " " << count;
    }
  }
}

TEST(PeerWords, EntriesNameWorkersAndFrames) {
  const PublicEntry entry{64, 128, word_of_rank(3), word_of_rank(0)};
  EXPECT_TRUE(is_possible(entry, 4));
  EXPECT_FALSE(is_possible(entry, 3)) << "the report";
  EXPECT_FALSE(is_possible(PublicEntry{64, 128, 0, word_of_rank(9)}, 4)) << "the record";
  EXPECT_FALSE(is_possible(PublicEntry{64, 128, UINT64_MAX, 0}, 4));
  EXPECT_FALSE(is_possible(PublicEntry{128, 128, 0, 0}, 4)) << "no frames";
  EXPECT_FALSE(is_possible(PublicEntry{129, 128, 0, 0}, 4)) << "frames of a negative size";
}

TEST(PeerWords, WaitingTasksNameWorkersAndFrames) {
  const Suspended task{word_of_rank(1), 64, 128, word_of_rank(2)};
  EXPECT_TRUE(is_possible(task, 3));
  EXPECT_FALSE(is_possible(task, 2)) << "the report";
  EXPECT_FALSE(is_possible(Suspended{word_of_rank(3), 64, 128, 0}, 3)) << "the frames";
  EXPECT_FALSE(is_possible(Suspended{0, 64, 128, 0}, 3)) << "no frames";
  EXPECT_FALSE(is_possible(Suspended{word_of_rank(1), 128, 64, 0}, 3));
}

TEST(PeerWords, ResultsFitWhereTheyAre) {
  const auto possible = [](TaskResultKind kind, uint32_t bytes, uint64_t block) {
    TaskResult result;
    result.kind = kind;
    result.bytes = bytes;
    result.block = block;
    return is_possible(result, 2);
  };
  EXPECT_TRUE(possible(TaskResultKind::kValue, TaskResult::kInlineBytes, 0));
  EXPECT_FALSE(possible(TaskResultKind::kValue, TaskResult::kInlineBytes + 1, 0));
  EXPECT_FALSE(possible(TaskResultKind::kValue, 8, word_of_rank(0))) << "a value with a block";
  for (const TaskResultKind kind : {TaskResultKind::kFar, TaskResultKind::kFailed}) {
    EXPECT_TRUE(possible(kind, UINT32_MAX, word_of_rank(1)));
    EXPECT_FALSE(possible(kind, 100, 0)) << "no block";
    EXPECT_FALSE(possible(kind, 100, word_of_rank(2)));
  }
  EXPECT_FALSE(possible(TaskResultKind::kNone, 0, 0)) << "the child has not ended";
  EXPECT_FALSE(possible(static_cast<TaskResultKind>(4), 0, word_of_rank(0)));
}

TEST(PeerWords, RangesThatWrapLieNowhere) {
  EXPECT_TRUE(lies_within(4096, 8, 4096, 8));
  EXPECT_TRUE(lies_within(4104, 0, 4096, 8));
  EXPECT_FALSE(lies_within(4104, 8, 4096, 8));
  EXPECT_FALSE(lies_within(4088, 16, 4096, 4096));
  EXPECT_FALSE(lies_within(UINT64_MAX - 7, 8, 4096, 4096)) << "the end of the address space";
  EXPECT_FALSE(lies_within(8000, uint64_t{0} - 4096, 4096, 4096)) << "a negative size";
}

}  // namespace
}  // namespace cariama::tasks
