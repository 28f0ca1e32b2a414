#include "dtutils/trace.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "dtutils/internal/trace_clock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/testing/json.h"
#include "tests/dtutils/testing/text_of.h"

namespace cariama {
namespace {

using testing::Json;
using testing::parse_json;
using testing::text_of;

class TraceTest : public ::testing::Test {
 protected:
  TraceTest() {
    std::string pattern = ::testing::TempDir() + "trace_testXXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~TraceTest() override {
    EXPECT_TRUE(stop_trace().ok());
    // The trace must leave no unfinished file: rmdir fails if any file exists that no test named.
    for (const std::string& name : names_) unlink(path(name).c_str());
    EXPECT_EQ(rmdir(folder_.c_str()), 0) << folder_;
  }
  std::string path(const std::string& name) { return folder_ + "/" + name; }
  std::string make(const std::string& name) {
    names_.push_back(name);
    return path(name);
  }

 private:
  std::string folder_;
  std::vector<std::string> names_;
};

// Reads and parses the file. Fails the test if it is not JSON.
Json read_trace(const std::string& path) {
  const std::string text = text_of(path);
  const auto parsed = parse_json(text);
  EXPECT_TRUE(parsed.has_value()) << path << ": " << text.substr(0, 2000);
  return parsed.value_or(Json{Json::Object{{"traceEvents", Json{Json::Array{}}}}});
}

std::vector<Json> events_named(const Json& trace, const std::string& name) {
  std::vector<Json> found;
  for (const Json& event : trace.at("traceEvents").array()) {
    if (event.at("name").string() == name) found.push_back(event);
  }
  return found;
}

TEST_F(TraceTest, NothingIsRecordedWhenOff) {
  EXPECT_FALSE(trace_enabled());
  trace_instant("test", "before");
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  EXPECT_TRUE(trace_enabled());
  ASSERT_TRUE(stop_trace().ok());
  EXPECT_FALSE(trace_enabled());
  trace_instant("test", "after");
  const Json trace = read_trace(path("a.json"));
  EXPECT_TRUE(events_named(trace, "before").empty());
  EXPECT_TRUE(events_named(trace, "after").empty());
}

// In a folder of all users, another user can put a link in the place of the file.
TEST_F(TraceTest, ALinkInTheWayIsNotFollowed) {
  std::ofstream(make("victim")) << "precious";
  ASSERT_EQ(symlink(path("victim").c_str(), make("a.json").c_str()), 0);
  EXPECT_FALSE(start_trace(path("a.json")).ok());
  EXPECT_EQ(text_of(path("victim")), "precious");
}

TEST_F(TraceTest, OnlyATraceIsReplaced) {
  std::ofstream(make("results")) << "precious";
  EXPECT_EQ(start_trace(path("results")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(trace_enabled());
  EXPECT_EQ(text_of(path("results")), "precious");
  for (const char* name : {"old", "new"}) {
    ASSERT_TRUE(start_trace(make("a.json")).ok());
    trace_instant("test", name);
    ASSERT_TRUE(stop_trace().ok());
  }
  const Json trace = read_trace(path("a.json"));
  EXPECT_TRUE(events_named(trace, "old").empty());
  EXPECT_EQ(events_named(trace, "new").size(), 1U);
}

TEST_F(TraceTest, EachKindOfEventHasItsFields) {
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  name_trace_process("the \"program\"");
  name_trace_thread("main thread");
  const uint64_t before = internal::trace_now();
  {
    const TraceScope outer("layer", "outer", "bytes", 4096);
    const TraceScope inner("layer", "inner");
    trace_instant("layer", "point", "peer", UINT64_MAX);
    trace_counter("outstanding", 7);
  }
  const uint64_t after = internal::trace_now();
  ASSERT_TRUE(stop_trace().ok());

  const Json trace = read_trace(path("a.json"));
  EXPECT_EQ(trace.at("otherData").at("dropped_events").number(), 0);
  for (const char* name : {"outer", "inner", "point", "outstanding"}) {
    const auto events = events_named(trace, name);
    ASSERT_EQ(events.size(), 1U) << name;
    const Json& event = events[0];
    EXPECT_EQ(event.at("pid").number(), getpid());
    EXPECT_EQ(event.at("tid").number(), gettid());
    EXPECT_GE(event.at("ts").number(), static_cast<double>(before) / 1000 - 1);
    EXPECT_LE(event.at("ts").number(), static_cast<double>(after) / 1000 + 1);
  }
  const Json outer = events_named(trace, "outer")[0];
  const Json inner = events_named(trace, "inner")[0];
  EXPECT_EQ(outer.at("ph").string(), "X");
  EXPECT_EQ(outer.at("cat").string(), "layer");
  EXPECT_EQ(outer.at("args").at("bytes").number(), 4096);
  EXPECT_FALSE(inner.has("args"));
  // Nested: the viewer draws the inner event below the outer one.
  EXPECT_LE(outer.at("ts").number(), inner.at("ts").number());
  EXPECT_GE(outer.at("ts").number() + outer.at("dur").number() + 0.01,
            inner.at("ts").number() + inner.at("dur").number());
  const Json point = events_named(trace, "point")[0];
  EXPECT_EQ(point.at("ph").string(), "i");
  EXPECT_EQ(point.at("args").at("peer").number_text(), "18446744073709551615");
  const Json counter = events_named(trace, "outstanding")[0];
  EXPECT_EQ(counter.at("ph").string(), "C");
  EXPECT_EQ(counter.at("args").at("value").number(), 7);
  EXPECT_EQ(events_named(trace, "process_name").at(0).at("args").at("name").string(),
            "the \"program\"");
  EXPECT_EQ(events_named(trace, "thread_name").at(0).at("args").at("name").string(), "main thread");
}

TEST_F(TraceTest, TheFileExistsFromTheStartAndEachFlushUpdatesIt) {
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  EXPECT_TRUE(events_named(read_trace(path("a.json")), "one").empty());
  trace_instant("test", "one");
  ASSERT_TRUE(write_trace().ok());
  EXPECT_EQ(events_named(read_trace(path("a.json")), "one").size(), 1U);
  trace_instant("test", "one");
  ASSERT_TRUE(write_trace().ok());
  EXPECT_EQ(events_named(read_trace(path("a.json")), "one").size(), 2U);
}

TEST_F(TraceTest, ASecondRecordingStartsEmpty) {
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  EXPECT_EQ(start_trace(path("b.json")).code(), absl::StatusCode::kFailedPrecondition);
  trace_instant("test", "first");
  ASSERT_TRUE(stop_trace().ok());
  ASSERT_TRUE(start_trace(make("b.json")).ok());
  trace_instant("test", "second");
  ASSERT_TRUE(stop_trace().ok());
  EXPECT_EQ(events_named(read_trace(path("a.json")), "first").size(), 1U);
  const Json second = read_trace(path("b.json"));
  EXPECT_TRUE(events_named(second, "first").empty());
  EXPECT_EQ(events_named(second, "second").size(), 1U);
}

TEST_F(TraceTest, APathThatCannotBeWrittenIsAnError) {
  const absl::Status missing = start_trace(path("no/such/folder"));
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound) << missing;
  EXPECT_FALSE(trace_enabled());
  // A device file is not replaced by a regular file.
  EXPECT_FALSE(start_trace("/dev/null").ok());
  struct stat device;
  ASSERT_EQ(stat("/dev/null", &device), 0);
  EXPECT_TRUE(S_ISCHR(device.st_mode));
}

TEST_F(TraceTest, ThreadsRecordDuringFlushes) {
  constexpr int kThreads = 3;
  constexpr int kEvents = 5000;
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      name_trace_thread("worker " + std::to_string(t));
      for (int i = 0; i < kEvents; ++i) trace_instant("test", "tick", "i", i);
      running.fetch_sub(1);
    });
  }
  while (running.load() != 0) {
    ASSERT_TRUE(write_trace().ok());
    read_trace(path("a.json"));
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(stop_trace().ok());

  // The file has every event of each thread, in order.
  std::map<double, int> next;
  const Json trace = read_trace(path("a.json"));
  for (const Json& event : events_named(trace, "tick")) {
    ASSERT_EQ(event.at("args").at("i").number(), next[event.at("tid").number()]++);
  }
  ASSERT_EQ(next.size(), static_cast<size_t>(kThreads));
  for (const auto& [thread, count] : next) EXPECT_EQ(count, kEvents);
  EXPECT_EQ(events_named(trace, "thread_name").size(), static_cast<size_t>(kThreads));
}

TEST_F(TraceTest, StopAndStartWhileThreadsRecord) {
  std::atomic<bool> stop{false};
  std::thread recorder([&] {
    while (!stop.load(std::memory_order_relaxed)) trace_instant("test", "tick");
  });
  make("a.json");
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(start_trace(path("a.json")).ok());
    ASSERT_TRUE(stop_trace().ok());
    read_trace(path("a.json"));
  }
  stop.store(true);
  recorder.join();
}

TEST_F(TraceTest, DroppedEventsAreCounted) {
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  constexpr uint64_t kTooMany = 1000;
  for (size_t i = 0; i < kMaxTraceEventsPerThread + kTooMany; ++i) trace_instant("test", "tick");
  EXPECT_EQ(dropped_trace_events(), kTooMany);
  // Other threads still have room for events.
  std::thread([] { trace_instant("test", "other"); }).join();
  ASSERT_TRUE(write_trace().ok());
  // A write without events, which only counts what was dropped since the last one.
  trace_instant("test", "tick");
  ASSERT_TRUE(stop_trace().ok());
  const std::string all = text_of(path("a.json"));
  EXPECT_EQ(all.substr(all.size() - 6), "\"}\n]}\n") << "no comma in front of the end";
  // Parsed line by line, because the file is large.
  std::ifstream file(path("a.json"));
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_NE(line.find("\"dropped_events\":1001}"), std::string::npos) << line;
  size_t ticks = 0;
  size_t others = 0;
  while (std::getline(file, line)) {
    ticks += line.find("\"tick\"") != std::string::npos;
    others += line.find("\"other\"") != std::string::npos;
  }
  EXPECT_EQ(ticks, kMaxTraceEventsPerThread);
  EXPECT_EQ(others, 1U);
}

// Runs `body` in a child process, which must end by _exit(0), and waits for it. Returns its pid.
template <typename Body>
pid_t in_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    abort();
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return child;
}

TEST_F(TraceTest, ProcessesShareAFile) {
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  trace_instant("test", "parent");
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(in_child([] {
      trace_instant("test", "child");
      _exit(write_trace().ok() ? 0 : 1);
    }));
  }
  ASSERT_TRUE(stop_trace().ok());
  const Json trace = read_trace(path("a.json"));
  ASSERT_EQ(events_named(trace, "parent").size(), 1U);
  EXPECT_EQ(events_named(trace, "parent")[0].at("pid").number(), getpid());
  const auto theirs = events_named(trace, "child");
  ASSERT_EQ(theirs.size(), children.size());
  for (size_t i = 0; i < theirs.size(); ++i) EXPECT_EQ(theirs[i].at("pid").number(), children[i]);
}

// A process that is started later joins those that record.
TEST_F(TraceTest, AProcessJoinsARecordingOfOthers) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  const pid_t first = fork();
  if (first == 0) {
    bool ok = start_trace(make("a.json")).ok();
    trace_instant("test", "first");
    char byte = 'x';
    ok = write(pipe_ends[1], &byte, 1) == 1 && ok;
    pause();
    _exit(ok ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(read(pipe_ends[0], &byte, 1), 1);
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  trace_instant("test", "second");
  ASSERT_TRUE(stop_trace().ok());
  // A process that dies loses only its own events.
  kill(first, SIGKILL);
  waitpid(first, nullptr, 0);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  const Json trace = read_trace(path("a.json"));
  EXPECT_TRUE(events_named(trace, "first").empty());
  EXPECT_EQ(events_named(trace, "second").size(), 1U);
}

TEST_F(TraceTest, AForkedChildHasItsOwnFileIfThePathSaysSo) {
  ASSERT_TRUE(start_trace(path("%p.json")).ok());
  make(std::to_string(getpid()) + ".json");
  trace_instant("test", "parent");
  const pid_t child = in_child([] {
    trace_instant("test", "child");
    _exit(write_trace().ok() ? 0 : 1);
  });
  ASSERT_TRUE(stop_trace().ok());
  const Json ours = read_trace(path(std::to_string(getpid()) + ".json"));
  EXPECT_EQ(events_named(ours, "parent").size(), 1U);
  EXPECT_TRUE(events_named(ours, "child").empty());
  const Json theirs = read_trace(make(std::to_string(child) + ".json"));
  EXPECT_TRUE(events_named(theirs, "parent").empty());
  EXPECT_EQ(events_named(theirs, "child").size(), 1U);
}

// A write that a killed process has not completed.
TEST_F(TraceTest, TheNextWriteRemovesAnUnfinishedOne) {
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  trace_instant("test", "one");
  ASSERT_TRUE(write_trace().ok());
  const std::string complete = text_of(path("a.json"));
  std::ofstream(path("a.json"), std::ios::in | std::ios::binary)
      << complete.substr(0, complete.size() - 4) << ",\n{\"ph\":\"i\",\"pi";
  EXPECT_FALSE(parse_json(text_of(path("a.json"))).has_value());
  trace_instant("test", "two");
  ASSERT_TRUE(stop_trace().ok());
  const Json trace = read_trace(path("a.json"));
  EXPECT_EQ(events_named(trace, "one").size(), 1U);
  EXPECT_EQ(events_named(trace, "two").size(), 1U);
}

// A limit of file sizes simulates a full disk.
TEST_F(TraceTest, AWriteThatFailsLeavesTheFileAsItWas) {
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  trace_instant("test", "parent");
  ASSERT_TRUE(write_trace().ok());
  in_child([] {
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 20000; ++i) trace_instant("test", "child");
    const rlimit limit{64 << 10, 64 << 10};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    _exit(write_trace().code() == absl::ErrnoToStatusCode(EFBIG) ? 0 : 1);
  });
  trace_instant("test", "parent");
  ASSERT_TRUE(stop_trace().ok());
  const Json trace = read_trace(path("a.json"));
  EXPECT_EQ(events_named(trace, "parent").size(), 2U);
  EXPECT_TRUE(events_named(trace, "child").empty());
}

TEST_F(TraceTest, ArrowsHaveTheirFields) {
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  const uint64_t id = internal::trace_arrow_id(7, 4096);
  EXPECT_LT(id, uint64_t{1} << 53);
  EXPECT_NE(id, internal::trace_arrow_id(7, 4104));
  EXPECT_NE(id, internal::trace_arrow_id(8, 4096));
  {
    const TraceScope from("test", "from");
    trace_arrow_begin("test", "arrow", id);
  }
  {
    const TraceScope to("test", "to");
    trace_arrow_end("test", "arrow", id);
  }
  ASSERT_TRUE(stop_trace().ok());
  const auto ends = events_named(read_trace(path("a.json")), "arrow");
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[0].at("ph").string(), "s");
  EXPECT_EQ(ends[1].at("ph").string(), "f");
  EXPECT_EQ(ends[1].at("bp").string(), "e");
  for (const Json& end : ends) EXPECT_EQ(end.at("id").number_text(), std::to_string(id));
}

// The times of a process on another host are written in the time of host 0.
TEST_F(TraceTest, ClocksAreAligned) {
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  in_child([] {
    internal::set_trace_host(3);
    const uint64_t first = 1'000'000'000'000;
    internal::trace_record('i', "test", "before", first - 1, 0, nullptr, 0);
    internal::trace_record('i', "test", "half", first + 1'000'000, 0, nullptr, 0);
    internal::trace_record('i', "test", "after", first + 2'000'001, 0, nullptr, 0);
    internal::add_trace_clock({first, -500'000'000'000, 900});
    internal::add_trace_clock({first + 1'000'000, 77, 1});
    internal::add_trace_clock({first + 2'000'000, -500'000'002'000, 1200});
    _exit(write_trace().ok() ? 0 : 1);
  });
  ASSERT_TRUE(stop_trace().ok());
  const Json trace = read_trace(path("a.json"));
  EXPECT_EQ(events_named(trace, "before").at(0).at("ts").number_text(), "499999999.999");
  EXPECT_EQ(events_named(trace, "half").at(0).at("ts").number_text(), "500000999.000");
  EXPECT_EQ(events_named(trace, "after").at(0).at("ts").number_text(), "500001998.001");
  EXPECT_GT(events_named(trace, "half").at(0).at("pid").number(), 3 << 22);
  const auto clocks = events_named(trace, "clock");
  ASSERT_EQ(clocks.size(), 2U);  // of the child, and of this process
  const Json& theirs = clocks[0].at("args");
  EXPECT_EQ(theirs.at("host").number(), 3);
  EXPECT_EQ(theirs.at("error_ns").number(), 1200);
  EXPECT_EQ(clocks[1].at("args").at("error_ns").number(), 0);
}

// A program as users start it: CARIAMA_TRACE is set, and it ends by exit() while a thread records.
TEST_F(TraceTest, TheEnvironmentStartsItAndExitWritesIt) {
  if (std::getenv("CARIAMA_TRACE_TEST_CHILD") != nullptr) {
    static std::atomic<bool> busy{false};
    std::thread([] {
      while (true) {
        trace_instant("test", "busy");
        busy.store(true);
      }
    }).detach();
    while (!busy.load()) std::this_thread::yield();
    rmdir(path("").c_str());
    const TraceScope open("test", "open");  // exit() does not destroy it
    trace_instant("test", "last words");
    std::exit(trace_enabled() ? 0 : 1);
  }
  const std::string pattern = "CARIAMA_TRACE=" + path("child.%p.json");
  std::string marker = "CARIAMA_TRACE_TEST_CHILD=1";
  std::string assignment = pattern;
  std::array<char*, 3> environment{assignment.data(), marker.data(), nullptr};
  std::string program = "/proc/self/exe";
  std::string filter = "--gtest_filter=TraceTest.TheEnvironmentStartsItAndExitWritesIt";
  std::array<char*, 3> arguments{program.data(), filter.data(), nullptr};
  pid_t child = 0;
  ASSERT_EQ(
      posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments.data(), environment.data()),
      0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  const std::string text = text_of(make("child." + std::to_string(child) + ".json"));
  EXPECT_TRUE(parse_json(text).has_value());
  EXPECT_NE(text.find("\"last words\""), std::string::npos);
  EXPECT_NE(text.find("\"busy\""), std::string::npos);
}

}  // namespace
}  // namespace cariama
