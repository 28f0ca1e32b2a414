#include "tasks/paper/kinds.h"

#include "dtutils/error.h"
#include "tasks/internal/steal_timer.h"
#include "tasks/paper/joins.h"

namespace cariama::tasks {
namespace {

template <typename Derived>
using DefaultScheduler = Scheduler<Derived, Worker>;

absl::Status check_scheme(const TaskOptions& options) {
  if (options.scheme == StackScheme::kUni) return absl::OkStatus();
  if (options.deque != DequeKind::kSplit) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "TaskOptions::scheme is for DequeKind::kSplit only, unless it is kUni");
  }
  if (options.scheme == StackScheme::kIso &&
      (options.iso_stack_bytes % kStackPage != 0 || options.iso_stack_bytes < 2 * kStackPage ||
       options.iso_stack_bytes > options.stack_bytes)) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "TaskOptions::iso_stack_bytes is a number of whole pages, at least two, and "
                      "at most stack_bytes");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkerKind> worker_kind(const TaskOptions& options) {
  const absl::Status status = check_scheme(options);
  if (!status.ok()) return status;
  if (options.scheme == StackScheme::kCrude) return crude_kind(options.join);
  if (options.scheme == StackScheme::kIso) return iso_kind(options.join);
  if (options.deque == DequeKind::kThe) return the_deque_kind(options.join);
  if (options.deque == DequeKind::kPrivate) return private_deque_kind(options.join);
  if (options.join == JoinPolicy::kWaitQueue) {
    return WorkerKind{uni_address_memory, create_worker<WaitQueue<DefaultScheduler>>};
  }
  return kDefaultWorker;
}

}  // namespace cariama::tasks
