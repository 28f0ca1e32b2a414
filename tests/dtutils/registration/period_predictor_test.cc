#include "dtutils/registration/period_predictor.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>

#include "dtutils/registration/helper_thread.h"

namespace cariama {
namespace {

// Regions and stacks of the examples.
constexpr uint64_t kA = 1;
constexpr uint64_t kB = 2;

TEST(ContextPredictor, PredictsFromTheSecondUseOn) {
  ContextPredictor predictor({.window = 0});
  EXPECT_EQ(predictor.record({kA, 10, 100}), std::nullopt);
  EXPECT_EQ(predictor.record({kA, 10, 150}), 200);
  EXPECT_EQ(predictor.record({kA, 10, 200}), 250);
  EXPECT_EQ(predictor.next_use(kA, 251), std::nullopt);
  EXPECT_EQ(predictor.next_use(kB, 0), std::nullopt);
  EXPECT_EQ(predictor.errors().predictions, 1u);
  EXPECT_EQ(predictor.errors().below_half_percent, 1u);
}

TEST(ContextPredictor, TakesTheEarliestDeadlineOfAllCallSites) {
  ContextPredictor predictor({.window = 0});
  // Call site 10 every 100 from 0 on, call site 20 every 100 from 30 on.
  EXPECT_EQ(predictor.record({kA, 10, 0}), std::nullopt);
  EXPECT_EQ(predictor.record({kA, 20, 30}), std::nullopt);
  EXPECT_EQ(predictor.record({kA, 10, 100}), 200);  // call site 20 has no period yet
  EXPECT_EQ(predictor.record({kA, 20, 130}), 200);
  EXPECT_EQ(predictor.record({kA, 10, 200}), 230);
}

// The paper's Figure 4: the outer loop runs inner loop 1 (buffer A, 3 times, every 10) and inner
// loop 2 (buffer B, 3 times, every 10). The first use of A in an outer iteration has the period 60,
// the other two have another context.
TEST(ContextPredictor, TheWindowTellsLoopsApart) {
  for (const uint32_t window : {0u, 1u, 2u, 4u}) {
    ContextPredictor predictor({.window = window});
    int64_t time = 0;
    std::optional<int64_t> after_last_a;
    for (int outer = 0; outer < 8; ++outer) {
      for (int i = 0; i < 3; ++i) after_last_a = predictor.record({kA, 1, time += 10});
      for (int i = 0; i < 3; ++i) static_cast<void>(predictor.record({kB, 2, time += 10}));
    }
    const int64_t last_a = time - 30;
    // Without context there is one signature with the shortest period 10. With one communication
    // before it, the signature (A after A) still has the period 10. With two, the third use of A
    // (after A, A) has the period 60, and the first one (after B, B) is the next: 40 after it.
    EXPECT_EQ(after_last_a, window < 2 ? last_a + 10 : last_a + 40) << window;
  }
}

// Two buffers in turn, every 10. The first use of A has no context, so the paper's predictor knows
// a period from the third round on.
TEST(ContextPredictor, LearnsEarlyFromTheCallSiteAlone) {
  for (const bool early : {false, true}) {
    ContextPredictor predictor({.window = 1, .learn_early = early});
    EXPECT_EQ(predictor.record({kA, 1, 10}), std::nullopt);
    EXPECT_EQ(predictor.record({kB, 2, 20}), std::nullopt);
    const std::optional<int64_t> second = predictor.record({kA, 1, 30});
    EXPECT_EQ(second, early ? std::optional<int64_t>(50) : std::nullopt);
    EXPECT_EQ(predictor.record({kB, 2, 40}), 60);
    EXPECT_EQ(predictor.record({kA, 1, 50}), 70);
  }
}

TEST(ContextPredictor, EstimatesDifferInTheirAnswerToOutliers) {
  const std::array<int64_t, 10> periods = {100, 40, 100, 104, 108, 112, 100, 104, 108, 112};
  const auto predict = [&](PeriodEstimate estimate) {
    ContextPredictor predictor({.window = 0, .estimate = estimate});
    int64_t time = 0;
    std::optional<int64_t> next = predictor.record({kA, 1, time});
    for (const int64_t period : periods) next = predictor.record({kA, 1, time += period});
    return *next - time;
  };
  EXPECT_EQ(predict(PeriodEstimate::kMinimum), 40);  // for ever
  EXPECT_EQ(predict(PeriodEstimate::kLast), 112);
  EXPECT_EQ(predict(PeriodEstimate::kMedian), 108);
  EXPECT_EQ(predict(PeriodEstimate::kQuantile), 100);
}

TEST(ContextPredictor, GraceCountsOverdueDeadlinesAsDue) {
  ContextPredictor strict({.window = 0});
  ContextPredictor lenient({.window = 0, .grace = 0.5});
  for (const int64_t time : {0, 100}) {
    static_cast<void>(strict.record({kA, 1, time}));
    static_cast<void>(lenient.record({kA, 1, time}));
  }
  EXPECT_EQ(strict.next_use(kA, 220), std::nullopt);
  EXPECT_EQ(lenient.next_use(kA, 220), 220);
  EXPECT_EQ(lenient.next_use(kA, 251), std::nullopt);
}

TEST(ContextPredictor, ForgetsRegions) {
  ContextPredictor predictor({});
  for (int64_t time = 0; time < 1000; time += 100) {
    static_cast<void>(predictor.record({kA, 1, time}));
  }
  EXPECT_NE(predictor.next_use(kA, 950), std::nullopt);
  predictor.forget(kA);
  EXPECT_EQ(predictor.signatures(), 0u);
  EXPECT_EQ(predictor.next_use(kA, 950), std::nullopt);
}

TEST(PeriodicityPredictor, FindsThePeriodOfTheStream) {
  PeriodicityPredictor predictor({.stream = 12});
  // A, A, B with the gaps 10, 20, 30.
  int64_t time = 0;
  std::optional<int64_t> next;
  for (int round = 0; round < 4; ++round) {
    EXPECT_EQ(predictor.record({kA, 1, time}), std::nullopt) << "the stream is not full";
    EXPECT_EQ(predictor.record({kA, 1, time + 10}), std::nullopt);
    next = predictor.record({kB, 2, time + 30});
    time += 60;
  }
  EXPECT_EQ(predictor.stream_period(), 3u);
  EXPECT_EQ(next, time - 30 + 60);
  EXPECT_EQ(predictor.record({kA, 1, time}), time + 10);
  EXPECT_EQ(predictor.record({kA, 1, time + 10}), time + 60);
  EXPECT_EQ(predictor.errors().predictions, 1u);
  // Another pattern: no prediction until it fills the stream.
  EXPECT_EQ(predictor.record({kA, 3, time + 20}), std::nullopt);
  EXPECT_EQ(predictor.stream_period(), 0u);
}

TEST(CostModel, FitsTheCosts) {
  CostModel model(1000, 0);
  for (uint64_t i = 1; i <= 200; ++i) model.add(i % 50, static_cast<int64_t>(i % 50) * 54 + 1100);
  EXPECT_NEAR(static_cast<double>(model.predict(0)), 1100, 30);
  EXPECT_NEAR(static_cast<double>(model.predict(1000)), 55100, 600);
  EXPECT_LT(model.predict_most(50), model.predict(50) + 200) << "no deviations";
  for (int i = 0; i < 8; ++i) model.add(10, 1'000'000);
  EXPECT_GT(model.predict_most(10), 900'000);
  CostModel one_size(10, 100);
  for (int i = 0; i < 300; ++i) one_size.add(16, 2000);
  EXPECT_NEAR(static_cast<double>(one_size.predict(16)), 2000, 10);
}

TEST(CostModel, AnInterruptionCountsAtItsLength) {
  const auto cost = [](uint64_t pages) { return static_cast<int64_t>(pages) * 54 + 2000; };
  const auto adapted = [&] {
    CostModel model(54, 2000);
    for (int i = 0; i < 100; ++i) {
      for (const uint64_t pages : {16, 16384}) model.add(pages, cost(pages));
    }
    return model;
  };
  CostModel long_one = adapted();
  long_one.add(16384, cost(16384) + 10'000'000);
  EXPECT_GT(long_one.predict_most(16384), cost(16384) + 4'000'000);
  EXPECT_LT(long_one.predict_most(16), 100'000);
  CostModel short_one = adapted();
  short_one.add(16, cost(16) + 1'000'000);
  EXPECT_GT(short_one.predict_most(16), 400'000);
  EXPECT_LT(short_one.predict_most(16384), cost(16384) + 1'500'000);
}

TEST(HelperBoard, TheHelpersWithTheMostBytesRun) {
  static HelperBoard board;
  board.post(3, 100, 1000);
  board.post(5, 300, 1000);
  board.post(9, 300, 1000);
  EXPECT_FALSE(board.may_run(5, 0, 1)) << "no idle core, no helper";
  EXPECT_TRUE(board.may_run(5, 1, 1));
  EXPECT_FALSE(board.may_run(9, 1, 1));
  EXPECT_TRUE(board.may_run(9, 2, 1));
  EXPECT_FALSE(board.may_run(3, 2, 1));
  EXPECT_FALSE(board.may_run(4, 4, 1)) << "it has posted nothing";
  board.leave(5);
  EXPECT_FALSE(board.may_run(5, 3, 1));
  EXPECT_TRUE(board.may_run(3, 2, 1));
}

TEST(HelperBoard, APostExpires) {
  static HelperBoard board;
  board.post(0, 300, 1000);  // of a process that is killed
  board.post(HelperBoard::kMaxHelpers - 1, 100, 3000);
  EXPECT_FALSE(board.may_run(HelperBoard::kMaxHelpers - 1, 1, 999));
  EXPECT_TRUE(board.may_run(HelperBoard::kMaxHelpers - 1, 1, 1000));
  EXPECT_FALSE(board.may_run(0, 1, 1000));
  board.post(0, 300, 2000);  // it was only stopped
  EXPECT_TRUE(board.may_run(0, 1, 1500));
  EXPECT_FALSE(board.may_run(HelperBoard::kMaxHelpers - 1, 1, 1500));
}

TEST(HelperBoard, HelpersWithoutRoomDoNotRun) {
  static HelperBoard board;
  board.post(HelperBoard::kMaxHelpers, 1, 1000);
  EXPECT_FALSE(board.may_run(HelperBoard::kMaxHelpers, 1000, 1));
  board.leave(HelperBoard::kMaxHelpers);
}

TEST(GapPredictor, PredictsTheNextUseAtAnyCallSite) {
  GapPredictor predictor({.window = 0, .spread = 0.5, .novice = 0});
  // Call site 20 uses A 30 after call site 10 does; the loop takes 1000.
  EXPECT_EQ(predictor.record({kA, 10, 0}), std::nullopt);
  EXPECT_EQ(predictor.record({kA, 20, 30}), std::nullopt);
  EXPECT_EQ(predictor.record({kA, 10, 1000}), 1030);
  EXPECT_EQ(predictor.next_use(kA, 1030), 1030);
  EXPECT_EQ(predictor.next_use(kA, 1031), std::nullopt);
  EXPECT_EQ(predictor.record({kA, 20, 1030}), 2000);
  EXPECT_EQ(predictor.expected_use(kA), 2000);
  EXPECT_EQ(predictor.errors().predictions, 1u);
  EXPECT_EQ(predictor.errors().below_half_percent, 1u);
  predictor.forget(kA);
  EXPECT_EQ(predictor.expected_use(kA), std::nullopt);
  EXPECT_EQ(predictor.record({kA, 10, 3000}), std::nullopt);
}

TEST(GapPredictor, IsEarlierTheMoreTheGapsVary) {
  GapPredictor predictor({.window = 0, .spread = 0.5, .novice = 0});
  int64_t time = 0;
  std::optional<int64_t> due;
  // Gaps of 900, 1000 and 1000 in turn: the shortest is 900, the median 1000.
  for (int i = 0; i < 18; ++i) due = predictor.record({kA, 10, time += i % 3 == 0 ? 900 : 1000});
  EXPECT_EQ(due, time + 850);
  EXPECT_EQ(predictor.expected_use(kA), time + 1000);
}

TEST(GapPredictor, IsEarlierWhileItKnowsLittle) {
  GapPredictor predictor({.window = 0, .spread = 0.5, .novice = 0.2});
  static_cast<void>(predictor.record({kA, 10, 0}));
  EXPECT_EQ(predictor.record({kA, 10, 1000}), 1800);
  EXPECT_EQ(predictor.record({kA, 10, 2000}), 2900);
}

// The loops of TheWindowTellsLoopsApart: the gap after the last use of A in an outer iteration is
// 40, the others are 10.
TEST(GapPredictor, TheWindowTellsLoopsApart) {
  for (const uint32_t window : {0u, 2u}) {
    GapPredictor predictor({.window = window, .novice = 0});
    int64_t time = 0;
    std::optional<int64_t> after_last_a;
    for (int outer = 0; outer < 8; ++outer) {
      for (int i = 0; i < 3; ++i) after_last_a = predictor.record({kA, 1, time += 10});
      for (int i = 0; i < 3; ++i) static_cast<void>(predictor.record({kB, 2, time += 10}));
    }
    const int64_t last_a = time - 30;
    EXPECT_EQ(after_last_a, window == 0 ? last_a + 10 : last_a + 40) << window;
  }
}

// A burst of three regions after a computation that takes between 900 and 1100: the first one is
// predicted as well as the computation allows, the others from the one before.
TEST(FollowPredictor, TheLastCommunicationBeforeAUsePredictsItBest) {
  FollowPredictor predictor({.window = 0, .spread = 0, .novice = 0});
  constexpr uint64_t kC = 3;
  int64_t time = 0;
  int64_t due_of_c_at_a = 0;
  for (int round = 0; round < 20; ++round) {
    time += 900 + round * 37 % 201;
    static_cast<void>(predictor.record({kA, 10, time}));
    if (round == 19) {
      ASSERT_EQ(predictor.revisions().size(), 2u);
      for (const PredictionRevision& one : predictor.revisions()) {
        EXPECT_EQ(one.due, time + (one.region == kB ? 10 : 20));
        EXPECT_EQ(one.expected, one.due);
        if (one.region == kC) due_of_c_at_a = one.due;
      }
    }
    time += 10;
    static_cast<void>(predictor.record({kB, 20, time}));
    time += 10;
    static_cast<void>(predictor.record({kC, 30, time}));
  }
  EXPECT_EQ(due_of_c_at_a, time);
  // After the burst, only the computation is left: the shortest one that was seen.
  ASSERT_EQ(predictor.revisions().size(), 2u);
  EXPECT_LT(predictor.next_use(kA, time), time + 920);
  EXPECT_GE(predictor.next_use(kA, time), time + 900);
  EXPECT_GT(predictor.errors().below_half_percent * 2, predictor.errors().predictions);
}

TEST(FollowPredictor, IsLessCautiousIfTheGapsHardlyVary) {
  FollowPredictor regular({.window = 0, .spread = 0, .novice = 0.2});
  int64_t due = 0;
  for (int64_t time = 0; time <= 10'000; time += 1000) {
    due = regular.record({kA, 10, time}).value_or(0) - time;
  }
  EXPECT_EQ(due, 1000);
}

TEST(FollowPredictor, ForgetsRegions) {
  FollowPredictor predictor({.window = 0});
  for (const int64_t time : {0, 100, 200, 300}) {
    static_cast<void>(predictor.record({kA, 10, time}));
    static_cast<void>(predictor.record({kB, 20, time + 10}));
  }
  EXPECT_TRUE(predictor.next_use(kA, 310).has_value());
  predictor.forget(kA);
  EXPECT_FALSE(predictor.next_use(kA, 310).has_value());
  static_cast<void>(predictor.record({kB, 20, 410}));
  EXPECT_TRUE(predictor.revisions().empty());
}

TEST(BoundedMap, DropsWhatWasNotUsedForTheLongestTime) {
  internal::BoundedMap<int> map(8);
  map.get(1) = 11;
  for (uint64_t key = 100; key < 1100; ++key) {
    map.get(key) = 1;
    ASSERT_LE(map.size(), 8u);
    ASSERT_NE(map.find(1), nullptr) << "used again and again";
  }
  EXPECT_EQ(map.get(1), 11);
  EXPECT_EQ(map.peek(100), nullptr);
  EXPECT_NE(map.peek(1099), nullptr);
  map.erase(1099);
  EXPECT_EQ(map.peek(1099), nullptr);
}

// A program whose call sites and buffers never repeat must not fill the memory, and a loop beside
// it stays predicted.
TEST(PeriodPredictor, TheTablesAreBounded) {
  for (const PredictorKind kind : {PredictorKind::kContext, PredictorKind::kGap,
                                   PredictorKind::kPeriodicity, PredictorKind::kFollow}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const auto predictor = make_predictor(kind, {.window = 0});
    std::optional<int64_t> loop;
    for (uint64_t i = 0; i < 5 * PeriodPredictor::kMaxSignatures; ++i) {
      const auto time = static_cast<int64_t>(100 * i);
      static_cast<void>(predictor->record({1000 + i, 5000 + i, time}));
      if (i % 16 == 0) loop = predictor->record({kA, 10, time + 50});
    }
    if (kind != PredictorKind::kPeriodicity) {
      EXPECT_TRUE(loop.has_value());
    }
    EXPECT_LE(predictor->entries(), 2 * PeriodPredictor::kMaxSignatures);
  }
}

}  // namespace
}  // namespace cariama
