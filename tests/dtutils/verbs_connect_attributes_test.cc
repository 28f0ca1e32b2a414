// Codes of the verbs state machine: times are rounded up, each limit is the smaller one of both
// ends, and the path to the peer depends on the link layer.
#include "dtutils/verbs/connect_attributes.h"

#include <chrono>

#include "gtest/gtest.h"

namespace cariama::verbs {
namespace {

using std::chrono::microseconds;

TEST(ConnectAttributesTest, AckTimeoutsAreRoundedUp) {
  EXPECT_EQ(ack_timeout_code(microseconds(1)), 1);
  EXPECT_EQ(ack_timeout_code(microseconds(8)), 1);  // code 1 means 8.192 us
  EXPECT_EQ(ack_timeout_code(microseconds(9)), 2);
  EXPECT_EQ(ack_timeout_code(microseconds(67'000)), 14);  // 67.1 ms, the common default
  EXPECT_EQ(ack_timeout_code(microseconds(67'109)), 15);
  EXPECT_EQ(ack_timeout_code(std::chrono::hours(1)), 30);
  EXPECT_EQ(ack_timeout_code(microseconds::max()), 31);
  for (uint8_t code = 1; code < 31; ++code) {
    EXPECT_EQ(ack_timeout_code(microseconds((int64_t{4096} << code) / 1000)), code);
  }
}

TEST(ConnectAttributesTest, ReceiverDelaysAreRoundedUp) {
  EXPECT_EQ(receiver_delay_code(microseconds(0)), 1);
  EXPECT_EQ(receiver_delay_code(microseconds(10)), 1);
  EXPECT_EQ(receiver_delay_code(microseconds(11)), 2);
  EXPECT_EQ(receiver_delay_code(microseconds(640)), 12);
  EXPECT_EQ(receiver_delay_code(microseconds(491'520)), 31);
  EXPECT_EQ(receiver_delay_code(microseconds(491'521)), 0);  // code 0 means 655.36 ms
  EXPECT_EQ(receiver_delay_code(microseconds::max()), 0);
}

class PathTest : public ::testing::Test {
 protected:
  PathTest() {
    context_.port = 2;
    context_.gid_index = 3;
    context_.gid.raw[0] = 0xfe;
    context_.gid.raw[1] = 0x80;
    peer_.gid[0] = 0xfe;
    peer_.gid[1] = 0x80;
    peer_.gid[15] = 9;
    peer_.lid = 17;
    peer_.mtu = 1024;
    own_.mtu = 4096;
  }
  [[nodiscard]] ibv_qp_attr path() const {
    return connect_attributes(context_, own_, peer_, {}).to_ready_to_receive;
  }

  Context context_;
  Address own_;
  Address peer_;
};

TEST_F(PathTest, WithinAnInfiniBandSubnetTheLidSuffices) {
  context_.port_attributes.link_layer = IBV_LINK_LAYER_INFINIBAND;
  EXPECT_EQ(path().ah_attr.is_global, 0);
  EXPECT_EQ(path().ah_attr.dlid, 17);
  EXPECT_EQ(path().ah_attr.port_num, 2);
  EXPECT_EQ(path().path_mtu, IBV_MTU_1024);
}

TEST_F(PathTest, AnotherSubnetOrARequiringPortTakesTheGid) {
  context_.port_attributes.link_layer = IBV_LINK_LAYER_INFINIBAND;
  peer_.gid[7] = 1;
  EXPECT_EQ(path().ah_attr.is_global, 1);
  EXPECT_EQ(path().ah_attr.dlid, 17);
  EXPECT_EQ(path().ah_attr.grh.sgid_index, 3);
  EXPECT_EQ(path().ah_attr.grh.dgid.raw[15], 9);
  EXPECT_GT(path().ah_attr.grh.hop_limit, 1);
  peer_.gid[7] = 0;
  context_.port_attributes.flags = IBV_QPF_GRH_REQUIRED;
  EXPECT_EQ(path().ah_attr.is_global, 1);
}

TEST_F(PathTest, RoceAlwaysTakesTheGid) {
  context_.port_attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
  EXPECT_EQ(path().ah_attr.is_global, 1);
  EXPECT_EQ(path().ah_attr.grh.sgid_index, 3);
}

TEST_F(PathTest, ReadsInFlightAreLimitedByThePeer) {
  own_.initiated_reads = 16;
  own_.served_reads = 4;
  peer_.initiated_reads = 8;
  peer_.served_reads = 2;
  const ConnectAttributes attributes = connect_attributes(context_, own_, peer_, {});
  EXPECT_EQ(attributes.to_ready_to_send.max_rd_atomic, 2);
  EXPECT_EQ(attributes.to_ready_to_receive.max_dest_rd_atomic, 4);
}

}  // namespace
}  // namespace cariama::verbs
