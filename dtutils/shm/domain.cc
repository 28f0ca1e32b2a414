#include "dtutils/shm/domain.h"

#include <algorithm>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/validate.h"
#include "dtutils/shm/completion_queue.h"
#include "dtutils/shm/queue_pair.h"

namespace cariama::shm {
namespace {

absl::Status segment_full(std::string_view what) {
  return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess, what,
                    "use fewer or shorter queues, or a second device");
}

class ShmMemoryRegion final : public MemoryRegion {
 public:
  ShmMemoryRegion(std::shared_ptr<ShmDomain> domain, std::shared_ptr<ShmDevice> device,
                  const MemorySource& source, Access access, const RegionTable::Keys& keys)
      : MemoryRegion(source, access), domain_(std::move(domain)), device_(std::move(device)) {
    local_key_ = keys.local;
    remote_key_ = keys.remote;
  }
  ~ShmMemoryRegion() override {
    if (device_->inherited()) return;
    device_->regions().remove({local_key_, remote_key_});
    device_->service().push_revoked(remote_key_.value);
  }

 private:
  std::shared_ptr<ShmDomain> domain_;
  std::shared_ptr<ShmDevice> device_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<MemoryRegion>> ShmDomain::register_memory(const MemorySource& source,
                                                                         Access access) {
  absl::StatusOr<RegionTable::Keys> keys = device_->regions().add(source, access, number_);
  if (!keys.ok()) return keys.status();
  if (source.descriptor >= 0) device_->service().push_region(keys->remote.value);
  return std::make_shared<ShmMemoryRegion>(shared_from_this(), device_, source, access, *keys);
}

absl::StatusOr<std::shared_ptr<CompletionChannel>> ShmDomain::create_channel() {
  ControlBlock block(device_->control(), sizeof(SharedChannel));
  if (!block.valid()) return segment_full("create_channel: the control segment is full");
  return std::make_shared<ShmChannel>(device_, std::move(block));
}

absl::StatusOr<std::shared_ptr<CompletionQueue>> ShmDomain::create_completion_queue(
    const CompletionQueueOptions& options) {
  if (options.depth == 0 || options.depth > device_->limits().max_completions) {
    return internal::invalid_argument(
        "create_completion_queue: a depth of " + std::to_string(options.depth),
        "use 1 to " + std::to_string(device_->limits().max_completions));
  }
  auto channel = std::dynamic_pointer_cast<ShmChannel>(options.channel);
  if (options.channel != nullptr && (channel == nullptr || channel->device() != device_.get())) {
    return internal::invalid_argument(
        "create_completion_queue: the channel belongs to another device",
        "create it with this device");
  }
  ControlBlock block(device_->control(), sizeof(SharedCompletionQueue));
  if (!block.valid()) return segment_full("create_completion_queue: the control segment is full");
  return std::make_shared<ShmCompletionQueue>(device_, std::move(block), options.depth,
                                              std::move(channel));
}

absl::StatusOr<std::shared_ptr<SharedReceiveQueue>> ShmDomain::create_shared_receive_queue(
    const SharedReceiveQueueOptions& options) {
  if (options.depth == 0 || options.depth > kMaxDepth || options.max_segments > kMaxSegments) {
    return internal::invalid_argument(
        "create_shared_receive_queue: a depth of " + std::to_string(options.depth) + " with " +
            std::to_string(options.max_segments) + " segments",
        "use 1 to " + std::to_string(kMaxDepth) + " with at most " + std::to_string(kMaxSegments));
  }
  auto queue =
      ReceiveQueue::create(device_->control(), options.depth, std::max(options.max_segments, 1u));
  if (queue == nullptr) {
    return segment_full("create_shared_receive_queue: the control segment is full");
  }
  return std::make_shared<ShmSharedReceiveQueue>(device_, number_, std::move(queue));
}

absl::StatusOr<std::unique_ptr<QueuePair>> ShmDomain::create_queue_pair(
    const QueuePairOptions& options) {
  auto sends = std::dynamic_pointer_cast<ShmCompletionQueue>(options.send_completions);
  auto receives = std::dynamic_pointer_cast<ShmCompletionQueue>(options.receive_completions);
  if (sends == nullptr || receives == nullptr || sends->device() != device_.get() ||
      receives->device() != device_.get()) {
    return internal::invalid_argument(
        "create_queue_pair: a completion queue is missing, or of another device",
        "create both with a domain of this device");
  }
  if (options.send_depth == 0 ||
      (options.shared_receives == nullptr && options.receive_depth == 0)) {
    return internal::invalid_argument("create_queue_pair: a depth of 0", "use 1 or more");
  }
  std::shared_ptr<ReceiveQueue> queue;
  if (options.shared_receives != nullptr) {
    auto shared = std::dynamic_pointer_cast<ShmSharedReceiveQueue>(options.shared_receives);
    if (shared == nullptr || shared->device() != device_.get()) {
      return internal::invalid_argument(
          "create_queue_pair: the shared receive queue is of another device",
          "create it with a domain of this device");
    }
    queue = shared->queue();
  } else {
    queue = ReceiveQueue::create(
        device_->control(), std::min(options.receive_depth, device_->limits().max_receive_depth),
        std::clamp(options.max_receive_segments, 1u, kMaxSegments));
    if (queue == nullptr) return segment_full("create_queue_pair: the control segment is full");
  }
  return ShmQueuePair::create(device_, shared_from_this(), number_, options, std::move(sends),
                              std::move(receives), std::move(queue),
                              options.shared_receives != nullptr);
}

}  // namespace cariama::shm
