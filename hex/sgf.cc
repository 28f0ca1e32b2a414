#include "hex/sgf.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>

#include "dtutils/error.h"

namespace cariama::hex {
namespace {

constexpr size_t kMaxText = size_t{16} << 20;
constexpr size_t kMaxDepth = 4096;

absl::Status bad(size_t at, std::string_view what) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "SGF, character " + std::to_string(at + 1) + ": " + std::string(what));
}

struct Property {
  std::string name;
  std::vector<std::string> values;
  size_t at = 0;
};
using Node = std::vector<Property>;

// Reads the nodes of the main line of the first game tree. Checks the syntax of the other branches
// and drops them.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  absl::StatusOr<std::vector<Node>> read() {
    at_ = text_.find('(');
    if (at_ == std::string_view::npos) return bad(0, "no game: the text contains no '('");
    std::vector<Node> nodes;
    size_t depth = 0;
    bool main_line = true;  // no branch has been closed yet
    for (;;) {
      skip_space();
      if (at_ == text_.size()) return bad(at_, "the text ends within the game");
      const char c = text_[at_];
      if (c == '(') {
        ++at_;
        if (++depth > kMaxDepth) return bad(at_ - 1, "branches are nested too deeply");
      } else if (c == ')') {
        ++at_;
        main_line = false;
        if (--depth == 0) return nodes;
      } else if (c == ';') {
        ++at_;
        if (main_line) nodes.emplace_back();
      } else {
        Property property;
        if (absl::Status status = read_property(property); !status.ok()) return status;
        if (!main_line) continue;
        if (nodes.empty()) return bad(property.at, "a property outside of a node");
        nodes.back().push_back(std::move(property));
      }
    }
  }

 private:
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || (text_[at_] >= '\t' && text_[at_] <= '\r'))) {
      ++at_;
    }
  }

  absl::Status read_property(Property& property) {
    property.at = at_;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c >= 'A' && c <= 'Z') {
        property.name += c;
      } else if (c < 'a' || c > 'z') {  // FF[3] and older allow lower-case letters in names
        break;
      }
    }
    if (property.name.empty()) return bad(property.at, "neither node, branch nor property");
    for (;;) {
      skip_space();
      if (at_ == text_.size() || text_[at_] != '[') break;
      std::string value;
      for (++at_; at_ < text_.size() && text_[at_] != ']'; ++at_) {
        if (text_[at_] == '\\') {
          if (++at_ == text_.size()) break;
          if (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
          // A backslash before a line break removes the break (soft line break).
          if (text_[at_] == '\n' || text_[at_] == '\r') continue;
        }
        value += text_[at_];
      }
      if (at_ >= text_.size()) return bad(property.at, "a value without its ']'");
      ++at_;
      property.values.push_back(std::move(value));
    }
    if (property.values.empty()) return bad(property.at, "a property without a value");
    return absl::OkStatus();
  }

  std::string_view text_;
  size_t at_ = 0;
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

// Parses a number of up to three digits. Returns -1 if the text is none.
int small_number(std::string_view text) {
  if (text.empty() || text.size() > 3) return -1;
  int number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    number = number * 10 + (c - '0');
  }
  return number;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == ']' || c == '[' || c == ':') result += '\\';
    result += c;
  }
  return result;
}

const Property* find(const Node& node, std::string_view name) {
  for (const Property& property : node) {
    if (property.name == name) return &property;
  }
  return nullptr;
}

void take_text(const Node& root, std::string_view name, std::string& out) {
  if (const Property* property = find(root, name)) out = property->values[0];
}

// Reads the properties of the root node: size, names, result, date.
absl::Status read_root(const Node& root, SgfGame& game) {
  if (const Property* kind = find(root, "GM"); kind != nullptr && kind->values[0] != "11") {
    return bad(kind->at, "the game is not Hex (GM[11])");
  }
  if (const Property* size = find(root, "SZ")) {
    const std::string& text = size->values[0];
    const size_t colon = text.find(':');
    const int cols = small_number(std::string_view(text).substr(0, colon));
    const int rows =
        colon == std::string::npos ? cols : small_number(std::string_view(text).substr(colon + 1));
    if (!is_board_size(cols, rows)) return bad(size->at, "a size other than 3x3 to 25x25");
    game.start = Board(cols, rows);
  }
  take_text(root, "PB", game.black_name);
  take_text(root, "PW", game.white_name);
  take_text(root, "RE", game.result);
  take_text(root, "DT", game.date);
  return absl::OkStatus();
}

// Reads the set-up properties of a node. They are accepted only before the first move.
absl::Status read_setup(const Node& node, Board& board) {
  Board::Set stones[2] = {board.stones(Color::kBlack), board.stones(Color::kWhite)};
  Color to_move = board.to_move();
  bool changed = false;
  for (const Property& property : node) {
    if (property.name == "PL") {
      const std::string who = lower(property.values[0]);
      if (who != "b" && who != "w" && who != "black" && who != "white") {
        return bad(property.at, "PL is neither B nor W");
      }
      to_move = who[0] == 'b' ? Color::kBlack : Color::kWhite;
      changed = true;
    }
    if (property.name != "AB" && property.name != "AW" && property.name != "AE") continue;
    for (const std::string& value : property.values) {
      const auto cell = parse_cell(value, board.cols(), board.rows());
      if (!cell) return bad(property.at, "a stone outside of the board");
      stones[0].reset(*cell);
      stones[1].reset(*cell);
      if (property.name == "AB") stones[0].set(*cell);
      if (property.name == "AW") stones[1].set(*cell);
    }
    changed = true;
  }
  if (changed) board.set_position(stones[0], stones[1], to_move);
  return absl::OkStatus();
}

void write_move(const SgfMove& move, const Board& board, std::string& out) {
  out += move.color == Color::kBlack ? ";B[" : ";W[";
  out += board.name(move.move) + "]";
  if (!move.comment.empty()) out += "C[" + escaped(move.comment) + "]";
}

}  // namespace

absl::StatusOr<SgfGame> parse_sgf(std::string_view text) {
  if (text.size() > kMaxText) return bad(kMaxText, "longer than 16 MiB");
  absl::StatusOr<std::vector<Node>> nodes = Reader(text).read();
  if (!nodes.ok()) return nodes.status();
  SgfGame game;
  if (nodes->empty()) return bad(0, "a game without nodes");
  if (absl::Status status = read_root(nodes->front(), game); !status.ok()) return status;
  // The board needs the swap rule before the first move, so search for a swap now.
  for (const Node& node : *nodes) {
    for (const Property& property : node) {
      if (property.name == "W" && lower(property.values[0]) == "swap-pieces") {
        game.start = Board(game.start.cols(), game.start.rows(), SwapRule::kOn);
      }
    }
  }
  GameRecord record(game.start);
  for (const Node& node : *nodes) {
    if (game.moves.empty()) {
      if (absl::Status status = read_setup(node, game.start); !status.ok()) return status;
      record = GameRecord(game.start);
    }
    const size_t moves_before = game.moves.size();
    size_t first_move_at = SIZE_MAX;  // the position of the node's first move in the text
    for (const Property& property : node) {
      if (property.name != "B" && property.name != "W") continue;
      const Color color = property.name == "B" ? Color::kBlack : Color::kWhite;
      const std::string value = lower(property.values[0]);
      if (value == "swap-sides" || value == "pass" || value.empty()) continue;
      if (value == "resign" || value == "forfeit") {
        game.resigned = color;
        continue;
      }
      const auto move = record.board().parse(value);
      if (!move || !record.play(color, *move)) {
        return bad(property.at, "move " + std::to_string(game.moves.size() + 1) + " is illegal");
      }
      if (game.moves.size() == moves_before) first_move_at = property.at;
      game.moves.push_back({color, *move, {}, {}});
    }
    // The properties of a node have no order, so its comment belongs to its move also if it stands
    // before the move. Only in the root, a comment before the move is the comment of the game.
    if (const Property* comment = find(node, "C")) {
      const bool of_game =
          game.moves.empty() || (&node == &nodes->front() && comment->at < first_move_at);
      std::string& text = of_game ? game.comment : game.moves.back().comment;
      // A node without a move adds its comment to that of the move or game before.
      if (!text.empty()) text += '\n';
      text += comment->values[0];
    }
  }
  return game;
}

std::string format_sgf(const SgfGame& game) {
  const Board& start = game.start;
  std::string out = "(;FF[4]GM[11]CA[UTF-8]AP[Cariama]SZ[" + std::to_string(start.cols());
  if (start.cols() != start.rows()) out += ":" + std::to_string(start.rows());
  out += "]";
  const auto text = [&out](std::string_view name, const std::string& value) {
    if (!value.empty()) out += std::string(name) + "[" + escaped(value) + "]";
  };
  text("PB", game.black_name);
  text("PW", game.white_name);
  text("RE", game.result);
  text("DT", game.date);
  text("C", game.comment);
  for (const Color color : {Color::kBlack, Color::kWhite}) {
    if (!start.stones(color).any()) continue;
    out += color == Color::kBlack ? "AB" : "AW";
    start.stones(color).for_each(
        [&](int cell) { out += "[" + start.name(static_cast<Move>(cell)) + "]"; });
  }
  if (start.to_move() == Color::kWhite || start.moves_played() != 0) {
    out += start.to_move() == Color::kBlack ? "PL[B]" : "PL[W]";
  }
  size_t open = 0;  // number of open branches that contain the main line
  for (const SgfMove& move : game.moves) {
    out += '\n';
    if (!move.variations.empty()) {
      out += '(';
      ++open;
    }
    write_move(move, start, out);
  }
  if (game.resigned) out += *game.resigned == Color::kBlack ? "\n;B[resign]" : "\n;W[resign]";
  // Close the branches, from the last move with alternatives to the first one, and write the
  // alternatives behind each.
  for (size_t i = game.moves.size(); i-- > 0 && open > 0;) {
    if (game.moves[i].variations.empty()) continue;
    --open;
    out += ')';
    for (const std::vector<SgfMove>& line : game.moves[i].variations) {
      out += "\n(";
      for (const SgfMove& move : line) write_move(move, start, out);
      out += ')';
    }
  }
  return out + ")\n";
}

absl::StatusOr<SgfGame> load_sgf(const std::string& path) {
  // Only regular files: reading a pipe or a terminal could block forever.
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return make_errno_error(errno, ErrorScope::kOperation, "cannot read " + path);
  }
  if (!S_ISREG(info.st_mode) || static_cast<size_t>(info.st_size) > kMaxText) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      path + " is not a regular file of up to 16 MiB");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(info.st_size), '\0');
  if (!file.read(text.data(), info.st_size)) {
    return make_errno_error(errno, ErrorScope::kOperation, "cannot read " + path);
  }
  return parse_sgf(text);
}

absl::Status save_sgf(const std::string& path, const SgfGame& game) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << format_sgf(game);
  file.close();
  if (!file) return make_errno_error(errno, ErrorScope::kOperation, "cannot write " + path);
  return absl::OkStatus();
}

GameRecord to_record(const SgfGame& game, size_t moves) {
  GameRecord record(game.start);
  for (size_t i = 0; i < moves && i < game.moves.size(); ++i) {
    record.play(game.moves[i].color, game.moves[i].move);
  }
  return record;
}

SgfGame to_sgf(const GameRecord& record) {
  SgfGame game;
  game.start = record.start();
  for (const Step& step : record.steps()) game.moves.push_back({step.color, step.move, {}, {}});
  if (const auto winner = record.board().winner()) {
    game.result = *winner == Color::kBlack ? "B+" : "W+";
  }
  return game;
}

}  // namespace cariama::hex
