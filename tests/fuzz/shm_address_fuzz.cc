// Feeds the decoder of shm addresses with arbitrary bytes.
//
// The first byte chooses between arbitrary bytes, and the bytes of an address with valid magic and
// version. The decoder must accept exactly the addresses that the format allows, and the encoding
// of the result must be equal to the input.
#include <optional>
#include <string>

#include "dtutils/shm/address.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama::shm;  // NOLINT(google-build-using-namespace)
  cariama::FuzzInput input(data, size);
  if (input.take<uint8_t>() % 2 == 0) {
    const std::string bytes(input.take_bytes(size));
    const std::optional<Address> address = decode(bytes);
    if (address.has_value()) cariama::require(encode(*address) == bytes);
    return 0;
  }
  auto address = input.take<Address>();
  address.magic = kMagic;
  address.version = kVersion;
  const bool valid = address.pid > 0 && address.index < kMaxQueuePairs && address.reserved == 0;
  const std::string bytes = encode(address);
  const std::optional<Address> decoded = decode(bytes);
  cariama::require(decoded.has_value() == valid);
  if (valid) cariama::require(encode(*decoded) == bytes);
  cariama::require(!decode(bytes + '\0').has_value());
  cariama::require(!decode(bytes.substr(1)).has_value());
  return 0;
}
