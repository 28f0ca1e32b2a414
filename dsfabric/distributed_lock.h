// A lock that threads of all processes may hold, by remote atomics on one word of global memory.
//
//   auto word = memory.allocate<uint64_t>(0, 1, deadline);   // once; its pointer goes to everybody
//   DistributedLock lock(memory, *word);                     // in every thread that uses it
//   absl::Status held = lock.acquire(deadline);
//   ...
//   lock.release();
//
// The word is 0, or says who holds the lock: so a waiter finds out when the holder is dead, and is
// told so instead of waiting for ever. It may die or give up itself at any moment, and nobody has a
// queue to repair: which is why this is no MCS or ticket lock, whose waiters are links of a chain.
// The price is that nothing is promised about who is next. Waiters back off, from 1 us to 1 ms, so
// that the word's owner sees at most some thousand attempts a second from each.
//
// What was done before release() happens-before what follows the next acquire(), for memory of this
// host and for completed transfers (wait for your puts before release()).
#ifndef CARIAMA_DSFABRIC_DISTRIBUTED_LOCK_H_
#define CARIAMA_DSFABRIC_DISTRIBUTED_LOCK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/export.h"
#include "dsfabric/global_memory.h"
#include "dtutils/wait.h"

namespace cariama {

// One thread's view of a lock. Thread-compatible, as the GlobalMemory that it uses and that must
// outlive it.
class CARIAMA_DSFABRIC_EXPORT DistributedLock {
 public:
  // `word` is zero at first, the same for all users, and used by nothing else.
  DistributedLock(GlobalMemory& memory, global_ptr<uint64_t> word);
  // Releases, if need be.
  ~DistributedLock();
  DistributedLock(const DistributedLock&) = delete;
  DistributedLock& operator=(const DistributedLock&) = delete;

  // Waits until the lock is ours, and runs calls meanwhile; not inside of calls. Errors:
  // DEADLINE_EXCEEDED (names the holder), UNAVAILABLE (the holder is dead: see take_over(); or the
  // owner of the word is), FAILED_PRECONDITION (we hold it already).
  [[nodiscard]] absl::Status acquire(Deadline deadline);
  // Whether it is ours now. Errors: as acquire(), but not for the deadline.
  [[nodiscard]] absl::StatusOr<bool> try_acquire();

  // Once acquire() has named a dead holder: becomes the holder in its place, to repair what it left
  // half done. False: another was faster, or the holder lives: acquire() again.
  [[nodiscard]] absl::StatusOr<bool> take_over();

  // Errors: UNAVAILABLE (the owner of the word is dead), FAILED_PRECONDITION (it is not ours).
  absl::Status release();
  [[nodiscard]] bool held() const { return held_; }

 private:
  // The word's values: rank + 1 of the holder in the upper half, a number within its process in the
  // lower.
  [[nodiscard]] static uint32_t rank_of(uint64_t holder) {
    return static_cast<uint32_t>(holder >> 32) - 1;
  }
  [[nodiscard]] absl::StatusOr<uint64_t> attempt(uint64_t expected);
  [[nodiscard]] absl::Status check_holder(uint64_t holder) const;
  void look_for_life(uint64_t holder) const;

  GlobalMemory& memory_;
  const global_ptr<uint64_t> word_;
  const uint64_t self_;
  bool held_ = false;
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_DISTRIBUTED_LOCK_H_
