// The hook through which buffers that the user has not registered are registered for transfers
// (user_buffer.h): FabricOptions::registrar.
//
//   options.registrar = [&cache](ProtectionDomain& domain, std::span<const std::byte> buffer) {
//     return cache.get(domain, buffer);   // a region that covers the buffer
//   };
#ifndef CARIAMA_DSFABRIC_BUFFER_REGISTRAR_H_
#define CARIAMA_DSFABRIC_BUFFER_REGISTRAR_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "dsfabric/export.h"
#include "dtutils/device.h"
#include "dtutils/memory.h"

namespace cariama {

// Returns a region of that domain that covers the buffer, for local and remote reading. The region
// is held until the transfer has ended; its deleter decides what becomes of the registration.
// Called by any thread, several at a time; may block. Its errors are those of the call.
using BufferRegistrar = std::function<absl::StatusOr<std::shared_ptr<MemoryRegion>>(
    ProtectionDomain& domain, std::span<const std::byte> buffer)>;

// The default: registers with the device, and deregisters when the transfer has ended.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<std::shared_ptr<MemoryRegion>>
register_for_one_transfer(ProtectionDomain& domain, std::span<const std::byte> buffer);

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_BUFFER_REGISTRAR_H_
