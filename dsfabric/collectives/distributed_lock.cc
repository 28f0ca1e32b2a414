#include "dsfabric/distributed_lock.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>

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
  if (expected_in_flight_) static_cast<void>(attempt(0, kForever));
  if (held_) static_cast<void>(release());
}

absl::StatusOr<uint64_t> DistributedLock::attempt(uint64_t expected, Deadline deadline) {
  // This holds for a word in this process too: no other process can release the lock any more.
  const internal::Lifecycle& lifecycle = internal::job_of(memory_.fabric()).lifecycle();
  if (lifecycle.is_closed()) return lifecycle.closed_error();
  // If an earlier attempt is in flight, it counts instead: it may have taken the lock.
  if (!expected_in_flight_) {
    trace_instant("dsfabric", "try to take lock", "rank", word_.rank());
    const internal::ScopedConnectDeadline scope(deadline);
    in_flight_ = memory_.compare_exchange(word_, expected, self_);
    expected_in_flight_ = expected;
  }
  auto before = in_flight_.wait(deadline);
  if (!in_flight_.done()) return before;
  before = in_flight_.wait(kForever);  // done: returns immediately, also if the deadline was first
  if (before.ok() && *before == *expected_in_flight_) {
    held_ = true;
    trace_instant("dsfabric", "lock taken", "rank", word_.rank());
  }
  expected_in_flight_.reset();
  return before;
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

absl::StatusOr<bool> DistributedLock::try_acquire() {
  if (held_) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "a distributed lock is not recursive, and this object holds it");
  }
  auto before = attempt(0, kForever);
  if (!before.ok()) return before.status();
  if (held_) return true;
  if (absl::Status status = check_holder(*before); !status.ok()) return status;
  return false;
}

absl::Status DistributedLock::acquire(Deadline deadline) {
  Fabric& fabric = memory_.fabric();
  if (held_) return try_acquire().status();
  const bool counted = fabric.options().service_threads == 0;
  const auto heartbeat = fabric.options().heartbeat;
  Deadline next_sign = deadline_after(heartbeat);
  std::chrono::microseconds pause = kFirstAttemptPause;
  const auto late = [&](const std::string& what, Rank rank) {
    return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                      "a distributed lock was not " + what + " in time by " + fabric.label(rank),
                      internal::peer_remedy(internal::PeerRemedy::kSilent));
  };
  std::optional<uint64_t> holder;
  while (true) {
    auto before = attempt(0, deadline);
    if (expected_in_flight_ && absl::IsDeadlineExceeded(before.status())) {
      return holder ? late("released", rank_of(*holder))
                    : late("read by the owner of its word", word_.rank());
    }
    if (!before.ok()) return before.status();
    if (held_) return absl::OkStatus();
    if (absl::Status status = check_holder(*before); !status.ok()) return status;
    holder = *before;
    const Deadline now = std::chrono::steady_clock::now();
    if (now >= deadline) return late("released", rank_of(*holder));
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

absl::StatusOr<bool> DistributedLock::take_over() {
  if (held_) return true;
  auto holder = memory_.load(word_).wait(kForever);
  if (!holder.ok()) return holder.status();
  if (*holder == 0) return false;
  if (!absl::IsUnavailable(check_holder(*holder))) return false;
  auto before = attempt(*holder, kForever);
  if (!before.ok()) return before.status();
  return held_;
}

absl::Status DistributedLock::release() {
  if (!held_) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "release() of a distributed lock that is not held");
  }
  trace_instant("dsfabric", "release lock", "rank", word_.rank());
  auto before = memory_.compare_exchange(word_, self_, 0).wait(kForever);
  if (!before.ok()) return before.status();
  held_ = false;
  if (*before == self_) return absl::OkStatus();
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                    "a distributed lock was taken from its holder",
                    "use its word for nothing else");
}

}  // namespace cariama
