// JoinProtocol: the greedy join (join_record.h) by one-sided operations. The scheduler and the
// simulation join with it. A worker reads records in its own memory directly.
#ifndef CARIAMA_TASKS_INTERNAL_JOIN_PROTOCOL_H_
#define CARIAMA_TASKS_INTERNAL_JOIN_PROTOCOL_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tasks/internal/peer_words.h"
#include "tasks/internal/remote_access.h"
#include "tasks/join_record.h"

namespace cariama::tasks {

// Memory of the worker into which it reads parts of records of peers. Worker::await_thief() and
// PrivateScheduler::steal_from() also read a word of a peer into `arrivals`, to notice its death.
struct JoinCopy {
  uint64_t arrivals;
  TaskResult result;
  Suspended waiter;
};

class JoinProtocol {
 public:
  // Keeps references to both arguments. `copy` must be registered memory of this worker. The
  // functions return the errors of `access`, and INTERNAL if the words of a record are malformed.
  JoinProtocol(RemoteAccess& access, JoinCopy& copy) : access_(access), copy_(copy) {}

  // Returns the result of the record's child if the child has ended. Blocks for one round trip if
  // the record is in another worker. Requires: the caller is the only joiner of the record; after
  // wait() has returned true, the caller is the task that deliver() has returned. Otherwise the
  // arrival of a joiner would count as that of the child.
  [[nodiscard]] absl::StatusOr<std::optional<TaskResult>> poll_result(Reference reference) {
    const JoinRecord& record = record_of(reference);
    if (reference.rank() == access_.rank()) {
      if (record.arrivals.load(std::memory_order_acquire) == 0) return std::optional<TaskResult>();
      return checked(record.result, reference);
    }
    const std::array<ReadPiece, 2> pieces{
        ReadPiece{address_of(&record.arrivals), &copy_.arrivals, sizeof copy_.arrivals},
        ReadPiece{address_of(&record.result), &copy_.result, sizeof copy_.result}};
    const absl::Status status = access_.read(reference.rank(), pieces);
    if (!status.ok()) return status;
    if (copy_.arrivals == 0) return std::optional<TaskResult>();
    return checked(copy_.result, reference);
  }

  // Called once, by the worker in which the child ends: writes its result to the record. Returns
  // the task that waits for it, which the caller must continue (frames == 0: no task waits). Blocks
  // for one round trip, or for two if a task waits; not for a record of this worker if the device
  // executes atomics.
  [[nodiscard]] absl::StatusOr<Suspended> deliver(Reference reference, const TaskResult& result) {
    JoinRecord& record = record_of(reference);
    const int owner = reference.rank();
    const size_t bytes =
        offsetof(TaskResult, value) + (result.kind == TaskResultKind::kValue ? result.bytes : 0);
    absl::Status status;
    if (owner == access_.rank()) {
      std::memcpy(&record.result, &result, bytes);
    } else {
      status = access_.write(owner, address_of(&record.result), &result, bytes);
      if (!status.ok()) return status;
    }
    const absl::StatusOr<uint64_t> arrived =
        access_.fetch_add(owner, address_of(&record.arrivals), 1);
    if (!arrived.ok()) return arrived.status();
    if (*arrived == 0) return Suspended{};
    if (owner == access_.rank()) return checked(record.waiter, reference);
    status = access_.read(owner, address_of(&record.waiter), &copy_.waiter, sizeof copy_.waiter);
    if (!status.ok()) return status;
    return checked(copy_.waiter, reference);
  }

  // Called at most once per record, when the frames of the joiner have been copied out: writes the
  // joiner to the record. Returns true if the joiner now waits; the worker that ends the child
  // continues it. Returns false if the child has ended since poll_result(): the caller must
  // continue the joiner. Blocks for one round trip.
  [[nodiscard]] absl::StatusOr<bool> wait(Reference reference, const Suspended& joiner) {
    JoinRecord& record = record_of(reference);
    const absl::Status status =
        access_.write(reference.rank(), address_of(&record.waiter), &joiner, sizeof joiner);
    if (!status.ok()) return status;
    const absl::StatusOr<uint64_t> arrived =
        access_.fetch_add(reference.rank(), address_of(&record.arrivals), 1);
    if (!arrived.ok()) return arrived.status();
    return *arrived == 0;
  }

 private:
  // Returns the words of the record if a worker can have written them, else INTERNAL.
  [[nodiscard]] absl::StatusOr<std::optional<TaskResult>> checked(const TaskResult& result,
                                                                  Reference record) const {
    if (is_possible(result, access_.size())) return std::optional<TaskResult>(result);
    return malformed_words(record.rank(), "the result in a join record");
  }
  [[nodiscard]] absl::StatusOr<Suspended> checked(const Suspended& waiter, Reference record) const {
    if (is_possible(waiter, access_.size())) return waiter;
    return malformed_words(record.rank(), "the waiting task in a join record");
  }
  static JoinRecord& record_of(Reference reference) {
    return *reinterpret_cast<JoinRecord*>(reference.address());
  }
  static uint64_t address_of(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

  RemoteAccess& access_;
  JoinCopy& copy_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_JOIN_PROTOCOL_H_
