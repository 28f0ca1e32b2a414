// The greedy join (join_record.h), over one-sided operations: what the scheduler and the simulation
// join with. Who has the record in its own memory looks at it directly.
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
#include "tasks/internal/remote_access.h"
#include "tasks/join_record.h"

namespace cariama::tasks {

// Memory of the worker that parts of records are read to.
struct JoinCopy {
  uint64_t arrivals;
  Outcome outcome;
  Suspended waiter;
};

class JoinProtocol {
 public:
  // Both are kept.
  JoinProtocol(RemoteAccess& access, JoinCopy& copy) : access_(access), copy_(copy) {}

  // The outcome of the record's child, if it has ended. One round trip.
  [[nodiscard]] absl::StatusOr<std::optional<Outcome>> look(Reference reference) {
    const JoinRecord& record = record_of(reference);
    if (reference.rank() == access_.rank()) {
      if (record.arrivals.load(std::memory_order_acquire) == 0) return std::optional<Outcome>();
      return std::optional<Outcome>(record.outcome);
    }
    const std::array<ReadPiece, 2> pieces{
        ReadPiece{address_of(&record.arrivals), &copy_.arrivals, sizeof copy_.arrivals},
        ReadPiece{address_of(&record.outcome), &copy_.outcome, sizeof copy_.outcome}};
    const absl::Status status = access_.read(reference.rank(), pieces);
    if (!status.ok()) return status;
    if (copy_.arrivals == 0) return std::optional<Outcome>();
    return std::optional<Outcome>(copy_.outcome);
  }

  // The child has ended. Returns who waited for it (frames 0: nobody), whom the caller continues.
  [[nodiscard]] absl::StatusOr<Suspended> deliver(Reference reference, const Outcome& outcome) {
    JoinRecord& record = record_of(reference);
    const int owner = reference.rank();
    const size_t bytes =
        offsetof(Outcome, value) + (outcome.kind == OutcomeKind::kValue ? outcome.bytes : 0);
    absl::Status status;
    if (owner == access_.rank()) {
      std::memcpy(&record.outcome, &outcome, bytes);
    } else {
      status = access_.write(owner, address_of(&record.outcome), &outcome, bytes);
      if (!status.ok()) return status;
    }
    const absl::StatusOr<uint64_t> arrived =
        access_.fetch_add(owner, address_of(&record.arrivals), 1);
    if (!arrived.ok()) return arrived.status();
    if (*arrived == 0) return Suspended{};
    if (owner == access_.rank()) return record.waiter;
    status = access_.read(owner, address_of(&record.waiter), &copy_.waiter, sizeof copy_.waiter);
    if (!status.ok()) return status;
    return copy_.waiter;
  }

  // The joiner has copied its frames out. True: it waits, and whoever ends the child continues it.
  // False: the child has ended since look(), and the joiner goes on itself.
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
  static JoinRecord& record_of(Reference reference) {
    return *reinterpret_cast<JoinRecord*>(reference.address());
  }
  static uint64_t address_of(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

  RemoteAccess& access_;
  JoinCopy& copy_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_JOIN_PROTOCOL_H_
