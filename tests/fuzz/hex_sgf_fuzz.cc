// Feeds the SGF reader with arbitrary text. A game that it accepts must be the same after it was
// written and read again.
//
// Longest input: 256 bytes.
#include "hex/sgf.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;
  using namespace cariama::hex;
  const absl::StatusOr<SgfGame> game =
      parse_sgf(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!game.ok()) {
    require(!game.status().message().empty());
    return 0;
  }
  const absl::StatusOr<SgfGame> again = parse_sgf(format_sgf(*game));
  require(again.ok());
  require(again->moves.size() == game->moves.size());
  require(again->resigned == game->resigned);
  require(again->variations.size() == game->variations.size());
  for (size_t i = 0; i < game->variations.size(); ++i) {
    require(again->variations[i].line == game->variations[i].line);
    require(again->variations[i].after == game->variations[i].after);
    require(again->variations[i].moves.size() == game->variations[i].moves.size());
  }
  const Board end = to_record(*game).board();
  const Board end_again = to_record(*again).board();
  require(end_again.stones(Color::kBlack) == end.stones(Color::kBlack));
  require(end_again.stones(Color::kWhite) == end.stones(Color::kWhite));
  return 0;
}
