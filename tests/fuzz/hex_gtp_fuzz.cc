// Feeds a GTP session, which may not access files, with arbitrary lines. Each line gets at most one
// answer. The answer is complete, and live output comes before it. The board must remain one that
// the rules allow.
//
// The engine does not search, and the solver runs for a sixteenth of the inputs and on the smallest
// boards only: a search takes longer than thousands of lines.
//
// Longest input: 256 bytes.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hex/engine.h"
#include "hex/gtp.h"
#include "hex/gtp_text.h"
#include "hex/opening.h"
#include "tests/fuzz/fuzz_input.h"

namespace cariama::hex {
namespace {

// Reports the first empty cells as its best moves. The seed determines their win rates.
class FirstCells final : public Engine {
 public:
  [[nodiscard]] std::string name() const override { return "First cells"; }
  [[nodiscard]] std::string version() const override { return "1"; }
  [[nodiscard]] SearchReport search(const Board& board, const SearchLimits&,
                                    const std::atomic<bool>&,
                                    const std::function<void(const SearchReport&)>& progress,
                                    double) override {
    constexpr size_t kMoves = 3;
    SearchReport report{board.to_move(), 1, 0, {}};
    board.empty().for_each([&](int cell) {
      if (report.moves.size() == kMoves) return;
      MoveReport move;
      move.move = static_cast<Move>(cell);
      move.visits = kMoves - report.moves.size();
      move.win_rate = static_cast<double>(seed_ % 5) / 4;
      if (seed_ % 7 == 0) move.proven_win = seed_ % 2 == 0;
      move.line = {move.move};
      report.moves.push_back(move);
    });
    if (progress) progress(report);
    return report;
  }
  void set_seed(uint64_t seed) override { seed_ = seed; }

 private:
  uint64_t seed_ = 2;
};

// Returns true if the line is a command that would run for long in this position.
bool takes_long(std::string_view line, const Board& board, bool may_solve) {
  const std::vector<std::string> words = gtp_words(line);
  const auto has = [&words](std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  constexpr int kCellsToSolve = 12;
  constexpr int kCellsToAnalyze = 121;
  const bool solves =
      has("dfpn-solve-state") ||
      ((has("genmove") || has("reg_genmove")) && board.may_swap() && board.cells() <= kSolvedCells);
  if (solves) return !may_solve || board.cells() > kCellsToSolve;
  return has("hex-must-play") && board.cells() > kCellsToAnalyze;
}

}  // namespace
}  // namespace cariama::hex

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cariama;
  using namespace cariama::hex;
  FirstCells engine;
  std::string output;
  GtpOptions options;
  options.limits = {.seconds = 0, .iterations = 1};
  options.files = false;
  options.analyze_seconds = 1e-6;
  options.solve_nodes = 1;
  options.solver.table_bytes = 1 << 20;
  options.cols = options.rows = 5;
  GtpSession session(
      engine, [&](std::string_view text) { output += text; }, options);
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const bool may_solve = size % 16 == 0;
  Board checked = session.game().board();
  size_t at = 0;
  for (int lines = 0; at < input.size() && lines < 40; ++lines) {
    const size_t end = std::min(input.find('\n', at), input.size());
    output.clear();
    const std::string_view line = input.substr(at, end - at);
    if (!takes_long(line, checked, may_solve) && !session.execute(line)) break;
    at = end + 1;
    if (output.empty()) continue;
    // Graphics of a search come first, if the input has switched them on.
    size_t answer = 0;
    while (output.compare(answer, 10, "gogui-gfx:") == 0) {
      const size_t block_end = output.find("\n\n", answer);
      require(block_end != std::string::npos);
      answer = block_end + 2;
    }
    require(output.size() >= answer + 3 && output.substr(output.size() - 2) == "\n\n");
    require(output[answer] == '=' || output[answer] == '?');
    require(output.find("\n\n", answer) == output.size() - 2);
    const Board& board = session.game().board();
    if (board == checked) continue;
    checked = board;
    require(!board.stones(Color::kBlack).intersects(board.stones(Color::kWhite)));
    Board again = board;
    again.set_position(board.stones(Color::kBlack), board.stones(Color::kWhite), board.to_move());
    require(again.winner() == board.winner());
  }
  return 0;
}
