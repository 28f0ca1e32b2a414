// The failure of a worker during a run, as its peers see it.
//
// A worker notices the failure of a peer when an operation on the peer's memory fails. It then
// writes a FailureReport to the word WorkerArea::failed of itself and of every other worker, and
// leaves the run. The others leave when they read the word: in a fork or poll(), for which the
// reporting worker also writes a steal request, or in a search for work, from which it wakes them.
//
// The end of TaskOptions::run_timeout is such a failure, too: the workers that have tasks then are
// late. The first worker that is idle or waits when the time has passed reports it.
//
// A worker that leaves the run abandons its tasks, wherever they are: no task continues, and no
// destructor of their frames runs. In a task it switches to the scheduler's stack, on which run()
// has called the scheduler; there it throws RunFailed, which unwinds only frames of the scheduler.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"
#include "tasks/internal/sanitizer.h"
#include "tasks/internal/worker.h"

namespace cariama::tasks {
namespace {

// The contents of WorkerArea::failed.
struct FailureReport {
  int failed;    // the rank that has failed, or the first one that is late (-1: none has tasks)
  int reporter;  // the rank that has noticed it
  bool late;     // the time of the run has passed

  [[nodiscard]] uint64_t encode() const {
    return (late ? kLate : 0) | static_cast<uint64_t>(failed + 1) << 32 |
           static_cast<uint64_t>(reporter + 1);
  }
  [[nodiscard]] static FailureReport decode(uint64_t word) {
    return {static_cast<int>((word & ~kLate) >> 32) - 1, static_cast<int>(word & 0xffffffff) - 1,
            (word & kLate) != 0};
  }

 private:
  static constexpr uint64_t kLate = uint64_t{1} << 63;
};

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

std::string names_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + rank_name(rank);
  return text;
}

}  // namespace

void end_job(const absl::Status& status) {
  std::string text = "cariama tasks: ";
  if (this_worker != nullptr) text += rank_name(this_worker->rank()) + ": ";
  text += std::string(status.message());
  // describe_loss() reads tasks that the worker's thread changes, so only that thread calls it.
  if (this_worker != nullptr) {
    if (this_worker->is_this_thread()) text += "; " + this_worker->describe_loss();
    text += ": the job ends";
  }
  std::fprintf(stderr, "%s\n", text.c_str());
  std::fflush(stderr);
  _exit(70);  // EX_SOFTWARE. Runs no destructors, because this may be the stack of a task.
}

void end_run(absl::Status status) {
  if (this_worker == nullptr || !this_worker->is_this_thread()) end_job(status);
  {
    // The destructor of the parameter does not run.
    const absl::Status own = std::move(status);
    this_worker->note_failure(own);
  }
  this_worker->leave_run();
}

absl::Status Worker::failure() {
  const uint64_t word = area_.failed.load(std::memory_order_acquire);
  if (failure_.ok() && word != 0) {
    const FailureReport report = FailureReport::decode(word);
    const std::string cause = rank_name(report.reporter) + " has reported it";
    if (report.late) {
      fail_late(cause + (report.failed < 0 ? "" : ": late is " + rank_name(report.failed)));
    } else {
      fail_with(report.failed, cause);
    }
  }
  return failure_;
}

void Worker::fail_with(int rank, const std::string& cause) {
  set_failure(absl::StatusCode::kUnavailable,
              rank_name(rank) + " has failed during a run of tasks: " + cause,
              cariama::internal::peer_remedy(cariama::internal::PeerRemedy::kEnded));
}

void Worker::fail_late(const std::string& cause) {
  set_failure(absl::StatusCode::kDeadlineExceeded,
              "tasks of the run have not ended within TaskOptions::run_timeout: " + cause,
              "raise TaskOptions::run_timeout if the tasks need more time; if the process of a "
              "worker is stopped, continue it with kill -CONT");
}

void Worker::set_failure(absl::StatusCode code, const std::string& what, std::string_view remedy) {
  if (options_.on_failure == FailurePolicy::kAbort)
    end_job(make_error(code, ErrorScope::kPeer, what, remedy));
  failure_ = make_error(code, ErrorScope::kPeer, what + "; " + describe_loss(),
                        std::string(remedy) +
                            "; start the job again, or continue without this TaskRuntime, each "
                            "later run() of which returns this error");
}

void Worker::note_failure(const absl::Status& status) {
  // Further errors follow from a failure: a worker that has left the run may have destroyed its
  // runtime.
  if (!failure().ok()) return;
  const ErrorScope scope = error_scope(status);
  const int failed = access_.failed_peer();
  const bool late = absl::IsDeadlineExceeded(status);
  if (!(absl::IsUnavailable(status) || late) || failed < 0 ||
      (scope != ErrorScope::kPeer && scope != ErrorScope::kLink)) {
    end_job(status);
  }
  if (late) {
    fail_late(std::string(status.message()));
  } else {
    fail_with(failed, std::string(status.message()));
  }
  report_failure(FailureReport{failed, rank(), late}.encode(), late ? -1 : failed);
}

void Worker::note_lateness() {
  if (!failure().ok()) return;
  const std::vector<int> late = workers_with_tasks();
  if (!failure().ok()) return;  // a peer could not be read
  fail_late(std::to_string(options_.run_timeout.count()) + " ms" +
            (late.empty() ? "; no other worker has tasks: tasks of this one wait for an event that "
                            "has not happened"
                          : "; workers with tasks: " + names_of(late)));
  report_failure(FailureReport{late.empty() ? -1 : late.front(), rank(), true}.encode(), -1);
}

// A worker that takes a task between two others is not late. So a worker counts only if it has a
// task each time.
std::vector<int> Worker::workers_with_tasks() {
  constexpr int kTimes = 5;
  std::vector<int> busy;
  for (int peer = 0; peer < access_.size(); ++peer) {
    if (peer != rank()) busy.push_back(peer);
  }
  for (int time = 0; time < kTimes && !busy.empty(); ++time) {
    if (time != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::vector<int> still;
    for (const int peer : busy) {
      const absl::Status read =
          access_.read(peer, address_of(&area_.idle), &area_.join_copy.arrivals, sizeof(uint64_t));
      if (!read.ok()) {
        note_failure(read);
        return {};
      }
      if (area_.join_copy.arrivals == 0) still.push_back(peer);
    }
    busy = std::move(still);
  }
  return busy;
}

void Worker::report_failure(uint64_t word, int failed) {
  area_.failed.store(word, std::memory_order_release);
  area_.public_part.steal_request.store(kAnyEntryRequest, std::memory_order_relaxed);
  // Ignores errors: such a peer has failed, too.
  for (int peer = 0; peer < access_.size(); ++peer) {
    if (peer == rank() || peer == failed) continue;
    static_cast<void>(access_.write(peer, address_of(&area_.failed), &word, sizeof word));
    static_cast<void>(access_.write(peer, address_of(&area_.public_part.steal_request),
                                    &kAnyEntryRequest, sizeof kAnyEntryRequest));
    ring(peer);
  }
  // This worker may destroy its runtime next. Writes do not wait for their completion; reads do.
  for (int peer = 0; peer < access_.size(); ++peer) {
    if (peer == rank() || peer == failed) continue;
    static_cast<void>(access_.read(peer, address_of(&area_.failed), &area_.join_copy.arrivals,
                                   sizeof area_.join_copy.arrivals));
  }
}

void Worker::leave_run() {
  static_cast<void>(failure());  // counts the tasks, before they are abandoned
  if (!in_task_) throw RunFailed();
  // The frames of the other layer may hold locks, and operations in flight may refer to them.
  if (in_other_layer_) end_job(failure());
  leaving_.why = Leaving::Why::kRunFailed;
  before_leave(stack_end());
  cariama_leave();
}

}  // namespace cariama::tasks
