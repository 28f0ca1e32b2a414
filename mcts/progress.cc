#include "mcts/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cariama::mcts {
namespace {

// Returns part / whole in percent; 0 for a whole of 0.
int64_t percent(double part, double whole) {
  return whole > 0 ? std::llround(100 * std::clamp(part / whole, 0.0, 1.0)) : 0;
}
int64_t per_second(uint64_t count, double seconds) {
  return seconds > 0 ? std::llround(static_cast<double>(count) / seconds) : 0;
}

}  // namespace

std::string processes_text(std::span<const Statistics> processes, double seconds,
                           uint32_t threads) {
  uint64_t all = 0;
  for (const Statistics& one : processes) all += one.completions;
  std::string text;
  for (size_t rank = 0; rank < processes.size(); ++rank) {
    const Statistics& one = processes[rank];
    absl::StrAppend(&text, "rank ", rank, ": ", one.completions, " iterations (",
                    percent(static_cast<double>(one.completions), static_cast<double>(all)),
                    " %), ", per_second(one.completions, seconds), "/s, idle ",
                    percent(one.idle_seconds, seconds * threads), " %, ",
                    per_second(one.messages, seconds), " messages/s, ", one.nodes, " nodes");
    if (one.completions == 0 && all != 0) absl::StrAppend(&text, ": takes no part");
    text += '\n';
  }
  return text;
}

std::string internal::summary_text(double seconds, uint64_t iterations, double value,
                                   std::span<const std::string> line) {
  return absl::StrCat(std::round(10 * seconds) / 10, " s, ", iterations, " iterations, ",
                      percent(value, 1), " %: ", absl::StrJoin(line, " "), "\n");
}

}  // namespace cariama::mcts
