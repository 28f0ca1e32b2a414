// The rows that cariama-info prints, as text or JSON.
#ifndef CARIAMA_TOOLS_INFO_REPORT_H_
#define CARIAMA_TOOLS_INFO_REPORT_H_

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/json.h"

namespace cariama {

using Value = std::variant<std::string, uint64_t, double, bool>;
using Param = std::pair<std::string_view, std::variant<std::string, int64_t>>;

// Prints each fact at once as JSON, or collects the facts as text under headings: the verdict is
// printed before them, and is known after them.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}

  void heading(const char* text) {
    if (!json_) absl::StrAppend(&text_, "\n", text, "\n");
  }

  void fact(std::string_view name, std::initializer_list<Param> params, const Value& value,
            std::string_view unit = "") {
    if (json_) {
      std::printf("{\"name\": %s, \"params\": {%s}, \"value\": %s, \"unit\": %s}\n",
                  json_string(name).c_str(), json_params(params).c_str(), json_value(value).c_str(),
                  json_string(unit).c_str());
      return;
    }
    std::string label(name);
    for (char& c : label) {
      if (c == '_') c = ' ';
    }
    for (const Param& param : params) absl::StrAppend(&label, ", ", text_of(param));
    absl::StrAppendFormat(&text_, "  %-44s %s\n", label, text_of(value, unit));
  }

  // The facts so far as text; "" for JSON.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  static std::string json_params(std::initializer_list<Param> params) {
    std::vector<std::string> parts;
    for (const auto& [name, value] : params) {
      const auto* const text = std::get_if<std::string>(&value);
      parts.push_back(absl::StrCat(
          json_string(name), ": ",
          text != nullptr ? json_string(*text) : absl::StrCat(std::get<int64_t>(value))));
    }
    return absl::StrJoin(parts, ", ");
  }

  static std::string json_value(const Value& value) {
    if (const auto* text = std::get_if<std::string>(&value)) return json_string(*text);
    if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
    if (const auto* real = std::get_if<double>(&value)) return absl::StrFormat("%g", *real);
    const uint64_t number = std::get<uint64_t>(value);
    return number == kUnlimited ? "null" : absl::StrCat(number);
  }

  static std::string text_of(const Param& param) {
    if (const auto* text = std::get_if<std::string>(&param.second)) return *text;
    const int64_t number = std::get<int64_t>(param.second);
    if (param.first == "page_bytes") {
      return internal::format_bytes(static_cast<uint64_t>(number)) + " pages";
    }
    return absl::StrCat(std::string(param.first), " ", number);
  }

  static std::string text_of(const Value& value, std::string_view unit) {
    if (const auto* text = std::get_if<std::string>(&value)) return *text;
    if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "yes" : "no";
    const std::string suffix = unit.empty() ? "" : " " + std::string(unit);
    if (const auto* real = std::get_if<double>(&value)) {
      return absl::StrFormat("%g", *real) + suffix;
    }
    const uint64_t number = std::get<uint64_t>(value);
    if (number == kUnlimited) return "unlimited";
    return unit == "bytes" ? internal::format_bytes(number) : absl::StrCat(number) + suffix;
  }

  const bool json_;
  std::string text_;
};

}  // namespace cariama

#endif  // CARIAMA_TOOLS_INFO_REPORT_H_
