// Reads and writes game records in SGF (FF[4], GM[11]: Hex), the format of HexGui, Benzene and the
// game sites.
//
// Cells are written as letter and number (B[c2]), the size as SZ[n] or SZ[cols:rows]. Special
// moves: swap-pieces, resign.
#ifndef CARIAMA_HEX_SGF_H_
#define CARIAMA_HEX_SGF_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hex/game_record.h"

namespace cariama::hex {

struct SgfMove {
  Color color = Color::kBlack;
  Move move = kNoMove;
  std::string comment;
};

// A line of moves that leaves another line. Line 0 is the main line, line n is variations[n - 1] of
// the game.
struct SgfVariation {
  size_t line = 0;             // the line that it leaves: 0, or an earlier variation
  size_t after = 0;            // number of moves of that line that precede this variation
  std::vector<SgfMove> moves;  // at least one
};

struct SgfGame {
  Board start{11, 11};         // with the set-up stones
  std::vector<SgfMove> moves;  // the main line
  std::vector<SgfVariation> variations;
  std::optional<Color> resigned;  // the side that resigned after the last move
  std::string black_name;
  std::string white_name;
  std::string result;  // "B+", "W+Resign", ...
  std::string date;    // "2026-11-20"
  std::string comment;
};

// Reads a game. The main line is the first child at each branch; all other lines are variations.
// All moves of the result are legal: a variation ends before its first illegal move or set-up
// stone, and a variation without a move is left out. The swap rule is on if the game contains a
// swap. swap-sides, which exchanges players and not stones, and pass are skipped, in variations
// also resignations. A comment belongs to the move of its node, in any order of the two. In the
// root, a comment before a move is that of the game. The comment of a node without a move is
// appended, in a line of its own, to that of the move before, or else of the game. Errors:
// INVALID_ARGUMENT with the position in the text, for text that is not SGF, another game, a bad
// size, an illegal move of the main line, more than 16 MiB, or more than 4096 open branches. Time
// and memory are linear in the length of any text.
[[nodiscard]] absl::StatusOr<SgfGame> parse_sgf(std::string_view text);

// Returns the SGF text of a game, which parse_sgf() can read. Requires: each variation leaves an
// earlier line, after at most all moves of that line.
[[nodiscard]] std::string format_sgf(const SgfGame& game);

// Read and write a file. Errors: those of the system (error.h), and those of parse_sgf().
[[nodiscard]] absl::StatusOr<SgfGame> load_sgf(const std::string& path);
[[nodiscard]] absl::Status save_sgf(const std::string& path, const SgfGame& game);

// Convert a game to a GameRecord with its first `moves` moves, and back.
[[nodiscard]] GameRecord to_record(const SgfGame& game, size_t moves = SIZE_MAX);
[[nodiscard]] SgfGame to_sgf(const GameRecord& record);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_SGF_H_
