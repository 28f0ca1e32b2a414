// Jobs of real processes: they connect, they outnumber the cores, one of them is killed.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "dsfabric/bootstrap.h"
#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/global_memory.h"
#include "dsfabric/quiescence.h"
#include "dsfabric/remote_memory.h"
#include "dsfabric/remote_object.h"
#include "dsfabric/send_call.h"
#include "dsfabric/topology.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/testing/process_state.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

TEST(ProcessJobTest, EightProcessesCallOneAnother) {
  run_process_job(8, {}, [](Fabric& fabric) {
    for (int round = 0; round < 5; ++round) {
      std::vector<Future<uint32_t>> answers;
      for (uint32_t to = 0; to < 8; ++to) {
        answers.push_back(async_call(
            fabric, to, [](uint32_t a) { return a * 10 + running_fabric()->rank(); }, round));
      }
      for (uint32_t to = 0; to < 8; ++to) {
        EXPECT_EQ(must(answers[to].get(soon())), round * 10 + to);
      }
    }
  });
}

// No connection exists, and the other process is stopped. The deadline of each operation is earlier
// than FabricOptions::timeout, the deadline of connecting.
TEST(ProcessJobTest, OperationsKeepTheirDeadlinesIfTheyHaveToConnectToAStoppedProcess) {
  run_process_job(2, {}, [](Fabric& fabric) {
    Collectives all(fabric);
    Bootstrap& bootstrap = fabric.bootstrap();
    if (fabric.rank() == 1) {
      must(bootstrap.put("pid", std::to_string(getpid())));
      static_cast<void>(must(bootstrap.get(0, "done", soon())));
    } else {
      const pid_t other = std::stoi(must(bootstrap.get(1, "pid", soon())));
      ASSERT_TRUE(stop_process(other, soon()));
      // Ends a wait that does not keep its deadline.
      std::atomic<bool> finished{false};
      std::thread rescue([&] {
        static_cast<void>(
            wait_until([&] { return finished.load(); }, deadline_after(std::chrono::seconds(50))));
        EXPECT_TRUE(finished) << "an operation does not keep its deadline";
        kill(other, SIGCONT);
      });
      const auto expect_late = [](const absl::Status& status) {
        EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
        EXPECT_THAT(status.ToString(), HasSubstr("rank 1"));
      };
      const auto shortly = [] { return deadline_after(std::chrono::milliseconds(200)); };
      expect_late(all.barrier(shortly()));
      expect_late(RemoteMemory::allocate(fabric, 1, 8, shortly()).status());
      expect_late(where_is(fabric, fabric.thread_of(1), shortly()).status());
      GlobalAddress address;
      address.address = 4096;
      address.rank = 1;
      const auto memory = must(GlobalMemory::create(fabric));
      uint64_t word = 0;
      expect_late(memory->get(global_ptr<uint64_t>(address), std::span(&word, 1), shortly()));
      expect_late(memory->exchange(global_ptr<uint64_t>(address), 1, shortly()).status());
      finished = true;
      rescue.join();
      must(bootstrap.put("done", ""));
    }
    must(all.barrier(soon()));
    must(call(fabric, 1 - fabric.rank(), [] {}));
  });
}

std::atomic<bool> victim_is_stuck;
std::atomic<bool> other_waits;

// The victim is killed while it has calls to run, and the other processes wait for it in every way.
void lose_rank_2(Fabric& fabric) {
  if (fabric.rank() == 2) return wait_to_be_killed(fabric);
  const pid_t victim = must(async_call(fabric, 2, [] { return getpid(); }).get(soon()));
  if (fabric.rank() == 1) {
    must(call(fabric, 0, [] { other_waits = true; }));
  } else {
    EXPECT_TRUE(fabric.wait([] { return other_waits.exchange(false); }, soon()));
    // From here on the victim runs no calls, and both other processes have been notified of that.
    must(call(fabric, 2, [] {
      for (uint32_t to : {0u, 1u}) {
        must(call(*running_fabric(), to, [] { victim_is_stuck = true; }));
      }
      static_cast<void>(wait_until([] { return false; }, soon()));
    }));
  }
  EXPECT_TRUE(fabric.wait([] { return victim_is_stuck.load(); }, soon()));
  auto written = must(RemoteObject<Synchronizer>::create(fabric));
  Synchronizer run;
  Future<int> answer = async_call(fabric, 2, [] { return 1; });
  must(call<RemoteNotify>(
      fabric, 2, [] {}, run));
  must(call<RemoteNotify>(
      fabric, 2, [] {}, written));
  if (fabric.rank() == 1) {
    must(call(fabric, 0, [] { other_waits = true; }));
  } else {
    EXPECT_TRUE(fabric.wait([] { return other_waits.load(); }, soon()));
    EXPECT_EQ(kill(victim, SIGKILL), 0);
  }
  const absl::Status lost = answer.get(soon()).status();
  expect_dead(lost, fabric, 2);
  EXPECT_TRUE(fabric.wait([&] { return run.done(); }, soon()));
  expect_dead(run.status(), fabric, 2);
  expect_dead(written.wait(soon()), fabric, 2);
  expect_dead(call(fabric, 2, [] {}), fabric, 2);
  expect_dead(fabric.peer_status(2), fabric, 2);
  EXPECT_EQ(
      must(async_call(fabric, fabric.thread_of(1 - fabric.rank()), [] { return 8; }).get(soon())),
      8);
  must(fabric.finalize(soon()));
}

TEST(DeadProcessTest, SurvivorsContinue) { run_job_with_a_victim(3, 2, lose_rank_2); }

TEST(DeadProcessTest, OnRequestTheJobAborts) {
  const absl::Status status =
      try_process_job(3, {.on_failure = FailurePolicy::kAbort}, lose_rank_2, {.may_die = {2}});
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("rank 0"));
  EXPECT_THAT(status.ToString(), HasSubstr("rank 1"));
  EXPECT_THAT(status.ToString(), HasSubstr("code 1"));
}

// A process that dies during finalize() does not prevent the others from finishing it.
TEST(DeadProcessTest, FinalizeCompletesWithoutTheDeadProcess) {
  run_job_with_a_victim(4, 0, [](Fabric& fabric) {
    for (uint32_t to = 0; to < 4; ++to) must(call(fabric, to, [] {}));
    if (fabric.rank() == 0) {  // the rank that combines the reports
      EXPECT_TRUE(fabric.wait([&] { return fabric.statistics().calls_run >= 4; }, soon()));
      kill(getpid(), SIGKILL);
    }
    must(fabric.finalize(soon()));
  });
}

// Processes that never communicated with the dead process detect its death: by death notices, and
// at the end by the participation round. (Otherwise the survivors would never agree on the
// processes to leave out.)
TEST(DeadProcessTest, DeathNoticesReachUnconnectedProcesses) {
  run_job_with_a_victim(4, 2, [](Fabric& fabric) {
    static std::atomic<bool> heard;
    static std::atomic<bool> all_know;
    const auto knows = [&] { return absl::IsUnavailable(fabric.peer_status(2)); };
    TerminationDetector detector(fabric, {.leave_out_dead = true});
    switch (fabric.rank()) {
      case 0:  // detects the death
        EXPECT_EQ(must(async_call(fabric, 1, [] { return 5; }).get(soon())), 5);
        EXPECT_TRUE(absl::IsUnavailable(
            async_call(fabric, 2, [] { return kill(getpid(), SIGKILL); }).get(soon()).status()));
        EXPECT_TRUE(fabric.wait([] { return all_know.load(); }, soon()));
        break;
      case 1:  // is connected to the process that detected it
        EXPECT_TRUE(fabric.wait(knows, soon()));
        // A process that connects later is notified immediately.
        must(call(fabric, 3, [] { heard = true; }));
        EXPECT_TRUE(fabric.wait([] { return all_know.load(); }, soon()));
        must(call(fabric, 0, [] { all_know = true; }));
        break;
      case 3:
        EXPECT_TRUE(fabric.wait([&] { return heard.load() && knows(); }, soon()));
        EXPECT_EQ(fabric.statistics().connections, 1u);
        must(call(fabric, 1, [] { all_know = true; }));
        break;
      default:
        wait_to_be_killed(fabric);
    }
    must(detector.wait(soon()));
    must(fabric.finalize(soon()));
  });
}

TEST(DeadProcessTest, FinalizeCompletesForUnconnectedProcesses) {
  run_job_with_a_victim(4, 2, [](Fabric& fabric) {
    if (fabric.rank() == 2) return wait_to_be_killed(fabric);
    if (fabric.rank() == 1) {
      EXPECT_TRUE(absl::IsUnavailable(
          async_call(fabric, 2, [] { return kill(getpid(), SIGKILL); }).get(soon()).status()));
    }
    must(fabric.finalize(soon()));
    EXPECT_TRUE(absl::IsUnavailable(fabric.peer_status(2)));
  });
}

// The error that the transport of the connection reports.
TEST(DeadProcessTest, TheTransportsReportIsOneOfADeadProcess) {
  run_job_with_a_victim(2, 1, [](Fabric& fabric) {
    if (fabric.rank() == 1) return wait_to_be_killed(fabric);
    Transmitter transmitter = must(Transmitter::create(*must(fabric.connection(1))));
    const pid_t victim = must(async_call(fabric, 1, [] { return getpid(); }).get(soon()));
    EXPECT_EQ(kill(victim, SIGKILL), 0);
    absl::Status lost;
    EXPECT_TRUE(wait_until(
        [&] {
          Synchronizer done;
          lost = transmitter.signal_all(&done);
          if (lost.ok()) lost = transmitter.wait(done, soon());
          return !lost.ok();
        },
        soon()));
    expect_dead(lost, fabric, 1);
  });
}

// The receive units that a process has used are available for others after its death.
TEST(DeadProcessTest, TheReceiveUnitsOfADeadProcessReturn) {
  FabricOptions options;
  options.receive_units = 8;
  options.receive_unit_bytes = 512;
  options.reserved_units = 1;
  options.shared_unit_bytes = uint64_t{4} * 512;
  options.return_units_after = std::chrono::hours(1);
  constexpr int kCalls = 50;
  const auto body = [](Fabric& fabric) {
    static std::atomic<int> run;
    static std::atomic<bool> turn;
    const auto flood = [&] {
      for (int i = 0; i < kCalls; ++i) must(call(fabric, 0, [] { ++run; }));
    };
    // The bytes of the receive units that are not reserved.
    const auto shared_bytes = [&] {
      const FabricStatistics now = fabric.statistics();
      return now.receive_bytes - now.connections * 512;
    };
    if (fabric.rank() == 1) {
      flood();
      return wait_to_be_killed(fabric);
    }
    if (fabric.rank() == 2) {
      EXPECT_TRUE(fabric.wait([] { return turn.load(); }, soon()));
      flood();
    } else {
      EXPECT_TRUE(fabric.wait([] { return run == kCalls; }, soon()));
      EXPECT_EQ(shared_bytes(), 4u * 512);
      EXPECT_TRUE(absl::IsUnavailable(
          async_call(fabric, 1, [] { return kill(getpid(), SIGKILL); }).get(soon()).status()));
      EXPECT_TRUE(fabric.wait_polling([&] { return shared_bytes() == 0; }, soon()));
      must(call(fabric, 2, [] { turn = true; }));
      EXPECT_TRUE(fabric.wait([] { return run == 2 * kCalls; }, soon()));
      EXPECT_EQ(shared_bytes(), 4u * 512);
    }
    must(fabric.finalize(soon()));
  };
  must(try_process_job(3, options, body, {.may_die = {1}}));
}

TEST(ProcessJobTest, OtherOptionsAreRefused) {
  run_test_processes(2, [](Exchange& exchange) {
    FabricOptions options;
    options.threads = 1 + exchange.rank();
    const auto fabric = fabric_of_group(exchange, options);
    EXPECT_TRUE(absl::IsFailedPrecondition(fabric.status())) << fabric.status();
    EXPECT_THAT(fabric.status().ToString(), HasSubstr("threads"));
  });
}

}  // namespace
}  // namespace cariama::testing
