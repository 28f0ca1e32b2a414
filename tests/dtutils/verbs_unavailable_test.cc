// On a machine without RDMA, requests for verbs fail with a remedy, and the default is shm.
#include <cstdlib>
#include <string>

#include "dtutils/device.h"
#include "dtutils/verbs/verbs_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class VerbsUnavailableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (has_active_verbs_port(list_verbs_devices())) {
      GTEST_SKIP() << "this machine has an active RDMA port";
    }
  }
};

TEST_F(VerbsUnavailableTest, RequestingVerbsGivesAnErrorWithRemedy) {
  const auto device = open_device({.transport = Transport::kVerbs});
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(std::string(device.status().message()),
              AllOf(HasSubstr("RDMA"), HasSubstr("CARIAMA_TRANSPORT=shm")));
}

TEST_F(VerbsUnavailableTest, ANamedDeviceIsNotReplacedBySharedMemory) {
  const auto device = open_device({.name = "mlx5_0"});
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("'mlx5_0'"));
  ASSERT_EQ(setenv("CARIAMA_DEVICE", "mlx5_1", 1), 0);
  EXPECT_FALSE(open_device({}).ok());
  ASSERT_EQ(unsetenv("CARIAMA_DEVICE"), 0);
}

TEST_F(VerbsUnavailableTest, TheDefaultIsSharedMemory) {
  const auto device = open_device({});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->transport(), Transport::kShm);
}

TEST(OpenDeviceTest, TheEnvironmentChoosesAndItsMistakesAreErrors) {
  ASSERT_EQ(setenv("CARIAMA_TRANSPORT", "tcp", 1), 0);
  const auto wrong = open_device({});
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("'tcp'"));
  ASSERT_EQ(setenv("CARIAMA_TRANSPORT", "shm", 1), 0);
  const auto device = open_device({});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->transport(), Transport::kShm);
  ASSERT_EQ(unsetenv("CARIAMA_TRANSPORT"), 0);
}

TEST(OpenDeviceTest, SimulationAndFaultDevicesAreRefused) {
  for (const Transport transport : {Transport::kSim, Transport::kFault}) {
    const auto device = open_device({.transport = transport});
    EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(device.status().message()),
                HasSubstr(std::string(transport_name(transport)) + "_"));
  }
}

}  // namespace
}  // namespace cariama
