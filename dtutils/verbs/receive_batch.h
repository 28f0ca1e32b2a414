// A chain of receives for one call of the driver, built on the stack. Used by queue pairs and
// shared receive queues.
#ifndef CARIAMA_DTUTILS_VERBS_RECEIVE_BATCH_H_
#define CARIAMA_DTUTILS_VERBS_RECEIVE_BATCH_H_

#include <array>
#include <cstdint>

#include "dtutils/queue_pair.h"
#include "dtutils/verbs/handles.h"
#include "dtutils/verbs/limits.h"
#include "dtutils/verbs/wire_segment.h"

namespace cariama::verbs {

class ReceiveBatch {
 public:
  [[nodiscard]] uint32_t size() const { return count_; }

  // Returns true if a request of that many segments still fits.
  [[nodiscard]] bool has_room(uint32_t segments) const {
    return count_ < kBatchRequests && segment_count_ + segments <= kBatchSegments;
  }

  // Adds a request. Requires: has_room(request.segment_count).
  void add(const ReceiveRequest& request, uint64_t device_id) {
    ibv_recv_wr& work = requests_[count_];
    work.wr_id = device_id;
    work.next = nullptr;
    work.sg_list = &segments_[segment_count_];
    work.num_sge = translate({request.segments, request.segment_count}, &segments_[segment_count_]);
    segment_count_ += static_cast<uint32_t>(work.num_sge);
    if (count_ > 0) requests_[count_ - 1].next = &work;
    ++count_;
  }

  // Passes the chain to `post` (ibv_post_recv or ibv_post_srq_recv, bound to its queue). Returns
  // the number of posted receives; `error` is 0 or the errno that stopped the remaining ones.
  template <typename Post>
  uint32_t post(Post post, int& error) {
    ibv_recv_wr* refused = nullptr;
    error = post(requests_.data(), &refused);
    return error == 0 ? count_ : static_cast<uint32_t>(refused - requests_.data());
  }

 private:
  std::array<ibv_recv_wr, kBatchRequests> requests_;
  std::array<ibv_sge, kBatchSegments> segments_;
  uint32_t count_ = 0;
  uint32_t segment_count_ = 0;
};

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_RECEIVE_BATCH_H_
