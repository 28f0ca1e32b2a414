// Copies of every size between all alignments: all bytes of the target are written, and no others.
#include "dtutils/shm/copy.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace cariama::shm {
namespace {

constexpr size_t kMargin = 64;

// Copies `bytes` with both functions, and compares the bytes around the target, too.
void check(size_t bytes, size_t from_offset, size_t to_offset) {
  const size_t room = kMargin + bytes + kMargin;
  std::vector<std::byte> from(room + 64);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const bool out : {true, false}) {
    std::vector<std::byte> to(room + 64, std::byte{0xEE});
    std::vector<std::byte> wanted = to;
    std::byte* const source = from.data() + kMargin + from_offset;
    for (size_t i = 0; i < bytes; ++i) wanted[kMargin + to_offset + i] = source[i];
    if (out) {
      copy_out(to.data() + kMargin + to_offset, source, bytes);
    } else {
      copy_in(to.data() + kMargin + to_offset, source, bytes);
    }
    ASSERT_EQ(to, wanted) << bytes << " bytes from +" << from_offset << " to +" << to_offset
                          << (out ? ", out" : ", in");
  }
}

TEST(Copy, EverySizeAtEveryAlignmentOfAWord) {
  for (size_t bytes = 0; bytes <= 200; ++bytes) {
    for (size_t from = 0; from < 8; ++from) {
      for (size_t to = 0; to < 8; ++to) check(bytes, from, to);
    }
  }
}

TEST(Copy, SizesAroundTheThresholdsOfTheMethods) {
  for (const size_t size : {size_t{256}, size_t{1024}, kMaxBlockwise, size_t{4096}}) {
    for (size_t bytes = size - 65; bytes <= size + 65; ++bytes) {
      check(bytes, 0, 0);
      check(bytes, 3, 61);
    }
  }
}

}  // namespace
}  // namespace cariama::shm
