// bench_call: rate and latency of remote invocation between two processes, in every mode, compared
// with rings in shared memory that only transfer messages. The modes alternate within each
// repetition, so that their ratios remain valid on a machine with other load. See
// docs/performance.md.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "bench/support/byte_ring.h"
#include "bench/support/call_worker.h"
#include "bench/support/flags.h"
#include "bench/support/job.h"
#include "bench/support/list_flag.h"
#include "bench/support/report.h"
#include "bench/support/rounds.h"
#include "bench/support/summary.h"
#include "bench/support/transfer_load.h"
#include "bench/support/transfer_side.h"
#include "dsfabric/fabric.h"
#include "dtutils/error.h"
#include "riutils/messenger_options.h"

ABSL_FLAG(
    std::string, mode, "all",
    "send: send-based calls; write: RDMAMessenger; trad, ovfl: aggregators; max-raw: SENDs of that "
    "size without copying or invoking; ring, ring-batched: a ring in shared memory, the "
    "ceilings without and with aggregation; captured: as write, but closures capture payloads of "
    "every size; read: the receiver READs registered memory; or a list of them; all: every mode "
    "but the last two, with ratios");
ABSL_FLAG(std::string, size, "8,64,256,4Ki",
          "bytes of a payload: 8, 64, 256, 4Ki, 64Ki, or a list of these. With 64Ki chunks and "
          "receive units are larger");
ABSL_FLAG(std::string, threads, "1", "threads in each process, each with a peer in the other one");
ABSL_FLAG(std::string, handlers, "1", "number of functions called in turn: 1 or 4, or both: 1,4");
ABSL_FLAG(std::string, measure, "rate",
          "rate (many in flight) or latency (round trips of call_return; modes send and write)");
ABSL_FLAG(std::string, preset, "default", "options of fabric and channels: default or paper");
ABSL_FLAG(std::string, transport, "shm", "shm or verbs: both processes run on this host");
ABSL_FLAG(std::string, arrival, "auto",
          "how one-sided calls arrive: auto, mapped, trailing, polled or event");
ABSL_FLAG(bool, json, false, "print one JSON object per line");
ABSL_FLAG(int, repetitions, 31, "repetitions of each row; median, minimum and maximum are shown");
ABSL_FLAG(double, seconds, 0.002,
          "approximate duration of a repetition of a rate: short ones fit between preemptions");
ABSL_FLAG(int, retries, 20,
          "limit of repeats of a repetition in which a thread was preempted; 0: never repeat");
ABSL_FLAG(int, samples, 2000, "round trips in one repetition of a latency");
ABSL_FLAG(std::string, ring, "512Ki", "bytes of the ceilings' ring: a power of two, at least 64Ki");
ABSL_FLAG(int, service_threads, -1,
          "receiving service threads per process; 0: the workers receive. Default: 1 for rates, 0 "
          "for latencies, so that a round trip includes no wake-up of a service thread");
ABSL_FLAG(bool, pin, true, "bind each thread to a core");

namespace cariama::bench {
namespace {

constexpr const char* kProgram = "bench_call";

struct Options {
  std::vector<CallMode> modes;
  bool all = false;
  std::vector<uint64_t> sizes;
  uint64_t largest = 0;  // of the sizes
  uint32_t threads = 1;
  std::vector<uint64_t> handlers;
  bool latency = false;
  std::string preset;
  std::string transport;
  std::string arrival;
  MessengerOptions messenger;
  int repetitions = 31;
  double seconds = 0.002;
  int retries = 20;
  uint64_t samples = 2000;
  uint64_t ring = 0;
  uint32_t service_threads = 1;
  bool json = false;
  bool pin = true;
};

absl::Status refuse(const std::string& flag, const std::string& value, const std::string& choice) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "--" + flag + ": '" + value + "' is not " + choice, "see --help");
}

absl::StatusOr<std::vector<CallMode>> parse_modes(const std::string& text, bool latency) {
  std::vector<CallMode> modes;
  if (text == "all") {
    if (latency) return std::vector{CallMode::kSend, CallMode::kWrite};
    return std::vector{CallMode::kRingBatched, CallMode::kTrad,   CallMode::kRing, CallMode::kWrite,
                       CallMode::kOvfl,        CallMode::kMaxRaw, CallMode::kSend};
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto mode = call_mode_named(text.substr(begin, end - begin));
    if (!mode) {
      return refuse("mode", text,
                    "send, write, trad, ovfl, captured, read, max-raw, ring, ring-batched or all");
    }
    if (latency && *mode != CallMode::kSend && *mode != CallMode::kWrite) {
      return refuse("mode", text, "send or write, which --measure latency needs");
    }
    modes.push_back(*mode);
    begin = end + 1;
  }
  return modes;
}

absl::StatusOr<Options> parse_options() {
  Options options;
  const std::string measure = absl::GetFlag(FLAGS_measure);
  if (measure != "rate" && measure != "latency") {
    return refuse("measure", measure, "rate or latency");
  }
  options.latency = measure == "latency";
  const std::string mode = absl::GetFlag(FLAGS_mode);
  auto modes = parse_modes(mode, options.latency);
  if (!modes.ok()) return modes.status();
  options.modes = *std::move(modes);
  options.all = mode == "all";

  auto sizes = parse_numbers("size", absl::GetFlag(FLAGS_size), 8, 65536);
  if (!sizes.ok()) return sizes.status();
  for (const uint64_t size : *sizes) {
    if (std::find(std::begin(kCallSizes), std::end(kCallSizes), size) == std::end(kCallSizes)) {
      return refuse("size", absl::GetFlag(FLAGS_size), "8, 64, 256, 4Ki, 64Ki, or a list of these");
    }
  }
  options.sizes = *std::move(sizes);
  options.largest = *std::max_element(options.sizes.begin(), options.sizes.end());
  auto threads = parse_numbers("threads", absl::GetFlag(FLAGS_threads), 1, 64);
  if (!threads.ok()) return threads.status();
  if (threads->size() != 1) return refuse("threads", absl::GetFlag(FLAGS_threads), "one number");
  options.threads = static_cast<uint32_t>(threads->front());
  auto handlers = parse_numbers("handlers", absl::GetFlag(FLAGS_handlers), 1, 4);
  if (!handlers.ok()) return handlers.status();
  for (const uint64_t number : *handlers) {
    if (number != 1 && number != 4) {
      return refuse("handlers", absl::GetFlag(FLAGS_handlers), "1, 4, or 1,4");
    }
  }
  options.handlers = options.latency ? std::vector<uint64_t>{1} : *std::move(handlers);
  if (options.threads != 1) {
    if (options.latency) {
      return refuse("threads", absl::GetFlag(FLAGS_threads), "1, which --measure latency needs");
    }
    const auto raw = std::find(options.modes.begin(), options.modes.end(), CallMode::kMaxRaw);
    if (raw != options.modes.end() && !options.all) {
      return refuse("threads", absl::GetFlag(FLAGS_threads), "1, which --mode max-raw needs");
    }
    if (raw != options.modes.end()) options.modes.erase(raw);
  }

  options.preset = absl::GetFlag(FLAGS_preset);
  auto messenger = messenger_preset(options.preset);
  if (!messenger.ok()) return refuse("preset", options.preset, "default or paper");
  options.messenger = *messenger;
  // A chunk holds several of the largest calls.
  options.messenger.chunk_bytes = std::max(options.messenger.chunk_bytes, 4 * options.largest);
  options.arrival = absl::GetFlag(FLAGS_arrival);
  const auto arrival = arrival_of(options.arrival);
  if (!arrival.ok()) return arrival.status();
  options.messenger.arrival = *arrival;
  options.transport = absl::GetFlag(FLAGS_transport);
  if (absl::Status chosen = choose_transport(options.transport); !chosen.ok()) return chosen;

  struct Number {
    const char* flag;
    int value;
    int least;
    int most;
  };
  for (const Number& number :
       {Number{"repetitions", absl::GetFlag(FLAGS_repetitions), 1, 100000},
        Number{"retries", absl::GetFlag(FLAGS_retries), 0, 100000},
        Number{"service_threads", absl::GetFlag(FLAGS_service_threads), -1, 64},
        Number{"samples", absl::GetFlag(FLAGS_samples), 1, 10000000}}) {
    if (number.value < number.least || number.value > number.most) {
      return refuse(number.flag, std::to_string(number.value),
                    "from " + std::to_string(number.least) + " to " + std::to_string(number.most));
    }
  }
  options.repetitions = absl::GetFlag(FLAGS_repetitions);
  options.retries = absl::GetFlag(FLAGS_retries);
  const int service_threads = absl::GetFlag(FLAGS_service_threads);
  options.service_threads =
      service_threads >= 0 ? static_cast<uint32_t>(service_threads) : (options.latency ? 0 : 1);
  options.samples = static_cast<uint64_t>(absl::GetFlag(FLAGS_samples));
  options.seconds = absl::GetFlag(FLAGS_seconds);
  if (!(options.seconds > 0 && options.seconds <= 60)) {
    return refuse("seconds", std::to_string(options.seconds), "more than 0 and at most 60");
  }
  auto ring = parse_numbers("ring", absl::GetFlag(FLAGS_ring), 64 << 10, uint64_t{1} << 30);
  if (!ring.ok()) return ring.status();
  options.ring = ring->front();
  if (ring->size() != 1 || (options.ring & (options.ring - 1)) != 0 ||
      options.ring < 2 * options.largest) {
    return refuse("ring", absl::GetFlag(FLAGS_ring),
                  "a power of two from 64Ki to 1Gi, and at least twice the size");
  }
  options.json = absl::GetFlag(FLAGS_json);
  options.pin = absl::GetFlag(FLAGS_pin);
  return options;
}

// The rows of a group alternate within each repetition, so that their ratios are valid.
struct Group {
  std::vector<CallLoad> loads;
};

std::vector<Group> groups_of(const Options& options) {
  std::vector<Group> groups;
  for (const uint64_t size : options.sizes) {
    for (const uint64_t handlers : options.handlers) {
      Group group;
      for (const CallMode mode : options.modes) {
        group.loads.push_back({mode, size, static_cast<int>(handlers), options.latency});
      }
      // The paper compares aggregated calls of every size with raw messages of 4 KiB.
      if (options.all && !options.latency && options.threads == 1 && size != 4096) {
        group.loads.push_back({CallMode::kMaxRaw, 4096, static_cast<int>(handlers), false});
      }
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

// A value of Round::what. The other values, except Round::kEnd, are the numbers of loads.
constexpr uint32_t kCloseChannels = UINT32_MAX - 1;

// The leader, thread 0 of the sending process: starts the rounds, measures and prints.
class Leader {
 public:
  Leader(const Options& options, Rounds& rounds, CallWorker& worker)
      : options_(options),
        rounds_(rounds),
        worker_(worker),
        report_(options.json, {"mode", "size", "handlers", "threads"}) {}

  void run() {
    uint32_t first = 0;
    for (const Group& group : groups_of(options_)) {
      std::vector<Contender> all;
      for (const CallLoad& load : group.loads) {
        all.push_back({load, first + static_cast<uint32_t>(all.size())});
      }
      first += static_cast<uint32_t>(all.size());
      for (Contender& each : all) prepare(each);
      for (int i = 0; i < options_.repetitions; ++i) {
        for (Contender& each : all) {
          progress(size_text(each.load.size) + " bytes, " + call_mode_name(each.load.mode) +
                   ", repetition " + std::to_string(i + 1) + " of " +
                   std::to_string(options_.repetitions));
          repeat(each);
        }
      }
      print(all);
    }
    rounds_.start({kCloseChannels, 0});
    take_part(kCloseChannels, 0);
    rounds_.start({});
  }

 private:
  struct Contender {
    CallLoad load;
    uint32_t number;
    uint64_t messages = 0;  // per thread
    uint64_t disturbed = 0;
    std::vector<double> rates{};  // messages of all threads, per second
    std::vector<double> p50{};    // ns
    std::vector<double> p99{};
    // For each message: transfers that the sender posted, their payload, and receive completions
    // that the receiver polled.
    std::vector<double> writes{};
    std::vector<double> bytes{};
    std::vector<double> receives{};
  };
  struct Outcome {
    double seconds = 0;
    bool disturbed = false;
    uint64_t operations = 0;
    uint64_t bytes = 0;
    uint64_t receives = 0;
  };

  std::vector<RoundResult> take_part(uint32_t what, uint64_t messages, const CallLoad& load = {}) {
    RoundResult own;
    if (what == kCloseChannels) {
      if (absl::Status status = worker_.close(); !status.ok()) give_up(kProgram, status);
    } else {
      auto result = worker_.run(load, messages, rounds_);
      if (!result.ok()) give_up(kProgram, result.status());
      own = *result;
    }
    rounds_.finish(0, own);
    return rounds_.results([&] { worker_.poll(); });
  }

  Outcome run_once(const Contender& each, uint64_t messages) {
    rounds_.start({each.number, messages});
    const std::vector<RoundResult> results = take_part(each.number, messages, each.load);
    Outcome outcome;
    int64_t start = results[0].start_ns;
    int64_t end = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      const RoundResult& result = results[i];
      start = std::min(start, result.start_ns);
      end = std::max(end, result.end_ns);
      outcome.disturbed |= result.preemptions != 0;
      if (i == 0) {
        outcome.operations = result.operations;
        outcome.bytes = result.bytes;
      }
      if (i == options_.threads) outcome.receives = result.receives;
      if (i < options_.threads || each.load.latency) continue;
      const uint64_t sum =
          each.load.mode == CallMode::kMaxRaw ? result.sum : call_sum(each.load, messages);
      if (result.count != messages || result.sum != sum) {
        give_up(kProgram,
                make_error(absl::StatusCode::kDataLoss, ErrorScope::kOperation,
                           call_mode_name(each.load.mode) + ", " + std::to_string(each.load.size) +
                               " bytes: of " + std::to_string(messages) + " messages " +
                               std::to_string(result.count) +
                               " were run, or their payload differs from the sent one"));
      }
    }
    outcome.seconds = static_cast<double>(end - start) * 1e-9;
    return outcome;
  }

  // Determines how many messages fill a repetition.
  void prepare(Contender& each) {
    const uint64_t round = call_round(each.load.size);
    if (each.load.latency) {
      each.messages = options_.samples;
      run_once(each, std::min<uint64_t>(each.messages, 200));
      each.disturbed = 0;
      return;
    }
    // Uses the shortest of five runs: disturbances make runs longer, and a longer run would result
    // in too few messages.
    for (each.messages = round;;) {
      double seconds = run_once(each, each.messages).seconds;
      for (int i = 0; i < 4; ++i) {
        seconds = std::min(seconds, run_once(each, each.messages).seconds);
      }
      const double factor = std::clamp(options_.seconds / std::max(seconds, 1e-9), 0.5, 8.0);
      const auto messages =
          static_cast<uint64_t>(static_cast<double>(each.messages) * factor) / round * round;
      each.messages = std::max(messages, round);
      if (factor < 2) break;
    }
    each.disturbed = 0;
  }

  Outcome run_undisturbed(Contender& each, uint64_t messages) {
    Outcome outcome = run_once(each, messages);
    for (int i = 0; i < options_.retries && outcome.disturbed; ++i) {
      ++each.disturbed;
      outcome = run_once(each, messages);
    }
    return outcome;
  }

  void repeat(Contender& each) {
    const Outcome outcome = run_undisturbed(each, each.messages);
    if (each.load.latency) {
      std::vector<double>& samples = worker_.round_trips();
      each.p50.push_back(percentile(samples, 0.50));
      each.p99.push_back(percentile(samples, 0.99));
    }
    const auto messages = static_cast<double>(each.messages * options_.threads);
    each.rates.push_back(messages / outcome.seconds);
    each.writes.push_back(static_cast<double>(outcome.operations) / messages);
    each.bytes.push_back(static_cast<double>(outcome.bytes) / messages);
    each.receives.push_back(static_cast<double>(outcome.receives) / messages);
  }

  // Returns every option with its effective value.
  Params params(const Contender& each) const {
    Params params;
    params.set("mode", call_mode_name(each.load.mode));
    params.set("measure", options_.latency ? "latency" : "rate");
    params.set("size", each.load.size);
    params.set("threads", uint64_t{options_.threads});
    params.set("handlers", static_cast<uint64_t>(each.load.handlers));
    params.set("preset", options_.preset);
    params.set("transport", options_.transport);
    params.set("arrival", options_.arrival);
    params.set("repetitions", static_cast<uint64_t>(options_.repetitions));
    params.set("seconds", options_.seconds);
    params.set("retries", static_cast<uint64_t>(options_.retries));
    params.set("samples", options_.samples);
    params.set("ring", options_.ring);
    params.set("service_threads", uint64_t{options_.service_threads});
    params.set("pin", options_.pin);
    params.set("json", options_.json);
    params.set("messages", each.messages);
    params.set("disturbed", each.disturbed);
    return params;
  }

  const Contender* find(const std::vector<Contender>& all, CallMode mode, uint64_t size) const {
    for (const Contender& each : all) {
      if (each.load.mode == mode && each.load.size == size) return &each;
    }
    return nullptr;
  }

  void print(const std::vector<Contender>& all) const {
    const auto ratio_row = [&](const char* name, const Contender& each, const Contender* base,
                               double scale) {
      if (base == nullptr || base == &each) return;
      std::vector<double> values = ratios(each.rates, base->rates);
      for (double& value : values) value *= scale;
      report_.row(name, params(each), summarize(std::move(values)), "");
    };
    for (const Contender& each : all) {
      if (options_.latency) break;
      const uint64_t size = each.load.size;
      const CallMode mode = each.load.mode;
      if (mode == CallMode::kTrad) {
        ratio_row("ratio_to_ring_batched", each, find(all, CallMode::kRingBatched, size), 1);
        // Compares bytes per second.
        ratio_row("ratio_to_max_raw_of_4096_bytes", each, find(all, CallMode::kMaxRaw, 4096),
                  static_cast<double>(size) / 4096);
      } else if (mode == CallMode::kWrite) {
        ratio_row("ratio_to_ring", each, find(all, CallMode::kRing, size), 1);
        ratio_row("ratio_to_max_raw", each, find(all, CallMode::kMaxRaw, size), 1);
        ratio_row("ratio_to_send", each, find(all, CallMode::kSend, size), 1);
      } else if (mode == CallMode::kOvfl) {
        ratio_row("ratio_to_write", each, find(all, CallMode::kWrite, size), 1);
      }
    }
    for (const Contender& each : all) {
      const Params with = params(each);
      if (options_.latency) {
        report_.row("clock_cost", with, summarize({clock_cost()}), "ns");
        report_.row("round_trip_p99", with, summarize(each.p99), "ns");
        report_.row("round_trip_p50", with, summarize(each.p50), "ns");
        continue;
      }
      Summary rate = summarize(each.rates);
      const double megabytes = static_cast<double>(each.load.size) * 1e-6;
      report_.row("megabytes_per_second", with,
                  {rate.median * megabytes, rate.min * megabytes, rate.max * megabytes, rate.n},
                  "MB/s");
      report_.row("messages_per_second", with, rate, "1/s");
      if (!needs_fabric(each.load.mode)) continue;
      report_.row("receive_completions_per_call", with, summarize(each.receives), "");
      report_.row("writes_per_call", with, summarize(each.writes), "");
      report_.row("bytes_on_wire_per_call", with, summarize(each.bytes), "B");
    }
  }

  const Options& options_;
  Rounds& rounds_;
  CallWorker& worker_;
  const Report report_;
};

// Executes this thread's part of each round that the leader starts.
void follow(Rounds& rounds, CallWorker& worker, uint32_t number,
            const std::vector<CallLoad>& loads) {
  for (uint64_t taken = 0;; ++taken) {
    const Round round = rounds.next(taken, [&] { worker.poll(); });
    if (round.what == Round::kEnd) return;
    RoundResult result;
    if (round.what == kCloseChannels) {
      if (absl::Status status = worker.close(); !status.ok()) give_up(kProgram, status);
    } else {
      auto ran = worker.run(loads[round.what], round.messages, rounds);
      if (!ran.ok()) give_up(kProgram, ran.status());
      result = *ran;
    }
    rounds.finish(number, result);
  }
}

int run_process(Exchange& exchange, const Options& options, Rounds& rounds,
                std::vector<ByteRing>& rings) {
  const auto rank = static_cast<uint32_t>(exchange.rank());
  std::vector<CallLoad> loads;
  for (const Group& group : groups_of(options)) {
    loads.insert(loads.end(), group.loads.begin(), group.loads.end());
  }
  const auto any = [&](auto&& condition) {
    return std::any_of(loads.begin(), loads.end(),
                       [&](const CallLoad& load) { return condition(load.mode); });
  };
  std::unique_ptr<Side> side;
  if (any([](CallMode mode) { return mode == CallMode::kMaxRaw; })) {
    auto made = Side::create(
        exchange, {.transport = options.transport == "verbs" ? Transport::kVerbs : Transport::kShm,
                   .max_size = std::max<uint64_t>(4096, options.largest),
                   .ring = options.ring});
    if (!made.ok()) give_up(kProgram, made.status());
    side = *std::move(made);
  }
  std::unique_ptr<Fabric> fabric;
  if (any(needs_fabric)) {
    // A receive unit must hold the largest payload.
    FabricOptions fabric_options = *fabric_preset(options.preset);
    fabric_options.threads = options.threads;
    fabric_options.service_threads = options.service_threads;
    fabric_options.receive_unit_bytes =
        static_cast<uint32_t>(std::max<uint64_t>(8192, options.largest + 4096));
    fabric_options.on_failure = FailurePolicy::kAbort;
    auto made = Fabric::create(fabric_options);
    if (!made.ok()) give_up(kProgram, made.status());
    fabric = *std::move(made);
  }
  const auto work = [&](uint32_t index) {
    if (options.pin) pin(rank, 2, index, options.threads);
    std::unique_ptr<ThreadContext> thread;
    if (fabric != nullptr) {
      auto made = fabric->init_thread(index);
      if (!made.ok()) give_up(kProgram, made.status());
      thread = *std::move(made);
    }
    CallWorker worker({.sends = rank == 0,
                       .index = index,
                       .ring = &rings[index],
                       .thread = thread.get(),
                       .destination = options.threads + index,
                       .options = options.messenger,
                       .side = index == 0 ? side.get() : nullptr});
    if (rank == 0 && index == 0) {
      Leader(options, rounds, worker).run();
    } else {
      follow(rounds, worker, rank * options.threads + index, loads);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < options.threads; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  if (fabric != nullptr) {
    const absl::Status status = fabric->finalize(deadline_after(std::chrono::seconds(30)));
    if (!status.ok()) give_up(kProgram, status);
  }
  return 0;
}

int run(const Options& options) {
  auto rounds = Rounds::create(2 * options.threads);
  if (!rounds.ok()) give_up(kProgram, rounds.status());
  std::vector<ByteRing> rings;
  for (uint32_t i = 0; i < options.threads; ++i) {
    auto ring = ByteRing::create(options.ring);
    if (!ring.ok()) give_up(kProgram, ring.status());
    rings.push_back(*std::move(ring));
  }
  const absl::Status status = run_job(
      2, [&](Exchange& exchange) { return run_process(exchange, options, **rounds, rings); },
      {"the sender", "the receiver"});
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_call: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "measures remote invocation between two processes of this host\n"
      "  bench_call                               every mode and size, with ratios\n"
      "  bench_call --mode trad --size 8          one row\n"
      "  bench_call --mode ring,write --size 64   two modes, alternating\n"
      "  bench_call --measure latency --size 8    round trips of call_return";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "bench_call: it takes options only: see --help\n");
    return 1;
  }
  const auto options = cariama::bench::parse_options();
  if (!options.ok()) {
    std::fprintf(stderr, "bench_call: %s\n", std::string(options.status().message()).c_str());
    return 1;
  }
  return cariama::bench::run(*options);
}
