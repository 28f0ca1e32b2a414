// Single WRITEs of a few bytes: QueuePair::post_send() of one request has a path of its own for
// them, and refuses what every other path refuses.
#include <cstdint>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"
#include "tests/dtutils/shm/shm_node.h"

namespace cariama {
namespace {

struct SmallWrite : ::testing::Test {
  SmallWrite() { connect_pair(*near.queue_pair, *far.queue_pair); }

  // A WRITE of the first `bytes` of this side's memory.
  WorkRequest write(uint64_t address, RemoteKey key, uint32_t bytes, uint8_t flags = kInline) {
    segment = near.segment(0, bytes);
    if ((flags & kInline) != 0) segment.key = {};
    return {.opcode = Opcode::kWrite,
            .flags = flags,
            .segment_count = 1,
            .segments = &segment,
            .remote_address = address,
            .remote_key = key};
  }
  // Posts the WRITE unsignaled. Returns the status of its completion if it fails, which breaks the
  // connection. Otherwise the data must be in place.
  CompletionStatus post(const WorkRequest& request) {
    if (!near.queue_pair->post_send(request).ok()) return CompletionStatus::kUnknown;
    Completion completion;
    if (near.completions->poll(std::span(&completion, 1)) == 1) return completion.status;
    const auto* to = reinterpret_cast<const std::byte*>(request.remote_address);
    EXPECT_EQ(std::memcmp(to, segment.address, segment.length), 0);
    return CompletionStatus::kSuccess;
  }
  // Restores the connection that a failed WRITE has broken.
  void repair() {
    ASSERT_TRUE(near.queue_pair->repair().ok());
    ASSERT_TRUE(far.queue_pair->repair().ok());
    Completion completion;
    while (near.completions->poll(std::span(&completion, 1)) == 1) {
    }
  }
  // Expects that the WRITE fails with kRemoteAccess, also if a WRITE to the region came before.
  void expect_refused(const WorkRequest& request) {
    ASSERT_EQ(post(request), CompletionStatus::kRemoteAccess);
    repair();
  }

  ShmNode near;
  ShmNode far;
  Segment segment;
};

TEST_F(SmallWrite, EverySizeArrives) {
  const RemoteMemoryLocator there = far.region->locator();
  uint64_t round = 0;
  for (const uint8_t flags : {uint8_t{0}, kInline, uint8_t{kInline | kFence}}) {
    for (uint32_t bytes = 0; bytes <= near.queue_pair->limits().max_inline; ++bytes) {
      for (const uint64_t offset : {uint64_t{0}, uint64_t{8}, uint64_t{1}, uint64_t{13}}) {
        ++round;
        for (uint32_t i = 0; i < bytes; ++i) {
          near.memory.data()[i] = static_cast<std::byte>(round + i);
        }
        std::memset(far.memory.data(), 0, 256);
        ASSERT_EQ(post(write(there.address + offset, there.key, bytes, flags)),
                  CompletionStatus::kSuccess);
        for (uint64_t i = 0; i < 256; ++i) {
          if (i < offset || i >= offset + bytes) {
            ASSERT_EQ(far.memory.data()[i], std::byte{0});
          }
        }
      }
    }
  }
}

TEST_F(SmallWrite, StaysWithinTheRegion) {
  const auto region = must(far.domain->register_memory(
      {far.memory.data() + 4096, 20, far.memory.descriptor(), 4096}, Access::kRemoteWrite));
  const RemoteMemoryLocator there = region->locator();
  for (const uint32_t bytes : {8U, 4U, 12U}) {
    // The first WRITE to a region makes this process learn of it; the second finds it.
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(post(write(there.address, there.key, bytes)), CompletionStatus::kSuccess);
      ASSERT_EQ(post(write(there.address + 20 - bytes, there.key, bytes)),
                CompletionStatus::kSuccess);
    }
    expect_refused(write(there.address + 21 - bytes, there.key, bytes));
    expect_refused(write(there.address + 20, there.key, bytes));
    expect_refused(write(there.address - 1, there.key, bytes));
    expect_refused(write(there.address - bytes, there.key, bytes));
    expect_refused(write(0, there.key, bytes));
    expect_refused(write(std::numeric_limits<uint64_t>::max(), there.key, bytes));
  }
}

TEST_F(SmallWrite, ARegionMayBeSmallerThanAWord) {
  const auto region = must(far.domain->register_memory(
      {far.memory.data() + 4096, 7, far.memory.descriptor(), 4096}, Access::kRemoteWrite));
  const RemoteMemoryLocator there = region->locator();
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(post(write(there.address, there.key, 7)), CompletionStatus::kSuccess);
    expect_refused(write(there.address, there.key, 8));
  }
}

TEST_F(SmallWrite, NeedsAKeyThatPermitsIt) {
  const RemoteMemoryLocator there = far.region->locator();
  const auto readable = must(far.domain->register_memory(
      {far.memory.data(), 64, far.memory.descriptor(), 0}, Access::kRemoteRead));
  const auto other_domain = must(far.device->create_domain());
  const auto foreign = must(other_domain->register_memory(
      {far.memory.data(), 64, far.memory.descriptor(), 0}, Access::kAll));
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(post(write(there.address, there.key, 8)), CompletionStatus::kSuccess);
    expect_refused(write(there.address, {}, 8));
    expect_refused(write(there.address, {there.key.value + (uint64_t{1} << 16)}, 8));
    expect_refused(write(there.address, {uint64_t{1} << 63}, 8));
    expect_refused(write(there.address, readable->remote_key(), 8));
    expect_refused(write(there.address, foreign->remote_key(), 8));
  }
}

// A queue pair of another domain writes to that domain's region, before or after one that may not.
TEST_F(SmallWrite, EachDomainHasItsRegions) {
  const auto domain = must(far.device->create_domain());
  const auto region = must(
      domain->register_memory({far.memory.data(), 64, far.memory.descriptor(), 0}, Access::kAll));
  const auto mine = near.make_queue_pair();
  const auto theirs = must(domain->create_queue_pair(
      {.send_completions = must(domain->create_completion_queue({})),
       .receive_completions = must(domain->create_completion_queue({}))}));
  connect_pair(*mine, *theirs);
  for (int i = 0; i < 2; ++i) {
    near.memory.word(0) = static_cast<uint64_t>(i) + 1;
    ASSERT_TRUE(
        mine->post_send(write(far.region->locator().address + 8, region->remote_key(), 8)).ok());
    ASSERT_EQ(far.memory.word(1), near.memory.word(0));
    expect_refused(write(far.region->locator().address + 8, region->remote_key(), 8));
  }
}

TEST_F(SmallWrite, EndsWithTheRegistration) {
  for (int i = 0; i < 3; ++i) {
    auto region = must(far.domain->register_memory(
        {far.memory.data(), 64, far.memory.descriptor(), 0}, Access::kAll));
    const RemoteMemoryLocator there = region->locator();
    ASSERT_EQ(post(write(there.address, there.key, 8)), CompletionStatus::kSuccess);
    ASSERT_EQ(post(write(there.address, there.key, 8)), CompletionStatus::kSuccess);
    region.reset();
    expect_refused(write(there.address, there.key, 8));
  }
}

// The path of a single WRITE does not compare a word's size with max_inline.
TEST_F(SmallWrite, AWordIsInlineOnEveryQueuePair) {
  const auto make = [](ShmNode& node) {
    return must(node.domain->create_queue_pair({.send_completions = node.completions,
                                                .receive_completions = node.completions,
                                                .max_inline = 0}));
  };
  const auto mine = make(near);
  const auto theirs = make(far);
  connect_pair(*mine, *theirs);
  EXPECT_EQ(mine->limits().max_inline, 8U);
  const RemoteMemoryLocator there = far.region->locator();
  EXPECT_TRUE(mine->post_send(write(there.address, there.key, 8)).ok());
  EXPECT_EQ(mine->post_send(write(there.address, there.key, 9)).error, PostError::kInlineTooLarge);
}

}  // namespace
}  // namespace cariama
