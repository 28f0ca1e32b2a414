// bench_all_to_all: each thread of a job sends one-sided calls to randomly chosen other threads,
// with and without aggregation, for increasing numbers of processes. Reports messages per second
// and the memory of the channels per process, and checks that no call is lost. See
// docs/performance.md.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "bench/support/flags.h"
#include "bench/support/job.h"
#include "bench/support/list_flag.h"
#include "bench/support/report.h"
#include "bench/support/rounds.h"
#include "bench/support/summary.h"
#include "dsfabric/fabric.h"
#include "dtutils/allocators/memory_budget.h"
#include "dtutils/error.h"
#include "dtutils/random.h"
#include "dtutils/statistics.h"
#include "riutils/messenger_global.h"
#include "riutils/routed_aggregator.h"

ABSL_FLAG(std::string, processes, "2,4,8,16", "number of processes, or a list");
ABSL_FLAG(std::string, threads, "1,2", "threads in each process, or a list");
ABSL_FLAG(std::string, mode, "all", "write, trad, ovfl, or all");
ABSL_FLAG(std::string, routing, "direct",
          "direct, or node: two hops, with mode trad (routed_aggregator.h)");
ABSL_FLAG(int, processes_per_node, 0,
          "with --routing node: ranks that form a node; 0: a host is one");
ABSL_FLAG(std::string, transport, "shm", "shm or verbs: all processes run on this host");
ABSL_FLAG(std::string, arrival, "auto",
          "how one-sided calls arrive: auto, mapped, trailing, polled or event");
ABSL_FLAG(std::string, preset, "default", "options of fabric and channels: default or paper");
ABSL_FLAG(int, messages, 50000, "calls that each thread makes in a repetition");
ABSL_FLAG(int, repetitions, 5, "repetitions of each row; median, minimum and maximum are shown");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

constexpr const char* kProgram = "bench_all_to_all";
constexpr uint32_t kModes = 3;
constexpr const char* kModeNames[kModes] = {"write", "trad", "ovfl"};
constexpr uint32_t kTraditional = 1;
constexpr uint64_t kPayload = 8;

struct Options {
  std::vector<uint64_t> processes;
  std::vector<uint64_t> threads;
  std::vector<uint32_t> modes;
  Routing routing = Routing::kDirect;
  uint32_t processes_per_node = 0;
  std::string transport;
  std::string arrival;
  std::string preset;
  MessengerOptions messenger;
  uint64_t messages = 0;
  int repetitions = 5;
  bool json = false;
};

absl::Status refuse(const std::string& flag, const std::string& value, const std::string& choice) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "--" + flag + ": '" + value + "' is not " + choice, "see --help");
}

absl::StatusOr<Options> parse_options() {
  Options options;
  auto processes = parse_numbers("processes", absl::GetFlag(FLAGS_processes), 2, 64);
  if (!processes.ok()) return processes.status();
  options.processes = *std::move(processes);
  auto threads = parse_numbers("threads", absl::GetFlag(FLAGS_threads), 1, 16);
  if (!threads.ok()) return threads.status();
  options.threads = *std::move(threads);
  const std::string mode = absl::GetFlag(FLAGS_mode);
  for (uint32_t i = 0; i < kModes; ++i) {
    if (mode == "all" || mode == kModeNames[i]) options.modes.push_back(i);
  }
  if (options.modes.empty()) return refuse("mode", mode, "write, trad, ovfl or all");
  const std::string routing = absl::GetFlag(FLAGS_routing);
  const auto chosen = routing_of(routing);
  if (!chosen.ok()) return refuse("routing", routing, "direct or node");
  options.routing = *chosen;
  if (options.routing == Routing::kNode) {
    if (mode == "all") options.modes = {kTraditional};
    if (options.modes != std::vector<uint32_t>{kTraditional}) {
      return refuse("mode", mode, "trad, the only mode of --routing node");
    }
  }
  const int per_node = absl::GetFlag(FLAGS_processes_per_node);
  if (per_node < 0) return refuse("processes-per-node", std::to_string(per_node), "at least 0");
  options.processes_per_node = static_cast<uint32_t>(per_node);
  options.preset = absl::GetFlag(FLAGS_preset);
  auto messenger = messenger_preset(options.preset);
  if (!messenger.ok()) return refuse("preset", options.preset, "default or paper");
  options.messenger = *messenger;
  options.arrival = absl::GetFlag(FLAGS_arrival);
  const auto arrival = arrival_of(options.arrival);
  if (!arrival.ok()) return arrival.status();
  options.messenger.arrival = *arrival;
  options.transport = absl::GetFlag(FLAGS_transport);
  if (absl::Status transport = choose_transport(options.transport); !transport.ok()) {
    return transport;
  }
  const int messages = absl::GetFlag(FLAGS_messages);
  if (messages < 1) return refuse("messages", std::to_string(messages), "at least 1");
  options.messages = static_cast<uint64_t>(messages);
  options.repetitions = absl::GetFlag(FLAGS_repetitions);
  if (options.repetitions < 1 || options.repetitions > 100000) {
    return refuse("repetitions", std::to_string(options.repetitions), "from 1 to 100000");
  }
  options.json = absl::GetFlag(FLAGS_json);
  return options;
}

// Counters of one job in memory that all its workers share. Created before the processes are
// forked.
class Tally {
 public:
  struct Sent {
    uint64_t count = 0;
    uint64_t sum = 0;
  };

  static Tally* create(uint32_t processes, uint32_t threads) {
    const uint64_t workers = uint64_t{processes} * threads;
    const uint64_t bytes = sizeof(Tally) + workers * sizeof(Run) +
                           workers * workers * sizeof(Sent) + processes * sizeof(Memory);
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                              -1, 0);  // all counters start at zero
    if (memory == MAP_FAILED) return nullptr;
    return new (memory) Tally(workers, static_cast<std::byte*>(memory) + sizeof(Tally));
  }

  // Counts the calls from worker `from` to worker `to` in this repetition. Written by the sender.
  Sent& sent(uint64_t from, uint64_t to) { return sent_[from * workers_ + to]; }
  // Sets the number of calls that `worker` has run in this repetition.
  void set_run(uint64_t worker, uint64_t count) {
    run_[worker].count.store(count, std::memory_order_release);
  }
  uint64_t all_run() const {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < workers_; ++i) sum += run_[i].count.load(std::memory_order_acquire);
    return sum;
  }
  // Of one process, written after the last repetition.
  struct Memory {
    uint64_t superpage_bytes;  // registered memory taken for channels, in whole superpages
    uint64_t chunk_bytes;      // chunks granted to the senders of channels
    uint64_t forwarded;        // calls that its threads have forwarded
  };
  Memory& memory(uint32_t rank) { return memory_[rank]; }

 private:
  struct alignas(128) Run {
    std::atomic<uint64_t> count;
  };

  Tally(uint64_t workers, std::byte* behind)
      : workers_(workers),
        run_(reinterpret_cast<Run*>(behind)),
        sent_(reinterpret_cast<Sent*>(behind + workers * sizeof(Run))),
        memory_(reinterpret_cast<Memory*>(sent_ + workers * workers)) {}

  alignas(128) const uint64_t workers_;
  Run* const run_;
  Sent* const sent_;
  Memory* const memory_;
};

// Counts the calls that one thread has run, from all senders.
struct Sink {
  uint64_t count = 0;
  uint64_t sum = 0;
  uint64_t out_of_order = 0;
  std::vector<uint32_t> last{};  // number of the last message, by sender
};
thread_local Sink* sink = nullptr;

// A message of 8 bytes. The numbers of one sender increase over all its destinations.
struct Message {
  uint32_t from;
  uint32_t number;
  [[nodiscard]] uint64_t value() const { return uint64_t{from} << 32 | number; }
  void operator()() const {
    Sink& mine = *sink;
    ++mine.count;
    mine.sum += value();
    uint32_t& last = mine.last[from];
    if (number <= last) ++mine.out_of_order;
    last = number;
  }
};
static_assert(sizeof(Message) == kPayload);

// Pseudo-random destinations, evenly distributed, as a hash of work items would give. Never the
// thread itself.
class Destinations {
 public:
  Destinations(uint32_t self, uint32_t threads) : self_(self), threads_(threads), random_(self) {}
  uint32_t next() {
    const uint32_t other = random_.below(threads_ - 1);
    return other < self_ ? other : other + 1;
  }

 private:
  uint32_t self_;
  uint32_t threads_;
  Random random_;
};

// RoutedAggregator with the functions of the globals.
class RoutedGlobal {
 public:
  RoutedGlobal(ThreadContext& thread, const RoutingOptions& options)
      : aggregator_(thread, options) {}
  __attribute__((always_inline)) CallResult call(ThreadId destination, const Message& message) {
    return aggregator_.call(destination, message);
  }
  size_t process_calls_all() { return aggregator_.process_calls(); }
  [[nodiscard]] absl::Status flush_all() { return aggregator_.flush(); }
  [[nodiscard]] absl::Status shutdown_all(Deadline deadline) {
    return aggregator_.shutdown(deadline);
  }

 private:
  RoutedAggregator aggregator_;
};

template <typename Messenger>
auto options_of(const Options& options) {
  if constexpr (std::is_same_v<Messenger, RoutedGlobal>) {
    return RoutingOptions{.routing = options.routing,
                          .processes_per_node = options.processes_per_node,
                          .messenger = options.messenger};
  } else {
    return options.messenger;
  }
}

// One thread of the job. Messenger is RDMAMessengerGlobal, one of the aggregator globals, or
// RoutedGlobal.
template <typename Messenger>
class Worker {
 public:
  Worker(ThreadContext& thread, const Options& options, Rounds& rounds, Tally& tally)
      : self_(thread.global_id()),
        total_(thread.fabric().total_threads()),
        fabric_(thread.fabric()),
        rounds_(rounds),
        tally_(tally),
        messenger_(thread, options_of<Messenger>(options)) {
    sink = &sink_;
  }
  ~Worker() { sink = nullptr; }

  void poll() { fabric_.process_calls(); }
  [[nodiscard]] absl::Status close() {
    return messenger_.shutdown_all(deadline_after(std::chrono::minutes(2)));
  }

  // Sends `messages` calls, and runs calls until the job has run all calls of all threads.
  [[nodiscard]] absl::StatusOr<RoundResult> run(uint64_t messages) {
    RoundResult result;
    sink_ = {.last = std::vector<uint32_t>(total_)};
    for (uint32_t i = 0; i < total_; ++i) tally_.sent(self_, i) = {};
    tally_.set_run(self_, 0);
    result.start_ns = rounds_.meet();
    Destinations destinations(self_, total_);
    for (uint64_t i = 0; i < messages; ++i) {
      const uint32_t destination = destinations.next();
      const Message message{self_, static_cast<uint32_t>(i + 1)};
      if (const CallResult sent = messenger_.call(destination, message); !sent.ok()) [[unlikely]] {
        return sent.status();
      }
      Tally::Sent& sent = tally_.sent(self_, destination);
      ++sent.count;
      sent.sum += message.value();
      if (i % kSendsPerPoll == 0) messenger_.process_calls_all();
    }
    if (const CallResult flushed = messenger_.flush_all(); !flushed.ok()) return flushed.status();
    // The deadline is much longer than a repetition can take.
    const Deadline deadline = deadline_after(std::chrono::minutes(2));
    while (true) {
      const bool idle = messenger_.process_calls_all() == 0;
      tally_.set_run(self_, sink_.count);
      if (!idle) continue;
      if (tally_.all_run() == messages * total_) break;
      if (std::chrono::steady_clock::now() > deadline) {
        return make_error(absl::StatusCode::kDataLoss, ErrorScope::kOperation,
                          "of " + std::to_string(messages * total_) + " calls " +
                              std::to_string(tally_.all_run()) + " were run in two minutes");
      }
      std::this_thread::yield();
    }
    result.end_ns = now_ns();
    result.count = sink_.count;
    result.sum = sink_.sum;
    result.out_of_order = sink_.out_of_order;
    return result;
  }

 private:
  static constexpr uint64_t kSendsPerPoll = 64;

  const uint32_t self_;
  const uint32_t total_;
  Fabric& fabric_;
  Rounds& rounds_;
  Tally& tally_;
  Messenger messenger_;
  Sink sink_;
};

// One job with a given number of processes and threads, in one mode.
class Job {
 public:
  Job(const Options& options, uint32_t processes, uint32_t threads, uint32_t mode)
      : options_(options), processes_(processes), threads_(threads), mode_(mode) {}

  [[nodiscard]] absl::Status run() {
    auto rounds = Rounds::create(processes_ * threads_);
    if (!rounds.ok()) return rounds.status();
    rounds_ = *rounds;
    tally_ = Tally::create(processes_, threads_);
    if (tally_ == nullptr) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                        "cannot map memory that the processes share");
    }
    return run_job(static_cast<int>(processes_), [this](Exchange& exchange) {
      switch (mode_) {
        case 0:
          return process<RDMAMessengerGlobal>(exchange);
        case kTraditional:
          return options_.routing == Routing::kNode ? process<RoutedGlobal>(exchange)
                                                    : process<RDMAAggregatorGlobal>(exchange);
        default:
          return process<RDMAOverflowAggregatorGlobal>(exchange);
      }
    });
  }

 private:
  enum Step : uint32_t { kMeasure, kMemory, kClose };

  // Traffic of all processes per call; one value for each repetition. Calls within a process have
  // none.
  struct Traffic {
    std::vector<double> receives{};
    std::vector<double> writes{};
    std::vector<double> bytes{};
    void add(const std::vector<RoundResult>& results, double calls) {
      RoundResult sum;
      for (const RoundResult& result : results) {
        sum.receives += result.receives;
        sum.operations += result.operations;
        sum.bytes += result.bytes;
      }
      receives.push_back(static_cast<double>(sum.receives) / calls);
      writes.push_back(static_cast<double>(sum.operations) / calls);
      bytes.push_back(static_cast<double>(sum.bytes) / calls);
    }
  };

  template <typename Messenger>
  int process(Exchange& exchange) {
    const auto rank = static_cast<uint32_t>(exchange.rank());
    FabricOptions fabric_options = *fabric_preset(options_.preset);
    fabric_options.threads = threads_;
    fabric_options.on_failure = FailurePolicy::kAbort;
    auto made = Fabric::create(fabric_options);
    if (!made.ok()) give_up(kProgram, made.status());
    Fabric& fabric = **made;
    const uint64_t before = MemoryBudget::process().used();
    const auto work = [&](uint32_t index) {
      pin(rank, processes_, index, threads_);
      auto thread = fabric.init_thread(index);
      if (!thread.ok()) give_up(kProgram, thread.status());
      Worker<Messenger> worker(**thread, options_, *rounds_, *tally_);
      const uint32_t number = rank * threads_ + index;
      if (number == 0) return lead(fabric, worker, before);
      for (uint64_t taken = 0;; ++taken) {
        const Round round = rounds_->next(taken, [&] { worker.poll(); });
        if (round.what == Round::kEnd) return;
        rounds_->finish(number, step(fabric, worker, round, number, before));
      }
    };
    std::vector<std::thread> threads;
    for (uint32_t i = 1; i < threads_; ++i) threads.emplace_back(work, i);
    work(0);
    for (std::thread& thread : threads) thread.join();
    if (absl::Status status = fabric.finalize(deadline_after(std::chrono::minutes(1)));
        !status.ok()) {
      give_up(kProgram, status);
    }
    return 0;
  }

  // Returns the sum of a counter of one-sided calls over the threads of this process.
  static uint64_t counted(std::string_view name) {
    uint64_t sum = 0;
    for (const Statistic& statistic : statistics_snapshot()) {
      if (statistic.kind == "one_sided" && statistic.name == name) sum += statistic.value;
    }
    return sum;
  }

  template <typename Messenger>
  RoundResult step(Fabric& fabric, Worker<Messenger>& worker, const Round& round, uint32_t number,
                   uint64_t before) {
    if (round.what == kMemory) {
      if (number % threads_ == 0) {
        tally_->memory(number / threads_) = {
            .superpage_bytes = MemoryBudget::process().used() - before,
            .chunk_bytes = counted("chunk_bytes_granted") - counted("chunk_bytes_freed"),
            .forwarded = counted("calls_forwarded")};
      }
    } else if (round.what == kClose) {
      if (absl::Status status = worker.close(); !status.ok()) give_up(kProgram, status);
    } else {
      const bool counts = number % threads_ == 0;
      const RoundResult first = counts ? process_counts(fabric) : RoundResult{};
      auto result = worker.run(round.messages);
      if (!result.ok()) give_up(kProgram, result.status());
      if (counts) result->set_counts(first, process_counts(fabric));
      return *result;
    }
    return {};
  }

  template <typename Messenger>
  void lead(Fabric& fabric, Worker<Messenger>& worker, uint64_t before) {
    const auto all = [&](const Round& round) {
      rounds_->start(round);
      rounds_->finish(0, step(fabric, worker, round, 0, before));
      return rounds_->results([&] { worker.poll(); });
    };
    // Repetition -1 creates the channels and is not measured.
    std::vector<double> rates;
    Traffic traffic;
    for (int i = -1; i < options_.repetitions; ++i) {
      progress(std::to_string(processes_) + " processes, " + std::to_string(threads_) +
               " threads, " + kModeNames[mode_] + ", repetition " + std::to_string(i + 1));
      const std::vector<RoundResult> results = all({kMeasure, options_.messages});
      check(results);
      int64_t start = results[0].start_ns;
      int64_t end = 0;
      for (const RoundResult& result : results) {
        start = std::min(start, result.start_ns);
        end = std::max(end, result.end_ns);
      }
      if (i < 0) continue;
      const auto calls = static_cast<double>(options_.messages * results.size());
      rates.push_back(calls / (static_cast<double>(end - start) * 1e-9));
      traffic.add(results, calls);
    }
    all({kMemory, 0});
    std::vector<double> bytes;
    std::vector<double> chunks;
    uint64_t forwarded = 0;
    for (uint32_t rank = 0; rank < processes_; ++rank) {
      const Tally::Memory& memory = tally_->memory(rank);
      bytes.push_back(static_cast<double>(memory.superpage_bytes));
      chunks.push_back(static_cast<double>(memory.chunk_bytes));
      forwarded += memory.forwarded;
    }
    all({kClose, 0});
    rounds_->start({});
    const uint64_t calls =
        options_.messages * processes_ * threads_ * static_cast<uint64_t>(options_.repetitions + 1);
    const double hops = 1 + static_cast<double>(forwarded) / static_cast<double>(calls);
    print(summarize(std::move(rates)), traffic, summarize(std::move(bytes)),
          summarize(std::move(chunks)), summarize({hops}));
  }

  // Checks that each call ran exactly once, at its destination, and in order.
  void check(const std::vector<RoundResult>& results) const {
    for (size_t to = 0; to < results.size(); ++to) {
      Tally::Sent expected;
      for (size_t from = 0; from < results.size(); ++from) {
        expected.count += tally_->sent(from, to).count;
        expected.sum += tally_->sent(from, to).sum;
      }
      const RoundResult& result = results[to];
      if (result.count == expected.count && result.sum == expected.sum &&
          result.out_of_order == 0) {
        continue;
      }
      give_up(kProgram,
              make_error(absl::StatusCode::kDataLoss, ErrorScope::kOperation,
                         "thread " + std::to_string(to) + " was called " +
                             std::to_string(expected.count) + " times and ran " +
                             std::to_string(result.count) + " calls, " +
                             std::to_string(result.out_of_order) + " of them out of order" +
                             (result.sum == expected.sum ? "" : ", with other payloads")));
    }
  }

  // Bytes are medians over the processes.
  void print(const Summary& rate, const Traffic& traffic, const Summary& bytes,
             const Summary& chunks, const Summary& hops) const {
    Params params;
    params.set("processes", uint64_t{processes_});
    params.set("threads", uint64_t{threads_});
    params.set("mode", kModeNames[mode_]);
    const bool routed = options_.routing == Routing::kNode;
    params.set("routing", routed ? "node" : "direct");
    params.set("processes_per_node", uint64_t{options_.processes_per_node});
    params.set("size", kPayload);
    params.set("transport", options_.transport);
    params.set("arrival", options_.arrival);
    params.set("preset", options_.preset);
    params.set("messages", options_.messages);
    params.set("repetitions", static_cast<uint64_t>(options_.repetitions));
    params.set("json", options_.json);
    const Report report(options_.json, {"mode", "routing", "processes", "threads"});
    report.row("superpage_bytes_per_process", params, bytes, "bytes");
    report.row("chunk_bytes_per_process", params, chunks, "bytes");
    if (routed) report.row("hops_per_call", params, hops, "hops");
    report.row("messages_per_second", params, rate, "1/s");
    report.row("receive_completions_per_call", params, summarize(traffic.receives), "");
    report.row("writes_per_call", params, summarize(traffic.writes), "");
    report.row("bytes_on_wire_per_call", params, summarize(traffic.bytes), "B");
  }

  const Options& options_;
  const uint32_t processes_;
  const uint32_t threads_;
  const uint32_t mode_;
  Rounds* rounds_ = nullptr;
  Tally* tally_ = nullptr;
};

int run(const Options& options) {
  for (const uint32_t mode : options.modes) {
    for (const uint64_t threads : options.threads) {
      for (const uint64_t processes : options.processes) {
        Job job(options, static_cast<uint32_t>(processes), static_cast<uint32_t>(threads), mode);
        if (absl::Status status = job.run(); !status.ok()) {
          progress("");
          std::fprintf(stderr, "bench_all_to_all: %s\n", std::string(status.message()).c_str());
          return 1;
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
      "calls from every thread of a job to every other, for increasing numbers of processes\n"
      "  bench_all_to_all                                   every mode, processes and threads\n"
      "  bench_all_to_all --mode trad --processes 4 --threads 2\n"
      "  bench_all_to_all --routing node --processes-per-node 4 --processes 16 --threads 1";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "bench_all_to_all: it takes options only: see --help\n");
    return 1;
  }
  const auto options = cariama::bench::parse_options();
  if (!options.ok()) {
    std::fprintf(stderr, "bench_all_to_all: %s\n", std::string(options.status().message()).c_str());
    return 1;
  }
  return cariama::bench::run(*options);
}
