// Buffers that the user owns and has not registered, as arguments of call_buffer.
//
//   std::vector<std::byte> data = ...;
//   call_buffer<Sync, RemoteNotify>(fabric, thread, function, std::span(data), &run);  // it READs
//   call_buffer(fabric, thread, function, std::span(data), their_memory);     // written into there
//
// Short ones are copied into registered memory first (bounced: up to FabricOptions::bounce_bytes);
// longer ones are registered for as long as they are needed, through one hook,
// FabricOptions::registrar (buffer_registrar.h). Within a process neither happens.
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

// A buffer of the user's for as long as process `rank` needs it: bounced or registered. Ends that
// when it is destroyed, by any thread.
class CARIAMA_DSFABRIC_EXPORT LentBuffer {
 public:
  // Errors: RESOURCE_EXHAUSTED (memory to bounce through; memlock), those of the registrar and of
  // making a connection.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LentBuffer>> make(
      Fabric& fabric, uint32_t rank, std::span<const std::byte> buffer);
  ~LentBuffer();
  LentBuffer(const LentBuffer&) = delete;
  LentBuffer& operator=(const LentBuffer&) = delete;

  // The whole of it.
  [[nodiscard]] RDMAMemory& memory() { return memory_; }
  [[nodiscard]] bool bounced() const { return bounced_; }

 private:
  explicit LentBuffer(Fabric& fabric) : fabric_(fabric) {}

  Fabric& fabric_;
  bool bounced_ = false;
  std::unique_ptr<RegisteredRange> range_;
  RDMAMemory memory_;
};

// Writes the buffer to the start of `target`, memory of process `rank`, and waits until it is
// there: it may be reused then, and calls that are sent afterwards find it. Runs no calls. Errors:
// INVALID_ARGUMENT (longer than the target), those of LentBuffer::make, UNAVAILABLE.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::Status write_user_buffer(
    Fabric& fabric, uint32_t rank, std::span<const std::byte> buffer,
    const RemoteMemoryLocator& target);

// The handle for the NotifyTarget of a call that READs `lent`: keeps it until process `rank` has
// answered, or failed; then counts `done` down, if given.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT uint64_t lend_until_answered(Fabric& fabric, uint32_t rank,
                                                                   std::unique_ptr<LentBuffer> lent,
                                                                   Synchronizer* done);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_USER_BUFFER_H_
