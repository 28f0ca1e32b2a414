// The owner's side of a receive queue (layout.h): of one queue pair, or shared by several.
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

// Thread-safe. A slot is taken by post() and free again after finish() or take_back(): ids, sizes
// and free list are private, so a peer that writes nonsense cannot make a request complete twice,
// or with more bytes than it has room for.
class ReceiveQueue {
 public:
  struct Posted {
    uint64_t id;
    uint64_t capacity;  // bytes of all segments
  };

  // nullptr when the control segment is full.
  [[nodiscard]] static std::shared_ptr<ReceiveQueue> create(
      const std::shared_ptr<ControlSegment>& control, uint32_t depth, uint32_t max_segments);

  [[nodiscard]] uint64_t offset() const { return block_.offset(); }
  [[nodiscard]] uint32_t depth() const { return view_.slot_count(); }

  [[nodiscard]] PostResult post(std::span<const ReceiveRequest> requests,
                                const RegionTable& regions, uint32_t domain);

  // A peer completed the request in `slot` for the queue pair `claimant`: the request, and the slot
  // is free. Nothing if no request of that queue pair is in that slot.
  [[nodiscard]] std::optional<Posted> finish(uint32_t slot, uint32_t claimant);

  // Takes the oldest posted request back: its id.
  [[nodiscard]] std::optional<uint64_t> take_back();

  // The slots that were taken for `claimant` and are not finished.
  [[nodiscard]] std::vector<uint32_t> claimed_by(uint32_t claimant);

  // Posts the request in a slot again that was taken for `claimant`, by a peer that will not finish
  // it. It stands last then.
  void repost(uint32_t slot, uint32_t claimant);

 private:
  ReceiveQueue(ControlBlock block, ReceiveQueueView view);
  [[nodiscard]] bool is_claimed_by(uint32_t slot, uint32_t claimant) const;
  // Returns the capacity.
  uint64_t fill(uint32_t slot, const ReceiveRequest& request, const RegionTable& regions,
                uint32_t domain);

  ControlBlock block_;
  ReceiveQueueView view_;
  std::mutex mutex_;
  uint64_t next_position_ = 0;
  std::vector<Posted> requests_;  // by slot
  std::vector<bool> posted_;      // by slot
  std::vector<uint32_t> free_;
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_RECEIVE_QUEUE_H_
