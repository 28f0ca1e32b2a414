#include "dtutils/internal/sysfs.h"

#include <gtest/gtest.h>

#include <sstream>

#include "dtutils/internal/page_query.h"

namespace cariama::internal {
namespace {

TEST(ParseList, ReadsRangesAndStopsAtNonsense) {
  EXPECT_EQ(parse_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_list("5"), (std::vector<int>{5}));
  EXPECT_TRUE(parse_list("").empty());
  EXPECT_TRUE(parse_list("3-1").empty());
  // Refused: no machine has so many, and the list would take 400 MB.
  EXPECT_TRUE(parse_list("0-99999999").empty());
  EXPECT_EQ(parse_list("1,x"), (std::vector<int>{1}));
}

TEST(ChosenWord, FindsTheBrackets) {
  EXPECT_EQ(chosen_word("always [madvise] never"), "madvise");
  EXPECT_EQ(chosen_word("always madvise"), "");
  EXPECT_EQ(chosen_word("always ]madvise["), "");
  EXPECT_EQ(chosen_word(""), "");
}

TEST(ReadNumber, RefusesTextThatIsNoNumber) {
  EXPECT_FALSE(read_number("/proc/self/status").has_value());
  EXPECT_FALSE(read_number("/nowhere").has_value());
  EXPECT_TRUE(read_number("/proc/sys/kernel/pid_max").has_value());
}

constexpr const char* kSmaps =
    "555500000000-555500001000 r-xp 00000000 fe:00 1234  /bin/true\n"
    "Size:                  4 kB\n"
    "KernelPageSize:        4 kB\n"
    "VmFlags: rd ex mr mw me sd\n"
    "7f0000000000-7f0000400000 rw-s 00000000 00:11 11032  /memfd:cariama (deleted)\n"
    "Size:               4096 kB\n"
    "KernelPageSize:     2048 kB\n"
    "AnonHugePages:         0 kB\n"
    "ShmemPmdMapped:        0 kB\n"
    "VmFlags: rd wr sh mr mw me ms ht sd\n"
    "7f0000400000-7f0000a00000 rw-p 00000000 00:00 0 \n"
    "KernelPageSize:        4 kB\n"
    "AnonHugePages:      6144 kB\n"
    "ShmemPmdMapped:     2048 kB\n";

TEST(FindMapping, ReadsTheEntryOfTheAddressOnly) {
  std::istringstream smaps(kSmaps);
  const auto mapping = find_mapping(smaps, 0x7f0000200000);
  ASSERT_TRUE(mapping.has_value());
  EXPECT_EQ(mapping->start, 0x7f0000000000u);
  EXPECT_EQ(mapping->end, 0x7f0000400000u);
  EXPECT_EQ(mapping->kernel_page, 2048u * 1024);
  EXPECT_EQ(mapping->anonymous_huge, 0u);
}

TEST(FindMapping, ReadsTheLastEntryAndItsHugePages) {
  std::istringstream smaps(kSmaps);
  const auto mapping = find_mapping(smaps, 0x7f00009fffff);
  ASSERT_TRUE(mapping.has_value());
  EXPECT_EQ(mapping->kernel_page, 4096u);
  EXPECT_EQ(mapping->anonymous_huge, 6144u * 1024);
  EXPECT_EQ(mapping->shared_huge_mapped, 2048u * 1024);
}

TEST(FindMapping, HasNothingForAHole) {
  std::istringstream smaps(kSmaps);
  EXPECT_FALSE(find_mapping(smaps, 0x7f0000a00000).has_value());
}

TEST(QueryMapping, FindsThisFunction) {
  static const int here = 0;
  const auto mapping = query_mapping(&here);
  ASSERT_TRUE(mapping.has_value());
  EXPECT_LE(mapping->start, reinterpret_cast<uintptr_t>(&here));
  EXPECT_GT(mapping->end, reinterpret_cast<uintptr_t>(&here));
  EXPECT_GT(mapping->kernel_page, 0u);
}

}  // namespace
}  // namespace cariama::internal
