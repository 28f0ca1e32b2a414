// A process is killed while the others use the table: operations on its keys end with kUnavailable,
// all other keys stay available, and nothing hangs.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "dht/hash_table.h"
#include "dsfabric/future.h"
#include "dtutils/internal/trace_observer.h"
#include "dtutils/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dht/table_test_support.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

void lose_an_owner(Fabric& fabric, const ShareAccess& way) {
  constexpr uint32_t kVictim = 2;
  Collectives all(fabric, {.leave_out_dead = true});
  auto table = must(HashTable<2>::create(all, way.options(4096), soon()));
  auto access = must(table->access());
  std::mt19937_64 random(fabric.rank() + 1);
  std::vector<TableKey<2>> keys(2000);
  std::vector<TableResult> results(keys.size());
  for (auto& key : keys) key = random_key<2>(random);
  const std::vector<std::optional<pid_t>> processes = must(all.all_gather(getpid(), soon()));
  access->find_or_put(keys, results);
  must(all.barrier(soon()));
  if (fabric.rank() == 1) kill(*processes[kVictim], SIGKILL);
  // The victim continues until it is killed.
  const Deadline deadline = soon();
  std::vector<TableResult> again(keys.size());
  bool noticed = false;
  while (!noticed && std::chrono::steady_clock::now() < deadline) {
    access->find_or_put(keys, again);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (again[i].outcome != TableOutcome::kUnavailable) {
        EXPECT_EQ(again[i], (TableResult{results[i].index, TableOutcome::kFound}));
        continue;
      }
      noticed = true;
      EXPECT_EQ(table->owner_of(keys[i]), kVictim);
    }
  }
  ASSERT_TRUE(noticed);
  EXPECT_TRUE(absl::IsUnavailable(access->status())) << access->status();
  EXPECT_THAT(std::string(access->status().message()), HasSubstr("rank 2"));
  // From now on the result depends on the owner only.
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool lost = table->owner_of(keys[i]) == kVictim;
    EXPECT_EQ(access->find(keys[i]).outcome,
              lost ? TableOutcome::kUnavailable : TableOutcome::kFound);
    TableKey<2> key;
    EXPECT_EQ(access->read(results[i].index, key),
              lost ? TableOutcome::kUnavailable : TableOutcome::kFound);
    const TableKey<2> other = random_key<2>(random);
    EXPECT_EQ(access->find_or_put(other).outcome, table->owner_of(other) == kVictim
                                                      ? TableOutcome::kUnavailable
                                                      : TableOutcome::kInserted);
  }
  EXPECT_EQ(table->grow(8192, soon()).code(), absl::StatusCode::kUnavailable);
  access.reset();
  must(table->destroy(soon()));
}

// Returns a key of `owner`.
TableKey<2> key_of(const HashTable<2>& table, uint32_t owner, std::mt19937_64& random) {
  TableKey<2> key = random_key<2>(random);
  while (table.owner_of(key) != owner) key = random_key<2>(random);
  return key;
}

// Stops a process. Returns when all of its threads have stopped: kill(2) returns before.
void stop(pid_t process) {
  kill(process, SIGSTOP);
  const auto running = [process] {
    const std::string tasks = "/proc/" + std::to_string(process) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      std::ifstream file(task.path() / "stat");
      const std::string text((std::istreambuf_iterator<char>(file)), {});
      // The state follows the name, which is in parentheses.
      const size_t name_end = text.rfind(')');
      if (name_end == std::string::npos || text[name_end + 2] != 'T') return true;
    }
    return false;
  };
  ASSERT_TRUE(wait_until([&] { return !running(); }, soon()));
}

// The owner executes the compare-and-swaps, and is stopped: the operation ends by its deadline, and
// its transfer stays in flight.
void end_by_deadlines(const ShareAccess& way) {
  run_job_with_a_victim(2, 1, [&](Fabric& fabric) {
    Collectives all(fabric, {.leave_out_dead = true});
    TableOptions options = way.options(4096);
    options.timeout = std::chrono::milliseconds(200);
    auto table = must(HashTable<2>::create(all, options, soon()));
    auto access = must(table->access({.in_flight = 2}));
    const std::vector<std::optional<pid_t>> processes = must(all.all_gather(getpid(), soon()));
    std::mt19937_64 random(1);
    if (fabric.rank() == 1) return wait_to_be_killed(fabric);
    // An operation may end by its deadline on a busy machine.
    EXPECT_TRUE(wait_until(
        [&] {
          return access->find_or_put(key_of(*table, 1, random)).outcome == TableOutcome::kInserted;
        },
        soon()));
    stop(*processes[1]);
    // The CAS of an insert that is only started stays in flight. After two, a third one is refused.
    for (int operation = 0; operation < 4; ++operation) {
      uint64_t ended = 0;
      TableOutcome outcome = TableOutcome::kFound;
      const auto on_end = [&](uint64_t tag, const TableResult& result, const TableKey<2>&) {
        ended = tag;
        outcome = result.outcome;
      };
      const TableKey<2> key = key_of(*table, 1, random);
      while (!access->start_find_or_put(key, 7)) access->poll(on_end);
      while (access->active() != 0) {
        access->await_ended();
        access->poll(on_end);
      }
      EXPECT_EQ(ended, 7u);
      EXPECT_EQ(outcome, TableOutcome::kUnavailable);
      EXPECT_TRUE(absl::IsDeadlineExceeded(access->status())) << access->status();
    }
    // Blocking operations end in the same way.
    std::vector<TableKey<2>> keys;
    for (int i = 0; i < 10; ++i) keys.push_back(key_of(*table, 1, random));
    std::vector<TableResult> results(keys.size());
    access->find_or_put(keys, results);
    for (const TableResult& result : results) {
      EXPECT_EQ(result.outcome, TableOutcome::kUnavailable);
    }
    EXPECT_EQ(access->find_or_put(keys[0]).outcome, TableOutcome::kUnavailable);
    kill(*processes[1], SIGKILL);
  });
}

TEST(StoppedOwnerTest, OperationsThatEndedByTheirDeadlineAreNotActive) {
  end_by_deadlines(kTransfers[1]);
  end_by_deadlines(kTransfers[3]);
}

// The access does not wait for the stopped owner, and the keys of other owners stay available. With
// compare-and-swaps by the owner there are more inserts than a connection has credits, of which
// each takes one.
void operate_beside_a_stopped_owner(const ShareAccess& way) {
  run_job_with_a_victim(3, 1, [&](Fabric& fabric) {
    Collectives all(fabric, {.leave_out_dead = true});
    TableOptions options = way.options(4096);
    options.timeout = std::chrono::milliseconds(1000);
    auto table = must(HashTable<2>::create(all, options, soon()));
    const uint32_t in_flight = 4 * fabric.options().receive_units;
    auto access = must(table->access({.in_flight = in_flight}));
    const std::vector<std::optional<pid_t>> processes = must(all.all_gather(getpid(), soon()));
    std::mt19937_64 random(1);
    if (fabric.rank() == 1) return wait_to_be_killed(fabric);
    if (fabric.rank() == 0) {
      for (const uint32_t owner : {1, 2}) {  // connects
        EXPECT_TRUE(wait_until(
            [&] {
              const TableResult put = access->find_or_put(key_of(*table, owner, random));
              return put.outcome == TableOutcome::kInserted;
            },
            soon()));
      }
      stop(*processes[1]);
      std::vector<TableKey<2>> keys;
      for (uint32_t i = 0; i < 3 * in_flight; ++i) {
        keys.push_back(key_of(*table, i % 3 == 0 ? 2 : 1, random));
      }
      std::vector<TableResult> results(keys.size());
      access->find_or_put(keys, results);
      for (size_t i = 0; i < keys.size(); ++i) {
        EXPECT_EQ(results[i].outcome,
                  i % 3 == 0 ? TableOutcome::kInserted : TableOutcome::kUnavailable)
            << i;
      }
      EXPECT_THAT(std::string(access->status().message()), HasSubstr("rank 1"));
      // From now on the operations on the stopped owner take no time.
      for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(access->find(key_of(*table, 1, random)).outcome, TableOutcome::kUnavailable);
      }
      kill(*processes[1], SIGKILL);
    }
    must(all.barrier(soon()));
  });
}

TEST(StoppedOwnerTest, OperationsOnOtherOwnersGoOn) {
  operate_beside_a_stopped_owner(kTransfers[1]);
  operate_beside_a_stopped_owner(kTransfers[3]);
}

// A process that is stopped and was never connected costs one attempt to connect, not one for each
// key.
TEST(StoppedOwnerTest, ItIsConnectedToOnce) {
  constexpr uint32_t kObserver = 3;  // not connected to the victim by a binomial tree
  constexpr uint32_t kVictim = 4;
  FabricOptions options;
  options.timeout = std::chrono::seconds(6);
  RunOptions run;
  run.may_die = {kVictim};
  const absl::Status status = try_process_job(
      5, options,
      [](Fabric& fabric) {
        Collectives all(fabric, {.leave_out_dead = true});
        auto table =
            must(HashTable<2>::create(all, {.buckets = 4096, .force_remote = true}, soon()));
        const std::vector<std::optional<pid_t>> processes = must(all.all_gather(getpid(), soon()));
        must(all.barrier(soon()));
        if (fabric.rank() == kVictim) return wait_to_be_killed(fabric);
        if (fabric.rank() == kObserver) {
          stop(*processes[kVictim]);
          auto access = must(table->access());
          std::mt19937_64 random(1);
          std::vector<TableKey<2>> keys;
          for (int i = 0; i < 20; ++i) keys.push_back(key_of(*table, kVictim, random));
          std::vector<TableResult> results(keys.size());
          static std::atomic<size_t> connects;
          must(start_trace(::testing::TempDir() + "/connects_" + std::to_string(getpid())));
          internal::set_trace_observer([](const char*, const char* name) {
            if (std::string_view(name) == "connect") ++connects;
          });
          access->find_or_put(keys, results);
          for (const TableResult& result : results) {
            EXPECT_EQ(result.outcome, TableOutcome::kUnavailable);
          }
          EXPECT_EQ(access->find(keys[0]).outcome, TableOutcome::kUnavailable);
          internal::set_trace_observer(nullptr);
          must(stop_trace());
          // One attempt; another one after each TableOptions::timeout, if the machine is so slow.
          EXPECT_GE(connects.load(), 1u);
          EXPECT_LT(connects.load(), keys.size() / 4);
          EXPECT_FALSE(access->status().ok());
          kill(*processes[kVictim], SIGKILL);
        }
        must(all.barrier(soon()));
      },
      run);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(DeadOwnerTest, ItsKeysAreUnavailable) {
  for (const ShareAccess& way : kShareAccesses) {
    run_job_with_a_victim(3, 2, [&](Fabric& fabric) { lose_an_owner(fabric, way); });
  }
}

}  // namespace
}  // namespace cariama::testing
