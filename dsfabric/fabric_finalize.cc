#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "dsfabric/internal/fabric_core.h"
#include "dtutils/error.h"
#include "dtutils/exchange_connect.h"

namespace cariama::internal {
namespace {

// Between two rounds of counting: short at first, since most jobs are quiet when they end.
constexpr std::chrono::microseconds kFirstPause{100};
constexpr std::chrono::microseconds kLongestPause{5000};
// How long the search for those who did not come may take, each and in all.
constexpr std::chrono::milliseconds kSearch{50};
constexpr size_t kMostNames = 8;

}  // namespace

FabricCore::Tally FabricCore::tally() const {
  Tally tally;
  for (const auto& peer : peers_) {
    // What was on its way to or from the dead is over in any case.
    if (peer->state.load(std::memory_order_acquire) == PeerState::kDead) {
      ++tally.known_dead;
      continue;
    }
    CallBringer* const bringer = bringer_.load(std::memory_order_acquire);
    if (bringer != nullptr) tally.over += bringer->over(peer->rank);
    tally.over += peer->over.load(std::memory_order_seq_cst);
    tally.begun += peer->begun.load(std::memory_order_seq_cst);
    if (bringer != nullptr) tally.begun += bringer->begun(peer->rank);
  }
  return tally;
}

absl::Status FabricCore::somebody_is_missing(const std::string& key) {
  std::string names;
  size_t count = 0;
  for (uint32_t rank = 0; rank < size_ && count < kMostNames; ++rank) {
    if (rank == rank_) continue;
    auto put = bootstrap_->get(static_cast<int>(rank), key, deadline_after(kSearch));
    if (!absl::IsDeadlineExceeded(put.status())) continue;
    names += (count++ == 0 ? "" : ", ") + label(rank);
  }
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    count == 0 ? "the others did not finish finalize() in time"
                               : names + " did not come to finalize() in time",
                    "every process of the job has to call it");
}

// Sums up what every process that lives puts under `key`: the lowest of them gathers. What a dead
// one put before counts for all, what it did not put counts for nobody, so that all get the same
// sum.
absl::StatusOr<FabricCore::Tally> FabricCore::sum_over_living(const std::string& key,
                                                              const Tally& mine,
                                                              Deadline deadline) {
  if (absl::Status put = put_value(*bootstrap_, key, mine); !put.ok()) return put;
  const auto is_dead = [&](uint32_t rank, const absl::Status& status) {
    if (!absl::IsUnavailable(status) || error_scope(status) != ErrorScope::kPeer) return false;
    fail_peer(*peers_[rank], status);
    return true;
  };
  const std::string sum_key = key + "/sum";
  for (uint32_t first = 0; first < rank_; ++first) {
    auto sum = get_value<Tally>(*bootstrap_, static_cast<int>(first), sum_key, deadline);
    if (sum.ok()) return sum;
    if (absl::IsDeadlineExceeded(sum.status())) return somebody_is_missing(key);
    if (!is_dead(first, sum.status())) return sum.status();
  }
  Tally sum = mine;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    auto theirs = get_value<Tally>(*bootstrap_, static_cast<int>(rank), key, deadline);
    if (absl::IsDeadlineExceeded(theirs.status())) return somebody_is_missing(key);
    if (!theirs.ok()) {
      if (!is_dead(rank, theirs.status())) return theirs.status();
      continue;
    }
    sum.begun += theirs->begun;
    sum.over += theirs->over;
    sum.known_dead += theirs->known_dead;
    sum.processes += theirs->processes;
  }
  if (absl::Status put = put_value(*bootstrap_, sum_key, sum); !put.ok()) return put;
  return sum;
}

// Everybody comes, then calls may still cause calls. Rounds of counting, until two in a row find
// that as many calls are over as were begun, and the same number (Mattern's four counters: each
// round begins after the one before has ended; counts only grow; at no time are more over than
// begun. So at the moment between the two rounds nothing was under way, and only calls cause calls
// now).
absl::Status FabricCore::agree_on_the_end(Deadline deadline) {
  std::chrono::microseconds pause = kFirstPause;
  while (true) {
    auto sum = sum_over_living("end/" + std::to_string(end_round_), tally(), deadline);
    if (!sum.ok()) return sum.status();
    ++end_round_;
    // Everybody knows who is dead, so that all left out the same.
    const bool agreed = sum->known_dead == sum->processes * (size_ - sum->processes);
    if (agreed && sum->begun == sum->over && *sum == end_before_) break;
    end_before_ = *sum;
    if (std::chrono::steady_clock::now() >= deadline) {
      return make_error(
          absl::StatusCode::kDeadlineExceeded, ErrorScope::kProcess,
          std::to_string(sum->begun - sum->over) + " calls of the job were not run in time",
          "let every thread run its calls until finalize()");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  finalized_.store(true, std::memory_order_seq_cst);
  leaving_.store(true, std::memory_order_seq_cst);
  // Nobody goes before all know that going is no failure.
  return sum_over_living("left", {}, deadline).status();
}

absl::Status FabricCore::finalize(Deadline deadline) {
  if (running() != nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "finalize() was called inside of a call");
  }
  if (finalizing_.exchange(true, std::memory_order_seq_cst)) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "finalize() was called already");
  }
  // Meanwhile this thread runs its calls, and those of threads that have left.
  absl::Status ended;
  std::atomic<bool> over{false};
  std::thread agreeing([&] {
    ended = agree_on_the_end(deadline);
    over.store(true, std::memory_order_release);
    news();
  });
  static_cast<void>(wait(
      [&] {
        for (uint32_t i = 0; i < threads_; ++i) {
          if (!workers_[i]->taken.load(std::memory_order_acquire)) process_calls(i, SIZE_MAX);
        }
        return over.load(std::memory_order_acquire);
      },
      kForever));
  agreeing.join();
  if (!ended.ok()) {
    finalizing_.store(false, std::memory_order_seq_cst);
    return ended;
  }
  if (CallBringer* const bringer = bringer_.load(std::memory_order_acquire); bringer != nullptr) {
    bringer->finalized();
  }
  broker_.reset();
  stop_threads();
  return bootstrap_->finalize(deadline);
}

}  // namespace cariama::internal
