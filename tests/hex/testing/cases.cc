#include "tests/hex/testing/cases.h"

#include <algorithm>
#include <fstream>

namespace cariama::hex::testing {
namespace {

// Returns the text from after `"key": ` to the end of the value. This suffices for the file, since
// its strings contain no quotes.
std::string field(const std::string& line, const std::string& key) {
  const std::string label = "\"" + key + "\": ";
  const size_t found = line.find(label);
  if (found == std::string::npos) return {};
  const size_t start = found + label.size();
  const char end = line[start] == '[' ? ']' : line[start] == '"' ? '"' : ',';
  return line.substr(start, line.find(end, start + 1) - start);
}

std::vector<Move> moves(const Board& board, const std::string& list) {
  std::vector<Move> result;
  for (size_t at = list.find('"'); at != std::string::npos;) {
    const size_t end = list.find('"', at + 1);
    result.push_back(board.parse(list.substr(at + 1, end - at - 1)).value());
    at = list.find('"', end + 1);
  }
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace

std::vector<SolvedCase> solved_cases() {
  std::vector<SolvedCase> cases;
  std::ifstream file(CARIAMA_SOURCE_DIR "/tests/hex/data/hex_cases.jsonl");
  for (std::string line; std::getline(file, line);) {
    SolvedCase solved;
    solved.id = field(line, "id").substr(1);
    Board board(std::stoi(field(line, "cols")), std::stoi(field(line, "rows")));
    Board::Set stones[2];
    for (const Move cell : moves(board, field(line, "black"))) stones[0].set(cell);
    for (const Move cell : moves(board, field(line, "white"))) stones[1].set(cell);
    board.set_position(stones[0], stones[1],
                       field(line, "to_move") == "\"b" ? Color::kBlack : Color::kWhite);
    solved.board = board;
    solved.winner = field(line, "winner") == "\"b" ? Color::kBlack : Color::kWhite;
    solved.winning_moves = moves(board, field(line, "winning_moves"));
    solved.complete = field(line, "complete") == "true";
    cases.push_back(solved);
  }
  return cases;
}

}  // namespace cariama::hex::testing
