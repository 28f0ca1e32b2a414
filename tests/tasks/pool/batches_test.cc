// A victim hands over several tasks at a time, and none is lost.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>

#include "dsfabric/fabric.h"
#include "tasks/pool.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/tasks/pool/pool_test_support.h"

namespace cariama::testing {
namespace {

struct Wide {
  std::array<uint64_t, 12> words;  // as many bytes as a task can have
};
static_assert(sizeof(Wide) == pool::kPayloadBytes);

Wide pool_wide(const Wide& wide) {
  Wide result = wide;
  for (uint64_t& word : result.words) word = word * 3 + 1;
  return result;
}
uint64_t spawn_many(uint64_t count) {
  pool::Children<pool_wide> children;
  for (uint64_t i = 0; i < count; ++i) {
    Wide wide;
    wide.words.fill(i);
    children.spawn(wide);
  }
  uint64_t sum = 0;
  for (uint64_t i = count; i-- > 0;) {
    for (const uint64_t word : children.sync().words) {
      if (word != i * 3 + 1) throw std::logic_error("a wrong result");
      sum += word;
    }
  }
  return sum;
}
uint64_t spawn_spawners(uint64_t count) {
  pool::Children<spawn_many> children;
  for (uint64_t i = 0; i < 30; ++i) children.spawn(count);
  uint64_t sum = 0;
  while (!children.empty()) sum += children.sync();
  return sum;
}

TEST(Pool, BatchesOfTasksAreStolen) {
  for (const uint32_t steal : {1u, 3u, 64u, kStealHalf}) {
    const Shared<std::atomic<uint64_t>> tasks;
    const Shared<std::atomic<uint64_t>> handed_over;
    with_pool(3, {.steal = steal}, [&](TaskPool& pool, Fabric&) {
      for (int run = 0; run < 5; ++run) {
        const auto sum = pool.run<spawn_spawners>(100);
        ASSERT_TRUE(sum.ok()) << sum.status();
        EXPECT_EQ(*sum, 30u * 12u * (3 * 4950 + 100));
      }
      const PoolStatistics counts = pool.statistics();
      *tasks += counts.stolen_tasks;
      *handed_over += counts.handed_over;
      EXPECT_EQ(counts.attempts, counts.steals + counts.blocked + counts.busy + counts.rejected);
      EXPECT_LE(counts.stolen_tasks, counts.steals * (steal == kStealHalf ? 64 : steal));
    });
    EXPECT_EQ(*tasks, *handed_over) << "no task is lost on its way";
  }
}

// Rank 1 begins its run when rank 0 has spawned all tasks, so its first steal takes a whole batch.
struct BatchBoard {
  std::atomic<bool> spawned;
  std::atomic<uint64_t> run_by_thief;
};
Shared<BatchBoard>* batch_board = nullptr;
bool is_thief = false;

int counts_for_the_thief(int) {
  if (is_thief) ++(*batch_board)->run_by_thief;
  return 1;
}
int spawn_ten(uint64_t batch) {
  pool::Children<counts_for_the_thief> children;
  for (int i = 0; i < 10; ++i) children.spawn(i);
  (*batch_board)->spawned = true;
  EXPECT_TRUE(communicate_until([&] { return (*batch_board)->run_by_thief >= batch; }));
  int sum = 0;
  while (!children.empty()) sum += children.sync();
  return sum;
}

TEST(Pool, AFirstStealTakesAWholeBatch) {
  const auto expect_batch = [](uint32_t steal, uint64_t batch) {
    Shared<BatchBoard> board;
    batch_board = &board;
    with_pool(2, {.steal = steal}, [&](TaskPool& pool, Fabric& fabric) {
      is_thief = fabric.rank() == 1;
      if (is_thief) {
        ASSERT_TRUE(wait_until([&] { return board->spawned.load(); }, soon()));
      }
      EXPECT_EQ(must(pool.run<spawn_ten>(batch)), 10);
      const PoolStatistics counts = pool.statistics();
      if (!is_thief) return;
      EXPECT_GE(counts.stolen_tasks, batch);
      if (steal == 1) {
        EXPECT_EQ(counts.stolen_tasks, counts.steals);
      } else {
        EXPECT_GE(counts.stolen_tasks, counts.steals + batch - 1);
      }
    });
  };
  expect_batch(1, 1);
  expect_batch(4, 4);
  expect_batch(64, 9);  // all but one
  expect_batch(kStealHalf, 5);
}

}  // namespace
}  // namespace cariama::testing
