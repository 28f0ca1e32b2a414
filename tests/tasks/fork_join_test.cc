// Fork and join on one worker: values, exceptions, scopes, suspension, and errors of use.
#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tasks/exceptions.h"
#include "tasks/parallel.h"
#include "tasks/suspend.h"
#include "tasks/task.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using testing::fib;
using ::testing::HasSubstr;

// Runs `root` on a single worker in a separate process, and requires that it succeeds.
template <typename F>
void on_one_worker(F root, const TaskOptions& options = {}) {
  testing::with_workers(1, options, [&](TaskRuntime& runtime) {
    const auto result = runtime.run(root);
    if constexpr (std::is_same_v<std::decay_t<decltype(result)>, absl::Status>) {
      EXPECT_TRUE(result.ok()) << result;
    } else {
      EXPECT_TRUE(result.ok()) << result.status();
    }
  });
}

TEST(ForkJoin, ReturnsValues) {
  testing::with_workers(1, {}, [](TaskRuntime& runtime) {
    EXPECT_EQ(runtime.run([] { return fib(20); }).value(), 6765);
    EXPECT_EQ(runtime.run([] { return fib(1); }).value(), 1);
    const TaskStatistics statistics = runtime.statistics();
    // Only the fast path ran: no entry was published, no task was suspended, and the only records
    // are those of the two roots.
    EXPECT_EQ(statistics.published, 0u);
    EXPECT_EQ(statistics.suspensions, 0u);
    EXPECT_EQ(statistics.records, 2u);
  });
}

struct Large {
  std::array<uint64_t, 500> words;
};

TEST(ForkJoin, ReturnsEveryKindOfValue) {
  on_one_worker([] {
    int plain = 17;
    EXPECT_EQ(join(spawn([plain] { return plain + 1; })), 18);
    EXPECT_EQ(join(spawn([] { return true; })), true);
    EXPECT_EQ(join(spawn([](int a, char b) { return a + b; }, 4, '\2')), 6);
    EXPECT_EQ(join(spawn([] { return std::pair<int64_t, int64_t>(1, 2); })),
              (std::pair<int64_t, int64_t>(1, 2)));
    task<Large> large = spawn([] {
      Large value;
      std::iota(value.words.begin(), value.words.end(), 5);
      return value;
    });
    EXPECT_EQ(join(std::move(large)).words[499], 504u);
    task<std::unique_ptr<int>> owner = spawn([] { return std::make_unique<int>(9); });
    EXPECT_EQ(*join(std::move(owner)), 9);
    EXPECT_EQ(join(spawn([] { return std::string(100, 'x'); })), std::string(100, 'x'));
    // A closure that does not fit into registers.
    const std::array<long, 9> many{1, 2, 3, 4, 5, 6, 7, 8, 9};
    EXPECT_EQ(join(spawn([many] { return std::accumulate(many.begin(), many.end(), 0L); })), 45);
    const char odd[11] = "ten bytes!";
    EXPECT_EQ(join(spawn([odd] { return std::string(odd); })), "ten bytes!");
    const char longer[27] = "twenty-six bytes and zero.";
    EXPECT_EQ(join(spawn([longer] { return std::string(longer); })), longer);
  });
}

TEST(ForkJoin, AResultIsOwnedOnce) {
  on_one_worker([] {
    auto weak = join(spawn([] { return std::make_unique<int>(1); }));
    {
      task<std::unique_ptr<int>> dropped = spawn([] { return std::make_unique<int>(2); });
    }
    task<std::unique_ptr<int>> first = spawn([] { return std::make_unique<int>(3); });
    task<std::unique_ptr<int>> moved = std::move(first);
    EXPECT_THROW(static_cast<void>(join(std::move(first))), std::logic_error);
    EXPECT_EQ(*join(std::move(moved)), 3);
    EXPECT_THROW(static_cast<void>(join(std::move(moved))), std::logic_error);
    EXPECT_EQ(*weak, 1);
  });
}

TEST(ForkJoin, JoinsInAnyOrder) {
  on_one_worker([] {
    task<long> a = spawn([] { return fib(5); });
    task<long> b = spawn([] { return fib(6); });
    task<void> c = spawn([] {});
    join(std::move(c));
    EXPECT_EQ(join(std::move(a)), 5);
    EXPECT_EQ(join(std::move(b)), 8);
  });
}

TEST(ForkJoin, ATaskIsJoinedOnce) {
  on_one_worker([] {
    task<long> first = spawn([] { return fib(5); });
    EXPECT_EQ(join(std::move(first)), 5);
    EXPECT_THROW(join(std::move(first)), std::logic_error);  // NOLINT(bugprone-use-after-move)
    task<long> second = spawn([] { return fib(6); });
    task<long> moved = std::move(second);
    EXPECT_THROW(join(std::move(second)), std::logic_error);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(join(std::move(moved)), 8);
    task<void> none = spawn([] {});
    join(std::move(none));
    EXPECT_THROW(join(std::move(none)), std::logic_error);  // NOLINT(bugprone-use-after-move)
  });
}

struct Odd : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(ForkJoin, ExceptionsReachTheJoiner) {
  on_one_worker([] {
    task<int> child = spawn([]() -> int { throw Odd("three"); });
    EXPECT_FALSE(child.ready());
    try {
      join(std::move(child));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Odd& odd) {  // the original type
      EXPECT_STREQ(odd.what(), "three");
    }
    // An exception that is not a std::exception, through several levels.
    task<int> deep = spawn([] { return join(spawn([]() -> int { throw 42; })); });
    EXPECT_THROW(join(std::move(deep)), int);
    // Without a join the exception is dropped.
    {
      task<int> dropped = spawn([]() -> int { throw Odd("dropped"); });
    }
    // A join while another exception is being handled.
    try {
      throw Odd("outer");
    } catch (const Odd&) {
      EXPECT_THROW(join(spawn([]() -> int { throw Odd("inner"); })), Odd);
    }
  });
}

TEST(ForkJoin, AFirstTaskThatThrowsIsAnError) {
  testing::with_workers(1, {}, [](TaskRuntime& runtime) {
    const absl::StatusOr<int> result = runtime.run([]() -> int { throw Odd("at the root"); });
    EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("Odd: at the root"));
    EXPECT_EQ(runtime.run([] { return 3; }).value(), 3) << "the runtime must stay usable";
  });
}

// If both halves of a range throw, the exception that is not rethrown is released, too.
TEST(ForkJoin, ExceptionsOfSiblingsAreReleased) {
  on_one_worker(
      [] {
        for (int round = 0; round < 200; ++round) {
          EXPECT_THROW(parallel_for(0, 64, [](int) { throw Odd("each"); }), Odd);
        }
      },
      {.pinned_bytes = size_t{1} << 20});
}

TEST(ForkJoin, JoinAllReturnsAllResultsOrTheFirstException) {
  on_one_worker([] {
    const auto [number, text] =
        join_all(spawn([] { return 1; }), spawn([] { return std::string("two"); }));
    EXPECT_EQ(number, 1);
    EXPECT_EQ(text, "two");
    static int ran = 0;
    const std::tuple<std::monostate, int> both =
        join_all(spawn([] { ++ran; }), spawn([] { return 2; }));
    EXPECT_EQ(std::get<1>(both), 2);
    EXPECT_EQ(ran, 1);
    EXPECT_THROW(join_all(spawn([] { return std::string("kept"); }),
                          spawn([]() -> std::string { throw Odd("first"); }),
                          spawn([]() -> int { throw std::out_of_range("second"); })),
                 Odd);
  });
}

TEST(ForkJoin, ParallelShapes) {
  on_one_worker([] {
    const long sum = parallel_reduce(
        0L, 1000L, 0L, [](long i) { return i; }, std::plus<>());
    EXPECT_EQ(sum, 499500);
    EXPECT_EQ(parallel_reduce(
                  5, 5, 7, [](int i) { return i; }, std::plus<>()),
              7);
    // A function returns the neutral element; the result owns memory.
    EXPECT_EQ(parallel_reduce(
                  0, 10, [] { return std::string(); }, [](int i) { return std::to_string(i); },
                  std::plus<>(), 3),
              "0123456789");
    parallel_for(
        0L, 3L, [](long) {}, 100);  // the grain does not decide the type of the index
    static std::array<int, 100> seen;
    parallel_for(
        0, 100, [](int i) { ++seen[static_cast<size_t>(i)]; }, 7);
    EXPECT_THAT(seen, ::testing::Each(1));
    static int calls = 0;
    parallel_invoke([] { calls += 1; }, [] { calls += 10; }, [] { calls += 100; });
    EXPECT_EQ(calls, 111);
    const auto [one, nothing, text] =
        parallel_invoke([] { return 1; }, [] { ++calls; }, [] { return std::string("three"); });
    EXPECT_EQ(one, 1);
    EXPECT_EQ(calls, 112);
    EXPECT_EQ(text, "three");
    EXPECT_THROW(parallel_invoke([] { return 1; }, []() -> int { throw Odd("one"); }), Odd);
    static int finished = 0;
    EXPECT_THROW(parallel_invoke([] { ++finished; }, [] { throw Odd("one"); }, [] { ++finished; }),
                 Odd);
    EXPECT_EQ(finished, 2) << "the siblings must finish";
    EXPECT_THROW(parallel_for(0, 10,
                              [](int i) {
                                if (i == 3) throw std::out_of_range("three");
                              }),
                 std::out_of_range);
    EXPECT_THROW(parallel_reduce(
                     0, 10, 0,
                     [](int i) {
                       if (i > 7) throw Odd("high");
                       return i;
                     },
                     std::plus<>()),
                 Odd);
  });
}

[[gnu::noinline]] uint64_t stack_position() {
  return reinterpret_cast<uint64_t>(__builtin_frame_address(0));
}

// Without a grain, a loop that no thief observes does not fork: all its indices run in one frame.
TEST(ForkJoin, ALoopWithoutThievesIsNotSplit) {
  on_one_worker([] {
    static std::set<uint64_t> frames;
    static std::vector<int> order;
    const auto record = [](int i) {
      frames.insert(stack_position());
      order.push_back(i);
    };
    parallel_for(0, 1000, record);
    EXPECT_EQ(frames.size(), 1u);
    ASSERT_EQ(order.size(), 1000u);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    frames.clear();
    const long sum = parallel_reduce(
        0, 1000, 0L,
        [](int i) {
          frames.insert(stack_position());
          return long{i};
        },
        std::plus<>());
    EXPECT_EQ(sum, 499500);
    EXPECT_EQ(frames.size(), 1u);
    frames.clear();
    parallel_for(0, 1000, record, 1);
    EXPECT_GT(frames.size(), 1u);
    // Sizes of ranges at the limits of the type.
    static long count = 0;
    parallel_for(std::numeric_limits<int8_t>::min(), std::numeric_limits<int8_t>::max(),
                 [](int8_t) { ++count; });
    EXPECT_EQ(count, 255);
    parallel_for(uint8_t{255}, uint8_t{3}, [](uint8_t) { ++count; });
    EXPECT_EQ(count, 255);
  });
}

// A range of int can have more indices than the greatest int. Each piece throws at its first index.
TEST(ForkJoin, ARangeOfAllIndicesIsSplit) {
  on_one_worker([] {
    constexpr int kLeast = std::numeric_limits<int>::min();
    constexpr int kMost = std::numeric_limits<int>::max();
    static std::vector<int> begun;
    const auto first_only = [](int i) {
      begun.push_back(i);
      throw Odd("at the first index");
    };
    EXPECT_THROW(parallel_for(kLeast, kMost, first_only, kMost), Odd);
    EXPECT_THAT(begun, ::testing::ElementsAre(kLeast, -1, (kMost - 1) / 2));
    begun.clear();
    parallel_for(1, -1, first_only);
    parallel_for(kMost, kLeast, first_only);
    EXPECT_THAT(begun, ::testing::IsEmpty());
  });
}

TEST(ForkJoin, AScopeJoins) {
  on_one_worker([] {
    static int done = 0;
    {
      TaskScope scope;
      for (int i = 0; i < 100; ++i) scope.spawn([](int by) { done += by; }, 1);
    }
    EXPECT_EQ(done, 100);
    TaskScope scope;
    scope.spawn([] { throw Odd("first"); });
    scope.spawn([] { throw std::logic_error("second"); });
    for (int i = 0; i < 200; ++i) scope.spawn([] { throw std::logic_error("later"); });
    EXPECT_THROW(scope.join(), Odd);
    scope.join();  // does not throw again
  });
}

TEST(ForkJoin, SuspendAndResume) {
  on_one_worker([] {
    static SuspendedTask handle;
    static std::vector<int>* order = nullptr;
    order = new std::vector<int>;
    // The child suspends itself. Its parent continues, resumes the child, and joins it.
    task<int> child = spawn([] {
      order->push_back(1);
      suspend([](const SuspendedTask& task) { handle = task; });
      order->push_back(3);
      return 7;
    });
    order->push_back(2);
    resume(handle);
    order->push_back(22);
    EXPECT_EQ(join(std::move(child)), 7);
    EXPECT_THAT(*order, ::testing::ElementsAre(1, 2, 22, 3));
    delete order;
    // A task may be resumed before publish() has returned.
    suspend([](const SuspendedTask& task) { resume(task); });
    yield();
    try {
      throw Odd("handled");
    } catch (const Odd& odd) {
      EXPECT_THROW(suspend([](const SuspendedTask&) {}), std::logic_error);
      yield();
      EXPECT_STREQ(odd.what(), "handled");
    }
  });
}

// An exception class that counts its live objects.
class Counted : public std::runtime_error {
 public:
  explicit Counted(const char* text) : std::runtime_error(text) { ++alive; }
  Counted(const Counted& other) : std::runtime_error(other) { ++alive; }
  Counted& operator=(const Counted&) = delete;
  ~Counted() override { --alive; }
  static int alive;
};
int Counted::alive = 0;

// Returns the text of the exception that the caller is handling, or "nothing".
std::string handled_now() {
  if (std::current_exception() == nullptr) return "nothing";
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(ForkJoin, AChildOfACatchBlockIsSuspended) {
  on_one_worker([] {
    try {
      throw Counted("the parent's");
    } catch (const Counted&) {
      task<bool> child = spawn([] {
        suspend([](const SuspendedTask& task) { resume(task); });
        // The parent has continued meanwhile, and handles its exception there.
        return handled_now() == "nothing";
      });
      EXPECT_FALSE(child.ready());
      EXPECT_EQ(handled_now(), "the parent's");
      EXPECT_TRUE(join(std::move(child)));
      EXPECT_EQ(handled_now(), "the parent's");
    }
    EXPECT_EQ(handled_now(), "nothing");
    EXPECT_EQ(Counted::alive, 0);
    EXPECT_EQ(std::uncaught_exceptions(), 0);
  });
}

TEST(ForkJoin, NestedCatchBlocksOfParentAndChildAreSeparated) {
  on_one_worker([] {
    try {
      throw Counted("the parent's");
    } catch (const Counted&) {
      task<std::string> child = spawn([]() -> std::string {
        std::string seen;
        try {
          throw Counted("the child's");
        } catch (const Counted&) {
          task<bool> grandchild = spawn([] {
            yield();
            return handled_now() == "nothing";
          });
          seen += handled_now();
          yield();
          seen += ", " + handled_now();
          seen += join(std::move(grandchild)) ? ", " : ", wrong, ";
          seen += handled_now();
        }
        return seen + ", " + handled_now();
      });
      EXPECT_FALSE(child.ready());
      EXPECT_EQ(handled_now(), "the parent's");
      yield();
      EXPECT_EQ(handled_now(), "the parent's");
      EXPECT_EQ(join(std::move(child)), "the child's, the child's, the child's, nothing");
      EXPECT_EQ(handled_now(), "the parent's");
    }
    EXPECT_EQ(handled_now(), "nothing");
    EXPECT_EQ(Counted::alive, 0);
    EXPECT_EQ(std::uncaught_exceptions(), 0);
  });
}

TEST(ForkJoin, Futures) {
  on_one_worker([] {
    const TaskPromise<long> promise;
    const TaskFuture<long> future = promise.future();
    task<long> waiter = spawn([future] { return future.get() + 1; });
    EXPECT_FALSE(waiter.ready());
    promise.set(41);
    EXPECT_EQ(join(std::move(waiter)), 42);
    const TaskPromise<std::string> before;
    before.set(std::string(1000, 'y'));
    const TaskFuture<std::string> once = before.future();
    EXPECT_EQ(once.get(), std::string(1000, 'y'));
    EXPECT_THROW(static_cast<void>(once.get()), std::logic_error);
    const TaskPromise<void> failed;
    task<void> second = spawn([f = failed.future()] {
      try {
        f.get();
      } catch (const Odd&) {
        EXPECT_THROW(f.get(), std::logic_error);
        throw;
      }
    });
    failed.fail(std::make_exception_ptr(Odd("promised")));
    EXPECT_THROW(join(std::move(second)), Odd);
  });
}

// Computes fib(n). If `suspends`, each leaf yields, so its ancestors continue without it.
long suspending_fib(long n, bool suspends) {
  if (n < 2) {
    if (suspends) yield();
    return n;
  }
  task<long> left = spawn([=] { return suspending_fib(n - 1, suspends); });
  const long right = suspending_fib(n - 2, suspends);
  return join(std::move(left)) + right;
}

TEST(ForkJoin, EveryLeafYields) {
  for (const JoinPolicy policy : {JoinPolicy::kGreedy, JoinPolicy::kWaitQueue}) {
    TaskOptions options;
    options.join = policy;
    testing::with_workers(1, options, [](TaskRuntime& runtime) {
      EXPECT_EQ(runtime.run([] { return suspending_fib(12, true); }).value(), 144);
      EXPECT_GT(runtime.statistics().suspensions, 200u);
      EXPECT_EQ(runtime.statistics().steals, 0u);
    });
  }
}

// ---- errors of use ----

using ForkJoinDeath = ::testing::Test;

TEST(ForkJoinDeath, SpawnOutsideOfATask) {
  EXPECT_EXIT(static_cast<void>(fib(2)), ::testing::ExitedWithCode(70), "spawn outside of a task");
}

[[gnu::noinline]] void bind_a_local(bool large) {
  int local = 3;
  const std::array<long, 9> many{};
  if (large) {
    join(spawn([many, at = &local] { *at += static_cast<int>(many[0]); }));
  } else {
    join(spawn([at = &local] { ++*at; }));
  }
}

TEST(ForkJoinDeath, APointerToAParentsLocal) {
  TaskOptions options;
  options.check_closures = true;
  // Closures with values are accepted, in registers and in memory.
  on_one_worker(
      [] {
        EXPECT_EQ(fib(10), 55);
        const std::array<long, 9> many{};
        join(spawn([many] { static_cast<void>(many); }));
      },
      options);
  const auto captures = [](bool large) {
    testing::run_test_processes(1, [large](Exchange& exchange) {
      TaskOptions checked;
      checked.check_closures = true;
      auto runtime = TaskRuntime::create(exchange, checked);
      EXPECT_EXIT(static_cast<void>((*runtime)->run([large] { bind_a_local(large); })),
                  ::testing::ExitedWithCode(70),
                  "bind_a_local.* spawned a task with a pointer or reference to a local");
    });
  };
  captures(false);
  captures(true);
}

long sum_deeply(long n) {
  if (n == 0) return 0;
  task<long> child = spawn([n] { return sum_deeply(n - 1); });
  return join(std::move(child)) + 1;
}

TEST(ForkJoinDeath, AStackThatOverflowsIsNamed) {
  TaskOptions options;
  options.stack_bytes = 256 << 10;
  testing::run_test_processes(1, [&](Exchange& exchange) {
    auto runtime = TaskRuntime::create(exchange, options);
    ASSERT_TRUE(runtime.ok());
    EXPECT_EXIT(static_cast<void>((*runtime)->run([] { return sum_deeply(1'000'000); })),
                ::testing::ExitedWithCode(134),
                "stack overflow: [0-9]+ tasks deep, 262144 bytes .* TaskOptions::stack_bytes");
  });
}

// A recursion without forks.
[[gnu::noinline]] long plain_depth(long n) {
  volatile char local[512];
  local[0] = static_cast<char>(n);
  return n == 0 ? local[0] : plain_depth(n - 1) + local[0];
}

// One frame that is larger than the whole region.
[[gnu::noinline]] long large_frame(long n) {
  volatile char local[400 << 10];
  for (size_t i = 0; i < sizeof local; i += 1024) local[i] = static_cast<char>(n);
  return local[1024];
}

TEST(ForkJoinDeath, AFrameOverTheRegionIsNamed) {
  TaskOptions options;
  options.stack_bytes = 256 << 10;
  testing::run_test_processes(1, [&](Exchange& exchange) {
    auto runtime = TaskRuntime::create(exchange, options);
    ASSERT_TRUE(runtime.ok());
    EXPECT_EXIT(static_cast<void>((*runtime)->run([] { return large_frame(7); })),
                ::testing::ExitedWithCode(134),
                "stack overflow: 1 tasks deep, 262144 bytes .* TaskOptions::stack_bytes");
  });
}

// With StackScheme::kIso, a deep recursion overflows the stack of its task, and a deep tree of
// tasks uses up the stacks.
TEST(ForkJoinDeath, AnIsoStackThatOverflowsIsNamed) {
  TaskOptions options;
  options.scheme = StackScheme::kIso;
  options.stack_bytes = size_t{4} << 20;
  options.iso_stack_bytes = 256 << 10;
  testing::run_test_processes(1, [&](Exchange& exchange) {
    auto runtime = TaskRuntime::create(exchange, options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    // The guard is one page, so overflow it with small frames.
    EXPECT_EXIT(static_cast<void>((*runtime)->run([] { return plain_depth(1'000'000); })),
                ::testing::ExitedWithCode(134),
                "stack overflow: 1 tasks deep, 262144 bytes of the task's own stack .* "
                "TaskOptions::iso_stack_bytes");
    EXPECT_EXIT(static_cast<void>((*runtime)->run([] { return sum_deeply(1000); })),
                ::testing::ExitedWithCode(70), "all 16 stacks .* TaskOptions::stack_bytes");
  });
}

TEST(ForkJoin, SchemesThatExcludeOtherOptionsAreRefused) {
  testing::run_test_processes(1, [&](Exchange& exchange) {
    TaskOptions options;
    options.scheme = StackScheme::kCrude;
    options.deque = DequeKind::kThe;
    EXPECT_EQ(TaskRuntime::create(exchange, options).status().code(),
              absl::StatusCode::kInvalidArgument);
    options = {.scheme = StackScheme::kIso, .iso_stack_bytes = 5000};
    EXPECT_EQ(TaskRuntime::create(exchange, options).status().code(),
              absl::StatusCode::kInvalidArgument);
  });
}

TEST(ForkJoin, AMillionLevels) {
  TaskOptions options;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  long levels = 3'000;  // instrumented frames are large, and TSan counts calls
#else
  long levels = 1'000'000;
#endif
  options.stack_bytes = size_t{512} << 20;
  testing::with_workers(1, options, [levels](TaskRuntime& runtime) {
    EXPECT_EQ(runtime.run([levels] { return sum_deeply(levels); }).value(), levels);
  });
}

// Suspends one task at each level, and never resumes it.
void suspends_for_ever(int levels) {
  if (levels == 0) return;
  const task<void> child = spawn([] { suspend([](const SuspendedTask&) {}); });
  suspends_for_ever(levels - 1);
}

TEST(ForkJoinDeath, TooManySuspendedTasksAreNamed) {
  TaskOptions options;
  options.pinned_bytes = 300 << 10;
  testing::run_test_processes(1, [&](Exchange& exchange) {
    auto runtime = TaskRuntime::create(exchange, options);
    ASSERT_TRUE(runtime.ok());
    EXPECT_EXIT(static_cast<void>((*runtime)->run([] { suspends_for_ever(10'000); })),
                ::testing::ExitedWithCode(70), "307200 bytes that TaskOptions::pinned_bytes");
  });
}

// A result that must be stored for its joiner, and is larger than pinned_bytes.
TEST(ForkJoinDeath, AResultThatIsTooLargeIsNamed) {
  TaskOptions options;
  options.pinned_bytes = 300 << 10;
  testing::run_test_processes(1, [&](Exchange& exchange) {
    auto runtime = TaskRuntime::create(exchange, options);
    ASSERT_TRUE(runtime.ok());
    EXPECT_EXIT(static_cast<void>((*runtime)->run([] {
                  task<std::string> child = spawn([] {
                    yield();  // the parent continues without this child
                    return std::string(1 << 20, 'x');
                  });
                  return join(std::move(child)).size();
                })),
                ::testing::ExitedWithCode(70), "307200 bytes that TaskOptions::pinned_bytes");
  });
}

// Counts the keys under which values were put.
class CountingExchange final : public Exchange {
 public:
  explicit CountingExchange(Exchange& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& label(int rank) const override { return inner_.label(rank); }
  absl::Status put(std::string_view key, std::string_view value) override {
    keys.emplace(key);
    return inner_.put(key, value);
  }
  absl::StatusOr<std::string> get(int rank, std::string_view key, Deadline deadline) override {
    return inner_.get(rank, key, deadline);
  }
  absl::Status fence(Deadline deadline) override { return inner_.fence(deadline); }

  std::set<std::string> keys;

 private:
  Exchange& inner_;
};

// The store keeps each key until the job ends.
TEST(ForkJoin, RunsDoNotFillTheStore) {
  testing::run_test_processes(2, [](Exchange& exchange) {
    CountingExchange counting(exchange);
    auto runtime = TaskRuntime::create(counting, {});
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    size_t keys = 0;
    for (int n = 0; n < 20; ++n) {
      EXPECT_EQ((*runtime)->run([n] { return n; }).value(), n);
      if (n == 1) keys = counting.keys.size();
    }
    EXPECT_EQ(counting.keys.size(), keys);
  });
}

TEST(ForkJoin, ASecondRuntimeIsRefused) {
  testing::run_test_processes(1, [](Exchange& exchange) {
    auto first = TaskRuntime::create(exchange, {});
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(TaskRuntime::create(exchange, {}).status().code(),
              absl::StatusCode::kFailedPrecondition);
    first->reset();
    auto again = TaskRuntime::create(exchange, {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->run([] { return fib(10); }).value(), 55);
  });
}

}  // namespace
}  // namespace cariama
