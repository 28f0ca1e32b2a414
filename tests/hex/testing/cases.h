// The solved positions of tests/hex/data/hex_cases.jsonl: one JSON object per line. "complete"
// means that winning_moves lists all winning moves.
#ifndef CARIAMA_TESTS_HEX_TESTING_CASES_H_
#define CARIAMA_TESTS_HEX_TESTING_CASES_H_

#include <string>
#include <vector>

#include "hex/board.h"

namespace cariama::hex::testing {

struct SolvedCase {
  std::string id;
  Board board;
  Color winner = Color::kBlack;
  std::vector<Move> winning_moves;  // ascending
  bool complete = false;
};

// Returns all solved positions. Empty if the file cannot be read.
std::vector<SolvedCase> solved_cases();

}  // namespace cariama::hex::testing

#endif  // CARIAMA_TESTS_HEX_TESTING_CASES_H_
