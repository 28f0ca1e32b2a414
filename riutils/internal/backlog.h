// The deferred calls of a channel: calls that did not fit into the receiver's chunks when they were
// issued. They are encoded, in registered memory, in the order of issue, and can be copied or
// written in bulk.
#ifndef CARIAMA_RIUTILS_INTERNAL_BACKLOG_H_
#define CARIAMA_RIUTILS_INTERNAL_BACKLOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/completions.h"
#include "dtutils/memory.h"
#include "riutils/channel_sender.h"
#include "riutils/internal/channel_link.h"

namespace cariama::internal {

// Thread-compatible: the channel's mutex guards it. Allocates memory from the link in segments, and
// frees a segment when it is empty.
class Backlog {
 public:
  // Consecutive calls: bytes [offset, offset + bytes) of `memory`.
  struct Run {
    RDMAMemory* memory = nullptr;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  Backlog(ChannelLink& link, size_t segment_bytes) : link_(link), segment_bytes_(segment_bytes) {}
  ~Backlog();
  Backlog(const Backlog&) = delete;
  Backlog& operator=(const Backlog&) = delete;

  [[nodiscard]] bool empty() const { return bytes_ == 0; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

  // Appends a call. `transmission` is completed when the call is published; it is moved from if the
  // result is OK. Error: that of ChannelLink::allocate. Throws std::bad_alloc, and appends nothing.
  [[nodiscard]] absl::Status append(const OutgoingCall& call, EventReceiver& transmission);
  // Returns the length of the first call, or 0 if there is none.
  [[nodiscard]] uint64_t front_bytes() const;
  // Returns the longest run of whole calls at the front that is not longer than `room` bytes. Its
  // `bytes` is 0 if the first call is longer than `room`. Requires: !empty().
  [[nodiscard]] Run front(uint64_t room);
  // Removes a run that has been published, and completes its transmissions. Returns true if there
  // were any. The allocator reuses its memory when the transport has finished with it.
  [[nodiscard]] bool pop(const Run& run);
  // Removes all calls, which will not be published; fails their transmissions with `status`.
  // Requires: no call is appended later.
  void fail(const absl::Status& status);

 private:
  struct Segment {
    RDMAMemory memory;
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  struct Transmission {
    uint64_t at;  // end of the call, in bytes appended since the beginning
    EventReceiver transmitted;
  };

  ChannelLink& link_;
  const size_t segment_bytes_;
  std::deque<Segment> segments_;
  std::deque<Transmission> transmissions_;  // of the calls that have a receiver
  uint64_t bytes_ = 0;
  uint64_t appended_ = 0;
  uint64_t popped_ = 0;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_BACKLOG_H_
