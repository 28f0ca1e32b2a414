// The n-th call of one function of the C library fails in one process of a job, for n = 1, 2, ...
// until a run makes fewer calls of it (SQLite tests its allocations so). Each job ends within its
// time, and not by a crash. It succeeds, or prints the error. No process remains after its end.
//
// The library in preload/ makes the calls fail. The jobs run this program again, with --job as its
// last argument: it launches two processes. --channel, --router: see nth_failure_channel.h.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/launcher.h"
#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "mcts/host.h"
#include "mcts/search.h"
#include "riutils/messenger.h"
#include "tasks/runtime.h"
#include "tasks/start.h"
#include "tasks/task.h"
#include "tests/dtutils/testing/text_of.h"
#include "tests/mcts/testing/tic_tac_toe.h"
#include "tests/nth_failure/nth_failure_channel.h"

namespace cariama {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)

// ---- The job ------------------------------------------------------------------------------------

// A run without a failure needs a thousandth of it.
Deadline in_time() { return deadline_after(30s); }

// A step of the job that failed.
struct StepFailure : std::exception {
  explicit StepFailure(std::string text) : text(std::move(text)) {}
  [[nodiscard]] const char* what() const noexcept override { return text.c_str(); }
  const std::string text;
};
void require(const char* step, const absl::Status& status) {
  if (!status.ok()) throw StepFailure(std::string(step) + ": " + status.ToString());
}
template <typename T>
T require(const char* step, absl::StatusOr<T> value) {
  require(step, value.status());
  return *std::move(value);
}

void meet(Fabric& fabric, const char* step) { require(step, fabric.bootstrap().fence(in_time())); }

void connect_and_call(Fabric& fabric) {
  const auto self = require("init_thread", fabric.init_thread(0));
  const Rank other = 1 - fabric.rank();
  require("connect", fabric.connection(other).status());
  const ThreadId there = fabric.thread_of(other);
  // Send-based. The argument takes memory.
  const std::string text(100, 'x');
  const auto size = [](const std::string& text) { return static_cast<int>(text.size()); };
  const int bytes =
      require("a send-based call", async_call(fabric, there, size, text).get(in_time()));
  if (bytes != 100) throw StepFailure("a send-based call: another result");
  // One-sided.
  RDMAMessenger messenger(*self, there, {.timeout = 30s});
  Synchronizer answered;
  int result = 0;
  require("a one-sided call", messenger.call_return([] { return 42; }, result, answered));
  require("a one-sided call", fabric.wait(answered, in_time()));
  if (result != 42) throw StepFailure("a one-sided call: another result");
  require("shutdown of a messenger", messenger.shutdown(in_time()));
  // The other process may still wait for this one to run its calls.
  static int ended = 0;
  require("the last call", call(fabric, there, [] { ended = 1; }));
  if (!fabric.wait([] { return ended == 1; }, in_time())) {
    throw StepFailure("the last call: it did not arrive in time");
  }
}

// Rank 0 spawns a task that ends when its parent continues in rank 1.
std::atomic<bool> stolen{false};
std::atomic<Fabric*> this_fabric{nullptr};

void steal(Fabric& fabric) {
  const auto self = require("init_thread", fabric.init_thread(0));
  const auto runtime = require("create the task runtime", TaskRuntime::create(fabric, {}));
  this_fabric = &fabric;
  const int code = require("tasks", runtime->run([] {
    const Rank victim = this_fabric.load()->rank();
    task<int> child = spawn([] {
      const Deadline deadline = in_time();
      while (!stolen && std::chrono::steady_clock::now() < deadline) {
        poll();
        sched_yield();
      }
      return stolen ? 0 : 1;
    });
    absl::Status told = absl::OkStatus();
    if (this_fabric.load()->rank() != victim) {
      told = service_call(*this_fabric, victim, [] { stolen = true; });
    }
    return join(std::move(child)) + (told.ok() ? 0 : 2);
  }));
  if (code != 0) throw StepFailure("tasks: no steal, case " + std::to_string(code));
}

void search(Fabric& fabric) {
  const auto host = require("create the host of a search", mcts::Host::create(&fabric));
  if (host->rank() != 0) return require("serve a search", host->serve());
  mcts::Search<mcts::testing::TicTacToe> search(*host);
  search.options().expand_visits = 2;
  search.options().placement = mcts::Placement::kRandom;
  search.options().spread_visits = 50;  // rank 0 alone, and then both processes
  const auto result = search.run(mcts::testing::TicTacToe(), {.iterations = 200});
  if (result.iterations == 0) throw StepFailure("a search: no rollout ended");
  host->end();
}

void run_the_job() {
  FabricOptions options;
  options.threads = 2;
  options.timeout = 30s;
  const auto fabric = require("create the fabric", Fabric::create(options));
  connect_and_call(*fabric);
  meet(*fabric, "meet after the calls");
  steal(*fabric);
  meet(*fabric, "meet after the tasks");
  search(*fabric);
  require("finalize", fabric->finalize(in_time()));
}

int play(int argc, char** argv) {
  if (void* const start = dlsym(RTLD_DEFAULT, "fail_nth_call_start"); start != nullptr) {
    reinterpret_cast<void (*)()>(start)();
  }
  try {
    if (const auto code = start_workers({.processes = 2, .grace = 1s}, argc, argv)) return *code;
    run_the_job();
    return 0;
  } catch (const std::bad_alloc& error) {
    std::fprintf(stderr, "nth_failure_test: rank %s: %s (%s)\n", getenv("CARIAMA_RANK"),
                 std::strerror(ENOMEM), error.what());
    return 1;
  } catch (const std::exception& error) {  // StepFailure, and what a constructor throws
    std::fprintf(stderr, "nth_failure_test: rank %s: %s\n", getenv("CARIAMA_RANK"), error.what());
    return 1;
  }
}

// ---- The tests ----------------------------------------------------------------------------------

// The end of a job.
struct Ended {
  bool in_time = false;
  int status = 0;       // as of waitpid()
  std::string output;   // of all processes
  std::string failure;  // the call that failed, with its callers; "": no call failed
  bool alone = false;   // no process of the job was left
};

// The parameters: the function, and the process that calls it, a rank or the launcher.
class NthFailure : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/cariama-nth-failure-XXXXXX";
    folder_ = mkdtemp(pattern);
    // Processes that the launcher leaves behind become children of this process.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Runs a job whose n-th call of `function` fails in `victim`.
  Ended run(const std::string& function, const std::string& victim, int n) {
    Ended ended;
    const std::string output = folder_ + "/output";
    const std::string log = folder_ + "/log";
    std::filesystem::remove(log);
    const std::string self = "/proc/" + std::to_string(getpid()) + "/exe";
    const std::string call = function + ":" + std::to_string(n);
    const pid_t launcher = fork();
    if (launcher == 0) {
      personality(ADDR_NO_RANDOMIZE);  // else the workers execute the program twice
      for (const char* name : {"RANK", "PMIX_RANK", "CARIAMA_LAUNCH_SOCKET", "CARIAMA_RANK"}) {
        unsetenv(name);
      }
      setenv("LD_PRELOAD", CARIAMA_FAIL_NTH_CALL, 1);
      setenv("FAIL_NTH_CALL", call.c_str(), 1);
      setenv("FAIL_NTH_CALL_IN", victim.c_str(), 1);
      setenv("FAIL_NTH_CALL_LOG", log.c_str(), 1);
      const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
      execl(self.c_str(), "nth_failure_test", "--job", nullptr);
      _exit(127);
    }
    ended.in_time = wait_for(launcher, ended.status);
    ended.alone = wait_for_all_others();
    ended.output = testing::text_of(output);
    ended.failure = testing::text_of(log);
    return ended;
  }

 private:
  // Waits for a child. Kills it if it does not end.
  static bool wait_for(pid_t child, int& status) {
    const Deadline deadline = deadline_after(100s);
    while (waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return false;
      }
      std::this_thread::sleep_for(2ms);
    }
    return true;
  }
  // Waits for processes that are about to end. Returns false if one does not.
  static bool wait_for_all_others() {
    const Deadline deadline = deadline_after(30s);
    bool killed = false;
    for (pid_t child = 0; child != -1 || errno == EINTR;) {
      child = waitpid(-1, nullptr, WNOHANG);
      if (child != 0) continue;
      if (std::chrono::steady_clock::now() > deadline) {
        killed = true;
        const std::string self = std::to_string(getpid());
        std::ifstream children("/proc/" + self + "/task/" + self + "/children");
        for (pid_t left = 0; children >> left;) kill(left, SIGKILL);
      }
      std::this_thread::sleep_for(1ms);
    }
    return !killed;
  }

  std::string folder_;
};

// Each n-th allocation of a thread that sends to itself, without a job. Runs this program with
// `option`.
void expect_exactly_once(const char* option) {
  const std::string self = "/proc/" + std::to_string(getpid()) + "/exe";
  const pid_t child = fork();
  if (child == 0) {
    setenv("LD_PRELOAD", CARIAMA_FAIL_NTH_CALL, 1);
    execl(self.c_str(), "nth_failure_test", option, nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(NthFailureOfAChannel, LosesNoCallAndNoChunk) { expect_exactly_once("--channel"); }
TEST(NthFailureOfARouter, ForwardsEachCallOnce) { expect_exactly_once("--router"); }

// The error that the failing function reports, as the job prints it.
std::string error_of(const std::string& function) {
  for (const char* name : {"memfd_create", "socket", "socketpair", "accept4", "epoll_create1",
                           "pipe2", "eventfd", "signalfd", "open"}) {
    if (function == name) return std::strerror(EMFILE);
  }
  if (function == "fork" || function == "pthread_create") return std::strerror(EAGAIN);
  if (function == "ftruncate") return std::strerror(ENOSPC);
  if (function == "send" || function == "sendmsg" || function == "listen") {
    return std::strerror(ENOBUFS);
  }
  return std::strerror(ENOMEM);
}

bool names_error(const std::string& output, const std::string& function) {
  // A call whose arguments find no memory is rejected as malformed, see docs/reliability-waits.md.
  // A broker that finds none to answer a peer writes a text that needs none.
  if (function == "new" && (output.find(std::bad_alloc().what()) != std::string::npos ||
                            output.find("malformed") != std::string::npos ||
                            output.find("lacks memory") != std::string::npos)) {
    return true;
  }
  return output.find(error_of(function)) != std::string::npos;
}

// Returns the violated requirement of a job in which a call of `function` failed, or "".
std::string judge(const Ended& job, const std::string& function) {
  if (!job.in_time) return "the job did not end in time";
  if (!job.alone) return "a process was left";
  if (!WIFEXITED(job.status)) return "the launcher was killed by a signal";
  // Processes that the launcher ends with SIGTERM are not reported as killed.
  if (job.output.find("was killed by signal") != std::string::npos) return "a process crashed";
  if (job.output.find("terminate called") != std::string::npos) return "an uncaught exception";
  const int code = WEXITSTATUS(job.status);
  if (code == 0) return "";
  if (job.failure.empty()) return "no call failed, and the job did";
  if (code == kLaunchTimedOut) return "the launcher ended the job after its time";
  if (!names_error(job.output, function)) return "no sentence has the error";
  return "";
}

// Returns the difference from one n to the next.
int stride_of(const std::string& function) {
  if (getenv("NTH_FAILURE_ALL") != nullptr) return 1;
  // Hundreds of paths, each of which counts once. A prime, so that the calls of a loop are not
  // always met at the same place.
  if (function == "new") return 101;
  // Most of these calls repeat a few steps of the exchange, in the launcher over a hundred times.
  if (function == "send" || function == "recv" || function == "poll") return 11;
  if (function == "mmap" || function == "recvmsg") return 5;
  return 1;
}

TEST_P(NthFailure, EndsTheJobInTimeWithASentence) {
  const auto [function, victim] = GetParam();
  const int stride = stride_of(function);
  int refused = 0;
  for (int n = 1;; n += stride) {
    const Ended job = run(function, victim, n);
    const std::string wrong = judge(job, function);
    EXPECT_EQ(wrong, "") << function << " " << n << " in " << victim << "\n"
                         << job.failure << "status " << job.status << "\n"
                         << job.output;
    if (!job.in_time) break;
    if (job.failure.empty()) {
      std::printf("%d calls fail, %d of them end the job\n", (n - 1) / stride, refused);
      break;
    }
    if (job.status != 0) ++refused;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, NthFailure,
    ::testing::Combine(::testing::Values("mmap", "memfd_create", "ftruncate", "socket",
                                         "socketpair", "bind", "listen", "accept4", "connect",
                                         "sendmsg", "recvmsg", "send", "recv", "poll",
                                         "epoll_create1", "epoll_ctl", "epoll_wait", "pipe2",
                                         "eventfd", "signalfd", "open", "fork", "pthread_create",
                                         "new"),
                       ::testing::Values("launcher", "0", "1")),
    [](const auto& info) { return std::get<0>(info.param) + "_in_" + std::get<1>(info.param); });

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  if (std::string_view(argv[argc - 1]) == "--job") return cariama::play(argc, argv);
  if (std::string_view(argv[argc - 1]) == "--channel") return cariama::fail_in_a_channel();
  if (std::string_view(argv[argc - 1]) == "--router") return cariama::fail_in_a_router();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
