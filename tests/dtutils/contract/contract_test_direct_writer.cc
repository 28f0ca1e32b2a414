// DirectWriter::write() writes all bytes or none, on every transport.
#include <cstdint>
#include <cstring>
#include <vector>

#include "dtutils/device.h"
#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {
namespace {

class DirectWriterContract : public ContractTest {};

// Writes by a writer that is made for this write, or returns false.
bool write_once(const Link& link, const Buffer& from, size_t bytes, const RemoteMemoryLocator& to) {
  DirectWriter writer;
  if (!link.near->open_direct_writer(to.key, writer)) return false;
  return writer.write(from.data(), bytes, to.address, to.key);
}

TEST_P(DirectWriterContract, WritesAllOrNothing) {
  Link link = make_link();
  constexpr size_t kMargin = 64;
  bool ever = false;
  uint64_t id = 0;
  for (const size_t bytes : {1, 2, 3, 4, 7, 8, 15, 16, 31, 33, 64, 65, 1000, 4096, 70000}) {
    SCOPED_TRACE(bytes);
    Buffer from(*near_domain_, bytes);
    Buffer to(*far_domain_, bytes + 2 * kMargin);
    const RemoteMemoryLocator target = to.locator(kMargin - 1, bytes);
    // A region becomes known to the initiator by the first request that uses it.
    const Segments source = {from.segment()};
    from.fill(++id);
    post(link.near, to_remote(Opcode::kWrite, id, source, target));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), id, CompletionKind::kWrite));
    from.fill(++id);
    const bool done = write_once(link, from, bytes, target);
    ever |= done;
    EXPECT_TRUE(untouched(to, 0, kMargin - 1));
    EXPECT_TRUE(holds(to, kMargin - 1, pattern(done ? id : id - 1, bytes)));
    EXPECT_TRUE(untouched(to, kMargin - 1 + bytes, kMargin + 1));
  }
  if (GetParam().name == "shm") {
    EXPECT_TRUE(ever) << "shm writes mapped memory at once";
  }
  EXPECT_TRUE(quiet(*link.near.sends));
  EXPECT_TRUE(quiet(*link.far.receives));
  expect_flow(link);
}

// A writer refuses requests that post_send() would refuse or fail, and the queue pair is
// not changed.
TEST_P(DirectWriterContract, LeavesInvalidRequestsToPostSend) {
  Link link = make_link();
  constexpr size_t kBytes = 4096;
  Buffer from(*near_domain_, kBytes);
  Buffer to(*far_domain_, kBytes);
  Buffer read_only(*far_domain_, kBytes, Access::kRemoteRead);
  Buffer gone(*far_domain_, kBytes);
  from.fill(1);
  const Segments source = {from.segment()};
  for (const Buffer* each : {&to, &gone}) {  // makes the regions known to the initiator
    post(link.near, to_remote(Opcode::kWrite, 1, source, each->locator()));
    EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kWrite));
  }
  to.clear();

  DirectWriter empty;
  EXPECT_FALSE(empty.write(from.data(), kBytes, to.locator().address, to.locator().key));
  EXPECT_FALSE(empty.write(from.data(), 0, 0, RemoteKey{}));
  DirectWriter writer;
  const bool opened = link.near->open_direct_writer(to.locator().key, writer);
  EXPECT_EQ(opened, GetParam().name == "shm");
  // A writer serves one key, and a failure to make it serve another one leaves it as it was.
  EXPECT_FALSE(writer.write(from.data(), kBytes, gone.locator().address, gone.locator().key));
  EXPECT_FALSE(link.near->open_direct_writer(RemoteKey{}, writer));
  EXPECT_EQ(writer.write(from.data(), kBytes, to.locator().address, to.locator().key), opened);
  EXPECT_EQ(holds(to, 0, pattern(1, kBytes)), opened);
  to.clear();

  RemoteMemoryLocator wrong = to.locator();
  wrong.key.value ^= 0x5a5a0000;
  EXPECT_FALSE(write_once(link, from, kBytes, wrong));
  EXPECT_FALSE(write_once(link, from, kBytes, read_only.locator()));
  EXPECT_FALSE(
      write_once(link, from, kBytes, {to.locator().address + 1, kBytes, to.locator().key}));
  EXPECT_FALSE(
      write_once(link, from, kBytes, {to.locator().address - 1, kBytes, to.locator().key}));
  const RemoteMemoryLocator revoked = gone.locator();
  EXPECT_EQ(link.near->open_direct_writer(revoked.key, writer), opened);
  gone.deregister();
  EXPECT_FALSE(write_once(link, from, kBytes, revoked));
  EXPECT_FALSE(writer.write(from.data(), kBytes, revoked.address, revoked.key));
  EXPECT_TRUE(untouched(to, 0, kBytes));
  EXPECT_EQ(link.near->state(), QueuePairState::kConnected);
  EXPECT_TRUE(quiet(*link.near.sends));
  expect_flow(link);
}

TEST_P(DirectWriterContract, DoesNothingOnABrokenQueuePairUntilItIsRepaired) {
  Link link = make_link();
  Buffer from(*near_domain_, 8);
  Buffer to(*far_domain_, 8);
  const Segments source = {from.segment()};
  post(link.near, to_remote(Opcode::kWrite, 1, source, to.locator()));
  EXPECT_TRUE(succeeded(take_one(*link.near.sends), 1, CompletionKind::kWrite));
  to.clear();
  DirectWriter writer;
  const bool opened = link.near->open_direct_writer(to.locator().key, writer);
  link.near->fail();
  from.fill(1);
  EXPECT_FALSE(write_once(link, from, 8, to.locator()));
  EXPECT_FALSE(writer.write(from.data(), 8, to.locator().address, to.locator().key));
  EXPECT_TRUE(untouched(to, 0, 8));
  repair(link);
  EXPECT_EQ(write_once(link, from, 8, to.locator()), GetParam().name == "shm");
  EXPECT_EQ(writer.write(from.data(), 8, to.locator().address, to.locator().key), opened);
  expect_flow(link);

  const Link unconnected = make_link({.connected = false});
  EXPECT_FALSE(write_once(unconnected, from, 8, to.locator()));
}

INSTANTIATE_TEST_SUITE_P(On, DirectWriterContract, ::testing::ValuesIn(every_transport()),
                         transport_of);

}  // namespace
}  // namespace cariama::testing
