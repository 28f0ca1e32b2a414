// The doorbells of the threads that run calls, as they lie in registered memory: one place for each
// worker of the process, then one for all helper threads.
#ifndef CARIAMA_DSFABRIC_INTERNAL_CALL_DOORBELLS_H_
#define CARIAMA_DSFABRIC_INTERNAL_CALL_DOORBELLS_H_

#include <cstddef>

#include "dtutils/doorbell.h"

namespace cariama::internal {

// Bytes from one place to the next.
inline constexpr size_t kDoorbellStride = 64;

// `doorbell`: rung for every call to the worker. `receives`: armed while the worker's thread sleeps
// in a wait in which it runs its calls. A send-based call wakes that thread without the service
// thread. Helper threads do not arm `receives`, because they do not poll ports.
struct alignas(kDoorbellStride) CallDoorbells : ReceiverDoorbells {};
static_assert(sizeof(CallDoorbells) == kDoorbellStride);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_INTERNAL_CALL_DOORBELLS_H_
