// Calls that did not fit into the receiver's chunks when they were made: encoded, in registered
// memory, in order, ready to be copied or written in bulk.
#ifndef CARIAMA_RIUTILS_INTERNAL_BACKLOG_H_
#define CARIAMA_RIUTILS_INTERNAL_BACKLOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/memory.h"
#include "dtutils/synchronizer.h"
#include "riutils/channel_sender.h"

namespace cariama::internal {

// Thread-compatible: guarded by its channel's mutex. Memory comes from the link, in segments that
// go back when they are empty.
class Backlog {
 public:
  // Calls that lie one behind another: bytes [offset, offset + bytes) of `memory`.
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

  // Keeps a call; `departure`, if given, is counted down when it leaves. Error: the memory's.
  [[nodiscard]] absl::Status append(const OutgoingCallView& call, Synchronizer* departure);
  // The longest run of whole calls at the front that is no longer than `room`; bytes 0 if the first
  // is.
  [[nodiscard]] Run front(uint64_t room);
  // The run has left: drops it, and counts its departures down. Its memory is reused when the
  // transport is done with it.
  void pop(const Run& run);
  // Drops everything: it will not leave.
  void fail(const absl::Status& status);

 private:
  struct Segment {
    RDMAMemory memory;
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  struct Departure {
    uint64_t at;  // counted in bytes since the beginning
    Synchronizer* done;
  };

  ChannelLink& link_;
  const size_t segment_bytes_;
  std::deque<Segment> segments_;
  std::deque<Departure> departures_;
  uint64_t bytes_ = 0;
  uint64_t appended_ = 0;
  uint64_t popped_ = 0;
};

}  // namespace cariama::internal

#endif  // CARIAMA_RIUTILS_INTERNAL_BACKLOG_H_
