// Shows boards and search results to users: as plain text, in colours for a terminal, and as an SVG
// picture, with visits and win rates on the cells.
#ifndef CARIAMA_HEX_ANALYSIS_H_
#define CARIAMA_HEX_ANALYSIS_H_

#include <string>

#include "hex/engine.h"

namespace cariama::hex {

// Returns the board in plain ASCII: B and W for stones, dots for empty cells, each row shifted to
// the right of the row above. Contains no empty line and no newline at the end.
[[nodiscard]] std::string board_text(const Board& board);

struct HeatMap {
  bool colors = true;  // ANSI colours (24 bits); else plain text
};
// Returns the board with the visits of the search in its empty cells, in percent of the visits of
// the most visited move (0 .. 99). `**` marks the best move. The colour of a cell shows the win
// rate of the side to move, from red (0) over yellow (0.5) to green (1). A cell with fewer visits
// is darker. A list of the best moves follows, one per line.
[[nodiscard]] std::string heat_map(const Board& board, const SearchReport& report,
                                   const HeatMap& options = {});

// Returns the board as an SVG document, with the colours of heat_map() and with win rates and
// visits as numbers. The document loads no external fonts or pictures.
[[nodiscard]] std::string heat_map_svg(const Board& board, const SearchReport& report);

// Returns a line like `f6 58.9% 12345 visits  f6 e7 g5`, for progress output.
[[nodiscard]] std::string report_line(const Board& board, const MoveReport& move);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_ANALYSIS_H_
