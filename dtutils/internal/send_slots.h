// The slots of one send queue. An operation takes a slot when it is posted; the slot is free again
// when a completion that covers the operation was POLLED (queue_pair.h). Used by transports that
// account for slots in software.
#ifndef CARIAMA_DTUTILS_INTERNAL_SEND_SLOTS_H_
#define CARIAMA_DTUTILS_INTERNAL_SEND_SLOTS_H_

#include <algorithm>
#include <cstdint>

namespace cariama::internal {

// Operations are numbered 0, 1, 2, ... in the order of posting. Not thread-safe.
class SendSlots {
 public:
  [[nodiscard]] bool full(uint32_t depth) const { return posted_ - freed_ >= depth; }

  // Takes a slot for a posted operation. Returns the operation's number.
  uint64_t take() { return posted_++; }

  // Records that a completion was put into the queue. polled() must follow when the user has polled
  // it.
  void completed() { ++unpolled_; }

  // Records that the completion of operation `number` was polled: the slots of this and all earlier
  // operations are free.
  void polled(uint64_t number) {
    freed_ = std::max(freed_, number + 1);
    if (--unpolled_ == 0) freed_ = std::max(freed_, reset_);
  }

  // Records that the send queue was emptied (repair). No completion will cover the unsignaled
  // operations that succeeded before. Their slots become free when the completions that are still
  // in the queue have been polled.
  void reset() {
    reset_ = posted_;
    if (unpolled_ == 0) freed_ = posted_;
  }

  [[nodiscard]] uint64_t posted() const { return posted_; }

 private:
  uint64_t posted_ = 0;
  uint64_t freed_ = 0;     // operations with a lower number have no slot
  uint64_t reset_ = 0;     // posted_ at the last reset()
  uint64_t unpolled_ = 0;  // completions in the queue
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_SEND_SLOTS_H_
