// Registration over verbs, and its errors.
#include <grp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "dtutils/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/verbs/verbs_pair.h"

namespace cariama {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kMiB = 1 << 20;

class MemoryTest : public testing::VerbsTest {};

TEST_F(MemoryTest, ExhaustedMemlockErrorNamesLimitSizeAndRemedy) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become a user with a small limit";
  // Runs in a child process, because neither the limit nor the user can be restored. The child
  // creates all objects itself, since a device does not survive a fork.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto device = testing::value_of(open_verbs_device({}));
    auto domain = testing::value_of(device->create_domain());
    const rlimit limit{.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
    constexpr uid_t kNobody = 65534;
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || setgroups(0, nullptr) != 0 ||
        setresuid(kNobody, kNobody, kNobody) != 0) {
      _exit(2);
    }
    std::vector<std::byte> memory(2 * kMiB);
    const auto region =
        domain->register_memory({.address = memory.data(), .length = memory.size()}, Access::kAll);
    EXPECT_FALSE(region.ok());
    EXPECT_EQ(region.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(error_scope(region.status()), ErrorScope::kProcess);
    EXPECT_THAT(std::string(region.status().message()),
                AllOf(HasSubstr("registering 2 MiB: RLIMIT_MEMLOCK is 64 KiB"),
                      HasSubstr("raise it to at least 2 MiB (ulimit -l 2048)")));
    // A region that fits can still be registered. After that the message reports how much is in
    // use.
    const auto small =
        domain->register_memory({.address = memory.data(), .length = 32 << 10}, Access::kAll);
    EXPECT_TRUE(small.ok()) << small.status();
    const auto more =
        domain->register_memory({.address = memory.data(), .length = 48 << 10}, Access::kAll);
    EXPECT_FALSE(more.ok());
    EXPECT_THAT(std::string(more.status().message()),
                AllOf(HasSubstr("RLIMIT_MEMLOCK is 64 KiB, 3"), HasSubstr(" are pinned"),
                      HasSubstr("raise it to at least ")));
    std::fflush(nullptr);
    _exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child ended with " << status;
}

TEST_F(MemoryTest, RangesThatAreNotMemoryAreRefused) {
  std::vector<std::byte> memory(4096);
  for (const MemorySource& source : {MemorySource{.address = nullptr, .length = 10},
                                     MemorySource{.address = memory.data(), .length = 0},
                                     MemorySource{.address = memory.data(), .length = SIZE_MAX}}) {
    EXPECT_EQ(domain_->register_memory(source, Access::kAll).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  // A range with a hole in the middle.
  void* mapping =
      mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  ASSERT_EQ(munmap(static_cast<std::byte*>(mapping) + 4096, 4096), 0);
  const auto hole =
      domain_->register_memory({.address = mapping, .length = 3 * 4096}, Access::kAll);
  EXPECT_EQ(hole.status().code(), absl::StatusCode::kInvalidArgument) << hole.status();
  EXPECT_EQ(munmap(mapping, 3 * 4096), 0);
}

TEST_F(MemoryTest, KeysOfAnotherTransportAreRefused) {
  testing::VerbsEnd near = make_end();
  testing::VerbsEnd far = make_end();
  connect(near, far);
  testing::VerbsBuffer from(*domain_, 8);
  testing::VerbsBuffer to(*domain_, 8);
  Segment segment = from.segment(0, 8);
  // A key with the right value in its lower half only.
  const uint64_t foreign = (uint64_t{1} << 32) | to.region->remote_key().value;
  ASSERT_TRUE(near.pair
                  ->post_send(WorkRequest{.id = 1,
                                          .opcode = Opcode::kWrite,
                                          .flags = kSignaled,
                                          .segment_count = 1,
                                          .segments = &segment,
                                          .remote_address = to.region->locator().address,
                                          .remote_key = {foreign}})
                  .ok());
  std::vector<Completion> completions = testing::take_completions(*near.sends, 1);
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].status, CompletionStatus::kRemoteAccess);
  repair(near, far);
  segment.key.value |= uint64_t{1} << 32;
  ASSERT_TRUE(near.pair
                  ->post_send(WorkRequest{.id = 2,
                                          .opcode = Opcode::kWrite,
                                          .flags = kSignaled,
                                          .segment_count = 1,
                                          .segments = &segment,
                                          .remote_address = to.region->locator().address,
                                          .remote_key = to.region->remote_key()})
                  .ok());
  completions = testing::take_completions(*near.sends, 1);
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].status, CompletionStatus::kLocalProtection);
  repair(near, far);
  expect_write_arrives(near, 100, 1);
}

}  // namespace
}  // namespace cariama
