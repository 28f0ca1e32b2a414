// A countdown of pending operations on which a caller waits; shared by transfers and calls (Seriema
// §3.1).
//
//   Synchronizer done(2);
//   transmitter.write(a, 0, 64, there, &done);
//   transmitter.write(b, 0, 64, there, &done);
//   absl::Status status = transmitter.wait(done, deadline);  // polls; fabric.wait(done, deadline)
//                                                            // also runs incoming calls
//
// Everything that happened before an operation was counted down happens-before the return of the
// wait that observes it. The waiter may destroy the object as soon as its wait has returned, even
// while the thread that counted down last is still inside decrease().
#ifndef CARIAMA_DTUTILS_SYNCHRONIZER_H_
#define CARIAMA_DTUTILS_SYNCHRONIZER_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "dtutils/export.h"
#include "dtutils/wait.h"

namespace cariama {

// 16 bytes. Thread-safe.
class CARIAMA_DTUTILS_EXPORT Synchronizer {
 public:
  // The largest number of operations that one object can count.
  static constexpr uint32_t kMaxOperations = (1u << 30) - 1;

  // Requires: `operations` is at most kMaxOperations.
  explicit Synchronizer(uint32_t operations = 1) : state_(operations) {}
  Synchronizer(const Synchronizer&) = delete;
  Synchronizer& operator=(const Synchronizer&) = delete;

  // Adds `operations` to the count. Call it before these operations start. Requires: the sum is at
  // most kMaxOperations; and while a thread waits, the count is not 0.
  void add(uint32_t operations = 1) { state_.fetch_add(operations, std::memory_order_relaxed); }

  // Counts `operations` down as done. Release: pairs with the acquire in operations_left(). The
  // object may be destroyed when this returns. Counting down more operations than are left is a
  // caller's error; the count stops at zero.
  void decrease(uint32_t operations = 1);

  // Counts `operations` down as failed. status() returns the status of the first failure.
  void fail(absl::Status status, uint32_t operations = 1);

  // Returns the number of operations not counted down yet. Acquire: the effects of the counted
  // operations are visible.
  [[nodiscard]] uint32_t operations_left() const {
    return state_.load(std::memory_order_acquire) & kCountMask;
  }
  [[nodiscard]] bool done() const { return operations_left() == 0; }

  // Returns OK or the first failure. Valid once done() is true.
  [[nodiscard]] absl::Status status() const;

  // Waits until no operation is left, and returns status(); DEADLINE_EXCEEDED if the deadline comes
  // first (the operations continue, and the object must live until they end). Waits through the
  // thread's wait hook: spins, yields, then sleeps. Neither polls completions nor receives calls:
  // if no other thread does, or if an operation needs a call to this thread to run, the wait does
  // not end. Transmitter::wait() polls completions; Fabric::wait() also receives and runs calls.
  [[nodiscard]] absl::Status wait_without_polling(Deadline deadline);

  // The paper's name for wait_without_polling(kForever), for programs in which another thread
  // polls, such as a service thread. Does not end otherwise. Read the result with status().
  void spin_nonzero_operations_left() { static_cast<void>(wait_without_polling(kForever)); }

  // Prepares a finished object for a new count.
  void reset(uint32_t operations = 1);

 private:
  // One word contains count, sleeper bit and failure bit, so that the last decrease() touches the
  // object exactly once.
  static constexpr uint32_t kCountMask = kMaxOperations;
  static constexpr uint32_t kSleeper = 1u << 30;
  static constexpr uint32_t kFailed = 1u << 31;

  class WordSleeper;

  std::atomic<uint32_t> state_;
  absl::Status failure_;  // written by the thread that set kFailed, before its decrease()
};
static_assert(sizeof(Synchronizer) == 16);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_SYNCHRONIZER_H_
