// Formats and parses the texts of the Go Text Protocol: words, answers, reports of a search.
#ifndef CARIAMA_HEX_GTP_TEXT_H_
#define CARIAMA_HEX_GTP_TEXT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "hex/engine.h"

namespace cariama::hex {

// Returns the words of a line. Removes comments (#...) and control characters; treats tabs as
// blanks.
[[nodiscard]] std::vector<std::string> gtp_words(std::string_view line);
// Returns true if the word is a number, as the optional id before a command is.
[[nodiscard]] bool is_gtp_id(std::string_view word);
// Parses b, black, w or white, in upper or lower case.
[[nodiscard]] std::optional<Color> parse_gtp_color(std::string_view word);

// Returns `=id text` or `?id text` and the empty line after it. Replaces control characters by '?'
// and writes a blank into empty lines of the text, since an empty line would end the answer.
[[nodiscard]] std::string gtp_answer(bool success, std::string_view id, std::string_view text);

// Returns a line of lz-analyze (win rates and priors in 0 .. 10000) or kata-analyze (0 .. 1),
// without its end: `info move f6 visits 123 winrate 5912 prior 800 order 0 pv f6 e7 info move ...`.
enum class GtpInfo : uint8_t { kLeela, kKata };
[[nodiscard]] std::string gtp_info(const Board& board, const SearchReport& report, GtpInfo form);

// Returns a block of live graphics for HexGui and GoGui: the principal variation, win rates as
// influence (W and L for proved moves), visits as labels. It ends with an empty line.
[[nodiscard]] std::string gtp_graphics(const Board& board, const SearchReport& report);

// Splits the output of an engine into answers, in whatever pieces it arrives.
class GtpAnswers {
 public:
  // The largest output that may be received before an answer in it ends.
  static constexpr size_t kMaxBytes = size_t{4} << 20;

  void append(std::string_view output) { received_ += output; }
  // Removes the next complete answer and returns its text, trimmed, without the `=`. Skips blocks
  // of live graphics. Returns nullopt if more output is needed. Errors: INVALID_ARGUMENT with the
  // engine's message if it answered `?`; UNAVAILABLE if the output is no GTP, or exceeds
  // kMaxBytes without the end of an answer.
  [[nodiscard]] std::optional<absl::StatusOr<std::string>> next();

 private:
  std::string received_;
  size_t scanned_ = 0;  // position in received_ before which no answer ends
};

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_GTP_TEXT_H_
