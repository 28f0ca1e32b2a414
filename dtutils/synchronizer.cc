#include "dtutils/synchronizer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/futex.h"

namespace cariama {

void Synchronizer::decrease(uint32_t operations) {
  uint32_t old = state_.load(std::memory_order_relaxed);
  uint32_t left;
  do {
    // A loop instead of fetch_sub: if a caller counts down too much, the subtraction must not
    // borrow from the flag bits.
    left = (old & kCountMask) - std::min(operations, old & kCountMask);
  } while (!state_.compare_exchange_weak(old, (old & ~kCountMask) | left, std::memory_order_acq_rel,
                                         std::memory_order_relaxed));
  // From here on a waiter may destroy *this. futex_wake only passes the address to the kernel and
  // does not access the memory.
  if (left == 0 && (old & kSleeper) != 0) internal::futex_wake(&state_);
}

void Synchronizer::fail(absl::Status status, uint32_t operations) {
  if ((state_.fetch_or(kFailed, std::memory_order_acq_rel) & kFailed) == 0) {
    failure_ = std::move(status);
  }
  decrease(operations);
}

absl::Status Synchronizer::status() const {
  if ((state_.load(std::memory_order_acquire) & kFailed) == 0) return absl::OkStatus();
  return failure_;
}

// Sleeps on the state word itself: a doorbell beside it could not be rung after the last
// decrease(). arm() sets kSleeper in the word, and decrease() tests it in the exchange that changes
// the count.
class Synchronizer::WordSleeper final : public Sleeper {
 public:
  explicit WordSleeper(Synchronizer& synchronizer) : state_(synchronizer.state_) {}
  // The flag stays set, because another thread may sleep too. This costs at most one unneeded
  // futex_wake.
  void arm() override {
    expected_ = state_.fetch_or(kSleeper, std::memory_order_acq_rel) | kSleeper;
  }
  void wait(Deadline deadline) override { internal::futex_wait(&state_, expected_, deadline); }

 private:
  std::atomic<uint32_t>& state_;
  uint32_t expected_ = 0;
};

absl::Status Synchronizer::wait_without_polling(Deadline deadline) {
  WordSleeper sleeper(*this);
  if (!wait_until([this] { return done(); }, deadline, &sleeper)) {
    return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kOperation,
                      std::to_string(operations_left()) + " operation(s) not finished in time");
  }
  return status();
}

void Synchronizer::reset(uint32_t operations) {
  failure_ = absl::OkStatus();
  state_.store(operations, std::memory_order_release);
}

}  // namespace cariama
