#include "dtutils/verbs/shared_receive_queue.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <numeric>
#include <string>

#include "dtutils/error.h"
#include "dtutils/internal/validate.h"
#include "dtutils/verbs/receive_batch.h"
#include "dtutils/verbs/work_id.h"

namespace cariama::verbs {

absl::StatusOr<std::shared_ptr<VerbsSharedReceiveQueue>> VerbsSharedReceiveQueue::create(
    std::shared_ptr<const VerbsDomain> domain, const SharedReceiveQueueOptions& options) {
  const std::shared_ptr<const Context>& context = domain->context();
  const uint32_t device_depth =
      std::min(static_cast<uint32_t>(std::max(context->attributes.max_srq_wr, 0)),
               context->limits.max_receive_depth);
  const uint32_t device_segments =
      std::min(static_cast<uint32_t>(std::max(context->attributes.max_srq_sge, 0)), kMostSegments);
  if (device_depth == 0 || device_segments == 0) {
    return make_error(absl::StatusCode::kUnimplemented, ErrorScope::kProcess,
                      context->description + " has no shared receive queues",
                      "use receive queues of the queue pairs");
  }
  if (options.depth == 0) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a shared receive queue of depth 0", "ask for at least 1");
  }
  std::shared_ptr<VerbsSharedReceiveQueue> queue(new VerbsSharedReceiveQueue(std::move(domain)));
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = std::min(options.depth, device_depth);
  attributes.attr.max_sge = std::clamp(options.max_segments, 1U, device_segments);
  queue->handle_.reset(ibv_create_srq(queue->domain_->handle(), &attributes));
  if (queue->handle_ == nullptr) {
    return make_errno_error(errno, ErrorScope::kProcess,
                            "creating a shared receive queue of depth " +
                                std::to_string(options.depth) + " on " +
                                queue->domain_->context()->description,
                            "ask for less; raise ulimit -l if memory ran out");
  }
  // Not more than requested, although the device may have rounded up: completion queues are sized
  // by this number.
  queue->ids_.resize(std::min(options.depth, device_depth));
  queue->max_segments_ = std::clamp(options.max_segments, 1U, device_segments);
  queue->free_.resize(queue->ids_.size());
  std::iota(queue->free_.rbegin(), queue->free_.rend(), 0U);
  return queue;
}

PostResult VerbsSharedReceiveQueue::post_receive(std::span<const ReceiveRequest> requests) {
  const std::lock_guard lock(lock_);
  PostResult result;
  while (result.ok() && result.posted < requests.size()) {
    ReceiveBatch batch;
    while (result.posted + batch.size() < requests.size()) {
      const ReceiveRequest& request = requests[result.posted + batch.size()];
      result.error = free_.size() == batch.size() ? PostError::kQueueFull
                                                  : internal::validate(request, max_segments_);
      if (!result.ok() || !batch.has_room(request.segment_count)) break;
      // Places are taken from the end of free_, and removed from it only when the batch is posted.
      const uint32_t place = free_[free_.size() - 1 - batch.size()];
      ids_[place] = request.id;
      batch.add(request, receive_id(place));
    }
    if (batch.size() == 0) break;
    int error = 0;
    const uint32_t posted = batch.post(
        [&](ibv_recv_wr* first, ibv_recv_wr** refused) {
          return ibv_post_srq_recv(handle_.get(), first, refused);
        },
        error);
    free_.resize(free_.size() - posted);
    result.posted += posted;
    if (error != 0) {
      result.error = error == ENOMEM ? PostError::kQueueFull : PostError::kDeviceError;
      result.system_error = error == ENOMEM ? 0 : static_cast<uint16_t>(error);
    }
  }
  return result;
}

uint64_t VerbsSharedReceiveQueue::finish(uint32_t place) {
  const std::lock_guard lock(lock_);
  free_.push_back(place);
  return ids_[place];
}

}  // namespace cariama::verbs
