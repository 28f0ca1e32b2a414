// Tests the repair step of the uniform playout. In playouts it changes few stones, and both sides
// equally often, so a preference for a cell would be hard to detect. In this test it has to change
// many stones, of one side.
#include "hex/internal/uniform_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "hex/playout.h"

namespace cariama::hex {
namespace {

struct Case {
  Simd simd;
  bool wide;
  int cells;         // number of empty cells; 16 or 32 per packed row
  int black_to_add;  // far from half of the cells
};

class RepairTest : public ::testing::TestWithParam<Case> {};

TEST_P(RepairTest, ChoosesEveryCellEquallyOften) {
  const Case test = GetParam();
  const UniformKernels& kernels = test.simd == Simd::kAVX512 ? kUniformAVX512
                                  : test.simd == Simd::kAVX2 ? kUniformAVX2
                                                             : kUniformPortable;
  const int width = test.wide ? 32 : 16;
  const int rows = (test.cells + width - 1) / width;
  std::vector<FillSegment> segments;
  UniformJob job;
  job.cols = width;
  job.rows = job.packed_rows = rows;
  for (int row = 0; row < rows; ++row) {
    const int bits = std::min(width, test.cells - row * width);
    const auto mask = static_cast<uint32_t>((uint64_t{1} << bits) - 1);
    job.black[row] = 0;
    job.packed_valid[row] = mask;
    segments.push_back({static_cast<uint8_t>(row), static_cast<uint8_t>(row), 0, mask});
  }
  job.segments = segments.data();
  job.num_segments = rows;
  job.black_to_add = test.black_to_add;
  job.surplus_limit = test.cells;  // every board is repaired, none is drawn again
  std::vector<uint64_t> state(UniformJob::kStateWords);
  mcts::Random random(8);
  for (uint64_t& word : state) word = random.next();
  job.state = state.data();
  job.playouts = 20'000;
  std::vector<uint32_t> owned(static_cast<size_t>(width * rows));
  std::vector<uint32_t> won(owned.size());
  job.black_owned = owned.data();
  job.black_owned_and_won = won.data();
  (test.wide ? kernels.wide : kernels.narrow)(job);

  const double n = job.playouts;
  const double p = static_cast<double>(test.black_to_add) / test.cells;
  double chi_square = 0;
  uint64_t total = 0;
  for (int cell = 0; cell < width * rows; ++cell) {
    total += owned[cell];
    if (cell >= test.cells) {
      ASSERT_EQ(owned[cell], 0U) << "a stone beyond the last cell";
      continue;
    }
    const double d = owned[cell] - n * p;
    chi_square += d * d / (n * p * (1 - p)) * (test.cells - 1) / test.cells;
  }
  EXPECT_EQ(total, static_cast<uint64_t>(job.playouts) * test.black_to_add);
  const double freedom = test.cells - 1;
  EXPECT_NEAR(chi_square, freedom, 4.5 * std::sqrt(2 * freedom));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Simd simd : available_simd()) {
    for (const bool wide : {false, true}) {
      // 11 and 13 packed rows: these numbers do not divide 256. The last packed row is not full.
      const int width = wide ? 32 : 16;
      for (const int rows : {11, 13}) {
        const int count = width * rows - 7;
        all.push_back({simd, wide, count, count / 16});
        all.push_back({simd, wide, count, count - count / 16});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, RepairTest, ::testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(simd_name(info.param.simd)) + (info.param.wide ? "_wide_" : "_narrow_") +
         std::to_string(info.param.black_to_add) + "_of_" + std::to_string(info.param.cells);
});

}  // namespace
}  // namespace cariama::hex
