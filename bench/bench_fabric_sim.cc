// Simulates the protocols of a fabric on more processes than this machine has: the real fabric,
// collectives, broadcasts and transport code run on a simulated cluster
// (bench/support/virtual_cluster.h).
//
//   bench_fabric_sim --processes 100,1000
//
// All processes begin each operation at the same virtual time. Only the network takes virtual time:
// a message takes --latency, and --message-gap at each port. All pairs of processes have the same
// distance. Connections and the exchange of addresses go through a store in memory and take none,
// but their operations are counted. Each process takes the first superpage of its fabric, 2 MiB,
// and its connections; the processes share the list of their names.
// Rows, by processes and operation:
//
//   time                from the common start until the last process has finished
//   bound               latency times the steps that the operation needs one after the other: 2 for
//                       `connect`; the depth of a binomial tree for broadcasts and `spread`, twice
//                       that for the other collectives, four times for `quiescence`; else 0
//   messages            sent per process: mean
//   most_messages       sent by the process that sent most
//   bytes               sent per process: mean
//   connections         of a process after the operation: mean
//   most_connections    of the process with most
//   registered_bytes    in use per process after the operation: mean
//   heap_bytes          allocated per process after the operation: mean, with the simulation's own
//   store_operations    of a process: puts, gets and fences of the store: mean
//
// The operations, in this order: `start` (Fabric::create), `connect` (each process calls a random
// one), `first_barrier` (which connects the tree), `barrier`, `all_reduce` (8 bytes), `gather` (8
// bytes of each process), `broadcast` (8 bytes, dsfabric), `call_broadcast` (riutils),
// `buffer_broadcast` (--buffer bytes), `quiescence`; then one process is killed: `detect` (the time
// until the process that calls it has its error), `spread` (until all others know), and
// `barrier_without` (a barrier that leaves it out).
#include <malloc.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "bench/support/flags.h"
#include "bench/support/list_flag.h"
#include "bench/support/network_flags.h"
#include "bench/support/report.h"
#include "bench/support/virtual_cluster.h"
#include "dsfabric/collectives.h"
#include "dsfabric/future.h"
#include "dsfabric/quiescence.h"
#include "dsfabric/send_call.h"
#include "dtutils/statistics.h"
#include "riutils/broadcast.h"

ABSL_FLAG(std::string, processes, "100,1000", "numbers of processes");
ABSL_FLAG(std::string, buffer, "64Ki", "bytes of the buffer that buffer_broadcast sends");
ABSL_FLAG(uint64_t, seed, 1, "seed of all random choices");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

constexpr std::chrono::minutes kPatience{60};  // real time

[[noreturn]] void fail(const absl::Status& status) {
  std::fprintf(stderr, "bench_fabric_sim: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}
template <typename T>
T must(absl::StatusOr<T> value) {
  if (!value.ok()) fail(value.status());
  return *std::move(value);
}
void must(const absl::Status& status) {
  if (!status.ok()) fail(status);
}
Deadline soon() { return deadline_after(kPatience); }

uint64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}
// Returns the registered bytes in use, of all simulated processes.
uint64_t registered_bytes() {
  uint64_t sum = 0;
  for (const Statistic& statistic : statistics_snapshot()) {
    if (statistic.kind == "fabric" && statistic.name == "registered_bytes_in_use") {
      sum += statistic.value;
    }
  }
  return sum;
}

// Sums over the processes at one moment.
struct Totals {
  std::vector<uint64_t> sent;  // messages, by process
  uint64_t bytes = 0;
  uint64_t store_operations = 0;
};

// The cost of one operation.
struct Outcome {
  std::string operation;
  SimTime time{0};
  SimTime bound{0};
  double messages = 0;
  uint64_t most_messages = 0;
  double bytes = 0;
  double connections = 0;
  uint64_t most_connections = 0;
  double registered_bytes = 0;
  double heap_bytes = 0;
  double store_operations = 0;
};

// Measures the operations of one simulation. The processes share this object without a lock, since
// one of them runs at a time.
class Stages {
 public:
  Stages(VirtualCluster& cluster, uint32_t processes)
      : cluster_(cluster), taking_part_(processes), empty_heap_(heap_bytes()), before_(totals()) {}

  // Called by every process: runs `body` in all of them from a common virtual time on.
  void run(Fabric& fabric, const char* operation, uint32_t steps,
           const std::function<void()>& body) {
    align(fabric, [] {});
    body();
    end_ = std::max(end_, now(fabric));
    finish(fabric, operation, steps);
  }
  // As run(), for an operation that has already ended and takes no virtual time.
  void finish(Fabric& fabric, const char* operation, uint32_t steps) {
    const uint64_t connections = fabric.statistics().connections;
    connections_ += connections;
    most_connections_ = std::max(most_connections_, connections);
    align(fabric, [&] { record(operation, steps); });
  }
  // The calling process will be killed: the others go on without it.
  void leave() { --taking_part_; }

  [[nodiscard]] const std::vector<Outcome>& outcomes() const { return outcomes_; }

 private:
  [[nodiscard]] SimTime now(const Fabric& fabric) const {
    return cluster_.process(fabric.rank()).clock;
  }

  // Waits for all processes; the last one runs `last`. All continue at the same virtual time.
  void align(Fabric& fabric, const std::function<void()>& last) {
    latest_ = std::max(latest_, now(fabric));
    if (++reached_ == taking_part_) {
      reached_ = 0;
      last();
      start_ = latest_ + std::chrono::microseconds(100);
      ++aligned_;
    } else {
      const uint64_t stage = aligned_;
      if (!fabric.wait([&] { return aligned_ != stage; }, soon())) {
        fail(absl::DeadlineExceededError("a process did not finish its operation"));
      }
    }
    VirtualCluster::spend(std::max(start_ - now(fabric), SimTime(0)));
  }

  void record(const char* operation, uint32_t steps) {
    Totals after = totals();
    const double count = taking_part_;
    Outcome outcome;
    outcome.operation = operation;
    outcome.time = std::max(end_ - start_, SimTime(0));
    outcome.bound = from_ns(absl::GetFlag(FLAGS_latency)) * steps;
    uint64_t messages = 0;
    for (size_t rank = 0; rank < after.sent.size(); ++rank) {
      const uint64_t sent = after.sent[rank] - before_.sent[rank];
      messages += sent;
      outcome.most_messages = std::max(outcome.most_messages, sent);
    }
    outcome.messages = static_cast<double>(messages) / count;
    outcome.bytes = static_cast<double>(after.bytes - before_.bytes) / count;
    outcome.connections = static_cast<double>(connections_) / count;
    outcome.most_connections = most_connections_;
    outcome.registered_bytes = static_cast<double>(registered_bytes()) / count;
    outcome.heap_bytes = static_cast<double>(heap_bytes() - empty_heap_) / count;
    outcome.store_operations =
        static_cast<double>(after.store_operations - before_.store_operations) / count;
    outcomes_.push_back(outcome);
    before_ = std::move(after);
    connections_ = most_connections_ = 0;
    end_ = SimTime(0);
  }

  [[nodiscard]] Totals totals() const {
    Totals totals;
    for (uint32_t rank = 0; rank < cluster_.processes(); ++rank) {
      const SimEndpointStatistics port = cluster_.network().endpoint_statistics(rank);
      totals.sent.push_back(port.messages_sent);
      totals.bytes += port.bytes_sent;
    }
    totals.store_operations = cluster_.store_operations();
    return totals;
  }

  VirtualCluster& cluster_;
  uint32_t taking_part_;
  const uint64_t empty_heap_;
  Totals before_;
  uint32_t reached_ = 0;
  uint64_t aligned_ = 0;
  SimTime latest_{0};  // clock of the process that reached the alignment last
  SimTime start_{0};
  SimTime end_{0};
  uint64_t connections_ = 0;
  uint64_t most_connections_ = 0;
  std::vector<Outcome> outcomes_;
};

// Runs all operations in one process.
void use(VirtualCluster& cluster, Fabric& fabric, Stages& stages, const std::string& buffer) {
  const auto thread = must(fabric.init_thread(0));
  const uint32_t size = fabric.size();
  const auto depth = static_cast<uint32_t>(std::bit_width(size - 1));
  stages.finish(fabric, "start", 0);

  std::mt19937_64 random(absl::GetFlag(FLAGS_seed) * size + fabric.rank());
  const auto other = Rank((fabric.rank() + 1 + random() % (size - 1)) % size);
  stages.run(fabric, "connect", 2,
             [&] { must(async_call(fabric, fabric.thread_of(other), [] {}).get(soon())); });

  Collectives all(fabric, {.leave_out_dead = true});
  TerminationDetector detector(fabric, {.leave_out_dead = true});
  stages.run(fabric, "first_barrier", 2 * depth, [&] { must(all.barrier(soon())); });
  stages.run(fabric, "barrier", 2 * depth, [&] { must(all.barrier(soon())); });
  stages.run(fabric, "all_reduce", 2 * depth, [&] {
    const uint64_t sum = must(all.all_reduce(uint64_t{1}, std::plus<>(), soon()));
    if (sum != size) fail(absl::InternalError("all_reduce: wrong sum"));
  });
  stages.run(fabric, "gather", 2 * depth, [&] {
    const auto ranks = must(all.all_gather(uint64_t{fabric.rank()}, soon()));
    if (ranks.size() != size || ranks.back() != size - 1) {
      fail(absl::InternalError("all_gather: wrong values"));
    }
  });
  stages.run(fabric, "broadcast", depth, [&] {
    uint64_t value = fabric.rank() == 0 ? 17 : 0;
    must(all.broadcast(value, 0, soon()));
    if (value != 17) fail(absl::InternalError("broadcast: wrong value"));
  });

  // Broadcasts of calls: the process that receives the call has finished.
  static thread_local bool received;
  const auto wait_for_call = [&] {
    if (!fabric.wait([] { return received; }, soon())) {
      fail(absl::DeadlineExceededError("a broadcast did not arrive"));
    }
    received = false;
  };
  Synchronizer consumed;
  stages.run(fabric, "call_broadcast", depth, [&] {
    if (fabric.rank() == 0) {
      must(broadcast<RemoteNotify>(
               fabric, [] { received = true; }, consumed)
               .status());
    }
    wait_for_call();
  });
  Synchronizer buffer_consumed;
  stages.run(fabric, "buffer_broadcast", depth, [&] {
    if (fabric.rank() == 0) {
      must(broadcast_buffer<RemoteNotify>(
               fabric, [](void*, uint64_t) { received = true; }, std::as_bytes(std::span(buffer)),
               buffer_consumed)
               .status());
    }
    wait_for_call();
  });
  if (fabric.rank() == 0) {
    must(fabric.wait([&] { return consumed.done() && buffer_consumed.done(); }, soon())
             ? absl::OkStatus()
             : absl::DeadlineExceededError("a broadcast did not end"));
  }
  stages.run(fabric, "quiescence", 4 * depth, [&] { must(detector.wait(soon())); });

  // The victim is a process with several children in the tree of the collectives.
  const uint32_t victim = size / 2;
  const uint32_t parent = victim & (victim - 1);
  if (fabric.rank() == victim) {
    stages.leave();
    cluster.kill(victim);
    return;
  }
  stages.run(fabric, "detect", 0, [&] {
    if (fabric.rank() != parent) return;
    const absl::Status called =
        async_call(fabric, fabric.thread_of(Rank(victim)), [] {}).get(soon());
    if (called.ok()) fail(absl::InternalError("a dead process has answered"));
  });
  stages.run(fabric, "spread", depth, [&] {
    if (!fabric.wait([&] { return !fabric.peer_status(Rank(victim)).ok(); }, soon())) {
      fail(absl::DeadlineExceededError("a process did not hear of the death"));
    }
  });
  stages.run(fabric, "barrier_without", 2 * depth, [&] { must(all.barrier(soon())); });
}

std::vector<Outcome> simulate(uint32_t processes, const std::string& buffer) {
  VirtualCluster cluster(
      {.processes = processes, .sim = network_options(absl::GetFlag(FLAGS_seed))});
  Stages stages(cluster, processes);
  must(cluster.run([&](Fabric& fabric) { use(cluster, fabric, stages, buffer); }));
  return stages.outcomes();
}

void report_outcome(const Report& report, Params params, const Outcome& outcome) {
  params.set("operation", outcome.operation);
  const auto row = [&](const char* name, double value, const char* unit) {
    report.row(name, params, summarize({value}), unit);
  };
  row("time", to_ns(outcome.time), "ns");
  row("bound", to_ns(outcome.bound), "ns");
  row("messages", outcome.messages, "1");
  row("most_messages", static_cast<double>(outcome.most_messages), "1");
  row("bytes", outcome.bytes, "B");
  row("connections", outcome.connections, "1");
  row("most_connections", static_cast<double>(outcome.most_connections), "1");
  row("registered_bytes", outcome.registered_bytes, "B");
  row("heap_bytes", outcome.heap_bytes, "B");
  row("store_operations", outcome.store_operations, "1");
}

int run() {
  const auto processes = must(parse_numbers("processes", absl::GetFlag(FLAGS_processes), 4, 20000));
  const auto bytes = must(parse_numbers("buffer", absl::GetFlag(FLAGS_buffer), 1, 1 << 28));
  const std::string buffer(bytes.front(), 'x');
  const Report report(absl::GetFlag(FLAGS_json), {"processes", "operation"});
  for (const uint64_t count : processes) {
    progress(absl::StrCat(count, " processes"));
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Outcome> outcomes = simulate(static_cast<uint32_t>(count), buffer);
    const std::chrono::duration<double> real = std::chrono::steady_clock::now() - start;
    progress("");
    Params params;
    params.set("processes", count);
    params.set("buffer", bytes.front());
    set_network_params(params);
    params.set("seed", absl::GetFlag(FLAGS_seed));
    for (const Outcome& outcome : outcomes) report_outcome(report, params, outcome);
    params.set("operation", "all");
    report.row("real_seconds", params, summarize({real.count()}), "s");
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "simulates the protocols of a fabric on many processes.\n  bench_fabric_sim [options]";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "usage: bench_fabric_sim [options], see --help\n");
    return 1;
  }
  return cariama::bench::run();
}
