// The calls of this process that wait for an answer from another process. Messages name such a call
// by its handle.
#ifndef CARIAMA_DSFABRIC_CALLS_PENDING_CALLS_H_
#define CARIAMA_DSFABRIC_CALLS_PENDING_CALLS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "dsfabric/ids.h"
#include "dsfabric/peers/answer_slots.h"

namespace cariama::internal {

// A pending call. It is completed exactly once, by the thread that receives the answer or detects
// the failure.
class PendingCall {
 public:
  virtual ~PendingCall() = default;
  // `result` is the serialized result; valid only if status is OK.
  // Must not throw for want of memory: the call has been removed, and would never end.
  virtual void complete(const absl::Status& status, std::span<const std::byte> result) = 0;
};

// A handle is never reused: an answer that is late, repeated or forged finds no call. Thread-safe.
// A test replaces the slots and the mutex to explore interleavings.
template <typename Slots, typename Mutex>
class BasicPendingCalls {
 public:
  // Registers a call that `rank` will answer, and returns its handle, which is never 0. Reserves
  // one of `slots` for the result, if one is free. `router`: the process that forwards the call, if
  // any. Throws std::bad_alloc if 2^26 calls are pending.
  [[nodiscard]] uint64_t add(uint32_t rank, std::unique_ptr<PendingCall> call,
                             Slots* slots = nullptr, uint32_t router = kNoRank) {
    const std::lock_guard<Mutex> lock(mutex_);
    uint32_t index;
    if (free_.empty()) {
      index = static_cast<uint32_t>(entries_.size());
      if (index > kIndexMask) throw std::bad_alloc();
      if (entries_.size() == entries_.capacity()) {
        const size_t room = std::max<size_t>(16, 2 * entries_.size());
        free_.reserve(room);  // first: release() must not allocate
        entries_.reserve(room);
      }
      entries_.emplace_back().handle = uint64_t{first_generation_ - 1} << 32;
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Entry& entry = entries_[index];
    const uint32_t slot = slots != nullptr ? slots->find() : 0;
    const uint64_t generation = (entry.handle >> 32) + 1;
    entry.handle = generation << 32 | slot << kIndexBits | index;
    entry.number = ++added_;
    entry.rank = rank;
    entry.router = router;
    entry.channel = 0;
    entry.call = std::move(call);
    entry.slots = slots;
    if (slot != 0) {
      slots->open(slot, entry.handle);
      in_slots_.fetch_add(1, std::memory_order_relaxed);
    }
    return entry.handle;
  }

  // For tests: new entries begin with this generation, to reach the end of the 32 bits soon.
  void begin_at(uint32_t generation) {
    const std::lock_guard<Mutex> lock(mutex_);
    first_generation_ = generation;
  }

  // Returns the number of the answer slot that a handle names, starting from 1; 0 if it names none.
  [[nodiscard]] static uint32_t slot_of(uint64_t handle) {
    return static_cast<uint32_t>(handle) >> kIndexBits;
  }
  // Returns true if any pending call has an answer slot.
  [[nodiscard]] bool any_in_slots() const { return in_slots_.load(std::memory_order_relaxed) != 0; }

  // Removes and returns the call, if `handle` names a call that `rank` is to answer, or to forward;
  // else returns nullptr. Releases the call's slot.
  [[nodiscard]] std::unique_ptr<PendingCall> take(uint64_t handle, uint32_t rank) {
    const std::lock_guard<Mutex> lock(mutex_);
    const uint32_t index = static_cast<uint32_t>(handle) & kIndexMask;
    if (index >= entries_.size()) return nullptr;
    Entry& entry = entries_[index];
    if (entry.call == nullptr || entry.handle != handle || !entry.needs(rank)) return nullptr;
    if (const uint32_t slot = slot_of(handle); slot != 0) {
      entry.slots->release(slot);
      in_slots_.fetch_sub(1, std::memory_order_relaxed);
    }
    std::unique_ptr<PendingCall> call = std::move(entry.call);
    release(index);
    return call;
  }

  // Where a search of the functions below goes on. It does not find calls that are added after it
  // has begun: those may wait for an answer that comes.
  struct Cursor {
    uint32_t index = 0;
    uint64_t newest = 0;
  };
  // The three functions below remove and return one call for which no answer will come, or return
  // nullptr if there is none. They do not allocate: a call that is removed must be completed.

  // A call that the failed process `rank` was to answer or to forward. The slots of calls that it
  // was to answer are not reused.
  [[nodiscard]] std::unique_ptr<PendingCall> take_failed(uint32_t rank, Cursor& from) {
    return take_next(
        from, [&](const Entry& entry) { return entry.needs(rank); }, rank);
  }
  // A call that `router` was to forward to process `rank`, which lives.
  [[nodiscard]] std::unique_ptr<PendingCall> take_routed(uint32_t rank, uint32_t router,
                                                         Cursor& from) {
    return take_next(
        from, [&](const Entry& entry) { return entry.rank == rank && entry.router == router; });
  }
  // A call that `channel` to process `rank`, which lives, carries.
  [[nodiscard]] std::unique_ptr<PendingCall> take_carried(uint32_t rank, uint64_t channel,
                                                          Cursor& from) {
    return take_next(
        from, [&](const Entry& entry) { return entry.channel == channel && entry.needs(rank); });
  }

  // The channel `channel` of the layer above is about to carry the call `handle`. Does nothing if
  // the call has ended.
  void assign(uint64_t handle, uint64_t channel) {
    const std::lock_guard<Mutex> lock(mutex_);
    const uint32_t index = static_cast<uint32_t>(handle) & kIndexMask;
    if (index >= entries_.size()) return;
    Entry& entry = entries_[index];
    if (entry.call != nullptr && entry.handle == handle) entry.channel = channel;
  }
  // Marks the slots of the calling thread's calls as polled.
  void start_polling(Slots& slots, PollerId poller) {
    if (!slots.has_unpolled(poller)) return;
    const std::lock_guard<Mutex> lock(mutex_);
    slots.start_polling(poller);
  }

  [[nodiscard]] bool waits_for(uint32_t rank) const {
    const std::lock_guard<Mutex> lock(mutex_);
    for (const Entry& entry : entries_) {
      if (entry.call != nullptr && entry.needs(rank)) return true;
    }
    return false;
  }

 private:
  static constexpr uint32_t kIndexBits = 26;
  static constexpr uint32_t kIndexMask = (uint32_t{1} << kIndexBits) - 1;
  static_assert(Slots::kCount < 1u << (32 - kIndexBits));

  // Makes an entry available to a later call, unless it has used all its generations. So no handle
  // is used twice and none is 0. Does not allocate, so a caller that has removed the call does not
  // lose it. At 2 M calls a second this costs one entry (48 bytes) per half
  // an hour.
  void release(uint32_t index) {
    if (entries_[index].handle >> 32 != UINT32_MAX) free_.push_back(index);
  }

  struct Entry {
    // Returns true if the call ends without an answer when process `of` fails.
    [[nodiscard]] bool needs(uint32_t of) const { return rank == of || router == of; }

    uint64_t handle = 0;  // generation (32 bits, from 1), slot number, index in entries_
    uint64_t number = 0;  // of the call, in the order of add()
    uint32_t rank = 0;
    uint32_t router = kNoRank;
    uint64_t channel = 0;  // assign(), or 0
    Slots* slots = nullptr;
    std::unique_ptr<PendingCall> call;
  };

  // `failed`: the process whose failure ends the calls, if any.
  template <typename Condition>
  [[nodiscard]] std::unique_ptr<PendingCall> take_next(Cursor& from, const Condition& condition,
                                                       uint32_t failed = kNoRank) {
    const std::lock_guard<Mutex> lock(mutex_);
    if (from.newest == 0) from.newest = added_;
    for (; from.index < entries_.size(); ++from.index) {
      Entry& entry = entries_[from.index];
      if (entry.call == nullptr || entry.number > from.newest || !condition(entry)) continue;
      // The call may still run in a process that lives, and its result arrive in its slot: the slot
      // stays reserved, and any_in_slots() true, so that the answer is taken and counted.
      if (entry.rank == failed && slot_of(entry.handle) != 0)
        in_slots_.fetch_sub(1, std::memory_order_relaxed);
      std::unique_ptr<PendingCall> call = std::move(entry.call);
      release(from.index++);
      return call;
    }
    return nullptr;
  }

  mutable Mutex mutex_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
  uint64_t added_ = 0;  // calls
  uint32_t first_generation_ = 1;
  std::atomic<uint32_t> in_slots_{0};
};
using PendingCalls = BasicPendingCalls<AnswerSlots, std::mutex>;

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_CALLS_PENDING_CALLS_H_
