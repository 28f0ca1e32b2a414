// Converts segments of the contract to those of libibverbs.
#ifndef CARIAMA_DTUTILS_VERBS_WIRE_SEGMENT_H_
#define CARIAMA_DTUTILS_VERBS_WIRE_SEGMENT_H_

#include <cstdint>
#include <span>

#include "dtutils/queue_pair.h"
#include "dtutils/verbs/handles.h"

namespace cariama::verbs {

// Converts a key. A verbs key has 32 bits, so a wider key belongs to another transport. It must not
// be truncated to its lower half, which may be a valid key; it becomes 0, which no device uses as a
// key.
[[nodiscard]] constexpr uint32_t device_key(uint64_t key) {
  return key <= UINT32_MAX ? static_cast<uint32_t>(key) : 0;
}

// Writes at most segments.size() entries to `out` and returns their number. Empty segments are
// omitted, because on some devices a length of 0 means 2 GiB.
inline int translate(std::span<const Segment> segments, ibv_sge* out) {
  int count = 0;
  for (const Segment& segment : segments) {
    if (segment.length == 0) continue;
    out[count++] = {.addr = reinterpret_cast<uint64_t>(segment.address),
                    .length = segment.length,
                    .lkey = device_key(segment.key.value)};
  }
  return count;
}

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_WIRE_SEGMENT_H_
