// Objects in registered memory, which other processes modify by RDMA.
//
// RemoteObject<Synchronizer> is a Synchronizer that each call counts down by one RDMA WRITE of 8
// bytes instead of a call (Seriema §3.1, appendix):
//
//   auto run = RemoteObject<Synchronizer>::create(fabric, 2);
//   call<RemoteNotify>(fabric, 1, [] { ... }, *run);
//   call<RemoteNotify>(fabric, 2, [] { ... }, *run);
//   absl::Status status = run->wait(deadline);
//
// A plain WRITE does not wake a sleeping thread, so wait() polls: use it for short waits. To sleep
// while waiting, use a plain Synchronizer, which a send-based call notifies.
#ifndef CARIAMA_DSFABRIC_REMOTE_OBJECT_H_
#define CARIAMA_DSFABRIC_REMOTE_OBJECT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dtutils/synchronizer.h"
#include "dtutils/wait.h"

namespace cariama {

namespace internal {
class RemoteObjectAccess;
}  // namespace internal

template <typename T>
class RemoteObject;

// Thread-compatible: one thread at a time may call or wait. Movable. Must outlive its calls, and
// must be destroyed before its fabric. Takes 8 bytes of registered memory per operation.
template <>
class CARIAMA_DSFABRIC_EXPORT RemoteObject<Synchronizer> {
 public:
  // Makes an object for `operations` calls. Errors: INVALID_ARGUMENT (no operation),
  // RESOURCE_EXHAUSTED.
  [[nodiscard]] static absl::StatusOr<RemoteObject> create(Fabric& fabric, uint32_t operations = 1);
  RemoteObject(RemoteObject&&) noexcept;
  RemoteObject& operator=(RemoteObject&&) noexcept;
  ~RemoteObject();

  // Returns the number of operations not yet counted down, including those whose call has not been
  // made yet. Acquire.
  [[nodiscard]] uint32_t operations_left() const;
  [[nodiscard]] bool done() const { return operations_left() == 0; }
  // Returns OK, or the reason why one of the ended operations failed: INTERNAL (the call threw; the
  // word has no room for the text, which the process that ran the call has printed), UNIMPLEMENTED
  // (the destination rejected the call: it does not know the function, or the arguments are
  // malformed), UNAVAILABLE (the process is dead), the error of a channel that lost the call.
  [[nodiscard]] absl::Status status() const;
  // Polls until no operation is left, and runs incoming calls meanwhile. Returns DEADLINE_EXCEEDED
  // if the deadline comes first.
  [[nodiscard]] absl::Status wait(Deadline deadline);
  // The paper's name for wait(kForever). status() returns the result.
  void spin_nonzero_operations_left() { static_cast<void>(wait(kForever)); }
  // Resets a finished object for the same number of operations.
  void reset();

 private:
  friend class internal::RemoteObjectAccess;

  // Called for each call. Reserves the next operation for a call to `rank`, and returns the place
  // to which the destination writes the end of the call. Error: FAILED_PRECONDITION (more calls
  // than operations).
  [[nodiscard]] absl::StatusOr<NotifyTarget> expect(Rank rank);
  // Returns the handle of the pending call that ends the operation of the last expect() if its call
  // cannot run.
  [[nodiscard]] uint64_t last_pending() const;
  // Cancels the last expect(). Returns false if the peer's failure has already counted the
  // operation down.
  [[nodiscard]] bool forget();

  struct State;
  explicit RemoteObject(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

namespace internal {

// Gives the calls the operations of a RemoteObject.
class RemoteObjectAccess {
 public:
  [[nodiscard]] static absl::StatusOr<NotifyTarget> expect(RemoteObject<Synchronizer>& object,
                                                           Rank rank) {
    return object.expect(rank);
  }
  [[nodiscard]] static uint64_t last_pending(const RemoteObject<Synchronizer>& object) {
    return object.last_pending();
  }
  [[nodiscard]] static bool forget(RemoteObject<Synchronizer>& object) { return object.forget(); }
};

}  // namespace internal
}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_REMOTE_OBJECT_H_
