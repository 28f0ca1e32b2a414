#ifndef CARIAMA_DTUTILS_VERBS_SHARED_RECEIVE_QUEUE_H_
#define CARIAMA_DTUTILS_VERBS_SHARED_RECEIVE_QUEUE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/verbs/domain.h"
#include "dtutils/verbs/handles.h"
#include "dtutils/verbs/spin_lock.h"

namespace cariama::verbs {

// A shared receive queue. Its receives complete out of order (each queue pair that takes one needs
// time to fill it), so the device identifies a receive by its place in a table.
class VerbsSharedReceiveQueue final : public SharedReceiveQueue {
 public:
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<VerbsSharedReceiveQueue>> create(
      std::shared_ptr<const VerbsDomain> domain, const SharedReceiveQueueOptions& options);

  [[nodiscard]] PostResult post_receive(std::span<const ReceiveRequest> requests) override;
  [[nodiscard]] uint32_t depth() const override { return static_cast<uint32_t>(ids_.size()); }

  [[nodiscard]] const VerbsDomain* domain() const { return domain_.get(); }
  [[nodiscard]] ibv_srq* handle() const { return handle_.get(); }
  [[nodiscard]] uint32_t max_segments() const { return max_segments_; }

  // Frees the place of a receive whose completion was polled, and returns the caller's id.
  uint64_t finish(uint32_t place);

 private:
  explicit VerbsSharedReceiveQueue(std::shared_ptr<const VerbsDomain> domain)
      : domain_(std::move(domain)) {}

  const std::shared_ptr<const VerbsDomain> domain_;
  SharedReceiveQueueHandle handle_;
  uint32_t max_segments_ = 0;

  SpinLock lock_;               // guards all members below
  std::vector<uint64_t> ids_;   // indexed by place
  std::vector<uint32_t> free_;  // free places
};

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_SHARED_RECEIVE_QUEUE_H_
