// Game records in SGF (FF[4], GM[11]: Hex): what HexGui, Benzene and the game sites read and write.
//
// Cells are written as letter and number (B[c2]), the size as SZ[n] or SZ[cols:rows]. Special
// moves: swap-pieces, resign.
#ifndef CARIAMA_HEX_SGF_H_
#define CARIAMA_HEX_SGF_H_

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
  // Alternatives to this move, each with what could follow; their own `variations` are not looked
  // at. Written as branches. Not filled when reading.
  std::vector<std::vector<SgfMove>> variations;
};

struct SgfGame {
  Board start{11, 11};  // with the set-up stones
  std::vector<SgfMove> moves;
  std::optional<Color> resigned;  // who, after the last move
  std::string black_name;
  std::string white_name;
  std::string result;  // "B+", "W+Resign", ...
  std::string date;    // "2026-11-20"
  std::string comment;
};

// Reads the main line: at each branch the first child. All moves are legal ones: the swap rule is
// on if a swap occurs. swap-sides exchanges the players, not stones: it and pass are left out.
// Errors: INVALID_ARGUMENT with the place in the text: not SGF, another game, a bad size, an
// illegal move, more than 16 MiB or 4096 open branches. Time and memory are linear in the text,
// whatever its shape.
[[nodiscard]] absl::StatusOr<SgfGame> parse_sgf(std::string_view text);

// The text; parse_sgf() reads it back.
[[nodiscard]] std::string format_sgf(const SgfGame& game);

// Of a file. Errors: those of the system (error.h), and of parse_sgf().
[[nodiscard]] absl::StatusOr<SgfGame> load_sgf(const std::string& path);
[[nodiscard]] absl::Status save_sgf(const std::string& path, const SgfGame& game);

// The record of a game, up to its first `moves` moves, and back.
[[nodiscard]] GameRecord to_record(const SgfGame& game, size_t moves = SIZE_MAX);
[[nodiscard]] SgfGame to_sgf(const GameRecord& record);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_SGF_H_
