// Binary decision diagrams in one process. Rows:
//
//   reach_seconds   the search for all states of a model, by model and strategy
//   queens_seconds  the placements of n queens, operation by operation: package=cariama, and
//                   package=buddy if BuDDy (Debian package libbdd-dev) was found when this program
//                   was built
//
// Repetitions of both packages alternate. tests/bdd/models has models.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "bdd/bdd.h"
#include "bdd/model_file.h"
#include "bdd/reachability.h"
#include "bench/support/flags.h"
#include "bench/support/report.h"
#include "bench/support/summary.h"
#ifdef CARIAMA_BENCH_BUDDY
#include "bench/support/buddy_queens.h"
#endif

ABSL_FLAG(std::string, models, "", "model files, separated by commas");
ABSL_FLAG(std::string, strategies, "saturation", "bfs,chaining,saturation");
ABSL_FLAG(uint32_t, queens, 9, "side of the board; 0: no queens");
ABSL_FLAG(int, repetitions, 5, "repetitions of each measurement");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

[[noreturn]] void give_up(const absl::Status& status) {
  std::fprintf(stderr, "bench_bdd: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

void measure_models(const Report& report, int repetitions) {
  const std::string models = absl::GetFlag(FLAGS_models);
  if (models.empty()) return;
  const std::vector<std::string> paths = absl::StrSplit(models, ',');
  const std::vector<std::string> names = absl::StrSplit(absl::GetFlag(FLAGS_strategies), ',');
  for (const std::string& path : paths) {
    const absl::StatusOr<bdd::ModelFile> file = bdd::read_model_file(path);
    if (!file.ok()) give_up(file.status());
    for (const std::string& name : names) {
      bdd::ReachOptions options;
      options.strategy = name == "bfs"        ? bdd::Strategy::kBfs
                         : name == "chaining" ? bdd::Strategy::kChaining
                                              : bdd::Strategy::kSaturation;
      std::vector<double> seconds;
      Params params;
      params.set("model", path.substr(path.rfind('/') + 1));
      params.set("strategy", std::string(bdd::strategy_name(options.strategy)));
      for (int i = 0; i < repetitions; ++i) {
        auto manager = bdd::Manager::create({});
        if (!manager.ok()) give_up(manager.status());
        const bdd::Model model = bdd::load_model(**manager, *file);
        const absl::StatusOr<bdd::ReachResult> result = bdd::reach(model, options);
        if (!result.ok()) give_up(result.status());
        seconds.push_back(result->seconds);
        if (i == 0) {
          params.set("states", result->states.to_string());
          params.set("nodes", result->nodes);
        }
      }
      report.row("reach_seconds", params, summarize(seconds), "s");
    }
  }
}

double own_queens(uint32_t n) {
  const auto start = std::chrono::steady_clock::now();
  auto manager = bdd::Manager::create({});
  if (!manager.ok()) give_up(manager.status());
  const bdd::Bdd all = bdd::queens(**manager, n);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  progress(std::to_string(all.nodes()) + " nodes");
  return seconds;
}

void measure_queens(const Report& report, int repetitions) {
  const uint32_t n = absl::GetFlag(FLAGS_queens);
  if (n == 0) return;
  std::vector<double> own;
  [[maybe_unused]] std::vector<double> buddy;
  for (int i = 0; i < repetitions; ++i) {
    own.push_back(own_queens(n));
#ifdef CARIAMA_BENCH_BUDDY
    buddy.push_back(buddy_queens(n));
#endif
  }
  progress("");
  Params params;
  params.set("n", uint64_t{n});
  params.set("package", "cariama");
  report.row("queens_seconds", params, summarize(own), "s");
#ifdef CARIAMA_BENCH_BUDDY
  params.set("package", "buddy");
  report.row("queens_seconds", params, summarize(buddy), "s");
  report.row("queens_ratio", params, summarize(ratios(buddy, own)), "buddy / cariama");
#endif
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  const std::vector<char*> arguments = cariama::bench::parse_flags(
      argc, argv,
      "measures diagrams and reachability in one process.\n"
      "  bench_bdd --models=tests/bdd/models/anderson.4.bdd,tests/bdd/models/bakery.4.bdd");
  if (arguments.size() != 1 || absl::GetFlag(FLAGS_repetitions) < 1) {
    std::fprintf(stderr, "usage: bench_bdd [options], see --help\n");
    return 1;
  }
  const cariama::bench::Report report(absl::GetFlag(FLAGS_json),
                                      {"model", "strategy", "n", "package"});
  cariama::bench::measure_models(report, absl::GetFlag(FLAGS_repetitions));
  cariama::bench::measure_queens(report, absl::GetFlag(FLAGS_repetitions));
  return 0;
}
