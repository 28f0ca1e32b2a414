// The vector scan of buckets returns what a plain loop returns.
#include "dht/bucket_scan.h"

#include <cstdint>
#include <random>
#include <vector>

#include "dht/table_layout.h"
#include "gtest/gtest.h"

namespace cariama {
namespace {

constexpr uint64_t kKey = kWordPresent | 12345;

// Word 0 of each bucket: empty, the key's, or another one.
std::vector<uint64_t> random_buckets(uint64_t count, size_t words, uint32_t rare,
                                     std::mt19937_64& random) {
  std::vector<uint64_t> buckets(count * words);
  for (uint64_t& word : buckets) word = kWordPresent | random() >> 1;
  for (uint64_t i = 0; i < count; ++i) {
    if (random() % rare == 0) buckets[i * words] = 0;
    if (random() % rare == 0) buckets[i * words] = kKey;
    // Other words with these values end no scan.
    if (words > 1 && random() % 4 == 0) buckets[i * words + 1] = random() % 2 == 0 ? 0 : kKey;
  }
  return buckets;
}

TEST(BucketScan, ReturnsWhatALoopReturns) {
  std::mt19937_64 random(1);
  for (size_t words = 1; words <= kMaxKeyWords; ++words) {
    for (uint64_t count = 0; count < 70; ++count) {
      for (const uint32_t rare : {3u, 40u, 1000u}) {
        const std::vector<uint64_t> buckets = random_buckets(count, words, rare, random);
        uint64_t expected = 0;
        while (expected < count && buckets[expected * words] != 0 &&
               buckets[expected * words] != kKey) {
          ++expected;
        }
        EXPECT_EQ(scan_buckets(buckets.data(), count, words, kKey), expected);
        uint64_t occupied = 0;
        for (uint64_t i = 0; i < count; ++i) occupied += buckets[i * words] != 0;
        EXPECT_EQ(count_occupied(buckets.data(), count, words), occupied);
      }
    }
  }
}

}  // namespace
}  // namespace cariama
