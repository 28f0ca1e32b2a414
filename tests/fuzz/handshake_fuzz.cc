// Feeds the server's half of the handshake with arbitrary bytes, in pieces.
//
// A client that does not know the secret must not be accepted: it would have to guess the proof.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dsfabric/bootstrap/handshake.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;            // NOLINT(google-build-using-namespace)
  using namespace cariama::internal;  // NOLINT(google-build-using-namespace)
  FuzzInput input(data, size);
  JobSecret secret;
  secret.fill(0x5a);
  const auto service = static_cast<HandshakeService>(1 + input.take<uint8_t>() % 2);
  const size_t piece = input.take<uint8_t>() + size_t{1};
  ServerHandshake handshake(service, 0, 4, secret);
  std::string out;
  while (!input.empty() && handshake.wanted() != 0) {
    const size_t wanted = handshake.wanted();
    handshake.take(input.take_bytes(std::min(piece, wanted)), out);
  }
  require(handshake.state() != ServerHandshake::State::kAccepted);
  // The server sends at most one hello and one verdict.
  require(out.size() <= Hello::kBytes + 33);
  if (handshake.state() == ServerHandshake::State::kRefused) {
    require(!handshake.refusal().ok() && handshake.wanted() == 0);
  }
  if (size >= Hello::kBytes) {
    const std::string_view bytes(reinterpret_cast<const char*>(data), Hello::kBytes);
    auto hello = decode_hello(bytes);
    if (hello.ok()) require(encode(*hello) == bytes);
  }
  return 0;
}
