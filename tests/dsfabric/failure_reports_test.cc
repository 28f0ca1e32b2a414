// The report that a job prints when one of its processes fails names the process that failed first,
// and the reason. The jobs run this program again, with --role=NAME as its first argument.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "dsfabric/bootstrap.h"
#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dsfabric/launcher.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/job_environment.h"
#include "tests/dsfabric/testing/role.h"
#include "tests/dsfabric/testing/running_command.h"
#include "tests/dtutils/testing/process_state.h"

// Sanitizers handle SIGSEGV themselves.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CARIAMA_OTHER_HANDLERS
#endif

namespace cariama {

// Outside of the anonymous namespace, so that the report can name it.
__attribute__((noinline)) void crash_here() { std::abort(); }
volatile uintptr_t address_to_read = 0;
__attribute__((noinline)) void read_there() {
  static_cast<void>(*reinterpret_cast<const volatile int*>(address_to_read));
}
volatile bool recursion_ends = false;
__attribute__((noinline)) int recurse(int depth) {
  volatile char frame[500];
  frame[depth % 500] = 1;
  return recursion_ends ? 0 : recurse(depth + 1) + frame[depth % 500];
}

namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Running;

// The deadline of waits that should succeed. It only prevents that a defect hangs the test.
Deadline far_away() { return deadline_after(std::chrono::seconds(60)); }

// Rank 1 kills rank 0, and exits immediately. Rank 0 has much memory, so its end takes longer than
// the end of rank 1.
int kill_rank_0() {
  auto bootstrap = make_bootstrap({.kind = {}, .timeout = std::chrono::seconds(60)});
  if (!bootstrap.ok()) return 99;
  std::vector<char> memory;
  if ((*bootstrap)->rank() == 0) {
    memory.assign(size_t{1} << 30, 1);
    if (!(*bootstrap)->put("pid", std::to_string(getpid())).ok()) return 98;
  }
  if ((*bootstrap)->rank() == 1) {
    const auto pid = (*bootstrap)->get(0, "pid", far_away());
    if (!pid.ok()) return 97;
    kill(std::stoi(*pid), SIGKILL);
    _exit(7);
  }
  while (true) pause();
}

// "one unfinalized": rank 1 returns without finalize(), and the others continue without it. "none
// finalized": no process calls finalize().
int end_without_finalize(std::string_view role) {
  auto fabric = Fabric::create({.on_failure = FailurePolicy::kContinue});
  if (!fabric.ok()) return 99;
  if (!(*fabric)->bootstrap().fence(far_away()).ok()) return 98;
  if (role == "none finalized") std::exit(0);
  if ((*fabric)->rank() == 1) return 0;
  return (*fabric)->finalize(far_away()).ok() ? 0 : 97;
}

// Replaces stderr by a pipe that is full, and that no process reads.
void fill_stderr() {
  int ends[2] = {-1, -1};
  if (pipe(ends) != 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) _exit(95);
  const std::string much(4096, 'x');
  while (write(ends[1], much.data(), much.size()) > 0) {
  }
  fcntl(ends[1], F_SETFL, 0);
  dup2(ends[1], STDERR_FILENO);
}

constexpr size_t kMemoryLimit = size_t{512} << 20;  // bytes

// Uses more memory than kMemoryLimit. Returns if no limit ends the process.
int exceed_memory_limit() {
  constexpr size_t kBytes = 2 * kMemoryLimit;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return 94;
  std::memset(memory, 1, kBytes);
  return 93;
}

int fail_in_rank_1(std::string_view role) {
  FabricOptions options;
  if (role == "overflow in a thread") options.threads = 2;
  if (role != "continue" && role != "exceed") options.on_failure = FailurePolicy::kAbort;
  auto made = Fabric::create(options);
  if (!made.ok()) {
    const std::string text = made.status().ToString() + "\n";
    static_cast<void>(!write(STDOUT_FILENO, text.data(), text.size()));
    return 99;
  }
  Fabric& fabric = **made;
  auto self = fabric.init_thread(0);
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  if (role == "crash" && fabric.rank() != 1) {
    // With a connection, the survivors also detect the failure by themselves.
    if (!fabric.connection(1).ok()) return 98;
  }
  if (!fabric.bootstrap().fence(deadline).ok()) return 97;
  if (fabric.rank() == 1) {
    if (role == "unread") fill_stderr();
    if (role == "crash" || role == "unread") crash_here();
    if (role == "no address") address_to_read = uintptr_t{1} << 63;
    if (role == "address" || role == "no address") read_there();
    if (role == "overflow") return recurse(0);
    if (role == "overflow in a thread") {
      std::thread([&] {
        const auto second = fabric.init_thread(1);
        recurse(0);
      }).join();
    }
    if (role == "together") {
      std::barrier start(8);
      std::vector<std::thread> threads;
      for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&] {
          start.arrive_and_wait();
          read_there();
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    if (role == "kill" || role == "continue") raise(SIGKILL);
    if (role == "exceed") return exceed_memory_limit();
    return 0;  // without finalize()
  }
  static_cast<void>(fabric.wait([&] { return !fabric.peer_status(1).ok(); }, deadline));
  const std::string text = fabric.peer_status(1).ToString() + "\n";
  static_cast<void>(!write(STDOUT_FILENO, text.data(), text.size()));
  return 96;
}

// Rank 1 stops. With a lease the others exit because of it, or finish in order without it.
int stop_rank_1(FailurePolicy on_failure) {
  FabricOptions options;
  options.on_failure = on_failure;
  options.lease = std::chrono::seconds(3);
  auto fabric = Fabric::create(options);
  if (!fabric.ok() || !(*fabric)->bootstrap().fence(far_away()).ok()) return 99;
  if ((*fabric)->rank() != 1 && !(*fabric)->connection(1).ok()) return 98;
  if (!(*fabric)->bootstrap().fence(far_away()).ok()) return 97;
  if ((*fabric)->rank() == 1) raise(SIGSTOP);
  if (on_failure == FailurePolicy::kContinue) return (*fabric)->finalize(far_away()).ok() ? 0 : 96;
  while (true) pause();
}

// All processes meet in a barrier, whose deadline ends no test.
int meet() {
  auto fabric = Fabric::create({.on_failure = FailurePolicy::kContinue});
  absl::Status met = fabric.status();
  if (met.ok()) {
    const auto self = (*fabric)->init_thread(0);
    Collectives all(**fabric);
    met = all.barrier(deadline_after(std::chrono::hours(1)));
    if (met.ok()) met = (*fabric)->finalize(far_away());
  }
  const std::string text = met.ToString() + "\n";
  static_cast<void>(!write(STDOUT_FILENO, text.data(), text.size()));
  return met.ok() ? 0 : 99;
}

std::string launcher() { return std::string(CARIAMA_PROGRAM_DIR) + "/cariama-run"; }

std::string job(const std::string& options, const std::string& role) {
  return launcher() + " " + options + " " + testing::in_role(role);
}

TEST(FailureReports, NameTheProcessThatCrashedFirst) {
  for (int i = 0; i < 5; ++i) {
    Running crashed(job("-n 3", "crash"));
    EXPECT_EQ(crashed.wait(), 128 + SIGABRT);
    EXPECT_THAT(crashed.err(), HasSubstr("cariama-run: rank 1 was killed by signal 6 (Aborted"));
    EXPECT_THAT(crashed.err(), Not(HasSubstr("exited with code")));
    EXPECT_THAT(crashed.err(), HasSubstr("cariama: rank 1 (on "));
    EXPECT_THAT(crashed.err(), HasSubstr("dies of signal 6 (Aborted)\n"));
    EXPECT_THAT(crashed.err(), HasSubstr(" was in "));
    EXPECT_THAT(crashed.err(), HasSubstr("cariama::crash_here()"));
    EXPECT_THAT(crashed.err(), HasSubstr("called from main"));
  }
}

#if !defined(CARIAMA_OTHER_HANDLERS)
TEST(FailureReports, HaveTheAddressIfThereIsOne) {
  Running crashed(job("-n 2", "address"));
  EXPECT_EQ(crashed.wait(), 128 + SIGSEGV);
  EXPECT_THAT(crashed.err(), HasSubstr("dies of signal 11 (Segmentation fault) at address 0x0\n"));
  EXPECT_THAT(crashed.err(), HasSubstr("was in cariama::read_there()"));
#if defined(__x86_64__)  // where such an address is a general protection fault
  Running without(job("-n 2", "'no address'"));
  EXPECT_EQ(without.wait(), 128 + SIGSEGV);
  EXPECT_THAT(without.err(), HasSubstr("dies of signal 11 (Segmentation fault)\n"));
#endif
}

TEST(FailureReports, AreCompleteIfSeveralThreadsCrash) {
  for (int i = 0; i < 5; ++i) {
    Running crashed(job("-n 2", "together"));
    EXPECT_EQ(crashed.wait(), 128 + SIGSEGV);
    EXPECT_THAT(crashed.err(), HasSubstr("dies of signal 11 (Segmentation fault) at address 0x0"));
    EXPECT_THAT(crashed.err(), HasSubstr("was in cariama::read_there()"));
  }
}

TEST(FailureReports, SurviveAStackOverflow) {
  for (const std::string role : {"overflow", "'overflow in a thread'"}) {
    Running crashed("sh -c \"ulimit -s 2048; exec " + job("-n 2", role) + "\"");
    EXPECT_EQ(crashed.wait(), 128 + SIGSEGV);
    EXPECT_THAT(crashed.err(), HasSubstr("cariama: rank 1 (on "));
    EXPECT_THAT(crashed.err(), HasSubstr("dies of signal 11 (Segmentation fault) at address 0x"));
    EXPECT_THAT(crashed.err(), HasSubstr(" (stack overflow?)\n"));
    EXPECT_THAT(crashed.err(),
                HasSubstr("was in cariama::recurse(), called from cariama::recurse"));
  }
}
#endif

// The other processes wait for a crashed process until it is dead.
TEST(FailureReports, DoNotKeepAProcessAliveWhoseOutputIsNotRead) {
  Running crashed(job("-n 2 --timeout 60 --grace 1", "unread"));
  EXPECT_EQ(crashed.wait(), 128 + SIGABRT);
  EXPECT_THAT(crashed.err(), HasSubstr("cariama-run: rank 1 was killed by signal 6 (Aborted"));
}

TEST(FailureReports, AreTurnedOffByTheUser) {
  Running crashed("env CARIAMA_CRASH_REPORT=0 " + job("-n 2", "crash"));
  EXPECT_EQ(crashed.wait(), 128 + SIGABRT);
  EXPECT_THAT(crashed.err(), Not(HasSubstr("crash_here")));
}

// No process is connected to the one that is killed.
TEST(FailureReports, ADeathBeforeTheFirstConnectionEndsTheJob) {
  Running killed(job("-n 3 --keep-going", "kill"));
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  EXPECT_THAT(killed.err(), HasSubstr("cariama: rank 0 exits, because rank 1 (on "));
  EXPECT_THAT(killed.err(), HasSubstr("cariama: rank 2 exits, because rank 1 (on "));
  EXPECT_THAT(killed.err(), HasSubstr("was killed by signal 9 (Killed)"));
}

// The store is in rank 0, which exits because of the death, too.
TEST(FailureReports, ADeathIsReportedToAllBeforeTheStoreEnds) {
  constexpr int kProcesses = 16;
  const std::string size = std::to_string(kProcesses);
  const testing::FreePort port;
  Running killed(launcher() + " -n " + size +
                 " --keep-going sh -c 'exec env CARIAMA_BOOTSTRAP=environment RANK=$CARIAMA_RANK" +
                 " WORLD_SIZE=" + size + " MASTER_ADDR=127.0.0.1 MASTER_PORT=" +
                 std::to_string(port.number()) + " " + testing::in_role("kill") + "'");
  EXPECT_EQ(killed.wait(), 128 + SIGKILL) << killed.err();
  for (int rank = 0; rank < kProcesses; ++rank) {
    if (rank == 1) continue;
    EXPECT_THAT(killed.err(),
                HasSubstr("cariama: rank " + std::to_string(rank) + " exits, because rank 1 (on "));
  }
}

TEST(FailureReports, ADeathBeforeTheFirstConnectionIsReportedToThoseThatContinue) {
  Running killed(job("-n 3 --keep-going", "continue"));
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  EXPECT_THAT(killed.out(), HasSubstr("UNAVAILABLE: "));
  EXPECT_THAT(killed.out(), HasSubstr("was killed by signal 9 (Killed)"));
}

// A control group whose processes together use at most kMemoryLimit.
class LimitedGroup {
 public:
  LimitedGroup() {
    const std::string name = "/cariama-test-" + std::to_string(getpid());
    const std::string limit = std::to_string(kMemoryLimit);
    if (make("/sys/fs/cgroup/memory" + name)) {  // version 1 of control groups
      ready_ = write("memory.limit_in_bytes", limit);
      static_cast<void>(write("memory.memsw.limit_in_bytes", limit));  // memory and swap
    } else if (make("/sys/fs/cgroup" + name)) {
      ready_ = write("memory.max", limit);
      static_cast<void>(write("memory.swap.max", "0"));
    }
  }
  ~LimitedGroup() {
    if (!folder_.empty()) rmdir(folder_.c_str());
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;

  [[nodiscard]] bool ready() const { return ready_; }
  // The file that takes the ids of processes that join the group.
  [[nodiscard]] std::string processes() const { return folder_ + "/cgroup.procs"; }

 private:
  bool make(const std::string& folder) {
    if (mkdir(folder.c_str(), 0755) != 0) return false;
    folder_ = folder;
    return true;
  }
  // Does not create the file: it exists if the group has the controller.
  [[nodiscard]] bool write(const std::string& file, const std::string& text) const {
    const int descriptor = open((folder_ + "/" + file).c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) return false;
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    close(descriptor);
    return count == static_cast<ssize_t>(text.size());
  }

  std::string folder_;
  bool ready_ = false;
};

// The kernel kills a process of a control group whose memory is used up. (Containers and batch
// systems put jobs into such groups.)
TEST(FailureReports, NameAProcessThatTheLimitOfItsControlGroupEnds) {
  const LimitedGroup group;
  if (!group.ready()) GTEST_SKIP() << "this user may not create a control group with a limit";
  Running killed(launcher() + " -n 3 --keep-going sh -c '[ $CARIAMA_RANK != 1 ] || echo $$ > " +
                 group.processes() + "; exec " + testing::in_role("exceed") + "'");
  EXPECT_EQ(killed.wait(), 128 + SIGKILL) << killed.err();
  EXPECT_THAT(killed.err(), HasSubstr("cariama-run: rank 1 was killed by signal 9 (Killed)"));
  EXPECT_THAT(killed.out(), HasSubstr("UNAVAILABLE: "));
  EXPECT_THAT(killed.out(), HasSubstr("was killed by signal 9 (Killed)"));
}

TEST(FailureReports, AStoppedProcessIsKilledIfTheOthersExitBecauseOfIt) {
  Running job_of_three(job("-n 3 --keep-going", "'stop rank 1'"));
  EXPECT_EQ(job_of_three.wait(), 1) << job_of_three.err();
  EXPECT_THAT(job_of_three.err(), HasSubstr("rank 0 exited with code 1"));
  EXPECT_THAT(job_of_three.err(), HasSubstr("rank 2 exited with code 1"));
  EXPECT_THAT(job_of_three.err(),
              HasSubstr("rank 1 is stopped, and the job has ended without it: it is killed"));
}

TEST(FailureReports, AStoppedProcessFailsLastIfTheOthersEndInOrder) {
  Running job_of_three(job("-n 3 --keep-going", "'finish without rank 1'"));
  EXPECT_EQ(job_of_three.wait(), 128 + SIGKILL) << job_of_three.err();
  EXPECT_THAT(job_of_three.err(), Not(HasSubstr("exited with code")));
  EXPECT_THAT(job_of_three.err(),
              HasSubstr("rank 1 is stopped, and the job has ended without it: it is killed"));
}

TEST(FailureReports, AProgramThatReturnsWithoutFinalizeIsToldSo) {
  Running returned(job("-n 2", "return"));
  EXPECT_EQ(returned.wait(), 1);
  EXPECT_THAT(returned.err(), HasSubstr("has ended without finalize(): call Fabric::finalize() in "
                                        "every process before it ends"));
  EXPECT_THAT(returned.err(), HasSubstr("cariama-run: rank 0 exited with code 1"));
}

TEST(FailureReports, NameAProcessThatReturnsWithoutFinalizeIfTheOthersContinue) {
  const std::string why =
      " has ended without finalize(): call Fabric::finalize() in every process before it ends";
  Running one(job("-n 3", "'one unfinalized'"));
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_THAT(one.err(), HasSubstr("cariama-run: rank 1" + why));
  EXPECT_THAT(one.err(), Not(HasSubstr("rank 0")));
  EXPECT_THAT(one.err(), Not(HasSubstr("rank 2")));
  Running all(job("-n 2", "'none finalized'"));
  EXPECT_EQ(all.wait(), 0) << all.err();
  EXPECT_THAT(all.err(), HasSubstr("cariama-run: rank 0" + why));
  EXPECT_THAT(all.err(), HasSubstr("cariama-run: rank 1" + why));
}

TEST(FailureReports, NameTheKilledProcessIfAnExitBecauseOfItIsDetectedFirst) {
  Running killed(job("-n 3", "'kill rank 0'"));
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  EXPECT_EQ(killed.err(), "cariama-run: rank 0 was killed by signal 9 (Killed)\n");
}

TEST(FailureReports, NameAnExitWithAnErrorIfNoProcessDies) {
  Running failed(launcher() + " -n 3 sh -c 'test $CARIAMA_RANK = 1 && exit 7; exit 0'");
  EXPECT_EQ(failed.wait(), 7);
  EXPECT_EQ(failed.err(), "cariama-run: rank 1 exited with code 7\n");
}

// A process whose parent ignores SIGCHLD inherits that.
TEST(FailureReports, AreMadeIfSigchldIsIgnored) {
  Running failed("env --ignore-signal=CHLD " + launcher() + " -n 1 false");
  EXPECT_EQ(failed.wait(), 1);
  EXPECT_EQ(failed.err(), "cariama-run: rank 0 exited with code 1\n");
}

TEST(FailureReports, NameTheErrorOfOutputThatIsLost) {
  const auto run = [](const std::string& setup, const std::string& command) {
    Running lost("sh -c '" + setup + " exec " + launcher() + " -n 2 --tag-output " + command + "'");
    EXPECT_EQ(lost.wait(), kLaunchOutputLost);
    return lost.err();
  };
  const std::string lost =
      "cariama-run: the rest of the standard output of the processes is lost: ";
  EXPECT_EQ(run("", "seq 100000 > /dev/full"), lost + "No space left on device\n");
  const std::string file = "/tmp/cariama-lost-" + std::to_string(getpid());
  EXPECT_EQ(run("ulimit -f 1;", "seq 100000 > " + file),
            lost + "File too large: raise ulimit -f\n");
  unlink(file.c_str());
}

// The limit of the sizes of files holds for memory files, too.
TEST(FailureReports, NameTheLimitOfFileSizes) {
  Running refused("sh -c '(ulimit -f 1000; " + job("-n 2", "return") + ") 2>&1 | cat'");
  refused.wait();
  EXPECT_THAT(refused.out(), HasSubstr("creating the 1 GiB control segment"));
  EXPECT_THAT(refused.out(), HasSubstr("File too large: raise ulimit -f"));
  EXPECT_THAT(refused.out(), HasSubstr("exited with code 99"));
}

#if !defined(CARIAMA_OTHER_HANDLERS)  // these sanitizers need descriptors and much address space
// Each limit ends the job at another step, or suffices.
TEST(FailureReports, NameTheLimitOfDescriptors) {
  size_t refused = 0;
  size_t unconnected = 0;
  for (int limit = 20; limit <= 44; limit += 4) {
    Running meeting("sh -c '(ulimit -n " + std::to_string(limit) + "; timeout -s KILL 50 " +
                    job("-n 3", "meet") + "; echo code $?) 2>&1 | cat'");
    meeting.wait();
    const std::string out = meeting.out();
    EXPECT_THAT(out, Not(HasSubstr("code 137"))) << limit;
    if (out.find("Too many open files") == std::string::npos) continue;
    ++refused;
    EXPECT_THAT(out, HasSubstr("raise ulimit -n")) << limit;
    if (out.find("could not be connected for more than a second") != std::string::npos) {
      ++unconnected;
    }
  }
  EXPECT_GT(refused, 0U);
  EXPECT_GT(unconnected, 0U);
}

TEST(FailureReports, NameTheLimitOfTheAddressSpace) {
  // A process maps its own control segment of 1 GiB, but not that of a peer.
  Running meeting("sh -c '(ulimit -v 1500000; " + job("-n 2", "meet") + ") 2>&1 | cat'");
  meeting.wait();
  EXPECT_THAT(meeting.out(), HasSubstr("could not be connected for more than a second"));
  EXPECT_THAT(meeting.out(), HasSubstr("raise RLIMIT_AS from 1.4 GiB to at least 2"));
  EXPECT_THAT(meeting.out(), HasSubstr("(ulimit -v 2"));
}
#endif

TEST(FailureReports, AreNotNeededWithASmallStack) {
  Running small("sh -c 'ulimit -s 64; exec " + launcher() + " -n 2 --tag-output seq 20000'");
  EXPECT_EQ(small.wait(), 0) << small.err();
  const std::string out = small.out();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 40'000);
}

// The guardian is a child of the launcher. A user may stop all processes of a name or of a session.
TEST(Launcher, EndsIfItsGuardianIsStopped) {
  Running job(launcher() + " -n 1 sleep 1000");
  pid_t guardian = 0;
  ASSERT_TRUE(Running::eventually([&] {
    const std::string pid = std::to_string(job.pid());
    std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
    for (pid_t child = 0; guardian == 0 && children >> child;) {
      std::string name;
      std::getline(std::ifstream("/proc/" + std::to_string(child) + "/comm"), name);
      if (name == "cariama-guard") guardian = child;
    }
    return guardian != 0;
  }));
  ASSERT_TRUE(testing::stop_process(guardian, far_away()));
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.err();
}

// Two name spaces of the network, as containers have them, without an RDMA device.
TEST(FailureReports, HostsWithoutACommonDeviceAreToldSo) {
  if (std::system("unshare --net true 2>/dev/null") != 0) {
    GTEST_SKIP() << "this user may not create name spaces";
  }
  if (std::system("ls /sys/class/infiniband/* >/dev/null 2>&1") == 0) {
    GTEST_SKIP() << "there is an RDMA device";
  }
  const std::string self = testing::in_role("return");
  for (const std::string transport : {"", "env CARIAMA_TRANSPORT=shm "}) {
    Running apart(transport + CARIAMA_PROGRAM_DIR + "/cariama-run -n 2 sh -c '" +
                  "[ $CARIAMA_RANK = 0 ] || exec unshare --net " + self + "; exec " + self + "'");
    EXPECT_NE(apart.wait(), 0);
    EXPECT_THAT(apart.out(), HasSubstr("there is no device that reaches rank "));
    EXPECT_THAT(apart.out(), HasSubstr("give both hosts an RDMA device"));
    EXPECT_THAT(apart.out(), HasSubstr("in containers with one --network and one --pid"));
  }
}

}  // namespace

int play(std::string_view role) {
  if (role == "kill rank 0") return kill_rank_0();
  if (role == "stop rank 1") return stop_rank_1(FailurePolicy::kAbort);
  if (role == "finish without rank 1") return stop_rank_1(FailurePolicy::kContinue);
  if (role == "meet") return meet();
  if (role == "one unfinalized" || role == "none finalized") return end_without_finalize(role);
  return fail_in_rank_1(role);
}

}  // namespace cariama

int main(int argc, char** argv) {
  return cariama::testing::play_or_test(argc, argv, cariama::play);
}
