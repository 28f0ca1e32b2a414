// The registration helpers of a job share a board on each host: of the processes, those with the
// most registered bytes run their helpers, as many as cores are idle. The jobs are started by
// cariama-run; their processes run this program again, with --role=NAME as its first argument.
#include "dsfabric/bootstrap/host_board.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dsfabric/send_call.h"
#include "dsfabric/user_buffer.h"
#include "dtutils/diagnostics.h"
#include "dtutils/registration/helper_thread.h"
#include "dtutils/system_info.h"
#include "dtutils/wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/role.h"
#include "tests/dsfabric/testing/running_command.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::Running;
using testing::soon;

void print(const std::string& line) {
  const std::string whole = line + "\n";
  static_cast<void>(!write(STDOUT_FILENO, whole.data(), whole.size()));
}

// ---- What the processes of the jobs do ----------------------------------------------------------

// A fabric whose only registration cache has a helper.
struct HelperJob {
  // `options`: of the helper. The conditions of the tests do not depend on the cores of the machine
  // if idle_cores is set.
  explicit HelperJob(HelperOptions options) {
    FabricOptions fabric_options;
    fabric_options.registration = [this, options] {
      helper = std::make_shared<HelperPolicy>(options);
      return RegistrationOptions{.max_bytes = uint64_t{1} << 30, .policy = helper};
    };
    fabric = must(Fabric::create(fabric_options));
    self = must(fabric->init_thread(0));
  }
  // Registers memory of this process, by a call to another one.
  void use(size_t bytes) {
    const std::vector<std::byte> data(bytes);
    Synchronizer done;
    const Rank to((fabric->rank() + 1) % fabric->size());
    must(call_buffer<Sync, RemoteNotify>(
        *fabric, fabric->thread_of(to), [](void*, uint64_t) {}, std::span(data), done));
    must(fabric->wait([&] { return done.done(); }, soon()) ? absl::OkStatus()
                                                           : absl::DeadlineExceededError("call"));
    must(done.status());
  }
  // Waits until the helper runs, or does not run. Runs no calls: Fabric::wait() would not notice
  // the change, which wakes no thread.
  [[nodiscard]] bool await(bool runs) const {
    return wait_until([&] { return helper->statistics().runs == runs; }, soon());
  }
  // Waits for all processes, and runs their calls meanwhile.
  void meet() const { must(Collectives(*fabric).barrier(soon())); }

  std::shared_ptr<HelperPolicy> helper;
  std::unique_ptr<Fabric> fabric;
  std::unique_ptr<ThreadContext> self;
};

// Three processes and one idle core. Rank 2 registers the most and has the helper. It is killed.
int role_largest() {
  HelperOptions options;
  options.idle_cores = 1;
  HelperJob job(options);
  const uint32_t rank = job.fabric->rank();
  job.use((rank + 1) * (size_t{1} << 20));
  job.meet();
  print("rank " + std::to_string(rank) + (job.await(rank == 2) ? " as expected" : " differs"));
  job.meet();
  Bootstrap& bootstrap = job.fabric->bootstrap();
  if (rank == 2) raise(SIGKILL);
  // Now the most bytes are those of rank 1.
  if (!job.await(rank == 1)) return 2;
  print("rank " + std::to_string(rank) + " survives");
  must(bootstrap.put("survives", ""));
  static_cast<void>(must(bootstrap.get(static_cast<int>(1 - rank), "survives", soon())));
  std::fflush(nullptr);
  _exit(0);
}

// The number of idle cores is that of the host, less the threads of all processes on it.
int role_cores() {
  HelperJob job({});
  job.use(size_t{1} << 20);
  job.meet();
  const SystemInfo machine = query_system_info();
  const auto cores = static_cast<uint32_t>(machine.cpus.size());
  const uint32_t threads = job.fabric->size() * job.fabric->threads();
  if (threads >= cores) {
    if (!job.await(false)) return 1;
    print("no core is idle");
  }
  job.meet();
  must(job.fabric->finalize(soon()));
  return 0;
}

int play(std::string_view role) {
  if (role == "largest") return role_largest();
  if (role == "cores") return role_cores();
  print("there is no role " + std::string(role));
  return 97;
}

// ---- The tests ----------------------------------------------------------------------------------

std::string launch(const std::string& options, const std::string& role) {
  return std::string(CARIAMA_PROGRAM_DIR) + "/cariama-run " + options + " " +
         testing::in_role(role);
}

TEST(HostBoard, TheLargestProcessHasTheHelperUntilItIsKilled) {
  Running job(launch("-n 3 --keep-going", "largest"));
  static_cast<void>(job.wait());
  for (const char* const line : {"rank 0 as expected", "rank 1 as expected", "rank 2 as expected",
                                 "rank 0 survives", "rank 1 survives"}) {
    EXPECT_THAT(job.out(), HasSubstr(line)) << job.err();
  }
}

TEST(HostBoard, WithoutAnIdleCoreNoHelperRuns) {
  const size_t threads = query_system_info().cpus.size();
  Running job(launch("-n 2 -t " + std::to_string(threads), "cores"));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "no core is idle\nno core is idle\n");
}

// The arithmetic of idle cores, with the offers of other processes.
TEST(HostBoard, CountsTheCoresOfAllProcesses) {
  internal::HostBoard mine;
  internal::HostBoard::Offer offer = mine.offer(1);
  offer.cpus = {0b11};
  internal::HostBoard::Offer other{.pid = 1, .descriptor = -1, .busy_threads = 1, .cpus = {0b110}};
  mine.add(other, false);
  mine.add(offer, true);
  other.cpus = {0, 1};
  other.busy_threads = 0;
  mine.add(other, false);
  mine.open();
  const HelperPlace place = mine.place(0);
  EXPECT_NE(place.board, nullptr);
  EXPECT_EQ(place.helper, 1u);
  EXPECT_EQ(mine.place(2).helper, 7u);
  const double limit = query_system_info().cgroup.cpus.value_or(4);
  EXPECT_EQ(place.idle_cores, limit >= 4 ? 2u : static_cast<uint32_t>(std::max(0.0, limit - 2)));
}

const Diagnostic* board_diagnostic(const std::vector<Diagnostic>& all) {
  const auto found = std::find_if(all.begin(), all.end(), [](const Diagnostic& one) {
    return one.key == "registration.board";
  });
  return found == all.end() ? nullptr : &*found;
}

// No limit of this process is the cause. The test comes before those that report a diagnostic.
TEST(HostBoard, ABoardOfAProcessThatHasEndedIsNoDegradation) {
  const pid_t ended = fork();
  if (ended == 0) _exit(0);
  ASSERT_EQ(waitpid(ended, nullptr, 0), ended);
  internal::HostBoard mine;
  mine.add({.pid = static_cast<uint32_t>(ended), .descriptor = 3}, false);
  mine.add(mine.offer(1), true);
  mine.open();
  EXPECT_EQ(mine.place(0).board, nullptr);
  EXPECT_EQ(board_diagnostic(reported_diagnostics()), nullptr);
}

TEST(HostBoard, AFileThatIsNoBoardIsRefused) {
  FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  internal::HostBoard mine;
  mine.add({.pid = static_cast<uint32_t>(getpid()), .descriptor = fileno(file)}, false);
  mine.add(mine.offer(1), true);
  mine.open();
  EXPECT_EQ(mine.place(0).board, nullptr);
  const std::vector<Diagnostic> all = reported_diagnostics();
  ASSERT_NE(board_diagnostic(all), nullptr);
  EXPECT_THAT(board_diagnostic(all)->remedy, ::testing::Not(HasSubstr("ulimit")));
  std::fclose(file);
}

// The processes of a host map the same board.
TEST(HostBoard, TheBoardIsShared) {
  internal::HostBoard first;
  internal::HostBoard second;
  const auto of_first = first.offer(1);
  const auto of_second = second.offer(1);
  for (auto* const board : {&first, &second}) {
    board->add(of_first, board == &first);
    board->add(of_second, board == &second);
  }
  first.open();
  second.open();
  const HelperPlace a = first.place(0);
  const HelperPlace b = second.place(0);
  ASSERT_NE(a.board, nullptr);
  ASSERT_NE(b.board, nullptr);
  a.board->post(a.helper, 100, 1000);
  b.board->post(b.helper, 200, 1000);
  EXPECT_FALSE(a.board->may_run(a.helper, 1, 1));
  EXPECT_TRUE(b.board->may_run(b.helper, 1, 1));
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) {
  return cariama::testing::play_or_test(argc, argv, cariama::play);
}
