// bench_transfer: rate and latency of transfers between two processes, in four modes that alternate
// within each repetition, so that their ratios remain valid on a machine with other load. Several
// results are printed as a table. See docs/performance.md.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "bench/support/flags.h"
#include "bench/support/list_flag.h"
#include "bench/support/report.h"
#include "bench/support/summary.h"
#include "bench/support/table.h"
#include "bench/support/transfer_load.h"
#include "bench/support/transfer_side.h"
#include "bench/support/transfer_target.h"
#include "dtutils/error.h"
#include "dtutils/process_group.h"

ABSL_FLAG(
    std::string, mode, "all",
    "manual: QueuePair, manual signaling; auto: Transmitter; send: SENDs by Transmitter to a "
    "receiving process; ceiling: memcpy into the peer's mapped memory and a release store for "
    "each message; all: every mode, with ratios");
ABSL_FLAG(std::string, size, "",
          "bytes of a message, or a list like 8,4Ki,1Mi. Default: 8 to 1Mi for rates, 1 to 4Mi for "
          "latencies");
ABSL_FLAG(std::string, threads, "1",
          "number of threads that share one queue pair, or a list like 1,2");
ABSL_FLAG(std::string, measure, "rate", "rate (many in flight) or latency (one at a time)");
ABSL_FLAG(std::string, op, "write", "write, read, send, fetch-add or compare-swap");
ABSL_FLAG(std::string, transport, "", "shm or verbs. Default: shm");
ABSL_FLAG(bool, json, false, "print one JSON object per line");
ABSL_FLAG(int, repetitions, 5, "repetitions of each row; median, minimum and maximum are shown");
ABSL_FLAG(double, seconds, 0.1, "approximate duration of one repetition of a rate");
ABSL_FLAG(int, samples, 2000, "number of transfers in one repetition of a latency");
ABSL_FLAG(int, depth, 1024, "depth of the send queue, in operations");
ABSL_FLAG(int, inline, 64, "maximum bytes of data sent inline in the work request");
ABSL_FLAG(std::string, window, "1Mi",
          "bytes of the ring of cache-line-aligned message slots, at both ends");
ABSL_FLAG(int, list, 1, "manual: work requests posted at once, 1 to 64");

namespace cariama::bench {
namespace {

struct Options {
  std::string mode;
  std::vector<uint64_t> sizes;
  std::vector<uint64_t> threads;
  bool latency = false;
  Operation operation = Operation::kWrite;
  Transport transport = Transport::kShm;
  int repetitions = 5;
  double seconds = 0.1;
  uint64_t samples = 2000;
  uint32_t depth = 1024;
  uint32_t max_inline = 64;
  uint32_t list = 1;
  uint64_t window = 0;
  bool json = false;
};

absl::Status refuse(const std::string& flag, const std::string& value, const std::string& choice) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "--" + flag + ": '" + value + "' is not " + choice, "see --help");
}

absl::StatusOr<Options> parse_options() {
  Options options;
  options.mode = absl::GetFlag(FLAGS_mode);
  const std::vector<std::string> modes{"all", "manual", "auto", "send", "ceiling"};
  if (std::find(modes.begin(), modes.end(), options.mode) == modes.end()) {
    return refuse("mode", options.mode, "all, manual, auto, send or ceiling");
  }
  const std::string measure = absl::GetFlag(FLAGS_measure);
  if (measure != "rate" && measure != "latency")
    return refuse("measure", measure, "rate or latency");
  options.latency = measure == "latency";
  const std::string op = absl::GetFlag(FLAGS_op);
  const std::optional<Operation> operation = operation_named(op);
  if (!operation) return refuse("op", op, "write, read, send, fetch-add or compare-swap");
  options.operation = options.mode == "send" ? Operation::kSend : *operation;
  const std::string transport = absl::GetFlag(FLAGS_transport);
  if (transport == "verbs") {
    options.transport = Transport::kVerbs;
  } else if (!transport.empty() && transport != "shm") {
    return refuse("transport", transport, "shm or verbs");
  }

  std::string size = absl::GetFlag(FLAGS_size);
  const bool word =
      options.operation == Operation::kFetchAdd || options.operation == Operation::kCompareSwap;
  if (size.empty()) {
    size = word              ? "8"
           : options.latency ? "1,4,16,64,256,1Ki,4Ki,16Ki,64Ki,256Ki,1Mi,4Mi"
                             : "8,64,256,1Ki,4Ki,64Ki,1Mi";
  }
  auto sizes = parse_numbers("size", size, word ? 8 : 1, word ? 8 : uint64_t{64} << 20);
  if (!sizes.ok()) return sizes.status();
  options.sizes = *std::move(sizes);
  auto threads = parse_numbers("threads", absl::GetFlag(FLAGS_threads), 1, 64);
  if (!threads.ok()) return threads.status();
  options.threads = *std::move(threads);
  if (options.latency && options.threads != std::vector<uint64_t>{1}) {
    return refuse("threads", absl::GetFlag(FLAGS_threads), "1, which --measure latency needs");
  }

  struct Number {
    const char* flag;
    int value;
    int least;
    int most;
  };
  for (const Number& number : {Number{"repetitions", absl::GetFlag(FLAGS_repetitions), 1, 100000},
                               Number{"samples", absl::GetFlag(FLAGS_samples), 1, 10000000},
                               Number{"depth", absl::GetFlag(FLAGS_depth), 1, 1 << 16},
                               Number{"inline", absl::GetFlag(FLAGS_inline), 0, 1 << 16},
                               Number{"list", absl::GetFlag(FLAGS_list), 1, 64}}) {
    if (number.value < number.least || number.value > number.most) {
      return refuse(number.flag, std::to_string(number.value),
                    "from " + std::to_string(number.least) + " to " + std::to_string(number.most));
    }
  }
  options.repetitions = absl::GetFlag(FLAGS_repetitions);
  options.samples = static_cast<uint64_t>(absl::GetFlag(FLAGS_samples));
  options.depth = static_cast<uint32_t>(absl::GetFlag(FLAGS_depth));
  options.max_inline = static_cast<uint32_t>(absl::GetFlag(FLAGS_inline));
  options.list = static_cast<uint32_t>(absl::GetFlag(FLAGS_list));
  options.seconds = absl::GetFlag(FLAGS_seconds);
  if (!(options.seconds > 0 && options.seconds <= 60)) {
    return refuse("seconds", std::to_string(options.seconds), "more than 0 and at most 60");
  }
  auto window = parse_numbers("window", absl::GetFlag(FLAGS_window), 64, uint64_t{64} << 20);
  if (!window.ok()) return window.status();
  options.window = window->front();
  options.json = absl::GetFlag(FLAGS_json);
  return options;
}

// One mode of transfer, with the results of its repetitions.
struct Contender {
  std::string name;  // the value of --mode
  Load load;
  std::vector<double> rates;  // messages per second
  std::vector<double> p50;    // ns
  std::vector<double> p99;
};

std::vector<Contender> contenders(const Options& options, uint64_t size) {
  std::vector<Contender> all;
  for (const uint64_t threads : options.threads) {
    const auto add = [&](const std::string& name, Mode mode, Operation operation) {
      if (options.mode != "all" && options.mode != name) return;
      all.push_back({name,
                     {.mode = mode,
                      .operation = operation,
                      .window = Window(size, options.window),
                      .threads = static_cast<uint32_t>(threads),
                      .list = options.list},
                     {},
                     {},
                     {}});
    };
    add("ceiling", Mode::kCeiling, options.operation);
    add("manual", Mode::kManual, options.operation);
    add("auto", Mode::kAuto, options.operation);
    if (options.operation == Operation::kWrite || options.mode == "send") {
      add("send", Mode::kAuto, Operation::kSend);
    }
  }
  return all;
}

// The results of several modes, sizes or thread counts, for people: sizes down, modes across, and
// one column with the most informative ratio.
class ResultTable {
 public:
  // `all`: the contenders of the first size. The contenders of each size have the same modes.
  ResultTable(const Options& options, const std::vector<Contender>& all, Transport transport)
      : options_(options), show_threads_(options.threads != std::vector<uint64_t>{1}) {
    for (const Contender& each : all) {
      if (std::find(modes_.begin(), modes_.end(), each.name) == modes_.end()) {
        modes_.push_back(each.name);
      }
    }
    if (has("auto") && (has("ceiling") || has("manual"))) {
      of_ = "auto";
      base_ = has("ceiling") ? "ceiling" : "manual";
    } else if (options.threads.size() > 1 && options.threads.front() == 1) {
      of_ = modes_.front();
    }
    const bool word =
        options.operation == Operation::kFetchAdd || options.operation == Operation::kCompareSwap;
    if (!options.latency && !word) bandwidth_of_ = has("auto") ? "auto" : modes_.front();
    explain(transport);
    table_.emplace(headings());
  }

  // Prints a row for each thread count.
  void rows(const std::vector<Contender>& all) const {
    const uint64_t size = all.front().load.window.size;
    for (const uint64_t threads : options_.threads) {
      std::vector<std::string> cells{size_text(size)};
      if (show_threads_) cells.push_back(std::to_string(threads));
      for (const std::string& mode : modes_) {
        const Contender& each = find(all, mode, threads);
        cells.push_back(options_.latency
                            ? latency_text(summarize(each.p50).median, summarize(each.p99).median)
                            : metric_text(summarize(each.rates).median));
      }
      if (!bandwidth_of_.empty()) {
        const double rate = summarize(find(all, bandwidth_of_, threads).rates).median;
        cells.push_back(absl::StrFormat("%.3g", rate * static_cast<double>(size) * 1e-9));
      }
      if (!of_.empty()) {
        const Contender& of = find(all, of_, threads);
        const Contender& base = base_.empty() ? find(all, of_, 1) : find(all, base_, threads);
        cells.push_back(ratio_text(
            summarize(options_.latency ? ratios(of.p50, base.p50) : ratios(of.rates, base.rates))));
      }
      table_->row(cells);
    }
  }

 private:
  [[nodiscard]] bool has(const std::string& mode) const {
    return std::find(modes_.begin(), modes_.end(), mode) != modes_.end();
  }
  [[nodiscard]] std::string ratio() const {
    return base_.empty() ? of_ + "/one thread" : of_ + "/" + base_;
  }
  [[nodiscard]] std::vector<std::string> headings() const {
    std::vector<std::string> all{"bytes"};
    if (show_threads_) all.emplace_back("threads");
    for (const std::string& mode : modes_) {
      all.push_back(options_.latency ? mode + " p50/p99" : mode);
    }
    if (!bandwidth_of_.empty()) all.push_back(bandwidth_of_ + " GB/s");
    if (!of_.empty()) all.push_back(ratio());
    return all;
  }

  static const Contender& find(const std::vector<Contender>& all, const std::string& mode,
                               uint64_t threads) {
    return *std::find_if(all.begin(), all.end(), [&](const Contender& each) {
      return each.name == mode && each.load.threads == threads;
    });
  }

  void explain(Transport transport) const {
    progress("");
    std::printf("%s over %s between two processes: %s\n",
                operation_name(options_.operation).c_str(),
                std::string(transport_name(transport)).c_str(),
                options_.latency ? "latency of one transfer, with its completion and one clock read"
                                 : "messages per second");
    const std::pair<const char*, const char*> modes[] = {
        {"ceiling", "memcpy to or from the peer's memory, without a queue pair"},
        {"manual", "QueuePair: the program chooses the signaled operations, and polls"},
        {"auto", "Transmitter: automatic signaling"},
        {"send", "Transmitter: SENDs, to a process that receives"}};
    for (const auto& [mode, meaning] : modes) {
      if (has(mode)) std::printf("  %-8s %s\n", mode, meaning);
    }
    std::printf("Medians of %d repetitions%s", options_.repetitions,
                modes_.size() > 1 ? "; the modes run in turn" : "");
    if (!of_.empty()) {
      std::printf(". %s: ratio of the %s within a repetition (min..max)", ratio().c_str(),
                  options_.latency ? "p50" : "rates");
    }
    std::printf("\n\n");
  }

  const Options& options_;
  const bool show_threads_;
  std::vector<std::string> modes_;
  // The ratio column compares mode `of_` with mode `base_`, or with one thread if `base_` is empty.
  // No such column if `of_` is empty.
  std::string of_;
  std::string base_;
  std::string bandwidth_of_;  // "": no such column
  std::optional<Table> table_;
};

// Rank 0: drives the measurement.
class Bench {
 public:
  Bench(Side& side, const Options& options)
      : side_(side),
        options_(options),
        target_(side.exchange()),
        report_(options.json, {"mode", "op", "size", "threads", "transport"}) {}

  absl::Status run() {
    for (const uint64_t size : options_.sizes) {
      std::vector<Contender> all = contenders(options_, size);
      const auto impossible = [&](const Contender& c) { return !possible(side_, c.load); };
      all.erase(std::remove_if(all.begin(), all.end(), impossible), all.end());
      if (all.empty()) {
        return make_error(
            absl::StatusCode::kUnimplemented, ErrorScope::kOperation,
            "this transport has no " + options_.mode + " " + operation_name(options_.operation),
            "ceiling needs mapped peer memory: --transport shm, and no SENDs");
      }
      for (Contender& each : all) {
        if (absl::Status status = prepare(each); !status.ok()) return status;
      }
      for (int i = 0; i < options_.repetitions; ++i) {
        for (Contender& each : all) {
          progress(size_text(size) + " bytes, " + each.name + ", repetition " +
                   std::to_string(i + 1) + " of " + std::to_string(options_.repetitions));
          if (absl::Status status = repeat(each); !status.ok()) return status;
        }
      }
      print(all);
    }
    return target_.ask({.kind = TargetCommand::Kind::kEnd}).status();
  }

 private:
  // Sends a command to the target, with the properties of the load that it needs.
  absl::StatusOr<uint64_t> ask(TargetCommand::Kind kind, const Load& load) {
    return target_.ask({.kind = kind,
                        .threads = load.threads,
                        .size = load.window.size,
                        .messages = load.messages * load.threads,
                        .manual = load.mode == Mode::kManual ? 1U : 0U});
  }

  absl::StatusOr<double> run_once(const Load& load) {
    if (absl::Status status = before_run(load); !status.ok()) return status;
    return run_load(side_, load);
  }

  absl::Status before_run(const Load& load) {
    if (load.operation == Operation::kSend) {
      return ask(TargetCommand::Kind::kReceive, load).status();
    }
    const bool word =
        load.operation == Operation::kFetchAdd || load.operation == Operation::kCompareSwap;
    return word ? ask(TargetCommand::Kind::kClear, load).status() : absl::OkStatus();
  }

  // Determines how many messages fill a repetition, and checks that they arrive.
  absl::Status prepare(Contender& each) {
    using Kind = TargetCommand::Kind;
    Load& load = each.load;
    const bool reads = load.operation == Operation::kRead;
    if (absl::Status status = ask(reads ? Kind::kFill : Kind::kClear, load).status();
        !status.ok()) {
      return status;
    }
    if (reads) {
      clear_windows(side_, load.threads, load.window.size);
    } else {
      fill_windows(side_, load.threads, load.window.size);
    }
    // Send whole rounds of the window, so that every slot is written.
    load.messages = load.window.slots();
    double seconds = 0;
    while (true) {
      auto time = options_.latency ? latency_once(each, load) : run_once(load);
      if (!time.ok()) return time.status();
      seconds = *time;
      if (options_.latency || seconds >= options_.seconds / 4) break;
      const double factor = std::clamp(options_.seconds / 3 / std::max(seconds, 1e-9), 2.0, 100.0);
      load.messages = rounds(static_cast<double>(load.messages) * factor, load);
    }
    if (absl::Status status = check_arrival(load); !status.ok()) return status;
    load.messages =
        options_.latency
            ? options_.samples
            : rounds(static_cast<double>(load.messages) * options_.seconds / seconds, load);
    each.rates.clear();
    each.p50.clear();
    each.p99.clear();
    return absl::OkStatus();
  }

  static uint64_t rounds(double messages, const Load& load) {
    const uint64_t slots = load.window.slots();
    const auto whole = static_cast<uint64_t>(std::llround(messages / static_cast<double>(slots)));
    return std::max<uint64_t>(1, whole) * slots;
  }

  absl::Status check_arrival(const Load& load) {
    using Kind = TargetCommand::Kind;
    bool arrived = true;
    if (load.operation == Operation::kRead) {
      arrived = windows_filled(side_, load.threads, load.window.size);
    } else if (load.operation == Operation::kWrite ||
               (load.operation == Operation::kSend && load.threads == 1)) {
      auto filled = ask(Kind::kIsFilled, load);
      if (!filled.ok()) return filled.status();
      arrived = *filled == 1;
    } else if (load.operation != Operation::kSend) {
      auto word = ask(Kind::kWord, load);
      if (!word.ok()) return word.status();
      arrived = *word == load.messages * load.threads;
    }
    if (arrived) return absl::OkStatus();
    return make_error(absl::StatusCode::kDataLoss, ErrorScope::kOperation,
                      "messages of " + std::to_string(load.window.size) + " bytes by " +
                          mode_name(load.mode) + " " + operation_name(load.operation) +
                          " completed, but their data is not in place");
  }

  // Runs one repetition of a latency. Returns the sum of all samples in seconds.
  absl::StatusOr<double> latency_once(Contender& each, const Load& load) {
    if (absl::Status status = before_run(load); !status.ok()) return status;
    auto samples = run_latency(side_, load);
    if (!samples.ok()) return samples.status();
    double total = 0;
    for (const double sample : *samples) total += sample;
    each.p50.push_back(percentile(*samples, 0.50));
    each.p99.push_back(percentile(*samples, 0.99));
    return total * 1e-9;
  }

  absl::Status repeat(Contender& each) {
    auto seconds = options_.latency ? latency_once(each, each.load) : run_once(each.load);
    if (!seconds.ok()) return seconds.status();
    const auto messages = static_cast<double>(each.load.messages * each.load.threads);
    each.rates.push_back(messages / *seconds);
    return absl::OkStatus();
  }

  // Returns every option with its effective value.
  Params params(const Contender& each) const {
    const QueuePairLimits& limits = side_.manual_queue().limits();
    Params params;
    params.set("mode", each.name);
    params.set("measure", options_.latency ? "latency" : "rate");
    params.set("op", operation_name(each.load.operation));
    params.set("size", each.load.window.size);
    params.set("threads", uint64_t{each.load.threads});
    params.set("transport", transport_name(side_.device().transport()));
    params.set("repetitions", static_cast<uint64_t>(options_.repetitions));
    params.set("seconds", options_.seconds);
    params.set("samples", options_.samples);
    params.set("depth", uint64_t{std::min(options_.depth, limits.send_depth)});
    params.set("inline", uint64_t{limits.max_inline});
    params.set("list", uint64_t{options_.list});
    params.set("window", options_.window);
    params.set("json", options_.json);
    return params;
  }

  const Contender* find(const std::vector<Contender>& all, const std::string& name,
                        uint32_t threads) const {
    for (const Contender& each : all) {
      if (each.name == name && each.load.threads == threads) return &each;
    }
    return nullptr;
  }

  void print(const std::vector<Contender>& all) {
    if (!options_.json && (all.size() > 1 || options_.sizes.size() > 1)) {
      if (!table_) table_.emplace(options_, all, side_.device().transport());
      table_->rows(all);
      return;
    }
    const auto ratio_row = [&](const char* name, const Contender& each, const Contender* base) {
      if (base == nullptr || base == &each) return;
      report_.row(name, params(each), summarize(ratios(each.rates, base->rates)), "");
    };
    for (const Contender& each : all) {
      ratio_row("ratio_to_ceiling", each, find(all, "ceiling", each.load.threads));
      if (each.name == "auto") {
        ratio_row("ratio_to_manual", each, find(all, "manual", each.load.threads));
      }
      if (each.load.threads != 1) ratio_row("ratio_to_one_thread", each, find(all, each.name, 1));
    }
    for (const Contender& each : all) {
      const Params with = params(each);
      if (options_.latency) {
        report_.row("clock_cost", with, summarize({clock_cost()}), "ns");
        report_.row("latency_p99", with, summarize(each.p99), "ns");
        report_.row("latency_p50", with, summarize(each.p50), "ns");
      }
      Summary rate = summarize(each.rates);
      const double megabytes = static_cast<double>(each.load.window.size) * 1e-6;
      report_.row("megabytes_per_second", with,
                  {rate.median * megabytes, rate.min * megabytes, rate.max * megabytes, rate.n},
                  "MB/s");
      report_.row("messages_per_second", with, rate, "1/s");
    }
  }

  Side& side_;
  const Options& options_;
  TargetControl target_;
  const Report report_;
  std::optional<ResultTable> table_;
};

absl::Status run_rank(Exchange& exchange, const Options& options) {
  auto side = Side::create(
      exchange, {.transport = options.transport,
                 .max_size = *std::max_element(options.sizes.begin(), options.sizes.end()),
                 .ring = options.window,
                 .threads = static_cast<uint32_t>(
                     *std::max_element(options.threads.begin(), options.threads.end())),
                 .depth = options.depth,
                 .max_inline = options.max_inline});
  if (!side.ok()) return side.status();
  return exchange.rank() == 0 ? Bench(**side, options).run() : serve_target(**side);
}

int run(const Options& options) {
  const std::vector<std::string> labels{"the sender", "the target"};
  const auto body = [&](Exchange& exchange) {
    const absl::Status status = run_rank(exchange, options);
    if (status.ok()) return 0;
    progress("");
    std::fprintf(stderr, "bench_transfer: %s: %s\n", labels[exchange.rank()].c_str(),
                 std::string(status.message()).c_str());
    return 1;
  };
  // Practically no timeout: the program shows its progress, and the user can stop it by Ctrl-C.
  const absl::Status status =
      run_processes(2, body, {.timeout = std::chrono::hours(24), .labels = labels});
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_transfer: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "measures transfers between two processes of this host\n"
      "  bench_transfer                           a table of every mode and size\n"
      "  bench_transfer --mode auto --size 8      one result, with its spread\n"
      "  bench_transfer --measure latency --op read";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "bench_transfer: it takes options only: see --help\n");
    return 1;
  }
  const auto options = cariama::bench::parse_options();
  if (!options.ok()) {
    std::fprintf(stderr, "bench_transfer: %s\n", std::string(options.status().message()).c_str());
    return 1;
  }
  return cariama::bench::run(*options);
}
