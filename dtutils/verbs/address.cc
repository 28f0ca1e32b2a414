#include "dtutils/verbs/address.h"

#include "dtutils/error.h"

namespace cariama::verbs {
namespace {

constexpr std::string_view kMagic = "CARVERBS";
constexpr uint16_t kVersion = 1;
constexpr size_t kBytes = 64;
constexpr size_t kChecksumOffset = kBytes - 4;

void put(std::string& out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

// Reads an integer that put() wrote. Requires: enough bytes are left; the caller has checked the
// total.
uint64_t take(std::string_view& in, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<uint8_t>(in[i])} << (8 * i);
  in.remove_prefix(bytes);
  return value;
}

// FNV-1a, to detect truncated, mixed up or mistyped bytes. The bootstrap protects against malicious
// addresses.
uint32_t checksum(std::string_view bytes) {
  uint32_t hash = 2166136261U;
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 16777619U;
  return hash;
}

absl::Status malformed(std::string_view why) {
  return make_error(
      absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
      std::string("the peer's address is not that of a verbs queue pair: ").append(why),
      "pass what address() of the peer's queue pair returned, unchanged");
}

}  // namespace

std::string encode(const Address& address) {
  std::string out(kMagic);
  put(out, kVersion, 2);
  put(out, address.lid, 2);
  put(out, address.queue_pair, 4);
  for (const uint8_t byte : address.gid) out.push_back(static_cast<char>(byte));
  put(out, address.first_sequence, 4);
  put(out, address.mtu, 4);
  put(out, address.initiated_reads, 4);
  put(out, address.served_reads, 4);
  put(out, address.max_message, 8);
  put(out, address.ethernet ? 1 : 0, 1);
  put(out, address.atomics ? 1 : 0, 1);
  put(out, 0, kChecksumOffset - out.size());
  put(out, checksum(out), 4);
  return out;
}

absl::StatusOr<Address> decode(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) {
    return malformed("it is of another transport, or no address at all");
  }
  if (bytes.size() < kMagic.size() + 2) return malformed("it is cut short");
  std::string_view in = bytes.substr(kMagic.size());
  if (const uint64_t version = take(in, 2); version != kVersion) {
    return malformed("its version is " + std::to_string(version) + ", this end's is " +
                     std::to_string(kVersion) + "; both ends must run the same Cariama");
  }
  if (bytes.size() != kBytes) {
    return malformed("it has " + std::to_string(bytes.size()) + " bytes, not " +
                     std::to_string(kBytes));
  }
  std::string_view tail = bytes.substr(kChecksumOffset);
  if (take(tail, 4) != checksum(bytes.substr(0, kChecksumOffset))) {
    return malformed("its checksum is wrong");
  }
  Address address;
  address.lid = static_cast<uint16_t>(take(in, 2));
  address.queue_pair = static_cast<uint32_t>(take(in, 4));
  for (uint8_t& byte : address.gid) byte = static_cast<uint8_t>(take(in, 1));
  address.first_sequence = static_cast<uint32_t>(take(in, 4));
  address.mtu = static_cast<uint32_t>(take(in, 4));
  address.initiated_reads = static_cast<uint32_t>(take(in, 4));
  address.served_reads = static_cast<uint32_t>(take(in, 4));
  address.max_message = take(in, 8);
  const uint64_t ethernet = take(in, 1);
  const uint64_t atomics = take(in, 1);
  const uint64_t reserved = take(in, kChecksumOffset + in.size() - kBytes);
  address.ethernet = ethernet == 1;
  address.atomics = atomics == 1;

  constexpr uint32_t kMost24 = (1U << 24) - 1;
  const bool mtu_known = address.mtu == 256 || address.mtu == 512 || address.mtu == 1024 ||
                         address.mtu == 2048 || address.mtu == 4096;
  if (address.queue_pair > kMost24 || address.first_sequence > kMost24 || !mtu_known ||
      address.initiated_reads > 255 || address.served_reads > 255 || address.max_message == 0 ||
      ethernet > 1 || atomics > 1 || reserved != 0) {
    return malformed("a field is out of range");
  }
  return address;
}

}  // namespace cariama::verbs
