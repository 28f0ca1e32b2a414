// A lock that any thread of any process can hold, by remote atomics on one word of global memory.
//
//   auto word = memory.allocate<uint64_t>(0, 1, deadline);   // once; send the pointer to all users
//   DistributedLock lock(memory, *word);                     // in every thread that uses it
//   absl::Status held = lock.acquire(deadline);
//   ...
//   lock.release(deadline);
//
// The word is 0, or names the holder. So a waiter detects that the holder is dead, and acquire()
// returns an error instead of waiting forever. A waiter may die or give up at any moment without
// leaving a queue to repair. This is why the lock is not an MCS or ticket lock, whose waiters form
// a chain. The cost is fairness: the lock does not guarantee which waiter is next. Waiters back off
// from 1 us to 1 ms, so the word's owner sees at most some thousand attempts per second from each
// waiter.
//
// Operations before release() happen-before those that follow the next acquire(). This holds for
// memory of this host and for completed transfers: wait for your puts before release().
#ifndef CARIAMA_DSFABRIC_DISTRIBUTED_LOCK_H_
#define CARIAMA_DSFABRIC_DISTRIBUTED_LOCK_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/export.h"
#include "dsfabric/global_memory.h"
#include "dtutils/wait.h"

namespace cariama {

// One thread's handle to a lock. Thread-compatible, like the GlobalMemory that it uses. That
// GlobalMemory must outlive it.
class CARIAMA_DSFABRIC_EXPORT DistributedLock {
 public:
  // Requires: `word` was zero at first, is the same for all users, and is used for nothing else.
  DistributedLock(GlobalMemory& memory, global_ptr<uint64_t> word);
  // Releases the lock if it is held. Waits for an operation on the word that has been left in
  // flight, and for the release, at most FabricOptions::timeout in all: afterwards, if the owner of
  // the word is stopped, the word may name this process until its end.
  ~DistributedLock();
  DistributedLock(const DistributedLock&) = delete;
  DistributedLock& operator=(const DistributedLock&) = delete;

  // Blocks until this object holds the lock; runs calls meanwhile. Must not be called inside of a
  // call. Errors: DEADLINE_EXCEEDED (names the holder; or the owner of the word, if it has not
  // executed the first attempt: that attempt may still succeed, and the next call of this object
  // returns its result), UNAVAILABLE (the holder is dead: see take_over(); or the owner of the word
  // is dead), FAILED_PRECONDITION (this object holds the lock already).
  [[nodiscard]] absl::Status acquire(Deadline deadline);
  // Attempts once to take the lock. Returns true if this object now holds it. Blocks for one atomic
  // on the word, not for the holder. Errors: as acquire(); DEADLINE_EXCEEDED names the owner of the
  // word.
  [[nodiscard]] absl::StatusOr<bool> try_acquire(Deadline deadline);

  // Takes the lock from a dead holder that acquire() has reported, so that the caller can repair
  // the data that the holder left half modified. Returns false if another waiter was faster or the
  // holder lives: call acquire() again. Blocks for two operations on the word. Errors: UNAVAILABLE
  // (the owner of the word is dead), DEADLINE_EXCEEDED (names the owner of the word; an attempt may
  // still succeed, as for acquire()).
  [[nodiscard]] absl::StatusOr<bool> take_over(Deadline deadline);

  // Releases the lock. Blocks for one atomic on the word. Errors: UNAVAILABLE (the owner of the
  // word is dead), RESOURCE_EXHAUSTED (inside of a call: the release cannot be sent now),
  // DEADLINE_EXCEEDED (names the owner of the word, which may still execute the release: the next
  // call of release() returns its result), FAILED_PRECONDITION (this object does not hold the lock;
  // or the word has another value, because other code has written it). After the first three
  // held() still returns true.
  absl::Status release(Deadline deadline);
  [[nodiscard]] bool held() const { return held_; }

 private:
  // The word's values: rank + 1 of the holder in the upper half, the number of the lock object
  // within its process in the lower half.
  [[nodiscard]] static Rank rank_of(uint64_t holder) {
    return static_cast<uint32_t>(holder >> 32) - 1;
  }
  // Replaces `expected` by `desired` in the word; if an earlier change is in flight, waits for that
  // one instead. Returns the value before the change, and updates held_. After DEADLINE_EXCEEDED
  // change_ is set if a change is in flight.
  [[nodiscard]] absl::StatusOr<uint64_t> attempt(uint64_t expected, uint64_t desired,
                                                 Deadline deadline);
  [[nodiscard]] absl::Status check_holder(uint64_t holder) const;
  // Returns DEADLINE_EXCEEDED: process `rank` was late.
  [[nodiscard]] absl::Status late(std::string_view what, Rank rank) const;
  [[nodiscard]] absl::Status owner_is_late() const;
  void look_for_life(uint64_t holder) const;

  struct Change {
    uint64_t expected;
    uint64_t desired;
  };

  GlobalMemory& memory_;
  const global_ptr<uint64_t> word_;
  const uint64_t self_;
  bool held_ = false;
  GlobalValue<uint64_t> in_flight_;  // the result of change_
  std::optional<Change> change_;     // a change whose result has not arrived
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_DISTRIBUTED_LOCK_H_
