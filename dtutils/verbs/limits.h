// Bounds that Cariama sets itself, below those of the device.
#ifndef CARIAMA_DTUTILS_VERBS_LIMITS_H_
#define CARIAMA_DTUTILS_VERBS_LIMITS_H_

#include <cstdint>

namespace cariama::verbs {

// Requests and segments that one doorbell takes at most: the chain for the driver is built on the
// stack (6 KiB), and 32 requests make the cost of a doorbell vanish.
inline constexpr uint32_t kBatchRequests = 32;
inline constexpr uint32_t kBatchSegments = 64;
// So that any one request fits in a batch.
inline constexpr uint32_t kMostSegments = kBatchSegments;

// No device of today has more inline data than a 1 KiB work queue element holds.
inline constexpr uint32_t kMostInline = 1024;

// The wire format of the modify call has 8 bits for READs and atomics in flight.
inline constexpr uint32_t kMostReads = 255;

// repair() posts one request of its own, even behind a full queue, to learn that everything before
// it was flushed.
inline constexpr uint32_t kMarkerSlots = 1;

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_LIMITS_H_
