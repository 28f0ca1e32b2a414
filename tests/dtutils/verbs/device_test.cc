// Choosing a device: the list of devices, and the errors for devices that do not exist.
#include <cstdlib>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/verbs/verbs_pair.h"

namespace cariama {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Sets an environment variable for one scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
};

class DeviceTest : public testing::VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    if (IsSkipped()) return;
    devices_ = list_verbs_devices();
    ASSERT_FALSE(devices_.empty());
    first_ = devices_.front();
    ASSERT_TRUE(first_.usable) << first_.reason;
    ASSERT_FALSE(first_.ports.empty());
  }
  static std::string message(const absl::StatusOr<std::shared_ptr<Device>>& device) {
    return std::string(device.status().message());
  }

  std::vector<VerbsDeviceInfo> devices_;
  VerbsDeviceInfo first_;
};

TEST_F(DeviceTest, TheListIsComplete) {
  EXPECT_TRUE(has_active_verbs_port(devices_));
  const VerbsPortInfo& port = first_.ports.front();
  EXPECT_EQ(port.number, 1U);
  EXPECT_TRUE(port.active);
  EXPECT_EQ(port.state, "ACTIVE");
  EXPECT_GE(port.mtu, 256U);
  EXPECT_GT(port.max_message, 0U);
  ASSERT_FALSE(port.gids.empty());
  for (const VerbsGidInfo& gid : port.gids) {
    EXPECT_FALSE(gid.text.empty());
    EXPECT_FALSE(gid.type.empty());
  }
  EXPECT_GT(first_.limits.max_send_depth, 0U);
  EXPECT_GT(first_.limits.max_completions, 0U);
}

TEST_F(DeviceTest, AnyTransportMeansVerbsWhereThereIsAnActivePort) {
  const auto device = open_device({});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->transport(), Transport::kVerbs);
  EXPECT_EQ((*device)->description(), device_->description());
}

TEST_F(DeviceTest, TheDefaultOnRoceIsAnIPv4AddressOfVersion2) {
  if (first_.ports.front().link_layer != "Ethernet") GTEST_SKIP() << "not RoCE";
  EXPECT_THAT(device_->description(),
              AllOf(StartsWith(first_.name + " port 1 gid "), HasSubstr("(::ffff:")));
}

TEST_F(DeviceTest, EachGidCanBeChosenAndCarriesTraffic) {
  for (const VerbsGidInfo& gid : first_.ports.front().gids) {
    const auto device = open_verbs_device({.name = first_.name, .port = 1, .gid_index = gid.index});
    ASSERT_TRUE(device.ok()) << device.status();
    const ScopedVariable variable("CARIAMA_GID_INDEX", std::to_string(gid.index));
    EXPECT_EQ((*open_verbs_device({}))->description(), (*device)->description());
    device_ = *device;
    domain_ = testing::value_of(device_->create_domain());
    testing::VerbsEnd near = make_end();
    testing::VerbsEnd far = make_end();
    connect(near, far);
    expect_write_arrives(near, 3000, 1);
  }
}

TEST_F(DeviceTest, TwoDevicesReachEachOther) {
  if (devices_.size() < 2 || !has_active_verbs_port({devices_[1]})) {
    GTEST_SKIP() << "needs two devices with active ports";
  }
  auto other = testing::value_of(open_verbs_device({.name = devices_[1].name}));
  auto other_domain = testing::value_of(other->create_domain());
  testing::VerbsEnd near = make_end();
  std::swap(domain_, other_domain);
  testing::VerbsEnd far = make_end();
  testing::VerbsBuffer to(*domain_, 5000);
  std::swap(domain_, other_domain);
  connect(near, far);
  testing::VerbsBuffer from(*domain_, 5000);
  for (size_t i = 0; i < from.bytes.size(); ++i) from.bytes[i] = static_cast<std::byte>(i * 3 + 1);
  const Segment segment = from.segment(0, 5000);
  ASSERT_TRUE(near.pair
                  ->post_send(WorkRequest{.opcode = Opcode::kWrite,
                                          .flags = kSignaled,
                                          .segment_count = 1,
                                          .segments = &segment,
                                          .remote_address = to.region->locator().address,
                                          .remote_key = to.region->remote_key()})
                  .ok());
  const std::vector<Completion> completions = testing::take_completions(*near.sends, 1);
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_TRUE(to_status(completions[0], near.pair->peer()).ok());
  EXPECT_TRUE(from.bytes == to.bytes);
  // A domain of one device does not accept the completion queues of another device.
  EXPECT_EQ(other_domain
                ->create_queue_pair(
                    {.send_completions = near.sends, .receive_completions = near.receives})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceTest, ErrorsNameTheMissingDeviceAndThePresentOnes) {
  EXPECT_THAT(message(open_verbs_device({.name = "mlx5_99"})),
              AllOf(HasSubstr("'mlx5_99'"), HasSubstr(first_.name), HasSubstr("CARIAMA_DEVICE")));
  EXPECT_EQ(open_verbs_device({.name = "mlx5_99"}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message(open_verbs_device({.name = first_.name, .port = 9})),
              AllOf(HasSubstr("no port 9"), HasSubstr("port 1 ACTIVE"), HasSubstr("CARIAMA_PORT")));
  EXPECT_THAT(message(open_verbs_device({.gid_index = 99})),
              AllOf(HasSubstr("no GID 99"), HasSubstr(first_.ports.front().gids.front().text),
                    HasSubstr("CARIAMA_GID_INDEX")));
  // A device that is requested by name is never replaced by another device or by shared memory.
  EXPECT_FALSE(open_device({.name = "mlx5_99"}).ok());
  const ScopedVariable variable("CARIAMA_DEVICE", "mlx5_99");
  EXPECT_THAT(message(open_device({})), HasSubstr("'mlx5_99'"));
}

TEST_F(DeviceTest, MalformedVariablesAreErrors) {
  for (const char* name : {"CARIAMA_PORT", "CARIAMA_GID_INDEX"}) {
    for (const char* value : {"one", "1x", "-1", "99999999999"}) {
      const ScopedVariable variable(name, value);
      const auto device = open_verbs_device({});
      EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(message(device), AllOf(HasSubstr(name), HasSubstr(value)));
    }
  }
  const ScopedVariable variable("CARIAMA_VERBS_IN_ORDER", "maybe");
  EXPECT_THAT(message(open_verbs_device({})), HasSubstr("'maybe'"));
}

TEST_F(DeviceTest, TheWriteOrderIsThatOfTheDeviceUnlessOverridden) {
  const auto order = [&] {
    device_ = testing::value_of(open_verbs_device({}));
    domain_ = testing::value_of(device_->create_domain());
    testing::VerbsEnd near = make_end();
    testing::VerbsEnd far = make_end();
    connect(near, far);
    return near.pair->write_order();
  };
  const ArrivalOrder own = order();
  EXPECT_TRUE(own == ArrivalOrder::kNone || own == ArrivalOrder::kWithinWrite);
  if (first_.name.starts_with("rxe")) {
    EXPECT_EQ(own, ArrivalOrder::kNone);
  }
  for (const auto& [word, expected] :
       {std::pair("none", ArrivalOrder::kNone), std::pair("within", ArrivalOrder::kWithinWrite),
        std::pair("writes", ArrivalOrder::kWrites), std::pair("bytes", ArrivalOrder::kBytes)}) {
    const ScopedVariable variable("CARIAMA_VERBS_IN_ORDER", word);
    EXPECT_EQ(order(), expected) << word;
  }
}

}  // namespace
}  // namespace cariama
