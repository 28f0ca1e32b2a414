#include "dtutils/internal/sysfs.h"

#include <charconv>
#include <fstream>
#include <iterator>

namespace cariama::internal {
namespace {

// The largest CPU or node number that a list may contain.
constexpr int kMaxListed = 1 << 16;

std::optional<uint64_t> take_number(std::string_view& text) {
  uint64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(rest - text.data()));
  return number;
}

}  // namespace

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return std::nullopt;
  text.erase(text.find_last_not_of(" \n\t") + 1);
  return text;
}

std::optional<uint64_t> read_number(const std::string& path) {
  const std::optional<std::string> text = read_text(path);
  if (!text) return std::nullopt;
  std::string_view rest = *text;
  const std::optional<uint64_t> number = take_number(rest);
  return rest.empty() ? number : std::nullopt;
}

std::optional<uint64_t> read_meminfo(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view label = std::string_view(line).substr(0, colon);
    const size_t space = label.rfind(' ');
    if (label.substr(space == std::string_view::npos ? 0 : space + 1) != name) continue;
    std::string_view rest = std::string_view(line).substr(colon + 1);
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
    const std::optional<uint64_t> kilobytes = take_number(rest);
    if (!kilobytes) return std::nullopt;
    return *kilobytes * 1024;
  }
  return std::nullopt;
}

std::string chosen_word(std::string_view text) {
  const size_t open = text.find('[');
  const size_t close = text.find(']', open == std::string_view::npos ? 0 : open);
  if (open == std::string_view::npos || close == std::string_view::npos) return "";
  return std::string(text.substr(open + 1, close - open - 1));
}

std::vector<int> parse_list(std::string_view text) {
  std::vector<int> list;
  while (!text.empty()) {
    const std::optional<uint64_t> first = take_number(text);
    std::optional<uint64_t> last = first;
    if (first && !text.empty() && text.front() == '-') {
      text.remove_prefix(1);
      last = take_number(text);
    }
    if (!first || !last || *last < *first || *last > kMaxListed) break;
    for (uint64_t id = *first; id <= *last; ++id) list.push_back(static_cast<int>(id));
    if (text.empty() || text.front() != ',') break;
    text.remove_prefix(1);
  }
  return list;
}

}  // namespace cariama::internal
