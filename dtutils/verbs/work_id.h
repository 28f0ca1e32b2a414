// Encoding of wr_id: the place of a request in its queue, from which all other data is found. wr_id
// is valid also in failed completions, for which libibverbs gives neither the operation nor the
// direction.
#ifndef CARIAMA_DTUTILS_VERBS_WORK_ID_H_
#define CARIAMA_DTUTILS_VERBS_WORK_ID_H_

#include <cstdint>

namespace cariama::verbs {

inline constexpr uint64_t kReceiveId = uint64_t{1} << 63;
inline constexpr uint64_t kMarkerId = uint64_t{1} << 62;

// `place`: the position in a send or receive queue, modulo 2^32, or the index in a shared receive
// queue's table.
[[nodiscard]] constexpr uint64_t send_id(uint32_t place) { return place; }
[[nodiscard]] constexpr uint64_t receive_id(uint32_t place) { return kReceiveId | place; }
// The id of repair()'s marker request; `place` is the position that the next operation will have.
[[nodiscard]] constexpr uint64_t marker_id(uint32_t place) { return kMarkerId | place; }

[[nodiscard]] constexpr bool is_receive(uint64_t id) { return (id & kReceiveId) != 0; }
[[nodiscard]] constexpr bool is_marker(uint64_t id) { return (id & kMarkerId) != 0; }
[[nodiscard]] constexpr uint32_t place_of(uint64_t id) { return static_cast<uint32_t>(id); }

// Returns the full position of which `place` contains the low 32 bits: the largest such position
// not above `tail`, the number of requests posted so far. Queues contain far fewer than 2^32
// requests.
[[nodiscard]] constexpr uint64_t full_position(uint32_t place, uint64_t tail) {
  return tail - static_cast<uint32_t>(static_cast<uint32_t>(tail) - place);
}

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_WORK_ID_H_
