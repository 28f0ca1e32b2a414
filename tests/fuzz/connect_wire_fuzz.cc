// Feeds the decoder of requests to connect with arbitrary bytes.
//
// Bytes that it accepts must be equal to the encoding of the result.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "dsfabric/peers/connect_wire.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cariama::require;
  using cariama::internal::ConnectRequest;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto request = cariama::internal::decode_connect_request(bytes, "rank 1");
  if (!request.ok()) {
    require(absl::IsInvalidArgument(request.status()));
    return 0;
  }
  require((request->kind == ConnectRequest::Kind::kOffer) == !request->connections.empty());
  require(encode(*request) == bytes);
  return 0;
}
