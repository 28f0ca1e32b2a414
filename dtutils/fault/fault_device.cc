#include "dtutils/fault/fault_device.h"

#include <algorithm>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/fault/core.h"
#include "dtutils/fault/fault_completion_queue.h"
#include "dtutils/fault/fault_queue_pair.h"
#include "dtutils/fault/fault_receives.h"

namespace cariama {
namespace fault {
namespace {

absl::Status foreign(std::string_view what) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what,
                    "create all objects with domains of the same device");
}

class FaultDomain final : public ProtectionDomain,
                          public std::enable_shared_from_this<FaultDomain> {
 public:
  FaultDomain(std::shared_ptr<Core> core, std::shared_ptr<ProtectionDomain> inner)
      : core_(std::move(core)), inner_(std::move(inner)) {}

  // Keys and access checks are those of the inner domain.
  absl::StatusOr<std::shared_ptr<MemoryRegion>> register_memory(const MemorySource& source,
                                                                Access access) override {
    return inner_->register_memory(source, access);
  }
  bool pins_memory() const override { return inner_->pins_memory(); }

  absl::StatusOr<std::shared_ptr<CompletionChannel>> create_channel() override {
    absl::StatusOr<std::shared_ptr<CompletionChannel>> inner = inner_->create_channel();
    if (!inner.ok()) return inner.status();
    return std::make_shared<FaultCompletionChannel>(core_, *std::move(inner));
  }

  absl::StatusOr<std::shared_ptr<CompletionQueue>> create_completion_queue(
      const CompletionQueueOptions& options) override {
    auto channel = std::dynamic_pointer_cast<FaultCompletionChannel>(options.channel);
    if (options.channel != nullptr && (channel == nullptr || channel->core() != core_)) {
      return foreign("the completion channel belongs to another device");
    }
    CompletionQueueOptions inner_options = options;
    inner_options.channel = channel == nullptr ? nullptr : channel->inner();
    absl::StatusOr<std::shared_ptr<CompletionQueue>> inner =
        inner_->create_completion_queue(inner_options);
    if (!inner.ok()) return inner.status();
    const std::unique_lock lock = core_->lock();
    return std::make_shared<FaultCompletionQueue>(core_, *std::move(inner), std::move(channel));
  }

  absl::StatusOr<std::shared_ptr<SharedReceiveQueue>> create_shared_receive_queue(
      const SharedReceiveQueueOptions& options) override {
    SharedReceiveQueueOptions granted = options;
    granted.depth = std::min(options.depth, core_->limits().max_receive_depth);
    granted.max_segments = std::min(options.max_segments, core_->limits().max_segments);
    absl::StatusOr<std::shared_ptr<SharedReceiveQueue>> inner =
        inner_->create_shared_receive_queue(granted);
    if (!inner.ok()) return inner.status();
    const std::unique_lock lock = core_->lock();
    return std::make_shared<FaultSharedReceiveQueue>(core_, *std::move(inner), granted);
  }

  absl::StatusOr<std::unique_ptr<QueuePair>> create_queue_pair(
      const QueuePairOptions& options) override {
    const DeviceLimits& limits = core_->limits();
    QueuePairOptions granted = options;  // contains the fault device's objects
    granted.send_depth = std::min(options.send_depth, limits.max_send_depth);
    granted.receive_depth = std::min(options.receive_depth, limits.max_receive_depth);
    granted.max_send_segments = std::min(options.max_send_segments, limits.max_segments);
    granted.max_receive_segments = std::min(options.max_receive_segments, limits.max_segments);
    granted.max_inline = std::min(options.max_inline, limits.max_inline);
    QueuePairOptions inner_options = granted;  // contains the inner objects
    for (auto* queue : {&inner_options.send_completions, &inner_options.receive_completions}) {
      const auto own = std::dynamic_pointer_cast<FaultCompletionQueue>(*queue);
      if (own == nullptr || own->core() != core_) {
        return foreign("creating a queue pair without completion queues of this device");
      }
      *queue = own->inner();
    }
    if (options.shared_receives != nullptr) {
      const auto own = std::dynamic_pointer_cast<FaultSharedReceiveQueue>(options.shared_receives);
      if (own == nullptr || own->core() != core_) {
        return foreign("the shared receive queue belongs to another device");
      }
      inner_options.shared_receives = own->inner();
    }
    absl::StatusOr<std::shared_ptr<Poison>> poison = get_poison();
    if (!poison.ok()) return poison.status();
    absl::StatusOr<std::unique_ptr<QueuePair>> inner = inner_->create_queue_pair(inner_options);
    if (!inner.ok()) return inner.status();
    const std::unique_lock lock = core_->lock();
    if (absl::Status started = core_->start_thread(); !started.ok()) return started;
    return std::make_unique<FaultQueuePair>(core_, shared_from_this(), *std::move(poison),
                                            *std::move(inner), granted);
  }

 private:
  // Returns the poison region. It is registered with the first queue pair; all queue pairs keep it
  // alive.
  absl::StatusOr<std::shared_ptr<Poison>> get_poison() {
    const std::unique_lock lock = core_->lock();
    if (std::shared_ptr<Poison> existing = poison_.lock()) return existing;
    auto poison = std::make_shared<Poison>();
    absl::StatusOr<std::shared_ptr<MemoryRegion>> region = inner_->register_memory(
        {.address = poison->memory, .length = sizeof(poison->memory)}, Access::kLocalWrite);
    if (!region.ok()) return region.status();
    poison->region = *std::move(region);
    poison_ = poison;
    return poison;
  }

  const std::shared_ptr<Core> core_;
  const std::shared_ptr<ProtectionDomain> inner_;
  std::weak_ptr<Poison> poison_;
};

class FaultDevice final : public Device {
 public:
  explicit FaultDevice(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  Transport transport() const override { return Transport::kFault; }
  std::string description() const override { return "fault(" + core_->inner().description() + ")"; }
  const DeviceLimits& limits() const override { return core_->limits(); }
  int numa_node() const override { return core_->inner().numa_node(); }
  absl::StatusOr<std::shared_ptr<ProtectionDomain>> create_domain() override {
    absl::StatusOr<std::shared_ptr<ProtectionDomain>> inner = core_->inner().create_domain();
    if (!inner.ok()) return inner.status();
    return std::make_shared<FaultDomain>(core_, *std::move(inner));
  }

 private:
  const std::shared_ptr<Core> core_;
};

}  // namespace
}  // namespace fault

std::string_view fault_name(Fault fault) {
  switch (fault) {
    case Fault::kLateCompletion:
      return "late completion";
    case Fault::kLateOperation:
      return "late operation";
    case Fault::kTornWrite:
      return "torn write";
    case Fault::kReceiverNotReady:
      return "receiver not ready";
    case Fault::kFailedOperation:
      return "failed operation";
    case Fault::kLostPeer:
      return "lost peer";
  }
  return "unknown fault";
}

FaultOptions FaultOptions::benign(uint64_t seed) {
  return {.seed = seed,
          .late_completion = 0.25,
          .late_operation = 0.25,
          .torn_write = 0.5,
          .receiver_not_ready = 0.25,
          .max_send_depth = 32,
          .max_receive_depth = 64,
          .max_segments = 4,
          .max_inline = 32};
}

void FaultControl::lose_peer(std::string_view label) {
  const std::scoped_lock lock(mutex_);
  lost_.emplace(label);
  any_lost_.store(true, std::memory_order_release);
}

void FaultControl::restore_peer(std::string_view label) {
  const std::scoped_lock lock(mutex_);
  const auto found = lost_.find(label);
  if (found != lost_.end()) lost_.erase(found);
  any_lost_.store(!lost_.empty(), std::memory_order_release);
}

bool FaultControl::is_lost(std::string_view label) const {
  if (!any_lost_.load(std::memory_order_acquire)) return false;
  const std::scoped_lock lock(mutex_);
  return lost_.contains(label);
}

void FaultControl::add_device(const std::shared_ptr<fault::Core>& core) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(devices_, [](const auto& device) { return device.expired(); });
  devices_.push_back(core);
}

std::vector<std::shared_ptr<fault::Core>> FaultControl::devices() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<fault::Core>> alive;
  for (const auto& device : devices_) {
    if (std::shared_ptr<fault::Core> core = device.lock()) alive.push_back(std::move(core));
  }
  return alive;
}

std::shared_ptr<Device> make_fault_device(std::shared_ptr<Device> inner,
                                          const FaultOptions& options,
                                          std::shared_ptr<FaultControl> control) {
  if (control == nullptr) control = std::make_shared<FaultControl>();
  auto core = std::make_shared<fault::Core>(std::move(inner), options, control);
  control->add_device(core);
  return std::make_shared<fault::FaultDevice>(std::move(core));
}

}  // namespace cariama
