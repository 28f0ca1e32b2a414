// Transmitter in a process without free memory.
#include <memory>
#include <new>
#include <optional>

#include "dtutils/sim/sim_fabric.h"
#include "dtutils/transmitter.h"
#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/fail_allocation.h"
#include "tests/dtutils/testing/transmit_line.h"

namespace cariama {
namespace {

using testing::FailAllocation;
using testing::must;

// The first block of records of signaled operations in flight takes 512 bytes.
TEST(TransmitterMemory, ATransferThatFoundNoneMayBeRepeated) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  SimFabric fabric;
  const std::shared_ptr<Device> near_device = fabric.create_endpoint();
  const std::shared_ptr<Device> far_device = fabric.create_endpoint();
  const std::shared_ptr<ProtectionDomain> near = must(near_device->create_domain());
  const std::shared_ptr<ProtectionDomain> far = must(far_device->create_domain());
  const testing::TransmitLine line = testing::make_transmit_line(*near, *far, 64);
  Transmitter transmitter = must(Transmitter::create(*line.near));
  testing::Local from(*near, 64);
  testing::Buffer to(*far, 64);
  Synchronizer done(40);  // more than the first block has records
  const auto write = [&] { return transmitter.write(from.memory, 0, 64, to.locator(), &done); };
  {
    const FailAllocation fail(512);
    EXPECT_THROW(static_cast<void>(write()), std::bad_alloc);
  }
  for (int i = 0; i < 16; ++i) must(write());
  {
    const FailAllocation fail(512);  // that of the second block, if no record is free
    try {
      must(write());
    } catch (const std::bad_alloc&) {
      must(write());
    }
  }
  for (int i = 17; i < 40; ++i) must(write());
  must(transmitter.wait(done, testing::soon()));
}

// A destructor that allocates would end the process.
TEST(TransmitterMemory, ATransmitterIsDestroyedWithoutMemory) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  SimFabric fabric;
  const std::shared_ptr<Device> near_device = fabric.create_endpoint();
  const std::shared_ptr<Device> far_device = fabric.create_endpoint();
  const std::shared_ptr<ProtectionDomain> near = must(near_device->create_domain());
  const std::shared_ptr<ProtectionDomain> far = must(far_device->create_domain());
  const testing::TransmitLine line = testing::make_transmit_line(*near, *far, 64);
  std::optional<Transmitter> first = must(Transmitter::create(*line.near));
  std::optional<Transmitter> second = must(Transmitter::create(*line.near));
  {
    const FailAllocation fail(1);
    first.reset();
    second.reset();
    EXPECT_NE(testing::failing_bytes, 0u) << "memory was asked for";
  }
  static_cast<void>(must(Transmitter::create(*line.near)));
}

}  // namespace
}  // namespace cariama
