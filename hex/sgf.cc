#include "hex/sgf.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <utility>

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

constexpr size_t kNone = SIZE_MAX;

// The nodes of the first game tree of a text, in the order of the text: each one after the node
// that it follows, and the whole of a branch before the next one.
struct Tree {
  std::vector<Node> nodes;
  std::vector<size_t> parents;  // for each node the one that it follows, or kNone
  size_t main_line = 0;         // number of nodes of the main line, which are the first ones
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  absl::StatusOr<Tree> read() {
    at_ = text_.find('(');
    if (at_ == std::string_view::npos) return bad(0, "no game: the text contains no '('");
    Tree tree;
    std::vector<size_t> branches;  // for each open branch the node that it follows
    size_t last = kNone;           // the node that the next one follows
    bool main_line = true;         // no branch has been closed yet
    bool in_node = false;          // properties belong to the last node
    for (;;) {
      skip_space();
      if (at_ == text_.size()) return bad(at_, "the text ends within the game");
      const char c = text_[at_];
      if (c == '(') {
        ++at_;
        branches.push_back(last);
        if (branches.size() > kMaxDepth) return bad(at_ - 1, "branches are nested too deeply");
      } else if (c == ')') {
        ++at_;
        if (main_line) tree.main_line = tree.nodes.size();
        main_line = false;
        in_node = false;
        last = branches.back();
        branches.pop_back();
        if (branches.empty()) return tree;
      } else if (c == ';') {
        ++at_;
        tree.parents.push_back(last);
        last = tree.nodes.size();
        tree.nodes.emplace_back();
        in_node = true;
      } else {
        Property property;
        if (absl::Status status = read_property(property); !status.ok()) return status;
        if (tree.nodes.empty()) return bad(property.at, "a property outside of a node");
        if (in_node) tree.nodes.back().push_back(std::move(property));
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

bool has_setup(const Node& node) {
  return find(node, "AB") != nullptr || find(node, "AW") != nullptr || find(node, "AE") != nullptr;
}

// Builds the game of a tree.
class Builder {
 public:
  absl::StatusOr<SgfGame> build(const Tree& tree) {
    if (tree.main_line == 0) return bad(0, "a game without nodes");
    if (absl::Status status = read_root(tree.nodes.front(), game_); !status.ok()) return status;
    // The board needs the swap rule before the first move, so search for a swap now.
    for (const Node& node : tree.nodes) {
      for (const Property& property : node) {
        if (property.name == "W" && lower(property.values[0]) == "swap-pieces") {
          game_.start = Board(game_.start.cols(), game_.start.rows(), SwapRule::kOn);
        }
      }
    }
    std::vector<Place> places;
    places.reserve(tree.nodes.size());
    for (size_t i = 0; i < tree.nodes.size(); ++i) {
      Place place = tree.parents[i] == kNone ? Place{} : places[tree.parents[i]];
      // Takes back the moves of the branches that have ended: see the order of Tree::nodes.
      while (record_.steps().size() > place.depth) record_.undo();
      if (i >= tree.main_line) {
        add_to_variation(tree.nodes[i], place);
      } else if (absl::Status status = add_to_main_line(tree.nodes[i], i == 0, place);
                 !status.ok()) {
        return status;
      }
      places.push_back(place);
    }
    return std::move(game_);
  }

 private:
  // The end of the path from the root to a node.
  struct Place {
    size_t line = 0;     // of the last move, as in SgfVariation
    size_t after = 0;    // number of moves of that line
    size_t depth = 0;    // number of moves of the path
    bool ended = false;  // the variation has ended: the nodes after this one are left out
  };

  [[nodiscard]] std::vector<SgfMove>& moves_of(size_t line) {
    return line == 0 ? game_.moves : game_.variations[line - 1].moves;
  }

  absl::Status add_to_main_line(const Node& node, bool root, Place& place) {
    if (game_.moves.empty()) {
      if (absl::Status status = read_setup(node, game_.start); !status.ok()) return status;
      record_ = GameRecord(game_.start);
    }
    size_t first_move_at = SIZE_MAX;  // the position of the node's first move in the text
    for (const Property& property : node) {
      const std::optional<Color> resigned = resignation(property);
      if (resigned) game_.resigned = resigned;
      if (resigned || !is_turn(property)) continue;
      if (!play(property, /*main_line=*/true, place)) {
        return bad(property.at, "move " + std::to_string(place.depth + 1) + " is illegal");
      }
      first_move_at = std::min(first_move_at, property.at);
    }
    // The properties of a node have no order, so its comment belongs to its move also if it stands
    // before the move. Only in the root, a comment before the move is the comment of the game.
    const Property* comment = find(node, "C");
    add_comment(comment, root && comment != nullptr && comment->at < first_move_at, place);
    return absl::OkStatus();
  }
  void add_to_variation(const Node& node, Place& place) {
    if (has_setup(node)) place.ended = true;
    for (const Property& property : node) {
      if (place.ended) return;
      if (resignation(property) || !is_turn(property)) continue;
      place.ended = !play(property, /*main_line=*/false, place);
    }
    if (!place.ended) add_comment(find(node, "C"), false, place);
  }
  // A node without a move adds its comment to that of the move or game before.
  void add_comment(const Property* comment, bool of_game, const Place& place) {
    if (comment == nullptr) return;
    std::string& text =
        of_game || place.depth == 0 ? game_.comment : moves_of(place.line)[place.after - 1].comment;
    if (!text.empty()) text += '\n';
    text += comment->values[0];
  }

  [[nodiscard]] static Color color_of(const Property& property) {
    return property.name == "B" ? Color::kBlack : Color::kWhite;
  }
  // Returns true for a move on the board, a swap of stones, and a resignation.
  [[nodiscard]] static bool is_turn(const Property& property) {
    if (property.name != "B" && property.name != "W") return false;
    const std::string value = lower(property.values[0]);
    return value != "swap-sides" && value != "pass" && !value.empty();
  }
  [[nodiscard]] static std::optional<Color> resignation(const Property& property) {
    if (!is_turn(property)) return std::nullopt;
    const std::string value = lower(property.values[0]);
    if (value != "resign" && value != "forfeit") return std::nullopt;
    return color_of(property);
  }
  // Plays the move of a property. Returns false without an effect if it is illegal.
  [[nodiscard]] bool play(const Property& property, bool main_line, Place& place) {
    const Color color = color_of(property);
    const auto move = record_.board().parse(property.values[0]);
    if (!move || !record_.play(color, *move)) return false;
    const bool extends =
        main_line || (place.line != 0 && place.after == moves_of(place.line).size());
    if (!extends) {
      game_.variations.push_back({place.line, place.after, {}});
      place.line = game_.variations.size();
      place.after = 0;
    }
    moves_of(place.line).push_back({color, *move, {}});
    ++place.after;
    ++place.depth;
    return true;
  }

  SgfGame game_;
  GameRecord record_{game_.start};
};

// Writes the moves of a game.
class Writer {
 public:
  Writer(const SgfGame& game, std::string& out)
      : game_(game), out_(out), variations_(game.variations.size() + 1) {
    for (size_t i = 0; i < game.variations.size(); ++i) {
      variations_[game.variations[i].line].push_back(i);
    }
    for (std::vector<size_t>& some : variations_) {
      std::stable_sort(some.begin(), some.end(), [&](size_t a, size_t b) {
        return game.variations[a].after < game.variations[b].after;
      });
    }
  }

  // Writes a line and the variations that leave it. Each of them begins a branch, and so does the
  // part of the line behind the same move.
  void write_line(size_t line) {
    const std::vector<SgfMove>& moves = line == 0 ? game_.moves : game_.variations[line - 1].moves;
    const std::vector<size_t>& leaving = variations_[line];
    const auto after = [&](size_t i) { return game_.variations[leaving[i]].after; };
    const bool resigns = line == 0 && game_.resigned.has_value();
    size_t next = 0;
    for (size_t i = 0; i <= moves.size(); ++i) {
      const bool branch = next < leaving.size() && after(next) == i;
      if (i == moves.size() && !resigns && !branch) break;
      if (line == 0) out_ += '\n';
      if (branch) out_ += '(';
      while (next < leaving.size() && after(next) == i) ++next;
      if (i < moves.size()) {
        write_move(moves[i]);
      } else if (resigns) {
        out_ += *game_.resigned == Color::kBlack ? ";B[resign]" : ";W[resign]";
      } else {
        out_ += ';';  // an empty node: without it the first variation would continue the line
      }
    }
    for (size_t end = leaving.size(); end > 0;) {
      size_t begin = end - 1;
      while (begin > 0 && after(begin - 1) == after(begin)) --begin;
      out_ += ')';
      for (size_t i = begin; i < end; ++i) {
        out_ += "\n(";
        write_line(leaving[i] + 1);
        out_ += ')';
      }
      end = begin;
    }
  }

 private:
  void write_move(const SgfMove& move) {
    out_ += move.color == Color::kBlack ? ";B[" : ";W[";
    out_ += game_.start.name(move.move) + "]";
    if (!move.comment.empty()) out_ += "C[" + escaped(move.comment) + "]";
  }

  const SgfGame& game_;
  std::string& out_;
  std::vector<std::vector<size_t>> variations_;  // by line: the indices of those that leave it
};

}  // namespace

absl::StatusOr<SgfGame> parse_sgf(std::string_view text) {
  if (text.size() > kMaxText) return bad(kMaxText, "longer than 16 MiB");
  absl::StatusOr<Tree> tree = Reader(text).read();
  if (!tree.ok()) return tree.status();
  return Builder().build(*tree);
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
  Writer(game, out).write_line(0);
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
  for (const Step& step : record.steps()) game.moves.push_back({step.color, step.move, {}});
  if (const auto winner = record.board().winner()) {
    game.result = *winner == Color::kBlack ? "B+" : "W+";
  }
  return game;
}

}  // namespace cariama::hex
