// Buffers that the user owns and has not registered, as arguments of call_buffer. Not for users:
// the templates of call_forms.h use it.
//
//   std::vector<std::byte> data = ...;
//   // The destination READs the buffer:
//   call_buffer<Sync, RemoteNotify>(fabric, thread, function, std::span(data), run);
//   // This process WRITEs the buffer to their_memory:
//   call_buffer(fabric, thread, function, std::span(data), their_memory);
//
// Short buffers are copied into registered memory first ("bounced": up to
// FabricOptions::bounce_bytes). Longer buffers are registered through the RegistrationCache of the
// device (FabricOptions::registration; dtutils/registration/user_memory.h). If the policy requires
// it, a buffer that this process WRITEs is registered in pieces. A call within one process neither
// copies nor registers its buffer.
#ifndef CARIAMA_DSFABRIC_USER_BUFFER_H_
#define CARIAMA_DSFABRIC_USER_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dtutils/memory.h"
#include "dtutils/registration/user_memory.h"
#include "dtutils/synchronizer.h"

namespace cariama::internal {

// A user's buffer, bounced or registered so that process `rank` can READ it. The destructor ends
// the use; any thread may run it.
class CARIAMA_DSFABRIC_EXPORT LentBuffer {
 public:
  // `piece`, `frame`: see UserMemory::lend_source(). Errors: those of UserMemory::lend_source() and
  // of making a connection.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LentBuffer>> make(
      Fabric& fabric, Rank rank, std::span<const std::byte> buffer, size_t piece = 0,
      const void* frame = nullptr);

  // Registered memory that holds the whole buffer.
  [[nodiscard]] RDMAMemory& memory() { return lent_ != nullptr ? lent_->memory() : in_place_; }

 private:
  LentBuffer() = default;

  std::unique_ptr<LentMemory> lent_;  // nullptr: the buffer stays within the process
  RDMAMemory in_place_;
};

// Writes the buffer to the start of `target`, memory of process `rank`, and blocks until the WRITE
// has completed. Afterwards the buffer may be reused, and calls that are sent later find the bytes
// in place. Runs no calls. Errors: INVALID_ARGUMENT (longer than the target), those of
// LentBuffer::make, UNAVAILABLE.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status write_user_buffer(
    Fabric& fabric, Rank rank, std::span<const std::byte> buffer,
    const RemoteMemoryLocator& target);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_USER_BUFFER_H_
