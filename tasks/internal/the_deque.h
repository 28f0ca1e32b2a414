// The deque of the paper, to compare with: THE (Frigo, Leiserson and Randall, PLDI'98) with a lock
// that thieves take by a remote fetch-and-add (Akiyama and Taura, HPDC'15, section 5.3). Every
// entry is public as soon as it is pushed, in the worker's array of entries.
//
// Owner: push stores top. Pop stores top - 1, then looks at base: if a thief may have the same
// entry, it takes the lock and looks again. Thief: reads {lock, base, top}; fetch-and-add on lock,
// which is its own if it was 0; fetch-and-add on base; reads top and the entry; if there is none,
// or it is tied, puts base back; reads the frames; writes 0 to lock. Five dependent round trips,
// and the lock is held while the frames are copied.
//
// Why an entry is taken once. Pop's store of top and its load of base have a full fence between
// them, the thief's fetch-and-add on base ends before its read of top begins: at least one of the
// two sees the other. A thief that sees the owner gives way. An owner that sees a thief waits for
// the lock, and then knows.
//
// tests/tasks/the_deque_interleavings_test.cc runs the owner's code through every interleaving of
// small instances.
#ifndef CARIAMA_TASKS_INTERNAL_THE_DEQUE_H_
#define CARIAMA_TASKS_INTERNAL_THE_DEQUE_H_

#include <atomic>
#include <cstdint>

namespace cariama::tasks {

// In registered memory of the owner. Positions are those in the array of entries, from 1.
struct alignas(64) TheQueue {
  std::atomic<uint64_t> lock;  // 0: free
  std::atomic<uint64_t> base;  // the oldest entry
  std::atomic<uint64_t> top;   // one past the newest
};

// The owner's operations, over any memory that has load, store (release), compare_swap and fence
// (sequentially consistent). `pause` is called while a thief has the lock.
template <typename Memory>
class TheOwner {
 public:
  TheOwner(Memory& memory, TheQueue& queue) : memory_(memory), queue_(queue) {}

  void push(uint64_t top) { memory_.store(queue_.top, top); }

  // Takes the newest entry, at `position`, back. False: a thief has it.
  template <typename Pause>
  [[nodiscard]] bool pop(uint64_t position, const Pause& pause) {
    memory_.store(queue_.top, position);
    memory_.fence();
    if (memory_.load(queue_.base) <= position) return true;
    acquire(pause);
    const bool ours = memory_.load(queue_.base) <= position;
    memory_.store(queue_.lock, 0);
    return ours;
  }

  // Empties it. Returns how many entries thieves have taken since the last time.
  template <typename Pause>
  uint64_t reset(const Pause& pause) {
    acquire(pause);
    const uint64_t base = memory_.load(queue_.base);
    memory_.store(queue_.top, 1);
    memory_.store(queue_.base, 1);
    memory_.store(queue_.lock, 0);
    return base == 0 ? 0 : base - 1;
  }

 private:
  template <typename Pause>
  void acquire(const Pause& pause) {
    for (uint64_t round = 0; memory_.compare_swap(queue_.lock, 0, 1) != 0; ++round) pause(round);
  }

  Memory& memory_;
  TheQueue& queue_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_THE_DEQUE_H_
