#include "riutils/internal/backlog.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cariama::internal {

Backlog::~Backlog() {
  for (Segment& segment : segments_) link_.free(std::move(segment.memory));
}

absl::Status Backlog::append(const OutgoingCall& call, EventReceiver& transmission) {
  const uint64_t bytes = call.total();
  if (segments_.empty() || segments_.back().memory.size() - segments_.back().end < bytes) {
    auto memory = link_.allocate(std::max<size_t>(segment_bytes_, bytes));
    if (!memory.ok()) return memory.status();
    segments_.push_back({*std::move(memory)});
  }
  const auto reports = static_cast<bool>(transmission);
  if (reports) transmissions_.push_back({appended_ + bytes, {}});  // may throw
  Segment& segment = segments_.back();
  std::byte* const at = segment.memory.get_buffer() + segment.end;
  const CallHeader header = call.header();
  std::memcpy(at, &header, sizeof header);
  call.write_behind_header(at + sizeof header);
  segment.end += bytes;
  bytes_ += bytes;
  appended_ += bytes;
  if (reports) transmissions_.back().transmitted = std::move(transmission);
  return absl::OkStatus();
}

uint64_t Backlog::front_bytes() const {
  if (empty()) return 0;
  const Segment& segment = segments_.front();
  CallHeader header;
  std::memcpy(&header, segment.memory.get_buffer() + segment.begin, sizeof header);
  return sizeof header + header.bytes();
}

Backlog::Run Backlog::front(uint64_t room) {
  Segment& segment = segments_.front();
  uint64_t end = segment.begin;
  while (end < segment.end) {
    CallHeader header;
    std::memcpy(&header, segment.memory.get_buffer() + end, sizeof header);
    const uint64_t next = end + sizeof header + header.bytes();
    if (next - segment.begin > room) break;
    end = next;
  }
  return {&segment.memory, segment.begin, end - segment.begin};
}

bool Backlog::pop(const Run& run) {
  Segment& segment = segments_.front();
  segment.begin += run.bytes;
  bytes_ -= run.bytes;
  popped_ += run.bytes;
  bool transmitted = false;
  for (; !transmissions_.empty() && transmissions_.front().at <= popped_;
       transmissions_.pop_front()) {
    transmissions_.front().transmitted.complete(absl::OkStatus());
    transmitted = true;
  }
  if (segment.begin == segment.end) {
    link_.free(std::move(segment.memory));
    segments_.pop_front();
  }
  return transmitted;
}

void Backlog::fail(const absl::Status& status) {
  for (const Transmission& one : transmissions_) one.transmitted.complete(status);
  transmissions_.clear();
  for (Segment& segment : segments_) link_.free(std::move(segment.memory));
  segments_.clear();
  bytes_ = 0;
}

}  // namespace cariama::internal
