// What a caller waits on: a semaphore that counts operations down, shared by transfers and calls
// (Seriema §3.1).
//
//   Synchronizer done(2);
//   transmitter.write(a, 0, 64, there, &done);
//   transmitter.write(b, 0, 64, there, &done);
//   absl::Status status = transmitter.wait(done);   // polls; done.wait() if another thread polls
//
// Whatever happened before an operation was counted down happens-before the return of the wait that
// sees it. The waiter may destroy the object as soon as its wait has returned, also while the
// thread that counted down last is still inside decrease().
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
  // The most operations that one object can count.
  static constexpr uint32_t kMaxOperations = (1u << 30) - 1;

  explicit Synchronizer(uint32_t operations = 1) : state_(operations) {}
  Synchronizer(const Synchronizer&) = delete;
  Synchronizer& operator=(const Synchronizer&) = delete;

  // Expects `operations` more. Call it before they are started, while operations are left or nobody
  // waits.
  void add(uint32_t operations = 1) { state_.fetch_add(operations, std::memory_order_relaxed); }

  // Counts operations down as done. Release. The object may be gone when this returns. More than
  // are left is a caller's error: the count stops at zero.
  void decrease(uint32_t operations = 1);

  // Counts operations down as failed. The first failure's status is kept for status().
  void fail(absl::Status status, uint32_t operations = 1);

  // Operations not counted down yet. Acquire: what the counted ones did is visible.
  [[nodiscard]] uint32_t operations_left() const {
    return state_.load(std::memory_order_acquire) & kCountMask;
  }
  [[nodiscard]] bool done() const { return operations_left() == 0; }

  // OK, or the first failure. Meaningful once done() is true.
  [[nodiscard]] absl::Status status() const;

  // Waits until no operation is left, and returns status(); DEADLINE_EXCEEDED if the deadline comes
  // first (the operations go on, and the object must live until they end). Through the thread's
  // wait hook: spins, yields, then sleeps. Does not poll: if this thread has to, use
  // Transmitter::wait.
  [[nodiscard]] absl::Status wait(Deadline deadline = kForever);

  // The paper's name for wait() without a deadline. The result is in status().
  void spin_nonzero_operations_left() { static_cast<void>(wait()); }

  // Makes a finished object count anew.
  void reset(uint32_t operations = 1);

 private:
  // One word holds it all, so that the last decrease() touches the object exactly once.
  static constexpr uint32_t kCountMask = kMaxOperations;
  static constexpr uint32_t kSleeper = 1u << 30;
  static constexpr uint32_t kFailed = 1u << 31;

  class SleeperParking;

  std::atomic<uint32_t> state_;
  absl::Status failure_;  // written by the thread that set kFailed, before its decrease()
};
static_assert(sizeof(Synchronizer) == 16);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_SYNCHRONIZER_H_
