#include "tasks/transfer.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace cariama {
namespace {

template <typename T>
T through_bytes(const T& value) {
  std::vector<std::byte> bytes;
  Transfer<T>::pack(value, bytes);
  return Transfer<T>::unpack(bytes);
}

TEST(Transfer, ValuesComeBack) {
  EXPECT_EQ(through_bytes(std::string("text")), "text");
  EXPECT_EQ(through_bytes(std::vector<uint32_t>{1, 2, 3}), (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_TRUE(through_bytes(std::vector<uint32_t>()).empty());
  EXPECT_EQ(*through_bytes(std::make_unique<uint64_t>(7)), 7u);
  EXPECT_EQ(through_bytes(std::unique_ptr<uint64_t>()), nullptr);
}

// The bytes are in a block of exactly their size, so a sanitizer detects an access beyond it.
TEST(Transfer, BytesOfAnotherSizeAreRefused) {
  for (const size_t size : {1, 7, 9, 15}) {
    const std::vector<std::byte> bytes(size);
    EXPECT_THROW(static_cast<void>(Transfer<std::vector<uint64_t>>::unpack(bytes)),
                 std::invalid_argument)
        << size;
    EXPECT_THROW(static_cast<void>(Transfer<std::unique_ptr<uint64_t>>::unpack(bytes)),
                 std::invalid_argument)
        << size;
  }
}

}  // namespace
}  // namespace cariama
