// CARIAMA_TRACE=FILE with jobs of real processes: the jobs run this program again, with --role=NAME
// as its first argument.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dsfabric/fabric/job_trace.h"
#include "dsfabric/send_call.h"
#include "dtutils/trace.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/role.h"
#include "tests/dsfabric/testing/running_command.h"
#include "tests/dtutils/testing/json.h"
#include "tests/dtutils/testing/text_of.h"

namespace cariama {
namespace {

using testing::Json;
using testing::parse_json;
using testing::Running;
using testing::text_of;

constexpr int kProcesses = 3;
constexpr int kSent = 20;      // send-based calls of each process
constexpr int kSingle = 30;    // one-sided calls of each process that are not batched
constexpr int kBatched = 400;  // one-sided calls of each process that are
constexpr size_t kPadding = 100;

std::atomic<int> calls_run{0};

Arrival arrival_of(std::string_view role) {
  if (role == "polled") return Arrival::kPolled;
  if (role == "event") return Arrival::kEvent;
  return Arrival::kMapped;
}

// Each process calls the next one, in both forms. In the role "killed" the last one kills itself
// afterwards. In the role "full" no process can write its part of the trace. The chunks are small,
// so that calls are deferred, chunks end, and the sender waits.
int make_calls(std::string_view role) {
  if (trace_enabled() != (std::getenv("CARIAMA_TRACE") != nullptr)) return 90;
  auto made = Fabric::create();
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
    return 91;
  }
  Fabric& fabric = **made;
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  {
    auto self = fabric.init_thread(0);
    if (!self.ok()) return 92;
    const ThreadId next = fabric.thread_of((fabric.rank() + 1) % fabric.size());
    const auto count = [] { calls_run.fetch_add(1); };
    const std::array<char, kPadding> padding{};
    const auto count_padded = [padding] { calls_run.fetch_add(1 + padding[0]); };
    for (int i = 0; i < kSent; ++i) {
      Synchronizer run;
      if (!call<RemoteNotify>(fabric, next, count, run).ok() || !fabric.wait(run, deadline).ok()) {
        return 93;
      }
    }
    {
      MessengerOptions options;
      options.arrival = arrival_of(role);
      options.chunk_bytes = 4096;
      options.chunks_per_request = options.max_chunks = 2;
      RDMAMessenger messenger(**self, next, options);
      for (int i = 0; i < kSingle; ++i) {
        if (!messenger.call(count).ok()) return 94;
      }
      RDMAAggregator aggregator(messenger);
      for (int i = 0; i < kBatched; ++i) {
        if (!aggregator.call<RetryAsync>(count_padded).ok()) return 95;
        if (i % 50 == 49 && !aggregator.flush().ok()) return 96;
      }
      if (!messenger.shutdown(deadline).ok()) return 97;
    }
    if (!fabric.wait_polling([] { return calls_run == kSent + kSingle + kBatched; }, deadline)) {
      return 98;
    }
    Collectives collectives(fabric);
    if (!collectives.barrier(deadline).ok()) return 99;
    // All processes use one clock, so the result of a comparison is its error.
    const auto compared = internal::compare_trace_clock(fabric, 0, deadline);
    if (!compared.ok() || compared->error == 0 ||
        static_cast<uint64_t>(std::abs(compared->ahead)) > compared->error) {
      return 102;
    }
    if (!collectives.barrier(deadline).ok()) return 103;
    if (role == "full") {  // from now on this process can write no large file
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{4096, 4096};
      if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 101;
    }
    if (role == "killed" && fabric.rank() + 1 == fabric.size()) raise(SIGKILL);
  }
  return fabric.finalize(deadline).ok() ? 0 : 100;
}

std::string job(const std::string& environment, const std::string& options,
                const std::string& role) {
  return "env " + environment + " " + CARIAMA_PROGRAM_DIR + "/cariama-run " + options + " -n " +
         std::to_string(kProcesses) + " " + testing::in_role(role);
}

using Track = std::pair<double, double>;  // pid, tid

// An event with a duration; times in us.
struct Bar {
  double start;
  double end;
  std::string name;
  double value;  // of its argument
};

// The parts of a trace that the tests look at.
struct Trace {
  std::map<double, std::string> processes;  // pid → name
  std::map<double, double> errors;          // pid → error of its clock, us
  std::map<Track, std::vector<Bar>> bars;   // in the order of `start`
  std::map<std::pair<std::string, std::string>, std::vector<Json>> begins, ends;  // arrows
  std::map<std::string, int> counts;                                              // events by name

  // Returns the innermost bar around a point in time, or nullptr.
  [[nodiscard]] const Bar* around(const Json& point) const {
    const auto track = bars.find({point.at("pid").number(), point.at("tid").number()});
    if (track == bars.end()) return nullptr;
    const double at = point.at("ts").number();
    const Bar* found = nullptr;
    for (const Bar& bar : track->second) {
      if (bar.start <= at && at <= bar.end) found = &bar;
    }
    return found;
  }
};

Trace read_job_trace(const std::string& path) {
  const std::string text = text_of(path);
  const auto parsed = parse_json(text);
  EXPECT_TRUE(parsed.has_value()) << path << ": " << text.substr(0, 2000);
  Trace trace;
  if (!parsed.has_value()) return trace;
  EXPECT_EQ(parsed->at("otherData").at("dropped_events").number(), 0);
  for (const Json& event : parsed->at("traceEvents").array()) {
    const std::string& phase = event.at("ph").string();
    const std::string& name = event.at("name").string();
    const double pid = event.at("pid").number();
    ++trace.counts[name];
    if (phase == "M" && name == "process_name") {
      trace.processes[pid] = event.at("args").at("name").string();
    } else if (phase == "M" && name == "clock") {
      trace.errors[pid] = event.at("args").at("error_ns").number() / 1000;
    } else if (phase == "X") {
      const double start = event.at("ts").number();
      double value = 0;
      if (event.has("args")) value = event.at("args").object().begin()->second.number();
      trace.bars[{pid, event.at("tid").number()}].push_back(
          {start, start + event.at("dur").number(), name, value});
    } else if (phase == "s" || phase == "f") {
      auto& arrows = phase == "s" ? trace.begins : trace.ends;
      arrows[{event.at("cat").string(), event.at("id").number_text()}].push_back(event);
    }
  }
  for (auto& [track, bars] : trace.bars) {
    std::stable_sort(bars.begin(), bars.end(), [](const Bar& a, const Bar& b) {
      return std::tie(a.start, b.end) < std::tie(b.start, a.end);
    });
  }
  return trace;
}

// Each bar ends before the bar that was open when it began. Otherwise the viewer would not draw its
// end.
void expect_nested(const Trace& trace) {
  constexpr double kRounding = 0.002;  // us; the times are doubles
  for (const auto& [track, bars] : trace.bars) {
    std::vector<Bar> open;
    for (const Bar& bar : bars) {
      while (!open.empty() && open.back().end <= bar.start + kRounding) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(bar.end, open.back().end + kRounding) << bar.name << " in " << open.back().name;
      }
      open.push_back(bar);
    }
  }
}

// Each arrow begins in the bar of a sender, and ends, not earlier, in that of a receiver.
void expect_arrows(const Trace& trace, const std::string& category, const std::string& ends_in) {
  size_t joined = 0;
  for (const auto& [key, begins] : trace.begins) {
    if (key.first != category) continue;
    ASSERT_EQ(begins.size(), 1U) << "two arrows have one id";
    const Json& begin = begins[0];
    const Bar* const from = trace.around(begin);
    ASSERT_NE(from, nullptr);
    EXPECT_TRUE(from->name.rfind("send", 0) == 0 || from->name.rfind("publish", 0) == 0)
        << from->name;
    const auto found = trace.ends.find(key);
    ASSERT_NE(found, trace.ends.end()) << "a call that was run has no end of its arrow";
    ASSERT_EQ(found->second.size(), 1U);
    const Json& end = found->second[0];
    EXPECT_EQ(end.at("bp").string(), "e");
    const double error =
        trace.errors.at(begin.at("pid").number()) + trace.errors.at(end.at("pid").number());
    EXPECT_LE(begin.at("ts").number(), end.at("ts").number() + error);
    const Bar* const to = trace.around(end);
    ASSERT_NE(to, nullptr);
    EXPECT_EQ(to->name, ends_in);
    joined += begin.at("pid").number() != end.at("pid").number();
  }
  EXPECT_GE(joined, static_cast<size_t>(kProcesses * (category == "riutils" ? kSingle : kSent)));
  for (const auto& [key, ends] : trace.ends) {
    if (key.first == category) {
      EXPECT_EQ(trace.begins.count(key), 1U) << "an arrow has no beginning";
    }
  }
}

class JobTrace : public ::testing::TestWithParam<const char*> {
 protected:
  JobTrace() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    file_ = folder_ + "/trace.json";
  }
  ~JobTrace() override { std::filesystem::remove_all(folder_); }
  std::string folder_ = ::testing::TempDir() + "job_trace_XXXXXX";
  std::string file_;
};

TEST_P(JobTrace, ArrowsJoinCallsToTheirHandlers) {
  Running traced(job("CARIAMA_TRACE=" + file_, "", GetParam()));
  ASSERT_EQ(traced.wait(), 0) << traced.err();
  const Trace trace = read_job_trace(file_);
  for (int rank = 0; rank < kProcesses; ++rank) {
    const std::string name = "rank " + std::to_string(rank) + " ";
    int found = 0;
    for (const auto& [pid, process] : trace.processes) found += process.rfind(name, 0) == 0;
    EXPECT_EQ(found, 1) << name;
  }
  for (const auto& [pid, error] : trace.errors) EXPECT_EQ(error, 0) << "all are on one host";
  expect_nested(trace);
  expect_arrows(trace, "dsfabric", "call");
  expect_arrows(trace, "riutils", "run");
  double one_sided = 0;
  for (const auto& [track, bars] : trace.bars) {
    for (const Bar& bar : bars) one_sided += bar.name == "run" ? bar.value : 0;
  }
  EXPECT_EQ(one_sided, kProcesses * (kSingle + kBatched));
  for (const char* name :
       {"send", "receive", "wait", "barrier", "connect", "finalize", "publish: one call",
        "publish: flush()", "publish: chunk is full", "chunks granted", "grant chunks"}) {
    EXPECT_GT(trace.counts.count(name), 0U) << name;
  }
}
INSTANTIATE_TEST_SUITE_P(Arrivals, JobTrace, ::testing::Values("mapped", "polled", "event"),
                         [](const auto& arrival) { return std::string(arrival.param); });

using JobTraceFile = JobTrace;

// The others' part of the file is complete.
TEST_F(JobTraceFile, AProcessThatDiesLosesOnlyItsPart) {
  Running traced(job("CARIAMA_TRACE=" + file_, "--keep-going", "killed"));
  EXPECT_NE(traced.wait(), 0);
  const Trace trace = read_job_trace(file_);
  for (int rank = 0; rank < kProcesses; ++rank) {
    const std::string name = "rank " + std::to_string(rank) + " ";
    int found = 0;
    for (const auto& [pid, process] : trace.processes) found += process.rfind(name, 0) == 0;
    EXPECT_EQ(found, rank + 1 < kProcesses ? 1 : 0) << name;
  }
  expect_nested(trace);
}

TEST_F(JobTraceFile, AJobThatIsNotTracedWritesNothing) {
  Running untraced("sh -c 'cd " + folder_ + " && " + job("-u CARIAMA_TRACE", "", "mapped") + "'");
  EXPECT_EQ(untraced.wait(), 0) << untraced.err();
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

// The file is as it was before the writes that failed, and the job reports them once.
TEST_F(JobTraceFile, AFullDiskIsReportedOnce) {
  Running traced(job("CARIAMA_TRACE=" + file_, "", "full"));
  EXPECT_EQ(traced.wait(), 0) << traced.err();
  const std::string text = traced.err();
  const std::string report = "cannot write the trace file";
  EXPECT_NE(text.find(report), text.npos) << text;
  EXPECT_EQ(text.find(report), text.rfind(report)) << text;
  const Trace trace = read_job_trace(file_);
  for (const auto& [pid, process] : trace.processes) EXPECT_NE(process.rfind("rank ", 0), 0U);
}

}  // namespace

int play(std::string_view role) { return make_calls(role); }

}  // namespace cariama

int main(int argc, char** argv) {
  return cariama::testing::play_or_test(argc, argv, cariama::play);
}
