// Cost of sleeping, over shm: the share of a core that an idle process uses, and the time until a
// sleeping thread runs a call, from just before the call to the first line of the called function.
// Both processes use the clock of this host. For comparison, alternating with the calls and after
// the same pauses: the time of a bare futex on which a thread of one process sleeps and which a
// thread of the other process wakes.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "bench/support/flags.h"
#include "bench/support/job.h"
#include "bench/support/must.h"
#include "bench/support/report.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "dtutils/internal/futex.h"
#include "riutils/call.h"

ABSL_FLAG(double, seconds, 5, "duration of the measurement of the idle process");
ABSL_FLAG(uint64_t, samples, 500, "calls to a sleeping thread, for each mode");
ABSL_FLAG(uint64_t, pause, 5000,
          "microseconds between two calls, so that the receiver falls asleep");
ABSL_FLAG(bool, json, false, "print one JSON object per line");

namespace cariama::bench {
namespace {

constexpr std::chrono::minutes kPatience{2};

// CPU time of this process so far, and the number of voluntary context switches of its threads.
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

enum Mode : uint32_t { kFutex, kSend, kWrite, kModes };
constexpr std::array<const char*, kModes> kModeNames = {"futex", "send", "write"};

// State of the receiver.
std::array<std::vector<double>, kModes> latencies;  // in microseconds
std::atomic<bool> ended{false};

void note(Mode mode, int64_t sent) {
  latencies[mode].push_back(static_cast<double>(now_ns() - sent) * 1e-3);
}

// A bare futex in shared memory: one process sleeps on it, the other wakes it.
struct BareFutex {
  std::atomic<uint32_t> word{0};
  std::atomic<uint32_t> woken{0};  // value of `word` when the sleeper last woke
  std::atomic<int64_t> sent{0};
  std::atomic<bool> ended{false};

  void sleep_until_ended() {
    for (uint32_t seen = 0;;) {
      while (word.load(std::memory_order_acquire) == seen) {
        internal::futex_wait(&word, seen, kForever);
      }
      ++seen;
      if (ended.load(std::memory_order_acquire)) return;
      note(kFutex, sent.load(std::memory_order_acquire));
      woken.store(seen, std::memory_order_release);
    }
  }
  void wake() {
    sent.store(now_ns(), std::memory_order_release);
    word.fetch_add(1, std::memory_order_release);
    internal::futex_wake(&word);
  }
  // Blocks until the sleeper has woken; sleeps meanwhile, as a caller that waits for its call does.
  void await_woken() const {
    while (woken.load(std::memory_order_acquire) != word.load(std::memory_order_relaxed)) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  void end() {
    ended.store(true, std::memory_order_release);
    word.fetch_add(1, std::memory_order_release);
    internal::futex_wake(&word);
  }
};
BareFutex* bare = nullptr;

// Prints all results. Called by the receiver at the end.
void report_latencies(const Report& report) {
  std::array<std::array<double, 2>, kModes> quantiles{};
  for (uint32_t mode = 0; mode < kModes; ++mode) {
    std::vector<double>& values = latencies[mode];
    Params params;
    params.set("mode", kModeNames[mode]);
    params.set("samples", static_cast<uint64_t>(values.size()));
    params.set("pause_us", absl::GetFlag(FLAGS_pause));
    params.set("transport", "shm");
    const auto row = [&](const char* name, double value, const char* unit) {
      report.row(name, params, summarize({value}), unit);
    };
    quantiles[mode] = {percentile(values, 0.5), percentile(values, 0.99)};
    row("wake_p50", quantiles[mode][0], "us");
    row("wake_p99", quantiles[mode][1], "us");
    row("wake_max", percentile(values, 1), "us");
    if (mode == kFutex) continue;
    row("wake_p50_to_futex", quantiles[mode][0] / quantiles[kFutex][0], "");
    row("wake_p99_to_futex", quantiles[mode][1] / quantiles[kFutex][1], "");
  }
}

// Rank 0: sends the samples. The receiver sleeps in Fabric::wait() and in sleep_until_ended().
void call_sleeper(Fabric& fabric, ThreadContext& thread) {
  const uint64_t samples = absl::GetFlag(FLAGS_samples);
  const std::chrono::microseconds pause(absl::GetFlag(FLAGS_pause));
  RDMAMessenger messenger(thread, 1);
  for (uint64_t i = 0; i <= samples; ++i) {
    if (i % 64 == 0) progress(std::to_string(i) + " of " + std::to_string(samples));
    const bool first = i == 0;  // not measured: connects and obtains chunks
    for (const Mode mode : {kFutex, kSend, kWrite}) {
      // The pause is outside the fabric, so that this process receives nothing meanwhile. The
      // answer of the previous call has already arrived.
      std::this_thread::sleep_for(pause);
      if (mode == kFutex) {
        bare->wake();
        bare->await_woken();
        continue;
      }
      const int64_t sent = now_ns();
      const auto function = [sent, first, mode] {
        if (!first) note(mode, sent);
      };
      Synchronizer run;
      if (mode == kWrite) {
        must(messenger.call<RemoteNotify>(function, run).status());
      } else {
        must(call<RemoteNotify>(fabric, 1, function, run));
      }
      if (!fabric.wait([&] { return run.done(); }, deadline_after(kPatience))) {
        must(absl::DeadlineExceededError("a call was not run in time"));
      }
    }
  }
  bare->end();
  must(messenger.shutdown(deadline_after(kPatience)));
}

// Measures the CPU time of an idle process that is connected to its idle peer.
void watch_idle(Fabric& fabric) {
  const std::chrono::duration<double> span(absl::GetFlag(FLAGS_seconds));
  const auto wait_for = [&](std::chrono::duration<double> time) {
    static_cast<void>(
        fabric.wait([] { return false; },
                    deadline_after(std::chrono::duration_cast<std::chrono::nanoseconds>(time))));
  };
  std::thread watch([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the process falls asleep
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
  auto fabric = must(Fabric::create({.on_failure = FailurePolicy::kAbort}));
  {
    const auto thread = must(fabric->init_thread(0));
    static std::atomic<bool> met;
    must(call(*fabric, fabric->thread_of(1 - fabric->rank()), [] { met = true; }));
    if (!fabric->wait([] { return met.load(); }, deadline_after(kPatience))) {
      must(absl::DeadlineExceededError("the other process did not connect in time"));
    }
    watch_idle(*fabric);
    if (fabric->rank() == 0) {
      call_sleeper(*fabric, *thread);
      must(call(*fabric, 1, [] { ended = true; }));
    } else {
      std::thread floor([] { bare->sleep_until_ended(); });
      static_cast<void>(fabric->wait([] { return ended.load(); }, kForever));
      floor.join();
      progress("");
      report_latencies(Report(absl::GetFlag(FLAGS_json), {"mode"}));
      std::fflush(stdout);
    }
    must(fabric->finalize(deadline_after(kPatience)));
  }
  return 0;
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "measures the CPU time of an idle process, and the wake-up time of a sleeping thread, over "
      "shm\n"
      "  bench_wake --seconds 5 --samples 500";
  if (cariama::bench::parse_flags(argc, argv, kUsage).size() != 1) {
    std::fprintf(stderr, "bench_wake: it takes options only: see --help\n");
    return 1;
  }
  if (absl::GetFlag(FLAGS_samples) < 1) {
    std::fprintf(stderr, "bench_wake: --samples is 1 or more\n");
    return 1;
  }
  void* const shared = mmap(nullptr, sizeof(cariama::bench::BareFutex), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    std::perror("bench_wake: mmap");
    return 1;
  }
  cariama::bench::bare = new (shared) cariama::bench::BareFutex;
  const absl::Status status = cariama::bench::run_job(
      2, [](cariama::Exchange&) { return cariama::bench::run_process(); }, {"caller", "sleeper"});
  if (!status.ok()) {
    std::fprintf(stderr, "bench_wake: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
