// Prints results on stdout, as JSON (one object per line) or as readable text. Progress goes to
// stderr.
#ifndef CARIAMA_BENCH_SUPPORT_REPORT_H_
#define CARIAMA_BENCH_SUPPORT_REPORT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/support/summary.h"

namespace cariama::bench {

// All options under which a row was measured, by their long names.
class Params {
 public:
  void set(std::string_view name, std::string_view text);
  void set(std::string_view name, const char* text) { set(name, std::string_view(text)); }
  void set(std::string_view name, uint64_t number);
  void set(std::string_view name, double number);
  void set(std::string_view name, bool truth);
  // Returns all params, for example {"mode": "auto", "size": 8}.
  [[nodiscard]] std::string json() const;
  // Returns the named params, for example mode=auto size=8.
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
  // `shown`: the params that are printed in readable text, those that differ between rows.
  Report(bool json, std::vector<std::string> shown) : json_(json), shown_(std::move(shown)) {}

  // Prints a row immediately. Its value is the median of n repetitions.
  void row(std::string_view name, const Params& params, const Summary& summary,
           std::string_view unit) const;

 private:
  bool json_;
  std::vector<std::string> shown_;
};

// Replaces the progress line on stderr if stderr is a terminal, else does nothing. "" clears it.
void progress(std::string_view text);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_REPORT_H_
