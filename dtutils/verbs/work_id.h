// What the device carries as wr_id: the place of a request in its queue, from which everything else
// follows. It is valid in failed completions too, where libibverbs gives no operation and no
// direction.
#ifndef CARIAMA_DTUTILS_VERBS_WORK_ID_H_
#define CARIAMA_DTUTILS_VERBS_WORK_ID_H_

#include <cstdint>

namespace cariama::verbs {

inline constexpr uint64_t kReceiveId = uint64_t{1} << 63;
inline constexpr uint64_t kMarkerId = uint64_t{1} << 62;

// `place`: the position in a send or receive queue, modulo 2^32, or in a shared receive queue's
// table.
[[nodiscard]] constexpr uint64_t send_id(uint32_t place) { return place; }
[[nodiscard]] constexpr uint64_t receive_id(uint32_t place) { return kReceiveId | place; }
// repair()'s own request; `place` is the position that the next operation will have.
[[nodiscard]] constexpr uint64_t marker_id(uint32_t place) { return kMarkerId | place; }

[[nodiscard]] constexpr bool is_receive(uint64_t id) { return (id & kReceiveId) != 0; }
[[nodiscard]] constexpr bool is_marker(uint64_t id) { return (id & kMarkerId) != 0; }
[[nodiscard]] constexpr uint32_t place_of(uint64_t id) { return static_cast<uint32_t>(id); }

// The full position that `place` abbreviates: the last one not above `tail`, the number of requests
// posted so far. Queues hold far fewer than 2^32 requests.
[[nodiscard]] constexpr uint64_t full_position(uint32_t place, uint64_t tail) {
  return tail - static_cast<uint32_t>(static_cast<uint32_t>(tail) - place);
}

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_WORK_ID_H_
