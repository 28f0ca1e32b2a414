// The THE deque (Frigo, Leiserson and Randall, PLDI'98) with a lock that thieves take by a remote
// fetch-and-add (Akiyama and Taura, HPDC'15, section 5.3). It exists for comparison with the split
// deque. Every entry in the worker's array of entries is public as soon as it is pushed.
//
//   push   owner: stores top
//   pop    owner: stores top - 1, then loads base. If a thief may have the same entry, the owner
//          takes the lock and loads base again.
//   steal  thief: reads {lock, base, top}; adds 1 to lock, which it has acquired if the old value
//          is 0; fetch-and-add on base; reads top and the entry. If there is no entry or it is
//          tied, the thief restores base. Otherwise it reads the frames. Then it subtracts 1 from
//          lock, which it also does if it has not acquired the lock.
// A steal takes five dependent round trips. The thief has the lock while it copies the frames.
//
// The paper's thief frees the lock by writing 0. A fetch-and-add of another thief in progress may
// overwrite that 0: the device reads the lock, and later writes the sum.
//
// Why each entry is taken once. The owner's pop has a full fence between its store of top and its
// load of base. The thief's fetch-and-add on base completes before its read of top begins. So at
// least one of them observes the change of the other. A thief that observes the pop restores base.
// An owner that observes the thief takes the lock; then no thief is active, and base tells whether
// the entry was stolen.
//
// tests/tasks/the_deque_interleavings_test.cc runs the owner's code in every interleaving of small
// instances.
#ifndef CARIAMA_TASKS_PAPER_THE_DEQUE_H_
#define CARIAMA_TASKS_PAPER_THE_DEQUE_H_

#include <atomic>
#include <cstdint>

namespace cariama::tasks {

// The words that thieves access, in registered memory of the owner. base and top are positions in
// the array of entries; the first position is 1.
struct alignas(64) TheQueue {
  std::atomic<uint64_t> lock;  // number of workers that have or try to acquire it; 0: free
  std::atomic<uint64_t> base;  // the oldest entry
  std::atomic<uint64_t> top;   // one past the newest
};

// Added to TheQueue::lock, it subtracts 1.
inline constexpr uint64_t kMinusOne = ~uint64_t{0};

// The owner's operations. `Memory` has load (acquire), store (release), compare_swap, add, and
// fence (sequentially consistent). While a thief has the lock, pop() and reset() call pause(round).
template <typename Memory>
class TheOwner {
 public:
  TheOwner(Memory& memory, TheQueue& queue) : memory_(memory), queue_(queue) {}

  void push(uint64_t top) { memory_.store(queue_.top, top); }

  // Pops the newest entry, which is at `position`. Returns false if a thief has taken it.
  template <typename Pause>
  [[nodiscard]] bool pop(uint64_t position, const Pause& pause) {
    memory_.store(queue_.top, position);
    memory_.fence();
    if (memory_.load(queue_.base) <= position) return true;
    acquire(pause);
    const bool ours = memory_.load(queue_.base) <= position;
    release();
    return ours;
  }

  // Empties the queue. Returns the number of entries that thieves have taken since the last
  // reset().
  template <typename Pause>
  uint64_t reset(const Pause& pause) {
    acquire(pause);
    const uint64_t base = memory_.load(queue_.base);
    memory_.store(queue_.top, 1);
    memory_.store(queue_.base, 1);
    release();
    return base == 0 ? 0 : base - 1;
  }

 private:
  template <typename Pause>
  void acquire(const Pause& pause) {
    for (uint64_t round = 0; memory_.compare_swap(queue_.lock, 0, 1) != 0; ++round) pause(round);
  }
  void release() { memory_.add(queue_.lock, kMinusOne); }

  Memory& memory_;
  TheQueue& queue_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_PAPER_THE_DEQUE_H_
