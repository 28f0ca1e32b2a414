// Feeds a GTP session, which may not access files, with arbitrary lines. Each line gets at most one
// answer. The answer is complete, and live output comes before it. The board must remain one that
// the rules allow.
#include <optional>
#include <string>

#include "hex/gtp.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/hex/testing/flat_engine.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;
  using namespace cariama::hex;
  hex::testing::FlatEngine engine;
  std::string output;
  GtpOptions options;
  options.limits = {.seconds = 0, .iterations = 1};
  options.files = false;
  options.analyze_seconds = 1e-6;
  options.solve_nodes = 20;
  options.solver.table_bytes = 1 << 20;
  options.cols = options.rows = 5;
  GtpSession session(
      engine, [&](std::string_view text) { output += text; }, options);
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t at = 0;
  for (int lines = 0; at < input.size() && lines < 40; ++lines) {
    const size_t end = std::min(input.find('\n', at), input.size());
    output.clear();
    // Skips commands that could remove the limits, since the search would only become slow.
    const std::string_view line = input.substr(at, end - at);
    if (line.find("param_search") == std::string_view::npos &&
        line.find("time_") == std::string_view::npos) {
      if (!session.execute(line)) break;
    }
    at = end + 1;
    if (output.empty()) continue;
    require(output.size() >= 3 && output.substr(output.size() - 2) == "\n\n");
    require(output[0] == '=' || output[0] == '?');
    require(output.find("\n\n") == output.size() - 2);
    const Board& board = session.game().board();
    require(!board.stones(Color::kBlack).intersects(board.stones(Color::kWhite)));
    Board again = board;
    again.set_position(board.stones(Color::kBlack), board.stones(Color::kWhite), board.to_move());
    require(again.winner() == board.winner());
  }
  return 0;
}
