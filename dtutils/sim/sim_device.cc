#include "dtutils/sim/sim_device.h"

#include <algorithm>

#include "dtutils/error.h"
#include "dtutils/sim/sim_completion_queue.h"
#include "dtutils/sim/sim_queue_pair.h"

namespace cariama::sim {
namespace {

absl::Status refuse(std::string_view what, std::string_view remedy) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what, remedy);
}

class SimDomain;

class SimRegion final : public MemoryRegion {
 public:
  SimRegion(std::shared_ptr<Fabric> fabric, std::shared_ptr<SimDomain> domain,
            const MemorySource& source, Access access);
  ~SimRegion() override {
    const std::unique_lock lock = fabric_->lock();
    fabric_->remove_registration(slot_);
  }

 private:
  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<SimDomain> domain_;
  uint32_t slot_;
};

class SimDomain final : public ProtectionDomain, public std::enable_shared_from_this<SimDomain> {
 public:
  SimDomain(std::shared_ptr<Fabric> fabric, Endpoint* endpoint)
      : fabric_(std::move(fabric)), endpoint_(endpoint) {}

  absl::StatusOr<std::shared_ptr<MemoryRegion>> register_memory(const MemorySource& source,
                                                                Access access) override {
    if (source.address == nullptr || source.length == 0) {
      return refuse("registering an empty range", "give an address and a length");
    }
    return std::make_shared<SimRegion>(fabric_, shared_from_this(), source, access);
  }
  bool pins_memory() const override { return false; }

  absl::StatusOr<std::shared_ptr<CompletionChannel>> create_channel() override {
    return std::make_shared<SimCompletionChannel>(fabric_);
  }

  absl::StatusOr<std::shared_ptr<CompletionQueue>> create_completion_queue(
      const CompletionQueueOptions& options) override {
    if (options.depth == 0) {
      return refuse("creating a completion queue of depth 0", "give it a depth");
    }
    if (options.depth > limits().max_completions) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                        "the completion queue is deeper than max_completions",
                        "see the device's limits()");
    }
    if (options.channel != nullptr &&
        dynamic_cast<SimCompletionChannel*>(options.channel.get()) == nullptr) {
      return refuse("the completion channel belongs to another device",
                    "create it with this domain");
    }
    return std::make_shared<SimCompletionQueue>(fabric_, endpoint_, options);
  }

  absl::StatusOr<std::shared_ptr<SharedReceiveQueue>> create_shared_receive_queue(
      const SharedReceiveQueueOptions& options) override {
    if (options.depth == 0 || options.max_segments == 0) {
      return refuse("creating a shared receive queue of depth 0 or without segments",
                    "give it a depth and segments");
    }
    SharedReceiveQueueOptions granted = options;
    granted.depth = std::min(options.depth, limits().max_receive_depth);
    granted.max_segments = std::min(options.max_segments, limits().max_segments);
    return std::make_shared<SimSharedReceiveQueue>(fabric_, endpoint_, granted);
  }

  absl::StatusOr<std::unique_ptr<QueuePair>> create_queue_pair(
      const QueuePairOptions& options) override {
    for (const auto* queue : {&options.send_completions, &options.receive_completions}) {
      const auto* own = dynamic_cast<const SimCompletionQueue*>(queue->get());
      if (own == nullptr || own->endpoint() != endpoint_) {
        return refuse("creating a queue pair without completion queues of this device",
                      "give send_completions and receive_completions");
      }
    }
    if (options.shared_receives != nullptr) {
      const auto* own = dynamic_cast<const SimSharedReceiveQueue*>(options.shared_receives.get());
      if (own == nullptr || own->endpoint() != endpoint_) {
        return refuse("the shared receive queue belongs to another device",
                      "create it with this domain");
      }
    }
    if (options.send_depth == 0 ||
        (options.receive_depth == 0 && options.shared_receives == nullptr)) {
      return refuse("creating a queue pair of depth 0", "give it depths");
    }
    return std::make_unique<SimQueuePair>(fabric_, endpoint_, shared_from_this(), options);
  }

 private:
  [[nodiscard]] const DeviceLimits& limits() const { return fabric_->options().limits; }

  const std::shared_ptr<Fabric> fabric_;
  Endpoint* const endpoint_;
};

SimRegion::SimRegion(std::shared_ptr<Fabric> fabric, std::shared_ptr<SimDomain> domain,
                     const MemorySource& source, Access access)
    : MemoryRegion(source, access), fabric_(std::move(fabric)), domain_(std::move(domain)) {
  const std::unique_lock lock = fabric_->lock();
  uint64_t generation = 0;
  slot_ = fabric_->add_registration({.address = address_,
                                     .length = length_,
                                     .access = access,
                                     .domain = domain_.get(),
                                     .generation = 0},
                                    &generation);
  local_key_ = Fabric::local_key(slot_, generation);
  remote_key_ = Fabric::remote_key(slot_, generation);
}

}  // namespace

std::string SimDevice::description() const {
  return "sim endpoint " + std::to_string(endpoint_->id);
}

absl::StatusOr<std::shared_ptr<ProtectionDomain>> SimDevice::create_domain() {
  const std::unique_lock lock = fabric_->lock();
  if (!endpoint_->alive) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                      description() + " is dead", "create another endpoint");
  }
  return std::make_shared<SimDomain>(fabric_, endpoint_);
}

}  // namespace cariama::sim
