// Calls of this process that wait for an answer from another: what a handle on the wire stands for.
#ifndef CARIAMA_DSFABRIC_INTERNAL_PENDING_CALLS_H_
#define CARIAMA_DSFABRIC_INTERNAL_PENDING_CALLS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/internal/answer_slots.h"

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
  // Takes the call in, to be answered by the process of `rank`; its result may come into one of
  // `slots`, if there is a free one. Never 0. Throws std::bad_alloc with 2^26 calls pending.
  [[nodiscard]] uint64_t add(uint32_t rank, std::unique_ptr<PendingCall> call,
                             AnswerSlots* slots = nullptr) {
    const std::lock_guard lock(mutex_);
    uint32_t index;
    if (free_.empty()) {
      index = static_cast<uint32_t>(entries_.size());
      if (index > kIndexMask) throw std::bad_alloc();
      entries_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Entry& entry = entries_[index];
    const uint32_t slot = slots != nullptr ? slots->find() : 0;
    const uint64_t generation = (entry.handle >> 32) + 1;
    entry.handle = generation << 32 | slot << kIndexBits | index;
    entry.rank = rank;
    entry.call = std::move(call);
    entry.slots = slots;
    if (slot != 0) {
      slots->open(slot, entry.handle);
      in_slots_.fetch_add(1, std::memory_order_relaxed);
    }
    return entry.handle;
  }

  // Which of the AnswerSlots a handle names, from 1 on, or 0: none.
  [[nodiscard]] static uint32_t slot_of(uint64_t handle) {
    return static_cast<uint32_t>(handle) >> kIndexBits;
  }
  // Whether results may come into slots.
  [[nodiscard]] bool any_in_slots() const { return in_slots_.load(std::memory_order_relaxed) != 0; }

  // Takes the call out, if `handle` stands for one that `rank` is to answer; else nullptr. Its slot
  // is free then.
  [[nodiscard]] std::unique_ptr<PendingCall> take(uint64_t handle, uint32_t rank) {
    const std::lock_guard lock(mutex_);
    const uint32_t index = static_cast<uint32_t>(handle) & kIndexMask;
    if (index >= entries_.size()) return nullptr;
    Entry& entry = entries_[index];
    if (entry.call == nullptr || entry.handle != handle || entry.rank != rank) return nullptr;
    if (const uint32_t slot = slot_of(handle); slot != 0) {
      entry.slots->release(slot);
      in_slots_.fetch_sub(1, std::memory_order_relaxed);
    }
    free_.push_back(index);
    return std::move(entry.call);
  }

  // Takes out everything that `rank`, which is dead, was to answer. Their slots are lost.
  [[nodiscard]] std::vector<std::unique_ptr<PendingCall>> take_all(uint32_t rank) {
    const std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<PendingCall>> taken;
    for (uint32_t index = 0; index < entries_.size(); ++index) {
      Entry& entry = entries_[index];
      if (entry.call == nullptr || entry.rank != rank) continue;
      if (slot_of(entry.handle) != 0) in_slots_.fetch_sub(1, std::memory_order_relaxed);
      taken.push_back(std::move(entry.call));
      free_.push_back(index);
    }
    return taken;
  }

  [[nodiscard]] bool waits_for(uint32_t rank) const {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_) {
      if (entry.call != nullptr && entry.rank == rank) return true;
    }
    return false;
  }

 private:
  static constexpr uint32_t kIndexBits = 26;
  static constexpr uint32_t kIndexMask = (uint32_t{1} << kIndexBits) - 1;
  static_assert(AnswerSlots::kCount < 1u << (32 - kIndexBits));

  struct Entry {
    uint64_t handle = 0;  // generation (32 bits), number of the slot, index here
    uint32_t rank = 0;
    AnswerSlots* slots = nullptr;
    std::unique_ptr<PendingCall> call;
  };

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
  std::atomic<uint32_t> in_slots_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_PENDING_CALLS_H_
