// Reads memory through a registration of an IoUringPinner, as a device does. Tests of stale
// registrations use it.
#ifndef CARIAMA_DTUTILS_INTERNAL_READ_THROUGH_H_
#define CARIAMA_DTUTILS_INTERNAL_READ_THROUGH_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "dtutils/device.h"

namespace cariama::internal {

// Copies the bytes of the pinned pages from `address` on, whatever is mapped at the address now.
// Requires: an IoUringPinner made the region; out.size() <= 64 KiB, within one GiB of the region.
// Errors: INVALID_ARGUMENT, those of io_uring.
[[nodiscard]] absl::Status read_through(const MemoryRegion& region, const std::byte* address,
                                        std::span<std::byte> out);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_READ_THROUGH_H_
