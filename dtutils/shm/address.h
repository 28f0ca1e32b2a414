// Encoding of QueuePair::address() on shm.
#ifndef CARIAMA_DTUTILS_SHM_ADDRESS_H_
#define CARIAMA_DTUTILS_SHM_ADDRESS_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "dtutils/shm/layout.h"

namespace cariama::shm {

struct Address {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  Uuid device{};  // name and secret of its service thread's socket: see kPublicUuidBytes
  int32_t pid = 0;
  uint32_t index = 0;  // in the queue pair table
  uint32_t serial = 0;
  uint32_t reserved = 0;
  uint64_t nonce = 0;
};
static_assert(sizeof(Address) == 48 && std::has_unique_object_representations_v<Address>);

[[nodiscard]] inline std::string encode(const Address& address) {
  return std::string(reinterpret_cast<const char*>(&address), sizeof address);
}

// Returns an empty optional if the bytes are not an address of this transport and version.
[[nodiscard]] inline std::optional<Address> decode(std::string_view bytes) {
  Address address;
  if (bytes.size() != sizeof address) return std::nullopt;
  std::memcpy(&address, bytes.data(), sizeof address);
  if (address.magic != kMagic || address.version != kVersion || address.pid <= 0 ||
      address.reserved != 0 || address.index >= kMaxQueuePairs) {
    return std::nullopt;
  }
  return address;
}

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_ADDRESS_H_
