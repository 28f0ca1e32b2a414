// Where short results of calls come without a message: lines of the caller's memory, which the
// process that ran the call maps (shm) and stores into.
//
// A call that waits for a result takes a slot; its handle names it. Who ran the call writes the
// result there, if the slot is attended: if somebody will look. Otherwise, and if the result does
// not fit or is an error, it answers by a message, which wakes somebody. One compare-and-swap
// decides; so nobody who sleeps is forgotten, and nobody who looks needs a message.
//
//   kUnattended <-> kAttended      by the caller's process: somebody looks, or does so no more
//   kAttended -> kAnswered         by the process that ran the call
//   kAnswered -> kTaken            by whoever of the caller's process comes first
//
// A slot is free again when its call is completed (PendingCalls::take). Those of a dead process
// are not used any more: it may still be writing.
#ifndef CARIAMA_DSFABRIC_INTERNAL_ANSWER_SLOTS_H_
#define CARIAMA_DSFABRIC_INTERNAL_ANSWER_SLOTS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cariama::internal {

// One slot, in registered memory. Zeros are a valid one. It holds atomics: a peer that keeps to no
// rule may write at any time.
struct alignas(64) AnswerSlot {
  enum State : uint32_t { kUnattended, kAttended, kAnswered, kTaken };
  static constexpr size_t kMostBytes = 48;

  std::atomic<uint32_t> state{kUnattended};
  std::atomic<uint32_t> bytes{0};  // of result, once answered
  std::atomic<uint64_t> handle{0};
  std::array<std::atomic<uint64_t>, kMostBytes / sizeof(uint64_t)> result{};

  // By the process that ran the call, once. False: nobody looks, or it is too long: the answer has
  // to be a message.
  [[nodiscard]] bool answer(uint64_t whose, std::span<const std::byte> bytes_of_result) {
    if (bytes_of_result.size() > kMostBytes) return false;
    handle.store(whose, std::memory_order_relaxed);
    bytes.store(static_cast<uint32_t>(bytes_of_result.size()), std::memory_order_relaxed);
    for (size_t at = 0; at < bytes_of_result.size(); at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes_of_result.data() + at,
                  std::min(sizeof(word), bytes_of_result.size() - at));
      result[at / sizeof(word)].store(word, std::memory_order_relaxed);
    }
    uint32_t expected = kAttended;
    return state.compare_exchange_strong(expected, kAnswered, std::memory_order_release,
                                         std::memory_order_relaxed);
  }
};
static_assert(sizeof(AnswerSlot) == 64);

// A thread's identity: who attends to a slot.
using Attendant = const void*;
[[nodiscard]] inline Attendant this_attendant() {
  static thread_local char somebody;
  return &somebody;
}

// The slots for answers from one process. find(), open() and release() under the mutex of
// PendingCalls, the rest by any thread.
class AnswerSlots {
 public:
  static constexpr uint32_t kCount = 16;

  // `slots`: kCount of them, zeros, which outlive this. `always_attended`: all threads look, since
  // nobody else would (there is no service thread).
  AnswerSlots(AnswerSlot* slots, bool always_attended)
      : slots_(slots), always_attended_(always_attended) {}

  // A slot that is free: from 1 on, or 0 if none is.
  [[nodiscard]] uint32_t find() const {
    const uint32_t reserved = reserved_.load(std::memory_order_relaxed);
    const auto free = static_cast<uint32_t>(std::countr_one(reserved));
    return free < kCount ? free + 1 : 0;
  }
  // Reserves it for a call of this thread.
  void open(uint32_t slot, uint64_t handle) {
    const uint32_t index = slot - 1;
    records_[index].handle.store(handle, std::memory_order_relaxed);
    records_[index].owner.store(this_attendant(), std::memory_order_relaxed);
    slots_[index].state.store(always_attended_ ? AnswerSlot::kAttended : AnswerSlot::kUnattended,
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
  // Gives each answer that is there to function(const Answer&), which releases the slot by its
  // handle. With `attendant` only those to calls of that thread.
  template <typename Function>
  size_t take(Attendant attendant, Function&& function) {
    size_t count = 0;
    each(attendant, [&](AnswerSlot& slot, const Record& record) {
      uint32_t state = slot.state.load(std::memory_order_acquire);
      if (state != AnswerSlot::kAnswered ||
          !slot.state.compare_exchange_strong(state, AnswerSlot::kTaken,
                                              std::memory_order_acquire)) {
        return;
      }
      // Now nobody else completes the call, and the slot stays its own. Of what the peer wrote
      // nothing is believed that is not known here.
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
  // The calling thread looks from now on at the slots of its calls, until unattend().
  void attend(Attendant attendant) {
    each(attendant, [](AnswerSlot& slot, const Record&) {
      uint32_t state = AnswerSlot::kUnattended;
      if (slot.state.load(std::memory_order_relaxed) == state) {
        slot.state.compare_exchange_strong(state, AnswerSlot::kAttended, std::memory_order_relaxed);
      }
    });
  }
  // What has come before has to be taken afterwards.
  void unattend(Attendant attendant) {
    if (always_attended_) return;
    each(attendant, [](AnswerSlot& slot, const Record&) {
      uint32_t state = AnswerSlot::kAttended;
      slot.state.compare_exchange_strong(state, AnswerSlot::kUnattended, std::memory_order_relaxed);
    });
  }

 private:
  struct Record {
    std::atomic<uint64_t> handle{0};
    std::atomic<Attendant> owner{nullptr};
  };

  template <typename Function>
  void each(Attendant attendant, Function&& function) {
    for (uint32_t left = reserved_.load(std::memory_order_acquire); left != 0; left &= left - 1) {
      const auto index = static_cast<uint32_t>(std::countr_zero(left));
      Record& record = records_[index];
      if (attendant != nullptr && record.owner.load(std::memory_order_relaxed) != attendant) {
        continue;
      }
      function(slots_[index], record);
    }
  }

  AnswerSlot* const slots_;
  const bool always_attended_;
  std::atomic<uint32_t> reserved_{0};  // bit i: slots_[i]
  std::array<Record, kCount> records_;
};

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_ANSWER_SLOTS_H_
