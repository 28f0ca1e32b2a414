// Buffers that the user owns and has not registered, as arguments of call_buffer.
//
//   std::vector<std::byte> data = ...;
//   // The destination READs the buffer:
//   call_buffer<Sync, RemoteNotify>(fabric, thread, function, std::span(data), &run);
//   // This process WRITEs the buffer to their_memory:
//   call_buffer(fabric, thread, function, std::span(data), their_memory);
//
// Short buffers are copied into registered memory first ("bounced": up to
// FabricOptions::bounce_bytes). Longer buffers are registered until the transfer has ended, through
// FabricOptions::registrar (buffer_registrar.h). A call within one process does neither.
#ifndef CARIAMA_DSFABRIC_USER_BUFFER_H_
#define CARIAMA_DSFABRIC_USER_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/buffer_registrar.h"
#include "dsfabric/export.h"
#include "dsfabric/fabric.h"
#include "dtutils/memory.h"
#include "dtutils/synchronizer.h"

namespace cariama::internal {

// A user's buffer, bounced or registered so that process `rank` can READ it. The destructor ends
// the registration or frees the copy; any thread may run it.
class CARIAMA_DSFABRIC_EXPORT LentBuffer {
 public:
  // Errors: RESOURCE_EXHAUSTED (no memory for the copy; the memlock limit), those of the registrar
  // and of making a connection.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LentBuffer>> make(
      Fabric& fabric, uint32_t rank, std::span<const std::byte> buffer);
  ~LentBuffer();
  LentBuffer(const LentBuffer&) = delete;
  LentBuffer& operator=(const LentBuffer&) = delete;

  // Registered memory that holds the whole buffer.
  [[nodiscard]] RDMAMemory& memory() { return memory_; }
  [[nodiscard]] bool bounced() const { return bounced_; }

 private:
  explicit LentBuffer(Fabric& fabric) : fabric_(fabric) {}

  Fabric& fabric_;
  bool bounced_ = false;
  std::unique_ptr<RegisteredRange> range_;
  RDMAMemory memory_;
};

// Writes the buffer to the start of `target`, memory of process `rank`, and blocks until the WRITE
// has completed. Afterwards the buffer may be reused, and calls that are sent later find the bytes
// in place. Runs no calls. Errors: INVALID_ARGUMENT (longer than the target), those of
// LentBuffer::make, UNAVAILABLE.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status write_user_buffer(
    Fabric& fabric, uint32_t rank, std::span<const std::byte> buffer,
    const RemoteMemoryLocator& target);

// Returns the handle for the NotifyTarget of a call that READs `lent`. Keeps `lent` until process
// `rank` has answered or failed; then destroys it and counts `done` down, if given.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT uint64_t lend_until_answered(Fabric& fabric, uint32_t rank,
                                                                   std::unique_ptr<LentBuffer> lent,
                                                                   Synchronizer* done);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_USER_BUFFER_H_
