#include "bench/support/list_flag.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "dtutils/error.h"

namespace cariama::bench {

absl::StatusOr<std::vector<uint64_t>> parse_numbers(std::string_view flag, const std::string& text,
                                                    uint64_t least, uint64_t most) {
  const std::string name(flag);
  std::vector<uint64_t> numbers;
  const std::vector<std::string> items = absl::StrSplit(text, ',');
  for (const std::string& whole : items) {
    std::string item = whole;
    unsigned shift = 0;
    for (const auto& [suffix, bits] : {std::pair("Ki", 10U), std::pair("Mi", 20U)}) {
      if (absl::EndsWith(item, suffix)) {
        shift = bits;
        item.resize(item.size() - 2);
      }
    }
    uint64_t number = 0;
    if (!absl::SimpleAtoi(item, &number) || number > (UINT64_MAX >> shift) ||
        (number << shift) < least || (number << shift) > most) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        "--" + name + ": '" + whole + "' is not a number from " + size_text(least) +
                            " to " + size_text(most),
                        "give a number or a list like 8,4Ki,1Mi");
    }
    numbers.push_back(number << shift);
  }
  return numbers;
}

std::string size_text(uint64_t bytes) {
  if (bytes != 0 && bytes % (1U << 20) == 0) return std::to_string(bytes >> 20) + "Mi";
  if (bytes != 0 && bytes % (1U << 10) == 0) return std::to_string(bytes >> 10) + "Ki";
  return std::to_string(bytes);
}

}  // namespace cariama::bench
