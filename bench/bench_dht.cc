// bench_dht: rate, latency and dependent round trips of find-or-put in the distributed hash table,
// at the load of --load: the program first fills the tables to just below that load. In each
// repetition the contenders alternate, so that their ratios remain valid on a machine with other
// load: the table (batches, and one operation at a time), a raw compare-and-swap table in the same
// kind of memory (the ceiling), absl::flat_hash_set with a lock, and oneTBB's concurrent set.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "bench/support/flags.h"
#include "bench/support/job.h"
#include "bench/support/list_flag.h"
#include "bench/support/operations_flag.h"
#include "bench/support/probe_schemes.h"
#include "bench/support/report.h"
#include "bench/support/set_tables.h"
#include "bench/support/table.h"
#include "dht/hash_table.h"
#include "dtutils/error.h"
#include "dtutils/random.h"

ABSL_FLAG(std::string, mix, "mixed",
          "mixed: 51 % of the operations insert; read: 20 %; write: 80 %; the others find keys");
ABSL_FLAG(double, load, 0.5, "occupied fraction of the buckets at which the rate is measured");
ABSL_FLAG(std::string, chunk, "auto", "buckets of a chunk, or auto: follows the load");
ABSL_FLAG(int, max_chunks, 0, "chunks that an operation examines at most; 0: 256");
ABSL_FLAG(std::string, prefetch, "load", "when the next chunk is requested: none, eager or load");
ABSL_FLAG(int, n, 1, "number of processes");
ABSL_FLAG(int, in_flight, 32, "operations in flight (shares that are not mapped)");
ABSL_FLAG(bool, remote, false, "use one-sided transfers for all shares, also for mapped ones");
ABSL_FLAG(cariama::OperationsBy, operations_by, cariama::OperationsBy::kAutomatic,
          "who executes operations on shares that are not mapped: initiator, owner or auto");
ABSL_FLAG(int, words, 1, "words of a key: 1, 2 or 3");
ABSL_FLAG(std::string, buckets, "8Mi", "buckets of each process");
ABSL_FLAG(std::string, scheme, "",
          "count the round trips of a hashing scheme in one process instead: linear, hopscotch, "
          "cuckoo-2-4 or chained");
ABSL_FLAG(int, repetitions, 5, "repetitions; median, minimum and maximum are shown");
ABSL_FLAG(bool, peers, true, "measure absl::flat_hash_set and oneTBB too (keys of one word)");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

constexpr const char* kProgram = "bench_dht";
constexpr std::chrono::minutes kPatience{5};
constexpr size_t kLatencySamples = 4000;

template <typename T>
T must(absl::StatusOr<T> value) {
  if (!value.ok()) give_up(kProgram, value.status());
  return *std::move(value);
}
void must(const absl::Status& status) {
  if (!status.ok()) give_up(kProgram, status);
}

absl::Status refuse(const std::string& flag, const std::string& value, const std::string& choice) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "--" + flag + ": '" + value + "' is not " + choice, "see --help");
}

struct Options {
  TableOptions table;
  double inserts = 0.51;  // fraction of the operations
  double load = 0.5;
  uint32_t processes = 1;
  uint32_t in_flight = 32;
  int repetitions = 5;
};

absl::StatusOr<Options> parse_options() {
  Options options;
  const std::string mix = absl::GetFlag(FLAGS_mix);
  if (mix != "mixed" && mix != "read" && mix != "write") {
    return refuse("mix", mix, "mixed, read or write");
  }
  options.inserts = mix == "mixed" ? 0.51 : mix == "read" ? 0.2 : 0.8;
  options.load = absl::GetFlag(FLAGS_load);
  if (!(options.load >= 0.05 && options.load <= 0.98)) {
    return refuse("load", std::to_string(options.load), "between 0.05 and 0.98");
  }
  if (const std::string chunk = absl::GetFlag(FLAGS_chunk); chunk != "auto") {
    const auto numbers = parse_numbers("chunk", chunk, 8, TableOptions::kMaxChunk);
    if (!numbers.ok()) return numbers.status();
    options.table.chunk = static_cast<uint32_t>(numbers->front());
  }
  const int max_chunks = absl::GetFlag(FLAGS_max_chunks);
  if (max_chunks < 0) return refuse("max_chunks", std::to_string(max_chunks), "0 or more");
  options.table.max_chunks = static_cast<uint32_t>(max_chunks);
  const std::string prefetch = absl::GetFlag(FLAGS_prefetch);
  if (prefetch != "none" && prefetch != "eager" && prefetch != "load") {
    return refuse("prefetch", prefetch, "none, eager or load");
  }
  options.table.prefetch = prefetch == "none"    ? TablePrefetch::kNone
                           : prefetch == "eager" ? TablePrefetch::kEager
                                                 : TablePrefetch::kLoad;
  const auto buckets =
      parse_numbers("buckets", absl::GetFlag(FLAGS_buckets), 1024, uint64_t{1} << 36);
  if (!buckets.ok()) return buckets.status();
  options.table.buckets = buckets->front();
  options.table.force_remote = absl::GetFlag(FLAGS_remote);
  options.table.operations = absl::GetFlag(FLAGS_operations_by);
  const int processes = absl::GetFlag(FLAGS_n);
  if (processes < 1 || processes > 64) return refuse("n", std::to_string(processes), "1 to 64");
  options.processes = static_cast<uint32_t>(processes);
  const int in_flight = absl::GetFlag(FLAGS_in_flight);
  if (in_flight < 1 || in_flight > 4096) {
    return refuse("in_flight", std::to_string(in_flight), "1 to 4096");
  }
  options.in_flight = static_cast<uint32_t>(in_flight);
  options.repetitions = std::max(1, absl::GetFlag(FLAGS_repetitions));
  return options;
}

Params params_of(const Options& options, const std::string& table) {
  Params params;
  params.set("mix", absl::GetFlag(FLAGS_mix));
  params.set("load", options.load);
  params.set("chunk", absl::GetFlag(FLAGS_chunk));
  params.set("max_chunks", uint64_t{options.table.max_chunks});
  params.set("prefetch", absl::GetFlag(FLAGS_prefetch));
  params.set("processes", uint64_t{options.processes});
  params.set("in_flight", uint64_t{options.in_flight});
  params.set("remote", options.table.force_remote);
  params.set("operations_by", std::string(operations_by_name(options.table.operations)));
  params.set("words", static_cast<uint64_t>(absl::GetFlag(FLAGS_words)));
  params.set("buckets", options.table.buckets);
  params.set("table", table);
  return params;
}

// The keys that the processes put: key `number` of process `rank`. Different numbers give different
// keys, except for a few in 10^12.
template <size_t W>
TableKey<W> bench_key(uint32_t rank, uint64_t number) {
  TableKey<W> key;
  uint64_t word = (uint64_t{rank} << 48 | number) + 1;
  for (size_t i = 0; i < W; ++i) {
    word = Random::mix(word);
    key[i] = word & ~kWordPresent;
  }
  return key;
}

// The keys of one process for one repetition.
template <size_t W>
class Stream {
 public:
  Stream(const Options& options, uint32_t rank)
      : options_(options), rank_(rank), random_(rank + 1) {}

  // The next `count` keys, all new.
  std::vector<TableKey<W>> fill(uint64_t count) {
    std::vector<TableKey<W>> keys(count);
    for (auto& key : keys) key = bench_key<W>(rank_, inserted_++);
    return keys;
  }
  // Keys of the mix, of which `inserts` are new; the others are in the table, put by any process.
  std::vector<TableKey<W>> mix(uint64_t inserts) {
    const auto count = static_cast<uint64_t>(static_cast<double>(inserts) / options_.inserts);
    const uint64_t present = inserted_;
    std::vector<TableKey<W>> keys(count);
    for (uint64_t i = 0; i < count; ++i) {
      keys[i] = i < inserts ? bench_key<W>(rank_, inserted_++)
                            : bench_key<W>(static_cast<uint32_t>(random_() % options_.processes),
                                           random_() % present);
    }
    std::shuffle(keys.begin(), keys.end(), random_);
    return keys;
  }

 private:
  const Options& options_;
  uint32_t rank_;
  uint64_t inserted_ = 0;
  std::mt19937_64 random_;
};

double seconds_of(const std::function<void()>& work) {
  const int64_t start = now_ns();
  work();
  return static_cast<double>(now_ns() - start) * 1e-9;
}

// The measurement of one process.
template <size_t W>
class Measurement {
 public:
  Measurement(const Options& options, Fabric& fabric)
      : options_(options),
        fabric_(fabric),
        all_(fabric),
        stream_(options, fabric.rank()),
        table_(make_table(options.table)),
        raw_memory_(make_table({.buckets = options.table.buckets})),
        access_(must(table_->access({.in_flight = options.in_flight}))),
        raw_(raw_shares(), raw_memory_->geometry().buckets) {}

  void run() {
    const auto buckets = static_cast<double>(table_->geometry().buckets);
    // 2.5 % of the buckets are filled while the rate is measured: half of them by batches, half by
    // single operations.
    const auto window = static_cast<uint64_t>(buckets * 0.025);
    const uint64_t share = window / static_cast<uint64_t>(options_.repetitions);
    fill(static_cast<uint64_t>(buckets * options_.load) - window);
    std::vector<double> batch;
    std::vector<double> single;
    std::vector<double> raw;
    std::vector<double> raw_prefetch;
    std::array<std::vector<double>, 2> peers;
    before_ = access_->statistics();
    for (int i = 0; i < options_.repetitions; ++i) {
      progress(absl::StrFormat("repetition %d", i + 1));
      // Half of the keys are for batches, half for single operations. All tables get the same keys.
      const auto first = stream_.mix(share / 2);
      const auto second = stream_.mix(share / 2);
      results_.resize(std::max(first.size(), second.size()));
      batch.push_back(rate(first.size(), [&] { access_->find_or_put(first, results_); }));
      check(first.size());
      raw_prefetch.push_back(rate(first.size(), [&] { raw_.find_or_put(std::span(first)); }));
      single.push_back(rate(second.size(), [&] {
        for (size_t k = 0; k < second.size(); ++k) results_[k] = access_->find_or_put(second[k]);
      }));
      check(second.size());
      raw.push_back(rate(second.size(), [&] {
        for (const auto& key : second) raw_.find_or_put(key);
      }));
      if constexpr (W == 1) {
        for (size_t peer = 0; peer < peers.size(); ++peer) {
          measure_peer(peer, first, second, peers[peer]);
        }
      }
    }
    progress("");
    const TableStatistics after = access_->statistics();
    const std::vector<double> latencies = measure_latency();
    if (fabric_.rank() != 0) return gather_trips(after, nullptr);
    const Report report(absl::GetFlag(FLAGS_json), {"table"});
    const auto row = [&](const char* name, const char* table, const std::vector<double>& values,
                         const char* unit) {
      if (!values.empty()) {
        report.row(name, params_of(options_, table), summarize(values), unit);
      }
    };
    row("rate", "dht_batch", batch, "op/s");
    row("rate", "raw_prefetch", raw_prefetch, "op/s");
    row("rate", "dht_single", single, "op/s");
    row("rate", "raw", raw, "op/s");
    row("rate", "absl_locked", peers[0], "op/s");
    row("rate", "tbb", peers[1], "op/s");
    row("batch_to_raw", "dht_batch", ratios(batch, raw_prefetch), "");
    row("single_to_raw", "dht_single", ratios(single, raw), "");
    if (!peers[0].empty()) row("batch_to_absl", "dht_batch", ratios(batch, peers[0]), "");
    if (!peers[1].empty()) row("batch_to_tbb", "dht_batch", ratios(batch, peers[1]), "");
    row("latency_p50", "dht_single", {latencies[0]}, "ns");
    row("latency_p99", "dht_single", {latencies[1]}, "ns");
    gather_trips(after, &report);
  }

 private:
  std::unique_ptr<HashTable<W>> make_table(const TableOptions& options) {
    return must(HashTable<W>::create(all_, options, deadline_after(kPatience)));
  }
  std::vector<uint64_t*> raw_shares() {
    std::vector<uint64_t*> shares;
    for (uint32_t rank = 0; rank < fabric_.size(); ++rank) {
      must(raw_memory_->core().attach(rank));
      shares.push_back(raw_memory_->core().mapped(rank).load());
      if (shares.back() == nullptr) {
        give_up(kProgram, make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                                     "the raw table needs shares that are mapped",
                                     "run all processes on one host, over shm"));
      }
    }
    return shares;
  }

  // Rates of all processes together.
  double rate(size_t operations, const std::function<void()>& work) {
    must(all_.barrier(deadline_after(kPatience)));
    const double seconds = seconds_of(work);
    const double slowest = must(all_.all_reduce(
        seconds, [](double a, double b) { return std::max(a, b); }, deadline_after(kPatience)));
    return static_cast<double>(operations * fabric_.size()) / slowest;
  }

  void check(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (results_[i].outcome == TableOutcome::kUnavailable) {
        give_up(kProgram, access_->status());
      }
      if (results_[i].outcome == TableOutcome::kFull) {
        give_up(kProgram, make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kOperation,
                                     "the table is full", "use a lower --load"));
      }
    }
  }

  void fill(uint64_t count) {
    if constexpr (W == 1) {
      if (fabric_.rank() == 0 && absl::GetFlag(FLAGS_peers)) {
        const auto keys = static_cast<size_t>(static_cast<double>(table_->geometry().buckets) *
                                              options_.load * options_.processes * 1.1);
        peers_[0] = make_locked_set(keys);
        peers_[1] = make_tbb_set(keys);
      }
    }
    constexpr uint64_t kPart = 1 << 16;
    for (uint64_t done = 0; done < count; done += kPart) {
      progress(absl::StrFormat("filling: %.0f %%",
                               100.0 * static_cast<double>(done) / static_cast<double>(count)));
      const auto keys = stream_.fill(std::min(kPart, count - done));
      results_.resize(keys.size());
      access_->find_or_put(keys, results_);
      check(keys.size());
      raw_.find_or_put(std::span(keys));
      if constexpr (W == 1) {
        if (fabric_.rank() == 0) {
          for (const auto& peer : peers_) {
            if (peer != nullptr) peer->put(keys);
          }
        }
      }
    }
    must(all_.barrier(deadline_after(kPatience)));
  }

  // The sets of other libraries: as many threads of rank 0 as the job has processes.
  void measure_peer(size_t peer, const std::vector<TableKey<1>>& first,
                    const std::vector<TableKey<1>>& second, std::vector<double>& rates) {
    must(all_.barrier(deadline_after(kPatience)));
    if (peers_[peer] != nullptr) {
      std::vector<std::thread> threads;
      const double seconds = seconds_of([&] {
        for (uint32_t i = 0; i + 1 < options_.processes; ++i) {
          threads.emplace_back([&] { peers_[peer]->put(second); });
        }
        peers_[peer]->put(first);
        for (std::thread& thread : threads) thread.join();
      });
      rates.push_back(static_cast<double>(first.size() + (options_.processes - 1) * second.size()) /
                      seconds);
    }
    must(all_.barrier(deadline_after(kPatience)));
  }

  // Percentiles 50 and 99 of single operations of the mix.
  std::vector<double> measure_latency() {
    auto keys = stream_.mix(static_cast<uint64_t>(kLatencySamples * options_.inserts));
    must(all_.barrier(deadline_after(kPatience)));
    std::vector<double> times;
    for (const auto& key : keys) {
      const int64_t start = now_ns();
      static_cast<void>(access_->find_or_put(key));
      times.push_back(static_cast<double>(now_ns() - start));
    }
    must(all_.barrier(deadline_after(kPatience)));
    return {percentile(times, 0.5), percentile(times, 0.99)};
  }

  // Sums the statistics of all processes, and prints them if there is a report.
  void gather_trips(const TableStatistics& after, const Report* report) {
    using Counts = std::array<uint64_t, 6>;
    const Counts mine = {after.remote_finds - before_.remote_finds,
                         after.find_round_trips - before_.find_round_trips,
                         after.remote_inserts - before_.remote_inserts,
                         after.insert_round_trips - before_.insert_round_trips,
                         after.bytes_read - before_.bytes_read,
                         after.cas_retries - before_.cas_retries};
    const Counts sums = must(all_.all_reduce(
        mine,
        [](Counts a, const Counts& b) {
          for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
          return a;
        },
        deadline_after(kPatience)));
    if (report == nullptr || sums[0] + sums[2] == 0) return;
    const auto row = [&](const char* name, double value, const char* unit) {
      report->row(name, params_of(options_, "dht"), summarize({value}), unit);
    };
    const auto mean = [](uint64_t sum, uint64_t count) {
      return static_cast<double>(sum) / static_cast<double>(std::max<uint64_t>(1, count));
    };
    row("find_round_trips", mean(sums[1], sums[0]), "");
    row("insert_round_trips", mean(sums[3], sums[2]), "");
    row("bytes_per_operation", mean(sums[4], sums[0] + sums[2]), "B");
    row("cas_retries_per_insert", mean(sums[5], sums[2]), "");
    row("measured_load", after.load, "");
    row("chunk", after.chunk, "buckets");
    // The slides' bounds: expected chunks that are inspected, and the load up to which a chunk is
    // expected to contain an empty bucket.
    const double probes = 0.5 * (1 + 1 / ((1 - options_.load) * (1 - options_.load)));
    row("slides_bound_chunks", std::max(1.0, probes / after.chunk), "");
    row("slides_bound_load", 1 - std::sqrt(1.0 / (2.0 * after.chunk - 1)), "");
  }

  const Options& options_;
  Fabric& fabric_;
  Collectives all_;
  Stream<W> stream_;
  std::unique_ptr<HashTable<W>> table_;
  std::unique_ptr<HashTable<W>> raw_memory_;
  std::unique_ptr<TableAccess<W>> access_;
  RawTable<W> raw_;
  std::array<std::unique_ptr<SharedSet>, 2> peers_;
  std::vector<TableResult> results_;
  TableStatistics before_;
};

int run_process(const Options& options) {
  const std::unique_ptr<Fabric> fabric =
      must(Fabric::create({.on_failure = FailurePolicy::kAbort}));
  pin(fabric->rank(), fabric->size(), 0, 1);
  {
    const auto thread = must(fabric->init_thread(0));
    if (absl::GetFlag(FLAGS_words) == 1) Measurement<1>(options, *fabric).run();
    if (absl::GetFlag(FLAGS_words) == 2) Measurement<2>(options, *fabric).run();
    if (absl::GetFlag(FLAGS_words) == 3) Measurement<3>(options, *fabric).run();
    std::fflush(stdout);
    must(fabric->finalize(deadline_after(kPatience)));
  }
  return 0;
}

int count_scheme(const Options& options) {
  const uint32_t chunk =
      options.table.chunk != 0 ? options.table.chunk : chunk_for_load(options.load);
  const std::string scheme = absl::GetFlag(FLAGS_scheme);
  const auto trips = simulate_scheme(scheme, options.table.buckets, options.load, chunk);
  if (!trips.ok()) give_up(kProgram, trips.status());
  const Report report(absl::GetFlag(FLAGS_json), {"scheme"});
  Params params = params_of(options, "simulated");
  params.set("scheme", scheme);
  params.set("chunk", uint64_t{chunk});
  report.row("find_round_trips", params, summarize({trips->find}), "");
  report.row("insert_round_trips", params, summarize({trips->insert}), "");
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "rate, latency and round trips of find-or-put in the distributed hash table\n"
      "  bench_dht --load 0.9                    batches on mapped memory, beside the ceiling\n"
      "  bench_dht --remote --load 0.9 -n 2      one-sided transfers\n"
      "  bench_dht --scheme hopscotch --load 0.9 round trips of another scheme";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "bench_dht: it takes options only: see --help\n");
    return 1;
  }
  const auto options = cariama::bench::parse_options();
  const int words = absl::GetFlag(FLAGS_words);
  if (!options.ok() || words < 1 || words > 3) {
    std::fprintf(
        stderr, "bench_dht: %s\n",
        options.ok() ? "--words is 1, 2 or 3" : std::string(options.status().message()).c_str());
    return 1;
  }
  if (!absl::GetFlag(FLAGS_scheme).empty()) return cariama::bench::count_scheme(*options);
  const absl::Status status = cariama::bench::run_job(
      static_cast<int>(options->processes),
      [&](cariama::Exchange&) { return cariama::bench::run_process(*options); });
  if (!status.ok()) {
    std::fprintf(stderr, "bench_dht: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
