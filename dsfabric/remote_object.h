// Objects in registered memory, which other processes change by RDMA.
//
// RemoteObject<Synchronizer> is a Synchronizer whose calls are counted down by one RDMA WRITE of 8
// bytes each, and no call (Seriema §3.1, appendix):
//
//   auto run = RemoteObject<Synchronizer>::create(fabric, 2);
//   call<RemoteNotify>(fabric, 1, [] { ... }, *run);
//   call<RemoteNotify>(fabric, 2, [] { ... }, *run);
//   absl::Status status = run->wait(deadline);
//
// A plain WRITE wakes nobody, so that waiting for it polls: it is for waits that are short. Who
// sleeps meanwhile uses a plain Synchronizer, whose notification is a call.
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

template <typename T>
class RemoteObject;

// Thread-compatible: the calls and the waits are one thread's at a time. Movable. Must live until
// its calls have ended, and die before its fabric. 8 bytes of registered memory per operation.
template <>
class CARIAMA_DSFABRIC_EXPORT RemoteObject<Synchronizer> {
 public:
  // For `operations` calls. Errors: INVALID_ARGUMENT (no operation), RESOURCE_EXHAUSTED.
  [[nodiscard]] static absl::StatusOr<RemoteObject> create(Fabric& fabric, uint32_t operations = 1);
  RemoteObject(RemoteObject&&) noexcept;
  RemoteObject& operator=(RemoteObject&&) noexcept;
  ~RemoteObject();

  // Operations not counted down yet, also those whose call was not made yet. Acquire.
  [[nodiscard]] uint32_t operations_left() const;
  [[nodiscard]] bool done() const { return operations_left() == 0; }
  // OK, or why one of those that ended did not succeed: INTERNAL (the call threw; the word has no
  // room for the text, which the process where it ran has printed), UNAVAILABLE (the process is
  // dead).
  [[nodiscard]] absl::Status status() const;
  // Waits until no operation is left, running incoming calls meanwhile; polls. DEADLINE_EXCEEDED if
  // the deadline comes first.
  [[nodiscard]] absl::Status wait(Deadline deadline = kForever);
  // The paper's name for wait() without a deadline. The result is in status().
  void spin_nonzero_operations_left() { static_cast<void>(wait()); }
  // Makes a finished object count anew.
  void reset();

  // For calls. Takes the next operation, of a call to `rank`: where its end is to be written.
  // Errors: RESOURCE_EXHAUSTED (more calls than operations).
  [[nodiscard]] absl::StatusOr<NotifyTarget> expect(uint32_t rank);
  // Takes the last expect() back. False: its peer has failed meanwhile, which has counted it down.
  [[nodiscard]] bool forget();
  // Counts the operation of the last expect() down, as done.
  void transmitted();

 private:
  struct State;
  explicit RemoteObject(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_REMOTE_OBJECT_H_
