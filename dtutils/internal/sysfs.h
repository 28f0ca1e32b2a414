// Reads the small text files of procfs, sysfs and cgroups. The result is empty if a file cannot be
// read.
#ifndef CARIAMA_DTUTILS_INTERNAL_SYSFS_H_
#define CARIAMA_DTUTILS_INTERNAL_SYSFS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cariama::internal {

// Returns the whole file, without trailing white space.
[[nodiscard]] std::optional<std::string> read_text(const std::string& path);

// Returns the content of a file that contains one decimal number.
[[nodiscard]] std::optional<uint64_t> read_number(const std::string& path);

// Returns the number in the line "NAME: 123 kB" of a file in the style of /proc/meminfo, in bytes.
// NAME may follow other words ("Node 0 MemTotal: 123 kB").
[[nodiscard]] std::optional<uint64_t> read_meminfo(const std::string& path, std::string_view name);

// Returns the word in brackets of "always [madvise] never"; "" if there is none.
[[nodiscard]] std::string chosen_word(std::string_view text);

// Parses "0-3,8" as {0, 1, 2, 3, 8}. Stops at the first malformed part.
[[nodiscard]] std::vector<int> parse_list(std::string_view text);

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_SYSFS_H_
