// The records by which communicating threads tell the helper of a HelperPolicy about their uses of
// memory: the deregistration queue (DQ) of the paper that helper_thread.h names.
#ifndef CARIAMA_DTUTILS_INTERNAL_USE_QUEUE_H_
#define CARIAMA_DTUTILS_INTERNAL_USE_QUEUE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "dtutils/registration/policy.h"

namespace cariama::internal {

// A use of a region (RegionUse).
struct UseRecord {
  uint64_t region = 0;
  uint64_t bytes = 0;
  int64_t begin = 0;
  uint32_t thread = 0;
  uint32_t before = 0;
  CallStack stack{};

  // Returns true if its use began before that of `other`. Uses of two threads that began at one
  // time have any order.
  [[nodiscard]] bool precedes(const UseRecord& other) const {
    if (begin != other.begin) return begin < other.begin;
    if (thread != other.thread) return thread < other.thread;
    return static_cast<int32_t>(before - other.before) < 0;
  }
};

// The number of the calling thread, and of the uses that it has begun, modulo 2^32.
struct UseNumbers {
  uint32_t thread;
  uint32_t begun = 0;
};
[[nodiscard]] inline UseNumbers& use_numbers() {
  static std::atomic<uint32_t> last{0};
  static thread_local UseNumbers mine{last.fetch_add(1, std::memory_order_relaxed) + 1};
  return mine;
}

// Sets RegionUse::thread and before for a use that this thread begins.
inline void number_use(RegionUse& use) {
  UseNumbers& mine = use_numbers();
  use.thread = mine.thread;
  use.before = mine.begun++;
}

// The DQ of one communicating thread: a ring that the producer overwrites without looking at the
// consumer. Each slot is a sequence lock: its number is 2 * position + 1 while the record of that
// position is written, and one more afterwards.
class UseQueue {
 public:
  // `records`: a power of two.
  explicit UseQueue(uint32_t records) : slots_(records), mask_(records - 1) {}

  // Of the communicating thread.
  void push(const RegionUse& use) {
    const uint64_t position = head_.load(std::memory_order_relaxed);
    Slot& slot = slots_[position & mask_];
    slot.sequence.store(2 * position + 1, std::memory_order_relaxed);
    // Release, each: a reader that sees a new word also sees the odd number before it.
    const auto put = [&slot](size_t i, uint64_t word) {
      slot.words[i].store(word, std::memory_order_release);
    };
    put(0, use.region.value);
    put(1, use.bytes);
    put(2, static_cast<uint64_t>(use.begin));
    put(3, uint64_t{use.thread} << 32 | use.before);
    for (size_t i = 0; i < use.stack.size(); ++i) {
      put(4 + i, use.stack[i]);
      if (use.stack[i] == 0) break;
    }
    slot.sequence.store(2 * position + 2, std::memory_order_release);
    head_.store(position + 1, std::memory_order_release);
  }

  // Of the helper. mark() remembers the end of the queue; passed() returns true when all records
  // before that end were taken or overwritten.
  void mark() { marked_ = head_.load(std::memory_order_acquire); }
  [[nodiscard]] bool passed() const { return tail_ >= marked_; }

  // Of the helper.
  void discard() { tail_ = head_.load(std::memory_order_acquire); }

  // Of the helper. Takes a record, or returns false. Adds the number of records that were
  // overwritten.
  bool pop(UseRecord& record, uint64_t& overwritten) {
    while (true) {
      const uint64_t end = head_.load(std::memory_order_acquire);
      if (tail_ == end) return false;
      if (end - tail_ > slots_.size()) {
        overwritten += end - slots_.size() - tail_;
        tail_ = end - slots_.size();
      }
      Slot& slot = slots_[tail_ & mask_];
      const uint64_t wanted = 2 * tail_ + 2;
      ++tail_;
      if (slot.sequence.load(std::memory_order_acquire) == wanted) {
        const auto get = [&slot](size_t i) {
          return slot.words[i].load(std::memory_order_acquire);
        };
        const uint64_t order = get(3);
        record = {get(0),
                  get(1),
                  static_cast<int64_t>(get(2)),
                  static_cast<uint32_t>(order >> 32),
                  static_cast<uint32_t>(order),
                  {}};
        for (size_t i = 0; i < record.stack.size(); ++i) {
          record.stack[i] = get(4 + i);
          if (record.stack[i] == 0) break;
        }
        if (slot.sequence.load(std::memory_order_relaxed) == wanted) return true;
      }
      ++overwritten;
    }
  }

 private:
  static constexpr size_t kWords = 4 + std::tuple_size_v<CallStack>;
  struct Slot {
    std::atomic<uint64_t> sequence{0};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };

  std::vector<Slot> slots_;
  const uint64_t mask_;
  alignas(64) std::atomic<uint64_t> head_{0};  // written by the communicating thread
  alignas(64) uint64_t tail_ = 0;              // of the helper
  uint64_t marked_ = 0;                        // of the helper
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_USE_QUEUE_H_
