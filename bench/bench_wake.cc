// What sleep costs: the share of a core that an idle process takes, and how soon a sleeping thread
// runs a call, over shm: from just before the call to the first line of what is called. Both
// processes live on the clock of this host.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "bench/support/job.h"
#include "bench/support/report.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "riutils/call.h"

ABSL_FLAG(double, seconds, 5, "how long the idle process is watched");
ABSL_FLAG(uint64_t, samples, 500, "calls to a sleeping thread, for each mode");
ABSL_FLAG(uint64_t, pause, 5000, "microseconds between two calls, for the receiver to fall asleep");
ABSL_FLAG(bool, json, false, "one JSON object a line");

namespace cariama::bench {
namespace {

constexpr const char* kProgram = "bench_wake";
constexpr std::chrono::minutes kPatience{2};

template <typename T>
T must(absl::StatusOr<T> value) {
  if (!value.ok()) give_up(kProgram, value.status());
  return *std::move(value);
}
void must(const absl::Status& status) {
  if (!status.ok()) give_up(kProgram, status);
}

// CPU time of this process so far, and how often its threads went to sleep.
struct Used {
  double seconds = 0;
  double sleeps = 0;
};
Used used() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return {seconds(usage.ru_utime) + seconds(usage.ru_stime), static_cast<double>(usage.ru_nvcsw)};
}

// Of the receiver, in calls.
std::vector<double> latencies;  // in microseconds
std::atomic<bool> over{false};

void note(int64_t sent) { latencies.push_back(static_cast<double>(now_ns() - sent) * 1e-3); }

void report_latencies(const Report& report, const char* mode) {
  Params params;
  params.set("mode", mode);
  params.set("samples", static_cast<uint64_t>(latencies.size()));
  params.set("pause_us", absl::GetFlag(FLAGS_pause));
  params.set("transport", "shm");
  std::vector<double> values = latencies;
  latencies.clear();
  const auto row = [&](const char* name, double fraction) {
    report.row(name, params, summarize({percentile(values, fraction)}), "us");
  };
  row("wake_p50", 0.5);
  row("wake_p99", 0.99);
  row("wake_max", 1);
}

// The receiver has run `count` calls, and goes on waiting.
void call_sleeper(Fabric& fabric, ThreadContext& thread) {
  const uint64_t samples = absl::GetFlag(FLAGS_samples);
  const std::chrono::microseconds pause(absl::GetFlag(FLAGS_pause));
  RDMAMessenger messenger(thread, 1);
  for (const bool one_sided : {false, true}) {
    for (uint64_t i = 0; i <= samples; ++i) {
      if (i % 64 == 0) progress((one_sided ? "write " : "send ") + std::to_string(i));
      // Outside of the fabric, so that nothing is received meanwhile: the answer of the last call
      // has come.
      std::this_thread::sleep_for(pause);
      const int64_t sent = now_ns();
      const bool first = i == 0;  // connects, obtains chunks
      const auto function = [sent, first] {
        if (!first) note(sent);
      };
      Synchronizer run;
      if (one_sided) {
        must(messenger.call<RemoteNotify>(function, run).status());
      } else {
        must(call<RemoteNotify>(fabric, 1, function, run));
      }
      if (!fabric.wait([&] { return run.done(); }, deadline_after(kPatience))) {
        must(absl::DeadlineExceededError("a call was not run in time"));
      }
    }
    const bool json = absl::GetFlag(FLAGS_json);
    must(async_call(fabric, 1, [json, one_sided] {
           progress("");
           report_latencies(Report(json, {"mode"}), one_sided ? "write" : "send");
           std::fflush(stdout);
         }).get(deadline_after(kPatience)));
  }
  must(messenger.shutdown(deadline_after(kPatience)));
}

// Both processes are connected and idle; each is watched by itself.
void watch_idle(Fabric& fabric) {
  const std::chrono::duration<double> span(absl::GetFlag(FLAGS_seconds));
  const auto wait_for = [&](std::chrono::duration<double> time) {
    static_cast<void>(
        fabric.wait([] { return false; },
                    deadline_after(std::chrono::duration_cast<std::chrono::nanoseconds>(time))));
  };
  std::thread watch([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // it falls asleep first
    const Used before = used();
    const int64_t start = now_ns();
    std::this_thread::sleep_for(span);
    const Used after = used();
    const double seconds = static_cast<double>(now_ns() - start) * 1e-9;
    if (fabric.rank() != 1) return;
    const Report report(absl::GetFlag(FLAGS_json), {});
    Params params;
    params.set("seconds", seconds);
    params.set("heartbeat_ms", static_cast<uint64_t>(fabric.options().heartbeat.count()));
    params.set("transport", "shm");
    report.row("idle_sleeps_per_second", params,
               summarize({(after.sleeps - before.sleeps) / seconds}), "1/s");
    report.row("idle_core_share", params,
               summarize({100 * (after.seconds - before.seconds) / seconds}), "%");
    std::fflush(stdout);
  });
  wait_for(span + std::chrono::seconds(1));
  watch.join();
}

int run_process() {
  auto fabric = must(Fabric::create());
  {
    const auto thread = must(fabric->init_thread(0));
    static std::atomic<bool> met;
    must(call(*fabric, 1 - fabric->rank(), [] { met = true; }));
    if (!fabric->wait([] { return met.load(); }, deadline_after(kPatience))) {
      must(absl::DeadlineExceededError("the other process did not come"));
    }
    watch_idle(*fabric);
    if (fabric->rank() == 0) {
      call_sleeper(*fabric, *thread);
      must(call(*fabric, 1, [] { over = true; }));
    } else {
      static_cast<void>(fabric->wait([] { return over.load(); }));
    }
    must(fabric->finalize(deadline_after(kPatience)));
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "what an idle process takes of a core, and how soon a sleeping thread runs a call, over shm\n"
      "  bench_wake --seconds 5 --samples 500");
  if (absl::ParseCommandLine(argc, argv).size() != 1) {
    std::fprintf(stderr, "bench_wake: it takes options only: see --help\n");
    return 1;
  }
  const absl::Status status = cariama::bench::run_job(
      2, [](cariama::Exchange&) { return cariama::bench::run_process(); }, {"caller", "sleeper"});
  if (!status.ok()) {
    std::fprintf(stderr, "bench_wake: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
