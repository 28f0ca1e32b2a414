#include "dsfabric/fabric/shutdown.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "dsfabric/calls/work_counts.h"
#include "dsfabric/fabric/job_trace.h"
#include "dsfabric/peers/ports.h"
#include "dsfabric/serializer.h"
#include "dtutils/error.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

// The pause between two rounds. Short at first, since most jobs have no calls in flight when they
// end.
constexpr std::chrono::microseconds kFirstRoundPause{100};
constexpr std::chrono::microseconds kLongestRoundPause{5000};
// With FabricOptions::lease: the interval at which a process checks whether the process that it
// waits for is considered failed.
constexpr std::chrono::milliseconds kLeaseLook{50};

template <typename T>
absl::Status put_saved(Bootstrap& bootstrap, const std::string& key, const T& value) {
  std::string bytes;
  save_value(bytes, value);
  return bootstrap.put(key, bytes);
}

template <typename T>
absl::StatusOr<T> get_saved(const FabricJob& job, uint32_t rank, const std::string& key,
                            Deadline deadline) {
  auto bytes = job.bootstrap().get(static_cast<int>(rank), key, deadline);
  if (!bytes.ok()) return bytes.status();
  try {
    return load_participation<T>(std::as_bytes(std::span(*bytes)), job.size());
  } catch (const std::exception& error) {
    return exception_error(
        error, "decoding the report of rank " + std::to_string(rank),
        make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                   "rank " + std::to_string(rank) +
                       " published a report for finalize() that cannot be decoded: " + error.what(),
                   "start the same executable in every process"));
  }
}

absl::Status calls_left_error() {
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kProcess,
                    "calls of the job were not run in time",
                    "flush every aggregator, and let every thread run its calls until finalize()");
}

}  // namespace

ParticipationReport Shutdown::report() const {
  WorkCounts sum;
  std::vector<uint32_t> lost;
  for (uint32_t rank = 0; rank < job_.size(); ++rank) {
    // Calls to and from a failed process count as ended in any case: leave them out of the sums.
    if (peers_.is_failed(rank)) {
      lost.push_back(rank);
    } else {
      sum.add_calls(rank, counts_, sources_, nullptr);
    }
  }
  return {sum.begun, sum.ended, std::move(lost), lost_before_};
}

bool Shutdown::was_left(uint32_t rank) const {
  return std::binary_search(result_.without.begin(), result_.without.end(), rank);
}

absl::Status Shutdown::report_missing(const std::string& key, uint32_t awaited) {
  std::string names;
  for (const uint32_t rank : job_.ranks_without(key)) {
    // A stopped process that an earlier round has excluded puts nothing, and delays no other.
    if (!was_left(rank)) names += (names.empty() ? "" : ", ") + job_.label(rank);
  }
  const bool calls_left = result_.begun != result_.ended;
  if (names.empty()) {
    // If calls are left, finalize() of another process may have reached its deadline first.
    if (calls_left) return calls_left_error();
    return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                      job_.label(awaited) + " did not finish finalize() in time",
                      peer_remedy(PeerRemedy::kSilent));
  }
  std::string remedy =
      "call it in every process of the job; if one is stopped, continue it with kill -CONT";
  if (calls_left) remedy += "; flush every aggregator before";
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    names + " did not call finalize() in time", remedy);
}

// Waits until `rank` has put a value under `key`, and returns it. With FabricOptions::lease a
// stopped process neither puts anything nor ends: it counts as ended, UNAVAILABLE (kPeer), once
// this process considers it failed.
template <typename T>
absl::StatusOr<T> Shutdown::wait_for(uint32_t rank, const std::string& key, Deadline deadline) {
  const std::chrono::milliseconds lease = job_.options().lease;
  if (lease.count() == 0) return get_saved<T>(job_, rank, key, deadline);
  // A closed fabric does not detect failures any more. A process that does not leave within its
  // lease is stopped.
  const Deadline end_of_lease =
      job_.lifecycle().is_closed() ? deadline_after(lease) : Deadline::max();
  while (true) {
    // is_lost is read before the store, so that a value counts if it was put before the process was
    // considered failed.
    const bool is_lost = peers_.is_failed(rank) || std::chrono::steady_clock::now() >= end_of_lease;
    const Deadline look = std::min(deadline, deadline_after(kLeaseLook));
    auto put = get_saved<T>(job_, rank, key, look);
    if (!absl::IsDeadlineExceeded(put.status())) return put;
    if (is_lost) return lease_ended(job_.label(rank), lease);
    if (look == deadline) return put;
  }
}

// One participation round of all processes that previous results have not excluded. Each process
// puts its report under `key`. The lowest living rank gets all reports, combines them, and puts the
// result. The contents of the store decide. A report that a process put before it died counts. A
// process that died without putting a report is excluded. So all processes get the same result.
absl::StatusOr<ParticipationResult> Shutdown::run_round(const std::string& key,
                                                        const ParticipationReport& mine,
                                                        Deadline deadline) {
  const TraceScope trace("dsfabric", "finalize: round");
  if (absl::Status put = put_saved(job_.bootstrap(), key, mine); !put.ok()) return put;
  const auto has_ended = [](const absl::Status& status) {
    return absl::IsUnavailable(status) && error_scope(status) == ErrorScope::kPeer;
  };
  const std::string result_key = key + "/sum";
  for (uint32_t first = 0; first < job_.rank(); ++first) {
    if (was_left(first)) continue;
    auto result = wait_for<ParticipationResult>(first, result_key, deadline);
    if (result.ok()) return result;
    if (absl::IsDeadlineExceeded(result.status())) return report_missing(key, first);
    if (!has_ended(result.status())) return result.status();
  }
  std::vector<std::optional<ParticipationReport>> said(job_.size());
  said[job_.rank()] = mine;
  for (uint32_t rank = 0; rank < job_.size(); ++rank) {
    if (rank == job_.rank() || was_left(rank)) continue;
    auto theirs = wait_for<ParticipationReport>(rank, key, deadline);
    if (theirs.ok()) {
      said[rank] = *std::move(theirs);
    } else if (absl::IsDeadlineExceeded(theirs.status())) {
      return report_missing(key, rank);
    } else if (!has_ended(theirs.status())) {
      return theirs.status();
    }
  }
  ParticipationResult result = combine_reports(said);
  if (absl::Status put = put_saved(job_.bootstrap(), result_key, result); !put.ok()) return put;
  return result;
}

// The error of this process if a round has excluded it.
absl::Status Shutdown::lost_to_lower_ranks() const {
  std::string names;
  size_t count = 0;
  for (uint32_t rank = 0; rank < job_.rank() && count < FabricJob::kMostNamed; ++rank) {
    if (peers_.is_failed(rank)) names += (count++ == 0 ? "" : ", ") + job_.label(rank);
  }
  // A process of a lower rank lost the connection, and this process has not detected it.
  if (count == 0) names = "a process of a lower rank than " + std::to_string(job_.rank());
  return make_error(
      absl::StatusCode::kUnavailable, ErrorScope::kLink,
      "the job ends without this process, because its connection to " + names + " has failed",
      "check the network between the hosts, and look at the output of both processes "
      "for the reason");
}

// Applies a round's result: afterwards every process considers the same processes failed, even if
// it never communicated with them.
absl::Status Shutdown::continue_without(const std::vector<uint32_t>& ranks) {
  for (const uint32_t rank : ranks) {
    if (rank == job_.rank()) {
      return lost_to_lower_ranks();
    }
    peers_.fail(rank, make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                                 job_.label(rank) +
                                     " has ended, or was lost by others, before the job ended",
                                 peer_remedy(PeerRemedy::kEnded)));
  }
  return absl::OkStatus();
}

absl::Status Shutdown::run(Deadline deadline, const std::function<void()>& calls_left) {
  // A second run() continues where the first one reached its deadline. The other processes may be
  // closed as well, so they take part in no other round than the last.
  if (!job_.lifecycle().is_closed()) {
    if (absl::Status ended = await_calls(deadline, calls_left); !ended.ok()) return ended;
    job_.lifecycle().close();
    // A process leaves only after all processes have closed (the round below), since from then on a
    // lost connection is not a failure. Without this call the store would report the end of each
    // process to each other process: P^2 messages.
    static_cast<void>(job_.bootstrap().watch_ends(false));
    // Written before a process leaves, so that the first process of a host that cannot write its
    // part reports the error for the host.
    write_job_trace();
  }
  const TraceScope trace("dsfabric", "finalize: leave");
  return run_round("left", {}, deadline).status();
}

// The rounds are the waves of termination detection (quiescence.h): all processes have entered
// finalize(), so only calls cause calls now. Control calls count here, too. A round in which the
// processes considered different processes failed is not compared; its result makes their sets
// equal.
absl::Status Shutdown::await_calls(Deadline deadline, const std::function<void()>& calls_left) {
  std::chrono::microseconds pause = kFirstRoundPause;
  while (true) {
    ParticipationReport mine = report();
    auto result = run_round("end/" + std::to_string(round_), mine, deadline);
    if (!result.ok()) return result.status();
    ++round_;
    lost_before_ = std::move(mine.lost);
    result_ = *std::move(result);
    if (absl::Status stay = continue_without(result_.without); !stay.ok()) return stay;
    if (!result_.agreed) {
      comparison_.reset();
    } else if (comparison_.ended(result_.begun, result_.ended, number_of(result_.without))) {
      return absl::OkStatus();
    }
    if (result_.begun != result_.ended) calls_left();
    if (std::chrono::steady_clock::now() >= deadline) {
      return calls_left_error();
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestRoundPause);
  }
}

}  // namespace cariama::internal
