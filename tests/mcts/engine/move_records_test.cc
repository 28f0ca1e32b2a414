// The decoders of messages about nodes, and the nodes that are created from them.
#include "mcts/engine/move_records.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"
#include "mcts/engine/arena.h"
#include "mcts/engine/job.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using example::ConnectFour;
using Record = MoveRecord<ConnectFour>;

constexpr uint32_t kProcesses = 3;

// Returns two valid records, the second with a child.
std::vector<Record> two_records() {
  std::vector<Record> records(2);
  records[0].visits = 7;
  records[0].verdict = Verdict::kPruned;
  records[1].move = 3;
  records[1].has_child = true;
  records[1].child = {kProcesses - 1, RemoteNode::kLastGeneration, 5};
  return records;
}
std::optional<std::vector<Record>> decode(std::span<const Record> records) {
  return decode_move_records<ConnectFour>(records.data(), records.size_bytes(), kProcesses);
}
// Sets a byte of the second record.
void set_byte(std::vector<Record>& records, size_t offset, uint8_t value) {
  std::as_writable_bytes(std::span(records))[sizeof(Record) + offset] = std::byte{value};
}

TEST(MoveRecords, ValidOnesAreEqualToTheOriginals) {
  const std::vector<Record> records = two_records();
  const auto decoded = decode(records);
  ASSERT_TRUE(decoded);
  ASSERT_EQ(decoded->size(), 2u);
  EXPECT_EQ((*decoded)[0].visits, 7u);
  EXPECT_EQ((*decoded)[0].verdict, Verdict::kPruned);
  EXPECT_EQ((*decoded)[1].child, records[1].child);
  EXPECT_TRUE(decode({}));
}

TEST(MoveRecords, MalformedOnesAreRejected) {
  const std::vector<Record> valid = two_records();
  EXPECT_FALSE(decode_move_records<ConnectFour>(valid.data(), sizeof(Record) + 1, kProcesses));
  EXPECT_FALSE(decode(std::vector<Record>(ConnectFour::kMaxMoves + 1)));
  std::vector<Record> records = valid;
  set_byte(records, offsetof(Record, has_child), 2);
  EXPECT_FALSE(decode(records));
  records = valid;
  set_byte(records, offsetof(Record, verdict), static_cast<uint8_t>(Verdict::kPruned) + 1);
  EXPECT_FALSE(decode(records));
  records = valid;
  records[1].child.rank = kProcesses;
  EXPECT_FALSE(decode(records));
  records = valid;
  records[1].child.generation = RemoteNode::kLastGeneration + 1;
  EXPECT_FALSE(decode(records));
}

// Such a number would stay in the statistics of the node and of those above it.
TEST(MoveRecords, NumbersThatAreNotFiniteAreRejected) {
  for (const double wrong :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    for (int field = 0; field < 4; ++field) {
      std::vector<Record> records = two_records();
      Record& record = records[1];
      if (field == 0) record.value = wrong;
      if (field == 1) record.prior = static_cast<float>(wrong);
      if (field == 2) record.amaf_visits = static_cast<float>(wrong);
      if (field == 3) record.amaf_value = static_cast<float>(wrong);
      EXPECT_FALSE(decode(records)) << field;
      if (field == 1) continue;
      const MoveCounts counts{1,           Verdict::kOpen, 0, record.amaf_visits, record.amaf_value,
                              record.value};
      EXPECT_FALSE(decode_move_counts(&counts, sizeof counts, 7)) << field;
    }
    JobAnswer<ConnectFour> answer;
    answer.value = wrong;
    EXPECT_FALSE(answer.is_possible(kProcesses));
  }
}

TEST(MoveRecords, NamesThatNoNodeHasAreImpossible) {
  EXPECT_TRUE(is_possible({kProcesses - 1, RemoteNode::kLastGeneration, UINT32_MAX}, kProcesses));
  EXPECT_FALSE(is_possible({kProcesses, 0, 0}, kProcesses));
  EXPECT_FALSE(is_possible({UINT16_MAX, 0, 0}, kProcesses));
  EXPECT_FALSE(is_possible({0, RemoteNode::kLastGeneration + 1, 0}, kProcesses));
  JobAnswer<ConnectFour> answer;
  EXPECT_TRUE(answer.is_possible(kProcesses));
  answer.rank = kProcesses;
  EXPECT_FALSE(answer.is_possible(kProcesses));
}

TEST(MoveRecords, MalformedPlayoutsAreRejected) {
  using Playout = Sample<testing::TicTacToe>;
  std::vector<Playout> sent(3);
  sent[1].value = 0.5F;
  sent[2].value = 1;
  sent[2].owned.set(1, 8);
  std::vector<Playout> playouts;
  const auto decodes = [&](uint64_t bytes) {
    return decode_samples<testing::TicTacToe>(sent.data(), bytes, playouts);
  };
  ASSERT_TRUE(decodes(3 * sizeof(Playout)));
  ASSERT_EQ(playouts.size(), 3u);
  EXPECT_EQ(playouts[1].value, 0.5F);
  EXPECT_TRUE(playouts[2].owned.test(1, 8));
  EXPECT_TRUE(decodes(0));
  EXPECT_TRUE(playouts.empty());
  EXPECT_FALSE(decodes(sizeof(Playout) + 1));
  EXPECT_TRUE(playouts.empty());
  for (const float wrong : {-0.001F, 1.001F, std::numeric_limits<float>::quiet_NaN()}) {
    sent[1].value = wrong;
    EXPECT_FALSE(decodes(3 * sizeof(Playout))) << wrong;
    EXPECT_TRUE(playouts.empty());
  }
}

TEST(MoveRecords, MalformedCountsAreRejected) {
  std::vector<MoveCounts> counts(2);
  counts[1].move = 6;
  const auto decode_for = [&](int moves) {
    return decode_move_counts(counts.data(), counts.size() * sizeof(MoveCounts), moves);
  };
  ASSERT_TRUE(decode_for(7));
  EXPECT_EQ((*decode_for(7))[1].move, 6);
  EXPECT_FALSE(decode_for(6));
  EXPECT_FALSE(decode_move_counts(counts.data(), sizeof(MoveCounts) - 1, 7));
  const size_t verdict = sizeof(MoveCounts) + offsetof(MoveCounts, verdict);
  std::as_writable_bytes(std::span(counts))[verdict] = std::byte{0xFF};
  EXPECT_FALSE(decode_for(7));
}

// The first player has four in the first column.
TEST(MoveRecords, ACopyOfAnEndedGameHasItsOutcome) {
  ConnectFour game;
  for (const int column : {0, 1, 0, 1, 0, 1, 0}) game.play(static_cast<uint8_t>(column));
  ASSERT_EQ(game.result(), 1.0F);
  ArenaBudget budget(uint64_t{1} << 20);
  Arena arena(budget);
  Node<ConnectFour>* node = Node<ConnectFour>::create(game, std::span<const Record>(), arena, 0);
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(node->outcome(), Outcome::kFirstWins);
  node->destroy(arena);
}

}  // namespace
}  // namespace cariama::mcts
