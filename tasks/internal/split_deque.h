// The split deque holds the entries of forked parents. The newest entries are private to the owner.
// Up to eight of the oldest entries are public: thieves can steal them.
//
//                  taken              public                 private
//   entries    |  (stolen)  | first ... first+count-1 | floor ......... | top
//
// An entry is one word, the stack pointer of a parent's saved context. A push stores a word. A pop
// decrements `top` and compares it with `floor` (context.h). Neither needs a fence or an atomic.
// The only shared memory that they access is one load of `steal_request`, a word that thieves write
// only when they need work. Source: the split deque of Lace (van Dijk and van de Pol, 2014). Here
// thieves access the public part by one-sided operations.
//
// Public part: a state word {version, first, count} and eight slots.
//   publish    owner, requires count == 0: clears the steal request, writes slots 0..n-1, then
//              compare-and-swap {v, f, 0} → {v + 1, 0, n}
//   take back  owner, takes the newest: compare-and-swap {v, f, c} → {v + 1, f, c - 1}
//   steal      thief, takes the oldest: reads the state, then slot f; compare-and-swap {v, f, c} →
//              {v, f + 1, c - 1}; reads the frames of the task; adds 1 to `copied`
// A steal takes three dependent round trips (one list of requests reads state and slots, in this
// order) and no lock: several thieves can copy frames at the same time.
//
// Why a successful thief has read the slot that belongs to its entry. The owner writes slots only
// while count is 0, and then publishes them under a version that no earlier state had. The thief's
// compare-and-swap succeeds on {v, f, c} with c > 0, so the state had this value when the thief
// read it and at the compare-and-swap. It did not change in between, because every change creates a
// state that never existed before: a change by the owner has a new version; a change by a thief
// keeps the version and decreases count, and within one version count never increases. While c > 0
// under v, no slot is written. The thief read the slot after the state, so it read the slot
// published under v. (Versions have 48 bits: an overflow would need 10^14 publications between the
// two accesses.)
//
// Why each entry is taken once, the oldest first. A successful thief increments `first`, and only
// the owner changes the other end. Both use compare-and-swap on the same word.
//
// Why the thief reads complete frames. The frames of a stolen task stay in place until the owner
// installs another task in its region, because tasks that run there only use the stack below them.
// The owner installs a task only if it has no entry left, and after `copied` has reached the number
// of entries stolen from it (Scheduler::quiesce_region()).
//
// Why no steal request is lost. A thief that polls repeats its request. A thief that sleeps
// (idle.cc) arms its doorbell, enters the sleeper set of each victim, writes the request, and then
// looks for public entries again. If it finds one, it disarms its doorbell before it steals. The
// owner clears a request before it publishes, or when entries are public, and then wakes as many
// sleepers as there are public entries. So the sleeper is woken, or other thieves are awake that
// will look at these entries. A thief that finds no entry leaves a request. A thief that takes the
// last entry leaves one if it has read kNoRequest. (If the owner clears a request after that, it
// wakes a sleeper for the entry.) An owner that has a request publishes even
// its only entry if a thief sleeps. So a kRefillRequest may overwrite a kAnyEntryRequest. (A woken
// thief that steals from another victim does not look: then the sleeper waits until the owner
// publishes again, or until its sleep ends.)
//
// tests/tasks/split_deque_interleavings_test.cc and tests/tasks/steal_request_interleavings_test.cc
// run this code in every interleaving of small instances.
#ifndef CARIAMA_TASKS_INTERNAL_SPLIT_DEQUE_H_
#define CARIAMA_TASKS_INTERNAL_SPLIT_DEQUE_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace cariama::tasks {

// A public entry: the data that a thief needs.
struct PublicEntry {
  uint64_t sp;      // stack pointer of the saved context: address of the lowest byte of the frames
  uint64_t top;     // one past the address of the highest byte of the frames
  uint64_t report;  // Reference to the record for the result of the task itself
  uint64_t record;  // Reference to the record of the child that the task forked last
};
static_assert(sizeof(PublicEntry) == 32);

inline constexpr size_t kPublicSlots = 8;

// Values of the steal request word.
inline constexpr uint64_t kNoRequest = 0;
// The public part is empty: the owner publishes if it has two private entries, or one while a thief
// sleeps.
inline constexpr uint64_t kRefillRequest = 1;
// A thief found the public part empty: the owner publishes even if it has only one private entry.
inline constexpr uint64_t kAnyEntryRequest = 2;

// Returns how many of `spare` private entries the owner publishes if the public part is empty: half
// of them, at least 1 and at most kPublicSlots. Without a thief that waits for an entry
// (kAnyEntryRequest, or thief_sleeps() returns true), the owner does not publish its only entry,
// because it would often have to take the entry back immediately. Returns 0 if there is no request.
template <typename ThiefSleeps>
[[nodiscard]] uint32_t how_many_to_publish(uint64_t steal_request, size_t spare,
                                           const ThiefSleeps& thief_sleeps) {
  if (steal_request == kNoRequest || spare == 0) return 0;
  if (spare == 1 && steal_request != kAnyEntryRequest && !thief_sleeps()) return 0;
  return static_cast<uint32_t>(std::clamp<size_t>(spare / 2, 1, kPublicSlots));
}

// The part of the deque that thieves access, in registered memory of the owner. Initially zeros.
struct alignas(64) PublicPart {
  std::atomic<uint64_t> state;          // PublicState; thieves read it together with steal_request
  std::atomic<uint64_t> copied;         // number of stolen entries whose frames thieves have read
  std::atomic<uint64_t> steal_request;  // read by each fork; this cache line is seldom written
  uint64_t padding[5];
  std::atomic<uint64_t> slots[kPublicSlots][4];  // the words of a PublicEntry
};
static_assert(sizeof(PublicPart) == 64 + kPublicSlots * sizeof(PublicEntry));

// The decoded state word of the public part.
struct PublicState {
  uint64_t version;
  uint32_t first;
  uint32_t count;

  [[nodiscard]] static constexpr PublicState decode(uint64_t word) {
    return {word >> 16, static_cast<uint32_t>(word >> 8 & 0xff),
            static_cast<uint32_t>(word & 0xff)};
  }
  // Returns true if the public entries lie in the slots. A thief checks a victim's word by it.
  [[nodiscard]] constexpr bool is_possible() const { return first + count <= kPublicSlots; }
  [[nodiscard]] constexpr uint64_t encode() const {
    return version << 16 | uint64_t{first} << 8 | count;
  }
};

// The owner's operations on the public part. `Memory` has load (acquire), store (release) and
// compare_swap. The fast paths of fork and join call none of them.
template <typename Memory>
class PublicPartOwner {
 public:
  PublicPartOwner(Memory& memory, PublicPart& public_part)
      : memory_(memory), public_part_(public_part) {}

  // Returns the number of public entries. Thieves can decrease it at any time.
  [[nodiscard]] uint32_t count() {
    return PublicState::decode(memory_.load(public_part_.state)).count;
  }

  // Returns the steal request that the owner serves by a publication, or kNoRequest. If entries are
  // public, clears the request and calls wake(number of entries), which wakes sleeping thieves: a
  // thief may have entered its request after these entries were published.
  template <typename Wake>
  [[nodiscard]] uint64_t request_to_serve(const Wake& wake) {
    const uint64_t wanted = memory_.load(public_part_.steal_request);
    if (wanted == kNoRequest) return kNoRequest;
    const uint32_t entries = count();
    if (entries == 0) return wanted;
    memory_.store(public_part_.steal_request, kNoRequest);
    wake(entries);
    return kNoRequest;
  }

  // Clears the steal request, and publishes the entries entry(0) ... entry(count - 1), of which
  // entry(0) is the oldest. The caller then wakes sleeping thieves. Requires: count() == 0 and
  // 0 < count <= kPublicSlots.
  template <typename Entries>
  void publish(const Entries& entry, uint32_t count) {
    // Before the publication: a thief that takes the last entry writes a new request, which must
    // not be overwritten.
    memory_.store(public_part_.steal_request, kNoRequest);
    const PublicState old = PublicState::decode(memory_.load(public_part_.state));
    for (uint32_t i = 0; i < count; ++i) {
      const PublicEntry e = entry(i);
      memory_.store(public_part_.slots[i][0], e.sp);
      memory_.store(public_part_.slots[i][1], e.top);
      memory_.store(public_part_.slots[i][2], e.report);
      memory_.store(public_part_.slots[i][3], e.record);
    }
    // It succeeds: while count is 0, no thief changes the state. A store does not suffice, because
    // a thief's compare-and-swap that fails may undo it (RemoteAccess). Release: a thief that reads
    // this state also reads the slots.
    static_cast<void>(memory_.compare_swap(public_part_.state, old.encode(),
                                           PublicState{old.version + 1, 0, count}.encode()));
  }

  // Takes the newest public entry back. Returns false if thieves have taken all public entries.
  [[nodiscard]] bool take_back() {
    for (;;) {
      const uint64_t word = memory_.load(public_part_.state);
      const PublicState old = PublicState::decode(word);
      if (old.count == 0) return false;
      const PublicState next{old.version + 1, old.first, old.count - 1};
      if (memory_.compare_swap(public_part_.state, word, next.encode()) == word) return true;
    }
  }

  // Call it after take_back(). If no entry is public and there is no steal request, sets
  // kRefillRequest, so that the owner's next forks publish again.
  void refill_if_empty() {
    if (count() == 0 && memory_.load(public_part_.steal_request) == kNoRequest) {
      memory_.store(public_part_.steal_request, kRefillRequest);
    }
  }

  // Returns the number of entries whose frames thieves have read: at most the number of entries
  // that they ever took.
  [[nodiscard]] uint64_t copied() { return memory_.load(public_part_.copied); }

 private:
  Memory& memory_;
  PublicPart& public_part_;
};

// Called by a thief that is about to sleep, for each victim. The thief then looks for public
// entries once more, and sleeps if there are none. `sleepers` is the SleeperSet of the victim;
// `memory` has load and store.
template <typename Memory, typename Sleepers>
void request_before_sleep(Memory& memory, PublicPart& victim, Sleepers& sleepers, uint32_t slot) {
  // Armed before the request is stored: the victim looks for sleepers after it clears the request.
  sleepers.arm(slot);
  if (memory.load(victim.steal_request) != kAnyEntryRequest)
    memory.store(victim.steal_request, kAnyEntryRequest);
}

// Called by the owner when `entries` entries are public: removes sleepers from its set until as
// many were woken. wake(slot) rings the doorbell of a sleeper. It returns false if the doorbell was
// not armed: the thief does not sleep any more.
template <typename Sleepers, typename Wake>
void wake_for_entries(Sleepers& sleepers, uint32_t entries, const Wake& wake) {
  uint64_t sleeping = sleepers.armed();
  while (sleeping != 0 && entries > 0) {
    const auto slot = static_cast<uint32_t>(std::countr_zero(sleeping));
    sleeping &= sleeping - 1;
    sleepers.disarm(slot);
    if (wake(slot)) --entries;
  }
}

// Returns the state that a thief writes to take the oldest entry, if it has read `state`.
[[nodiscard]] constexpr uint64_t claim_oldest(uint64_t state) {
  const PublicState old = PublicState::decode(state);
  return PublicState{old.version, old.first + 1, old.count - 1}.encode();
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SPLIT_DEQUE_H_
