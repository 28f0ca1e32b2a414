// The split deque: entries of forked parents, the newest private to their owner, up to eight of the
// oldest public.
//
//                  taken              public                 private
//   entries    |  (stolen)  | first ... first+count-1 | floor ......... | top
//
// An entry is one word, the stack pointer of a parent's saved context. push stores a word, pop
// decrements `top` and compares it with `floor` (context.h): no fence, no atomic, no look at shared
// memory but one load of `attention`, a word that thieves write only when they want something.
// Source: the split of Lace (van Dijk and van de Pol, 2014), with a shelf that is taken from by
// one-sided operations.
//
// The shelf is what thieves see: a state word {version, first, count} and eight slots. Owner, when
// nothing is public: fills slots 0..n-1, then stores {version + 1, 0, n}. Owner taking back the
// newest: compare-and-swap {v, f, c} → {v + 1, f, c - 1}. Thief: reads the state, then slot f;
// compare-and-swap {v, f, c} → {v, f + 1, c - 1}; reads the frames of the task; adds 1 to `copied`.
// That is three dependent round trips (state and slot are read in order by one doorbell), and no
// lock: several thieves may copy at the same time.
//
// Why a thief gets what the slot said. Slots are written only while count is 0, under a version
// that no earlier state had. A thief's compare-and-swap succeeds on {v, f, c}, c > 0: the state had
// that value when it was read and has it now. It cannot have changed in between, for every change
// makes a state that never existed before: the owner's have a new version, a thief's a smaller
// count under the same version, and within one version count only falls. While c > 0 under v, no
// slot is written, so the slot, read after the state, is the one published under v. (Versions have
// 48 bits: a thief would have to sleep through 10^14 publications.)
//
// Why the oldest goes first, once. `first` moves by one with each success, and only the owner moves
// the other end; both by compare-and-swap on the same word.
//
// Why the frames are whole. A stolen task's frames stay where they are until the owner installs
// another task in its region (restart()), since what runs there only grows downwards below them;
// and the owner does that when nothing of its own is left there, after `copied` has reached the
// number of entries taken from it.
//
// tests/tasks/split_deque_interleavings_test.cc runs this code through every interleaving of small
// instances.
#ifndef CARIAMA_TASKS_INTERNAL_SPLIT_DEQUE_H_
#define CARIAMA_TASKS_INTERNAL_SPLIT_DEQUE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cariama::tasks {

// An entry as thieves need it. `report`: the join record that the task itself reports to;
// `record`: that of the child which it forked here.
struct PublicEntry {
  uint64_t sp;   // of the saved context: the lowest byte of its frames
  uint64_t top;  // one past the highest
  uint64_t report;
  uint64_t record;
};
static_assert(sizeof(PublicEntry) == 32);

inline constexpr size_t kShelfSlots = 8;

// attention
inline constexpr uint64_t kCalm = 0;
inline constexpr uint64_t kRefill = 1;  // nothing is public: publish when there is some to spare
inline constexpr uint64_t kHungry = 2;  // a thief came in vain: publish whatever there is

// How many the owner makes public when nothing is, of `spare` private entries that may go. A
// hungry thief gets the only one; otherwise one is kept, so that a publication need not be taken
// back at once.
[[nodiscard]] constexpr uint32_t how_many_to_publish(uint64_t attention, size_t spare) {
  if (attention == kCalm || spare < (attention == kHungry ? 1 : 2)) return 0;
  return static_cast<uint32_t>(std::clamp<size_t>(spare / 2, 1, kShelfSlots));
}

// In registered memory of the owner. Zeros at first.
struct alignas(64) Shelf {
  std::atomic<uint64_t> state;      // ShelfState; read by thieves together with attention
  std::atomic<uint64_t> copied;     // how many entries' frames thieves are done with
  std::atomic<uint64_t> attention;  // looked at by each fork: on a line that is seldom written
  uint64_t padding[5];
  std::atomic<uint64_t> slots[kShelfSlots][4];  // PublicEntry, word by word
};
static_assert(sizeof(Shelf) == 64 + kShelfSlots * sizeof(PublicEntry));

struct ShelfState {
  uint64_t version;
  uint32_t first;
  uint32_t count;

  [[nodiscard]] static constexpr ShelfState decode(uint64_t word) {
    return {word >> 16, static_cast<uint32_t>(word >> 8 & 0xff),
            static_cast<uint32_t>(word & 0xff)};
  }
  [[nodiscard]] constexpr uint64_t encode() const {
    return version << 16 | uint64_t{first} << 8 | count;
  }
};

// The owner's operations, over any memory that has load, store (release) and compare_swap. They are
// called when the fast path cannot go on: rarely.
template <typename Memory>
class ShelfOwner {
 public:
  ShelfOwner(Memory& memory, Shelf& shelf) : memory_(memory), shelf_(shelf) {}

  // How many are public. Only thieves change it meanwhile, downwards.
  [[nodiscard]] uint32_t count() { return ShelfState::decode(memory_.load(shelf_.state)).count; }

  // Makes `count` entries public, the oldest first. Precondition: count() is 0, 0 < count <=
  // kShelfSlots.
  template <typename Entries>
  void publish(const Entries& entry, uint32_t count) {
    const ShelfState old = ShelfState::decode(memory_.load(shelf_.state));
    for (uint32_t i = 0; i < count; ++i) {
      const PublicEntry e = entry(i);
      memory_.store(shelf_.slots[i][0], e.sp);
      memory_.store(shelf_.slots[i][1], e.top);
      memory_.store(shelf_.slots[i][2], e.report);
      memory_.store(shelf_.slots[i][3], e.record);
    }
    // Not a compare-and-swap: with nothing public no thief can succeed.
    memory_.store(shelf_.state, ShelfState{old.version + 1, 0, count}.encode());
  }

  // Takes the newest public entry back. False: thieves have them all.
  [[nodiscard]] bool take_back() {
    for (;;) {
      const uint64_t word = memory_.load(shelf_.state);
      const ShelfState old = ShelfState::decode(word);
      if (old.count == 0) return false;
      const ShelfState next{old.version + 1, old.first, old.count - 1};
      if (memory_.compare_swap(shelf_.state, word, next.encode()) == word) return true;
    }
  }

  // After take_back(): when nothing is public any more, the owner's next forks publish again.
  void refill_if_empty() {
    if (count() == 0 && memory_.load(shelf_.attention) == kCalm) {
      memory_.store(shelf_.attention, kRefill);
    }
  }

  // Whether all frames that thieves took since the beginning, `taken` of them, have been copied.
  [[nodiscard]] bool all_copied(uint64_t taken) { return memory_.load(shelf_.copied) == taken; }

 private:
  Memory& memory_;
  Shelf& shelf_;
};

// What a thief makes of the state that it has read: the state to put in its place.
[[nodiscard]] constexpr uint64_t claim_oldest(uint64_t state) {
  const ShelfState old = ShelfState::decode(state);
  return ShelfState{old.version, old.first + 1, old.count - 1}.encode();
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SPLIT_DEQUE_H_
