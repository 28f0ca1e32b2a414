// Jobs of real processes, started by cariama-run and by mpirun. The processes run this program
// again, with --role=NAME as its first argument.
#include "dsfabric/launcher.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "dsfabric/bootstrap.h"
#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/fabric.h"
#include "dsfabric/peers/broker.h"
#include "dsfabric/send_call.h"
#include "dtutils/diagnostics.h"
#include "dtutils/internal/file_descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/role.h"
#include "tests/dsfabric/testing/running_command.h"
#include "tests/dtutils/testing/text_of.h"

extern char** environ;

namespace cariama {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Running;
using testing::text_of;
using ::testing::UnorderedElementsAre;

// The deadline of waits that should succeed. It only prevents that a defect hangs the test.
Deadline soon() { return deadline_after(60s); }

// ---- What the processes of the jobs do ----------------------------------------------------------

// Prints a line by one write, because the processes share their output.
void print(const std::string& line) {
  const std::string whole = line + "\n";
  static_cast<void>(!write(STDOUT_FILENO, whole.data(), whole.size()));
}

std::unique_ptr<Bootstrap> join() {
  auto joined = make_bootstrap({.kind = {}, .timeout = 60s});
  if (!joined.ok()) {
    print("cannot join: " + joined.status().ToString());
    _exit(99);
  }
  return *std::move(joined);
}

void require(const absl::Status& status) {
  if (status.ok()) return;
  print("failed: " + status.ToString());
  _exit(98);
}

// Uses everything that a job needs of its bootstrap, including a request to a neighbour's broker.
int role_exchange() {
  auto job = join();
  require(job->put("value", "of " + std::to_string(job->rank())));
  require(job->put("secret", internal::bytes_of(job->secret())));
  require(job->fence(soon()));
  std::string all;
  for (int rank = 0; rank < job->size(); ++rank) {
    auto value = job->get(rank, "value", soon());
    require(value.status());
    all += *value + ",";
    auto secret = job->get(rank, "secret", soon());
    require(secret.status());
    if (*secret != internal::bytes_of(job->secret())) print("another secret");
  }
  auto broker = internal::make_socket_broker(
      *job, [](int rank, std::string_view) { return "hello " + std::to_string(rank); }, soon());
  require(broker.status());
  auto answer = (*broker)->request((job->rank() + 1) % job->size(), "", soon());
  require(answer.status());
  print(std::string(bootstrap_name(job->kind())) + " " + std::to_string(job->rank()) + "/" +
        std::to_string(job->size()) + " t" + std::to_string(job->threads().value_or(0)) + " " +
        all + " " + *answer);
  require(job->fence(soon()));
  broker->reset();
  require(job->finalize(soon()));
  return 0;
}

// Searches for the job's secret where other processes could read it.
int role_secret() {
  auto job = join();
  const std::string secret(internal::bytes_of(job->secret()));
  std::string hex;
  for (const unsigned char byte : secret) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    hex += digits;
  }
  for (const char* file : {"/proc/self/environ", "/proc/self/cmdline"}) {
    const std::string all = text_of(file);
    if (all.find(secret) != std::string::npos || all.find(hex) != std::string::npos ||
        all.find("CARIAMA_JOB_SECRET") != std::string::npos) {
      print(std::string("the secret is in ") + file);
    }
  }
  if (const auto second = make_bootstrap({}); second.ok()) print("joined twice");
  // A child of this process is not a member of the job.
  const std::string again = testing::in_role("exchange");
  const int status = std::system(again.c_str());
  print("child: " + std::to_string(WEXITSTATUS(status)));
  require(job->finalize(soon()));
  return 0;
}

// Rank 1 is killed in a fence that waits for rank 2; the other ranks print the errors that they
// get.
int role_die() {
  auto job = join();
  if (job->rank() == 1) {
    static_cast<void>(job->fence(deadline_after(20ms)));
    raise(SIGKILL);
  }
  const absl::Status status =
      job->rank() == 2 ? job->get(1, "never", soon()).status() : job->fence(soon());
  print("learned: " + std::string(status.message()));
  return 5;
}

volatile std::sig_atomic_t interrupted = 0;

// Ends in order after SIGINT.
int role_orderly() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  sigaction(SIGINT, &action, nullptr);
  sigset_t interrupt;
  sigset_t before;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  sigprocmask(SIG_BLOCK, &interrupt, &before);
  print("ready");
  while (interrupted == 0) sigsuspend(&before);
  print("orderly");
  return 0;
}

// Forks; the child uses and destroys the fabric that it has inherited. Then rank 1 is called for
// the first time: the parent's broker must still answer.
int role_fork() {
  auto fabric = Fabric::create();
  require(fabric.status());
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status called = call(**fabric, (*fabric)->thread_of(1 - (*fabric)->rank()), [] {});
    const absl::Status ended = (*fabric)->finalize(soon());
    fabric->reset();
    _exit(absl::IsUnavailable(called) && absl::IsUnavailable(ended) ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) print("the child did not end in order");
  auto context = (*fabric)->init_thread(0);
  require(context.status());
  Synchronizer ran;
  require(call<RemoteNotify>(
      **fabric, 1 - (*fabric)->rank(), [] {}, ran));
  if (!(*fabric)->wait([&] { return ran.operations_left() == 0; }, soon())) {
    print("the call did not run");
  }
  context->reset();
  require((*fabric)->finalize(soon()));
  print("alive");
  return 0;
}

int role_deaf() {
  for (const int one : {SIGINT, SIGTERM, SIGHUP}) signal(one, SIG_IGN);
  print("ready");
  while (true) pause();
}

// Creates a fabric with the other processes of the job.
int role_fabric() {
  const auto fabric = Fabric::create();
  if (!fabric.ok()) print("refused: " + std::string(fabric.status().message()));
  return fabric.ok() ? 0 : 3;
}

// Every process reports the same diagnostics: that of this test, and those of its allocations.
int role_diagnostics() {
  const auto fabric = Fabric::create();
  require(fabric.status());
  report_once("test.launcher", "no gold, using silver", "dig deeper");
  require((*fabric)->bootstrap().fence(soon()));
  require((*fabric)->finalize(soon()));
  return 0;
}

int play(std::string_view role) {
  if (role == "fabric") return role_fabric();
  if (role == "diagnostics") return role_diagnostics();
  if (role == "exchange") return role_exchange();
  if (role == "secret") return role_secret();
  if (role == "die") return role_die();
  if (role == "orderly") return role_orderly();
  if (role == "fork") return role_fork();
  if (role == "deaf") return role_deaf();
  print("there is no role " + std::string(role));
  return 97;
}

// ---- Starting them ------------------------------------------------------------------------------

std::string self() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return {path, static_cast<size_t>(std::max<ssize_t>(length, 0))};
}

const std::string& cariama_run() {
  static const std::string path = std::string(CARIAMA_PROGRAM_DIR) + "/cariama-run";
  return path;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Counts the sleep processes whose command line contains `mark`.
int count_processes(const std::string& mark) {
  int count = 0;
  DIR* const all = opendir("/proc");
  while (const dirent* entry = readdir(all)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    const std::string line = text_of(std::string("/proc/") + entry->d_name + "/cmdline");
    if (line.rfind("sleep", 0) == 0 && line.find(mark) != std::string::npos) ++count;
  }
  closedir(all);
  return count;
}

// Returns a duration that no other process sleeps for.
std::string unique_seconds() {
  static int count = 0;
  return "9" + std::to_string(getpid()) + "." + std::to_string(++count);
}

// ---- cariama-run --------------------------------------------------------------------------------

TEST(CariamaRun, ProcessesFindEachOther) {
  Running job(cariama_run() + " -n 3 -t 2 " + self() + " --role=exchange");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(lines_of(job.out()), UnorderedElementsAre("local 0/3 t2 of 0,of 1,of 2, hello 0",
                                                        "local 1/3 t2 of 0,of 1,of 2, hello 1",
                                                        "local 2/3 t2 of 0,of 1,of 2, hello 2"));
  EXPECT_EQ(job.err(), "");
}

// Expects that the processes of a job with role_diagnostics() have written each diagnostic once.
void expect_each_diagnostic_once(const std::string& err) {
  const std::vector<std::string> lines = lines_of(err);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "cariama: no gold, using silver: dig deeper"), 1)
      << err;
  std::multiset<std::string> diagnostics;
  for (const std::string& line : lines) {
    // The number of pages in the remedy depends on the pages that the other processes have taken.
    if (line.rfind("cariama: ", 0) == 0) diagnostics.insert(line.substr(0, line.find(": as root")));
  }
  for (const std::string& diagnostic : diagnostics) {
    EXPECT_EQ(diagnostics.count(diagnostic), 1u) << diagnostic;
  }
}

TEST(CariamaRun, AJobWritesEachDiagnosticOnce) {
  Running job(cariama_run() + " -n 3 " + self() + " --role=diagnostics");
  EXPECT_EQ(job.wait(), 0) << job.err() << job.out();
  expect_each_diagnostic_once(job.err());
}

TEST(CariamaRun, TwoJobsAtTheSameTimeWriteTheirOwnDiagnostics) {
  const std::string command = cariama_run() + " -n 2 " + self() + " --role=diagnostics";
  Running first(command);
  Running second(command);
  EXPECT_EQ(first.wait(), 0) << first.err() << first.out();
  EXPECT_EQ(second.wait(), 0) << second.err() << second.out();
  expect_each_diagnostic_once(first.err());
  expect_each_diagnostic_once(second.err());
}

TEST(CariamaRun, StandardStreamsMayBeClosed) {
  Running failing(cariama_run() + " -n 2 --timeout 60 /bin/false 2>&-");
  EXPECT_EQ(failing.wait(), 1);
  Running silent(cariama_run() + " -n 2 --timeout 60 " + self() + " --role=exchange <&- >&- 2>&-");
  EXPECT_EQ(silent.wait(), 0);
}

TEST(CariamaRun, WrapperScriptsAndExecKeepTheJobTogether) {
  Running job(cariama_run() + " -n 2 sh -c 'true; \"$0\" \"$@\"; exit $?' " + self() +
              " --role=exchange");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(lines_of(job.out()).size(), 2u) << job.out();
}

TEST(CariamaRun, TheSecretIsHiddenAndChildrenAreNoMembers) {
  Running job(cariama_run() + " -n 2 " + self() + " --role=secret");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), Not(HasSubstr("the secret is in")));
  EXPECT_THAT(job.out(), AllOf(HasSubstr("the socket that cariama-run gave to this process is not"),
                               HasSubstr("child: 99")));
}

TEST(CariamaRun, ARankKilledInAFenceIsNamedToTheOthersAndToTheUser) {
  Running job(cariama_run() + " -n 4 --tag-output " + self() + " --role=die");
  EXPECT_EQ(job.wait(), 128 + SIGKILL) << job.err();
  EXPECT_THAT(lines_of(job.err()),
              ElementsAre("cariama-run: rank 1 was killed by signal 9 (Killed)"));
}

TEST(CariamaRun, KeepGoingContinuesWithoutTheDeadProcess) {
  Running job(cariama_run() + " -n 4 --keep-going --tag-output " + self() + " --role=die");
  EXPECT_EQ(job.wait(), 128 + SIGKILL) << job.err();
  const std::string killed = "rank 1 was killed by signal 9 (Killed)";
  const std::string why = killed + ": look at its output for the reason";
  EXPECT_THAT(lines_of(job.out()),
              UnorderedElementsAre("[0] learned: fence of 4 processes: " + why,
                                   "[2] learned: get of 'never' from rank 1: " + why,
                                   "[3] learned: fence of 4 processes: " + why));
  EXPECT_THAT(lines_of(job.err()), UnorderedElementsAre("cariama-run: " + killed,
                                                        "cariama-run: rank 0 exited with code 5",
                                                        "cariama-run: rank 2 exited with code 5",
                                                        "cariama-run: rank 3 exited with code 5"));
}

TEST(CariamaRun, TheFirstFailureGivesTheCodeAndEndsTheOthers) {
  const std::string mark = unique_seconds();
  Running job(cariama_run() + " -n 3 sh -c 'test $CARIAMA_RANK = 1 && exit 7; sleep " + mark + "'");
  EXPECT_EQ(job.wait(), 7);
  EXPECT_EQ(job.err(), "cariama-run: rank 1 exited with code 7\n");
  EXPECT_EQ(count_processes(mark), 0);
}

TEST(CariamaRun, AProcessThatIgnoresSignalsIsKilledAfterItsGrace) {
  // Both processes ignore signals long before the timeout, also on a busy machine.
  Running job(cariama_run() + " -n 2 --timeout 10 --grace 0.1 " + self() + " --role=deaf");
  EXPECT_EQ(job.wait(), kLaunchTimedOut);
  EXPECT_THAT(lines_of(job.err()),
              ElementsAre("cariama-run: the job did not end within 10 s: ranks 0, 1 still running",
                          "cariama-run: ranks 0, 1 did not end within 0.1 s of grace, and will be "
                          "killed"));
}

TEST(CariamaRun, OutputIsTaggedByLineAndByStream) {
  Running job(cariama_run() +
              " -n 2 --tag-output sh -c "
              "'echo out; echo err >&2; printf \"no end\"'");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(lines_of(job.out()),
              UnorderedElementsAre("[0] out", "[0] no end", "[1] out", "[1] no end"));
  EXPECT_THAT(lines_of(job.err()), UnorderedElementsAre("[0] err", "[1] err"));
}

TEST(CariamaRun, MuchTaggedOutputIsComplete) {
  Running job(cariama_run() + " -n 3 --tag-output sh -c 'seq 1 20000'");
  EXPECT_EQ(job.wait(), 0);
  const std::vector<std::string> lines = lines_of(job.out());
  EXPECT_EQ(lines.size(), 60'000u);
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 60'000u);
}

TEST(CariamaRun, InputGoesToRankZero) {
  Running job("sh -c 'echo words | " + cariama_run() + " -n 3 --tag-output cat'");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] words\n");
}

TEST(CariamaRun, TheFirstInterruptIsPassedOn) {
  // The grace period covers the leak check of a sanitizer at exit, also on a busy machine.
  Running job(cariama_run() + " -n 2 --grace 60 " + self() + " --role=orderly");
  ASSERT_TRUE(Running::eventually([&] { return job.out() == "ready\nready\n"; })) << job.out();
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "ready\nready\norderly\norderly\n");
  EXPECT_EQ(job.err(), "cariama-run: SIGINT is passed on; a second one kills the job\n");
}

TEST(CariamaRun, TheSecondInterruptKillsAtOnce) {
  Running job(cariama_run() + " -n 2 --grace 1000 " + self() + " --role=deaf");
  ASSERT_TRUE(Running::eventually([&] { return job.out() == "ready\nready\n"; })) << job.out();
  kill(job.pid(), SIGINT);
  ASSERT_TRUE(Running::eventually([&] { return !job.err().empty(); }));
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
}

TEST(CariamaRun, ProcessesThatLeftTheirGroupAreKilled) {
  const std::string mark = unique_seconds();
  Running job(cariama_run() + " -n 2 sh -c 'sleep " + mark + " & setsid sleep " + mark +
              " & echo started'");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(count_processes(mark), 0);
}

TEST(CariamaRun, NothingIsLeftBehindWhenItIsKilled) {
  const std::string mark = unique_seconds();
  // Four processes: each shell has started two, and waits.
  Running job(cariama_run() + " -n 2 sh -c 'sleep " + mark + " & sleep " + mark + " & wait; true'");
  ASSERT_TRUE(Running::eventually([&] { return count_processes(mark) == 4; }));
  kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(Running::eventually([&] { return count_processes(mark) == 0; }));
}

// poll() refuses more entries than the limit. Without tags a process has a pidfd and a socket.
TEST(CariamaRun, TheTimeLimitHoldsWithFewDescriptors) {
  Running job("sh -c 'ulimit -n 64; exec " + cariama_run() + " -n 20 --timeout 1 sleep 1000'");
  EXPECT_EQ(job.wait(), kLaunchTimedOut) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("the job did not end within 1 s"));
}

TEST(CariamaRun, AnInterruptEndsAJobWithFewDescriptors) {
  Running job("sh -c 'ulimit -n 64; exec " + cariama_run() + " -n 20 sh -c \"echo; sleep 99\"'");
  ASSERT_TRUE(Running::eventually([&] { return job.out().size() == 20; })) << job.err();
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT) << job.err();
}

// The launcher raises its own soft limit; the processes get the limit that the user has set.
TEST(CariamaRun, TheSoftLimitOfDescriptorsIsRaisedForTheLauncherOnly) {
  Running job("sh -c 'ulimit -S -n 32; exec " + cariama_run() +
              " -n 20 --tag-output sh -c \"ulimit -n\"'");
  EXPECT_EQ(job.wait(), 0) << job.err();
  const std::vector<std::string> lines = lines_of(job.out());
  EXPECT_EQ(lines.size(), 20u);
  for (const std::string& line : lines) EXPECT_THAT(line, ::testing::EndsWith("] 32"));
}

// A pipe whose reading end is open but never read. A command inherits the writing end, in().
class UnreadPipe {
 public:
  UnreadPipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe(ends), 0);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    reader_ = FileDescriptor(ends[0]);
    writer_ = FileDescriptor(ends[1]);
  }
  [[nodiscard]] int in() const { return writer_.get(); }

 private:
  FileDescriptor reader_;
  FileDescriptor writer_;
};

// The pipe fills, then the launcher's queue, then the pipes of the processes.
TEST(CariamaRun, TheTimeLimitHoldsWhenNobodyReadsTheOutput) {
  const UnreadPipe unread;
  Running job("sh -c 'exec " + cariama_run() + " -n 2 --tag-output --timeout 1 --grace 0.2 yes >&" +
              std::to_string(unread.in()) + "'");
  EXPECT_EQ(job.wait(), kLaunchTimedOut) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("the job did not end within 1 s"));
}

// The output never ends, and the reader takes all of it.
TEST(CariamaRun, TheTimeLimitHoldsWhileOutputIsPassedOn) {
  Running job("sh -c 'exec " + cariama_run() +
              " -n 1 --tag-output --timeout 1 --grace 0.2 yes > /dev/null'");
  EXPECT_EQ(job.wait(), kLaunchTimedOut) << job.err();
}

// A process that left its group continues to write after its rank has ended.
TEST(CariamaRun, OutputOfProcessesThatLeftTheirGroupDoesNotKeepTheJob) {
  Running job("sh -c 'exec " + cariama_run() +
              " -n 1 --tag-output sh -c \"setsid yes & sleep 0.2\" > /dev/null'");
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST(CariamaRun, OutputThatNobodyReadsEndsAtTheTimeLimit) {
  const UnreadPipe unread;
  Running job("sh -c 'exec " + cariama_run() +
              " -n 1 --tag-output --timeout 10 --grace 0.2 seq 100000 >&" +
              std::to_string(unread.in()) + "'");
  EXPECT_EQ(job.wait(), kLaunchTimedOut) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("its output is not read"));
}

TEST(CariamaRun, AnInterruptEndsAJobWhoseOutputNobodyReads) {
  const UnreadPipe unread;
  Running job("sh -c 'exec " + cariama_run() +
              " -n 1 --tag-output --grace 0.2 sh -c \"echo ready >&2; exec yes\" >&" +
              std::to_string(unread.in()) + "'");
  ASSERT_TRUE(Running::eventually([&] { return job.err() == "[0] ready\n"; })) << job.err();
  std::this_thread::sleep_for(300ms);  // the job is stuck then, or soon: both must end
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.err();
}

TEST(CariamaRun, AChildOfForkLeavesTheJobAlone) {
  Running job(cariama_run() + " -n 2 " + self() + " --role=fork");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "alive\nalive\n");
}

TEST(CariamaRun, BindsToCores) {
  Running job(cariama_run() + " -n 1 --bind core sh -c 'grep Cpus_allowed_list /proc/self/status'");
  EXPECT_EQ(job.wait(), 0) << job.err();
  Running all("grep Cpus_allowed_list /proc/self/status");
  EXPECT_EQ(all.wait(), 0);
  if (sysconf(_SC_NPROCESSORS_ONLN) > 1 && all.out().find_first_of(",-") != std::string::npos) {
    EXPECT_NE(job.out(), all.out());
  }
  Running numa(cariama_run() + " -n 2 --bind=numa true");
  EXPECT_EQ(numa.wait(), 0) << numa.err();
}

TEST(CariamaRun, PlacesAsTheFileSays) {
  char name[] = "/tmp/cariama-place-XXXXXX";
  const int file = mkstemp(name);
  const std::string text = "0 0\n1 0  # both on the first node\n";
  ASSERT_EQ(write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(file);
  Running good(cariama_run() + " -n 2 --place " + name + " true");
  EXPECT_EQ(good.wait(), 0) << good.err();
  Running bad(cariama_run() + " -n 3 --place " + name + " true");
  EXPECT_EQ(bad.wait(), 2);
  EXPECT_THAT(bad.err(), HasSubstr("no line for rank 2"));
  unlink(name);
  Running missing(cariama_run() + " -n 2 --place " + name + " true");
  EXPECT_EQ(missing.wait(), 125);
  EXPECT_THAT(missing.err(), HasSubstr("the place file"));
}

TEST(CariamaRun, ReportsCommandLineErrors) {
  const auto run = [](const std::string& arguments, int code) {
    Running job(cariama_run() + " " + arguments);
    EXPECT_EQ(job.wait(), code) << arguments;
    EXPECT_EQ(job.out(), "");
    return job.err();
  };
  EXPECT_THAT(run("--frobnicate -n 2 true", 2), HasSubstr("unknown option --frobnicate"));
  EXPECT_THAT(run("-n 2 -q true", 2), HasSubstr("unknown option -q"));
  EXPECT_THAT(run("-n two true", 2), HasSubstr("-n needs a number"));
  EXPECT_THAT(run("-n 0 true", 2), HasSubstr("-n needs a number from 1"));
  EXPECT_THAT(run("-n", 2), HasSubstr("-n needs a value"));
  EXPECT_THAT(run("true", 2), HasSubstr("(-n) is not given"));
  EXPECT_THAT(run("-n 2", 2), HasSubstr("no program to run"));
  EXPECT_THAT(run("-n 2 -t 0 true", 2), HasSubstr("-t needs a number"));
  EXPECT_THAT(run("-n 2 --bind socket true", 2), HasSubstr("--bind knows none, core and numa"));
  EXPECT_THAT(run("-n 2 --timeout never true", 2), HasSubstr("--timeout needs a time"));
  EXPECT_THAT(run("-n 2 --tag-output=yes true", 2), HasSubstr("unknown option"));
  EXPECT_THAT(run("-n 2 no-such-program-anywhere", 127), HasSubstr("No such file"));
  EXPECT_THAT(run("-n 2 /etc/passwd", 126), HasSubstr("Permission denied"));
}

TEST(CariamaRun, OptionsBehindTheProgramAreTheProgramsOwn) {
  Running job(cariama_run() + " -n1 -- echo -n --frobnicate --help");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "--frobnicate --help");
  Running help(cariama_run() + " --help");
  EXPECT_EQ(help.wait(), 0);
  EXPECT_THAT(help.out(), HasSubstr("cariama-run -n P [options]"));
}

// ---- Programs that launch themselves ------------------------------------------------------------

// This program with an environment in which main() begins with launch_self({.processes = 2}).
std::string self_launching(const std::string& variables = {}) {
  return "env LAUNCH_SELF=1 " + variables + " " + self();
}

TEST(LaunchSelf, AProgramStartedByHandIsTheJob) {
  Running job(self_launching() + " --role=exchange");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(lines_of(job.out()), UnorderedElementsAre("local 0/2 t0 of 0,of 1, hello 0",
                                                        "local 1/2 t0 of 0,of 1, hello 1"));
  EXPECT_EQ(job.err(), "");
}

TEST(LaunchSelf, OptionsInFrontAreTheLaunchersAndTheRestIsThePrograms) {
  for (const char* end : {"", "-- "}) {
    Running job(self_launching() + " -n 3 -t2 --bind=none " + end + "--role=exchange");
    EXPECT_EQ(job.wait(), 0) << job.err();
    EXPECT_THAT(lines_of(job.out()), UnorderedElementsAre("local 0/3 t2 of 0,of 1,of 2, hello 0",
                                                          "local 1/3 t2 of 0,of 1,of 2, hello 1",
                                                          "local 2/3 t2 of 0,of 1,of 2, hello 2"));
  }
}

TEST(LaunchSelf, UnderALauncherItJoins) {
  Running job(cariama_run() + " -n 3 " + self_launching() + " --role=exchange");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(lines_of(job.out()), UnorderedElementsAre("local 0/3 t0 of 0,of 1,of 2, hello 0",
                                                        "local 1/3 t0 of 0,of 1,of 2, hello 1",
                                                        "local 2/3 t0 of 0,of 1,of 2, hello 2"));
  Running environment(self_launching("RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0 "
                                     "CARIAMA_THREADS=3") +
                      " --role=exchange");
  EXPECT_EQ(environment.wait(), 0) << environment.err();
  EXPECT_EQ(environment.out(), "environment 0/1 t3 of 0, hello 0\n");
}

TEST(LaunchSelf, ASingleProcessOnRequest) {
  Running job(self_launching("CARIAMA_BOOTSTRAP=single") + " --role=exchange");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "single 0/1 t0 of 0, hello 0\n");
}

TEST(LaunchSelf, TheExitCodeIsThatOfTheJob) {
  Running killed(self_launching() + " -n 4 --role=die");
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  EXPECT_EQ(killed.err(), "cariama-run: rank 1 was killed by signal 9 (Killed)\n");
  Running wrong(self_launching() + " -n two --role=exchange");
  EXPECT_EQ(wrong.wait(), 2);
  EXPECT_EQ(wrong.out(), "");
  EXPECT_THAT(wrong.err(), HasSubstr("-n needs a number from 1"));
}

// ---- PMIx ---------------------------------------------------------------------------------------

class MpiRun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun > /dev/null") != 0) {
      GTEST_SKIP() << "mpirun is not installed (Debian package openmpi-bin; scripts/setup test)";
    }
    // PMIx and Open MPI keep memory until the process ends; that is not a leak of this program.
    const char* const options = getenv("ASAN_OPTIONS");
    setenv("ASAN_OPTIONS",
           ((options != nullptr ? std::string(options) + ":" : std::string()) + "detect_leaks=0")
               .c_str(),
           1);
  }
  static std::string mpirun(int processes) {
    return "mpirun --allow-run-as-root --oversubscribe -n " + std::to_string(processes) + " ";
  }
};

TEST_F(MpiRun, ProcessesFindEachOtherThroughPmix) {
  setenv("CARIAMA_THREADS", "4", 1);
  Running job(mpirun(3) + self() + " --role=exchange");
  unsetenv("CARIAMA_THREADS");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(lines_of(job.out()), UnorderedElementsAre("pmix 0/3 t4 of 0,of 1,of 2, hello 0",
                                                        "pmix 1/3 t4 of 0,of 1,of 2, hello 1",
                                                        "pmix 2/3 t4 of 0,of 1,of 2, hello 2"));
}

TEST_F(MpiRun, AJobWritesEachDiagnosticOnce) {
  Running job(mpirun(3) + self() + " --role=diagnostics");
  EXPECT_EQ(job.wait(), 0) << job.err() << job.out();
  expect_each_diagnostic_once(job.err());
}

TEST_F(MpiRun, ARankKilledInAFenceEndsTheJob) {
  Running job(mpirun(3) + self() + " --role=die");
  // mpirun returns either code: the other ranks also end when they detect the death.
  EXPECT_THAT(job.wait(), AnyOf(128 + SIGKILL, 5)) << job.err();
}

TEST_F(MpiRun, AProgramThatLaunchesItselfJoins) {
  Running job(mpirun(2) + self_launching() + " --role=exchange");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(lines_of(job.out()), UnorderedElementsAre("pmix 0/2 t0 of 0,of 1, hello 0",
                                                        "pmix 1/2 t0 of 0,of 1, hello 1"));
}

TEST_F(MpiRun, ASingleProcess) {
  Running job(mpirun(1) + self() + " --role=exchange");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "pmix 0/1 t0 of 0, hello 0\n");
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  if (getenv("LAUNCH_SELF") != nullptr) {
    if (const auto code = cariama::launch_self({.processes = 2}, argc, argv)) return *code;
  }
  return cariama::testing::play_or_test(argc, argv, cariama::play);
}
