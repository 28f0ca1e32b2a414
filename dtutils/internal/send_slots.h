// The slots of one send queue: taken when an operation is posted, free again when a completion that
// covers it was POLLED (queue_pair.h). For transports that keep this account in software.
#ifndef CARIAMA_DTUTILS_INTERNAL_SEND_SLOTS_H_
#define CARIAMA_DTUTILS_INTERNAL_SEND_SLOTS_H_

#include <algorithm>
#include <cstdint>

namespace cariama::internal {

// Operations are numbered 0, 1, 2, ... in the order of posting. Not thread-safe.
class SendSlots {
 public:
  [[nodiscard]] bool full(uint32_t depth) const { return posted_ - freed_ >= depth; }

  // An operation was posted. Returns its number.
  uint64_t take() { return posted_++; }

  // A completion was put in the queue; polled() follows when the user has taken it out.
  void completed() { ++unpolled_; }

  // The completion of operation `number` was polled: it and all before it are free.
  void polled(uint64_t number) {
    freed_ = std::max(freed_, number + 1);
    if (--unpolled_ == 0) freed_ = std::max(freed_, reset_);
  }

  // The queue was emptied (repair): what succeeded unsignaled will never be covered by a
  // completion. It is free too, once the completions that are still in the queue have been polled.
  void reset() {
    reset_ = posted_;
    if (unpolled_ == 0) freed_ = posted_;
  }

  [[nodiscard]] uint64_t posted() const { return posted_; }

 private:
  uint64_t posted_ = 0;
  uint64_t freed_ = 0;     // operations below it hold no slot
  uint64_t reset_ = 0;     // posted_ at the last reset()
  uint64_t unpolled_ = 0;  // completions in the queue
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_SEND_SLOTS_H_
