// Feeds the client's half of the handshake with arbitrary bytes of a server.
//
// The server does not know the secret, so the client must refuse it: with an error that says why,
// and at once, because the server closes the connection behind the bytes.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dsfabric/bootstrap/handshake.h"
#include "dtutils/internal/file_descriptor.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cariama::require;
  using namespace cariama::internal;  // NOLINT(google-build-using-namespace)
  cariama::FuzzInput input(data, size);
  cariama::JobSecret secret;
  secret.fill(0x5a);
  const auto service = static_cast<HandshakeService>(1 + input.take<uint8_t>() % 2);
  // Bytes alone rarely begin with a valid hello of the expected server.
  std::string bytes;
  if (input.take<uint8_t>() % 4 != 0) {
    bytes = encode(Hello{.service = service, .rank = 0, .size = 2});
    const auto at = input.take<uint8_t>();
    if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ input.take<uint8_t>());
  }
  bytes += input.take_bytes(size);

  int ends[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const cariama::FileDescriptor client(ends[0]);
  const cariama::FileDescriptor server(ends[1]);
  bytes.resize(std::min<size_t>(bytes.size(), 4096));
  require(bytes.empty() ||
          write(server.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  require(shutdown(server.get(), SHUT_WR) == 0);
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status status = prove_to_server(client.get(), service, 1, 2, 0, secret, "rank 0",
                                              begin + std::chrono::seconds(60));
  require(!status.ok() && !absl::IsDeadlineExceeded(status) && !status.message().empty());
  return 0;
}
