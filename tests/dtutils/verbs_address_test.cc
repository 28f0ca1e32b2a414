// Encoding of the address that two verbs queue pairs exchange.
#include "dtutils/verbs/address.h"

#include <random>
#include <string>
#include <vector>

#include "dtutils/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama::verbs {
namespace {

using ::testing::HasSubstr;

Address example() {
  Address address{.ethernet = true,
                  .lid = 0x1234,
                  .queue_pair = 0xabcdef,
                  .first_sequence = 0x123456,
                  .mtu = 4096,
                  .initiated_reads = 16,
                  .served_reads = 128,
                  .max_message = uint64_t{1} << 31,
                  .atomics = true};
  for (size_t i = 0; i < address.gid.size(); ++i) address.gid[i] = static_cast<uint8_t>(17 * i);
  return address;
}

TEST(VerbsAddressTest, IsDecodedAsEncoded) {
  for (const bool ethernet : {true, false}) {
    for (const bool atomics : {true, false}) {
      for (const uint32_t mtu : {256U, 512U, 1024U, 2048U, 4096U}) {
        Address address = example();
        address.ethernet = ethernet;
        address.atomics = atomics;
        address.mtu = mtu;
        const auto decoded = decode(encode(address));
        ASSERT_TRUE(decoded.ok()) << decoded.status();
        EXPECT_TRUE(*decoded == address);
      }
    }
  }
}

// All processes of a job must use the same format, so a change needs a new version number.
TEST(VerbsAddressTest, FormatIsVersion1) {
  const std::string bytes = encode(example());
  ASSERT_EQ(bytes.size(), 64U);
  EXPECT_EQ(bytes.substr(0, 14), std::string("CARVERBS\x01\x00\x34\x12\xef\xcd", 14));
}

TEST(VerbsAddressTest, EveryFieldOutOfRangeIsRefused) {
  std::vector<Address> bad(7, example());
  bad[0].queue_pair = 1 << 24;
  bad[1].first_sequence = 1 << 24;
  bad[2].mtu = 0;
  bad[3].mtu = 8192;
  bad[4].initiated_reads = 256;
  bad[5].served_reads = 256;
  bad[6].max_message = 0;
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(decode(encode(bad[i])).status().code(), absl::StatusCode::kInvalidArgument) << i;
  }
}

// The reserved bytes are for later versions. A decoder of this version must not accept addresses
// that use them.
TEST(VerbsAddressTest, ReservedBytesAreZero) {
  std::string bytes = encode(example());
  bytes[58] = 1;
  uint32_t hash = 2166136261U;  // FNV-1a
  for (size_t i = 0; i < 60; ++i) hash = (hash ^ static_cast<uint8_t>(bytes[i])) * 16777619U;
  for (size_t i = 0; i < 4; ++i) bytes[60 + i] = static_cast<char>(hash >> (8 * i));
  const auto decoded = decode(bytes);
  EXPECT_THAT(std::string(decoded.status().message()), HasSubstr("out of range"));
}

TEST(VerbsAddressTest, ErrorsNameTheReason) {
  const std::string good = encode(example());
  const auto reason = [](std::string_view bytes) {
    return std::string(decode(bytes).status().message());
  };
  EXPECT_THAT(reason(""), HasSubstr("another transport"));
  EXPECT_THAT(reason("CARIAMA shm address"), HasSubstr("another transport"));
  EXPECT_THAT(reason("CARVERBS"), HasSubstr("cut short"));
  EXPECT_THAT(reason(good.substr(0, 63)), HasSubstr("63 bytes"));
  std::string version = good;
  version[8] = 2;
  EXPECT_THAT(reason(version), HasSubstr("version is 2"));
  std::string damaged = good;
  damaged[20] = static_cast<char>(damaged[20] ^ 1);
  EXPECT_THAT(reason(damaged), HasSubstr("checksum"));
  EXPECT_EQ(error_scope(decode(damaged).status()), ErrorScope::kOperation);
}

TEST(VerbsAddressTest, AnyBytesAreSafe) {
  std::mt19937_64 random(7);
  const std::string good = encode(example());
  int accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string bytes = good;
    const size_t changes = 1 + random() % 8;
    for (size_t c = 0; c < changes; ++c)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    bytes.resize(random() % 4 == 0 ? random() % 100 : bytes.size());
    const auto decoded = decode(bytes);
    // Some changes have no effect or keep the checksum valid. If decode() accepts the bytes, they
    // must be a valid address.
    if (decoded.ok()) {
      ++accepted;
      EXPECT_EQ(encode(*decoded), bytes);
    }
  }
  EXPECT_LT(accepted, 1000);
}

}  // namespace
}  // namespace cariama::verbs
