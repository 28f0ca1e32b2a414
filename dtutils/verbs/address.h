// The bytes of QueuePair::address() for verbs: who the queue pair is and what its end can do.
#ifndef CARIAMA_DTUTILS_VERBS_ADDRESS_H_
#define CARIAMA_DTUTILS_VERBS_ADDRESS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace cariama::verbs {

struct Address {
  bool ethernet = false;  // RoCE, addressed by GID; else InfiniBand, addressed by LID
  uint16_t lid = 0;
  std::array<uint8_t, 16> gid{};
  uint32_t queue_pair = 0;       // 24 bits
  uint32_t first_sequence = 0;   // 24 bits: packet sequence number of its first request
  uint32_t mtu = 0;              // bytes: 256, 512, 1024, 2048 or 4096
  uint32_t initiated_reads = 0;  // READs and atomics that this end can have in flight, 0 to 255
  uint32_t served_reads = 0;  // READs and atomics of the peer that it can serve at once, 0 to 255
  uint64_t max_message = 0;   // bytes
  bool atomics = false;       // it serves atomics

  friend bool operator==(const Address&, const Address&) = default;
};

// Little endian, with magic, version, length and a checksum. 64 bytes.
[[nodiscard]] std::string encode(const Address& address);

// INVALID_ARGUMENT, with the reason, for anything that encode() did not make. Any bytes are safe.
[[nodiscard]] absl::StatusOr<Address> decode(std::string_view bytes);

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_ADDRESS_H_
