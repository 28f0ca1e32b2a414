#include "bench/support/report.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"
#include "dtutils/internal/json.h"

namespace cariama::bench {
namespace {

// Returns integers exactly, and other values with six significant digits: more digits are noise,
// fewer could hide a ratio.
std::string number_text(double value) {
  const bool whole = std::abs(value) < 1e15 && value == std::floor(value);
  return whole ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.6g", value);
}

}  // namespace

void Params::set(Param param) {
  const auto same = [&](const Param& other) { return other.name == param.name; };
  const auto found = std::find_if(params_.begin(), params_.end(), same);
  if (found != params_.end()) {
    *found = std::move(param);
  } else {
    params_.push_back(std::move(param));
  }
}

void Params::set(std::string_view name, std::string_view text) {
  set(Param{std::string(name), json_string(text), std::string(text)});
}
void Params::set(std::string_view name, uint64_t number) {
  set(Param{std::string(name), std::to_string(number), std::to_string(number)});
}
void Params::set(std::string_view name, double number) {
  set(Param{std::string(name), number_text(number), number_text(number)});
}
void Params::set(std::string_view name, bool truth) {
  const std::string text = truth ? "true" : "false";
  set(Param{std::string(name), text, text});
}

std::string Params::json() const {
  std::string text = "{";
  for (const Param& param : params_) {
    if (text.size() > 1) text += ", ";
    text += json_string(param.name) + ": " + param.json;
  }
  return text + "}";
}

std::string Params::brief(const std::vector<std::string>& names) const {
  std::string text;
  for (const Param& param : params_) {
    if (std::find(names.begin(), names.end(), param.name) == names.end()) continue;
    if (!text.empty()) text += ' ';
    text += param.name + "=" + param.text;
  }
  return text;
}

void Report::row(std::string_view name, const Params& params, const Summary& summary,
                 std::string_view unit) const {
  progress("");
  if (json_) {
    std::printf(
        "{\"name\": %s, \"params\": %s, \"value\": %s, \"unit\": %s, \"min\": %s, "
        "\"max\": %s, \"n\": %zu}\n",
        json_string(name).c_str(), params.json().c_str(), number_text(summary.median).c_str(),
        json_string(unit).c_str(), number_text(summary.min).c_str(),
        number_text(summary.max).c_str(), summary.n);
  } else {
    std::printf("%-52s %-22s %12s %-5s  (%s .. %s, n=%zu)\n", params.brief(shown_).c_str(),
                std::string(name).c_str(), number_text(summary.median).c_str(),
                std::string(unit).c_str(), number_text(summary.min).c_str(),
                number_text(summary.max).c_str(), summary.n);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "cannot write to standard output: %s\n", std::strerror(errno));
    std::_Exit(1);
  }
}

void progress(std::string_view text) {
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  if (!terminal) return;
  std::fprintf(stderr, "\r\033[K%s", std::string(text).c_str());
  std::fflush(stderr);
}

}  // namespace cariama::bench
