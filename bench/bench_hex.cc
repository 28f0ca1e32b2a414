// Hex playouts per second on one core, from the empty board. Rows:
//
//   playouts_per_second        kind=uniform, by simd and size, and kind=bridge (PolicyPlayouts)
//   playout_ceiling            the uniform kernel alone, called once for all playouts
//   playout_ceiling_ratio      uniform playouts with one call per batch, relative to the ceiling in
//                              the same run
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "bench/support/flags.h"
#include "bench/support/report.h"
#include "hex/playout.h"

ABSL_FLAG(std::string, size, "11", "side of the board, or a list");
ABSL_FLAG(std::string, simd, "",
          "variants: portable,avx2,avx512; empty: all that this machine supports");
ABSL_FLAG(double, seconds, 0.2, "processor time of each repetition");
ABSL_FLAG(int, repetitions, 5, "repetitions of each measurement");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

using hex::Board;
using hex::Color;
using hex::Simd;

// Returns the CPU time of this thread, which does not contain other load of the machine.
double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Returns the playouts per second of `chunk`, which executes some playouts and returns their
// number.
template <typename Chunk>
double rate(double seconds, Chunk&& chunk) {
  const double start = cpu_seconds();
  int64_t playouts = 0;
  double used = 0;
  do {
    playouts += chunk();
    used = cpu_seconds() - start;
  } while (used < seconds);
  return static_cast<double>(playouts) / used;
}

volatile int64_t sink = 0;

void measure(int side, const std::vector<Simd>& variants, const Report& report) {
  const double seconds = absl::GetFlag(FLAGS_seconds);
  const int repetitions = absl::GetFlag(FLAGS_repetitions);
  const Board board(side, side);
  Params params;
  params.set("size", static_cast<uint64_t>(side));
  params.set("seconds", seconds);
  for (const Simd simd : variants) {
    hex::UniformPlayouts playouts(1, simd);
    const int batch = playouts.batch(side);
    std::vector<double> used;
    std::vector<double> ceiling;
    for (int i = 0; i < repetitions; ++i) {
      progress("uniform " + std::string(hex::simd_name(simd)) + " " + std::to_string(side));
      used.push_back(rate(seconds, [&] {
        for (int k = 0; k < 100; ++k) sink = sink + playouts.run(board, batch).black_wins;
        return 100 * batch;
      }));
      ceiling.push_back(rate(seconds, [&] {
        sink = sink + playouts.run(board, 1000 * batch).black_wins;
        return 1000 * batch;
      }));
    }
    params.set("kind", "uniform");
    params.set("simd", hex::simd_name(simd));
    params.set("batch", static_cast<uint64_t>(batch));
    report.row("playouts_per_second", params, summarize(used), "1/s");
    report.row("playout_ceiling", params, summarize(ceiling), "1/s");
    report.row("playout_ceiling_ratio", params, summarize(ratios(used, ceiling)), "ratio");
  }
  hex::PolicyPlayouts policy(side, side);
  mcts::Random random(1);
  std::vector<double> bridge;
  for (int i = 0; i < repetitions; ++i) {
    progress("bridge " + std::to_string(side));
    bridge.push_back(rate(seconds, [&] {
      policy.prepare(board);
      for (int k = 0; k < 1000; ++k) sink = sink + (policy.run(random) == Color::kBlack ? 1 : 0);
      return 1000;
    }));
  }
  params.set("kind", "bridge");
  params.set("simd", "none");
  params.set("batch", uint64_t{1});
  report.row("playouts_per_second", params, summarize(bridge), "1/s");
}

int run() {
  std::vector<Simd> variants;
  for (const Simd simd : hex::available_simd()) {
    const std::string wanted = absl::GetFlag(FLAGS_simd);
    const std::vector<std::string> names = absl::StrSplit(wanted, ',');
    for (const std::string& name : names) {
      if (wanted.empty() || name == hex::simd_name(simd)) variants.push_back(simd);
      if (wanted.empty()) break;
    }
  }
  if (absl::GetFlag(FLAGS_repetitions) < 1 || !(absl::GetFlag(FLAGS_seconds) > 0)) {
    std::fprintf(stderr, "bench_hex: --repetitions is 1 or more, and --seconds more than 0\n");
    return 1;
  }
  const Report report(absl::GetFlag(FLAGS_json), {"size", "kind", "simd"});
  const std::string sizes = absl::GetFlag(FLAGS_size);
  for (const auto& text : absl::StrSplit(sizes, ',')) {
    int side = 0;
    if (!absl::SimpleAtoi(text, &side) || !hex::is_board_size(side, side)) {
      std::fprintf(stderr, "bench_hex: --size: %s is no side of a board (3 to 25)\n",
                   std::string(text).c_str());
      return 1;
    }
    measure(side, variants, report);
  }
  progress("");
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage = "Playouts of Hex per second.";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "bench_hex: it takes options only: see --help\n");
    return 1;
  }
  return cariama::bench::run();
}
