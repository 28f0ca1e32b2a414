#include "bench/support/pool_bench.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "bench/support/global_programs.h"
#include "bench/support/summary.h"
#include "dtutils/exchange_connect.h"

namespace cariama::bench {
namespace {

struct MeasuredPool {
  double seconds = 0;
  UtsCount result;
  PoolStatistics statistics;
};

Deadline in_ten_minutes() { return deadline_after(std::chrono::minutes(10)); }

}  // namespace

double PoolBench::run_on(int workers, const UtsCount& expected) {
  const auto body = [&](Fabric& fabric) -> std::string {
    std::optional<GlobalArrays> arrays;
    if (matrix_ != 0) arrays.emplace(fabric, matrix_, 0);
    const auto pool = take(TaskPool::create(fabric, options_));
    static_cast<void>(take(run_(*pool)));  // untimed, so that the memory exists
    pool->reset_statistics();
    MeasuredPool mine;
    const auto begin = std::chrono::steady_clock::now();
    mine.result = take(run_(*pool));
    mine.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    mine.statistics = pool->statistics();
    Exchange& exchange = fabric.bootstrap();
    take(put_value(exchange, "measured pool", mine));
    take(exchange.fence(in_ten_minutes()));
    MeasuredPool sum = mine;
    for (int rank = 0; rank < exchange.size(); ++rank) {
      const auto each =
          take(get_value<MeasuredPool>(exchange, rank, "measured pool", in_ten_minutes()));
      if (rank == 0) {
        sum = each;
      } else {
        sum.statistics.add(each.statistics);
      }
    }
    return {reinterpret_cast<const char*>(&sum), sizeof sum};
  };
  const std::string bytes = workers_.run_without_runtime(workers, body);
  MeasuredPool measured;
  if (!workers_.reports()) return 0;
  if (bytes.size() != sizeof measured) take(absl::InternalError("no result"));
  std::memcpy(static_cast<void*>(&measured), bytes.data(), sizeof measured);
  if (measured.result != expected) take(absl::InternalError("a wrong result from the pool"));
  last_ = measured.statistics;
  return measured.seconds;
}

void PoolBench::measure(int workers, bool all_only, const UtsCount& expected) {
  if (!all_only && !workers_.is_job()) one_.push_back(run_on(1, expected));
  if (workers > 1 || workers_.is_job()) all_.push_back(run_on(workers, expected));
}

void PoolBench::report(const Report& report, const Params& params, const Beside& beside) const {
  const auto each = [&](const std::vector<double>& seconds) {
    std::vector<double> values;
    values.reserve(seconds.size());
    for (const double s : seconds) values.push_back(1e9 * s / beside.work);
    return summarize(values);
  };
  // The cost of a task: its time minus the time of plain recursion.
  const auto costs = [&](const std::vector<double>& seconds) {
    std::vector<double> values;
    for (size_t i = 0; i < seconds.size(); ++i) values.push_back(seconds[i] - beside.plain[i]);
    return values;
  };
  const std::string pool = beside.name + "_pool";
  if (!one_.empty()) {
    report.row(beside.per + "_pool_one_worker", params, each(one_), "ns");
    report.row(pool + "_one_worker_time_over_plain", params, summarize(ratios(one_, beside.plain)),
               "ratio");
    report.row(pool + "_one_worker_time_over_uni", params, summarize(ratios(one_, beside.uni_one)),
               "ratio");
    report.row(beside.per + "_pool_cost", params, each(costs(one_)), "ns");
    report.row(pool + "_cost_over_uni_cost", params,
               summarize(ratios(costs(one_), costs(beside.uni_one))), "ratio");
  }
  if (!all_.empty()) {
    report.row(beside.per + "_pool", params, each(all_), "ns");
    if (!one_.empty()) {
      report.row(pool + "_speed_up", params, summarize(ratios(one_, all_)), "ratio");
    }
    if (!beside.uni_all.empty()) {
      report.row(pool + "_time_over_uni", params, summarize(ratios(all_, beside.uni_all)), "ratio");
    }
  }
  const auto count = [&](const std::string& what, uint64_t value, const char* unit) {
    report.row(pool + "_" + what, params, summarize({static_cast<double>(value)}), unit);
  };
  count("steals", last_.steals, "count");
  count("stolen_tasks", last_.stolen_tasks, "count");
  count("leapfrog_steals", last_.leapfrog_steals, "count");
  for (size_t i = 0; i < kVictimLevels; ++i) {
    if (last_.tried[i] == 0) continue;
    count(std::string("attempts_") + kLevelNames[i], last_.tried[i], "count");
    count(std::string("steals_") + kLevelNames[i], last_.stolen[i], "count");
    if (last_.stolen[i] != 0) {
      count(std::string("steal_ns_") + kLevelNames[i], last_.steal_ns[i] / last_.stolen[i], "ns");
    }
  }
}

void PoolBench::print_statistics() const {
  for (const auto& [name, value] : last_.counters()) {
    std::fprintf(stderr, "%24s %20llu\n", ("pool_" + name).c_str(),
                 static_cast<unsigned long long>(value));
  }
}

}  // namespace cariama::bench
