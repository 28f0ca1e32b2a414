#include "dtutils/verbs/domain.h"

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/memory_limits.h"
#include "dtutils/verbs/completion_channel.h"
#include "dtutils/verbs/completion_queue.h"
#include "dtutils/verbs/queue_pair.h"
#include "dtutils/verbs/shared_receive_queue.h"

namespace cariama::verbs {
namespace {

class VerbsMemoryRegion final : public MemoryRegion {
 public:
  VerbsMemoryRegion(std::shared_ptr<const VerbsDomain> domain, RegionHandle handle,
                    const MemorySource& source, Access access)
      : MemoryRegion(source, access), domain_(std::move(domain)), handle_(std::move(handle)) {
    local_key_ = {handle_->lkey};
    remote_key_ = {handle_->rkey};
  }

 private:
  const std::shared_ptr<const VerbsDomain> domain_;
  const RegionHandle handle_;
};

int access_flags(Access access) {
  int flags = 0;
  // Never IBV_ACCESS_RELAXED_ORDERING: it would void the order of bytes within a WRITE, which
  // QueuePair::write_order() promises.
  if (has_access(access, Access::kLocalWrite)) flags |= IBV_ACCESS_LOCAL_WRITE;
  if (has_access(access, Access::kRemoteRead)) flags |= IBV_ACCESS_REMOTE_READ;
  // verbs does not permit remote write access without local write access (ibv_reg_mr(3)).
  if (has_access(access, Access::kRemoteWrite)) {
    flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
  }
  if (has_access(access, Access::kRemoteAtomic)) {
    flags |= IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE;
  }
  return flags;
}

absl::Status registration_error(int error, size_t length) {
  const std::string size = internal::format_bytes(length);
  if (error == ENOMEM) return internal::explain_no_memory(internal::query_memory_limits(), length);
  if (error == EFAULT || error == EINVAL) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "registering " + size + ": part of it is not mapped, or not writable",
                      "pass memory that is mapped with the requested access");
  }
  return make_errno_error(error, ErrorScope::kProcess, "registering a region of " + size);
}

}  // namespace

absl::StatusOr<std::shared_ptr<VerbsDomain>> VerbsDomain::create(
    std::shared_ptr<const Context> context) {
  DomainHandle handle(ibv_alloc_pd(context->handle.get()));
  if (handle == nullptr) {
    return make_errno_error(errno, ErrorScope::kProcess,
                            "creating a protection domain on " + context->description);
  }
  return std::shared_ptr<VerbsDomain>(new VerbsDomain(std::move(context), std::move(handle)));
}

absl::StatusOr<std::shared_ptr<MemoryRegion>> VerbsDomain::register_memory(
    const MemorySource& source, Access access) {
  if (source.address == nullptr || source.length == 0 ||
      reinterpret_cast<uintptr_t>(source.address) >
          std::numeric_limits<uintptr_t>::max() - source.length) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "registering a null, empty or impossible range", "pass mapped memory");
  }
  RegionHandle handle(
      ibv_reg_mr(handle_.get(), source.address, source.length, access_flags(access)));
  if (handle == nullptr) return registration_error(errno, source.length);
  return std::make_shared<VerbsMemoryRegion>(shared_from_this(), std::move(handle), source, access);
}

absl::StatusOr<std::shared_ptr<CompletionChannel>> VerbsDomain::create_channel() {
  return VerbsCompletionChannel::create(context_);
}

absl::StatusOr<std::shared_ptr<CompletionQueue>> VerbsDomain::create_completion_queue(
    const CompletionQueueOptions& options) {
  return VerbsCompletionQueue::create(context_, options);
}

absl::StatusOr<std::shared_ptr<SharedReceiveQueue>> VerbsDomain::create_shared_receive_queue(
    const SharedReceiveQueueOptions& options) {
  return VerbsSharedReceiveQueue::create(shared_from_this(), options);
}

absl::StatusOr<std::unique_ptr<QueuePair>> VerbsDomain::create_queue_pair(
    const QueuePairOptions& options) {
  return VerbsQueuePair::create(shared_from_this(), options);
}

}  // namespace cariama::verbs
