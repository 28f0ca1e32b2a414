#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "dsfabric/internal/fabric_core.h"
#include "dsfabric/serializer.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

// Between two rounds of counting: short at first, since most jobs are quiet when they end.
constexpr std::chrono::microseconds kFirstPause{100};
constexpr std::chrono::microseconds kLongestPause{5000};
// How long the search for those who did not come may take, each and in all.
constexpr std::chrono::milliseconds kSearch{50};
constexpr size_t kMostNames = 8;

template <typename T>
absl::Status put_saved(Bootstrap& bootstrap, const std::string& key, const T& value) {
  std::string bytes;
  save_value(bytes, value);
  return bootstrap.put(key, bytes);
}

template <typename T>
absl::StatusOr<T> get_saved(Bootstrap& bootstrap, uint32_t rank, const std::string& key,
                            Deadline deadline) {
  auto bytes = bootstrap.get(static_cast<int>(rank), key, deadline);
  if (!bytes.ok()) return bytes.status();
  try {
    auto in = std::as_bytes(std::span(*bytes));
    return load_value<T>(in);
  } catch (const std::exception& error) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                      "rank " + std::to_string(rank) + " came to the end in another way",
                      "start the same executable in every process");
  }
}

}  // namespace

Presence FabricCore::presence() const {
  Presence mine;
  for (const auto& peer : peers_) {
    // What was on its way to or from the dead is over in any case.
    if (peer->state.load(std::memory_order_acquire) == PeerState::kDead) {
      mine.lost.push_back(peer->rank);
      continue;
    }
    CallBringer* const bringer = bringer_.load(std::memory_order_acquire);
    if (bringer != nullptr) mine.over += bringer->over(peer->rank);
    mine.over += peer->over.load(std::memory_order_seq_cst);
    mine.begun += peer->begun.load(std::memory_order_seq_cst);
    if (bringer != nullptr) mine.begun += bringer->begun(peer->rank);
  }
  mine.lost_before = end_lost_;
  return mine;
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

// Calls the roll of all that the job has not been left without before: each puts what it says under
// `key`, the lowest that lives gathers and puts what follows. What a dead one put before counts for
// all, what it did not put counts for nobody, so that all get the same result.
absl::StatusOr<RollCall> FabricCore::call_roll_of_job(const std::string& key, const Presence& mine,
                                                      Deadline deadline) {
  if (absl::Status put = put_saved(*bootstrap_, key, mine); !put.ok()) return put;
  const auto has_ended = [](const absl::Status& status) {
    return absl::IsUnavailable(status) && error_scope(status) == ErrorScope::kPeer;
  };
  const auto was_left = [&](uint32_t rank) {
    const auto& without = end_result_.without;
    return std::binary_search(without.begin(), without.end(), rank);
  };
  const std::string result_key = key + "/sum";
  for (uint32_t first = 0; first < rank_; ++first) {
    if (was_left(first)) continue;
    auto result = get_saved<RollCall>(*bootstrap_, first, result_key, deadline);
    if (result.ok()) return result;
    if (absl::IsDeadlineExceeded(result.status())) return somebody_is_missing(key);
    if (!has_ended(result.status())) return result.status();
  }
  std::vector<std::optional<Presence>> said(size_);
  said[rank_] = mine;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || was_left(rank)) continue;
    auto theirs = get_saved<Presence>(*bootstrap_, rank, key, deadline);
    if (theirs.ok()) {
      said[rank] = *std::move(theirs);
    } else if (absl::IsDeadlineExceeded(theirs.status())) {
      return somebody_is_missing(key);
    } else if (!has_ended(theirs.status())) {
      return theirs.status();
    }
  }
  RollCall result = call_roll(said);
  if (absl::Status put = put_saved(*bootstrap_, result_key, result); !put.ok()) return put;
  return result;
}

// Takes what a round said about who is lost: all hold the same for dead afterwards, also who never
// spoke with them.
absl::Status FabricCore::go_on_without(const std::vector<uint32_t>& ranks) {
  for (const uint32_t rank : ranks) {
    if (rank == rank_) {
      return make_error(absl::StatusCode::kUnavailable, ErrorScope::kLink,
                        "the job ends without this process, which has lost the connection to a "
                        "process of a lower rank");
    }
    fail_peer(*peers_[rank], make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                                        label(rank) + " has ended, or was lost by others, before "
                                                      "the job ended"));
  }
  return absl::OkStatus();
}

// Everybody comes, then calls may still cause calls. Rounds of counting, until two in a row find
// that as many calls are over as were begun, and the same number (Mattern's four counters: each
// round begins after the one before has ended; counts only grow; at no time are more over than
// begun. So at the moment between the two rounds nothing was under way, and only calls cause calls
// now). A round in which not everybody held the same processes for dead makes them do so.
absl::Status FabricCore::agree_on_the_end(Deadline deadline) {
  std::chrono::microseconds pause = kFirstPause;
  while (true) {
    Presence mine = presence();
    auto result = call_roll_of_job("end/" + std::to_string(end_round_), mine, deadline);
    if (!result.ok()) return result.status();
    ++end_round_;
    end_lost_ = std::move(mine.lost);
    const bool as_before = *result == end_result_;
    end_result_ = *std::move(result);
    if (absl::Status stay = go_on_without(end_result_.without); !stay.ok()) return stay;
    if (end_result_.agreed && end_result_.begun == end_result_.over && as_before) break;
    if (std::chrono::steady_clock::now() >= deadline) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kProcess,
                        std::to_string(end_result_.begun - end_result_.over) +
                            " calls of the job were not run in time",
                        "let every thread run its calls until finalize()");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  finalized_.store(true, std::memory_order_seq_cst);
  leaving_.store(true, std::memory_order_seq_cst);
  // Nobody goes before all know that going is no failure.
  return call_roll_of_job("left", {}, deadline).status();
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
