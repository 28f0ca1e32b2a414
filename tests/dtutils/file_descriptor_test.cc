#include "dtutils/internal/file_descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "gtest/gtest.h"

namespace cariama {
namespace {

int open_one() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int number) { return fcntl(number, F_GETFD) >= 0 || errno != EBADF; }

TEST(FileDescriptorTest, ClosesItsDescriptor) {
  int number = -1;
  {
    const FileDescriptor one(open_one());
    number = one.get();
    EXPECT_TRUE(one.valid());
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
  EXPECT_FALSE(FileDescriptor().valid());
}

TEST(FileDescriptorTest, MovesWithoutClosing) {
  FileDescriptor one(open_one());
  FileDescriptor other(open_one());
  const int first = one.get();
  const int second = other.get();
  other = std::move(one);
  EXPECT_EQ(other.get(), first);
  EXPECT_TRUE(is_open(first));
  EXPECT_FALSE(is_open(second));  // closed by the assignment, not when `one` is destroyed
  EXPECT_FALSE(one.valid());      // NOLINT(bugprone-use-after-move): a moved-from object is empty
  FileDescriptor& same = other;
  other = std::move(same);
  EXPECT_EQ(other.get(), first);
  const FileDescriptor third(std::move(other));
  EXPECT_TRUE(is_open(first));
}

TEST(FileDescriptorTest, IsReleasedAndReset) {
  FileDescriptor one(open_one());
  const int number = one.release();
  EXPECT_FALSE(one.valid());
  EXPECT_TRUE(is_open(number));
  FileDescriptor again(number);
  again.reset();
  EXPECT_FALSE(again.valid());
  EXPECT_FALSE(is_open(number));
  again.reset();
}

}  // namespace
}  // namespace cariama
