// The texts of the Go Text Protocol: words, answers, reports of a search.
#ifndef CARIAMA_HEX_GTP_TEXT_H_
#define CARIAMA_HEX_GTP_TEXT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hex/engine.h"

namespace cariama::hex {

// The words of a line. Comments (#...) and control characters are taken out, tabs are blanks.
[[nodiscard]] std::vector<std::string> gtp_words(std::string_view line);
// Whether the word is the optional number before a command.
[[nodiscard]] bool is_gtp_id(std::string_view word);
// b, black, w, white, in any case.
[[nodiscard]] std::optional<Color> parse_gtp_color(std::string_view word);

// `=id text` or `?id text` with the empty line after it. Empty lines within the text, which would
// end the answer, get a blank; control characters become '?'.
[[nodiscard]] std::string gtp_answer(bool success, std::string_view id, std::string_view text);

// One line of lz-analyze (win rates and priors in 0 .. 10000) or kata-analyze (0 .. 1), without its
// end: `info move f6 visits 123 winrate 5912 prior 800 order 0 pv f6 e7 info move ...`.
enum class GtpInfo : uint8_t { kLeela, kKata };
[[nodiscard]] std::string gtp_info(const Board& board, const SearchReport& report, GtpInfo form);

// A block of live graphics for HexGui and GoGui: the expected line, win rates as influence (W and L
// where proven), visits as labels. Ends with an empty line.
[[nodiscard]] std::string gtp_graphics(const Board& board, const SearchReport& report);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_GTP_TEXT_H_
