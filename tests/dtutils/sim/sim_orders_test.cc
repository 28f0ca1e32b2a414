// The order in which simulated WRITEs become visible: each ArrivalOrder permits exactly the effects
// that it documents.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "dtutils/sim/sim_fabric.h"
#include "tests/dtutils/testing/device_node.h"

namespace cariama {
namespace {

// The effects that a polling target has seen in any run.
struct Seen {
  bool partial = false;     // a WRITE with some of its bytes missing
  bool disorder = false;    // a byte of a WRITE before one at a lower address
  bool in_block = false;    // the same, both in one aligned block of 128 bytes
  bool overtaking = false;  // a byte of the second WRITE before the first one was complete
  bool torn_word = false;   // an aligned word with some of its bytes missing
};

Seen watch(ArrivalOrder order) {
  constexpr size_t kBytes = 512;  // of each of two WRITEs
  Seen seen;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SimFabric fabric(
        {.seed = seed, .write_order = order, .torn_spread = std::chrono::nanoseconds(2000)});
    DeviceNode a(fabric.create_endpoint()), b(fabric.create_endpoint());
    auto ab = a.make_queue_pair(), ba = b.make_queue_pair();
    connect_pair(*ab, *ba);
    EXPECT_EQ(ab->write_order(), order);
    std::fill_n(a.bytes(), kBytes, std::byte{1});
    std::fill_n(b.bytes(), 2 * kBytes, std::byte{0});
    EXPECT_TRUE(ba->post_receive(ReceiveRequest{}).ok());
    const Segment segment = a.segment(0, kBytes);
    EXPECT_TRUE(ab->post_send(request_for(Opcode::kWrite, segment, b, 0, 1, 0)).ok());
    EXPECT_TRUE(ab->post_send(request_for(Opcode::kWrite, segment, b, kBytes, 2, 0)).ok());
    EXPECT_TRUE(ab->post_send({.opcode = Opcode::kWriteImmediate, .flags = kSignaled}).ok());
    Completion received;
    while (b.completions->poll(std::span(&received, 1)) == 0) {
      if (fabric.now() > std::chrono::seconds(1)) {
        ADD_FAILURE() << "the message does not arrive";
        break;
      }
      const std::byte* const memory = b.bytes();
      const auto landed = [&](size_t from) {
        return static_cast<size_t>(std::count(memory + from, memory + from + kBytes, std::byte{1}));
      };
      for (const size_t from : {size_t{0}, kBytes}) {
        seen.partial |= landed(from) != 0 && landed(from) != kBytes;
        for (size_t i = from + 1; i < from + kBytes; ++i) {
          const bool later_first = memory[i] == std::byte{1} && memory[i - 1] == std::byte{0};
          seen.disorder |= later_first;
          seen.in_block |= later_first && reinterpret_cast<uintptr_t>(memory + i) % 128 != 0;
          seen.torn_word |= memory[i] != memory[i - 1] &&
                            reinterpret_cast<uintptr_t>(memory + i) % sizeof(uint64_t) != 0;
        }
      }
      seen.overtaking |= landed(0) != kBytes && landed(kBytes) != 0;
    }
    EXPECT_EQ(std::count(b.bytes(), b.bytes() + 2 * kBytes, std::byte{1}), 2 * kBytes);
  }
  EXPECT_TRUE(seen.partial) << "no WRITE was ever seen in part";
  return seen;
}

TEST(SimOrdersTest, NoOrder) {
  const Seen seen = watch(ArrivalOrder::kNone);
  EXPECT_TRUE(seen.disorder);
  EXPECT_TRUE(seen.overtaking);
  EXPECT_FALSE(seen.torn_word);
}
TEST(SimOrdersTest, OrderOfWrites) {
  const Seen seen = watch(ArrivalOrder::kWrites);
  EXPECT_TRUE(seen.disorder);
  EXPECT_FALSE(seen.overtaking);
  EXPECT_FALSE(seen.torn_word);
}
TEST(SimOrdersTest, OrderOfBytes) {
  const Seen seen = watch(ArrivalOrder::kBytes);
  EXPECT_FALSE(seen.disorder);
  EXPECT_FALSE(seen.overtaking);
  EXPECT_FALSE(seen.torn_word);
}
TEST(SimOrdersTest, OrderWithinAWrite) {
  const Seen seen = watch(ArrivalOrder::kWithinWrite);
  EXPECT_FALSE(seen.disorder);
  EXPECT_TRUE(seen.overtaking);
  EXPECT_TRUE(seen.torn_word);
}
TEST(SimOrdersTest, OrderWithinBlocks) {
  const Seen seen = watch(ArrivalOrder::kWithinBlocks);
  EXPECT_TRUE(seen.disorder);
  EXPECT_FALSE(seen.in_block);
  EXPECT_TRUE(seen.overtaking);
}

}  // namespace
}  // namespace cariama
