// FabricOptions::lease: a process that is stopped for longer is considered failed.
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "dsfabric/bootstrap.h"
#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/quiescence.h"
#include "dsfabric/send_call.h"
#include "dtutils/internal/trace_observer.h"
#include "dtutils/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/testing/process_state.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

// Long enough that a service thread on a loaded machine runs several times in it.
FabricOptions with_lease() {
  FabricOptions options;
  options.on_failure = FailurePolicy::kContinue;
  options.lease = std::chrono::seconds(3);
  return options;
}

TEST(Lease, AStoppedProcessFailsForConnectedAndUnconnectedProcesses) {
  RunOptions run;
  run.may_die = {2};
  const absl::Status status = try_process_job(
      3, with_lease(),
      [](Fabric& fabric) {
        static std::atomic<bool> is_stopped;
        static std::atomic<bool> other_knows;
        if (fabric.rank() == 2) return wait_to_be_killed(fabric);
        pid_t victim = 0;
        absl::Status lost;
        if (fabric.rank() == 0) {
          victim = must(async_call(fabric, 2, [] { return getpid(); }).get(soon()));
          ASSERT_TRUE(stop_process(victim, soon()));
          must(call(fabric, 1, [] { is_stopped = true; }));
          lost = async_call(fabric, 2, [] { return 1; }).get(soon()).status();
          EXPECT_TRUE(fabric.wait([] { return other_knows.load(); }, soon()));
        } else {
          EXPECT_TRUE(fabric.wait([] { return is_stopped.load(); }, soon()));
          lost = call(fabric, 2, [] {});  // the first one: it needs a connection
          must(call(fabric, 0, [] { other_knows = true; }));
        }
        EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
        EXPECT_THAT(lost.ToString(), HasSubstr("rank 2 ("));
        EXPECT_TRUE(absl::IsUnavailable(fabric.peer_status(2)));
        if (fabric.rank() == 0) {
          EXPECT_THAT(lost.ToString(), HasSubstr("no sign of life for 3000 ms"));
          EXPECT_EQ(kill(victim, SIGKILL), 0);
        }
        TerminationDetector detector(fabric, {.leave_out_dead = true});
        must(detector.wait(soon()));
        must(fabric.finalize(soon()));
      },
      run);
  EXPECT_TRUE(status.ok()) << status;
}

// No connection exists. An operation with an early deadline must not begin the lease anew.
TEST(Lease, EndsAlsoIfAllOperationsHaveEarlierDeadlines) {
  RunOptions run;
  run.may_die = {1};
  const absl::Status status = try_process_job(
      2, with_lease(),
      [](Fabric& fabric) {
        Bootstrap& bootstrap = fabric.bootstrap();
        if (fabric.rank() == 1) {
          must(bootstrap.put("pid", std::to_string(getpid())));
          return wait_to_be_killed(fabric);
        }
        const pid_t victim = std::stoi(must(bootstrap.get(1, "pid", soon())));
        ASSERT_TRUE(stop_process(victim, soon()));
        Collectives all(fabric);
        absl::Status lost;
        const Deadline end = soon();
        do {
          lost = all.barrier(deadline_after(std::chrono::milliseconds(200)));
        } while (absl::IsDeadlineExceeded(lost) && std::chrono::steady_clock::now() < end);
        EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
        EXPECT_EQ(kill(victim, SIGKILL), 0);
        must(fabric.finalize(soon()));
      },
      run);
  EXPECT_TRUE(status.ok()) << status;
}

// Calls `function` in this process when it has closed its fabric and begins to leave the job.
void at_leave(void (*function)()) {
  static void (*at)();
  at = function;
  must(start_trace(::testing::TempDir() + "/leave_" + std::to_string(getpid())));
  internal::set_trace_observer([](const char*, const char* name) {
    if (std::string_view(name) == "finalize: leave") at();
  });
}

// The stopped process puts no report for finalize(), and does not end. `kVictim` 0: the process
// that would combine the reports. `kLeaving`: it is stopped when the fabrics are closed, and no
// process detects failures any more.
template <int kVictim, bool kLeaving>
void finalize_without_a_stopped_process() {
  constexpr int kCaller = kVictim == 0 ? 1 : 0;
  RunOptions run;
  run.may_die = {kVictim};
  const absl::Status status = try_process_job(
      3, with_lease(),
      [](Fabric& fabric) {
        pid_t victim = 0;
        if (fabric.rank() == kVictim) {
          if (!kLeaving) return wait_to_be_killed(fabric);
          at_leave([] { raise(SIGSTOP); });
        } else if (fabric.rank() == kCaller) {
          victim = must(async_call(fabric, kVictim, [] { return getpid(); }).get(soon()));
          ASSERT_TRUE(kLeaving || stop_process(victim, soon()));
        } else {
          // Only a connected process is notified of a failure.
          EXPECT_EQ(must(async_call(fabric, kCaller, [] { return 1; }).get(soon())), 1);
        }
        must(fabric.finalize(soon()));
        if (fabric.rank() == kCaller) {
          EXPECT_EQ(process_state(victim), 'T');
          EXPECT_EQ(kill(victim, SIGKILL), 0);
        }
      },
      run);
  EXPECT_TRUE(status.ok()) << status;
}
TEST(Lease, FinalizeDoesNotWaitForAStoppedProcess) {
  finalize_without_a_stopped_process<2, false>();
}
TEST(Lease, FinalizeDoesNotWaitForTheLowestProcess) {
  finalize_without_a_stopped_process<0, false>();
}
TEST(Lease, FinalizeDoesNotWaitForAProcessThatIsStoppedAsItLeaves) {
  finalize_without_a_stopped_process<2, true>();
}
TEST(Lease, FinalizeDoesNotWaitForTheLowestProcessThatIsStoppedAsItLeaves) {
  finalize_without_a_stopped_process<0, true>();
}

// Rank 0 reaches the deadline of its first call while rank 1 leaves.
TEST(Finalize, ContinuesAfterADeadlineThatPassedWhileOthersLeft) {
  const absl::Status status = try_process_job(2, {}, [](Fabric& fabric) {
    if (fabric.rank() == 1) {
      at_leave([] { std::this_thread::sleep_for(std::chrono::seconds(2)); });
    } else {
      const absl::Status early = fabric.finalize(deadline_after(std::chrono::seconds(1)));
      EXPECT_TRUE(absl::IsDeadlineExceeded(early)) << early;
    }
    must(fabric.finalize(soon()));
  });
  EXPECT_TRUE(status.ok()) << status;
}

// The excluded process still lives. Its operations fail.
TEST(Lease, AProcessThatContinuesTooLateIsCutOff) {
  const absl::Status status = try_process_job(2, with_lease(), [](Fabric& fabric) {
    static std::atomic<bool> connected;
    static std::atomic<bool> called_late;
    if (fabric.rank() == 0) {
      const pid_t other = must(async_call(fabric, 1, [] { return getpid(); }).get(soon()));
      must(call(fabric, 1, [] { connected = true; }));
      ASSERT_TRUE(stop_process(other, soon()));
      EXPECT_TRUE(
          absl::IsUnavailable(async_call(fabric, 1, [] { return 1; }).get(soon()).status()));
      EXPECT_EQ(kill(other, SIGCONT), 0);
      // Wait for the end of the other process: no call of it arrives.
      EXPECT_TRUE(wait_until_ended(other, soon()));
      static_cast<void>(fabric.process_calls());
      EXPECT_FALSE(called_late.load());
      return;
    }
    EXPECT_TRUE(fabric.wait([] { return connected.load(); }, soon()));
    EXPECT_TRUE(fabric.wait([&] { return !fabric.peer_status(0).ok(); }, soon()));
    EXPECT_TRUE(absl::IsUnavailable(fabric.peer_status(0))) << fabric.peer_status(0);
    EXPECT_TRUE(absl::IsUnavailable(call(fabric, 0, [] { called_late = true; })));
  });
  EXPECT_TRUE(status.ok()) << status;
}

// A user stops a job with Ctrl-Z, and continues it.
TEST(Lease, AJobThatIsStoppedAsAWholeLosesNoProcess) {
  run_process_job(2, with_lease(), [](Fabric& fabric) {
    static std::atomic<bool> finished;
    if (fabric.rank() == 0) {
      const pid_t other = must(async_call(fabric, 1, [] { return getpid(); }).get(soon()));
      const std::string both = std::to_string(getpid()) + " " + std::to_string(other);
      ASSERT_EQ(std::system(("kill -STOP " + both + "; sleep 4; kill -CONT " + both).c_str()), 0);
      // Several heartbeats, each of which examines the other's signs of life.
      const Deadline later = deadline_after(std::chrono::milliseconds(500));
      EXPECT_FALSE(fabric.wait([&] { return !fabric.peer_status(1).ok(); }, later));
      EXPECT_EQ(must(async_call(fabric, 1, [] { return 7; }).get(soon())), 7);
      must(call(fabric, 1, [] { finished = true; }));
    } else {
      EXPECT_TRUE(fabric.wait([] { return finished.load(); }, soon()));
      must(fabric.peer_status(0));
    }
  });
}

TEST(Lease, MustBeFourHeartbeats) {
  run_test_processes(1, [](Exchange& exchange) {
    FabricOptions options;
    options.lease = std::chrono::milliseconds(399);
    const auto fabric = fabric_of_group(exchange, options);
    EXPECT_TRUE(absl::IsInvalidArgument(fabric.status())) << fabric.status();
    EXPECT_THAT(fabric.status().ToString(), HasSubstr("heartbeat"));
  });
}

TEST(Heartbeat, AndTimeoutMustBePositive) {
  run_test_processes(1, [](Exchange& exchange) {
    for (const int wrong : {0, -1}) {
      FabricOptions options;
      options.heartbeat = std::chrono::milliseconds(wrong);
      EXPECT_TRUE(absl::IsInvalidArgument(fabric_of_group(exchange, options).status()));
      options = {};
      options.timeout = std::chrono::milliseconds(wrong);
      const absl::Status status = fabric_of_group(exchange, options).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(status.ToString(), HasSubstr("FabricOptions::timeout is "));
    }
  });
}

TEST(Lease, MustBeEqualInAllProcesses) {
  run_test_processes(2, [](Exchange& exchange) {
    FabricOptions options;
    options.lease = std::chrono::seconds(1 + exchange.rank());
    const auto fabric = fabric_of_group(exchange, options);
    EXPECT_TRUE(absl::IsFailedPrecondition(fabric.status())) << fabric.status();
    EXPECT_THAT(fabric.status().ToString(), HasSubstr("lease"));
  });
}

}  // namespace
}  // namespace cariama::testing
