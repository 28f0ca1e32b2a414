// Texts that show a running or finished search to users.
//
//   const auto show = [&](const auto& result) {
//     std::fputs(progress_text(result, host.threads(), name_of_move).c_str(), stderr);
//   };
//   search.run(position, {.seconds = 10}, nullptr, show, 1.0);
#ifndef CARIAMA_MCTS_PROGRESS_H_
#define CARIAMA_MCTS_PROGRESS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mcts/export.h"
#include "mcts/options.h"

namespace cariama::mcts {

// Returns one line for each process, by rank: its iterations and their share of those of all
// processes, its iterations and messages per second, the part of the time in which its `threads`
// threads were idle, and its nodes. The line of a process without an iteration says that the
// process has taken no part. seconds: the duration of the search. Thread-safe.
[[nodiscard]] CARIAMA_MCTS_EXPORT std::string processes_text(std::span<const Statistics> processes,
                                                             double seconds, uint32_t threads);

namespace internal {
// The first line of progress_text(). line: the names of the moves of the principal variation.
[[nodiscard]] CARIAMA_MCTS_EXPORT std::string summary_text(double seconds, uint64_t iterations,
                                                           double value,
                                                           std::span<const std::string> line);
}  // namespace internal

// Returns a line with the time, the iterations, and the value and principal variation of the best
// move, and then processes_text(). name: returns a std::string for a move. Thread-safe if `name`
// is.
template <typename Move, typename Name>
[[nodiscard]] std::string progress_text(const SearchResult<Move>& result, uint32_t threads,
                                        const Name& name) {
  std::vector<std::string> line;
  double value = 0.5;
  if (!result.moves.empty()) {
    value = result.moves[0].value;
    for (const Move& move : result.moves[0].line) line.push_back(name(move));
  }
  return internal::summary_text(result.seconds, result.iterations, value, line) +
         processes_text(result.processes, result.seconds, threads);
}

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_PROGRESS_H_
