#include "dtutils/internal/byte_size.h"

#include <gtest/gtest.h>

#include <limits>

namespace cariama::internal {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(FormatBytes, ChoosesTheUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(65536), "64 KiB");
  EXPECT_EQ(format_bytes(2 * kMiB), "2 MiB");
  EXPECT_EQ(format_bytes(kGiB + kGiB / 2), "1.5 GiB");
  EXPECT_EQ(format_bytes(kMax), "unlimited");
}

TEST(ParseBytes, AcceptsTheUsualForms) {
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("17B"), 17u);
  EXPECT_EQ(parse_bytes("64k"), 65536u);
  EXPECT_EQ(parse_bytes("64KB"), 65536u);
  EXPECT_EQ(parse_bytes("2 MiB"), 2 * kMiB);
  EXPECT_EQ(parse_bytes("4GiB"), 4 * kGiB);
  EXPECT_EQ(parse_bytes("1t"), 1024 * kGiB);
  EXPECT_EQ(parse_bytes("unlimited"), kMax);
}

TEST(ParseBytes, RefusesOtherText) {
  for (const char* text : {"", " ", "x", "-1", "4 XiB", "4GG", "4GiBs", "1.5G", "0x10", "k",
                           "99999999999999999999", "16777216T"}) {
    EXPECT_FALSE(parse_bytes(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace cariama::internal
