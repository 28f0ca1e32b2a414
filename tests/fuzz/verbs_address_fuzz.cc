// Feeds the decoder of verbs addresses with arbitrary bytes.
//
// The first byte chooses between three forms: arbitrary bytes; bytes with valid magic, version and
// checksum, so that the decoder reaches the fields; or fields to be encoded. The encoding of an
// accepted address must be equal to the input, and every address within the documented ranges must
// be decoded as it was encoded.
#include <array>
#include <string>

#include "dtutils/verbs/address.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::verbs {
namespace {

constexpr size_t kBytes = 64;

void check_bytes(const std::string& bytes) {
  const absl::StatusOr<Address> address = decode(bytes);
  require(address.ok() ? encode(*address) == bytes : !address.status().message().empty());
}

// Makes magic, version and checksum valid. The checksum is FNV-1a over all bytes before it.
void put_right(std::string& bytes) {
  bytes.resize(kBytes);
  bytes.replace(0, 10, std::string("CARVERBS\x01\x00", 10));
  uint32_t hash = 2166136261U;
  for (size_t i = 0; i < kBytes - 4; ++i) {
    hash = (hash ^ static_cast<uint8_t>(bytes[i])) * 16777619U;
  }
  for (size_t i = 0; i < 4; ++i) bytes[kBytes - 4 + i] = static_cast<char>(hash >> (8 * i));
}

void check_fields(FuzzInput& input) {
  Address address;
  address.ethernet = input.take<uint8_t>() % 2 == 1;
  address.atomics = input.take<uint8_t>() % 2 == 1;
  address.lid = input.take<uint16_t>();
  address.gid = input.take<std::array<uint8_t, 16>>();
  address.queue_pair = input.take<uint32_t>();
  address.first_sequence = input.take<uint32_t>();
  address.mtu = input.take<uint32_t>();
  const uint32_t step = input.take<uint8_t>() % 8;  // otherwise few inputs would have a valid MTU
  if (step < 5) address.mtu = 256U << step;
  address.initiated_reads = input.take<uint32_t>();
  address.served_reads = input.take<uint32_t>();
  address.max_message = input.take<uint64_t>();

  const uint32_t mtu = address.mtu;
  const bool valid = address.queue_pair < 1U << 24 && address.first_sequence < 1U << 24 &&
                     (mtu == 256 || mtu == 512 || mtu == 1024 || mtu == 2048 || mtu == 4096) &&
                     address.initiated_reads < 256 && address.served_reads < 256 &&
                     address.max_message != 0;
  const absl::StatusOr<Address> decoded = decode(encode(address));
  require(decoded.ok() == valid);
  if (valid) require(*decoded == address);
}

}  // namespace
}  // namespace cariama::verbs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cariama::FuzzInput input(data, size);
  const auto choice = input.take<uint8_t>() % 3;
  if (choice == 2) {
    cariama::verbs::check_fields(input);
    return 0;
  }
  std::string bytes(input.take_bytes(size));
  if (choice == 1) cariama::verbs::put_right(bytes);
  cariama::verbs::check_bytes(bytes);
  return 0;
}
