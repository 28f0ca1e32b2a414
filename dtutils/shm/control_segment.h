// The control segment of a device: creation, and the heap in it. See layout.h.
#ifndef CARIAMA_DTUTILS_SHM_CONTROL_SEGMENT_H_
#define CARIAMA_DTUTILS_SHM_CONTROL_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "dtutils/shm/layout.h"

namespace cariama::shm {

// Thread-safe.
class ControlSegment {
 public:
  // Creates the memfd, seals and maps it, and fills the header. Error: RESOURCE_EXHAUSTED if the
  // kernel provides no descriptor or address space.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<ControlSegment>> create(const Uuid& uuid);
  ~ControlSegment();
  ControlSegment(const ControlSegment&) = delete;
  ControlSegment& operator=(const ControlSegment&) = delete;

  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] const Uuid& uuid() const { return uuid_; }

  // Allocates a zeroed block, aligned to 64 bytes. Returns its offset, or 0 when the segment is
  // full.
  [[nodiscard]] uint64_t allocate(uint64_t bytes);
  void release(uint64_t offset);

 private:
  ControlSegment(std::byte* base, int descriptor, const Uuid& uuid)
      : base_(base), descriptor_(descriptor), uuid_(uuid) {}

  std::byte* base_;
  int descriptor_;
  Uuid uuid_;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_{{kHeapOffset, kControlBytes - kHeapOffset}};  // offset → bytes
  std::map<uint64_t, uint64_t> used_;
  uint64_t high_water_ = kHeapOffset;
};

// A block of a control segment; the destructor releases it.
class ControlBlock {
 public:
  ControlBlock() = default;
  ControlBlock(std::shared_ptr<ControlSegment> segment, uint64_t bytes)
      : segment_(std::move(segment)), offset_(segment_->allocate(bytes)) {}
  ~ControlBlock() { reset(); }
  ControlBlock(ControlBlock&& other) noexcept
      : segment_(std::move(other.segment_)), offset_(std::exchange(other.offset_, 0)) {}
  ControlBlock& operator=(ControlBlock&& other) noexcept {
    reset();
    segment_ = std::move(other.segment_);
    offset_ = std::exchange(other.offset_, 0);
    return *this;
  }

  [[nodiscard]] bool valid() const { return offset_ != 0; }
  [[nodiscard]] uint64_t offset() const { return offset_; }
  [[nodiscard]] std::byte* data() const { return segment_->base() + offset_; }

 private:
  void reset() {
    if (offset_ != 0) segment_->release(offset_);
    offset_ = 0;
  }
  std::shared_ptr<ControlSegment> segment_;
  uint64_t offset_ = 0;
};

// Returns the control segment of an open device of this process, or nullptr. Two devices of one
// process connect through the owner's own mapping: no second mapping, and no copies through the
// kernel.
[[nodiscard]] std::shared_ptr<ControlSegment> find_local_segment(const Uuid& uuid);
void add_local_segment(const std::shared_ptr<ControlSegment>& segment);
void remove_local_segment(const Uuid& uuid);

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_CONTROL_SEGMENT_H_
