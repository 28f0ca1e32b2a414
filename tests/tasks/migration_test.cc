// Tasks that change their process. join_after_steal() forces a steal: the child polls until its
// parent, which only a thief can continue, has set a flag.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tasks/cancellation.h"
#include "tasks/exceptions.h"
#include "tasks/internal/worker.h"
#include "tasks/parallel.h"
#include "tasks/suspend.h"
#include "tasks/task.h"
#include "tests/dtutils/shm/shm_node.h"
#include "tests/dtutils/testing/process_state.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using testing::fib;
using ::testing::HasSubstr;
using testing::poll_until;
using testing::Shared;
using testing::with_workers;

struct Flags {
  std::atomic<int> parent_pid{0};
  std::atomic<int> child_pid{0};
  std::atomic<int> go{0};
  std::atomic<int> count{0};
  std::atomic<uint64_t> wakeable_sleeps{0};
  SuspendedTask handle;
};

int same(int value) { return value; }  // tasks take a pointer to this function along

// ---- results ----

// Forks a child that ends only after its parent has been stolen. Joins it and returns its result
// f().
template <typename F>
auto join_after_steal(Flags* flags, F f) {
  flags->parent_pid = 0;
  flags->child_pid = 0;
  // These must stay valid in the thief: values, pointers to the task's own locals, to functions and
  // to constants.
  std::array<int, 200> local;
  for (size_t i = 0; i < local.size(); ++i) local[i] = static_cast<int>(i) * 3;
  int* const inside = &local[100];
  int (*const function)(int) = same;
  const char* const constant = "a constant";
  auto child = spawn([flags, f] {
    flags->child_pid = getpid();
    EXPECT_TRUE(poll_until([flags] { return flags->parent_pid != 0; })) << "no steal happened";
    return f();
  });
  EXPECT_FALSE(child.ready());
  // The thief may continue the parent before the child has stored its pid.
  EXPECT_TRUE(poll_until([flags] { return flags->child_pid != 0; }));
  EXPECT_NE(getpid(), flags->child_pid);
  EXPECT_EQ(*inside, 300);
  EXPECT_EQ(function(*inside), 300);
  EXPECT_STREQ(constant, "a constant");
  for (size_t i = 0; i < local.size(); ++i) EXPECT_EQ(local[i], static_cast<int>(i) * 3);
  flags->parent_pid = getpid();
  return join(std::move(child));
}

struct LargeResult {
  std::array<uint64_t, 5000> words;
};
struct Named : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Unnamed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Variant {
  const char* name;
  JoinPolicy join;
  DequeKind deque;
  RemoteAtomics atomics = RemoteAtomics::kDevice;
  StackScheme scheme = StackScheme::kUni;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class Migration : public ::testing::TestWithParam<Variant> {
 protected:
  static TaskOptions options() {
    TaskOptions options;
    options.join = GetParam().join;
    options.deque = GetParam().deque;
    options.atomics = GetParam().atomics;
    options.scheme = GetParam().scheme;
    if (options.scheme == StackScheme::kIso) {
      // Each stack holds several copies of a result of 40 000 bytes.
      options.iso_stack_bytes = size_t{256} << 10;
      options.stack_bytes = size_t{256} << 20;
    }
    return options;
  }
  // Runs `root` on two workers. Failures in tasks fail the test.
  template <typename F>
  static void on_two(F root) {
    with_workers(2, options(), [&](TaskRuntime& runtime) {
      register_exception<Named>();
      const auto result = runtime.run(root);
      if constexpr (std::is_same_v<std::decay_t<decltype(result)>, absl::Status>) {
        EXPECT_TRUE(result.ok()) << result;
      } else {
        EXPECT_TRUE(result.ok()) << result.status();
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(
    Variants, Migration,
    ::testing::Values(Variant{"greedy", JoinPolicy::kGreedy, DequeKind::kSplit},
                      Variant{"wait_queue", JoinPolicy::kWaitQueue, DequeKind::kSplit},
                      Variant{"the", JoinPolicy::kGreedy, DequeKind::kThe},
                      Variant{"paper", JoinPolicy::kWaitQueue, DequeKind::kThe},
                      Variant{"private", JoinPolicy::kGreedy, DequeKind::kPrivate},
                      Variant{"served", JoinPolicy::kGreedy, DequeKind::kSplit,
                              RemoteAtomics::kServed},
                      Variant{"crude", JoinPolicy::kGreedy, DequeKind::kSplit,
                              RemoteAtomics::kDevice, StackScheme::kCrude},
                      Variant{"iso", JoinPolicy::kGreedy, DequeKind::kSplit, RemoteAtomics::kDevice,
                              StackScheme::kIso}),
    [](const auto& info) { return info.param.name; });

TEST_P(Migration, ResultsFollowTheParent) {
  const Shared<Flags> flags;
  on_two([f = flags.get()] {
    EXPECT_EQ(join_after_steal(f, [] { return 42; }), 42);
    join_after_steal(f, [] {});
    EXPECT_EQ(join_after_steal(f, [] { return std::string("short"); }), "short");
    {
      // Do not compare in the same expression: the other operand could be created before the task
      // moves. In a block, so that the string is destroyed before the task moves again.
      const std::string text = join_after_steal(f, [] { return std::string(100'000, 'z'); });
      EXPECT_EQ(text, std::string(100'000, 'z'));
    }
    EXPECT_EQ(*join_after_steal(f, [] { return std::make_unique<long>(7); }), 7);
    EXPECT_EQ(join_after_steal(f, [] { return std::unique_ptr<long>(); }), nullptr);
    {
      const auto numbers = join_after_steal(f, [] { return std::vector<int>{1, 2, 3}; });
      EXPECT_THAT(numbers, ::testing::ElementsAre(1, 2, 3));
    }
    EXPECT_EQ(join_after_steal(f, [] { return std::pair<int, double>(1, 0.5); }),
              (std::pair<int, double>(1, 0.5)));
    const LargeResult large = join_after_steal(f, [] {
      LargeResult value;
      for (size_t i = 0; i < value.words.size(); ++i) value.words[i] = i * i;
      return value;
    });
    EXPECT_EQ(large.words[4999], 4999u * 4999u);
  });
}

// The children have ended before the parent is stolen, so their results are the parent's when it
// moves.
TEST_P(Migration, ResultsThatOwnMemoryFollowTheParentAtALaterSpawn) {
  const Shared<Flags> flags;
  on_two([f = flags.get()] {
    for (int i = 0; i < 5; ++i) {
      task<std::string> text = spawn_tied([] { return std::string(100, 'x'); });
      task<std::vector<int>> numbers = spawn_tied([i] { return std::vector<int>(1000, i); });
      task<std::unique_ptr<long>> dropped = spawn_tied([] { return std::make_unique<long>(7); });
      EXPECT_EQ(join_after_steal(f, [i] { return i; }), i);
      const auto [here, there] = join_all(std::move(text), std::move(numbers));
      EXPECT_EQ(here, std::string(100, 'x'));
      EXPECT_EQ(there, std::vector<int>(1000, i));
    }
  });
}

TEST_P(Migration, ExceptionsFollowTheParent) {
  const Shared<Flags> flags;
  on_two([f = flags.get()] {
    EXPECT_THROW(join_after_steal(f, []() -> int { throw std::out_of_range("far"); }),
                 std::out_of_range);
    EXPECT_THROW(join_after_steal(f, []() -> int { throw Named("registered"); }), Named);
    // The joiner may be in the child's process again when it joins. Then it gets the exception with
    // its original type.
    try {
      join_after_steal(f, []() -> int { throw Unnamed("text"); });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Unnamed& unnamed) {
      EXPECT_STREQ(unnamed.what(), "text");
      EXPECT_EQ(getpid(), f->child_pid);
    } catch (const remote_error& error) {
      EXPECT_THAT(error.type(), HasSubstr("Unnamed"));
      EXPECT_EQ(error.text(), "text");
      EXPECT_NE(getpid(), f->child_pid);
    }
    // A join in a catch block: the task continues in the same process.
    try {
      throw Unnamed("outer");
    } catch (const Unnamed& outer) {
      const int before = getpid();
      TaskScope scope;
      for (int i = 0; i < 20; ++i) scope.spawn([] { fib(12); });
      scope.join();
      EXPECT_EQ(getpid(), before);
      EXPECT_STREQ(outer.what(), "outer");
    }
  });
}

// ---- the whole machine ----

long busy_fib(long n) {
  if (n < 2) {
    poll();
    return n;
  }
  task<long> left = spawn([n] { return busy_fib(n - 1); });
  const long right = busy_fib(n - 2);
  return join(std::move(left)) + right;
}

TEST_P(Migration, FibOnThreeWorkers) {
  // If each task has its own stack, each of the 28 656 forks makes ThreadSanitizer create and
  // destroy a fiber. That takes minutes on machines where mapping memory is slow.
  bool small = false;
#if defined(__SANITIZE_THREAD__)
  small = GetParam().scheme != StackScheme::kUni;
#endif
  with_workers(3, options(), [small](TaskRuntime& runtime) {
    long n = small ? 12 : 22;
    for (int run = 0; run < 5; ++run) {
      EXPECT_EQ(runtime.run([n] { return busy_fib(n); }).value(), small ? 144 : 17711);
    }
    const TaskStatistics s = runtime.statistics();
    if (s.steals > 0) {
      // With kCrude, thieves read frames from pinned segments, and first the key of each segment.
      const uint64_t keys = GetParam().scheme == StackScheme::kCrude ? 20 : 0;
      EXPECT_GE(s.steal_trips, testing::round_trips_of(GetParam().deque) * s.steals);
      EXPECT_LE(s.steal_trips, testing::round_trips_of(GetParam().deque) * s.steals + keys);
    }
    EXPECT_LE(s.resumed_remote, s.resumed);
  });
}

// Computes a random tree whose tasks wait, yield, throw, and return values of several types. The
// result must equal that of the same tree computed sequentially (kParallel == false).
uint64_t mix(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9E3779B97F4A7C15;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9;
  return x ^ x >> 32;
}

template <bool kParallel>
uint64_t tree(uint64_t seed, int depth) {
  uint64_t sum = mix(seed);
  if (depth == 0) return sum;
  const uint64_t children = 1 + sum % 4;
  if constexpr (!kParallel) {
    for (uint64_t i = 0; i < children; ++i) {
      const uint64_t child = tree<false>(seed * 5 + i, depth - 1);
      sum += child % 7 == 0 ? 1 : child;
    }
    return sum;
  } else {
    if (sum % 5 == 0) yield();
    if (sum % 3 == 0) {  // all children at once, joined in order
      task<uint64_t> first = spawn([=] { return tree<true>(seed * 5, depth - 1); });
      TaskPromise<std::string> promise;
      task<void> rest = spawn([=, p = promise] {
        uint64_t others = 0;
        for (uint64_t i = 1; i < children; ++i) {
          const uint64_t child = join(spawn([=] { return tree<true>(seed * 5 + i, depth - 1); }));
          others += child % 7 == 0 ? 1 : child;
        }
        p.set(std::to_string(others));
      });
      const uint64_t child = join(std::move(first));
      sum += child % 7 == 0 ? 1 : child;
      sum += std::stoull(promise.future().get());
      join(std::move(rest));
      return sum;
    }
    for (uint64_t i = 0; i < children; ++i) {
      task<uint64_t> child = spawn([=]() -> uint64_t {
        const uint64_t value = tree<true>(seed * 5 + i, depth - 1);
        if (value % 7 == 0) throw std::range_error("seven");
        return value;
      });
      uint64_t value = 1;
      bool threw = false;
      try {
        value = join(std::move(child));
      } catch (const std::range_error&) {
        threw = true;
      }
      sum += threw ? 1 : value;
    }
    return sum;
  }
}

TEST_P(Migration, RandomTrees) {
#if defined(__SANITIZE_THREAD__)
  uint64_t seeds = 3;  // slow: each run of a task is a separate fiber for ThreadSanitizer
#else
  uint64_t seeds = 40;
#endif
  // Each steal waits until its victim gets a core, and the machine may have few.
  if (GetParam().deque == DequeKind::kPrivate) seeds = std::min<uint64_t>(seeds, 8);
  TaskOptions small = options();
  small.idle_sleep = std::chrono::microseconds(5);
  with_workers(3, small, [seeds](TaskRuntime& runtime) {
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      const uint64_t expected = tree<false>(seed, 8);
      const auto result = runtime.run([seed] { return tree<true>(seed, 8); });
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_EQ(*result, expected) << "seed " << seed;
    }
  });
}

// ---- suspension across processes ----

TEST_P(Migration, ASuspendedTaskGoesOnWhereItIsResumed) {
  const Shared<Flags> flags;
  on_two([f = flags.get()] {
    // The child suspends; the parent is stolen while a second child polls, and resumes the first.
    task<int> suspended = spawn([f] {
      const int before = getpid();
      const std::array<int, 3> local{1, 2, 3};
      suspend([f](const SuspendedTask& task) {
        f->handle = task;
        f->go = 1;
      });
      EXPECT_EQ(local[2], 3);
      return getpid() == before ? 0 : getpid();
    });
    EXPECT_TRUE(poll_until([f] { return f->go == 1; }));
    const int resumer = join_after_steal(f, [] { return 0; }) + getpid();
    resume(f->handle);
    const int where = join(std::move(suspended));
    // The task continues in the process that called resume(), which can be its first one.
    EXPECT_TRUE(where == 0 || where == resumer) << where << " " << resumer;
  });
}

TEST_P(Migration, AFutureIsSetFromAnotherProcess) {
  const Shared<Flags> flags;
  on_two([f = flags.get()] {
    const TaskPromise<int> promise;
    task<int> waiter = spawn([future = promise.future()] { return future.get() + 1; });
    join_after_steal(f, [promise] { promise.set(getpid()); });
    EXPECT_EQ(join(std::move(waiter)), f->child_pid + 1);
  });
}

// ---- cancellation ----

TEST_P(Migration, CancellationReachesEveryWorker) {
  const Shared<Flags> flags;
  on_two([f = flags.get()] {
    const CancellationSource source;
    const CancellationSource other;
    const CancellationToken token = source.token();
    EXPECT_FALSE(token.cancelled());
    // The child waits until its parent, in another process, cancels it.
    task<void> child = spawn([f, token] {
      f->child_pid = getpid();
      EXPECT_TRUE(poll_until([token] { return token.cancelled(); }));
      token.check();
      ADD_FAILURE() << "check() did not throw";
    });
    EXPECT_NE(getpid(), f->child_pid);
    token.cancel();
    EXPECT_TRUE(token.cancelled());
    EXPECT_FALSE(other.token().cancelled());
    EXPECT_THROW(join(std::move(child)), task_cancelled);
    // A loop that is cancelled in its middle ends early and throws.
    f->count = 0;
    const CancellationToken loop = other.token();
    EXPECT_THROW(parallel_for(loop, 0, 100'000,
                              [f, loop](int i) {
                                if (++f->count == 10) loop.cancel();
                                static_cast<void>(i);
                              }),
                 task_cancelled);
    EXPECT_GE(f->count, 10);
    EXPECT_LT(f->count, 100'000);
    f->count = 0;
    parallel_for(CancellationSource().token(), 0, 1000, [f](int) { ++f->count; });
    EXPECT_EQ(f->count, 1000);
  });
}

// ---- tied ----

class Tied : public ::testing::TestWithParam<StackScheme> {};
INSTANTIATE_TEST_SUITE_P(Schemes, Tied,
                         ::testing::Values(StackScheme::kUni, StackScheme::kCrude,
                                           StackScheme::kIso));

TEST_P(Tied, ACallerStays) {
  with_workers(2, {.scheme = GetParam()}, [&](TaskRuntime& runtime) {
    const auto status = runtime.run([] {
      const int before = getpid();
      for (int i = 0; i < 50; ++i) {
        // The child polls, so thieves could steal its parent.
        join(spawn_tied([] {
          for (int k = 0; k < 20; ++k) {
            poll();
            sched_yield();
          }
          join(spawn([] { poll(); }));  // a descendant of a tied parent is not stolen either
        }));
        EXPECT_EQ(getpid(), before);
      }
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(runtime.statistics().steals, 0u);
  });
}

// Forks a child that polls for 3 ms, so that thieves could steal the caller. The caller must stay.
void fork_and_poll() {
  const int before = getpid();
  join(spawn([] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
    while (std::chrono::steady_clock::now() < end) poll();
  }));
  EXPECT_EQ(getpid(), before);
}
struct ForksAtItsEnd {
  ForksAtItsEnd() = default;
  ForksAtItsEnd(const ForksAtItsEnd&) = delete;
  ForksAtItsEnd& operator=(const ForksAtItsEnd&) = delete;
  ~ForksAtItsEnd() { fork_and_poll(); }
};

TEST_P(Tied, ATaskThatHandlesAnExceptionStays) {
  with_workers(2, {.scheme = GetParam()}, [&](TaskRuntime& runtime) {
    const auto status = runtime.run([] {
      for (int i = 0; i < 30; ++i) {
        try {
          const ForksAtItsEnd forks;  // its destructor forks while the exception unwinds
          throw std::range_error("of this process");
        } catch (const std::range_error& error) {
          fork_and_poll();
          EXPECT_STREQ(error.what(), "of this process");
        }
      }
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(runtime.statistics().steals, 0u);
  });
}

// ---- idle workers ----

// With this wakeable_sleep, a worker finds work only if it is woken: a lost wake-up would block it.
TEST(Idle, ASleepingWorkerIsWoken) {
  const Shared<Flags> flags;
  TaskOptions sleepy;
  sleepy.wakeable_sleep = std::chrono::hours(1);
  with_workers(3, sleepy, [&](TaskRuntime& runtime) {
    for (int run = 0; run < 20; ++run) {
      const auto result = runtime.run([f = flags.get()] {
        auto& sleepers =
            reinterpret_cast<tasks::WorkerArea*>(tasks::this_worker->region().tail())->sleepers;
        EXPECT_TRUE(testing::spin_until([&] { return sleepers.armed() != 0; }));
        return join_after_steal(f, [] { return 1; });
      });
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(*result, 1);
    }
    flags->wakeable_sleeps += runtime.statistics().wakeable_sleeps;
  });
  // Not every worker must have slept: one may always find work before it arms its doorbell.
  EXPECT_GT(flags->wakeable_sleeps, 0u);
}

// ---- what cannot travel ----

// Forks while a local points to `owned`: memory of this process, or nullptr.
int fork_beside(Flags* flags, int* owned) {
  int* volatile kept = owned;
  const int one = join_after_steal(flags, [] { return 1; });
  return kept == owned ? one : 0;
}

TEST(CheckFrames, APrivatePointerIsReported) {
  TaskOptions checked;
  checked.check_frames = true;
  for (const bool wrong : {true, false}) {
    const Shared<Flags> flags;
    with_workers(2, checked, [&](TaskRuntime& runtime) {
      const std::unique_ptr<int> owner = std::make_unique<int>(1);
      ::testing::internal::CaptureStderr();
      const auto result = runtime.run([f = flags.get(), owned = wrong ? owner.get() : nullptr] {
        return fork_beside(f, owned);
      });
      const std::string said = ::testing::internal::GetCapturedStderr();
      EXPECT_EQ(result.value_or(0), 1) << said;
      if (runtime.rank() != 0 || !wrong) return;
      EXPECT_THAT(said, HasSubstr("in this process's private heap"));
      EXPECT_THAT(said, ::testing::ContainsRegex("above the fork in .*(after_steal|run_child)"));
      EXPECT_THAT(said, HasSubstr("use values or global pointers"));
    });
  }
}

// ---- a victim that does not run ----

TEST(OneSided, AStealNeedsNothingOfTheVictim) {
  const Shared<Flags> flags;
  with_workers(2, {}, [&](TaskRuntime& runtime) {
    const absl::StatusOr<int> result = runtime.run([f = flags.get()] {
      f->child_pid = getpid();
      task<int> child = spawn([f] {
        // Stops its own process when the parent is public. The thief continues the process.
        while (tasks::cariama_fork_state.floor != tasks::cariama_fork_state.top) poll();
        f->go = 1;
        raise(SIGSTOP);
        return 5;
      });
      // In the thief. The victim is stopped now or soon, and stays stopped while this task
      // continues with the frames that were read from it.
      EXPECT_NE(getpid(), f->child_pid);
      EXPECT_TRUE(testing::wait_until_stopped(f->child_pid, soon()));
      f->parent_pid = getpid();
      kill(f->child_pid, SIGCONT);
      return join(std::move(child));
    });
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result.value_or(0), 5);
  });
}

// The victim is stopped before the thief begins to search for work.
TEST(OneSided, AStoppedVictimIsStolenFrom) {
  const Shared<Flags> flags;
  with_workers(2, {}, [&](TaskRuntime& runtime) {
    if (runtime.rank() == 1) {
      ASSERT_TRUE(testing::spin_until([&] { return flags->go == 1; }));
      ASSERT_TRUE(testing::wait_until_stopped(flags->child_pid, soon()));
    }
    const absl::StatusOr<int> result = runtime.run([f = flags.get()] {
      f->child_pid = getpid();
      task<int> child = spawn([f] {
        // Two private entries are enough for a refill to make one public.
        return join(spawn([f] {
          poll();
          EXPECT_NE(tasks::cariama_fork_state.floor, tasks::cariama_fork_state.top - 2)
              << "nothing is public";
          f->go = 1;
          raise(SIGSTOP);
          return 6;
        }));
      });
      EXPECT_NE(getpid(), f->child_pid);
      EXPECT_TRUE(testing::wait_until_stopped(f->child_pid, soon()))
          << "the victim ran during the steal";
      kill(f->child_pid, SIGCONT);
      return join(std::move(child));
    });
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result.value_or(0), 6);
  });
}

}  // namespace
}  // namespace cariama
