#include "hex/web/web_text.h"

#include <arpa/inet.h>

#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtutils/internal/json.h"

namespace cariama::hex {
namespace {

// view_json() writes the expected continuation of this number of moves, the best ones.
constexpr size_t kMovesWithLine = 24;

// Returns the name or address in the value of a Host header: without port, and without the brackets
// of an IPv6 address.
std::string host_name(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    if (end == std::string_view::npos) return {};
    const std::string_view port = host.substr(end + 1);
    if (!port.empty() && port[0] != ':') return {};
    return std::string(host.substr(1, end - 1));
  }
  return std::string(host.substr(0, host.find(':')));
}

std::string json_cells(const Board& board, const Board::Set& cells) {
  std::string text;
  cells.for_each([&](int cell) {
    absl::StrAppend(&text, text.empty() ? "" : ",", "\"", board.name(static_cast<Move>(cell)),
                    "\"");
  });
  return "[" + text + "]";
}

std::string json_color(Color color) { return color == Color::kBlack ? "\"b\"" : "\"w\""; }

const char* json_bool(bool value) { return value ? "true" : "false"; }

// Returns the stones of the winner that are connected with both of its edges.
Board::Set winning_chain(const Board& board) {
  if (!board.winner()) return {};
  const Geometry& geometry = board.geometry();
  const bool black = *board.winner() == Color::kBlack;
  const Board::Set& stones = board.stones(*board.winner());
  const Board::Set first = board.flood(black ? geometry.first_row : geometry.first_column, stones);
  const Board::Set last = board.flood(black ? geometry.last_row : geometry.last_column, stones);
  return first & last;
}

std::string json_moves(const Board& board, const std::vector<SgfMove>& moves) {
  std::string text;
  for (const SgfMove& move : moves) {
    absl::StrAppend(&text, text.empty() ? "" : ",", "{\"color\":", json_color(move.color),
                    ",\"move\":\"", board.name(move.move),
                    "\",\"comment\":", json_string(move.comment), "}");
  }
  return "[" + text + "]";
}

std::string json_stones(const Board& board) {
  return absl::StrCat("\"black\":", json_cells(board, board.stones(Color::kBlack)),
                      ",\"white\":", json_cells(board, board.stones(Color::kWhite)),
                      ",\"to_move\":", json_color(board.to_move()));
}

}  // namespace

bool is_ip_address(const std::string& address) {
  std::array<unsigned char, 16> bytes{};
  return ::inet_pton(AF_INET, address.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1;
}

bool is_loopback_address(const std::string& address) {
  std::array<unsigned char, 16> bytes{};
  if (::inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) return bytes[0] == 127;
  if (::inet_pton(AF_INET6, address.c_str(), bytes.data()) != 1) return false;
  std::array<unsigned char, 16> one{};
  one[15] = 1;
  return bytes == one;
}

bool is_accepted_host(std::string_view host, const std::string& address) {
  const std::string name = host_name(host);
  if (name == "localhost") return true;
  return is_loopback_address(address) ? is_loopback_address(name) : is_ip_address(name);
}

bool is_accepted_origin(std::string_view origin, std::string_view host) {
  return origin.starts_with("http://") && origin.substr(7) == host;
}

absl::StatusOr<SgfGame> parse_web_game(std::string_view sgf, bool swap) {
  absl::StatusOr<SgfGame> game = parse_sgf(sgf);
  if (!game.ok() || !swap) return game;
  const Board& start = game->start;
  if (start.moves_played() == 0 && start.to_move() == Color::kBlack) {
    game->start = Board(start.cols(), start.rows(), SwapRule::kOn);
  }
  return game;
}

std::string game_json(const SgfGame& game) {
  const Board& start = game.start;
  const Board board = to_record(game).board();
  std::string variations;
  for (const SgfVariation& one : game.variations) {
    absl::StrAppend(&variations, variations.empty() ? "" : ",", "{\"line\":", one.line,
                    ",\"after\":", one.after, ",\"moves\":", json_moves(start, one.moves), "}");
  }
  return absl::StrCat(
      "{\"cols\":", board.cols(), ",\"rows\":", board.rows(),
      ",\"swap\":", json_bool(board.swap_rule() == SwapRule::kOn), ",\"start\":{",
      json_stones(start), "},\"moves\":", json_moves(start, game.moves), ",\"variations\":[",
      variations, "],\"position\":{", json_stones(board),
      ",\"may_swap\":", json_bool(board.may_swap()),
      ",\"winner\":", board.winner() ? json_color(*board.winner()) : "null",
      ",\"chain\":", json_cells(board, winning_chain(board)),
      "},\"black_name\":", json_string(game.black_name),
      ",\"white_name\":", json_string(game.white_name), ",\"result\":", json_string(game.result),
      ",\"date\":", json_string(game.date), ",\"comment\":", json_string(game.comment), "}");
}

std::string view_json(const Board& board, const SearchView& view) {
  const SearchReport& report = view.report;
  std::string moves;
  for (size_t i = 0; i < report.moves.size(); ++i) {
    const MoveReport& move = report.moves[i];
    if (move.visits == 0 && !move.proven_win) continue;
    absl::StrAppendFormat(&moves, "%s{\"move\":\"%s\",\"visits\":%u,\"win_rate\":%.4f",
                          moves.empty() ? "" : ",", board.name(move.move), move.visits,
                          move.win_rate);
    if (move.proven_win) absl::StrAppend(&moves, ",\"proven\":", json_bool(*move.proven_win));
    if (i < kMovesWithLine) {
      std::string line;
      for (const Move next : move.line) {
        absl::StrAppend(&line, line.empty() ? "" : ",", "\"", board.name(next), "\"");
      }
      absl::StrAppend(&moves, ",\"line\":[", line, "]");
    }
    moves += '}';
  }
  std::string processes;
  for (const ProcessLoad& load : view.processes) {
    absl::StrAppendFormat(&processes,
                          "%s{\"alive\":%s,\"iterations\":%.0f,\"idle\":%.3f,\"messages\":%.0f}",
                          processes.empty() ? "" : ",", json_bool(load.alive),
                          load.iterations_per_second, load.idle_share, load.messages_per_second);
  }
  std::string text = absl::StrFormat(
      "{\"ahead\":%u,\"ended\":%s,\"color\":%s,\"iterations\":%u,\"seconds\":%.3f,"
      "\"moves\":[%s],\"processes\":[%s]",
      view.ahead, json_bool(view.ended), json_color(report.color), report.iterations,
      report.seconds, moves, processes);
  if (view.move != kNoMove) absl::StrAppend(&text, ",\"chosen\":\"", board.name(view.move), "\"");
  return text + "}";
}

}  // namespace cariama::hex
