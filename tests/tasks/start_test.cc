// Workers that a launcher executes instead of forking them: cariama-run, mpirun, or the program
// itself. The workers execute this program with --role=NAME as the last argument.
#include "tasks/start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/personality.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/global_memory.h"
#include "dsfabric/send_call.h"
#include "dtutils/exchange_connect.h"
#include "tasks/await.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Prints a line with one write(), because the processes share their output.
void print(const std::string& line) {
  const std::string whole = line + "\n";
  static_cast<void>(!write(STDOUT_FILENO, whole.data(), whole.size()));
}
[[noreturn]] void fail(const std::string& why) {
  print("failed: " + why);
  _exit(98);
}
template <typename T>
T require(absl::StatusOr<T> value) {
  if (!value.ok()) fail(value.status().ToString());
  return *std::move(value);
}
void require(const absl::Status& status) {
  if (!status.ok()) fail(status.ToString());
}

// ---- What the workers do ------------------------------------------------------------------------

// The frame of this function has a canary if the stack protector is enabled. The frame migrates
// with its canary.
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((stack_protect))
#endif
long protected_fib(long n) {
  volatile char local[32];
  local[n % 32] = static_cast<char>(n);
  if (n < 2) {
    poll();
    return n;
  }
  task<long> left = spawn([n] { return protected_fib(n - 1); });
  const long right = protected_fib(n - 2);
  const long sum = join(std::move(left)) + right;
  return local[n % 32] == static_cast<char>(n) ? sum : -1'000'000;
}

struct Job {
  std::unique_ptr<Fabric> fabric = require(Fabric::create());
  std::unique_ptr<ThreadContext> thread = require(fabric->init_thread(0));
  std::unique_ptr<TaskRuntime> runtime = require(TaskRuntime::create(*fabric, {}));

  // Returns the number of tasks that all workers have stolen so far. Collective.
  uint64_t steals() {
    Exchange& exchange = fabric->bootstrap();
    const Deadline deadline = deadline_after(60s);
    const std::string key = "steals " + std::to_string(++asked_);
    require(put_value(exchange, key, runtime->statistics().steals));
    uint64_t sum = 0;
    for (int rank = 0; rank < exchange.size(); ++rank) {
      sum += require(get_value<uint64_t>(exchange, rank, key, deadline));
    }
    return sum;
  }
  int end() {
    runtime.reset();
    thread.reset();
    require(fabric->finalize(deadline_after(60s)));
    return 0;
  }

 private:
  int asked_ = 0;
};

int role_fib() {
  Job job;
  const Deadline deadline = deadline_after(60s);
  do {
    const long value = require(job.runtime->run([] { return protected_fib(22); }));
    if (value != 17711) fail("fib(22) is " + std::to_string(value));
  } while (job.steals() == 0 && std::chrono::steady_clock::now() < deadline);
  if (job.steals() == 0) fail("no steal happened");
  if (job.fabric->rank() == 0) print("right on " + std::to_string(job.fabric->size()));
  return job.end();
}

// Creates several runtimes in one job, one after the other.
int role_again() {
  auto bootstrap = require(make_bootstrap());
  for (int i = 0; i < 3; ++i) {
    auto runtime = require(TaskRuntime::create(*bootstrap, {}));
    for (int run = 0; run < 2; ++run) {
      if (require(runtime->run([] { return protected_fib(18); })) != 2584) fail("fib(18)");
    }
  }
  if (bootstrap->rank() == 0) print("right");
  require(bootstrap->finalize(deadline_after(60s)));
  return 0;
}

// Does not call start_workers(), so the workers have different addresses.
int role_random() {
  auto fabric = require(Fabric::create());
  const auto runtime = TaskRuntime::create(*fabric, {});
  print(std::string(runtime.status().message()));
  require(fabric->finalize(deadline_after(60s)));
  return 0;
}

// Creates a runtime without a fabric, which would compare the builds itself.
int role_build() {
  auto bootstrap = require(make_bootstrap());
  const auto runtime = TaskRuntime::create(*bootstrap, {});
  print(std::string(runtime.status().message()));
  require(bootstrap->finalize(deadline_after(60s)));
  return 0;
}

// A worker kills itself after it has stolen a task. There is no fabric, so the task runtime of the
// survivor must detect it.
int role_killed() {
  auto bootstrap = require(make_bootstrap());
  auto runtime = require(TaskRuntime::create(*bootstrap, {}));
  const absl::Status ended = runtime->run([] {
    const pid_t before = getpid();
    const Deadline deadline = deadline_after(60s);
    while (std::chrono::steady_clock::now() < deadline) {
      task<int> child = spawn([] {
        const Deadline until = deadline_after(100ms);
        while (std::chrono::steady_clock::now() < until) poll();
        return 1;
      });
      if (getpid() != before) raise(SIGKILL);
      join(std::move(child));
    }
  });
  std::fprintf(stderr, "run(): %s\n", std::string(ended.message()).c_str());
  return absl::IsUnavailable(ended) ? 0 : 97;
}

// ---- waiting for other layers, in tasks ----

Job* the_job = nullptr;
GlobalMemory* the_memory = nullptr;
std::atomic<int> step{0};

// Each wait ends only if another task of the same worker runs meanwhile. Rank 1 answers calls while
// it is idle or waits.
int role_await() {
  Job job;
  the_job = &job;
  auto memory = require(GlobalMemory::create(*job.fabric));
  the_memory = memory.get();
  const auto result = job.runtime->run([] {
    // A task waits for a store that its parent does after the spawn, in the same process.
    task<int> waits = spawn_tied([] {
      // The parent continues in this worker, because it is tied.
      return await_until([] { return step == 1; }, deadline_after(60s)) ? 1 : 0;
    });
    step = 1;
    if (join(std::move(waits)) != 1) fail("a condition did not become true");
    // A task waits for the answer to a call.
    task<int> calls = spawn_tied([] {
      Future<int> answer = async_call(*the_job->fabric, 1, [] { return 42; });
      step = 2;
      return await(answer, deadline_after(60s)).value_or(0);
    });
    if (join(std::move(calls)) != 42) fail("another answer");
    // The root waits for transfers of global memory.
    const auto cell = the_memory->allocate<uint64_t>(1, 1, deadline_after(60s));
    if (!cell.ok()) fail(cell.status().ToString());
    GlobalTransfer put = the_memory->rput(uint64_t{7}, *cell);
    if (!await(put, kForever).ok()) fail("rput");
    GlobalValue<uint64_t> got = the_memory->rget(*cell);
    const auto value = await(got, kForever);
    return value.ok() ? static_cast<int>(*value) : -1;
  });
  if (require(result) != 7) fail("another value");
  if (job.fabric->rank() == 0) print("right");
  memory.reset();
  return job.end();
}

int play(std::string_view role) {
  if (role == "fib") return role_fib();
  if (role == "again") return role_again();
  if (role == "random") return role_random();
  if (role == "build") return role_build();
  if (role == "killed") return role_killed();
  if (role == "await") return role_await();
  return 96;
}

// ---- Tests --------------------------------------------------------------------------------------

struct Ended {
  int code;
  std::string output;  // stdout and stderr
};
Ended run_job(const std::string& launcher, const std::string& arguments, const std::string& role) {
  const std::string command =
      "env -u RANK -u PMIX_RANK -u CARIAMA_LAUNCH_SOCKET ASAN_OPTIONS=detect_leaks=0 " + launcher +
      " /proc/" + std::to_string(getpid()) + "/exe " + arguments + " --role=" + role +
      " < /dev/null 2>&1";
  Ended ended{-1, ""};
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return ended;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof buffer, pipe)) {
    ended.output.append(buffer, count);
  }
  const int status = pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}
const std::string kCariamaRun = CARIAMA_PROGRAM_DIR "/cariama-run --timeout 100 -n ";

TEST(Start, UnderCariamaRun) {
  for (const char* count : {"2", "8"}) {
    const Ended job = run_job(kCariamaRun + count, "", "fib");
    EXPECT_EQ(job.code, 0) << job.output;
    EXPECT_THAT(job.output, HasSubstr(std::string("right on ") + count + "\n"));
  }
}

TEST(Start, SeveralRuntimesInOneJob) {
  const Ended job = run_job(kCariamaRun + "2", "", "again");
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("right\n"));
}

TEST(Start, UnderMpirun) {
  if (std::system("command -v mpirun > /dev/null") != 0) {
    GTEST_SKIP() << "mpirun is not installed (Debian package openmpi-bin; scripts/setup test)";
  }
  const Ended job = run_job("mpirun --allow-run-as-root --oversubscribe -n 2", "", "fib");
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("right on 2\n"));
}

TEST(Start, ByHand) {
  const Ended job = run_job("", "-n 3", "fib");
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("right on 3\n"));
}

TEST(Start, RandomAddressesAreRefused) {
  const int now = personality(0xffffffff);
  if ((now & ADDR_NO_RANDOMIZE) != 0) GTEST_SKIP() << "addresses are not random here (setarch -R)";
  const Ended job = run_job(kCariamaRun + "2", "", "random");
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_THAT(job.output, AllOf(HasSubstr("tasks cannot migrate to rank"),
                                HasSubstr("the address of the program differs (0x"),
                                HasSubstr("start_workers()")));
}

// Rank 1 executes a copy of this program that differs in its build id only, so that all addresses
// are equal.
TEST(Start, AnotherBuildIsRefused) {
  std::ifstream self("/proc/self/exe", std::ios::binary);
  std::string program{std::istreambuf_iterator<char>(self), {}};
  const std::string note("\3\0\0\0GNU", 8);  // the type of a build id, and the name of its owner
  const size_t id = program.find(note);
  ASSERT_NE(id, std::string::npos);
  program[id + note.size()] = static_cast<char>(program[id + note.size()] ^ 1);
  const std::string copy = ::testing::TempDir() + "/start_test." + std::to_string(getpid());
  std::ofstream(copy, std::ios::binary) << program;
  ASSERT_EQ(chmod(copy.c_str(), 0700), 0);
  const Ended job =
      run_job(kCariamaRun + "2 sh -c 'test $CARIAMA_RANK = 1 || shift; exec \"$@\"' sh " + copy, "",
              "build");
  unlink(copy.c_str());
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_THAT(job.output,
              AllOf(HasSubstr("tasks cannot migrate to rank 0"),
                    HasSubstr("tasks cannot migrate to rank 1"),
                    HasSubstr("the build id of the program or of a shared library differs: "
                              "start the same build")));
}

TEST(Start, WorkersAreCounted) {
  EXPECT_GE(usable_workers(), 1);
  EXPECT_LE(usable_workers(), sysconf(_SC_NPROCESSORS_ONLN));
}

TEST(Faults, AKilledWorkerIsAnErrorOfRun) {
  const Ended job = run_job(kCariamaRun + "2 --keep-going", "", "killed");
  EXPECT_EQ(job.code, 128 + SIGKILL) << "the exit code of the process that failed first";
  EXPECT_THAT(job.output,
              AllOf(HasSubstr("run(): rank 1 has failed during a run of tasks"),
                    HasSubstr("rank 1 stole 1 task from it"), Not(HasSubstr("exited with code"))));
}

TEST(Await, OtherTasksRunMeanwhile) {
  const Ended job = run_job(kCariamaRun + "2", "", "await");
  EXPECT_EQ(job.code, 0) << job.output;
  EXPECT_THAT(job.output, AllOf(HasSubstr("right\n"), Not(HasSubstr("failed"))));
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  constexpr std::string_view kRole = "--role=";
  const std::string_view last = argv[argc - 1];
  if (last.substr(0, kRole.size()) == kRole) {
    if (last != "--role=random") {
      if (const auto code = cariama::start_workers({.processes = 2}, argc, argv)) return *code;
    }
    return cariama::play(last.substr(kRole.size()));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
