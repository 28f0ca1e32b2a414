// The output of cariama-info about RDMA devices, on a machine that has some.
#include <gtest/gtest.h>

#include <string>

#include "dtutils/verbs/verbs_device.h"
#include "tests/tools/cariama_info_rows.h"

namespace cariama {
namespace {

using ::cariama::testing::InfoRow;
using ::cariama::testing::InfoRows;

TEST(CariamaInfoDevices, ShowsDevicesPortsAndGids) {
  const std::vector<VerbsDeviceInfo> devices = list_verbs_devices();
  ASSERT_FALSE(devices.empty()) << "run this on a machine with an RDMA device";
  const InfoRows rows;
  EXPECT_EQ(rows.number("verbs_devices"), std::to_string(devices.size()));
  for (const VerbsDeviceInfo& device : devices) {
    EXPECT_EQ(std::get<bool>(rows.row("verbs_usable", {{"device", device.name}}).value.value),
              device.usable);
    for (const VerbsPortInfo& port : device.ports) {
      const std::map<std::string, std::string> id = {{"device", device.name},
                                                     {"port", std::to_string(port.number)}};
      EXPECT_EQ(rows.row("port_state", id).value.string(), port.state);
      EXPECT_EQ(rows.number("port_mtu", id), std::to_string(port.mtu));
      for (const VerbsGidInfo& gid : port.gids) {
        std::map<std::string, std::string> params = id;
        params["index"] = std::to_string(gid.index);
        params["type"] = gid.type;
        params["net_device"] = gid.net_device;
        EXPECT_EQ(rows.row("gid", params).value.string(), gid.text);
      }
    }
  }
  EXPECT_TRUE(std::get<bool>(rows.row("transport_works", {{"transport", "verbs"}}).value.value));
  EXPECT_EQ(rows.row("transport_by_default").value.string(), "verbs");
  EXPECT_EQ(rows.row("transport_within_machine").value.string(), "shm");
  EXPECT_EQ(rows.row("transport_between_machines").value.string(), "verbs");
  for (const InfoRow& row : rows.all("shortfall")) {
    EXPECT_NE(row.params.at("of"), "transport_verbs") << row.params.at("remedy");
  }
}

}  // namespace
}  // namespace cariama
