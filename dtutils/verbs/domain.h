#ifndef CARIAMA_DTUTILS_VERBS_DOMAIN_H_
#define CARIAMA_DTUTILS_VERBS_DOMAIN_H_

#include <memory>

#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/verbs/context.h"
#include "dtutils/verbs/handles.h"

namespace cariama::verbs {

// A verbs protection domain. Queue pairs, shared receive queues and regions share its ownership.
class VerbsDomain final : public ProtectionDomain,
                          public std::enable_shared_from_this<VerbsDomain> {
 public:
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<VerbsDomain>> create(
      std::shared_ptr<const Context> context);

  [[nodiscard]] absl::StatusOr<std::shared_ptr<MemoryRegion>> register_memory(
      const MemorySource& source, Access access) override;
  [[nodiscard]] absl::StatusOr<std::shared_ptr<CompletionChannel>> create_channel() override;
  [[nodiscard]] absl::StatusOr<std::shared_ptr<CompletionQueue>> create_completion_queue(
      const CompletionQueueOptions& options) override;
  [[nodiscard]] absl::StatusOr<std::shared_ptr<SharedReceiveQueue>> create_shared_receive_queue(
      const SharedReceiveQueueOptions& options) override;
  [[nodiscard]] absl::StatusOr<std::unique_ptr<QueuePair>> create_queue_pair(
      const QueuePairOptions& options) override;

  [[nodiscard]] const std::shared_ptr<const Context>& context() const { return context_; }
  [[nodiscard]] ibv_pd* handle() const { return handle_.get(); }

 private:
  VerbsDomain(std::shared_ptr<const Context> context, DomainHandle handle)
      : context_(std::move(context)), handle_(std::move(handle)) {}

  const std::shared_ptr<const Context> context_;
  const DomainHandle handle_;
};

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_DOMAIN_H_
