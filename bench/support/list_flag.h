// Comma-separated lists of numbers on the command line, with binary suffixes: "8,64,4Ki,1Mi".
#ifndef CARIAMA_BENCH_SUPPORT_LIST_FLAG_H_
#define CARIAMA_BENCH_SUPPORT_LIST_FLAG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace cariama::bench {

// Returns the numbers of `text`, each within [least, most]. `flag` is the flag's name for the error
// text. Error: INVALID_ARGUMENT (not such a list, or a number out of range).
[[nodiscard]] absl::StatusOr<std::vector<uint64_t>> parse_numbers(std::string_view flag,
                                                                  const std::string& text,
                                                                  uint64_t least, uint64_t most);

// Returns "1Mi" for 1048576, "1000" for 1000.
[[nodiscard]] std::string size_text(uint64_t bytes);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_LIST_FLAG_H_
