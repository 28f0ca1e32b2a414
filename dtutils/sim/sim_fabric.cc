#include "dtutils/sim/sim_fabric.h"

#include "dtutils/sim/fabric.h"
#include "dtutils/sim/sim_device.h"

namespace cariama {

SimFabric::SimFabric(const SimOptions& options) : fabric_(std::make_shared<sim::Fabric>(options)) {}
SimFabric::~SimFabric() = default;

std::shared_ptr<Device> SimFabric::create_endpoint() {
  const std::unique_lock lock = fabric_->lock();
  return std::make_shared<sim::SimDevice>(fabric_, fabric_->add_endpoint());
}

uint32_t SimFabric::endpoint_count() const {
  const std::unique_lock lock = fabric_->lock();
  return fabric_->endpoint_count();
}

SimTime SimFabric::now() const {
  const std::unique_lock lock = fabric_->lock();
  return fabric_->now();
}

bool SimFabric::step() {
  const std::unique_lock lock = fabric_->lock();
  return fabric_->step();
}

void SimFabric::run_until(SimTime deadline) {
  const std::unique_lock lock = fabric_->lock();
  while (fabric_->step(deadline)) {
  }
  fabric_->advance_to(deadline);
}

bool SimFabric::run_until_idle(SimTime limit) {
  const std::unique_lock lock = fabric_->lock();
  while (fabric_->step(limit)) {
  }
  return fabric_->idle();
}

void SimFabric::set_horizon(SimTime horizon) {
  const std::unique_lock lock = fabric_->lock();
  fabric_->set_horizon(horizon);
}

void SimFabric::kill(uint32_t endpoint) {
  const std::unique_lock lock = fabric_->lock();
  fabric_->endpoint(endpoint)->alive = false;
}

void SimFabric::partition(std::span<const uint32_t> endpoints) {
  const std::unique_lock lock = fabric_->lock();
  const uint32_t island = fabric_->new_island();
  for (const uint32_t endpoint : endpoints) fabric_->set_island(endpoint, island);
}

void SimFabric::heal() {
  const std::unique_lock lock = fabric_->lock();
  fabric_->heal();
}

uint64_t SimFabric::trace_hash() const {
  const std::unique_lock lock = fabric_->lock();
  return fabric_->trace_hash();
}

SimStatistics SimFabric::statistics() const {
  const std::unique_lock lock = fabric_->lock();
  return fabric_->statistics();
}

SimEndpointStatistics SimFabric::endpoint_statistics(uint32_t endpoint) const {
  const std::unique_lock lock = fabric_->lock();
  return fabric_->endpoint(endpoint)->statistics;
}

std::vector<uint32_t> SimFabric::take_arrivals() {
  const std::unique_lock lock = fabric_->lock();
  return fabric_->take_arrivals();
}

}  // namespace cariama
