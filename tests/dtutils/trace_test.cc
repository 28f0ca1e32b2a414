#include "dtutils/trace.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/dtutils/testing/json.h"

namespace cariama {
namespace {

using testing::Json;
using testing::parse_json;

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
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const auto parsed = parse_json(text.str());
  EXPECT_TRUE(parsed.has_value()) << path << ": " << text.str().substr(0, 2000);
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

// Another user can guess the name of the unfinished file in a folder of all users.
TEST_F(TraceTest, ALinkInTheWayIsNotFollowed) {
  std::ofstream(make("victim")) << "precious";
  const std::string link = path("a.json") + ".unfinished." + std::to_string(getpid());
  ASSERT_EQ(symlink(path("victim").c_str(), link.c_str()), 0);
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  ASSERT_TRUE(stop_trace().ok());
  std::ifstream victim(path("victim"));
  std::string text;
  std::getline(victim, text);
  EXPECT_EQ(text, "precious");
  static_cast<void>(read_trace(path("a.json")));
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
  ASSERT_TRUE(flush_trace().ok());
  EXPECT_EQ(events_named(read_trace(path("a.json")), "one").size(), 1U);
  trace_instant("test", "one");
  ASSERT_TRUE(flush_trace().ok());
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
    ASSERT_TRUE(flush_trace().ok());
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
  ASSERT_TRUE(stop_trace().ok());
  // Parsed line by line, because the file is large.
  std::ifstream file(path("a.json"));
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_NE(line.find("\"dropped_events\":1000}"), std::string::npos) << line;
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

TEST_F(TraceTest, AForkedChildWritesItsOwnFile) {
  ASSERT_TRUE(start_trace(make("a.json")).ok());
  trace_instant("test", "parent");
  const pid_t child = in_child([] {
    trace_instant("test", "child");
    _exit(flush_trace().ok() ? 0 : 1);
  });
  ASSERT_TRUE(stop_trace().ok());
  const Json ours = read_trace(path("a.json"));
  EXPECT_EQ(events_named(ours, "parent").size(), 1U);
  EXPECT_TRUE(events_named(ours, "child").empty());
  const Json theirs = read_trace(make("a.json." + std::to_string(child)));
  EXPECT_TRUE(events_named(theirs, "parent").empty());
  ASSERT_EQ(events_named(theirs, "child").size(), 1U);
  EXPECT_EQ(events_named(theirs, "child")[0].at("pid").number(), child);
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
  std::ifstream file(make("child." + std::to_string(child) + ".json"));
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(parse_json(text.str()).has_value());
  EXPECT_NE(text.str().find("\"last words\""), std::string::npos);
  EXPECT_NE(text.str().find("\"busy\""), std::string::npos);
}

}  // namespace
}  // namespace cariama
