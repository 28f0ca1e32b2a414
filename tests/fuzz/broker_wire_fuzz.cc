// Feeds the decoders of broker frames and of broker addresses with arbitrary bytes.
//
// Bytes that a decoder accepts must be equal to the encoding of the result, in whatever pieces they
// arrive.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dsfabric/peers/broker_wire.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama::internal;  // NOLINT(google-build-using-namespace)
  cariama::FuzzInput input(data, size);
  const size_t piece = input.take<uint8_t>() + size_t{1};
  const std::string_view all(reinterpret_cast<const char*>(data), size);

  BrokerFrameDecoder decoder;
  std::string taken;
  bool malformed = false;
  while (!input.empty() && !malformed && !decoder.whole()) {
    const std::string_view bytes = input.take_bytes(std::min(piece, decoder.wanted()));
    taken += bytes;
    malformed = !decoder.take(bytes).ok();
  }
  if (malformed) {
    cariama::require(!decoder.whole() && !decoder.take("").ok());
  } else if (decoder.whole()) {
    cariama::require(encode(decoder.frame()) == taken);
  }

  auto address = decode_broker_address(all.substr(std::min<size_t>(size, 1)));
  if (address.ok()) {
    auto again = decode_broker_address(encode(*address));
    cariama::require(again.ok() && encode(*again) == encode(*address));
  }
  return 0;
}
