// Limits that Cariama sets below those of the device.
#ifndef CARIAMA_DTUTILS_VERBS_LIMITS_H_
#define CARIAMA_DTUTILS_VERBS_LIMITS_H_

#include <cstdint>

namespace cariama::verbs {

// The largest number of requests and of segments that one call gives to the card. The chain for the
// driver is built on the stack (6 KiB), and with 32 requests the cost of the card's doorbell per
// request is negligible.
inline constexpr uint32_t kBatchRequests = 32;
inline constexpr uint32_t kBatchSegments = 64;
// Equal to kBatchSegments, so that any single request fits into a batch.
inline constexpr uint32_t kMostSegments = kBatchSegments;

// No current device supports more inline data than fits into a work queue element of 1 KiB.
inline constexpr uint32_t kMostInline = 1024;

// The modify call has 8 bits for the number of READs and atomics in flight.
inline constexpr uint32_t kMostReads = 255;

// repair() posts one request of its own, even behind a full queue, to learn that all earlier
// requests were flushed.
inline constexpr uint32_t kMarkerSlots = 1;

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_LIMITS_H_
