// Task pools on forked workers over shm: results, exceptions, and what happens at the limits.
#include "tasks/pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dsfabric/global_memory.h"
#include "dsfabric/send_call.h"
#include "tasks/await.h"
#include "tasks/pool/cells.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/tasks/pool/pool_test_support.h"

namespace cariama::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Throws;
using namespace std::chrono_literals;

TEST(Pool, OneWorkerComputes) {
  with_pool(1, {}, [](TaskPool& pool, Fabric&) {
    const auto result = pool.run<pool_fib>(20);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(*result, 6765);
    EXPECT_EQ(pool.statistics().attempts, 0u);
  });
}

TEST(Pool, SeveralWorkersCompute) {
  for (const int workers : {2, 4}) {
    with_pool(workers, {}, [](TaskPool& pool, Fabric&) {
      for (int run = 0; run < 3; ++run) {
        const auto fib = pool.run<pool_fib>(22);
        ASSERT_TRUE(fib.ok()) << fib.status();
        EXPECT_EQ(*fib, 17711) << "every rank gets the result";
        const auto queens = pool.run<pool_queens>(8, PoolBoard{}, 0);
        ASSERT_TRUE(queens.ok()) << queens.status();
        EXPECT_EQ(*queens, 92u);
      }
    });
  }
}

TEST(Pool, AFurtherPoolInTheSameJob) {
  run_process_job(2, {}, [](Fabric& fabric) {
    for (int i = 0; i < 2; ++i) {
      const auto pool = TaskPool::create(fabric, {.cells = 64});
      ASSERT_TRUE(pool.ok()) << pool.status();
      EXPECT_EQ(TaskPool::create(fabric, {}).status().code(),
                absl::StatusCode::kFailedPrecondition);
      EXPECT_EQ((*pool)->run<pool_fib>(15).value_or(0), 610);
    }
  });
}

TEST(Pool, InvalidOptionsAreRefused) {
  run_process_job(1, {}, [](Fabric& fabric) {
    EXPECT_THAT(TaskPool::create(fabric, {.cells = 1}).status().ToString(),
                HasSubstr("PoolOptions::cells"));
    for (const uint32_t steal : {0U, 65U, UINT32_MAX - 1}) {
      const absl::Status refused = TaskPool::create(fabric, {.steal = steal}).status();
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_THAT(refused.ToString(), HasSubstr("PoolOptions::steal is " + std::to_string(steal)));
    }
    // Sums of these would overflow.
    for (const PoolOptions& huge : {PoolOptions{.cells = SIZE_MAX}, {.private_cells = SIZE_MAX}}) {
      const absl::Status refused = TaskPool::create(fabric, huge).status();
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_THAT(refused.ToString(), HasSubstr("at most 2^27 of each kind"));
    }
  });
  run_process_job(2, {}, [](Fabric& fabric) {
    const PoolOptions options{.steal = fabric.rank() == 0 ? 1u : kStealHalf};
    EXPECT_THAT(TaskPool::create(fabric, options).status().ToString(),
                HasSubstr("the PoolOptions of rank"));
    const RemoteAtomics atomics =
        fabric.rank() == 0 ? RemoteAtomics::kDevice : RemoteAtomics::kServed;
    EXPECT_THAT(TaskPool::create(fabric, {.atomics = atomics}).status().ToString(),
                HasSubstr("the PoolOptions of rank"));
  });
}

TEST(Pool, InvalidTimesAndStacksAreRefused) {
  using std::chrono::milliseconds;
  run_process_job(1, {}, [](Fabric& fabric) {
    const auto expect_refused = [](const absl::Status& refused, const std::string& text) {
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_THAT(refused.ToString(), HasSubstr(text));
    };
    for (const milliseconds timeout : {milliseconds(-1), milliseconds(0), milliseconds::max()}) {
      const std::string text = "::timeout is " + std::to_string(timeout.count()) + " ms";
      expect_refused(TaskPool::create(fabric, {.timeout = timeout}).status(), "PoolOptions" + text);
      expect_refused(TaskRuntime::create(fabric, {.timeout = timeout}).status(),
                     "TaskOptions" + text);
    }
    for (const milliseconds sleep : {milliseconds(-1), milliseconds::max()}) {
      expect_refused(TaskRuntime::create(fabric, {.wakeable_sleep = sleep}).status(),
                     "TaskOptions::wakeable_sleep is " + std::to_string(sleep.count()));
    }
    for (const size_t bytes : {size_t{0}, size_t{1} << 40, SIZE_MAX}) {
      expect_refused(TaskRuntime::create(fabric, {.stack_bytes = bytes}).status(),
                     "TaskOptions::stack_bytes is " + std::to_string(bytes));
    }
  });
}

TEST(Pool, InvalidVictimsAndSleepsAreRefusedByBothRuntimes) {
  run_process_job(2, {}, [](Fabric& fabric) {
    const Rank own = fabric.rank();
    const Rank other = 1 - own;
    const std::pair<std::vector<std::vector<Rank>>, std::string> cases[] = {
        {{{other}, {2}}, "victims holds rank 2, but the job has 2 workers"},
        {{{~0U}}, "victims holds rank 4294967295, but the job has 2 workers"},
        {{{own}}, "victims holds rank " + std::to_string(own.value()) + ", which is this worker"},
        {{{other}, {}, {other}}, "victims holds rank " + std::to_string(other.value()) + " twice"},
    };
    for (const auto& [victims, text] : cases) {
      const absl::Status pool = TaskPool::create(fabric, {.victims = victims}).status();
      EXPECT_TRUE(absl::IsInvalidArgument(pool)) << pool;
      EXPECT_THAT(pool.ToString(), HasSubstr("PoolOptions::" + text));
      const absl::Status tasks = TaskRuntime::create(fabric, {.victims = victims}).status();
      EXPECT_TRUE(absl::IsInvalidArgument(tasks)) << tasks;
      EXPECT_THAT(tasks.ToString(), HasSubstr("TaskOptions::" + text));
    }
    for (const std::chrono::microseconds sleep : {-1us, 1'000'001us}) {
      EXPECT_THAT(TaskPool::create(fabric, {.idle_sleep = sleep}).status().ToString(),
                  HasSubstr("PoolOptions::idle_sleep is " + std::to_string(sleep.count())));
      EXPECT_THAT(TaskRuntime::create(fabric, {.idle_sleep = sleep}).status().ToString(),
                  HasSubstr("TaskOptions::idle_sleep is " + std::to_string(sleep.count())));
    }
  });
}

// ---- Functions without arguments ----

uint64_t answer() { return 42; }
uint64_t answers() {
  pool::Children<answer> child;
  child.spawn();
  pool::spawn<answer>();
  return pool::sync<answer>() + pool::call<answer>() + child.sync();
}

TEST(Pool, TasksNeedNoArguments) {
  with_pool(2, {}, [](TaskPool& pool, Fabric&) { EXPECT_EQ(must(pool.run<answers>()), 126u); });
}

// ---- Full deques ----

uint64_t leaf(uint64_t value) { return value; }
uint64_t spawn_without_sync(uint64_t count) {
  pool::Children<leaf> children;
  for (uint64_t i = 0; i < count; ++i) children.spawn(i);
  uint64_t sum = 0;
  while (!children.empty()) sum += children.sync();
  return sum;
}

TEST(Pool, TasksBeyondTheSharedCellsRunOnTheirWorker) {
  with_pool(2, {.cells = 32, .private_cells = 4096}, [](TaskPool& pool, Fabric&) {
    const auto sum = pool.run<spawn_without_sync>(4000);
    ASSERT_TRUE(sum.ok()) << sum.status();
    EXPECT_EQ(*sum, 4000u * 3999 / 2);
  });
}

TEST(Pool, AFullDequeThrows) {
  with_pool(2, {.cells = 32, .private_cells = 32}, [](TaskPool& pool, Fabric&) {
    const auto sum = pool.run<spawn_without_sync>(1000);
    EXPECT_EQ(sum.status().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(sum.status().message()),
                AllOf(HasSubstr("the deque of the task pool is full: 64 tasks"),
                      HasSubstr("PoolOptions::private_cells")));
    EXPECT_EQ(pool.run<spawn_without_sync>(20).value_or(0), 190u) << "the pool can be used further";
  });
}

// ---- Deep recursion ----

long chain(long length) {
  if (length == 0) return 0;
  pool::Children<leaf> child;
  child.spawn(uint64_t{1});
  const long below = pool::call<chain>(length - 1);
  return below + static_cast<long>(child.sync());
}

// As deep as the UTS tree T3L. With the usual limit of 8 MiB for the stack, it would not fit
// everywhere.
TEST(Pool, DeepRecursionFitsTheRaisedStackLimit) {
  with_pool(2, {.stack_bytes = size_t{100} << 20},
            [](TaskPool& pool, Fabric&) { EXPECT_EQ(must(pool.run<chain>(18'000)), 18'000); });
}

// ---- Exceptions ----

Shared<std::atomic<uint64_t>>* leaves_of_all = nullptr;

uint64_t throwing(int depth, int bad) {
  if (depth == 0) {
    ++**leaves_of_all;
    if (bad == 0) throw std::out_of_range("leaf");
    return 1;
  }
  pool::Children<throwing> child;
  child.spawn(depth - 1, bad);
  child.spawn(depth - 1, bad - (1 << (depth - 1)));
  uint64_t sum = child.sync();
  sum += child.sync();
  return sum;
}
uint64_t catching(int depth) {
  uint64_t caught = 0;
  for (int bad = 0; bad < 1 << depth; ++bad) {
    try {
      pool::call<throwing>(depth, bad);
    } catch (const std::out_of_range& error) {
      caught += std::string(error.what()) == "leaf" ? 1 : 0;
    }
  }
  return caught;
}

TEST(Pool, ExceptionsPropagateToSync) {
  Shared<std::atomic<uint64_t>> leaves;
  leaves_of_all = &leaves;
  with_pool(3, {}, [](TaskPool& pool, Fabric&) {
    const auto caught = pool.run<catching>(6);
    ASSERT_TRUE(caught.ok()) << caught.status();
    EXPECT_EQ(*caught, 64u);
  });
  EXPECT_EQ(*leaves, 64u * 64u) << "the siblings of a task that throws run to their end";
  with_pool(2, {}, [](TaskPool& pool, Fabric&) {
    const auto result = pool.run<throwing>(3, 2);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(result.status().message()),
                HasSubstr("the root task threw: std::out_of_range: leaf"));
  });
}

// The first child ends in the other worker, and throws there.
struct Pids {
  std::atomic<pid_t> first;
  std::atomic<pid_t> second;
};
Shared<Pids>* pids = nullptr;

void throws_elsewhere(int length) {
  (*pids)->second = getpid();
  throw std::runtime_error(std::string(static_cast<size_t>(length), 'x'));
}
void waits_for_a_thief(int) {
  EXPECT_TRUE(communicate_until([] { return (*pids)->second != 0; }));
}
int length_of_text(int length) {
  (*pids)->first = getpid();
  (*pids)->second = 0;
  pool::Children<throws_elsewhere> first;
  pool::Children<waits_for_a_thief> second;
  first.spawn(length);
  second.spawn(0);
  pool::call<waits_for_a_thief>(0);
  second.sync();
  try {
    first.sync();
  } catch (const std::runtime_error& error) {
    return static_cast<int>(std::string(error.what()).size());
  }
  return -1;
}

TEST(Pool, ExceptionsOfStolenTasksTravelAsText) {
  Shared<Pids> shared;
  pids = &shared;
  with_pool(2, {}, [](TaskPool& pool, Fabric&) {
    EXPECT_EQ(pool.run<length_of_text>(10).value_or(0), 10);
    EXPECT_NE((*pids)->first, (*pids)->second);
    const int length = pool.run<length_of_text>(1000).value_or(0);
    EXPECT_GE(length, 60) << "a long text is cut off";
    EXPECT_LT(length, 96);
  });
}

// A type whose mangled name is longer than a payload.
struct ANameOfALengthThatNoMessageHasRoomForBecauseItContinuesBeyondAllThatIsUsual {};
template <typename>
struct LongNamed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
using Registered =
    LongNamed<ANameOfALengthThatNoMessageHasRoomForBecauseItContinuesBeyondAllThatIsUsual>;
using Unregistered =
    LongNamed<ANameOfALengthThatNoMessageHasRoomForBecauseItContinuesBeyondAllThatIsUsual*>;

void throws_long_name_elsewhere(bool registered) {
  (*pids)->second = getpid();
  if (registered) throw Registered("the text");
  throw Unregistered("the text");
}
// Returns 1 if a Registered was thrown, 2 for a remote_error, with the right text.
int type_of_exception(bool registered) {
  (*pids)->first = getpid();
  (*pids)->second = 0;
  pool::Children<throws_long_name_elsewhere> first;
  pool::Children<waits_for_a_thief> second;
  first.spawn(registered);
  second.spawn(0);
  pool::call<waits_for_a_thief>(0);
  second.sync();
  try {
    first.sync();
  } catch (const Registered& error) {
    return error.what() == std::string("the text") ? 1 : -1;
  } catch (const remote_error& error) {
    EXPECT_THAT(error.type(), ::testing::StartsWith("cariama::testing::"));
    EXPECT_LE(error.type().size(), 48u);
    return error.text() == "the text" ? 2 : -1;
  }
  return 0;
}

TEST(Pool, ExceptionsWithLongTypeNamesKeepTheirText) {
  register_exception<Registered>();
  Shared<Pids> shared;
  pids = &shared;
  with_pool(2, {}, [](TaskPool& pool, Fabric&) {
    EXPECT_EQ(must(pool.run<type_of_exception>(true)), 1);
    EXPECT_NE((*pids)->first, (*pids)->second);
    EXPECT_EQ(must(pool.run<type_of_exception>(false)), 2);
  });
}

// ---- Misuse ----

uint64_t forgets(uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) pool::spawn<leaf>(i);
  pool::spawn<pool_fib>(3);
  return count;
}
uint64_t forgetful(uint64_t) {
  const uint64_t sum = pool::call<forgets>(uint64_t{5}) + pool::call<forgets>(uint64_t{7});
  pool::spawn<leaf>(uint64_t{30});
  return sum + pool::sync<leaf>();
}
uint64_t confuses(uint64_t) {
  pool::spawn<leaf>(uint64_t{1});
  return static_cast<uint64_t>(pool::sync<pool_fib>());
}
uint64_t syncs_too_often(uint64_t) { return pool::sync<leaf>(); }

TEST(Pool, MisuseIsReported) {
  with_pool(2, {}, [](TaskPool& pool, Fabric&) {
    EXPECT_EQ(pool.run<forgetful>(0).value_or(0), 42u) << "unsynced tasks are finished";
    EXPECT_THAT(std::string(pool.run<confuses>(0).status().message()),
                HasSubstr("pool::sync() of another function"));
    EXPECT_THAT(std::string(pool.run<syncs_too_often>(0).status().message()),
                HasSubstr("pool::sync() without a spawned task"));
    EXPECT_EQ(pool.run<forgetful>(0).value_or(0), 42u);
    const auto outside =
        ::testing::Property(&std::exception::what, HasSubstr("outside of TaskPool::run()"));
    EXPECT_THAT([] { pool::spawn<leaf>(uint64_t{1}); }, Throws<std::logic_error>(outside));
    EXPECT_THAT([] { static_cast<void>(pool::sync<leaf>()); }, Throws<std::logic_error>(outside));
    absl::Status elsewhere;
    std::thread([&] { elsewhere = pool.run<leaf>(uint64_t{1}).status(); }).join();
    EXPECT_TRUE(absl::IsFailedPrecondition(elsewhere)) << elsewhere;
    EXPECT_EQ(pool.run<forgetful>(0).value_or(0), 42u);
  });
  EXPECT_THROW(pool::spawn<leaf>(uint64_t{1}), std::logic_error) << "outside of a run";
  EXPECT_THROW(static_cast<void>(pool::sync<leaf>()), std::logic_error);
}

// Syncs in the wrong order, catches the error, and syncs in the right order.
uint64_t repairs_its_order(uint64_t) {
  pool::Children<leaf> children;
  children.spawn(uint64_t{1});
  pool::spawn<pool_fib>(10L);
  try {
    static_cast<void>(children.sync());
    return 0;
  } catch (const std::logic_error&) {
  }
  const auto other = static_cast<uint64_t>(pool::sync<pool_fib>());
  const uint64_t left = children.size();
  return left == 1 ? other + children.sync() : 0;
}
uint64_t with_leaf(uint64_t) { return 55 + pool::call<leaf>(uint64_t{1}); }

TEST(Pool, AChildThatWasNotSyncedIsStillCounted) {
  with_pool(1, {}, [](TaskPool& pool, Fabric&) {
    const uint64_t expected = pool.run<with_leaf>(0).value_or(1);
    EXPECT_EQ(pool.run<repairs_its_order>(0).value_or(0), expected);
  });
}

// ---- Other layers ----

GlobalMemory* the_memory = nullptr;

uint64_t sum_of_words(global_ptr<uint64_t> words, uint64_t begin, uint64_t end) {
  if (end - begin == 1) {
    GlobalValue<uint64_t> word = the_memory->rget(words + static_cast<std::ptrdiff_t>(begin));
    return await(word, kForever).value_or(0);
  }
  const uint64_t middle = begin + (end - begin) / 2;
  pool::Children<sum_of_words> low;
  low.spawn(words, begin, middle);
  const uint64_t high = pool::call<sum_of_words>(words, middle, end);
  return low.sync() + high;
}

TEST(Pool, TasksUseGlobalMemory) {
  with_pool(2, {}, [](TaskPool& pool, Fabric& fabric) {
    constexpr uint64_t kWords = 100;
    auto memory = must(GlobalMemory::create(fabric));
    the_memory = memory.get();
    global_ptr<uint64_t> words;
    if (fabric.rank() == 0) {
      words = must(memory->allocate<uint64_t>(1, kWords, soon()));
      std::vector<uint64_t> values(kWords);
      for (uint64_t i = 0; i < kWords; ++i) values[i] = i;
      must(memory->put(std::span<const uint64_t>(values), words, soon()));
    }
    EXPECT_EQ(must(pool.run<sum_of_words>(words, 0, kWords)), kWords * (kWords - 1) / 2);
  });
}

struct Calls {
  std::atomic<uint64_t> run;
};
Shared<Calls>* calls_of_test = nullptr;
Fabric* fabric_of_test = nullptr;

// Rank 0 has tasks to spare, and answers no thief: rank 1 waits for an answer most of the time.
uint64_t calls_a_waiting_thief(uint64_t count) {
  pool::Children<leaf> children;
  for (int i = 0; i < 1000; ++i) children.spawn(uint64_t{0});
  pool::communicate();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (uint64_t i = 0; i < count && std::chrono::steady_clock::now() < deadline; ++i) {
    must(call(*fabric_of_test, 1, [] { ++(*calls_of_test)->run; }));
    while ((*calls_of_test)->run <= i && std::chrono::steady_clock::now() < deadline) sched_yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return (*calls_of_test)->run;
}

TEST(Pool, AThiefThatWaitsForItsVictimRunsCalls) {
  Shared<Calls> calls;
  calls_of_test = &calls;
  with_pool(2, {}, [](TaskPool& pool, Fabric& fabric) {
    fabric_of_test = &fabric;
    // A wait for the connection in the task would answer thieves.
    if (fabric.rank() == 0) must(fabric.connection(1).status());
    EXPECT_EQ(must(pool.run<calls_a_waiting_thief>(20)), 20u);
  });
}

// ---- A worker that dies ----

struct Victim {
  std::atomic<pid_t> pid;
  std::atomic<int> died;
  std::atomic<int> ended;  // the survivors whose run has ended
};
Shared<Victim>* state_of_victim = nullptr;

// Rank 1 steals it, because rank 0 waits for that before it syncs.
uint64_t dies(uint64_t) {
  if (getpid() == (*state_of_victim)->pid) {
    (*state_of_victim)->died = 1;
    raise(SIGKILL);
  }
  return 0;
}
uint64_t loses_a_worker(uint64_t) {
  pool::Children<dies> first;
  pool::Children<leaf> second;
  first.spawn(uint64_t{0});
  second.spawn(uint64_t{0});
  // Rank 1 takes the first task.
  static_cast<void>(communicate_until([] { return (*state_of_victim)->died != 0; }));
  return second.sync() + first.sync();
}

TEST(Pool, RunOfDifferentFunctionsIsAnError) {
  run_process_job(2, {}, [](Fabric& fabric) {
    auto pool = must(TaskPool::create(fabric, {}));
    const auto result = fabric.rank() == 0 ? pool->run<leaf>(0) : pool->run<dies>(0);
    if (fabric.rank() == 0) {
      EXPECT_TRUE(result.ok()) << result.status();
    } else {
      EXPECT_TRUE(absl::IsFailedPrecondition(result.status())) << result.status();
      EXPECT_THAT(result.status().ToString(), HasSubstr("with the same function"));
    }
    EXPECT_EQ(pool->run<pool_fib>(10).value_or(0), 55) << "the pool is usable afterwards";
  });
}

TEST(Pool, APoolThatOutlivesTheFabricSaysSo) {
  EXPECT_EXIT(
      {
        auto fabric = must(Fabric::create());
        const auto pool = must(TaskPool::create(*fabric));
        fabric.reset();
      },
      ::testing::KilledBySignal(SIGABRT), "a TaskPool is destroyed after the Fabric");
}

TEST(Pool, AKilledWorkerEndsTheRunWithItsName) {
  Shared<Victim> victim;
  state_of_victim = &victim;
  run_job_with_a_victim(3, 1, [](Fabric& fabric) {
    // Only rank 1 steals from rank 0.
    PoolOptions options;
    options.victims = {{}, {}, {}, {fabric.rank() == 1 ? 0U : 1U}};
    if (fabric.rank() == 1) (*state_of_victim)->pid = getpid();
    auto pool = must(TaskPool::create(fabric, options));
    const auto result = pool->run<loses_a_worker>(0);
    if (fabric.rank() == 1) ADD_FAILURE() << "rank 1 was not killed";
    EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("rank 1"));
    EXPECT_EQ(pool->run<pool_fib>(5).status(), result.status()) << "the pool cannot be used again";
  });
}

// Rank 1 steals it, and stops.
uint64_t stops(uint64_t) {
  if (getpid() == (*state_of_victim)->pid) {
    (*state_of_victim)->died = 1;
    raise(SIGSTOP);
  }
  return 0;
}
uint64_t waits_for_a_stopped_worker(uint64_t) {
  pool::Children<stops> first;
  pool::Children<leaf> second;
  first.spawn(uint64_t{0});
  second.spawn(uint64_t{0});
  static_cast<void>(communicate_until([] { return (*state_of_victim)->died != 0; }));
  return second.sync() + first.sync();
}

TEST(Pool, AStoppedWorkerEndsTheRunAtItsTimeLimit) {
  for (const auto termination : {PoolTermination::kDetector, PoolTermination::kStatusScan}) {
    Shared<Victim> victim;
    state_of_victim = &victim;
    run_job_with_a_victim(3, 1, [termination](Fabric& fabric) {
      PoolOptions options;
      options.termination = termination;
      options.victims = {{}, {}, {}, {fabric.rank() == 1 ? 0U : 1U}};
      options.run_timeout = std::chrono::milliseconds(500);
      if (fabric.rank() == 1) (*state_of_victim)->pid = getpid();
      auto pool = must(TaskPool::create(fabric, options));
      const auto begin = std::chrono::steady_clock::now();
      const auto result = pool->run<waits_for_a_stopped_worker>(0);
      if (fabric.rank() == 1) return wait_to_be_killed(fabric);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
      EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
      EXPECT_THAT(std::string(result.status().message()), HasSubstr("rank 1"));
      ++(*state_of_victim)->ended;
      EXPECT_TRUE(spin_until([] { return (*state_of_victim)->ended == 2; }));
      if (fabric.rank() == 0) kill((*state_of_victim)->pid, SIGKILL);
    });
  }
}

// Stores a request of a rank that does not exist in this worker's request cell, while the worker
// has no task that it could hand over.
uint64_t gets_an_impossible_request(uint64_t) {
  auto& area = *reinterpret_cast<tasks::PoolArea*>(tasks::kPoolAddress);
  area.request.store(tasks::request_id_of((1 << tasks::kThiefBits) - 1, 1));
  pool::communicate();
  return 0;
}

TEST(Pool, ARequestOfAnImpossibleRankEndsTheRun) {
  run_job_with_a_victim(2, 1, [](Fabric& fabric) {
    PoolOptions options;
    options.victims = {{}, {}, {}, {}};  // no other request
    auto pool = must(TaskPool::create(fabric, options));
    const auto result = pool->run<gets_an_impossible_request>(0);
    EXPECT_FALSE(result.ok());
    if (fabric.rank() == 0) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal) << result.status();
      EXPECT_THAT(std::string(result.status().message()), HasSubstr("names rank 16777215"));
    }
  });
}

uint64_t kills_the_first_worker(uint64_t) {
  raise(SIGKILL);
  return 0;
}

// The idle workers notice it although they wait for no task.
TEST(Pool, AKilledFirstWorkerEndsTheRunToo) {
  run_job_with_a_victim(3, 0, [](Fabric& fabric) {
    auto pool = must(TaskPool::create(fabric));
    const auto result = pool->run<kills_the_first_worker>(0);
    if (fabric.rank() == 0) ADD_FAILURE() << "rank 0 was not killed";
    EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("rank 0"));
  });
}

}  // namespace
}  // namespace cariama::testing
