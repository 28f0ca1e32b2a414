// Simulates the cost of an operation on diagrams if the node table is spread over many hosts: the
// real code of bdd, dht, fabric and transport runs on a simulated cluster
// (bench/support/virtual_cluster.h).
//
//   bench_bdd_sim --models=tests/bdd/models/anderson.4.bdd --processes=32 --in_flight=1,8,64
//
// Rank 0 computes, and all processes own an equal part of the nodes. With --in_flight=1, each step
// waits for its look-ups; otherwise the steps overlap them. The network is simulated. Computing
// takes no virtual time. Rows, by model, strategy, processes and in_flight:
//
//   reach_seconds        virtual time of the search
//   steps                recursive steps: entries of the operation cache
//   step_time            virtual time of a step
//   round_trips          sum of the round trips of all look-ups
//   dependent_round_trips
//                        virtual time divided by the time of a round trip
//   overlap              round_trips / dependent_round_trips
//   remote_find_or_puts  find-or-puts in the parts of other processes
//   owner_calls          calls to owners that execute look-ups (--operations_by=owner)
//   look_ups_in_a_call   look-ups that such a call carries
//   real_seconds         duration of the simulation
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "bdd/bdd.h"
#include "bdd/model_file.h"
#include "bdd/reachability.h"
#include "bench/support/flags.h"
#include "bench/support/list_flag.h"
#include "bench/support/must.h"
#include "bench/support/network_flags.h"
#include "bench/support/operations_flag.h"
#include "bench/support/report.h"
#include "bench/support/summary.h"
#include "bench/support/virtual_cluster.h"
#include "dsfabric/collectives.h"

ABSL_FLAG(std::vector<std::string>, models, {}, "model files");
ABSL_FLAG(std::vector<std::string>, strategies, (std::vector<std::string>{"bfs", "saturation"}),
          "bfs,chaining,saturation");
ABSL_FLAG(std::string, processes, "32", "numbers of processes");
ABSL_FLAG(cariama::OperationsBy, operations_by, cariama::OperationsBy::kAutomatic,
          "who executes look-ups on shares that are not mapped: initiator, owner or auto");
ABSL_FLAG(std::string, in_flight, "1,8,32,64,128", "look-ups of rank 0 in flight");
ABSL_FLAG(uint64_t, table_kib, 1024, "size of the node table of a process in KiB");
ABSL_FLAG(uint64_t, levels, 0, "stop the search after this number of levels; 0: no limit");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

bdd::Strategy strategy_named(const std::string& name) {
  for (const bdd::Strategy one :
       {bdd::Strategy::kBfs, bdd::Strategy::kChaining, bdd::Strategy::kSaturation}) {
    if (name == bdd::strategy_name(one)) return one;
  }
  fail(absl::InvalidArgumentError("--strategies: bfs, chaining or saturation"));
}

struct Outcome {
  SimTime time{0};
  uint64_t steps = 0;
  bdd::LookUpCounts look_ups;
};

Outcome simulate(const bdd::ModelFile& file, bdd::Strategy strategy, uint32_t processes,
                 uint32_t in_flight) {
  VirtualCluster cluster({.processes = processes, .sim = network_options(1)});
  Outcome outcome;
  const absl::Status ran = cluster.run([&](Fabric& fabric) {
    const auto thread = must(fabric.init_thread(0));
    Collectives all(fabric);
    bdd::ManagerOptions options;
    options.table_bytes = options.max_table_bytes = absl::GetFlag(FLAGS_table_kib) << 10;
    options.cache_bytes = uint64_t{64} << 20;
    options.in_flight = in_flight;
    options.look_ups = absl::GetFlag(FLAGS_operations_by);
    const auto manager = must(bdd::Manager::create(all, options));
    const bdd::Model model = load_model(*manager, file);
    const bdd::ManagerStatistics before = manager->statistics();
    SimTime time{0};
    bdd::Bdd reached = model.initial;
    bdd::Bdd frontier = model.initial;
    const auto start = [&] { time -= cluster.process(fabric.rank()).clock; };
    const auto stop = [&] { time += cluster.process(fabric.rank()).clock; };
    start();
    if (strategy == bdd::Strategy::kSaturation) {
      reached = manager->saturate(reached, model.transitions);
    }
    for (uint64_t level = 0; strategy != bdd::Strategy::kSaturation && !frontier.is_false();
         ++level) {
      if (absl::GetFlag(FLAGS_levels) != 0 && level == absl::GetFlag(FLAGS_levels)) break;
      frontier = (strategy == bdd::Strategy::kBfs ? manager->image(frontier, model.transitions)
                                                  : manager->chain(frontier, model.transitions))
                     .minus(reached);
      reached = reached | frontier;
    }
    stop();
    if (fabric.rank() != 0) return;
    const bdd::ManagerStatistics after = manager->statistics();
    outcome.time = time;
    outcome.steps = after.tasks - before.tasks;
    const auto since = [&](uint64_t bdd::LookUpCounts::*count) {
      outcome.look_ups.*count = after.*count - before.*count;
    };
    since(&bdd::LookUpCounts::remote_find_or_puts);
    since(&bdd::LookUpCounts::round_trips);
    since(&bdd::LookUpCounts::owner_look_ups);
    since(&bdd::LookUpCounts::owner_calls);
  });
  if (!ran.ok()) fail(ran);
  return outcome;
}

int run() {
  const Report report(absl::GetFlag(FLAGS_json), {"processes", "in_flight"});
  const auto processes = must(parse_numbers("processes", absl::GetFlag(FLAGS_processes), 1, 4096));
  const auto in_flight = must(parse_numbers("in_flight", absl::GetFlag(FLAGS_in_flight), 1, 65536));
  const double round_trip = 2 * absl::GetFlag(FLAGS_latency);
  for (const std::string& path : absl::GetFlag(FLAGS_models)) {
    const bdd::ModelFile file = must(bdd::read_model_file(path));
    for (const std::string& name : absl::GetFlag(FLAGS_strategies)) {
      const bdd::Strategy strategy = strategy_named(name);
      for (const uint64_t count : processes) {
        for (const uint64_t depth : in_flight) {
          progress(
              absl::StrCat(path, ", ", name, ", ", count, " processes, ", depth, " in flight"));
          const auto begin = std::chrono::steady_clock::now();
          const Outcome outcome =
              simulate(file, strategy, static_cast<uint32_t>(count), static_cast<uint32_t>(depth));
          const std::chrono::duration<double> real = std::chrono::steady_clock::now() - begin;
          progress("");
          Params params;
          params.set("model", path.substr(path.rfind('/') + 1));
          params.set("strategy", name);
          params.set("processes", count);
          params.set("in_flight", depth);
          params.set("operations_by",
                     std::string(operations_by_name(absl::GetFlag(FLAGS_operations_by))));
          set_network_params(params);
          const auto row = [&](const char* what, double value, const char* unit) {
            report.row(what, params, summarize({value}), unit);
          };
          const double ns = static_cast<double>(outcome.time.count()) / 1000;
          const auto trips = static_cast<double>(outcome.look_ups.round_trips);
          row("reach_seconds", ns * 1e-9, "s");
          row("steps", static_cast<double>(outcome.steps), "count");
          row("step_time", ns / static_cast<double>(outcome.steps), "ns");
          row("round_trips", trips, "count");
          row("dependent_round_trips", ns / round_trip, "count");
          row("overlap", trips * round_trip / ns, "ratio");
          const bdd::LookUpCounts& counts = outcome.look_ups;
          row("remote_find_or_puts", static_cast<double>(counts.remote_find_or_puts), "count");
          row("owner_calls", static_cast<double>(counts.owner_calls), "count");
          row("look_ups_in_a_call",
              static_cast<double>(counts.owner_look_ups) /
                  std::max(1.0, static_cast<double>(counts.owner_calls)),
              "count");
          row("real_seconds", real.count(), "s");
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "simulates operations on diagrams that are spread over hosts.\n  bench_bdd_sim [options]";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "usage: bench_bdd_sim [options], see --help\n");
    return 1;
  }
  return cariama::bench::run();
}
