// FabricOptions::registrar: the hook that registers buffers for transfers if the user has not
// registered them (user_buffer.h).
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

// Returns a memory region of that domain that covers the buffer, for local and remote reading. The
// fabric keeps the region until the transfer has ended. The region's deleter decides whether the
// registration is kept. Must be thread-safe: several threads may call it at a time. May block. Its
// errors become those of the call.
using BufferRegistrar = std::function<absl::StatusOr<std::shared_ptr<MemoryRegion>>(
    ProtectionDomain& domain, std::span<const std::byte> buffer)>;

// The default registrar: registers the buffer with the device, and deregisters it when the transfer
// has ended.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<std::shared_ptr<MemoryRegion>>
register_for_one_transfer(ProtectionDomain& domain, std::span<const std::byte> buffer);

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_BUFFER_REGISTRAR_H_
