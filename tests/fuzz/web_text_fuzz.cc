// What a page in a browser sends to `cariama-hex serve`: the headers Host and Origin, and a game.
//
// A server at a loopback address accepts no host beside "localhost" and loopback addresses. The
// answer to each game that is accepted is valid JSON.
//
// Longest input: 256 bytes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "hex/web/web_text.h"
#include "tests/dtutils/testing/json.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;
  using namespace cariama::hex;
  FuzzInput input(data, size);
  const auto choice = input.take<uint8_t>();
  if (choice % 4 == 0) {
    const std::string_view host = input.take_bytes(input.take<uint8_t>());
    const std::string_view origin = input.take_bytes(size);
    const bool local = is_accepted_host(host, "127.0.0.1");
    // Without brackets it is a name or an IPv4 address.
    const std::string_view name = host.substr(0, host.find(':'));
    require(!local || name == "localhost" || name.starts_with("127.") || host.starts_with("["));
    require(!local || is_accepted_host(host, "0.0.0.0"));
    require(!is_accepted_origin(origin, host) || origin.ends_with(host));
    return 0;
  }
  const absl::StatusOr<SgfGame> game = parse_web_game(input.take_bytes(size), (choice & 4) != 0);
  if (!game.ok()) {
    require(!game.status().message().empty());
    return 0;
  }
  require(cariama::testing::parse_json(game_json(*game)).has_value());
  return 0;
}
