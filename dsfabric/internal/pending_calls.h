// Calls of this process that wait for an answer from another: what a handle on the wire stands for.
#ifndef CARIAMA_DSFABRIC_INTERNAL_PENDING_CALLS_H_
#define CARIAMA_DSFABRIC_INTERNAL_PENDING_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace cariama::internal {

// What waits. Completed exactly once, by the thread that the answer or the failure reaches.
class PendingCall {
 public:
  virtual ~PendingCall() = default;
  // `result` is what the function returned, saved; only if status is OK.
  virtual void complete(const absl::Status& status, std::span<const std::byte> result) = 0;
};

// Handles are never used twice: an answer that comes late, twice, or from nowhere finds nothing.
// Thread-safe.
class PendingCalls {
 public:
  // Takes the call in, to be answered by the process of `rank`. Never 0.
  [[nodiscard]] uint64_t add(uint32_t rank, std::unique_ptr<PendingCall> call) {
    const std::lock_guard lock(mutex_);
    uint32_t index;
    if (free_.empty()) {
      index = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Slot& slot = slots_[index];
    slot.rank = rank;
    slot.call = std::move(call);
    return uint64_t{++slot.generation} << 32 | index;
  }

  // Takes the call out, if `handle` stands for one that `rank` is to answer; else nullptr.
  [[nodiscard]] std::unique_ptr<PendingCall> take(uint64_t handle, uint32_t rank) {
    const std::lock_guard lock(mutex_);
    const uint32_t index = static_cast<uint32_t>(handle);
    if (index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    if (slot.call == nullptr || slot.generation != handle >> 32 || slot.rank != rank)
      return nullptr;
    free_.push_back(index);
    return std::move(slot.call);
  }

  // Takes out everything that `rank` was to answer.
  [[nodiscard]] std::vector<std::unique_ptr<PendingCall>> take_all(uint32_t rank) {
    const std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<PendingCall>> taken;
    for (uint32_t index = 0; index < slots_.size(); ++index) {
      if (slots_[index].call == nullptr || slots_[index].rank != rank) continue;
      taken.push_back(std::move(slots_[index].call));
      free_.push_back(index);
    }
    return taken;
  }

  [[nodiscard]] bool waits_for(uint32_t rank) const {
    const std::lock_guard lock(mutex_);
    for (const Slot& slot : slots_) {
      if (slot.call != nullptr && slot.rank == rank) return true;
    }
    return false;
  }

 private:
  struct Slot {
    uint32_t generation = 0;
    uint32_t rank = 0;
    std::unique_ptr<PendingCall> call;
  };

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_PENDING_CALLS_H_
