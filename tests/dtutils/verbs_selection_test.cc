// Which device, port and GID are chosen, on invented machines.
#include "dtutils/verbs/selection.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama::verbs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

VerbsPortInfo ethernet_port(uint32_t number, bool active, std::vector<VerbsGidInfo> gids) {
  return {.number = number,
          .active = active,
          .state = active ? "ACTIVE" : "DOWN",
          .link_layer = std::string(kEthernet),
          .mtu = 4096,
          .max_message = 1 << 30,
          .gids = std::move(gids)};
}

VerbsPortInfo infiniband_port(uint32_t number, bool active) {
  return {.number = number,
          .active = active,
          .state = active ? "ACTIVE" : "INIT",
          .link_layer = std::string(kInfiniBand),
          .lid = 7,
          .mtu = 4096,
          .max_message = 1 << 30,
          .gids = {{.index = 0, .type = "IB", .text = "fe80::1"}}};
}

VerbsDeviceInfo device(std::string name, std::vector<VerbsPortInfo> ports) {
  VerbsDeviceInfo info;
  info.name = std::move(name);
  info.usable = true;
  info.ports = std::move(ports);
  return info;
}

VerbsGidInfo gid(uint32_t index, std::string_view type, std::string text) {
  return {.index = index, .type = std::string(type), .text = std::move(text)};
}

std::string reason(const absl::StatusOr<Choice>& choice) {
  return std::string(choice.status().message());
}

TEST(VerbsSelectionTest, PrefersRoutableGidsOfVersion2) {
  const VerbsGidInfo link_local_v1 = gid(0, kRoceV1Gid, "fe80::1");
  const VerbsGidInfo link_local_v2 = gid(1, kRoceV2Gid, "fe80::1");
  const VerbsGidInfo ipv4_v1 = gid(2, kRoceV1Gid, "::ffff:10.0.0.1");
  const VerbsGidInfo ipv4_v2 = gid(3, kRoceV2Gid, "::ffff:10.0.0.1");
  const VerbsGidInfo ipv6_v2 = gid(5, kRoceV2Gid, "2001:db8::1");
  const auto chosen = [](std::vector<VerbsGidInfo> gids) {
    const std::vector<VerbsDeviceInfo> devices = {device("mlx5_0", {ethernet_port(1, true, gids)})};
    const auto choice = choose(devices, {});
    return choice.ok() && choice->gid ? gids[*choice->gid].index : 999;
  };
  EXPECT_EQ(chosen({link_local_v1, link_local_v2, ipv4_v1, ipv4_v2, ipv6_v2}), 3U);
  EXPECT_EQ(chosen({ipv6_v2, ipv4_v2}), 3U);
  EXPECT_EQ(chosen({link_local_v1, link_local_v2, ipv4_v1, ipv6_v2}), 5U);
  EXPECT_EQ(chosen({link_local_v1, ipv4_v1, link_local_v2}), 1U);
  EXPECT_EQ(chosen({link_local_v1, ipv4_v1}), 0U);
}

TEST(VerbsSelectionTest, TakesTheFirstActivePort) {
  const std::vector<VerbsGidInfo> gids = {gid(0, kRoceV2Gid, "::ffff:10.0.0.1")};
  VerbsDeviceInfo broken = device("mlx5_0", {});
  broken.usable = false;
  broken.reason = "opening it failed: Permission denied";
  const std::vector<VerbsDeviceInfo> devices = {
      broken, device("mlx5_1", {ethernet_port(1, false, gids), ethernet_port(2, false, gids)}),
      device("mlx5_2", {ethernet_port(1, false, gids), ethernet_port(2, true, gids)}),
      device("mlx5_3", {ethernet_port(1, true, gids)})};
  const auto first = choose(devices, {});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->device, 2U);
  EXPECT_EQ(first->port, 1U);
  const auto by_port = choose(devices, {.port = 1});
  ASSERT_TRUE(by_port.ok()) << by_port.status();
  EXPECT_EQ(by_port->device, 3U);
  const auto by_name = choose(devices, {.name = "mlx5_3"});
  ASSERT_TRUE(by_name.ok()) << by_name.status();
  EXPECT_EQ(by_name->device, 3U);
  EXPECT_THAT(reason(choose(devices, {.name = "mlx5_0"})), HasSubstr("Permission denied"));
  EXPECT_THAT(
      reason(choose(devices, {.name = "mlx5_1"})),
      AllOf(HasSubstr("mlx5_1 (port 1 DOWN, port 2 DOWN)"), HasSubstr("no active RDMA port")));
  EXPECT_THAT(reason(choose(devices, {.name = "mlx5_1", .port = 2})),
              AllOf(HasSubstr("mlx5_1 port 2 is DOWN, not ACTIVE"), HasSubstr("ip link set")));
}

TEST(VerbsSelectionTest, InfiniBandNeedsNoGid) {
  std::vector<VerbsDeviceInfo> devices = {device("mlx5_0", {infiniband_port(1, true)})};
  auto choice = choose(devices, {});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->gid, std::optional<size_t>(0));
  devices[0].ports[0].gids.clear();
  choice = choose(devices, {});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->gid, std::nullopt);
  devices[0].ports[0] = infiniband_port(1, false);
  EXPECT_THAT(reason(choose(devices, {.name = "mlx5_0", .port = 1})), HasSubstr("subnet manager"));
}

TEST(VerbsSelectionTest, EverythingMissingIsNamed) {
  EXPECT_THAT(reason(choose({}, {})),
              AllOf(HasSubstr("no RDMA device"), HasSubstr("CARIAMA_TRANSPORT=shm")));
  EXPECT_THAT(reason(choose({}, {.name = "mlx5_7"})), HasSubstr("'mlx5_7'"));
  const std::vector<VerbsDeviceInfo> devices = {
      device("mlx5_0",
             {ethernet_port(
                 1, true, {gid(0, kRoceV1Gid, "fe80::1"), gid(3, kRoceV2Gid, "::ffff:10.0.0.1")})}),
      device("mlx5_1", {ethernet_port(1, true, {})})};
  EXPECT_THAT(reason(choose(devices, {.name = "mlx5_7"})),
              AllOf(HasSubstr("'mlx5_7'"), HasSubstr("mlx5_0 (port 1 ACTIVE), mlx5_1")));
  EXPECT_THAT(reason(choose(devices, {.gid_index = 1})),
              AllOf(HasSubstr("mlx5_0 port 1 has no GID 1"), HasSubstr("0 (fe80::1, RoCE v1)"),
                    HasSubstr("3 (::ffff:10.0.0.1, RoCE v2)")));
  EXPECT_THAT(reason(choose(devices, {.name = "mlx5_1"})), HasSubstr("ip address add"));
  EXPECT_THAT(reason(choose(devices, {.name = "mlx5_1", .port = 4})),
              AllOf(HasSubstr("no port 4"), HasSubstr("mlx5_1 (port 1 ACTIVE)")));
  EXPECT_THAT(reason(choose(devices, {.port = 4})), HasSubstr("no active RDMA port 4"));
}

TEST(VerbsSelectionTest, TheEnvironmentAppliesToUnsetOptions) {
  setenv("CARIAMA_DEVICE", "mlx5_5", 1);
  setenv("CARIAMA_PORT", "2", 1);
  setenv("CARIAMA_GID_INDEX", "3", 1);
  auto request = read_request({});
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->name, "mlx5_5");
  EXPECT_EQ(request->port, std::optional<uint32_t>(2));
  EXPECT_EQ(request->gid_index, std::optional<uint32_t>(3));
  request = read_request({.name = "mlx5_6", .port = 1, .gid_index = 0});
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->name, "mlx5_6");
  EXPECT_EQ(request->port, std::optional<uint32_t>(1));
  EXPECT_EQ(request->gid_index, std::optional<uint32_t>(0));
  setenv("CARIAMA_PORT", "two", 1);
  EXPECT_EQ(read_request({}).status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* name : {"CARIAMA_DEVICE", "CARIAMA_PORT", "CARIAMA_GID_INDEX"}) unsetenv(name);
}

}  // namespace
}  // namespace cariama::verbs
