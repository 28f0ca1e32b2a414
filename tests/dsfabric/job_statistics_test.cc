// CARIAMA_STATISTICS and cariama-top, with jobs of real processes: the jobs run this program again,
// with --role=NAME as its first argument.
#include "dsfabric/fabric/job_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "dsfabric/fabric.h"
#include "dsfabric/send_call.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/statistics_service.h"
#include "tests/dsfabric/testing/role.h"
#include "tests/dsfabric/testing/running_command.h"
#include "tests/dtutils/testing/process_state.h"
#include "tests/dtutils/testing/text_of.h"

namespace cariama {
namespace {

using ::cariama::internal::parse_statistics_request;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Running;
using testing::text_of;

constexpr int kCounted = 100;

// Each process calls the next one kCounted times. If the role's name contains "wait", the process
// then prints "ready", and continues when the folder in CARIAMA_TEST_GO contains the file "go".
int count_calls(std::string_view role) {
  auto made = Fabric::create();
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
    return 99;
  }
  Fabric& fabric = **made;
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  {
    auto self = fabric.init_thread(0);
    if (!self.ok()) return 98;
    const Rank next = (fabric.rank() + 1) % fabric.size();
    for (int i = 0; i < kCounted; ++i) {
      Synchronizer run;
      if (!call<RemoteNotify>(
               fabric, fabric.thread_of(next), [] {}, run)
               .ok() ||
          !fabric.wait(run, deadline).ok()) {
        return 97;
      }
    }
    if (role.find("wait") != role.npos) {
      std::printf("ready %d\n", getpid());
      std::fflush(stdout);
      const std::string go = std::string(std::getenv("CARIAMA_TEST_GO")) + "/go";
      if (!fabric.wait_polling([&] { return std::filesystem::exists(go); }, deadline)) return 96;
    }
  }
  return fabric.finalize(deadline).ok() ? 0 : 95;
}

std::string job(const std::string& statistics, const std::string& options,
                const std::string& role) {
  return "env CARIAMA_STATISTICS=" + statistics + " " + CARIAMA_PROGRAM_DIR + "/cariama-run " +
         options + " " + testing::in_role(role);
}

class JobStatistics : public ::testing::Test {
 protected:
  JobStatistics() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~JobStatistics() override { std::filesystem::remove_all(folder_); }
  std::string folder_ = ::testing::TempDir() + "job_statistics_XXXXXX";
};

TEST_F(JobStatistics, RequestsAreParsed) {
  auto both = parse_statistics_request("exit,unix:/tmp/s.%r,/tmp/f.%r.txt", 3, 4);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_TRUE(both->table_at_end);
  EXPECT_FALSE(both->is_off);
  EXPECT_EQ(both->socket_path, "/tmp/s.3");
  EXPECT_EQ(both->file_path, "/tmp/f.3.txt");
  EXPECT_TRUE(parse_statistics_request("off", 0, 1)->is_off);
  EXPECT_TRUE(parse_statistics_request("", 0, 9).ok());
  EXPECT_TRUE(parse_statistics_request("file", 0, 1).ok());
  for (const char* wrong : {"file", "unix:/tmp/s", "exit,", ",", "unix:"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(parse_statistics_request(wrong, 0, 2).status())) << wrong;
  }
}

TEST_F(JobStatistics, TheTableAtTheEndHasAllProcesses) {
  Running counted(job("exit", "-n 3", "count"));
  EXPECT_EQ(counted.wait(), 0) << counted.err();
  EXPECT_THAT(counted.err(), HasSubstr("cariama: statistics of 3 processes"));
  EXPECT_THAT(counted.err(), ContainsRegex("fabric.calls_run +[3-9][0-9][0-9] "));
  EXPECT_THAT(counted.err(), Not(HasSubstr("without rank")));
}

TEST_F(JobStatistics, AFileForEachProcess) {
  Running counted(job(folder_ + "/rank.%r", "-n 2", "count"));
  EXPECT_EQ(counted.wait(), 0) << counted.err();
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(text_of(folder_ + "/rank." + rank),
                AllOf(HasSubstr("# TYPE cariama_fabric_calls_run_total counter\n"),
                      HasSubstr("rank=\"" + std::string(rank) + "\",size=\"2\"")));
  }
}

TEST_F(JobStatistics, OneFileForSeveralProcessesIsRefused) {
  Running refused(job(folder_ + "/file", "-n 2", "count"));
  EXPECT_NE(refused.wait(), 0);
  EXPECT_THAT(refused.err(), HasSubstr("use %r for the rank"));
}

// A reader finds the processes without preparation.
TEST_F(JobStatistics, TopShowsARunningJob) {
  setenv("CARIAMA_TEST_GO", folder_.c_str(), 1);
  Running running(job("", "-n 2", "wait"));
  ASSERT_TRUE(Running::eventually([&] {
    const std::string out = running.out();
    return out.find("ready") != out.rfind("ready");
  }));
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").filename();
  const auto shows = [&](const std::string& text, const std::string& rank) {
    const auto row =
        ContainsRegex("\"state\".*\"rank\": \"" + rank + "\", \"size\": \"2\", \"program\": \"" +
                      program + "\".*\"value\": \"running\"");
    return ::testing::Matches(row)(text);
  };
  // A process that does not answer within half a second is shown as silent.
  EXPECT_TRUE(Running::eventually([&] {
    Running top(std::string(CARIAMA_PROGRAM_DIR) + "/cariama-top --json --interval 0.2 --count 1");
    EXPECT_EQ(top.wait(), 0) << top.err();
    const std::string text = top.out();
    return shows(text, "0") && shows(text, "1") &&
           text.find("\"name\": \"calls_run\"") != std::string::npos;
  }));
  std::ofstream(folder_ + "/go") << "go";
  EXPECT_EQ(running.wait(), 0) << running.err();
}

// The state of a stopped process is shown, and the names that the process had.
TEST_F(JobStatistics, TopShowsAStoppedProcess) {
  setenv("CARIAMA_TEST_GO", folder_.c_str(), 1);
  Running running(job("", "-n 2", "wait"));
  ASSERT_TRUE(Running::eventually([&] {
    const std::string out = running.out();
    return out.find("ready") != out.rfind("ready") && out.back() == '\n';
  }));
  const std::string out = running.out();
  const pid_t last = std::stoi(out.substr(out.rfind("ready ") + 6));
  const Running top(std::string(CARIAMA_PROGRAM_DIR) + "/cariama-top --json --interval 0.1 --pid " +
                    std::to_string(last));
  const auto rows = [&](const std::string& state) {
    std::vector<std::string> found;
    std::istringstream lines(top.out());
    for (std::string line; std::getline(lines, line);) {
      if (line.find("\"value\": \"" + state + "\"") != std::string::npos) found.push_back(line);
    }
    return found;
  };
  ASSERT_TRUE(Running::eventually([&] { return !rows("running").empty(); })) << top.err();
  ASSERT_TRUE(testing::stop_process(last, deadline_after(std::chrono::seconds(60))));
  ASSERT_TRUE(Running::eventually([&] { return rows("stopped").size() >= 3; })) << top.err();
  EXPECT_THAT(rows("stopped"), ::testing::Each(HasSubstr("\"rank\": ")));
  EXPECT_EQ(kill(last, SIGCONT), 0);
  std::ofstream(folder_ + "/go") << "go";
  EXPECT_EQ(running.wait(), 0) << running.err();
}

// Listens under the name of process `pid`, as its statistics service does. Invalid after an error.
FileDescriptor listen_as(pid_t pid) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = std::string(kStatisticsSocket) + std::to_string(pid);
  std::copy(name.begin(), name.end(), &address.sun_path[1]);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), 8) != 0) {
    listener.reset();
  }
  return listener;
}

// A process can listen under the name that belongs to another one, also if its user differs.
TEST_F(JobStatistics, TopDoesNotAskAProcessThatListensUnderAnothersName) {
  const pid_t self = getpid();
  std::array<int, 2> ready{};
  ASSERT_EQ(pipe(ready.data()), 0);
  const pid_t impostor = fork();
  if (impostor == 0) {
    const FileDescriptor listener = listen_as(self);
    if (!listener.valid() || write(ready[1], "x", 1) != 1) _exit(1);
    while (true) {
      const FileDescriptor reader(accept(listener.get(), nullptr, nullptr));
      const std::string_view page =
          "HTTP/1.0 200 OK\r\n\r\ncariama_fabric_calls_run_total{rank=\"0\",program=\"false\"} 1\n";
      static_cast<void>(send(reader.get(), page.data(), page.size(), MSG_NOSIGNAL));
      shutdown(reader.get(), SHUT_WR);
      std::array<char, 1024> request;
      while (recv(reader.get(), request.data(), request.size(), 0) > 0) {
      }
    }
  }
  close(ready[1]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Running top(std::string(CARIAMA_PROGRAM_DIR) +
              "/cariama-top --json --interval 0.1 --count 1 --pid " + std::to_string(getpid()));
  top.wait();
  EXPECT_THAT(top.out(), Not(HasSubstr("false")));
  kill(impostor, SIGKILL);
  waitpid(impostor, nullptr, 0);
  close(ready[0]);
}

// The process ends when it has been asked once.
TEST_F(JobStatistics, TopOfAProcessThatEndsAfterTheFirstSampleSaysSo) {
  std::array<int, 2> ready{};
  ASSERT_EQ(pipe(ready.data()), 0);
  const pid_t asked = fork();
  if (asked == 0) {
    const FileDescriptor listener = listen_as(getpid());
    if (!listener.valid() || write(ready[1], "x", 1) != 1) _exit(1);
    const FileDescriptor reader(accept(listener.get(), nullptr, nullptr));
    _exit(0);
  }
  close(ready[1]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  Running top(std::string(CARIAMA_PROGRAM_DIR) + "/cariama-top --interval 1 --count 1 --pid " +
              std::to_string(asked));
  EXPECT_EQ(top.wait(), 1);
  EXPECT_THAT(top.err(), HasSubstr("ended before a second sample"));
  waitpid(asked, nullptr, 0);
}

TEST_F(JobStatistics, TopLeavesOutTheProcessesOfAnotherUser) {
  if (geteuid() != 0 || std::system("setpriv --reuid 65534 --clear-groups " CARIAMA_PROGRAM_DIR
                                    "/cariama-top --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "needs root, to run cariama-top as another user";
  }
  const FileDescriptor listener = listen_as(getpid());
  ASSERT_TRUE(listener.valid());
  Running top(std::string("setpriv --reuid 65534 --clear-groups " CARIAMA_PROGRAM_DIR
                          "/cariama-top --interval 0.1 --count 1 --pid ") +
              std::to_string(getpid()));
  EXPECT_EQ(top.wait(), 1);
  EXPECT_EQ(top.out(), "");
  EXPECT_THAT(top.err(), HasSubstr("no process of this user"));
}

TEST_F(JobStatistics, TopOfNothingSaysSo) {
  const std::string top = std::string(CARIAMA_PROGRAM_DIR) + "/cariama-top";
  Running nothing(top + " --count 1 --interval 0.1 --pid " + std::to_string(getpid()));
  EXPECT_EQ(nothing.wait(), 1);
  EXPECT_THAT(nothing.err(), HasSubstr("no process of this user"));
  for (const char* wrong : {"--interval 0", "--count x", "--pid", "--what", "--json=1"}) {
    Running refused(top + " " + wrong);
    EXPECT_EQ(refused.wait(), 2) << wrong;
  }
  Running full("sh -c '" + top + " --help > /dev/full'");
  EXPECT_NE(full.wait(), 0);
}

}  // namespace

int play(std::string_view role) { return count_calls(role); }

}  // namespace cariama

int main(int argc, char** argv) {
  return cariama::testing::play_or_test(argc, argv, cariama::play);
}
