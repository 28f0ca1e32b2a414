// Simulates aggregated calls of 8 bytes between all processes of a job, sent directly and by
// routers (riutils/routed_aggregator.h), on more processes than this machine has: the real code
// runs on a simulated cluster (bench/support/virtual_cluster.h).
//
//   bench_routing_sim --processes 1000,10000
//
// All processes exist, but only some of them send: all could not, since a job of 10^4 processes has
// 10^8 direct channels. The senders are chosen so that each costs what it would cost if all sent:
//
//   node     Those at the first place of each node (--processes-per-node consecutive ranks;
//            default: the square root of the number of processes). They are one another's routers,
//            so each forwards as many calls as in a job in which all send.
//   direct   --senders of these. Without routers a sender is independent of the others.
//
// A sender calls random processes, --calls times, and publishes its batches at the end (and each
// batch that has grown to MessengerOptions::flush_bytes): so --calls says how many calls a batch
// may gather. Virtual time passes on the network (--latency, --gigabytes, --message-gap) and for
// the processor: --call-cost for each call of a sender and again for each call that it forwards,
// --message-cost for each message that it sends. As each process of a job in which all send
// receives as much as it sends, these costs are those of both ends. The processes that do not send
// run the calls at no cost. Before the measurement each sender has called each process, so that all
// channels and connections exist.
//
// Rows, by processes, routing and calls:
//
//   calls_per_second   of a sender: its calls, divided by the time until the last call of all ran
//                      and each sender had spent its time for them
//   chunk_bytes        chunks of the channels of a sender, and of those by which it forwards: mean.
//                      They are in the receivers' processes. If all send, a process has as many for
//                      the channels that end in it
//   sender_bytes       registered memory in use in a sender's process: connections, the sender's
//                      ends of the channels, and chunks of channels that end there: mean
//   channels           of a sender, with those by which it forwards: mean
//   connections        of a sender: mean
//   hops_per_call      1, or more with routers
//   messages_per_call  sent by all processes, credits included
//   real_seconds       of the whole simulation
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
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
#include "dsfabric/fabric_options.h"
#include "dtutils/random.h"
#include "dtutils/statistics.h"
#include "dtutils/wait.h"
#include "riutils/routed_aggregator.h"

ABSL_FLAG(std::string, processes, "1000", "numbers of processes");
ABSL_FLAG(std::vector<std::string>, routing, (std::vector<std::string>{"direct", "node"}),
          "direct, node or both");
ABSL_FLAG(int, processes_per_node, 0,
          "ranks that form a node; 0: the square root of the number of processes");
ABSL_FLAG(std::string, calls, "1000,10000", "calls of a sender between two publications");
ABSL_FLAG(int, senders, 4, "senders with --routing direct");
ABSL_FLAG(std::string, channel_chunk, "32Ki", "MessengerOptions::chunk_bytes");
ABSL_FLAG(double, call_cost, 20, "processor time of a call on one hop, at both ends, in ns");
ABSL_FLAG(double, message_cost, 200, "processor time of a message, at both ends, in ns");
ABSL_FLAG(uint64_t, seed, 1, "seed of all random choices");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

constexpr std::chrono::minutes kPatience{60};  // real time
// A sender spends its time, and forwards calls, after so many calls.
constexpr uint64_t kCallsPerPoll = 64;

Deadline soon() { return deadline_after(kPatience); }

struct Scale {
  uint32_t processes = 0;
  uint32_t per_node = 0;
  Routing routing = Routing::kDirect;
  std::vector<uint64_t> calls;
};

// The ranks that send.
std::vector<uint32_t> senders_of(const Scale& scale) {
  const uint32_t nodes = (scale.processes + scale.per_node - 1) / scale.per_node;
  uint32_t count = nodes;
  if (scale.routing == Routing::kDirect) {
    count = std::min(nodes, static_cast<uint32_t>(absl::GetFlag(FLAGS_senders)));
  }
  std::vector<uint32_t> senders;
  for (uint32_t i = 0; i < count; ++i) {
    senders.push_back(static_cast<uint32_t>(uint64_t{i} * nodes / count) * scale.per_node);
  }
  return senders;
}

// The calls of all senders between two meetings of the processes.
struct CallRound {
  uint64_t expected = 0;
  uint64_t run = 0;
  SimTime end{0};  // of the last call
  uint64_t forwarded = 0;
  uint64_t messages = 0;
};

struct Outcome {
  uint64_t calls = 0;  // of each sender
  double calls_per_second = 0;
  double chunk_bytes = 0;
  double sender_bytes = 0;
  double channels = 0;
  double connections = 0;
  double hops_per_call = 0;
  double messages_per_call = 0;
};

// Checks that the calls of each sender run in their order, and notes when they run.
struct Sink {
  VirtualCluster& cluster;
  const uint32_t rank;
  CallRound& round;
  std::vector<uint32_t> last;  // number of the last call, by sender
};
thread_local Sink* sink = nullptr;

// A call. The numbers of a sender increase over all its destinations.
struct Message {
  uint32_t sender;  // its position among the senders
  uint32_t number;
  void operator()() const {
    uint32_t& last = sink->last[sender];
    if (number <= last) fail(absl::InternalError("a call ran twice, or too late"));
    last = number;
    CallRound& round = sink->round;
    round.end = std::max(round.end, sink->cluster.process(sink->rank).clock);
    if (++round.run == round.expected) sink->cluster.wake_all();
  }
};
static_assert(sizeof(Message) == 8);

// The processes share this object without a lock, since one of them runs at a time.
class Simulation {
 public:
  explicit Simulation(const Scale& scale)
      : scale_(scale),
        senders_(senders_of(scale)),
        cluster_({.processes = scale.processes,
                  .sim = network_options(absl::GetFlag(FLAGS_seed)),
                  .fabric = fabric_options(),
                  .longest_sleep = std::chrono::milliseconds(10),
                  .stack_bytes = size_t{256} << 10,
                  .finalize = false}),
        barrier_(cluster_, scale.processes) {}

  [[nodiscard]] std::vector<Outcome> run() {
    must(cluster_.run([&](Fabric& fabric) { use(fabric); }));
    return outcomes_;
  }

 private:
  // One sender, with its part of a round.
  class Sender {
   public:
    Sender(Simulation& simulation, Fabric& fabric, ThreadContext& thread, uint32_t position)
        : simulation_(simulation),
          fabric_(fabric),
          position_(position),
          random_(absl::GetFlag(FLAGS_seed) + position),
          aggregator_(thread, {.routing = simulation.scale_.routing,
                               .processes_per_node = simulation.scale_.per_node,
                               .messenger = messenger_options()}) {}

    void call_each_process() {
      const uint32_t size = fabric_.size();
      for (uint32_t i = 1; i < size; ++i) call((fabric_.rank() + i) % size);
      finish();
    }
    void call_random_processes(uint64_t calls) {
      const uint32_t others = fabric_.size() - 1;
      for (uint64_t i = 0; i < calls; ++i) {
        call((fabric_.rank() + 1 + random_.below(others)) % fabric_.size());
      }
      finish();
    }
    [[nodiscard]] RoutingStatistics statistics() const { return aggregator_.statistics(); }
    void shutdown() { must(aggregator_.shutdown(soon())); }

   private:
    void call(uint32_t rank) {
      const Message message{position_, ++number_};
      must(aggregator_.call(fabric_.thread_of(Rank(rank)), message).status());
      if (++unpaid_calls_ < kCallsPerPoll) return;
      aggregator_.process_calls();
      pay();
    }
    // Publishes the batches, and forwards calls until all calls of all senders have run.
    void finish() {
      must(aggregator_.flush());
      CallRound& round = simulation_.round_;
      const auto all_run = [&] { return round.run == round.expected; };
      // A message is not sent before its sender has spent the time for it.
      round.end = std::max(round.end, pay());
      while (!all_run()) {
        const auto has_work = [&] {
          fabric_.process_calls();  // all that have come, see VirtualBarrier::meet()
          return all_run() || forwarded() != paid_forwarded_;
        };
        if (!fabric_.wait(has_work, soon()))
          fail(absl::DeadlineExceededError("a call did not run"));
        if (!all_run()) round.end = std::max(round.end, pay());
      }
    }
    // Spends the processor time of what this process has done since the last call. Returns its
    // clock then.
    SimTime pay() {
      const uint64_t forwarded_now = forwarded();
      const uint64_t messages_now = messages();
      const uint64_t calls = std::exchange(unpaid_calls_, 0) + forwarded_now - paid_forwarded_;
      const double cost =
          absl::GetFlag(FLAGS_call_cost) * static_cast<double>(calls) +
          absl::GetFlag(FLAGS_message_cost) * static_cast<double>(messages_now - paid_messages_);
      simulation_.round_.forwarded += forwarded_now - paid_forwarded_;
      paid_forwarded_ = forwarded_now;
      paid_messages_ = messages_now;
      VirtualCluster::spend(from_ns(cost));
      return simulation_.cluster_.process(fabric_.rank()).clock;
    }
    [[nodiscard]] uint64_t forwarded() const {
      if (simulation_.scale_.routing == Routing::kDirect) return 0;
      return aggregator_.statistics().forwarded;
    }
    [[nodiscard]] uint64_t messages() const {
      return simulation_.cluster_.network().endpoint_statistics(fabric_.rank()).messages_sent;
    }

    Simulation& simulation_;
    Fabric& fabric_;
    const uint32_t position_;
    Random random_;
    RoutedAggregator aggregator_;
    uint32_t number_ = 0;
    uint64_t unpaid_calls_ = 0;
    uint64_t paid_forwarded_ = 0;
    uint64_t paid_messages_ = 0;
  };

  // Small fabrics: the send-based path only sets up channels.
  static FabricOptions fabric_options() {
    FabricOptions options;
    options.receive_units = 4;
    options.receive_unit_bytes = 1024;
    options.superpages.chunk_bytes = size_t{16} << 10;
    options.superpages.first_superpage_bytes = size_t{256} << 10;  // one for most processes
    options.superpages.shareable = false;
    options.superpages.largest_page = PageKind::kBase;
    options.thread_buffers.initial_units = 1;
    options.timeout = kPatience;
    return options;
  }
  static MessengerOptions messenger_options() {
    MessengerOptions options;
    options.chunk_bytes =
        must(parse_numbers("channel_chunk", absl::GetFlag(FLAGS_channel_chunk), 4096, 1 << 24))
            .front();
    options.timeout = kPatience;
    options.return_after = kPatience;  // real time
    return options;
  }

  void use(Fabric& fabric) {
    const auto thread = must(fabric.init_thread(0));
    Sink own{cluster_, fabric.rank(), round_, std::vector<uint32_t>(senders_.size())};
    sink = &own;
    const auto at = std::find(senders_.begin(), senders_.end(), fabric.rank().value());
    std::unique_ptr<Sender> sender;
    if (at != senders_.end()) {
      sender = std::make_unique<Sender>(*this, fabric, *thread,
                                        static_cast<uint32_t>(at - senders_.begin()));
    }
    meet(fabric, [&] { begin(scale_.processes - 1); });
    if (sender != nullptr) sender->call_each_process();
    meet(fabric, [] {});
    for (const uint64_t calls : scale_.calls) {
      meet(fabric, [&] { begin(calls); });
      if (sender != nullptr) {
        sender->call_random_processes(calls);
        const RoutingStatistics statistics = sender->statistics();
        sum_.chunk_bytes += static_cast<double>(statistics.buffer_bytes) +
                            static_cast<double>(statistics.forwarding_buffer_bytes);
        sum_.channels += static_cast<double>(statistics.channels + statistics.forwarding_channels);
        sum_.connections += static_cast<double>(fabric.statistics().connections);
      }
      meet(fabric, [&] { record(calls); });
    }
    if (sender != nullptr) sender->shutdown();
    meet(fabric, [] {});
    sender.reset();
    sink = nullptr;
  }

  void meet(Fabric& fabric, const std::function<void()>& last) {
    if (!barrier_.meet(fabric, last, soon())) {
      fail(absl::DeadlineExceededError("a process did not finish its calls"));
    }
  }
  // `calls`: of each sender.
  void begin(uint64_t calls) {
    round_ = {.expected = calls * senders_.size(), .messages = all_messages()};
    sum_ = {};
  }
  // Called when the processes have not begun the next round: barrier_.start() is that of this one.
  void record(uint64_t calls) {
    const auto count = static_cast<double>(senders_.size());
    const auto all_calls = static_cast<double>(round_.expected);
    const double nanoseconds = to_ns(round_.end - barrier_.start());
    Outcome outcome;
    outcome.calls = calls;
    outcome.calls_per_second = 1e9 * static_cast<double>(calls) / nanoseconds;
    outcome.chunk_bytes = sum_.chunk_bytes / count;
    outcome.sender_bytes = sender_bytes() / count;
    outcome.channels = sum_.channels / count;
    outcome.connections = sum_.connections / count;
    outcome.hops_per_call = 1 + static_cast<double>(round_.forwarded) / all_calls;
    outcome.messages_per_call = static_cast<double>(all_messages() - round_.messages) / all_calls;
    outcomes_.push_back(outcome);
  }
  [[nodiscard]] uint64_t all_messages() const {
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < scale_.processes; ++rank) {
      sum += cluster_.network().endpoint_statistics(rank).messages_sent;
    }
    return sum;
  }
  // Returns the registered bytes in use in the processes of all senders.
  [[nodiscard]] double sender_bytes() const {
    std::unordered_set<std::string> names;
    for (const uint32_t rank : senders_) names.insert(absl::StrCat("rank ", rank));
    uint64_t sum = 0;
    for (const Statistic& statistic : statistics_snapshot()) {
      if (statistic.kind == "fabric" && statistic.name == "registered_bytes_in_use" &&
          names.count(statistic.instance) != 0) {
        sum += statistic.value;
      }
    }
    return static_cast<double>(sum);
  }

  const Scale scale_;
  const std::vector<uint32_t> senders_;
  VirtualCluster cluster_;
  VirtualBarrier barrier_;
  CallRound round_;
  Outcome sum_;  // over the senders
  std::vector<Outcome> outcomes_;
};

void report_outcome(const Report& report, Params params, const Outcome& outcome) {
  params.set("calls", outcome.calls);
  const auto row = [&](const char* name, double value, const char* unit) {
    report.row(name, params, summarize({value}), unit);
  };
  row("calls_per_second", outcome.calls_per_second, "1/s");
  row("chunk_bytes", outcome.chunk_bytes, "B");
  row("sender_bytes", outcome.sender_bytes, "B");
  row("channels", outcome.channels, "1");
  row("connections", outcome.connections, "1");
  row("hops_per_call", outcome.hops_per_call, "1");
  row("messages_per_call", outcome.messages_per_call, "1");
}

int run() {
  const auto processes =
      must(parse_numbers("processes", absl::GetFlag(FLAGS_processes), 4, 100000));
  const auto calls = must(parse_numbers("calls", absl::GetFlag(FLAGS_calls), 1, 1 << 24));
  const int per_node = absl::GetFlag(FLAGS_processes_per_node);
  if (per_node < 0) fail(absl::InvalidArgumentError("--processes-per-node: at least 0"));
  if (absl::GetFlag(FLAGS_senders) < 1) fail(absl::InvalidArgumentError("--senders: at least 1"));
  const Report report(absl::GetFlag(FLAGS_json), {"processes", "routing", "calls"});
  for (const uint64_t count : processes) {
    for (const std::string& routing : absl::GetFlag(FLAGS_routing)) {
      Scale scale;
      scale.processes = static_cast<uint32_t>(count);
      scale.per_node = per_node != 0 ? std::min(static_cast<uint32_t>(per_node), scale.processes)
                                     : static_cast<uint32_t>(std::lround(std::sqrt(count)));
      scale.routing = must(routing_of(routing));
      scale.calls = calls;
      progress(absl::StrCat(count, " processes, ", routing));
      const auto start = std::chrono::steady_clock::now();
      const std::vector<Outcome> outcomes = Simulation(scale).run();
      const std::chrono::duration<double> real = std::chrono::steady_clock::now() - start;
      progress("");
      Params params;
      params.set("processes", count);
      params.set("routing", routing);
      params.set("processes_per_node", uint64_t{scale.per_node});
      params.set("senders", static_cast<uint64_t>(senders_of(scale).size()));
      params.set("channel_chunk", absl::GetFlag(FLAGS_channel_chunk));
      params.set("call_cost", absl::GetFlag(FLAGS_call_cost));
      params.set("message_cost", absl::GetFlag(FLAGS_message_cost));
      set_network_params(params);
      params.set("seed", absl::GetFlag(FLAGS_seed));
      for (const Outcome& outcome : outcomes) report_outcome(report, params, outcome);
      params.set("calls", "all");
      report.row("real_seconds", params, summarize({real.count()}), "s");
    }
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "simulates direct and routed calls between all processes of large jobs.\n"
      "  bench_routing_sim [options]";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "usage: bench_routing_sim [options], see --help\n");
    return 1;
  }
  return cariama::bench::run();
}
