#include "hex/gtp_text.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "dtutils/error.h"

namespace cariama::hex {
namespace {

// A swap has no cell on which it could be drawn.
bool is_cell(const MoveReport& move) { return move.move != kSwapPieces; }

double unit(double value) { return std::clamp(value, 0.0, 1.0); }

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

}  // namespace

std::vector<std::string> gtp_words(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : line) {
    if (c == '#') break;
    if (c == ' ' || c == '\t') {
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
    } else if (static_cast<unsigned char>(c) > ' ' && c != '\x7f') {
      word += c;
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

bool is_gtp_id(std::string_view word) {
  return !word.empty() && word.size() <= 10 &&
         std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::optional<Color> parse_gtp_color(std::string_view word) {
  std::string lower(word);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  if (lower == "b" || lower == "black") return Color::kBlack;
  if (lower == "w" || lower == "white") return Color::kWhite;
  return std::nullopt;
}

std::string gtp_answer(bool success, std::string_view id, std::string_view text) {
  std::string out(success ? "=" : "?");
  out += id;
  out += ' ';  // also before an empty text, as HexGui and GNU Go have it
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      if (out.back() == '\n') out += ' ';
      out += c;
    } else {
      out += static_cast<unsigned char>(c) < ' ' && c != '\t' && c != '\x1b' ? '?' : c;
    }
  }
  while (out.back() == '\n') out.pop_back();
  return out + "\n\n";
}

std::string gtp_info(const Board& board, const SearchReport& report, GtpInfo form) {
  std::string out;
  int order = 0;
  for (const MoveReport& move : report.moves) {
    if (!out.empty()) out += ' ';
    out += absl::StrFormat("info move %s visits %d ", board.name(move.move), move.visits);
    if (form == GtpInfo::kLeela) {
      out += absl::StrFormat("winrate %.0f prior %.0f", 1e4 * unit(move.win_rate),
                             1e4 * unit(move.prior));
    } else {
      out += absl::StrFormat("winrate %.6f prior %.6f", unit(move.win_rate), unit(move.prior));
    }
    out += absl::StrFormat(" order %d pv", order++);
    if (move.line.empty()) out += " " + board.name(move.move);
    for (const Move next : move.line) out += " " + board.name(next);
  }
  return out;
}

std::string gtp_graphics(const Board& board, const SearchReport& report) {
  std::string line = "VAR";
  std::string influence = "INFLUENCE";
  std::string label = "LABEL";
  if (!report.moves.empty()) {
    Color color = report.color;
    for (const Move move : report.moves[0].line) {
      if (move == kSwapPieces) break;
      line += std::string(color == Color::kBlack ? " B " : " W ") + board.name(move);
      color = opponent(color);
    }
  }
  for (const MoveReport& move : report.moves) {
    if (!is_cell(move)) continue;
    const std::string name = board.name(move.move);
    const std::string value = !move.proven_win   ? absl::StrFormat("%.2f", unit(move.win_rate))
                              : *move.proven_win ? "W"
                                                 : "L";
    influence += " " + name + " " + value;
    label += absl::StrFormat(" %s %d", name, move.visits);
  }
  return "gogui-gfx:\nuct\n" + line + "\n" + influence + "\n" + label +
         absl::StrFormat("\nTEXT %d iterations, %.1f s\n\n", report.iterations, report.seconds);
}

std::optional<absl::StatusOr<std::string>> GtpAnswers::next() {
  // An answer ends with an empty line. Carriage returns are ignored.
  for (size_t at = received_.find('\n', scanned_); at != std::string::npos;
       at = received_.find('\n', at + 1)) {
    size_t next = at + 1;
    if (next < received_.size() && received_[next] == '\r') ++next;
    if (next >= received_.size()) break;  // the next character is not received yet
    scanned_ = next;
    if (received_[next] != '\n') continue;
    const std::string block = trimmed(std::string_view(received_).substr(0, at));
    received_.erase(0, next + 1);
    scanned_ = 0;
    at = static_cast<size_t>(-1);  // continue at the beginning of the remaining text
    if (block.empty() || block.rfind("gogui-gfx:", 0) == 0) continue;
    if (block[0] == '=') return trimmed(std::string_view(block).substr(1));
    if (block[0] == '?') {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        trimmed(std::string_view(block).substr(1)));
    }
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                      "the engine's output is not a GTP answer");
  }
  if (received_.size() <= kMaxBytes) return std::nullopt;
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                    "the engine's answer is longer than 4 MiB");
}

}  // namespace cariama::hex
