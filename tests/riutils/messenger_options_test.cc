// check_options(): the values at the limits of each option are accepted, those beyond are refused
// by name.
#include "riutils/messenger_options.h"

#include <chrono>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(const MessengerOptions& options) {
  return std::string(check_options(options).message());
}

TEST(MessengerOptions, SizesOfChunksAreChecked) {
  for (const uint64_t bytes : {1024u, 4160u, 1u << 27}) {
    EXPECT_EQ(refusal({.first_chunk_bytes = bytes}), "");
    EXPECT_EQ(refusal({.chunk_bytes = bytes}), "");
  }
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{960}, uint64_t{4100}, (uint64_t{1} << 27) + 64, UINT64_MAX - 63}) {
    EXPECT_THAT(refusal({.first_chunk_bytes = bytes}), StartsWith("first_chunk_bytes is "));
    EXPECT_THAT(refusal({.chunk_bytes = bytes}), StartsWith("chunk_bytes is "));
  }
}

TEST(MessengerOptions, NumbersOfChunksAreChecked) {
  EXPECT_EQ(refusal({.chunks_per_request = 256, .max_chunks = 256}), "");
  EXPECT_EQ(refusal({.chunks_per_request = 1, .max_chunks = 1}), "");
  for (const MessengerOptions& options :
       {MessengerOptions{.chunks_per_request = 0}, MessengerOptions{.max_chunks = 0},
        MessengerOptions{.chunks_per_request = 17}, MessengerOptions{.max_chunks = 257}}) {
    EXPECT_THAT(refusal(options), StartsWith("chunks_per_request is "));
  }
}

TEST(MessengerOptions, TimesAreChecked) {
  using std::chrono::milliseconds;
  using std::chrono::nanoseconds;
  EXPECT_EQ(refusal({.flush_age = nanoseconds::max()}), "");
  EXPECT_EQ(refusal({.timeout = milliseconds(0)}), "");
  EXPECT_EQ(refusal({.timeout = milliseconds::max()}), "");
  EXPECT_EQ(refusal({.return_after = milliseconds::max()}), "");
  EXPECT_THAT(refusal({.flush_age = nanoseconds(-1)}), HasSubstr("flush_age is -1 ns"));
  EXPECT_THAT(refusal({.timeout = milliseconds(-1)}), HasSubstr("timeout is -1 ms"));
  EXPECT_THAT(refusal({.return_after = milliseconds(-1)}), HasSubstr("return_after is -1 ms"));
}

TEST(MessengerOptions, PresetsAreValid) {
  for (const char* name : {"default", "paper"}) {
    const auto preset = messenger_preset(name);
    ASSERT_TRUE(preset.ok()) << name;
    EXPECT_EQ(refusal(*preset), "") << name;
  }
  EXPECT_EQ(messenger_preset("fast").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cariama
