#include "bench/support/steal_bench.h"

#include <alloca.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "bench/support/job.h"
#include "dtutils/exchange_connect.h"
#include "dtutils/wait.h"
#include "tasks/internal/steal_sample.h"
#include "tasks/suspend.h"
#include "tasks/task.h"

namespace cariama::bench {
namespace {

using std::chrono::steady_clock;
using tasks::steal_clock;
using tasks::StealSample;
using tasks::StealSampling;

[[noreturn]] void fail(const std::string& why) { give_up("bench_tasks", absl::InternalError(why)); }

// The times (steal_clock()) at which tasks stolen by this worker continued, in the order of the
// steals.
struct Arrivals {
  size_t count = 0;
  uint64_t at[4096];
};
Arrivals arrivals;
// Not inlined, so that `arrivals` is that of the worker that the task now runs in.
[[gnu::noinline]] void note_arrival() {
  if (arrivals.count < std::size(arrivals.at)) arrivals.at[arrivals.count++] = steal_clock();
}

// Returns the number of times that this task was stolen.
[[gnu::noinline]] int ping_pong(int steals, size_t pad_bytes) {
  auto* const pad = static_cast<volatile char*>(alloca(pad_bytes));  // a larger frame
  pad[0] = 1;
  pad[pad_bytes - 1] = 1;
  int stolen = 0;
  uint64_t previous = 0;
  while (stolen < steals) {
    const uint64_t record = spawn([] {
                              while (!parent_is_stolen()) poll();
                            }).release_record();
    note_arrival();
    if (record == 0) fail("a child ended although its parent was not stolen");
    ++stolen;
    // The previous child has ended: its worker stole this task only when it had no other work.
    if (previous != 0) tasks::join_record(previous, nullptr, 0);
    previous = record;
  }
  if (previous != 0) tasks::join_record(previous, nullptr, 0);
  return pad[0] == 1 ? stolen : -1;
}

constexpr int kSuspensions = 5000;
struct Suspensions {
  size_t count = 0;
  double ticks[kSuspensions];
};
Suspensions suspensions;

// The paper's "suspend": from the call until the frames are copied out and the worker is free.
[[gnu::noinline]] int suspend_often(size_t pad_bytes) {
  auto* const pad = static_cast<volatile char*>(alloca(pad_bytes));  // a larger frame
  pad[0] = 1;
  pad[pad_bytes - 1] = 1;
  for (int i = 0; i < kSuspensions; ++i) {
    suspend([begin = steal_clock()](const SuspendedTask& me) {
      const uint64_t end = steal_clock();
      suspensions.ticks[suspensions.count++] = static_cast<double>(end - begin);
      resume(me);
    });
  }
  return pad[0];
}

[[gnu::noinline]] int yield_often(size_t pad_bytes) {
  auto* const pad = static_cast<volatile char*>(alloca(pad_bytes));  // a larger frame
  pad[0] = 1;
  pad[pad_bytes - 1] = 1;
  for (int i = 0; i < kSuspensions; ++i) yield();
  return pad[0];
}

constexpr int kChain = 200;

// A chain of tasks. Each begins in the worker from which its parent was just stolen, and is then
// stolen itself, so that each steal is of a different task.
[[gnu::noinline]] int steal_each(int left, size_t pad_bytes) {
  auto* const pad = static_cast<volatile char*>(alloca(pad_bytes));  // a larger frame
  for (size_t i = 0; i < pad_bytes; i += 512) pad[i] = 1;
  if (left == 0) return 0;
  const int below = join(spawn([left, pad_bytes] {
    while (!parent_is_stolen()) poll();
    return steal_each(left - 1, pad_bytes);
  }));
  return pad[0] + below;
}

struct Sample : StealSample {
  uint64_t resume = 0;  // ticks until the task ran, if note_arrival() recorded that, else 0
};
struct Gathered {
  uint64_t count = 0;
  double ns_per_tick = 1;
  Sample samples[4096];
};

// Executes `runs` runs of stolen() and returns the samples of the last one. stolen() returns the
// number of steals, which must be `steals`.
template <typename F>
Gathered steal_run(TaskWorkers& workers, const TaskOptions& options, const StealSampling& sampling,
                   int steals, int runs, F stolen) {
  const std::string bytes =
      workers.run(2, options, [&](TaskRuntime& runtime, Exchange& exchange) -> std::string {
        tasks::sample_steals(sampling);
        auto begin = steady_clock::now();
        uint64_t tick = steal_clock();
        for (int i = 0; i < runs; ++i) {
          static_cast<void>(tasks::take_steal_samples());
          arrivals.count = 0;
          begin = steady_clock::now();
          tick = steal_clock();
          const auto result = runtime.run(stolen);
          if (!result.ok() || *result != steals) {
            fail("the task was not stolen as often as expected");
          }
        }
        Gathered mine;
        mine.ns_per_tick = static_cast<double>((steady_clock::now() - begin).count()) /
                           static_cast<double>(steal_clock() - tick);
        for (const StealSample& sample : tasks::take_steal_samples()) {
          if (mine.count == std::size(mine.samples)) break;
          const uint64_t at = mine.count < arrivals.count ? arrivals.at[mine.count] : sample.at;
          mine.samples[mine.count++] = {sample, at - sample.at};
        }
        // After the fence the values of both workers are those of this run.
        if (!put_value(exchange, "samples", mine).ok() ||
            !exchange.fence(deadline_after(std::chrono::minutes(10))).ok()) {
          fail("a worker has ended");
        }
        if (exchange.rank() != 0) return "";
        const auto theirs =
            get_value<Gathered>(exchange, 1, "samples", deadline_after(std::chrono::minutes(10)));
        if (!theirs.ok()) fail(theirs.status().ToString());
        for (uint64_t i = 0; i < theirs->count && mine.count < std::size(mine.samples); ++i) {
          mine.samples[mine.count++] = theirs->samples[i];
        }
        return {reinterpret_cast<const char*>(&mine), sizeof mine};
      });
  Gathered all;
  if (!workers.reports()) return all;
  if (bytes.size() != sizeof all) fail("no result");
  std::memcpy(static_cast<void*>(&all), bytes.data(), sizeof all);
  return all;
}

Gathered ping_pong_run(TaskWorkers& workers, const TaskOptions& options, int steals, size_t pad) {
  return steal_run(workers, options, {.steals = 2048}, steals, 1,
                   [steals, pad] { return ping_pong(steals, pad); });
}

// Measurements with one worker, whose frames are in its caches.
struct Alone {
  double suspend_ticks = 0;
  double yield_ns = 0;   // copies the frames out and in again, and nothing else
  double memcpy_ns = 0;  // memcpy of as many bytes: lower bound of one direction
};
Alone alone_run(TaskWorkers& workers, const TaskOptions& options, size_t pad, size_t frame) {
  const std::string bytes =
      workers.run(1, options, [&](TaskRuntime& runtime, Exchange&) -> std::string {
        Alone alone{0, 1e30, 1e30};
        const auto least = [](double& best, auto work) {
          for (int i = 0; i < 5; ++i) {
            const auto begin = steady_clock::now();
            work();
            const auto span = static_cast<double>((steady_clock::now() - begin).count());
            best = std::min(best, span / kSuspensions);
          }
        };
        least(alone.yield_ns,
              [&] { static_cast<void>(runtime.run([pad] { return yield_often(pad); })); });
        // The counter advances in large steps, so use means. Drop the longest tenth (interrupted
        // samples), and subtract the cost of reading the counter.
        const auto mean = [](std::vector<double> ticks) {
          std::sort(ticks.begin(), ticks.end());
          ticks.resize(ticks.size() * 9 / 10);
          return std::accumulate(ticks.begin(), ticks.end(), 0.0) /
                 static_cast<double>(ticks.size());
        };
        std::vector<double> nothing;
        for (int i = 0; i < kSuspensions; ++i) {
          const uint64_t begin = steal_clock();
          nothing.push_back(static_cast<double>(steal_clock() - begin));
        }
        std::vector<double> means;
        for (int i = 0; i < 9; ++i) {
          suspensions.count = 0;
          static_cast<void>(runtime.run([pad] { return suspend_often(pad); }));
          means.push_back(mean({suspensions.ticks, suspensions.ticks + suspensions.count}));
        }
        alone.suspend_ticks = summarize(means).median - mean(nothing);
        const std::vector<char> from(frame);
        std::vector<char> to(frame);
        least(alone.memcpy_ns, [&] {
          for (int i = 0; i < kSuspensions; ++i) {
            std::memcpy(to.data(), from.data(), frame);
            asm volatile("" ::: "memory");
          }
        });
        return {reinterpret_cast<const char*>(&alone), sizeof alone};
      });
  Alone alone;
  if (bytes.size() == sizeof alone) std::memcpy(&alone, bytes.data(), sizeof alone);
  return alone;
}

}  // namespace

void measure_page_faults(TaskWorkers& workers, const TaskOptions& options, size_t frame,
                         const Report& report, const Params& params) {
  Params row = params;
  row.set("frame", static_cast<uint64_t>(frame));
  const auto measure = [&](const char* name, int runs) {
    const Gathered all = steal_run(workers, options, {.steals = 2 * kChain, .faults = true}, kChain,
                                   runs, [frame] { return steal_each(kChain, frame); });
    double faults = 0;
    for (uint64_t i = 0; i < all.count; ++i) faults += all.samples[i].faults;
    if (!workers.reports()) return;
    report.row(name, row, summarize({faults / static_cast<double>(all.count)}), "count");
  };
  measure("steal_page_faults_first", 1);
  measure("steal_page_faults_again", 3);
}

void measure_reserved(TaskWorkers& workers, const TaskOptions& options, const Report& report,
                      const Params& params) {
  for (int size = 1; size <= 8; size *= 2) {
    if (workers.is_job() && size != 1 && size != workers.size()) continue;
    const std::string bytes =
        workers.run(size, options, [](TaskRuntime& runtime, Exchange&) -> std::string {
          const uint64_t reserved = runtime.statistics().stack_reserved;
          return {reinterpret_cast<const char*>(&reserved), sizeof reserved};
        });
    uint64_t reserved = 0;
    if (!workers.reports() || bytes.size() != sizeof reserved) continue;
    std::memcpy(&reserved, bytes.data(), sizeof reserved);
    Params row = params;
    row.set("workers", static_cast<uint64_t>(size));
    report.row("stack_reserved", row, summarize({static_cast<double>(reserved)}), "bytes");
  }
}

void measure_steals(TaskWorkers& workers, const TaskOptions& options,
                    const std::vector<size_t>& frames, int steals, const Report& report,
                    const Params& params) {
  constexpr size_t kLeastPad = 64;
  // Determine the bytes of the stolen frames besides the pad.
  const Gathered first = ping_pong_run(workers, options, 8, kLeastPad);
  size_t besides = first.count == 0 ? 0 : first.samples[first.count - 1].bytes - kLeastPad;
  if (!workers.reports()) besides = 0;
  for (const size_t frame : frames) {
    // `pad` may differ between processes: only the task of rank 0 uses it.
    const size_t pad = frame > besides + kLeastPad ? frame - besides : kLeastPad;
    const Gathered all = ping_pong_run(workers, options, steals + 1, pad);
    const Alone alone = alone_run(workers, options, pad, frame);
    if (!workers.reports()) continue;
    Params row = params;
    row.set("frame", static_cast<uint64_t>(frame));
    const auto rows = [&](const char* name, auto ticks_of) {
      std::vector<double> ticks;
      std::vector<double> ns;
      for (uint64_t i = 1; i < all.count; ++i) {  // drop the first sample
        ticks.push_back(static_cast<double>(ticks_of(all.samples[i])));
        ns.push_back(ticks.back() * all.ns_per_tick);
      }
      report.row(name, row, summarize(ticks), "cycles");
      report.row(std::string(name) + "_ns", row, summarize(ns), "ns");
      return summarize(ns);
    };
    rows("steal_look", [](const StealSample& s) { return s.look; });
    rows("steal_claim", [](const StealSample& s) { return s.claim; });
    rows("steal_copy", [](const StealSample& s) { return s.copy; });
    rows("steal_finish", [](const StealSample& s) { return s.finish; });
    const Summary resume = rows("steal_resume", [](const Sample& s) { return s.resume; });
    const Summary total = rows("steal_total", [](const Sample& s) {
      return uint64_t{s.look} + s.claim + s.copy + s.finish + s.resume;
    });
    std::vector<double> trips;
    std::vector<double> bytes;
    for (uint64_t i = 1; i < all.count; ++i) {
      trips.push_back(all.samples[i].trips);
      bytes.push_back(all.samples[i].bytes);
    }
    report.row("steal_round_trips", row, summarize(trips), "count");
    report.row("steal_bytes", row, summarize(bytes), "bytes");
    // The paper's steal time includes that the thief first suspends its own task.
    const double suspend = alone.suspend_ticks * all.ns_per_tick;
    report.row("suspend", row, summarize({alone.suspend_ticks}), "cycles");
    report.row("suspend_ns", row, summarize({suspend}), "ns");
    report.row("suspend_and_resume_over_steal", row,
               summarize({(suspend + resume.median) / (suspend + total.median)}), "ratio");
    report.row("yield_ns", row, summarize({alone.yield_ns}), "ns");
    report.row("memcpy_ns", row, summarize({alone.memcpy_ns}), "ns");
  }
}

// ---- A sleeping thief ---------------------------------------------------------------------------

namespace {

struct Wakes {
  uint64_t count = 0;
  uint64_t wakeable_sleeps = 0;
  int64_t ns[2048];
  uint64_t bare_count = 0;
  double bare_us[2048];
};
Wakes wakes;  // samples of this worker

// Not inlined, so that `wakes` is that of the worker that the task now runs in. `ns` may be the
// difference of times of two processes: now_ns() is the same clock in all processes of the host.
[[gnu::noinline]] void note_wake(int64_t ns) {
  if (wakes.count < std::size(wakes.ns)) wakes.ns[wakes.count++] = ns;
}

// For comparison, after the same pauses: the wake-up time of a thread that sleeps on a bare futex
// on another core.
std::vector<double> bare_wakes(int samples, int64_t pause_ns) {
  Doorbell doorbell;
  std::atomic<int64_t> sent{0};
  std::vector<double> us;
  std::thread sleeper([&] {
    pin(1, 2, 0, 1);
    for (int64_t last = 0; static_cast<int>(us.size()) < samples; last = sent.load()) {
      const uint32_t expected = doorbell.arm();
      if (sent.load() == last) doorbell.wait(expected, deadline_after(std::chrono::seconds(10)));
      us.push_back(static_cast<double>(now_ns() - sent.load()) * 1e-3);
    }
  });
  for (int i = 0; i < samples; ++i) {
    for (const int64_t until = now_ns() + pause_ns; now_ns() < until;) {
    }
    sent.store(now_ns());
    doorbell.ring();
  }
  sleeper.join();
  return us;
}

[[gnu::noinline]] int wake_and_be_stolen(int samples, int64_t pause_ns) {
  uint64_t previous = 0;
  for (int i = 0; i < samples; ++i) {
    // Fork nothing until the other worker sleeps.
    for (const int64_t until = now_ns() + pause_ns; now_ns() < until;) {
    }
    const int64_t begin = now_ns();
    const uint64_t record = spawn([] {
                              while (!parent_is_stolen()) poll();
                            }).release_record();
    note_wake(now_ns() - begin);
    if (record == 0) fail("a child ended although its parent was not stolen");
    if (previous != 0) tasks::join_record(previous, nullptr, 0);
    previous = record;
  }
  if (previous != 0) tasks::join_record(previous, nullptr, 0);
  return samples;
}

}  // namespace

void measure_wakes(TaskWorkers& workers, const TaskOptions& options, int samples,
                   std::chrono::milliseconds pause, const Report& report, const Params& params) {
  const int64_t pause_ns = std::chrono::nanoseconds(pause).count();
  const std::string bytes =
      workers.run(2, options, [&](TaskRuntime& runtime, Exchange& exchange) -> std::string {
        const auto woken =
            runtime.run([samples, pause_ns] { return wake_and_be_stolen(samples, pause_ns); });
        if (!woken.ok() || *woken != samples) fail("the task was not stolen as often as it should");
        wakes.wakeable_sleeps = runtime.statistics().wakeable_sleeps;
        if (!put_value(exchange, "wakes", wakes).ok() ||
            !exchange.fence(deadline_after(std::chrono::minutes(10))).ok()) {
          fail("a worker has ended");
        }
        if (exchange.rank() != 0) return "";
        const auto theirs =
            get_value<Wakes>(exchange, 1, "wakes", deadline_after(std::chrono::minutes(10)));
        if (!theirs.ok()) fail(theirs.status().ToString());
        wakes.wakeable_sleeps += theirs->wakeable_sleeps;
        for (uint64_t i = 0; i < theirs->count; ++i) note_wake(theirs->ns[i]);
        for (const double us : bare_wakes(samples, pause_ns)) {
          if (wakes.bare_count < std::size(wakes.bare_us)) wakes.bare_us[wakes.bare_count++] = us;
        }
        return {reinterpret_cast<const char*>(&wakes), sizeof wakes};
      });
  if (!workers.reports()) return;
  Wakes all;
  if (bytes.size() != sizeof all) fail("no result");
  std::memcpy(static_cast<void*>(&all), bytes.data(), sizeof all);
  std::vector<double> us;
  for (uint64_t i = 1; i < all.count; ++i) us.push_back(static_cast<double>(all.ns[i]) * 1e-3);
  if (us.empty()) fail("no result");
  std::vector<double> bare(all.bare_us, all.bare_us + all.bare_count);
  report.row("wake", params, summarize(us), "us");
  report.row("wake_p99", params, summarize({percentile(us, 0.99)}), "us");
  report.row("wake_bare_futex", params, summarize(bare), "us");
  report.row("wake_bare_futex_p99", params, summarize({percentile(bare, 0.99)}), "us");
  report.row("wake_p99_over_bare_futex", params,
             summarize({percentile(us, 0.99) / percentile(bare, 0.99)}), "ratio");
  report.row("wake_sleeps", params, summarize({static_cast<double>(all.wakeable_sleeps)}), "count");
}

// ---- A stopped victim ---------------------------------------------------------------------------

namespace {

constexpr auto kBusy = std::chrono::milliseconds(700);
constexpr int kStoppedSeconds = 3;

// Stops this process for some seconds. A helper process sends SIGCONT. The helper is not created by
// fork(), since it would share the task stack with this process.
void stop_this_process() {
  std::string command =
      "sleep " + std::to_string(kStoppedSeconds) + "; kill -CONT " + std::to_string(getpid());
  std::string shell = "sh";
  std::string option = "-c";
  char* const argv[] = {shell.data(), option.data(), command.data(), nullptr};
  pid_t helper = 0;
  if (posix_spawn(&helper, "/bin/sh", nullptr, nullptr, argv, environ) != 0) fail("posix_spawn");
  raise(SIGSTOP);
  waitpid(helper, nullptr, 0);
}

enum Seen : int { kStolenBefore, kStolenWhileStopped, kNotStolen };

template <bool kTied, typename F>
auto fork_as(F f) {
  if constexpr (kTied) {
    return spawn_tied(f);
  } else {
    return spawn(f);
  }
}

// Begins on rank 0. Rank 1 first steals the continuation, so that rank 1 is stopped and not rank 0,
// which hosts the job's store.
template <bool kTied>
Seen stop_a_victim() {
  task<void> busy = spawn([] {
    // Keeps rank 0 from stealing until rank 1 has stopped.
    const auto until = steady_clock::now() + kBusy;
    while (!parent_is_stolen()) poll();
    while (steady_clock::now() < until) {
    }
  });
  // On rank 1. Forks two levels; one of them becomes public without a steal request.
  task<int> child = fork_as<kTied>([] {
    task<int> inner = fork_as<kTied>([]() -> int {
      poll();
      if (parent_is_stolen()) return kStolenBefore;
      const uint64_t before = tasks_stolen_from_here();
      stop_this_process();
      return tasks_stolen_from_here() != before ? kStolenWhileStopped : kNotStolen;
    });
    return join(std::move(inner));
  });
  const int seen = join(std::move(child));
  join(std::move(busy));
  return static_cast<Seen>(seen);
}

}  // namespace

bool steals_from_stopped(TaskWorkers& workers, const TaskOptions& options, bool tied) {
  const std::string seen =
      workers.run(2, options, [tied](TaskRuntime& runtime, Exchange&) -> std::string {
        for (int attempt = 0; attempt < 5; ++attempt) {
          const auto result = runtime.run([tied] {
            return static_cast<int>(tied ? stop_a_victim<true>() : stop_a_victim<false>());
          });
          if (!result.ok()) fail(result.status().ToString());
          if (*result != kStolenBefore) return *result == kStolenWhileStopped ? "yes" : "no";
        }
        fail("the task was always stolen before its process could be stopped");
      });
  return seen == "yes";
}

}  // namespace cariama::bench
