// Collective operations against oracles, on every transport.
#include "dsfabric/collectives.h"

#include <atomic>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

// x -> a x + b, modulo 2^64. Composition is associative, and its order matters.
struct Affine {
  uint64_t a = 1;
  uint64_t b = 0;
  friend bool operator==(const Affine&, const Affine&) = default;
};
Affine compose(const Affine& first, const Affine& second) {
  return {first.a * second.a, second.a * first.b + second.b};
}
Affine part_of(uint32_t participant, uint64_t round) {
  return {2 * participant + 3, round * 17 + participant + 1};
}

class CollectivesContract : public ::testing::TestWithParam<TransportCase> {
 protected:
  static constexpr uint64_t kRounds = 20;  // more than the window of broadcasts

  void SetUp() override {
    if (const std::string reason = reason_to_skip(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

void run_everything(Collectives& all, uint64_t rounds) {
  const uint32_t self = all.self();
  const uint32_t count = all.participants();
  for (uint64_t round = 0; round < rounds; ++round) {
    must(all.barrier(soon()));

    std::array<uint64_t, 5> value{self, round, 3, 4, 5};
    const auto source = static_cast<uint32_t>(round % count);
    must(all.broadcast(value, source, soon()));
    EXPECT_EQ(value, (std::array<uint64_t, 5>{source, round, 3, 4, 5}));

    Affine expected = part_of(0, round);
    for (uint32_t i = 1; i < count; ++i) expected = compose(expected, part_of(i, round));
    EXPECT_EQ(must(all.all_reduce(part_of(self, round), compose, soon())), expected);

    const auto gathered = must(all.all_gather(self * 1000 + round, soon()));
    for (uint32_t i = 0; i < count; ++i) EXPECT_EQ(gathered[i], i * 1000 + round);
    EXPECT_TRUE(all.left_out().empty());
  }
}

TEST_P(CollectivesContract, OfProcesses) {
  LocalJob job({.processes = 5, .transport = GetParam()});
  job.run([](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    EXPECT_EQ(all.participants(), 5u);
    EXPECT_EQ(all.self(), fabric.rank());
    run_everything(all, kRounds);
    EXPECT_EQ(all.statistics().operations, 4 * kRounds);
  });
}

TEST_P(CollectivesContract, OfThreads) {
  LocalJob job({.processes = 3, .transport = GetParam(), .fabric = {.threads = 2}});
  std::array<std::unique_ptr<Collectives>, 3> objects;
  std::array<std::atomic<bool>, 3> made{};
  job.run([&](Fabric& fabric, uint32_t thread) {
    const uint32_t rank = fabric.rank();
    if (thread == 0) {
      objects[rank] = std::make_unique<Collectives>(
          fabric, CollectiveOptions{.participants = Participants::kThreads});
      made[rank] = true;
    }
    ASSERT_TRUE(wait_until([&] { return made[rank].load(); }, soon()));
    EXPECT_EQ(objects[rank]->participants(), 6u);
    EXPECT_EQ(objects[rank]->self(), fabric.this_thread()->global_id());
    run_everything(*objects[rank], kRounds);
  });
}

TEST_P(CollectivesContract, ABarrierEndsAfterAllHaveEntered) {
  constexpr uint32_t kProcesses = 4;
  LocalJob job({.processes = kProcesses, .transport = GetParam(), .seed = 3});
  std::atomic<uint64_t> came{0};
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    for (uint64_t round = 1; round <= kRounds; ++round) {
      came.fetch_add(1);
      must(all.barrier(soon()));
      EXPECT_GE(came.load(), round * kProcesses);
    }
  });
}

// A gather of these records takes many messages of the smallest size in each direction.
TEST_P(CollectivesContract, LongParcelsGoInPieces) {
  struct Record {
    std::array<uint32_t, 250> words;
  };
  LocalJob job({.processes = 4, .transport = GetParam(), .fabric = {.receive_unit_bytes = 256}});
  job.run([&](Fabric& fabric, uint32_t) {
    Collectives all(fabric);
    Record mine;
    for (uint32_t i = 0; i < mine.words.size(); ++i) mine.words[i] = fabric.rank() * 1000 + i;
    const auto gathered = must(all.all_gather(mine, soon()));
    for (uint32_t rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(gathered[rank].has_value());
      for (uint32_t i = 0; i < mine.words.size(); ++i) {
        ASSERT_EQ(gathered[rank]->words[i], rank * 1000 + i);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(On, CollectivesContract, ::testing::ValuesIn(every_transport()),
                         transport_of);

}  // namespace
}  // namespace cariama::testing
