#include "tasks/internal/stack_region.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>

namespace cariama::tasks {
namespace {

using ::testing::HasSubstr;

TEST(StackRegion, HasTheDocumentedLayout) {
  const auto region = StackRegion::create(1 << 20, 5000);
  ASSERT_TRUE(region.ok()) << region.status();
  StackRegion& r = **region;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(r.bottom()), kRegionAddress + kStackGuardBytes);
  EXPECT_EQ(r.top() - r.bottom(), 1 << 20);
  EXPECT_EQ(r.tail(), r.top());
  EXPECT_EQ(r.source().length, (size_t{1} << 20) + 8192) << "the tail must have whole pages";
  // The tail is initially zero, and the whole region is writable.
  EXPECT_EQ(std::to_integer<int>(r.tail()[4999]), 0);
  std::memset(r.source().address, 1, r.source().length);
}

TEST(StackRegion, PagesAreAllocatedWhenTouched) {
  const auto region = StackRegion::create(size_t{4} << 30, 4096);
  ASSERT_TRUE(region.ok()) << region.status();
  StackRegion& r = **region;
  EXPECT_EQ(r.high_water(), 0u);
  r.top()[-1] = std::byte{1};
  EXPECT_EQ(r.high_water(), 8u);  // counts whole words
  r.top()[-100'000] = std::byte{1};
  EXPECT_EQ(r.high_water(), 100'000u);
  r.top()[-(40 << 20)] = std::byte{1};
  EXPECT_EQ(r.high_water(), size_t{40} << 20);
}

TEST(StackRegion, PeersMapTheSameMemory) {
  const auto region = StackRegion::create(8192, 4096);
  ASSERT_TRUE(region.ok());
  const MemorySource source = (*region)->source();
  void* other =
      mmap(nullptr, source.length, PROT_READ | PROT_WRITE, MAP_SHARED, source.descriptor, 0);
  ASSERT_NE(other, MAP_FAILED);
  (*region)->top()[-8] = std::byte{7};
  EXPECT_EQ(static_cast<std::byte*>(other)[8192 - 8], std::byte{7});
  EXPECT_EQ(fcntl(source.descriptor, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  munmap(other, source.length);
}

TEST(StackRegion, AnOverlappingMappingIsNamed) {
  void* const there = reinterpret_cast<void*>(kRegionAddress + kStackGuardBytes + 4096);
  ASSERT_EQ(mmap(there, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
            there);
  const absl::Status taken = StackRegion::create(1 << 20, 4096).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(taken.message()), HasSubstr("7e9000101000-7e9000102000 r--p"));
  munmap(there, 4096);
  // The failed create() left no mapping behind, so the same addresses can be used.
  EXPECT_TRUE(StackRegion::create(1 << 20, 4096).ok());
  const auto first = StackRegion::create(1 << 20, 4096);
  EXPECT_EQ(StackRegion::create(1 << 20, 4096).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(StackRegion, InvalidSizesAreRefused) {
  EXPECT_EQ(StackRegion::create(0, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StackRegion::create(~size_t{0}, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StackRegion::create(4096, ~size_t{0}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A fault outside of the guard is passed to the previous handler.
TEST(StackGuardDeath, OtherFaultsArePassedOn) {
  EXPECT_EXIT(
      {
        const auto region = StackRegion::create(1 << 20, 4096);
        const uint64_t entries[1] = {};
        const StackGuard guard(**region, "an option", entries);
        *reinterpret_cast<volatile int*>(kRegionAddress - 4096) = 1;
      },
#if defined(__SANITIZE_ADDRESS__)
      ::testing::ExitedWithCode(1),  // the handler of AddressSanitizer
#elif defined(__SANITIZE_THREAD__)
      ::testing::ExitedWithCode(66),
#else
      ::testing::KilledBySignal(SIGSEGV),
#endif
      "");
}

TEST(StackGuardDeath, BothEndsOfTheGuardAreDetected) {
  for (const size_t offset : {size_t{0}, kStackGuardBytes - 1}) {
    EXPECT_EXIT(
        {
          const auto region = StackRegion::create(1 << 20, 4096);
          const uint64_t entries[1] = {};
          const StackGuard guard(**region, "THE OPTION", entries);
          *reinterpret_cast<volatile char*>(kRegionAddress + offset) = 1;
        },
        ::testing::ExitedWithCode(134), "1048576 bytes .* raise THE OPTION");
  }
}

}  // namespace
}  // namespace cariama::tasks
