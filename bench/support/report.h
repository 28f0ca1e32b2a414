// Results on stdout: JSON, one object a line, or lines for people. Progress goes to stderr.
#ifndef CARIAMA_BENCH_SUPPORT_REPORT_H_
#define CARIAMA_BENCH_SUPPORT_REPORT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/support/summary.h"

namespace cariama::bench {

// The options under which a row was measured, every one, by its long name.
class Params {
 public:
  void set(std::string_view name, std::string_view text);
  void set(std::string_view name, const char* text) { set(name, std::string_view(text)); }
  void set(std::string_view name, uint64_t number);
  void set(std::string_view name, double number);
  void set(std::string_view name, bool truth);
  // {"mode": "auto", "size": 8}
  [[nodiscard]] std::string json() const;
  // mode=auto size=8, for those that differ between the rows of a run.
  [[nodiscard]] std::string brief(const std::vector<std::string>& names) const;

 private:
  struct Param {
    std::string name;
    std::string json;
    std::string text;
  };
  void set(Param param);
  std::vector<Param> params_;
};

class Report {
 public:
  // `shown`: the params that lines for people show.
  Report(bool json, std::vector<std::string> shown) : json_(json), shown_(std::move(shown)) {}

  // Prints a row at once: its value is the median of n repetitions.
  void row(std::string_view name, const Params& params, const Summary& summary,
           std::string_view unit) const;

 private:
  bool json_;
  std::vector<std::string> shown_;
};

// One line that replaces the one before, if stderr is a terminal; else nothing. "" clears it.
void progress(std::string_view text);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_REPORT_H_
