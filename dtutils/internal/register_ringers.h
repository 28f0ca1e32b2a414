// Registration of this process for Machine::fence_ringers() (doorbell.h).
#ifndef CARIAMA_DTUTILS_INTERNAL_REGISTER_RINGERS_H_
#define CARIAMA_DTUTILS_INTERNAL_REGISTER_RINGERS_H_

#include "dtutils/export.h"

namespace cariama::internal {

// Registers this process as one whose threads fence_ringers() fences. Returns false if the kernel
// cannot do so. Thread-safe, idempotent.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT bool register_ringers();

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_REGISTER_RINGERS_H_
