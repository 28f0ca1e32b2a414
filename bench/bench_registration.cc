// Measures registration policies: the bytes that stay registered, the number of registrations that
// come too late, and the costs. There are no transfers: registering is real (io_uring pins the
// pages, or with --pinner verbs ibv_reg_mr), and a message lasts as long as the trace states.
//
//   bench_registration --trace cg.A.4.csv.xz --policy leave-pinned,helper --axis cpu
//   bench_registration --figure1 --policy leave-pinned,on-demand,helper
//   bench_registration --reuse yes --size 0      # sizes from 16 KiB to 4 MiB
//   bench_registration --overhead
//   bench_registration --generate 16 --layout 2 >ft16.csv  # a trace of FT
//   bench_registration --trace ft16.csv --group 4 --seed 1   # four ranks on a node
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/support/flags.h"
#include "bench/support/job.h"
#include "bench/support/must.h"
#include "bench/support/registration_replay.h"
#include "bench/support/registration_trace.h"
#include "bench/support/report.h"
#include "bench/support/summary.h"
#include "dtutils/device.h"
#include "dtutils/registration/helper_thread.h"
#include "dtutils/registration/pinner.h"
#include "dtutils/registration/registration_cache.h"

ABSL_FLAG(std::string, trace, "", "replay this trace (text, or packed with xz)");
ABSL_FLAG(std::string, axis, "cpu", "time of the replay: cpu or wall");
ABSL_FLAG(std::string, clock, "real",
          "of the replay: real, or virtual: modelled costs, independent of the machine's load");
ABSL_FLAG(std::string, pinner, "io_uring",
          "registers the memory on the real clock: io_uring, or verbs: ibv_reg_mr of the first "
          "RDMA device");
ABSL_FLAG(uint64_t, repetitions, 1, "runs of --figure1 and of each size of --reuse");
ABSL_FLAG(uint32_t, ranks, 0, "replay the first ranks of the trace only; 0: all");
ABSL_FLAG(uint32_t, group, 0,
          "group the ranks at random into nodes of so many, without the messages within a node");
ABSL_FLAG(uint64_t, seed, 1, "of --group");
ABSL_FLAG(
    std::string, timeline, "",
    "write the registered bytes over time to FILE.POLICY.RANK, and those of the ranks of a node "
    "together to FILE.POLICY.nodeNUMBER (time in ns, bytes), for plots");
ABSL_FLAG(bool, figure1, false, "three buffers of --size (default 5 MB), ten rounds");
ABSL_FLAG(uint64_t, compute, 100'000, "microseconds of computation between messages of --figure1");
ABSL_FLAG(std::string, reuse, "", "yes: 100 messages of one buffer; no: each of another buffer");
ABSL_FLAG(uint64_t, size, 0, "bytes of a message; 0: the paper's");
ABSL_FLAG(bool, overhead, false, "cost of the steps on the main thread, with the helper off");
ABSL_FLAG(std::string, policy, "leave-pinned,on-demand,oracle-1ms,helper,helper-improved",
          "comma-separated");
ABSL_FLAG(double, limit, 0, "budget as a fraction of the peak of leave-pinned; 0: none");
ABSL_FLAG(std::string, predictor, "context", "of the helper: context, gap, follow or periodicity");
ABSL_FLAG(uint32_t, window, 2, "of the helper: previous messages in a signature, 0 to 4");
ABSL_FLAG(uint32_t, stream, 64, "of the helper: window of the periodicity predictor");
ABSL_FLAG(std::string, estimate, "minimum", "of the helper: minimum, last, median or quantile");
ABSL_FLAG(double, grace, 0, "of the helper: PredictorOptions::grace");
ABSL_FLAG(bool, learn_early, false, "of the helper: PredictorOptions::learn_early");
ABSL_FLAG(uint64_t, poll, 1000, "of the helper: poll interval in microseconds");
ABSL_FLAG(uint64_t, horizon, 0, "of the helper: HelperOptions::horizon in microseconds");
ABSL_FLAG(uint64_t, look, 0, "of the helper: HelperOptions::look_interval in microseconds");
ABSL_FLAG(uint64_t, batch, 0, "of the helper: HelperOptions::batch in microseconds");
ABSL_FLAG(
    uint32_t, sharing_helpers, 0,
    "of the helpers: HelperOptions::sharing_helpers, how many share a core (aggressive policy)");
ABSL_FLAG(
    int64_t, idle_cores, -1,
    "of --clock virtual: cores of a node for the helpers of its ranks, one each (conservative "
    "policy); a node has the ranks of a --group, or all; -1: enough");
ABSL_FLAG(double, give_up_after, 0, "of the helper: HelperOptions::give_up_after");
ABSL_FLAG(
    int64_t, piece, -1,
    "of the helpers: register messages in pieces of so many bytes; 0: whole; -1: as the policy "
    "has it");
ABSL_FLAG(uint32_t, generate, 0, "print a trace of FT with so many ranks, and end");
ABSL_FLAG(int, layout, 1, "of the generated trace: 1 or 2 processor dimensions");
ABSL_FLAG(bool, weak, false, "of the generated trace: --size for each rank, not for all together");
ABSL_FLAG(uint64_t, iterations, 20, "of the generated trace");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

constexpr const char* kProgram = "bench_registration";
constexpr size_t kFigureBytes = 5'000'000;

[[noreturn]] void wrong(const std::string& what) {
  give_up(kProgram, absl::InvalidArgumentError(what));
}

HelperOptions with_piece(HelperOptions options) {
  if (const int64_t piece = absl::GetFlag(FLAGS_piece); piece >= 0) {
    options.piece_bytes = static_cast<size_t>(piece);
    options.piece_from = 0;
  }
  return options;
}

HelperOptions helper_options() {
  HelperOptions options;
  const std::string predictor = absl::GetFlag(FLAGS_predictor);
  if (predictor == "context") {
    options.predictor_kind = PredictorKind::kContext;
  } else if (predictor == "periodicity") {
    options.predictor_kind = PredictorKind::kPeriodicity;
  } else if (predictor == "gap") {
    options.predictor_kind = PredictorKind::kGap;
  } else if (predictor == "follow") {
    options.predictor_kind = PredictorKind::kFollow;
  } else {
    wrong("--predictor " + predictor);
  }
  options.predictor.window = absl::GetFlag(FLAGS_window);
  options.predictor.stream = absl::GetFlag(FLAGS_stream);
  options.predictor.grace = absl::GetFlag(FLAGS_grace);
  options.predictor.learn_early = absl::GetFlag(FLAGS_learn_early);
  const std::string estimate = absl::GetFlag(FLAGS_estimate);
  if (estimate == "minimum") {
    options.predictor.estimate = PeriodEstimate::kMinimum;
  } else if (estimate == "last") {
    options.predictor.estimate = PeriodEstimate::kLast;
  } else if (estimate == "median") {
    options.predictor.estimate = PeriodEstimate::kMedian;
  } else if (estimate == "quantile") {
    options.predictor.estimate = PeriodEstimate::kQuantile;
  } else {
    wrong("--estimate " + estimate);
  }
  options.poll_interval = std::chrono::microseconds(absl::GetFlag(FLAGS_poll));
  options.horizon = std::chrono::microseconds(absl::GetFlag(FLAGS_horizon));
  options.look_interval = std::chrono::microseconds(absl::GetFlag(FLAGS_look));
  options.batch = std::chrono::microseconds(absl::GetFlag(FLAGS_batch));
  options.give_up_after = absl::GetFlag(FLAGS_give_up_after);
  return with_piece(options);
}

std::shared_ptr<RegistrationPolicy> policy_named(const std::string& name, bool own_thread = true) {
  if (name == "helper" || name == "helper-improved") {
    HelperOptions options =
        name == "helper" ? helper_options() : with_piece(HelperOptions::improved());
    options.own_thread = own_thread;
    options.sharing_helpers = absl::GetFlag(FLAGS_sharing_helpers);
    return std::make_shared<HelperPolicy>(options);
  }
  return must(make_registration_policy(name));
}

absl::StatusOr<std::shared_ptr<Pinner>> make_pinner() {
  const std::string pinner = absl::GetFlag(FLAGS_pinner);
  if (pinner == "io_uring") {
    auto made = IoUringPinner::create();
    if (!made.ok()) return made.status();
    return *std::move(made);
  }
  if (pinner != "verbs") wrong("--pinner " + pinner);
  static const auto device = must(open_device({.transport = Transport::kVerbs}));
  auto domain = device->create_domain();
  if (!domain.ok()) return domain.status();
  return std::make_shared<DomainPinner>(*std::move(domain), Access::kAll);
}

std::vector<std::string> policies() { return absl::StrSplit(absl::GetFlag(FLAGS_policy), ','); }

Params params_for(const std::string& policy) {
  Params params;
  params.set("policy", policy);
  params.set("pinner", absl::GetFlag(FLAGS_pinner));
  if (policy == "helper" || policy == "helper-improved") {
    if (const int64_t piece = absl::GetFlag(FLAGS_piece); piece >= 0) {
      params.set("piece", static_cast<uint64_t>(piece));
    }
    if (const uint32_t helpers = absl::GetFlag(FLAGS_sharing_helpers); helpers != 0) {
      params.set("sharing_helpers", uint64_t{helpers});
    }
    if (const int64_t cores = absl::GetFlag(FLAGS_idle_cores); cores >= 0) {
      params.set("idle_cores", static_cast<uint64_t>(cores));
    }
  }
  if (policy == "helper") {
    params.set("predictor", absl::GetFlag(FLAGS_predictor));
    params.set("window", uint64_t{absl::GetFlag(FLAGS_window)});
    params.set("estimate", absl::GetFlag(FLAGS_estimate));
    params.set("grace", absl::GetFlag(FLAGS_grace));
    params.set("learn_early", absl::GetFlag(FLAGS_learn_early));
    params.set("poll", absl::GetFlag(FLAGS_poll));
    params.set("horizon", absl::GetFlag(FLAGS_horizon));
    params.set("look", absl::GetFlag(FLAGS_look));
    params.set("batch", absl::GetFlag(FLAGS_batch));
    params.set("give_up_after", absl::GetFlag(FLAGS_give_up_after));
  }
  return params;
}

Summary one(double value) { return summarize({value}); }
double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

void write_timeline(const std::string& name, const Timeline& timeline) {
  FILE* const out = std::fopen(name.c_str(), "we");
  if (out == nullptr) wrong("cannot write " + name);
  for (const auto& [time, bytes] : timeline) {
    std::fprintf(out, "%lld %llu\n", static_cast<long long>(time),
                 static_cast<unsigned long long>(bytes));
  }
  if (std::fclose(out) != 0) wrong("cannot write " + name);
}

// Writes the timelines of the ranks and of the nodes, if --timeline asks for them.
void write_timelines(const std::string& policy, const ReplayResult& result,
                     const std::vector<std::vector<size_t>>& nodes) {
  const std::string file = absl::GetFlag(FLAGS_timeline);
  if (file.empty()) return;
  for (size_t rank = 0; rank < result.timelines.size(); ++rank) {
    write_timeline(absl::StrCat(file, ".", policy, ".", rank), result.timelines[rank]);
  }
  for (size_t node = 0; node < nodes.size(); ++node) {
    write_timeline(absl::StrCat(file, ".", policy, ".node", node), result.sum(nodes[node]));
  }
}

// The places of the helpers on the boards of their nodes, for --idle_cores.
std::vector<HelperPlace> helper_places(const std::vector<std::vector<size_t>>& nodes,
                                       size_t ranks) {
  const int64_t cores = absl::GetFlag(FLAGS_idle_cores);
  if (cores < 0) return {};
  std::vector<HelperPlace> places(ranks);
  for (const auto& node : nodes) {
    const auto board = std::make_shared<HelperBoard>();
    for (size_t i = 0; i < node.size(); ++i) {
      places[node[i]] = {board, static_cast<uint32_t>(i), static_cast<uint32_t>(cores)};
    }
  }
  return places;
}

void run_trace(const Report& report) {
  const std::string axis = absl::GetFlag(FLAGS_axis);
  if (axis != "cpu" && axis != "wall") wrong("--axis " + axis);
  const std::string clock = absl::GetFlag(FLAGS_clock);
  if (clock != "real" && clock != "virtual") wrong("--clock " + clock);
  if (clock == "real" && absl::GetFlag(FLAGS_idle_cores) >= 0) {
    wrong("--idle_cores needs --clock virtual: on the real clock ranks run one after the other");
  }
  const std::string file = absl::GetFlag(FLAGS_trace);
  std::vector<RankTrace> ranks = must(read_trace(file, axis == "cpu" ? Axis::kCpu : Axis::kWall));
  if (const uint32_t most = absl::GetFlag(FLAGS_ranks); most != 0 && most < ranks.size()) {
    ranks.resize(most);
  }
  const uint32_t per_node = absl::GetFlag(FLAGS_group);
  std::vector<size_t> all(ranks.size());
  std::iota(all.begin(), all.end(), size_t{0});
  std::vector<std::vector<size_t>> nodes{all};
  if (per_node != 0) nodes = group_ranks(ranks, per_node, absl::GetFlag(FLAGS_seed));
  const auto with_trace = [&](Params params) {
    params.set("trace", file);
    params.set("axis", axis);
    params.set("clock", clock);
    params.set("ranks", uint64_t{ranks.size()});
    if (per_node != 0) {
      params.set("group", uint64_t{per_node});
      params.set("seed", absl::GetFlag(FLAGS_seed));
    }
    return params;
  };
  // The values of the oracle policies, from the trace alone.
  OracleValues pinned{};
  for (const auto& [name, horizon] : {std::pair<const char*, int64_t>{"computed oracle-0", 0},
                                      {"computed oracle-1ms", 1'000'000},
                                      {"computed oracle-10ms", 10'000'000},
                                      {"computed leave-pinned", INT64_MAX}}) {
    const OracleValues values = oracle_values(ranks, horizon);
    const Params params = with_trace(params_for(name));
    report.row("peak_bytes", params, one(static_cast<double>(values.peak)), "B");
    report.row("byte_seconds", params, one(values.byte_seconds), "B s");
    pinned = values;
  }
  const Params ahead = with_trace(params_for("computed ahead"));
  const OracleValues in_time =
      oracle_values(ranks, 0, {kPinBase, kPinPerPage, kUnpinBase, kUnpinPerPage});
  report.row("peak_bytes", ahead, one(static_cast<double>(in_time.peak)), "B");
  report.row("byte_seconds", ahead, one(in_time.byte_seconds), "B s");
  report.row("byte_seconds", with_trace(params_for("computed predictable")),
             one(predictable_byte_seconds(ranks, 0.01)), "B s");
  uint64_t limit = UINT64_MAX;
  if (const double fraction = absl::GetFlag(FLAGS_limit); fraction > 0) {
    limit = static_cast<uint64_t>(fraction * static_cast<double>(pinned.peak) /
                                  static_cast<double>(ranks.size()));
  }
  for (const std::string& policy : policies()) {
    progress(policy);
    const ReplayResult result = must(replay_trace(
        ranks, [&](bool own_thread) { return policy_named(policy, own_thread); }, make_pinner,
        limit, clock == "virtual" ? ReplayClock::kVirtual : ReplayClock::kReal,
        helper_places(nodes, ranks.size())));
    progress("");
    const Params params = with_trace(params_for(policy));
    const auto row = [&](const char* name, double value, const char* unit) {
      report.row(name, params, one(value), unit);
    };
    row("late_registrations", share(result.late, result.messages), "");
    row("first_uses", share(result.first_uses, result.messages), "");
    row("late_after_second_use", share(result.late_repeated, result.repeated), "");
    row("peak_bytes", static_cast<double>(result.peak_bytes(all)), "B");
    if (per_node != 0) {
      std::vector<double> peaks;
      for (const auto& node : nodes) {
        peaks.push_back(static_cast<double>(result.peak_bytes(node)));
      }
      report.row("node_peak_bytes", params, summarize(peaks), "B");
    }
    row("byte_seconds", result.byte_seconds, "B s");
    if (clock == "virtual") {
      row("byte_seconds_early", result.parts.early, "B s");
      row("byte_seconds_in_use", result.parts.in_use, "B s");
      row("byte_seconds_between_uses", result.parts.between, "B s");
      row("byte_seconds_late", result.parts.late, "B s");
      row("byte_seconds_unused", result.parts.unused, "B s");
    }
    row("registrations", static_cast<double>(result.registrations), "");
    row("registered_ahead", static_cast<double>(result.registered_ahead), "");
    row("evictions", static_cast<double>(result.evictions), "");
    row("helper_steps_per_second", static_cast<double>(result.helper_steps) / result.seconds,
        "1/s");
    row("helper_cpu_fraction", result.helper_cpu_seconds / result.seconds, "");
    row("main_ns_per_message", result.main_ns / static_cast<double>(result.messages), "ns");
    if (!result.hit_ns.empty()) {
      std::vector<double> hits = result.hit_ns;
      row("hit_ns", percentile(hits, 0.5), "ns");
    }
    row("delayed_messages", share(result.overslept, result.messages), "");
    if (result.errors.predictions != 0) {
      const uint64_t all = result.errors.predictions;
      row("errors_below_0.5_percent", share(result.errors.below_half_percent, all), "");
      row("errors_below_5_percent", share(result.errors.below_5_percent, all), "");
      row("errors_below_20_percent", share(result.errors.below_20_percent, all), "");
    }
    write_timelines(policy, result, nodes);
  }
}

// Anonymous memory whose pages are present.
class Buffers {
 public:
  explicit Buffers(size_t bytes) : bytes_(bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) wrong("cannot map the buffers");
    memory_ = static_cast<std::byte*>(memory);
  }
  ~Buffers() { munmap(memory_, bytes_); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  [[nodiscard]] std::byte* get() const { return memory_; }

 private:
  std::byte* memory_;
  size_t bytes_;
};

// A sequence of messages, each a copy to another buffer, with computation between.
struct Loop {
  size_t bytes;
  size_t buffers;  // used in turn
  size_t messages;
  int64_t compute_ns;
};

struct LoopResult {
  double communication_us = 0;  // mean of a message
  uint64_t peak = 0;
  double average_bytes = 0;
  uint64_t late = 0;
  uint64_t last_late = 0;  // number of the last message that was late, from 1
  double byte_seconds = 0;
  uint64_t registrations = 0;
  double helper_cpu_fraction = 0;
};

LoopResult run_loop(const Loop& loop, const std::string& policy) {
  const size_t stride = (loop.bytes + 8191) / 4096 * 4096;
  const Buffers source(stride * loop.buffers);
  const Buffers target(stride);
  RegistrationOptions options;
  options.max_bytes = UINT64_MAX;
  options.policy = policy_named(policy);
  auto cache = must(RegistrationCache::create(must(make_pinner()), options));
  LoopResult result;
  const int64_t start = registration_clock();
  double communication = 0;
  for (size_t i = 0; i < loop.messages; ++i) {
    const std::byte* const from = source.get() + i % loop.buffers * stride;
    const int64_t begin = registration_clock();
    ChunkedRegistration pieces(*cache, from, loop.bytes, options.policy->piece_bytes(loop.bytes));
    bool late = false;
    while (!pieces.done()) {
      const auto piece = must(pieces.next());
      late = late || !piece.was_hit;
      std::memcpy(target.get() + (piece.address - from), piece.address, piece.bytes);
    }
    const int64_t end = registration_clock();
    communication += static_cast<double>(end - begin);
    if (late) {
      ++result.late;
      result.last_late = i + 1;
    }
    // The use ends with the loop body's object: compute afterwards, as a program does.
    static_cast<void>(ChunkedRegistration(std::move(pieces)));
    spin_until(end + loop.compute_ns);
  }
  const RegistrationStatistics statistics = cache->statistics();
  result.communication_us = communication * 1e-3 / static_cast<double>(loop.messages);
  result.peak = statistics.peak_bytes;
  const auto elapsed = static_cast<double>(registration_clock() - start);
  result.byte_seconds = statistics.byte_seconds;
  result.average_bytes = statistics.byte_seconds * 1e9 / elapsed;
  result.registrations = statistics.registrations;
  if (const auto* helper = dynamic_cast<const HelperPolicy*>(options.policy.get())) {
    result.helper_cpu_fraction =
        static_cast<double>(helper->statistics().cpu_nanoseconds) / elapsed;
  }
  return result;
}

// Runs the loop --repetitions times.
void measure_loop(const Report& report, const Params& params, const Loop& loop,
                  const std::string& policy) {
  std::vector<LoopResult> results;
  const uint64_t repetitions = std::max<uint64_t>(absl::GetFlag(FLAGS_repetitions), 1);
  for (uint64_t i = 0; i < repetitions; ++i) results.push_back(run_loop(loop, policy));
  const auto row = [&](const char* name, const char* unit, auto&& value) {
    std::vector<double> values;
    for (const LoopResult& result : results) values.push_back(static_cast<double>(value(result)));
    report.row(name, params, summarize(values), unit);
  };
  row("message_time", "us", [](const LoopResult& one) { return one.communication_us; });
  row("peak_bytes", "B", [](const LoopResult& one) { return one.peak; });
  row("average_bytes", "B", [](const LoopResult& one) { return one.average_bytes; });
  row("byte_seconds", "B s", [](const LoopResult& one) { return one.byte_seconds; });
  row("registrations", "", [](const LoopResult& one) { return one.registrations; });
  row("late_registrations", "", [&](const LoopResult& one) {
    return static_cast<double>(one.late) / static_cast<double>(loop.messages);
  });
  row("last_late_message", "", [](const LoopResult& one) { return one.last_late; });
  row("helper_cpu_fraction", "", [](const LoopResult& one) { return one.helper_cpu_fraction; });
}

void run_figure1(const Report& report) {
  const size_t bytes = absl::GetFlag(FLAGS_size) != 0 ? absl::GetFlag(FLAGS_size) : kFigureBytes;
  for (const std::string& policy : policies()) {
    Params params = params_for(policy);
    params.set("size", uint64_t{bytes});
    params.set("compute", absl::GetFlag(FLAGS_compute));
    const auto compute = static_cast<int64_t>(absl::GetFlag(FLAGS_compute) * 1000);
    measure_loop(report, params, {bytes, 3, 30, compute}, policy);
  }
}

void run_reuse(const Report& report) {
  const std::string reuse = absl::GetFlag(FLAGS_reuse);
  if (reuse != "yes" && reuse != "no") wrong("--reuse is yes or no");
  std::vector<size_t> sizes = {absl::GetFlag(FLAGS_size)};
  if (sizes.front() == 0) {
    sizes.clear();
    for (size_t size = 16 << 10; size <= size_t{4} << 20; size *= 2) sizes.push_back(size);
  }
  for (const size_t size : sizes) {
    for (const std::string& policy : policies()) {
      Params params = params_for(policy);
      params.set("size", uint64_t{size});
      params.set("reuse", reuse);
      const size_t buffers = reuse == "yes" ? 1 : 100;
      measure_loop(report, params, {size, buffers, 100, 2'000'000}, policy);
    }
  }
}

// ns of one call of `step`; the median of several batches.
template <typename Step>
double cost_of(Step&& step) {
  constexpr int kBatch = 10000;
  std::vector<double> batches;
  for (int batch = 0; batch < 15; ++batch) {
    const int64_t begin = registration_clock();
    for (int i = 0; i < kBatch; ++i) step();
    batches.push_back(static_cast<double>(registration_clock() - begin) / kBatch);
  }
  return percentile(batches, 0.5);
}

// ns of one look-up hit and its release.
double hit_cost(RegistrationCache& cache, const std::byte* memory, size_t bytes,
                const CallStack* stack) {
  return cost_of([&] {
    const auto acquired = cache.acquire(memory, bytes, {.stack = stack});
    if (!acquired.ok()) give_up(kProgram, acquired.status());
  });
}

// hit_cost() while another thread uses the same region all the time.
double contended_hit_cost(RegistrationCache& cache, const std::byte* memory, size_t bytes) {
  std::atomic<bool> stop{false};
  std::atomic<bool> runs{false};
  std::thread other([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      if (!cache.acquire(memory, bytes).ok()) return;
      runs.store(true, std::memory_order_relaxed);
    }
  });
  while (!runs.load(std::memory_order_relaxed)) std::this_thread::yield();
  const double cost = hit_cost(cache, memory, bytes, nullptr);
  stop.store(true, std::memory_order_relaxed);
  other.join();
  return cost;
}

// The paper's step 2: the lock of a region, taken and released without contention.
double lock_cost() {
  std::atomic<uint64_t> word{0};
  return cost_of([&] {
    uint64_t free = 0;
    word.compare_exchange_strong(free, 1, std::memory_order_acq_rel);
    word.fetch_sub(1, std::memory_order_acq_rel);
  });
}

void run_overhead(const Report& report) {
  const CallStack given{1, 2, 3, 4, 5, 6, 7, 8};
  for (const size_t size : {size_t{17'000}, size_t{1} << 20, size_t{4} << 20}) {
    const Buffers source(size + 4096);
    const Buffers target(size + 4096);
    const auto make = [&](std::shared_ptr<RegistrationPolicy> policy,
                          Invalidation invalidation = Invalidation::kOneThread) {
      RegistrationOptions options;
      options.max_bytes = UINT64_MAX;
      options.invalidation = invalidation;
      options.policy = std::move(policy);
      return must(RegistrationCache::create(must(make_pinner()), options));
    };
    HelperOptions off = helper_options();
    off.own_thread = false;
    const auto plain = make(must(make_registration_policy("leave-pinned")));
    const auto recording = make(std::make_shared<HelperPolicy>(off));
    std::vector<double> copies;
    for (int i = 0; i < 51; ++i) {
      const int64_t begin = registration_clock();
      std::memcpy(target.get(), source.get(), size);
      copies.push_back(static_cast<double>(registration_clock() - begin));
    }
    const double copy = percentile(copies, 0.5);
    const auto awaiting =
        make(must(make_registration_policy("leave-pinned")), Invalidation::kAutomatic);
    const double hit_of_default = hit_cost(*awaiting, source.get(), size, nullptr);
    const double hit = hit_cost(*plain, source.get(), size, nullptr);
    const double without_walk = hit_cost(*recording, source.get(), size, &given);
    const double all = hit_cost(*recording, source.get(), size, nullptr);
    const double lock = lock_cost();
    const double contended = contended_hit_cost(*plain, source.get(), size);
    const double clock = cost_of([] { static_cast<void>(registration_clock()); });
    Params params;
    params.set("size", uint64_t{size});
    report.row("clock_read", params, one(clock), "ns");
    report.row("lock", params, one(lock), "ns");
    // The lock and the count of hits, whose lines two threads on two cores exchange.
    report.row("lock_contended", params, one(lock + std::max(contended - hit, 0.0)), "ns");
    report.row("context_record", params, one(std::max(without_walk - hit, 0.0)), "ns");
    report.row("hit", params, one(hit), "ns");
    // With the system call of Invalidation::kAutomatic, the default.
    report.row("hit_with_check", params, one(hit_of_default), "ns");
    report.row("hit_contended", params, one(contended), "ns");
    report.row("hit_and_record", params, one(without_walk), "ns");
    report.row("stack_walk", params, one(std::max(all - without_walk, 0.0)), "ns");
    report.row("message_copy", params, one(copy), "ns");
    // The paper's four steps, as a part of the message without them. A hit of "leave-pinned"
    // contains the lock and the clock, too.
    const double steps = clock + lock + std::max(all - hit, 0.0);
    report.row("added_to_message", params, one(steps / (copy + std::max(hit - clock - lock, 0.0))),
               "");
  }
}

void check_options() {
  const auto refuse = [](bool is_wrong, const char* option, const char* range) {
    if (is_wrong) wrong(std::string("--") + option + " is " + range);
  };
  const auto is_negative = [](double value) { return !std::isfinite(value) || value < 0; };
  refuse(absl::GetFlag(FLAGS_window) > 4, "window", "0 to 4");
  refuse(absl::GetFlag(FLAGS_stream) < 2, "stream", "2 or more");
  refuse(absl::GetFlag(FLAGS_repetitions) < 1, "repetitions", "1 or more");
  refuse(is_negative(absl::GetFlag(FLAGS_limit)), "limit", "a fraction, 0 or more");
  refuse(is_negative(absl::GetFlag(FLAGS_grace)), "grace", "a fraction, 0 or more");
  refuse(is_negative(absl::GetFlag(FLAGS_give_up_after)), "give_up_after", "0 or more");
  refuse(absl::GetFlag(FLAGS_layout) < 1 || absl::GetFlag(FLAGS_layout) > 2, "layout", "1 or 2");
  refuse(absl::GetFlag(FLAGS_generate) > 65536, "generate", "at most 65536");
  refuse(absl::GetFlag(FLAGS_size) > size_t{1} << 40, "size", "at most 2^40 (1 TiB)");
  refuse(absl::GetFlag(FLAGS_idle_cores) < -1, "idle_cores", "-1 or more");
  refuse(absl::GetFlag(FLAGS_idle_cores) > UINT32_MAX, "idle_cores", "below 2^32");
  refuse(absl::GetFlag(FLAGS_piece) < -1, "piece", "-1 or more");
  refuse(absl::GetFlag(FLAGS_iterations) > 1'000'000, "iterations", "at most 1000000");
  refuse(absl::GetFlag(FLAGS_compute) > 3'600'000'000, "compute", "at most 3600000000 (an hour)");
}

int run() {
  check_options();
  // Late wake-ups would count as late registrations.
  prctl(PR_SET_TIMERSLACK, 1);
  if (const uint32_t ranks = absl::GetFlag(FLAGS_generate); ranks != 0) {
    size_t bytes = absl::GetFlag(FLAGS_size) != 0 ? absl::GetFlag(FLAGS_size) : size_t{1} << 28;
    if (!absl::GetFlag(FLAGS_weak)) bytes /= ranks;
    const std::string text =
        transform_trace_text(ranks, absl::GetFlag(FLAGS_layout), bytes, 60'000'000,
                             static_cast<int>(absl::GetFlag(FLAGS_iterations)));
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
  }
  const Report report(absl::GetFlag(FLAGS_json), {"policy", "size"});
  if (!absl::GetFlag(FLAGS_trace).empty()) {
    run_trace(report);
  } else if (absl::GetFlag(FLAGS_figure1)) {
    run_figure1(report);
  } else if (!absl::GetFlag(FLAGS_reuse).empty()) {
    run_reuse(report);
  } else if (absl::GetFlag(FLAGS_overhead)) {
    run_overhead(report);
  } else {
    wrong("give --trace, --figure1, --reuse, --overhead or --generate (--help)");
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  cariama::bench::parse_flags(argc, argv,
                              "Compares registration policies.\n"
                              "  bench_registration --trace FILE --policy leave-pinned,helper\n"
                              "  bench_registration --figure1 | --reuse yes|no | --overhead\n"
                              "  bench_registration --generate 16 --layout 2");
  return cariama::bench::run();
}
