// A lock that any thread of any process can hold, by remote atomics on one word of global memory.
//
//   auto word = memory.allocate<uint64_t>(0, 1, deadline);   // once; send the pointer to all users
//   DistributedLock lock(memory, *word);                     // in every thread that uses it
//   absl::Status held = lock.acquire(deadline);
//   ...
//   lock.release();
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
  // Releases the lock if it is held. Waits for an attempt that acquire() has left in flight.
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
  // on the word, not for the holder. Errors: as acquire(), without DEADLINE_EXCEEDED.
  [[nodiscard]] absl::StatusOr<bool> try_acquire();

  // Takes the lock from a dead holder that acquire() has reported, so that the caller can repair
  // the data that the holder left half modified. Returns false if another waiter was faster or the
  // holder lives: call acquire() again. Blocks for two operations on the word. Errors: UNAVAILABLE
  // (the owner of the word is dead).
  [[nodiscard]] absl::StatusOr<bool> take_over();

  // Releases the lock. Blocks for one atomic on the word. Errors: UNAVAILABLE (the owner of the
  // word is dead), RESOURCE_EXHAUSTED (inside of a call: the release cannot be sent now),
  // FAILED_PRECONDITION (this object does not hold the lock; or the word has another value, because
  // other code has written it). After the first two this object still holds the lock.
  absl::Status release();
  [[nodiscard]] bool held() const { return held_; }

 private:
  // The word's values: rank + 1 of the holder in the upper half, the number of the lock object
  // within its process in the lower half.
  [[nodiscard]] static Rank rank_of(uint64_t holder) {
    return static_cast<uint32_t>(holder >> 32) - 1;
  }
  [[nodiscard]] absl::StatusOr<uint64_t> attempt(uint64_t expected, Deadline deadline);
  [[nodiscard]] absl::Status check_holder(uint64_t holder) const;
  void look_for_life(uint64_t holder) const;

  GlobalMemory& memory_;
  const global_ptr<uint64_t> word_;
  const uint64_t self_;
  bool held_ = false;
  GlobalValue<uint64_t> in_flight_;  // an attempt whose result has not arrived
  std::optional<uint64_t> expected_in_flight_;
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_DISTRIBUTED_LOCK_H_
