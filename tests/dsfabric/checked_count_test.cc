// Checked counts: which mixes of the bytes of several of them are refused.
#include "dsfabric/peers/checked_count.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtutils/random.h"
#include "gtest/gtest.h"

namespace cariama::internal {
namespace {

// Returns the number of words that consist of bytes of the checked counts, each in its place, that
// are accepted, and that are none of the checked counts.
uint64_t accepted_mixes(const std::vector<uint64_t>& counts) {
  std::vector<uint64_t> words;
  for (const uint64_t count : counts) words.push_back(checked_count(count));
  std::array<std::vector<uint64_t>, 8> bytes;  // the different ones of each place
  for (size_t place = 0; place < bytes.size(); ++place) {
    for (const uint64_t word : words) bytes[place].push_back(word >> (8 * place) & 0xff);
    std::sort(bytes[place].begin(), bytes[place].end());
    bytes[place].erase(std::unique(bytes[place].begin(), bytes[place].end()), bytes[place].end());
  }
  uint64_t accepted = 0;
  std::array<size_t, 8> chosen{};
  for (size_t place = 0; place < bytes.size();) {
    uint64_t mix = 0;
    for (size_t i = 0; i < bytes.size(); ++i) mix |= bytes[i][chosen[i]] << (8 * i);
    if (is_checked_count(mix) && std::find(words.begin(), words.end(), mix) == words.end()) {
      ++accepted;
    }
    // The next combination.
    for (place = 0; place < bytes.size() && ++chosen[place] == bytes[place].size(); ++place) {
      chosen[place] = 0;
    }
  }
  return accepted;
}

TEST(CheckedCount, IsAcceptedAndContainsTheCount) {
  EXPECT_EQ(checked_count(0), 0u);  // memory that has not been written
  Random random(1);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t count = random.next() >> (i % 64);
    EXPECT_TRUE(is_checked_count(checked_count(count)));
    EXPECT_EQ(static_cast<uint32_t>(checked_count(count)), static_cast<uint32_t>(count));
  }
}

// Two different checked counts have different bytes in five places or more: the reason why mixes of
// two are refused. As the difference (exclusive or) of two checked counts is one itself, it is
// sufficient that each of them but 0 has five bytes that are not 0. With fewer, at most two of them
// would be in the count, or at most two in the check bytes: the test tries all of these words.
TEST(CheckedCount, DiffersFromOthersInFivePlaces) {
  Random random(2);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t a = random.next();
    const uint64_t b = random.next();
    EXPECT_EQ(checked_count(a) ^ checked_count(b), checked_count(a ^ b));
  }
  const auto places = [](uint64_t word) {
    int different = 0;
    for (; word != 0; word >>= 8) different += (word & 0xff) != 0 ? 1 : 0;
    return different;
  };
  const auto check_of = [](uint64_t count) { return checked_count(count) >> 32; };
  int least = 8;
  for (int low = 0; low < 24; low += 8) {
    for (int high = low + 8; high < 32; high += 8) {
      for (uint64_t pair = 1; pair < 0x10000; ++pair) {
        const uint64_t bytes = (pair & 0xff) << low | (pair >> 8) << high;
        least = std::min(least, places(checked_count(bytes)));
        // The count with these check bytes: the fourth power of the matrix is the identity.
        const uint64_t count = check_of(check_of(check_of(bytes)));
        ASSERT_EQ(check_of(count), bytes);
        least = std::min(least, places(checked_count(count)));
      }
    }
  }
  EXPECT_EQ(least, 5);
}

TEST(CheckedCount, RefusesMixesOfTwo) {
  // Neighbours, carries into each byte, and doubled units.
  constexpr uint64_t kSteps[] = {1, 2, 3, 8, 64, 128, 255, 256, 4096, 65535, 65536};
  for (int bit = 0; bit < 33; ++bit) {
    const uint64_t at = uint64_t{1} << bit;
    for (uint64_t before = 0; before < 20; ++before) {
      for (const uint64_t step : kSteps) {
        EXPECT_EQ(accepted_mixes({at - before, at - before + step}), 0u) << at << ' ' << before;
      }
    }
  }
  Random random(3);
  for (int i = 0; i < 5000; ++i) {
    const uint64_t older = random.next();
    EXPECT_EQ(accepted_mixes({older, random.next()}), 0u);
    EXPECT_EQ(accepted_mixes({older, older + (random.next() & 0xffff)}), 0u);
  }
}

TEST(CheckedCount, RefusesMixesOfMoreWithTheSameUpperBytes) {
  Random random(4);
  const auto with_upper_bytes = [&](uint64_t upper, uint64_t lower, int counts) {
    std::vector<uint64_t> all;
    for (int i = 0; i < counts; ++i) all.push_back((upper & ~lower) | (random.next() & lower));
    return all;
  };
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(accepted_mixes(with_upper_bytes(random.next(), 0xffffff, 3)), 0u);
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(accepted_mixes(with_upper_bytes(random.next(), 0xffff, 5)), 0u);
    EXPECT_EQ(accepted_mixes(with_upper_bytes(random.next(), 0xff, 8)), 0u);
  }
}

}  // namespace
}  // namespace cariama::internal
