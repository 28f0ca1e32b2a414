// The owner's side of a receive queue (layout.h), which belongs to one queue pair or is shared by
// several.
#ifndef CARIAMA_DTUTILS_SHM_RECEIVE_QUEUE_H_
#define CARIAMA_DTUTILS_SHM_RECEIVE_QUEUE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "dtutils/queue_pair.h"
#include "dtutils/shm/control_segment.h"
#include "dtutils/shm/layout.h"
#include "dtutils/shm/region_table.h"

namespace cariama::shm {

// Thread-safe. post() takes a slot, and finish() or take_back() frees it. Ids, sizes and the free
// list are private, so a peer that writes invalid data cannot make a request complete twice, or
// with more bytes than its capacity.
class ReceiveQueue {
 public:
  struct Posted {
    uint64_t id;
    uint64_t capacity;  // total bytes of all segments
  };

  // Returns nullptr when the control segment is full.
  [[nodiscard]] static std::shared_ptr<ReceiveQueue> create(
      const std::shared_ptr<ControlSegment>& control, uint32_t depth, uint32_t max_segments);

  [[nodiscard]] uint64_t offset() const { return block_.offset(); }
  [[nodiscard]] uint32_t depth() const { return view_.slot_count(); }

  [[nodiscard]] PostResult post(std::span<const ReceiveRequest> requests,
                                const RegionTable& regions, uint32_t domain);

  // Frees `slot`, whose request a peer completed for the queue pair `claimant`, and returns the
  // request. Returns an empty optional if the slot contains no request taken for that queue pair.
  [[nodiscard]] std::optional<Posted> finish(uint32_t slot, uint32_t claimant);

  // Takes the oldest posted request back. Returns its id, or an empty optional if none is posted.
  [[nodiscard]] std::optional<uint64_t> take_back();

  // Returns the slots that were taken for `claimant` and are not finished.
  [[nodiscard]] std::vector<uint32_t> claimed_by(uint32_t claimant);

  // Posts the request in `slot` again, as the last one of the queue. The slot was taken for
  // `claimant` by a peer that will not finish it.
  void repost(uint32_t slot, uint32_t claimant);

 private:
  ReceiveQueue(ControlBlock block, ReceiveQueueView view);
  [[nodiscard]] bool is_claimed_by(uint32_t slot, uint32_t claimant) const;
  // Fills a slot from the request. Returns the capacity.
  uint64_t fill(uint32_t slot, const ReceiveRequest& request, const RegionTable& regions,
                uint32_t domain);

  ControlBlock block_;
  ReceiveQueueView view_;
  std::mutex mutex_;
  uint64_t next_position_ = 0;
  std::vector<Posted> requests_;  // indexed by slot
  std::vector<bool> posted_;      // indexed by slot
  std::vector<uint32_t> free_;
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_RECEIVE_QUEUE_H_
