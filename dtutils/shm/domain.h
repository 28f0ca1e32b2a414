// Protection domains, regions and shared receive queues of the shm transport.
#ifndef CARIAMA_DTUTILS_SHM_DOMAIN_H_
#define CARIAMA_DTUTILS_SHM_DOMAIN_H_

#include <cstdint>
#include <memory>
#include <span>

#include "dtutils/device.h"
#include "dtutils/shm/device_core.h"
#include "dtutils/shm/receive_queue.h"

namespace cariama::shm {

class ShmDomain final : public ProtectionDomain, public std::enable_shared_from_this<ShmDomain> {
 public:
  ShmDomain(std::shared_ptr<ShmDevice> device, uint32_t number)
      : device_(std::move(device)), number_(number) {}

  absl::StatusOr<std::shared_ptr<MemoryRegion>> register_memory(const MemorySource& source,
                                                                Access access) override;
  bool pins_memory() const override { return false; }
  absl::StatusOr<std::shared_ptr<CompletionChannel>> create_channel() override;
  absl::StatusOr<std::shared_ptr<CompletionQueue>> create_completion_queue(
      const CompletionQueueOptions& options) override;
  absl::StatusOr<std::shared_ptr<SharedReceiveQueue>> create_shared_receive_queue(
      const SharedReceiveQueueOptions& options) override;
  absl::StatusOr<std::unique_ptr<QueuePair>> create_queue_pair(
      const QueuePairOptions& options) override;

 private:
  std::shared_ptr<ShmDevice> device_;
  uint32_t number_;
};

class ShmSharedReceiveQueue final : public SharedReceiveQueue {
 public:
  ShmSharedReceiveQueue(std::shared_ptr<ShmDevice> device, uint32_t domain,
                        std::shared_ptr<ReceiveQueue> queue)
      : device_(std::move(device)), domain_(domain), queue_(std::move(queue)) {}

  PostResult post_receive(std::span<const ReceiveRequest> requests) override {
    return queue_->post(requests, device_->regions(), domain_);
  }
  uint32_t depth() const override { return queue_->depth(); }

  [[nodiscard]] const ShmDevice* device() const { return device_.get(); }
  [[nodiscard]] uint32_t domain() const { return domain_; }
  [[nodiscard]] const std::shared_ptr<ReceiveQueue>& queue() const { return queue_; }

 private:
  std::shared_ptr<ShmDevice> device_;
  uint32_t domain_;
  std::shared_ptr<ReceiveQueue> queue_;
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_DOMAIN_H_
