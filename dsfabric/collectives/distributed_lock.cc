#include "dsfabric/distributed_lock.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/collectives/lock_numbers.h"
#include "dsfabric/peers/connect_deadline.h"
#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/trace.h"

namespace cariama {
namespace {

constexpr std::chrono::microseconds kFirstAttemptPause{1};
constexpr std::chrono::microseconds kLongestAttemptPause{1000};
// Without service threads fabric.wait() polls and does not sleep: the number of polls between
// attempts.
constexpr uint64_t kPollsPerAttempt = 8;

// Returns a holder value for each lock object of a process, so that two threads, or two objects of
// one thread, are different holders. Never 0. The number wraps after 2^32 objects. Two objects with
// one value still exclude each other: an acquisition replaces 0 only, and held_ belongs to the
// object.
uint64_t new_holder(const Fabric& fabric) {
  return uint64_t{fabric.rank() + 1} << 32 |
         internal::next_lock_number().fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

std::atomic<uint32_t>& internal::next_lock_number() {
  static std::atomic<uint32_t> next{1};
  return next;
}

DistributedLock::DistributedLock(GlobalMemory& memory, global_ptr<uint64_t> word)
    : memory_(memory), word_(word), self_(new_holder(memory.fabric())) {}

DistributedLock::~DistributedLock() {
  const Deadline deadline = deadline_after(memory_.fabric().options().timeout);
  if (change_) static_cast<void>(attempt(0, self_, deadline));
  if (held_) static_cast<void>(release(deadline));
}

absl::StatusOr<uint64_t> DistributedLock::attempt(uint64_t expected, uint64_t desired,
                                                  Deadline deadline) {
  // This holds for a word in this process too: no other process can release the lock any more.
  const internal::Lifecycle& lifecycle = internal::job_of(memory_.fabric()).lifecycle();
  if (desired == self_ && lifecycle.is_closed()) return lifecycle.closed_error();
  // If an earlier change is in flight, it counts instead: it may have taken the lock.
  if (!change_) {
    trace_instant("dsfabric", desired == self_ ? "try to take lock" : "release lock", "rank",
                  word_.rank());
    const internal::ScopedConnectDeadline scope(deadline);
    in_flight_ = memory_.compare_exchange(word_, expected, desired);
    change_ = Change{expected, desired};
  }
  auto before = in_flight_.wait(deadline);
  if (!in_flight_.done()) return before;
  before = in_flight_.wait(kForever);  // done: returns immediately, also if the deadline was first
  const Change change = *std::exchange(change_, std::nullopt);
  if (before.ok() && *before == change.expected) {
    held_ = change.desired == self_;
    if (held_) trace_instant("dsfabric", "lock taken", "rank", word_.rank());
  }
  return before;
}

absl::Status DistributedLock::late(std::string_view what, Rank rank) const {
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    std::string(what) + memory_.fabric().label(rank),
                    internal::peer_remedy(internal::PeerRemedy::kSilent));
}

absl::Status DistributedLock::owner_is_late() const {
  return late("the word of a distributed lock was not changed in time by its owner, ",
              word_.rank());
}

absl::Status DistributedLock::check_holder(uint64_t holder) const {
  const Fabric& fabric = memory_.fabric();
  const uint32_t rank = rank_of(holder);
  if (rank >= fabric.size()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "the word of a distributed lock holds " + std::to_string(holder),
                      "allocate it as zero, and use it for nothing else");
  }
  if (rank == fabric.rank() || fabric.peer_status(rank).ok()) return absl::OkStatus();
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                    "the holder of a distributed lock, " + fabric.label(rank) + ", is dead",
                    internal::peer_remedy(internal::PeerRemedy::kLock));
}

// Sends an empty service call, so that a dead holder is detected.
void DistributedLock::look_for_life(uint64_t holder) const {
  if (rank_of(holder) == memory_.fabric().rank()) return;
  static_cast<void>(service_call<RetryAsync>(memory_.fabric(), rank_of(holder), [] {}));
}

absl::StatusOr<bool> DistributedLock::try_acquire(Deadline deadline) {
  if (held_) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "a distributed lock is not recursive, and this object holds it");
  }
  auto before = attempt(0, self_, deadline);
  if (change_ && absl::IsDeadlineExceeded(before.status())) return owner_is_late();
  if (!before.ok()) return before.status();
  if (held_) return true;
  if (*before == 0) return false;  // the result of an earlier take_over()
  if (absl::Status status = check_holder(*before); !status.ok()) return status;
  return false;
}

absl::Status DistributedLock::acquire(Deadline deadline) {
  Fabric& fabric = memory_.fabric();
  const bool counted = fabric.options().service_threads == 0;
  const auto heartbeat = fabric.options().heartbeat;
  Deadline next_sign = deadline_after(heartbeat);
  std::chrono::microseconds pause = kFirstAttemptPause;
  const auto not_released = [&](uint64_t holder) {
    return late("a distributed lock was not released in time by ", rank_of(holder));
  };
  if (held_) return try_acquire(deadline).status();
  std::optional<uint64_t> holder;
  while (true) {
    auto before = attempt(0, self_, deadline);
    if (change_ && absl::IsDeadlineExceeded(before.status())) {
      return holder ? not_released(*holder) : owner_is_late();
    }
    if (!before.ok()) return before.status();
    if (held_) return absl::OkStatus();
    if (*before == 0) continue;  // the result of an earlier take_over(): the word is free now
    if (absl::Status status = check_holder(*before); !status.ok()) return status;
    holder = *before;
    const Deadline now = std::chrono::steady_clock::now();
    if (now >= deadline) return not_released(*holder);
    if (now >= next_sign) {
      const internal::ScopedConnectDeadline scope(deadline);
      look_for_life(*before);
      next_sign = deadline_after(heartbeat);
    }
    uint64_t looks = 0;
    static_cast<void>(fabric.wait([&] { return counted && ++looks == kPollsPerAttempt; },
                                  std::min(deadline, deadline_after(pause))));
    pause = std::min(2 * pause, kLongestAttemptPause);
  }
}

absl::StatusOr<bool> DistributedLock::take_over(Deadline deadline) {
  if (held_) return true;
  auto load = [&] {
    const internal::ScopedConnectDeadline scope(deadline);
    return memory_.load(word_);
  }();
  auto holder = load.wait(deadline);
  if (absl::IsDeadlineExceeded(holder.status())) return owner_is_late();
  if (!holder.ok()) return holder.status();
  if (*holder == 0) return false;
  if (!absl::IsUnavailable(check_holder(*holder))) return false;
  auto before = attempt(*holder, self_, deadline);
  if (change_ && absl::IsDeadlineExceeded(before.status())) return owner_is_late();
  if (!before.ok()) return before.status();
  return held_;
}

absl::Status DistributedLock::release(Deadline deadline) {
  if (!held_) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "release() of a distributed lock that is not held");
  }
  auto before = attempt(self_, 0, deadline);
  if (change_ && absl::IsDeadlineExceeded(before.status())) return owner_is_late();
  if (!before.ok()) return before.status();
  if (!std::exchange(held_, false)) return absl::OkStatus();
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                    "a distributed lock was taken from its holder",
                    "use its word for nothing else");
}

}  // namespace cariama
