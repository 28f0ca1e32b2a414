// Devices, domains and regions of simulated endpoints.
#ifndef CARIAMA_DTUTILS_SIM_SIM_DEVICE_H_
#define CARIAMA_DTUTILS_SIM_SIM_DEVICE_H_

#include <memory>
#include <string>
#include <utility>

#include "dtutils/device.h"
#include "dtutils/sim/fabric.h"

namespace cariama::sim {

class SimDevice final : public Device {
 public:
  SimDevice(std::shared_ptr<Fabric> fabric, Endpoint* endpoint)
      : fabric_(std::move(fabric)), endpoint_(endpoint) {}

  Transport transport() const override { return Transport::kSim; }
  std::string description() const override;
  const DeviceLimits& limits() const override { return fabric_->options().limits; }
  int numa_node() const override { return -1; }
  absl::StatusOr<std::shared_ptr<ProtectionDomain>> create_domain() override;

 private:
  const std::shared_ptr<Fabric> fabric_;
  Endpoint* const endpoint_;
};

}  // namespace cariama::sim

#endif  // CARIAMA_DTUTILS_SIM_SIM_DEVICE_H_
