// Simulates find-or-put on more processes than this machine has: the real table, fabric and
// transport code run on a simulated cluster (bench/support/virtual_cluster.h).
//
//   bench_dht_sim --processes 32,1000 --loads 0.5,0.9
//   bench_dht_sim --processes 10000 --active 8 --buckets 1Ki --loads 0.5
//
// All processes own an equal share of the table, which is filled to the load first. Then --active
// of them operate on keys of the whole table, and are connected to all owners before; the others
// own their shares and take no part. So a port receives the operations of --active processes, not
// those of all. The network and the computing times are simulated: an operation takes --compute ns
// of processor time in addition to its transfers. Each process has one thread. All pairs of
// processes have the same distance.
//
// Memory of the simulation: `process_bytes` for each process and `client_bytes` for each active
// one. The fabrics have small receive units and superpages of base pages, since a fabric of the
// default options takes 2 MiB at its start. 10 000 processes need 10 000 threads (ulimit -u), and
// fit into the default of vm.max_map_count.
// Rows, by load and processes:
//
//   operations_per_second    of one active process, --in-flight operations at a time, per virtual
//                            second
//   latency_p50, latency_p99 of one operation at a time
//   find_round_trips, insert_round_trips
//                            dependent round trips of an operation
//   round_trips              the same, mean of all operations
//   bytes_per_operation      that the reads of chunks transfer
//   process_bytes            resident memory for each process, before the active ones connect: its
//                            share, fabric and stack, and its part of the simulated network
//   heap_bytes               the part of it that malloc() has allocated
//   client_bytes             more resident memory for each active process, at the end: its
//                            connections, at both ends
//   chunk                    buckets of a chunk at the end
//   real_seconds             duration of the simulation
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/support/flags.h"
#include "bench/support/list_flag.h"
#include "bench/support/must.h"
#include "bench/support/network_flags.h"
#include "bench/support/operations_flag.h"
#include "bench/support/report.h"
#include "bench/support/virtual_cluster.h"
#include "dht/hash_table.h"
#include "dsfabric/fabric_options.h"
#include "dtutils/error.h"

ABSL_FLAG(std::string, processes, "32,1000", "numbers of processes");
ABSL_FLAG(std::vector<std::string>, loads, (std::vector<std::string>{"0.5", "0.9"}),
          "occupied fractions of the buckets at which the operations are measured");
ABSL_FLAG(int, active, 32, "processes that operate on the table; all others own their shares only");
ABSL_FLAG(int, operations, 1000, "operations of each active process");
ABSL_FLAG(double, inserts, 0.51, "fraction of the operations that insert a key; others find one");
ABSL_FLAG(int, in_flight, 32, "operations in flight, for operations_per_second");
ABSL_FLAG(cariama::OperationsBy, operations_by, cariama::OperationsBy::kAutomatic,
          "who executes operations on shares that are not mapped: initiator, owner or auto");
ABSL_FLAG(std::string, buckets, "8Ki", "buckets of each process");
ABSL_FLAG(double, compute, 150, "processor time of an operation in ns");
ABSL_FLAG(uint64_t, seed, 1, "seed of all random choices");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

using Key = TableKey<1>;
constexpr std::chrono::minutes kPatience{30};  // real time

struct Scale {
  uint32_t processes = 0;
  uint32_t active = 0;
  double load = 0;
};

// Memory of this process of the operating system, in bytes.
struct Memory {
  uint64_t resident = 0;
  uint64_t heap = 0;

  [[nodiscard]] static Memory now() {
    Memory memory;
    std::ifstream("/proc/self/statm") >> memory.resident >> memory.resident;  // the second number
    memory.resident *= static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const struct mallinfo2 info = mallinfo2();
    memory.heap = info.uordblks + info.hblkhd;
    return memory;
  }
};

// The measurements of the active processes. One process runs at a time, so there is no lock.
struct Outcome {
  Memory empty;                   // before the simulation
  Memory idle;                    // when all processes have their shares
  Memory busy;                    // at the end
  std::vector<double> rates;      // operations per second, by active process
  std::vector<double> latencies;  // ns, by operation
  TableStatistics sum;            // of the remote operations
  uint32_t chunk = 0;
};

// The keys of a simulation. They are distributed by owner so that each process can put its own keys
// into its own memory, at no cost in virtual time.
class Keys {
 public:
  // Requires: `table` is one of the tables; all have the same geometry.
  Keys(const HashTable<1>& table, const Scale& scale, uint64_t count, uint64_t seed)
      : random_(seed), of_owner_(scale.processes) {
    for (uint64_t i = 0; i < count; ++i) {
      const Key key = next();
      of_owner_[table.owner_of(key)].push_back(key);
      present_.push_back(key);
    }
  }
  [[nodiscard]] const std::vector<Key>& of_owner(uint32_t rank) const { return of_owner_[rank]; }
  // Returns keys for `count` operations, of which about the fraction `inserts` are new.
  [[nodiscard]] std::vector<Key> mix(size_t count, double inserts) {
    std::vector<Key> keys(count);
    for (Key& key : keys) {
      const bool fresh = std::uniform_real_distribution<double>()(random_) < inserts;
      key = fresh ? next() : present_[random_() % present_.size()];
    }
    return keys;
  }

 private:
  [[nodiscard]] Key next() { return {random_() & ~kWordPresent}; }

  std::mt19937_64 random_;
  std::vector<std::vector<Key>> of_owner_;
  std::vector<Key> present_;
};

// Runs the operations of one active process.
class Client {
 public:
  Client(VirtualCluster& cluster, Fabric& fabric, HashTable<1>& table, Outcome& outcome)
      : cluster_(cluster),
        fabric_(fabric),
        access_(must(
            table.access({.in_flight = static_cast<uint32_t>(absl::GetFlag(FLAGS_in_flight))}))),
        outcome_(outcome) {}

  // Makes the connections to all owners, which takes virtual time too.
  void connect(const HashTable<1>& table) {
    for (uint32_t rank = 0; rank < fabric_.size(); ++rank) must(table.core().attach(rank));
    before_ = access_->statistics();
  }

  void measure_latency(std::span<const Key> keys) {
    for (const Key& key : keys) {
      const SimTime start = now();
      VirtualCluster::spend(compute_);
      check(access_->find_or_put(key));
      outcome_.latencies.push_back(to_ns(now() - start));
    }
  }

  void measure_rate(std::span<const Key> keys) {
    const SimTime start = now();
    size_t issued = 0;
    size_t ended = 0;
    const auto on_end = [&](uint64_t, const TableResult& result, const Key&) {
      check(result);
      ++ended;
    };
    while (ended < keys.size()) {
      while (issued < keys.size() && access_->start_find_or_put(keys[issued], issued)) {
        ++issued;
        VirtualCluster::spend(compute_);
      }
      const size_t before = ended;
      const auto advanced = [&] {
        access_->poll(on_end);
        return ended != before;
      };
      if (!fabric_.wait_polling(advanced, deadline_after(kPatience))) {
        fail(absl::DeadlineExceededError("an operation did not end"));
      }
    }
    outcome_.rates.push_back(1e9 * static_cast<double>(keys.size()) / to_ns(now() - start));
  }

  void add_statistics() {
    const TableStatistics after = access_->statistics();
    outcome_.sum.remote_finds += after.remote_finds - before_.remote_finds;
    outcome_.sum.find_round_trips += after.find_round_trips - before_.find_round_trips;
    outcome_.sum.remote_inserts += after.remote_inserts - before_.remote_inserts;
    outcome_.sum.insert_round_trips += after.insert_round_trips - before_.insert_round_trips;
    outcome_.sum.bytes_read += after.bytes_read - before_.bytes_read;
    outcome_.chunk = after.chunk;
  }

 private:
  [[nodiscard]] SimTime now() const { return cluster_.process(fabric_.rank()).clock; }
  void check(const TableResult& result) {
    if (result.outcome == TableOutcome::kUnavailable) fail(access_->status());
    if (result.outcome == TableOutcome::kFull) {
      fail(absl::ResourceExhaustedError("the table is full: use a lower load"));
    }
  }

  VirtualCluster& cluster_;
  Fabric& fabric_;
  std::unique_ptr<TableAccess<1>> access_;
  Outcome& outcome_;
  const SimTime compute_ = from_ns(absl::GetFlag(FLAGS_compute));
  TableStatistics before_;
};

// Small fabrics: the operations of the table use the send-based path for addresses, and with
// --operations_by=owner for themselves.
FabricOptions fabric_options() {
  FabricOptions options;
  options.receive_units = 4;
  options.receive_unit_bytes = 512;
  options.superpages.chunk_bytes = size_t{4} << 10;
  options.superpages.first_superpage_bytes = size_t{256} << 10;  // one for most processes
  options.superpages.shareable = false;
  options.superpages.largest_page = PageKind::kBase;
  options.thread_buffers.initial_units = 1;
  options.timeout = kPatience;
  return options;
}

Outcome simulate(const Scale& scale, uint64_t buckets) {
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  Outcome outcome;
  outcome.empty = Memory::now();
  VirtualCluster cluster({.processes = scale.processes,
                          .sim = network_options(seed),
                          .fabric = fabric_options(),
                          .longest_sleep = std::chrono::milliseconds(1),
                          .stack_bytes = size_t{256} << 10,
                          .finalize = false});
  const auto operations = static_cast<size_t>(absl::GetFlag(FLAGS_operations));
  const double inserts = absl::GetFlag(FLAGS_inserts);
  // The load before the measurement is lower by half of the keys that the measurement inserts, so
  // that the mean load is the requested load.
  const double inserted = inserts * static_cast<double>(operations * scale.active);
  const double filled = scale.load * static_cast<double>(buckets) * scale.processes - inserted / 2;
  if (filled < 1) fail(absl::InvalidArgumentError("too many operations for --buckets"));
  std::unique_ptr<Keys> keys;
  const absl::Status ran = cluster.run([&](Fabric& fabric) {
    const auto thread = must(fabric.init_thread(0));
    Collectives all(fabric);
    TableOptions options;
    options.buckets = buckets;
    options.operations = absl::GetFlag(FLAGS_operations_by);
    const auto table = must(HashTable<1>::create(all, options, deadline_after(kPatience)));
    if (keys == nullptr) {
      keys = std::make_unique<Keys>(*table, scale, static_cast<uint64_t>(filled), seed);
    }
    {
      const auto local = must(table->access());
      for (const Key& key : keys->of_owner(fabric.rank())) {
        if (local->find_or_put(key).outcome == TableOutcome::kFull) {
          fail(absl::ResourceExhaustedError("the table is full: use a lower load"));
        }
      }
    }
    must(all.barrier(deadline_after(kPatience)));
    if (fabric.rank() == 0) outcome.idle = Memory::now();
    // No process connects before the memory was measured.
    must(all.barrier(deadline_after(kPatience)));
    if (fabric.rank() < scale.active) {
      Client client(cluster, fabric, *table, outcome);
      client.connect(*table);
      const std::vector<Key> mix = keys->mix(operations, inserts);
      const size_t single = operations / 4;
      client.measure_latency(std::span(mix).first(single));
      client.measure_rate(std::span(mix).subspan(single));
      client.add_statistics();
    }
    must(all.barrier(deadline_after(kPatience)));
    if (fabric.rank() == 0) outcome.busy = Memory::now();
    must(table->destroy(deadline_after(kPatience)));
  });
  must(ran);
  return outcome;
}

void report_outcome(const Report& report, Params params, const Scale& scale, Outcome outcome) {
  const auto row = [&](const char* name, double value, const char* unit) {
    report.row(name, params, summarize({value}), unit);
  };
  const auto mean = [](uint64_t sum, uint64_t count) {
    return static_cast<double>(sum) / static_cast<double>(std::max<uint64_t>(1, count));
  };
  const TableStatistics& sum = outcome.sum;
  report.row("operations_per_second", params, summarize(outcome.rates), "1/s");
  row("latency_p50", percentile(outcome.latencies, 0.5), "ns");
  row("latency_p99", percentile(outcome.latencies, 0.99), "ns");
  row("find_round_trips", mean(sum.find_round_trips, sum.remote_finds), "1");
  row("insert_round_trips", mean(sum.insert_round_trips, sum.remote_inserts), "1");
  row("round_trips",
      mean(sum.find_round_trips + sum.insert_round_trips, sum.remote_finds + sum.remote_inserts),
      "1");
  row("bytes_per_operation", mean(sum.bytes_read, sum.remote_finds + sum.remote_inserts), "B");
  row("chunk", outcome.chunk, "buckets");
  const auto of_each = [](uint64_t after, uint64_t before, uint32_t count) {
    return std::max(0.0, static_cast<double>(after) - static_cast<double>(before)) / count;
  };
  row("process_bytes", of_each(outcome.idle.resident, outcome.empty.resident, scale.processes),
      "B");
  row("heap_bytes", of_each(outcome.idle.heap, outcome.empty.heap, scale.processes), "B");
  row("client_bytes", of_each(outcome.busy.resident, outcome.idle.resident, scale.active), "B");
}

int run() {
  const auto buckets = must(parse_numbers("buckets", absl::GetFlag(FLAGS_buckets), 1024, 1 << 24));
  const auto processes = must(parse_numbers("processes", absl::GetFlag(FLAGS_processes), 2, 20000));
  const int active = absl::GetFlag(FLAGS_active);
  if (active < 1) fail(absl::InvalidArgumentError("--active: at least 1"));
  if (absl::GetFlag(FLAGS_operations) < 8) {
    fail(absl::InvalidArgumentError("--operations: at least 8"));
  }
  if (absl::GetFlag(FLAGS_in_flight) < 1) {
    fail(absl::InvalidArgumentError("--in_flight: at least 1"));
  }
  const Report report(absl::GetFlag(FLAGS_json), {"processes", "load"});
  for (const uint64_t count : processes) {
    for (const std::string& text : absl::GetFlag(FLAGS_loads)) {
      Scale scale;
      scale.processes = static_cast<uint32_t>(count);
      scale.active = std::min(static_cast<uint32_t>(active), scale.processes);
      if (!absl::SimpleAtod(text, &scale.load) || !(scale.load > 0 && scale.load < 0.98)) {
        fail(absl::InvalidArgumentError("--loads: '" + text + "' is not between 0 and 0.98"));
      }
      progress(absl::StrCat(count, " processes, load ", text));
      const auto start = std::chrono::steady_clock::now();
      Outcome outcome = simulate(scale, buckets.front());
      const std::chrono::duration<double> real = std::chrono::steady_clock::now() - start;
      progress("");
      Params params;
      params.set("processes", count);
      params.set("load", scale.load);
      params.set("active", uint64_t{scale.active});
      params.set("operations", static_cast<uint64_t>(absl::GetFlag(FLAGS_operations)));
      params.set("inserts", absl::GetFlag(FLAGS_inserts));
      params.set("in_flight", static_cast<uint64_t>(absl::GetFlag(FLAGS_in_flight)));
      params.set("operations_by",
                 std::string(operations_by_name(absl::GetFlag(FLAGS_operations_by))));
      params.set("buckets", buckets.front());
      params.set("compute", absl::GetFlag(FLAGS_compute));
      set_network_params(params);
      params.set("seed", absl::GetFlag(FLAGS_seed));
      report_outcome(report, params, scale, std::move(outcome));
      report.row("real_seconds", params, summarize({real.count()}), "s");
    }
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "simulates find-or-put on many processes: all own shares of the table, --active of them "
      "operate.\n  bench_dht_sim [options]";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "usage: bench_dht_sim [options], see --help\n");
    return 1;
  }
  return cariama::bench::run();
}
