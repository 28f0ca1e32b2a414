// Answer slots: a callee stores a short result directly into the caller's mapped memory (shm),
// without a message. Each slot is one cache line of the caller's memory.
//
// A call that waits for a result reserves a slot; its handle names the slot. The process that ran
// the call stores the result there if the slot is polled, that is, if a thread of the caller polls
// it. If the slot is not polled, if the result does not fit, or if the call failed, the callee
// sends a message instead, which wakes the caller. One compare-and-swap of the slot's state decides
// between the two. So a sleeping caller always gets a message, and a polling caller never needs
// one.
//
//   transition            made by
//   kUnpolled -> kPolled  the caller's process: a thread starts polling
//   kPolled -> kUnpolled  the caller's process: the thread stops polling
//   kPolled -> kAnswered  the process that ran the call
//   kAnswered -> kTaken   the first thread of the caller's process that takes the result
//   any -> kUnpolled      the caller's process: open() reserves the slot (kPolled: always_polled)
//
// A slot is free again when its call is completed (PendingCalls::take). The slots of a failed
// process are never reused, because that process may still be writing to them.
#ifndef CARIAMA_DSFABRIC_PEERS_ANSWER_SLOTS_H_
#define CARIAMA_DSFABRIC_PEERS_ANSWER_SLOTS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cariama::internal {

// Identifies the thread that polls a slot.
using PollerId = const void*;
[[nodiscard]] inline PollerId this_poller() {
  static thread_local char identity;
  return &identity;
}

// The operations that the slots use. A test replaces them to explore interleavings.
struct AnswerMachine {
  template <typename T>
  using Atomic = std::atomic<T>;
  [[nodiscard]] static PollerId poller() { return this_poller(); }
};

// One slot, in registered memory. All zeros is a valid slot. Its fields are atomics because a
// misbehaving peer may write to them at any time.
template <typename On>
struct alignas(64) BasicAnswerSlot {
  template <typename T>
  using Atomic = typename On::template Atomic<T>;
  enum State : uint32_t { kUnpolled, kPolled, kAnswered, kTaken };
  static constexpr size_t kMostBytes = 48;

  Atomic<uint32_t> state{kUnpolled};
  Atomic<uint32_t> bytes{0};  // length of the result, valid once answered
  Atomic<uint64_t> handle{0};
  std::array<Atomic<uint64_t>, kMostBytes / sizeof(uint64_t)> result{};

  // Called once, by the process that ran the call. Returns false if the slot is not polled or the
  // result is too long: then the answer must be sent as a message.
  [[nodiscard]] bool answer(uint64_t call_handle, std::span<const std::byte> bytes_of_result) {
    if (bytes_of_result.size() > kMostBytes) return false;
    handle.store(call_handle, std::memory_order_relaxed);
    bytes.store(static_cast<uint32_t>(bytes_of_result.size()), std::memory_order_relaxed);
    for (size_t at = 0; at < bytes_of_result.size(); at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes_of_result.data() + at,
                  std::min(sizeof(word), bytes_of_result.size() - at));
      result[at / sizeof(word)].store(word, std::memory_order_relaxed);
    }
    uint32_t expected = kPolled;
    return state.compare_exchange_strong(expected, kAnswered, std::memory_order_release,
                                         std::memory_order_relaxed);
  }
};
using AnswerSlot = BasicAnswerSlot<AnswerMachine>;
static_assert(sizeof(AnswerSlot) == 64);

// The slots for answers from one process. find(), open(), release() and start_polling() require the
// mutex of PendingCalls; the other functions are thread-safe.
template <typename On>
class BasicAnswerSlots {
 public:
  using AnswerSlot = BasicAnswerSlot<On>;
  template <typename T>
  using Atomic = typename On::template Atomic<T>;
  static constexpr uint32_t kCount = 16;

  // `slots` points to kCount zeroed slots, which must outlive this object. `always_polled`: all
  // slots count as polled, because without service threads every waiting thread polls.
  BasicAnswerSlots(AnswerSlot* slots, bool always_polled)
      : slots_(slots), always_polled_(always_polled) {}

  // Returns the number of a free slot, starting from 1, or 0 if no slot is free.
  [[nodiscard]] uint32_t find() const {
    const uint32_t reserved = reserved_.load(std::memory_order_relaxed);
    const auto free = static_cast<uint32_t>(std::countr_one(reserved));
    return free < kCount ? free + 1 : 0;
  }
  // Reserves the slot for a call of the calling thread.
  void open(uint32_t slot, uint64_t handle) {
    const uint32_t index = slot - 1;
    records_[index].handle.store(handle, std::memory_order_relaxed);
    records_[index].owner.store(On::poller(), std::memory_order_relaxed);
    slots_[index].state.store(always_polled_ ? AnswerSlot::kPolled : AnswerSlot::kUnpolled,
                              std::memory_order_relaxed);
    reserved_.store(reserved_.load(std::memory_order_relaxed) | 1u << index,
                    std::memory_order_release);
  }
  void release(uint32_t slot) {
    reserved_.store(reserved_.load(std::memory_order_relaxed) & ~(1u << (slot - 1)),
                    std::memory_order_release);
  }

  struct Answer {
    uint64_t handle = 0;
    uint32_t bytes = 0;
    std::array<std::byte, AnswerSlot::kMostBytes> result;
  };
  // Passes each answer that has arrived to function(const Answer&), which must release the slot
  // through its handle. If Answer::handle is 0, the peer has stored the handle of another call:
  // that call stays pending, and the slot stays reserved. With `poller`, only the answers to that
  // thread's calls. Returns the number of answers.
  template <typename Function>
  size_t take(PollerId poller, Function&& function) {
    size_t count = 0;
    each(poller, [&](AnswerSlot& slot, const Record& record) {
      uint32_t state = slot.state.load(std::memory_order_acquire);
      if (state != AnswerSlot::kAnswered ||
          !slot.state.compare_exchange_strong(state, AnswerSlot::kTaken,
                                              std::memory_order_acquire)) {
        return;
      }
      // Only this thread completes the call now, and until it does the slot is not reused. The
      // peer's data is checked against this process's own record: the handle, and the length.
      const uint64_t handle = record.handle.load(std::memory_order_relaxed);
      Answer answer;
      answer.handle = slot.handle.load(std::memory_order_relaxed) == handle ? handle : 0;
      answer.bytes = slot.bytes.load(std::memory_order_relaxed);
      if (answer.bytes > AnswerSlot::kMostBytes) answer.bytes = 0;
      for (size_t at = 0; at < answer.bytes; at += sizeof(uint64_t)) {
        const uint64_t word = slot.result[at / sizeof(word)].load(std::memory_order_relaxed);
        std::memcpy(answer.result.data() + at, &word, sizeof(word));
      }
      function(answer);
      ++count;
    });
    return count;
  }
  // Returns true if start_polling() would mark a slot.
  [[nodiscard]] bool has_unpolled(PollerId poller) {
    bool found = false;
    each(poller, [&](AnswerSlot& slot, const Record&) {
      found = found || slot.state.load(std::memory_order_relaxed) == AnswerSlot::kUnpolled;
    });
    return found;
  }
  // Marks the slots of the calling thread's calls as polled: that thread polls them until
  // stop_polling(). Requires the mutex: otherwise a slot could be released and reserved for a call
  // of another thread between the check of its owner and the change of its state. That thread may
  // sleep, and would get no message.
  void start_polling(PollerId poller) {
    each(poller, [](AnswerSlot& slot, const Record&) {
      uint32_t state = AnswerSlot::kUnpolled;
      slot.state.compare_exchange_strong(state, AnswerSlot::kPolled, std::memory_order_relaxed);
    });
  }
  // Marks the slots of the calling thread's calls as not polled. The caller must then take() the
  // answers that arrived before.
  void stop_polling(PollerId poller) {
    if (always_polled_) return;
    each(poller, [](AnswerSlot& slot, const Record&) {
      uint32_t state = AnswerSlot::kPolled;
      slot.state.compare_exchange_strong(state, AnswerSlot::kUnpolled, std::memory_order_relaxed);
    });
  }

 private:
  struct Record {
    Atomic<uint64_t> handle{0};
    Atomic<PollerId> owner{nullptr};
  };

  template <typename Function>
  void each(PollerId poller, Function&& function) {
    for (uint32_t left = reserved_.load(std::memory_order_acquire); left != 0; left &= left - 1) {
      const auto index = static_cast<uint32_t>(std::countr_zero(left));
      Record& record = records_[index];
      if (poller != nullptr && record.owner.load(std::memory_order_relaxed) != poller) {
        continue;
      }
      function(slots_[index], record);
    }
  }

  AnswerSlot* const slots_;
  const bool always_polled_;
  Atomic<uint32_t> reserved_{0};  // bit i: slots_[i]
  std::array<Record, kCount> records_;
};
using AnswerSlots = BasicAnswerSlots<AnswerMachine>;

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_PEERS_ANSWER_SLOTS_H_
