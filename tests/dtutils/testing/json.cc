#include "tests/dtutils/testing/json.h"

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace cariama::testing {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  std::optional<Json> whole() {
    std::optional<Json> json = value();
    skip_space();
    return rest_.empty() ? json : std::nullopt;
  }

 private:
  void skip_space() {
    while (!rest_.empty() && std::string_view(" \t\n\r").find(rest_[0]) != std::string_view::npos) {
      rest_.remove_prefix(1);
    }
  }
  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  std::optional<Json> value() {
    skip_space();
    if (take("null")) return Json{nullptr};
    if (take("true")) return Json{true};
    if (take("false")) return Json{false};
    if (take("[")) return array();
    if (take("{")) return object();
    if (rest_.starts_with('"')) {
      std::optional<std::string> text = string();
      if (!text) return std::nullopt;
      return Json{*std::move(text)};
    }
    return number();
  }

  std::optional<Json> array() {
    Json::Array elements;
    skip_space();
    if (take("]")) return Json{elements};
    do {
      std::optional<Json> element = value();
      if (!element) return std::nullopt;
      elements.push_back(*std::move(element));
      skip_space();
    } while (take(","));
    return take("]") ? std::optional<Json>(Json{std::move(elements)}) : std::nullopt;
  }

  std::optional<Json> object() {
    Json::Object members;
    skip_space();
    if (take("}")) return Json{members};
    do {
      skip_space();
      std::optional<std::string> key = string();
      skip_space();
      if (!key || !take(":")) return std::nullopt;
      std::optional<Json> member = value();
      if (!member || !members.emplace(*key, *std::move(member)).second) return std::nullopt;
      skip_space();
    } while (take(","));
    return take("}") ? std::optional<Json>(Json{std::move(members)}) : std::nullopt;
  }

  // An escaped character beyond ASCII is returned as its escape sequence: no test needs its value.
  std::optional<std::string> string() {
    if (!take("\"")) return std::nullopt;
    std::string text;
    while (!rest_.empty() && !rest_.starts_with('"')) {
      if (static_cast<uint8_t>(rest_[0]) < 0x20) return std::nullopt;
      if (!take("\\")) {
        text += rest_[0];
        rest_.remove_prefix(1);
        continue;
      }
      if (rest_.empty()) return std::nullopt;
      const size_t simple = std::string_view("\"\\/bfnrt").find(rest_[0]);
      if (simple != std::string_view::npos) {
        text += "\"\\/\b\f\n\r\t"[simple];
        rest_.remove_prefix(1);
      } else if (take("u")) {
        const std::string digits(rest_.substr(0, 4));
        if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos ||
            digits.size() != 4) {
          return std::nullopt;
        }
        const unsigned long point = std::stoul(digits, nullptr, 16);
        text += point < 0x80 ? std::string(1, static_cast<char>(point)) : "\\u" + digits;
        rest_.remove_prefix(4);
      } else {
        return std::nullopt;
      }
    }
    return take("\"") ? std::optional<std::string>(std::move(text)) : std::nullopt;
  }

  size_t digits() {
    size_t count = 0;
    while (count < rest_.size() && std::isdigit(static_cast<unsigned char>(rest_[count])) != 0) {
      ++count;
    }
    rest_.remove_prefix(count);
    return count;
  }

  std::optional<Json> number() {
    const std::string_view start = rest_;
    take("-");
    if (!take("0") && digits() == 0) return std::nullopt;
    if (take(".") && digits() == 0) return std::nullopt;
    if (take("e") || take("E")) {
      if (!take("+")) take("-");
      if (digits() == 0) return std::nullopt;
    }
    return Json{Json::Number{std::string(start.substr(0, start.size() - rest_.size()))}};
  }

  std::string_view rest_;
};

}  // namespace

std::optional<Json> parse_json(std::string_view text) { return Parser(text).whole(); }

}  // namespace cariama::testing
