// Simulates the protocols of a fabric on more processes than this machine has: the real fabric,
// collectives, broadcasts and transport code run on a simulated cluster
// (bench/support/virtual_cluster.h).
//
//   bench_fabric_sim --processes 100,1000
//   bench_fabric_sim --processes 10000 --operations barrier,all_reduce
//
// All processes begin each operation at the same virtual time. Only the network takes virtual time:
// a message takes --latency, and --message-gap at each port. All pairs of processes have the same
// distance. Connections and the exchange of addresses go through a store in memory and take none,
// but their operations are counted. The processes share the list of their names. Memory of the
// simulation for each process: its superpages (--superpage), its heap (`heap_bytes`), and a thread
// with its stack. `peak_bytes` is the memory of all, `real_seconds` the real time.
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
//   most_store_operations  of the process with most, which are one after the other
//
// The operations, in this order: `start` (Fabric::create), `connect` (each process calls a random
// one), `first_barrier` (which connects the tree), `barrier`, `all_reduce` (8 bytes), `gather` (8
// bytes of each process), `broadcast` (8 bytes, dsfabric), `call_broadcast` (riutils),
// `buffer_broadcast` (--buffer bytes), `quiescence`; then one process is killed: `detect` (the time
// until the process that calls it has its error), `spread` (until all others know), and
// `barrier_without` (a barrier that leaves it out); at last `finalize` (Fabric::finalize of the
// others). --operations chooses some of them; `start` and `first_barrier` always run. finalize()
// agrees through the store, so that it has no virtual time: a row of its time would be that of the
// store, `most_store_operations` times the time of one operation.
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "bench/support/flags.h"
#include "bench/support/list_flag.h"
#include "bench/support/must.h"
#include "bench/support/network_flags.h"
#include "bench/support/report.h"
#include "bench/support/virtual_barrier.h"
#include "bench/support/virtual_cluster.h"
#include "dsfabric/collectives.h"
#include "dsfabric/fabric_options.h"
#include "dsfabric/future.h"
#include "dsfabric/quiescence.h"
#include "dsfabric/send_call.h"
#include "dtutils/statistics.h"
#include "riutils/broadcast.h"

ABSL_FLAG(std::string, processes, "100,1000", "numbers of processes");
ABSL_FLAG(std::vector<std::string>, operations, (std::vector<std::string>{"all"}),
          "all, or a list of connect, barrier, all_reduce, gather, broadcast, call_broadcast, "
          "buffer_broadcast, quiescence, death (detect, spread and barrier_without), finalize");
ABSL_FLAG(std::string, buffer, "64Ki", "bytes of the buffer that buffer_broadcast sends");
ABSL_FLAG(std::string, superpage, "1Mi",
          "bytes of a process's first superpage: memory that it takes, used or not");
ABSL_FLAG(std::string, chunk, "64Ki", "FabricOptions::superpages.chunk_bytes");
ABSL_FLAG(std::string, receive_units, "16", "FabricOptions::receive_units");
ABSL_FLAG(std::string, receive_unit_bytes, "4Ki", "FabricOptions::receive_unit_bytes");
ABSL_FLAG(double, longest_sleep, 1e7,
          "ns after which a waiting process polls, without a message: longer takes less real time");
ABSL_FLAG(uint64_t, seed, 1, "seed of all random choices");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

constexpr std::chrono::minutes kPatience{60};  // real time

Deadline soon() { return deadline_after(kPatience); }

constexpr std::string_view kOperations[] = {
    "connect",        "barrier",          "all_reduce", "gather", "broadcast",
    "call_broadcast", "buffer_broadcast", "quiescence", "death",  "finalize"};
// Returns true if --operations contains `operation`.
bool is_chosen(std::string_view operation) {
  const std::vector<std::string> chosen = absl::GetFlag(FLAGS_operations);
  return std::any_of(chosen.begin(), chosen.end(),
                     [&](const std::string& one) { return one == "all" || one == operation; });
}
void check_operations() {
  for (const std::string& one : absl::GetFlag(FLAGS_operations)) {
    const bool known =
        std::find(std::begin(kOperations), std::end(kOperations), one) != std::end(kOperations);
    if (!known && one != "all") {
      fail(absl::InvalidArgumentError("--operations: there is no '" + one + "', see --help"));
    }
  }
}

uint64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}
// Returns the most memory that this process of the operating system has taken.
double peak_bytes() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
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
  std::vector<uint64_t> store_operations;  // by process
};
// The difference of two vectors of counters.
struct Growth {
  Growth(const std::vector<uint64_t>& after, const std::vector<uint64_t>& before) {
    for (size_t i = 0; i < after.size(); ++i) {
      sum += after[i] - before[i];
      most = std::max(most, after[i] - before[i]);
    }
  }
  uint64_t sum = 0;
  uint64_t most = 0;
};

// The cost of one operation.
struct Outcome {
  std::string operation;
  bool timed = true;
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
  uint64_t most_store_operations = 0;
};

// Measures the operations of one simulation. The processes share this object without a lock, since
// one of them runs at a time.
class Stages {
 public:
  Stages(VirtualCluster& cluster, uint32_t processes)
      : cluster_(cluster),
        barrier_(cluster, processes),
        empty_heap_(heap_bytes()),
        before_(totals()) {}

  // Called by every process: runs `body` in all of them from a common virtual time on.
  void run(Fabric& fabric, const char* operation, uint32_t steps,
           const std::function<void()>& body) {
    align(fabric, [] {});
    body();
    end_ = std::max(end_, barrier_.now(fabric));
    finish(fabric, operation, steps);
  }
  // As run(), for an operation that has already ended and takes no virtual time.
  void finish(Fabric& fabric, const char* operation, uint32_t steps) {
    note_connections(fabric);
    align(fabric, [&] { record(operation, steps); });
  }
  // Called by every process, as its last operation: ends the job.
  void finalize(Fabric& fabric, std::unique_ptr<ThreadContext> thread) {
    align(fabric, [] {});
    thread.reset();
    must(fabric.finalize(soon()));
    note_connections(fabric);
    if (++finalized_ != barrier_.taking_part()) return;
    record("finalize", 0);
    outcomes_.back().timed = false;
  }
  // The calling process will be killed: the others go on without it.
  void leave() { barrier_.leave(); }

  [[nodiscard]] const std::vector<Outcome>& outcomes() const { return outcomes_; }

 private:
  void note_connections(const Fabric& fabric) {
    const uint64_t connections = fabric.statistics().connections;
    connections_ += connections;
    most_connections_ = std::max(most_connections_, connections);
  }

  // Waits for all processes; the last one runs `last`.
  void align(Fabric& fabric, const std::function<void()>& last) {
    if (!barrier_.meet(fabric, last, soon())) {
      fail(absl::DeadlineExceededError("a process did not finish its operation"));
    }
  }

  void record(const char* operation, uint32_t steps) {
    Totals after = totals();
    const double count = barrier_.taking_part();
    Outcome outcome;
    outcome.operation = operation;
    outcome.time = std::max(end_ - barrier_.start(), SimTime(0));
    outcome.bound = from_ns(absl::GetFlag(FLAGS_latency)) * steps;
    const Growth sent(after.sent, before_.sent);
    outcome.messages = static_cast<double>(sent.sum) / count;
    outcome.most_messages = sent.most;
    outcome.bytes = static_cast<double>(after.bytes - before_.bytes) / count;
    outcome.connections = static_cast<double>(connections_) / count;
    outcome.most_connections = most_connections_;
    outcome.registered_bytes = static_cast<double>(registered_bytes()) / count;
    outcome.heap_bytes = static_cast<double>(heap_bytes() - empty_heap_) / count;
    const Growth stored(after.store_operations, before_.store_operations);
    outcome.store_operations = static_cast<double>(stored.sum) / count;
    outcome.most_store_operations = stored.most;
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
      totals.store_operations.push_back(cluster_.store_operations(rank));
    }
    return totals;
  }

  VirtualCluster& cluster_;
  VirtualBarrier barrier_;
  const uint64_t empty_heap_;
  Totals before_;
  uint32_t finalized_ = 0;
  SimTime end_{0};
  uint64_t connections_ = 0;
  uint64_t most_connections_ = 0;
  std::vector<Outcome> outcomes_;
};

// Runs the chosen operations before finalize() in one process. Returns false if the process died.
bool use(VirtualCluster& cluster, Fabric& fabric, Stages& stages, const std::string& buffer) {
  const uint32_t size = fabric.size();
  const auto depth = static_cast<uint32_t>(std::bit_width(size - 1));
  stages.finish(fabric, "start", 0);

  std::mt19937_64 random(absl::GetFlag(FLAGS_seed) * size + fabric.rank());
  const auto other = Rank((fabric.rank() + 1 + random() % (size - 1)) % size);
  const auto run = [&](const char* operation, uint32_t steps, const std::function<void()>& body) {
    if (is_chosen(operation)) stages.run(fabric, operation, steps, body);
  };
  run("connect", 2, [&] { must(async_call(fabric, fabric.thread_of(other), [] {}).get(soon())); });

  Collectives all(fabric, {.leave_out_dead = true});
  TerminationDetector detector(fabric, {.leave_out_dead = true});
  stages.run(fabric, "first_barrier", 2 * depth, [&] { must(all.barrier(soon())); });
  run("barrier", 2 * depth, [&] { must(all.barrier(soon())); });
  run("all_reduce", 2 * depth, [&] {
    const uint64_t sum = must(all.all_reduce(uint64_t{1}, std::plus<>(), soon()));
    if (sum != size) fail(absl::InternalError("all_reduce: wrong sum"));
  });
  run("gather", 2 * depth, [&] {
    const auto ranks = must(all.all_gather(uint64_t{fabric.rank()}, soon()));
    if (ranks.size() != size || ranks.back() != size - 1) {
      fail(absl::InternalError("all_gather: wrong values"));
    }
  });
  run("broadcast", depth, [&] {
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
  run("call_broadcast", depth, [&] {
    if (fabric.rank() == 0) {
      must(broadcast<RemoteNotify>(
               fabric, [] { received = true; }, consumed)
               .status());
    }
    wait_for_call();
  });
  Synchronizer buffer_consumed;
  run("buffer_broadcast", depth, [&] {
    if (fabric.rank() == 0) {
      must(broadcast_buffer<RemoteNotify>(
               fabric, [](void*, uint64_t) { received = true; }, std::as_bytes(std::span(buffer)),
               buffer_consumed)
               .status());
    }
    wait_for_call();
  });
  if (fabric.rank() == 0) {
    const auto ended = [](const char* operation, const Synchronizer& done) {
      return !is_chosen(operation) || done.done();
    };
    const auto all_ended = [&] {
      return ended("call_broadcast", consumed) && ended("buffer_broadcast", buffer_consumed);
    };
    must(fabric.wait(all_ended, soon()) ? absl::OkStatus()
                                        : absl::DeadlineExceededError("a broadcast did not end"));
  }
  run("quiescence", 4 * depth, [&] { must(detector.wait(soon())); });
  if (!is_chosen("death")) return true;

  // The victim is a process with several children in the tree of the collectives.
  const uint32_t victim = size / 2;
  const uint32_t parent = victim & (victim - 1);
  if (fabric.rank() == victim) {
    stages.leave();
    cluster.kill(victim);
    return false;
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
  return true;
}

// The memory of superpages is private and has base pages: shared memory takes a file descriptor for
// each process. Otherwise the protocols have the options of the flags.
FabricOptions fabric_options() {
  const auto number = [](const char* flag, const std::string& text, uint64_t least, uint64_t most) {
    return must(parse_numbers(flag, text, least, most)).front();
  };
  FabricOptions options;
  options.receive_units = static_cast<uint32_t>(number(
      "receive_units", absl::GetFlag(FLAGS_receive_units), 1, FabricOptions::kMaxPerProcess));
  options.receive_unit_bytes = static_cast<uint32_t>(
      number("receive_unit_bytes", absl::GetFlag(FLAGS_receive_unit_bytes), 256, 1 << 20));
  options.superpages.chunk_bytes =
      number("chunk", absl::GetFlag(FLAGS_chunk), 4096, uint64_t{1} << 30);
  options.superpages.first_superpage_bytes =
      number("superpage", absl::GetFlag(FLAGS_superpage), 4096, uint64_t{1} << 30);
  options.superpages.shareable = false;
  options.superpages.largest_page = PageKind::kBase;
  options.timeout = kPatience;
  return options;
}

std::vector<Outcome> simulate(uint32_t processes, const std::string& buffer) {
  VirtualCluster cluster({.processes = processes,
                          .sim = network_options(absl::GetFlag(FLAGS_seed)),
                          .fabric = fabric_options(),
                          .longest_sleep = from_ns(absl::GetFlag(FLAGS_longest_sleep)),
                          .stack_bytes = size_t{256} << 10,
                          .finalize = is_chosen("finalize")});
  Stages stages(cluster, processes);
  must(cluster.run([&](Fabric& fabric) {
    auto thread = must(fabric.init_thread(0));
    const bool lives = use(cluster, fabric, stages, buffer);
    if (lives && is_chosen("finalize")) stages.finalize(fabric, std::move(thread));
  }));
  return stages.outcomes();
}

void report_outcome(const Report& report, Params params, const Outcome& outcome) {
  params.set("operation", outcome.operation);
  const auto row = [&](const char* name, double value, const char* unit) {
    report.row(name, params, summarize({value}), unit);
  };
  if (outcome.timed) {
    row("time", to_ns(outcome.time), "ns");
    row("bound", to_ns(outcome.bound), "ns");
  }
  row("messages", outcome.messages, "1");
  row("most_messages", static_cast<double>(outcome.most_messages), "1");
  row("bytes", outcome.bytes, "B");
  row("connections", outcome.connections, "1");
  row("most_connections", static_cast<double>(outcome.most_connections), "1");
  row("registered_bytes", outcome.registered_bytes, "B");
  row("heap_bytes", outcome.heap_bytes, "B");
  row("store_operations", outcome.store_operations, "1");
  row("most_store_operations", static_cast<double>(outcome.most_store_operations), "1");
}

int run() {
  check_operations();
  const auto processes =
      must(parse_numbers("processes", absl::GetFlag(FLAGS_processes), 4, 100000));
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
    params.set("superpage", absl::GetFlag(FLAGS_superpage));
    params.set("chunk", absl::GetFlag(FLAGS_chunk));
    params.set("receive_units", absl::GetFlag(FLAGS_receive_units));
    params.set("receive_unit_bytes", absl::GetFlag(FLAGS_receive_unit_bytes));
    params.set("longest_sleep", absl::GetFlag(FLAGS_longest_sleep));
    set_network_params(params);
    params.set("seed", absl::GetFlag(FLAGS_seed));
    for (const Outcome& outcome : outcomes) report_outcome(report, params, outcome);
    params.set("operation", "all");
    report.row("peak_bytes", params, summarize({peak_bytes()}), "B");
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
