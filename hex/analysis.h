// What a search found, for people: the board as text, in colours in a terminal, and as an SVG
// picture, with visits and win rates drawn on the cells.
#ifndef CARIAMA_HEX_ANALYSIS_H_
#define CARIAMA_HEX_ANALYSIS_H_

#include <string>

#include "hex/engine.h"

namespace cariama::hex {

// The board in plain ASCII: B and W for stones, dots for empty cells, each row shifted to the right
// of the one above. No empty line, no end of line at the end.
[[nodiscard]] std::string board_text(const Board& board);

struct HeatMap {
  bool colors = true;  // ANSI colours (24 bits); else plain text
};
// The board with the search's visits in its empty cells, as hundredths of those of the most visited
// move (0 .. 99). The colour of a cell follows the win rate of the side to move, from red (0) over
// yellow to green (1), and is the darker the fewer visits. `**` stands for the best move. Below it,
// the best moves line by line.
[[nodiscard]] std::string heat_map(const Board& board, const SearchReport& report,
                                   const HeatMap& options = {});

// The same as an SVG document, with win rates and visits as numbers. Text is escaped; no fonts or
// pictures are loaded from elsewhere.
[[nodiscard]] std::string heat_map_svg(const Board& board, const SearchReport& report);

// `f6 58.9% 12345 visits  f6 e7 g5`, for a line of progress.
[[nodiscard]] std::string report_line(const Board& board, const MoveReport& move);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_ANALYSIS_H_
