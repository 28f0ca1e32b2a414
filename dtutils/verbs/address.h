// Encoding of QueuePair::address() for verbs: the identity of the queue pair and the capabilities
// of its end.
#ifndef CARIAMA_DTUTILS_VERBS_ADDRESS_H_
#define CARIAMA_DTUTILS_VERBS_ADDRESS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace cariama::verbs {

struct Address {
  bool ethernet = false;  // true: RoCE, addressed by GID; false: InfiniBand, addressed by LID
  uint16_t lid = 0;
  std::array<uint8_t, 16> gid{};
  uint32_t queue_pair = 0;       // 24 bits
  uint32_t first_sequence = 0;   // 24 bits: packet sequence number of this end's first request
  uint32_t mtu = 0;              // bytes: 256, 512, 1024, 2048 or 4096
  uint32_t initiated_reads = 0;  // READs and atomics that this end can have in flight, 0 to 255
  // READs and atomics of the peer that this end can serve at the same time, 0 to 255.
  uint32_t served_reads = 0;
  uint64_t max_message = 0;  // bytes
  bool atomics = false;      // this end serves atomics

  friend bool operator==(const Address&, const Address&) = default;
};

// Encodes an address: little endian, with magic, version, length and a checksum. 64 bytes.
[[nodiscard]] std::string encode(const Address& address);

// Decodes an address. Safe for arbitrary bytes. Error: INVALID_ARGUMENT, with the reason, for bytes
// that encode() did not produce.
[[nodiscard]] absl::StatusOr<Address> decode(std::string_view bytes);

}  // namespace cariama::verbs

#endif  // CARIAMA_DTUTILS_VERBS_ADDRESS_H_
