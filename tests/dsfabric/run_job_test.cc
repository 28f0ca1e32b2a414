// run_job(): the main program of a job in one call. The tests start this program as a job.
#include "dsfabric/run_job.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "dsfabric/send_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/running_command.h"

namespace cariama {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Running;
using ::testing::UnorderedElementsAre;

std::atomic<int> calls;  // that ran in this process

// Prints a line by one write, because the processes share their output.
void print(const std::string& line) {
  const std::string whole = line + "\n";
  static_cast<void>(!write(STDOUT_FILENO, whole.data(), whole.size()));
}

// Thread 3 calls all threads, whose own bodies have ended or soon will.
absl::Status call_all_threads(ThreadContext& self) {
  Fabric& fabric = self.fabric();
  for (uint32_t thread = 0; thread < fabric.total_threads(); ++thread) {
    Synchronizer ran;
    absl::Status sent = call<RemoteNotify>(
        fabric, thread,
        [thread] {
          ++calls;
          print("called " + std::to_string(thread));
        },
        ran);
    if (sent.ok()) sent = fabric.wait(ran, deadline_after(std::chrono::seconds(60)));
    if (!sent.ok()) return sent;
  }
  return absl::OkStatus();
}

int play_role(int argc, const char* const* argv, const std::string& role) {
  const JobOptions options{.launch = {.processes = 2}, .fabric = {.threads = 2}};
  if (role == "nothing") return run_job(options, argc, argv, [](ThreadContext&) {});
  const int code = run_job(options, argc, argv, [&](ThreadContext& self) -> absl::Status {
    if (self.global_id() != 3) return absl::OkStatus();
    absl::Status called = call_all_threads(self);
    if (role == "fail") return absl::DataLossError("the disk is gone");
    if (role == "throw") throw std::runtime_error("thrown");
    return called;
  });
  if (code == 0 && getenv("CARIAMA_RANK") != nullptr) {
    print("ended after " + std::to_string(calls) + " calls");
  }
  return code;
}

std::string as_role(const std::string& role) {
  return "env JOB_ROLE=" + role + " /proc/" + std::to_string(getpid()) + "/exe";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(RunJob, RunsTheBodyInEveryThreadAndServesCallsUntilTheEnd) {
  for (const std::string launcher : {"", CARIAMA_PROGRAM_DIR "/cariama-run -n 2 "}) {
    Running job(launcher + as_role("call"));
    EXPECT_EQ(job.wait(), 0) << job.err();
    EXPECT_THAT(lines_of(job.out()),
                UnorderedElementsAre("called 0", "called 1", "called 2", "called 3",
                                     "ended after 2 calls", "ended after 2 calls"));
  }
}

TEST(RunJob, ABodyMayReturnNothing) {
  Running job(as_role("nothing") + " -n 3");
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST(RunJob, AnErrorOfABodyIsPrintedAndEndsTheJob) {
  Running failing(as_role("fail"));
  EXPECT_EQ(failing.wait(), 1);
  EXPECT_THAT(failing.err(), ContainsRegex("cariama: rank 1 .*, thread 1: DATA_LOSS: the disk"));
  EXPECT_THAT(failing.out(), Not(HasSubstr("ended")));
  Running throwing(as_role("throw"));
  EXPECT_EQ(throwing.wait(), 1);
  EXPECT_THAT(throwing.err(), HasSubstr("the job's body threw: thrown"));
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  if (const char* const role = getenv("JOB_ROLE"); role != nullptr) {
    return cariama::play_role(argc, argv, role);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
