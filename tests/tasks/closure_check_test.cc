// TaskOptions::check_closures: closures with pointers to locals of tasks are refused, others run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tasks/cancellation.h"
#include "tasks/parallel.h"
#include "tasks/runtime.h"
#include "tasks/suspend.h"
#include "tasks/task.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using testing::fib;

#ifdef NDEBUG
constexpr bool kAssertionsAreOn = false;
#else
constexpr bool kAssertionsAreOn = true;
#endif

TEST(ClosureCheck, IsOnByDefaultExactlyInDebugBuilds) {
  const TaskOptions constructed;
  EXPECT_EQ(constructed.check_closures, kAssertionsAreOn);
  EXPECT_EQ(TaskOptions{}.check_closures, kAssertionsAreOn);
  EXPECT_FALSE(TaskOptions{}.check_frames);
}

// ---- refused ----

struct Worked {
  long done = 0;
  void add(long by) {
    join(spawn([this, by] { done += by; }));
  }
};

// Each of these functions spawns a task with a pointer to a local of a task. A single worker runs
// them, so that without the check they have a result.
[[gnu::noinline]] long this_of_a_local() {
  Worked local;
  local.add(3);
  return local.done;
}
[[gnu::noinline]] long pointer_argument() {
  long local = 3;
  join(spawn([](long* at, long by) { *at += by; }, &local, 4L));
  return local;
}
[[gnu::noinline]] long pointer_in_a_large_closure() {
  long local = 3;
  const std::array<long, 9> many{};
  return join(spawn([many, at = &local] { return many[0] + *at; }));
}
[[gnu::noinline]] long pointer_of_a_tied_child() {
  long local = 3;
  join(spawn_tied([at = &local] { ++*at; }));
  return local;
}
[[gnu::noinline]] long pointer_in_a_scope() {
  long local = 3;
  TaskScope scope;
  scope.spawn([at = &local] { ++*at; });
  scope.join();
  return local;
}
[[gnu::noinline]] long pointer_of_a_loop() {
  std::array<long, 8> local{};
  parallel_for(
      0, 8, [at = local.data()](int i) { at[i] = i; }, 1);
  return local[7];
}
[[gnu::noinline]] long pointer_of_a_reduction() {
  std::array<long, 8> local{1};
  return parallel_reduce(
      0, 8, 0L, [at = local.data()](int i) { return at[i]; }, std::plus<>());
}
[[gnu::noinline]] long pointer_into_the_closure() {
  struct Ring {
    Ring* next;
    long value;
  };
  Ring local{nullptr, 3};
  local.next = &local;  // the child's copy still points to this object
  return join(spawn([local] { return local.next->value; }));
}
[[gnu::noinline]] long pointer_of_the_parent(uintptr_t where) {
  auto* const at = reinterpret_cast<long*>(where);
  return join(spawn([at] { return *at; }));
}
[[gnu::noinline]] long pointer_to_a_local_of_an_ancestor() {
  long local = 3;
  // As an integer it is not found; the child passes a pointer.
  return join(spawn(
      [where = reinterpret_cast<uintptr_t>(&local)] { return pointer_of_the_parent(where); }));
}

void expect_a_refusal(const TaskOptions& options, long (*function)()) {
  testing::run_test_processes(1, [&](Exchange& exchange) {
    auto runtime = TaskRuntime::create(exchange, options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    EXPECT_EXIT(static_cast<void>((*runtime)->run([function] { return function(); })),
                ::testing::ExitedWithCode(70),
                "(pointer_|Worked|this_of).* spawned a task with a pointer or reference to a local "
                "of a task.*check_closures");
  });
}

TEST(ClosureCheckDeath, PointersToLocalsAreRefused) {
  TaskOptions options;
  options.check_closures = true;
  for (long (*const function)() :
       {this_of_a_local, pointer_argument, pointer_in_a_large_closure, pointer_of_a_tied_child,
        pointer_in_a_scope, pointer_of_a_loop, pointer_of_a_reduction, pointer_into_the_closure,
        pointer_to_a_local_of_an_ancestor}) {
    expect_a_refusal(options, function);
  }
}

TEST(ClosureCheckDeath, EverySchedulerRefusesThem) {
  TaskOptions options;
  options.check_closures = true;
  for (const DequeKind deque : {DequeKind::kThe, DequeKind::kPrivate}) {
    options.deque = deque;
    expect_a_refusal(options, pointer_argument);
  }
  options.deque = DequeKind::kSplit;
  for (const StackScheme scheme : {StackScheme::kCrude, StackScheme::kIso}) {
    options.scheme = scheme;
    expect_a_refusal(options, pointer_argument);
  }
}

TEST(ClosureCheckDeath, TheDefaultRefusesThemInDebugBuilds) {
  if (kAssertionsAreOn) {
    expect_a_refusal({}, pointer_argument);
  } else {
    testing::with_workers(1, {}, [](TaskRuntime& runtime) {
      EXPECT_EQ(runtime.run([] { return pointer_argument(); }).value_or(0), 7);
    });
  }
}

// ---- reported ----

// In closures of these types a word may be what an earlier call left on the stack.
[[gnu::noinline]] long pointer_before_a_flag() {
  long local = 3;
  return join(spawn([at = &local, flag = true] { return flag ? *at : 0; }));
}
[[gnu::noinline]] long pointer_behind_a_flag() {
  long local = 3;
  return join(spawn([flag = true, at = &local] { return flag ? *at : 0; }));
}
[[gnu::noinline]] long pointer_beside_a_number() {
  long local = 3;
  return join(spawn([at = &local, half = 0.5] { return half < 1 ? *at : 0; }));
}
[[gnu::noinline]] long pointer_in_an_optional() {
  long local = 3;
  const std::optional<long*> at = &local;
  return join(spawn([](std::optional<long*> to) { return **to; }, at));
}

TEST(ClosureCheck, ReportsOnceWhatMayNeverHaveBeenSet) {
  TaskOptions options;
  options.check_closures = true;
  for (long (*const function)() : {pointer_before_a_flag, pointer_behind_a_flag,
                                   pointer_beside_a_number, pointer_in_an_optional}) {
    testing::with_workers(1, options, [function](TaskRuntime& runtime) {
      ::testing::internal::CaptureStderr();
      EXPECT_EQ(runtime.run([function] { return function() + function(); }).value_or(0), 6);
      const std::string said = ::testing::internal::GetCapturedStderr();
      const std::string report = "a local of a task, or with bytes that were never set";
      const size_t first = said.find(report);
      ASSERT_NE(first, std::string::npos) << said;
      EXPECT_EQ(said.find(report, first + 1), std::string::npos) << said;
    });
  }
}

// ---- not refused ----

// Runs `root` on one worker, with the check.
template <typename F>
void accepts(F root, TaskOptions options = {}) {
  options.check_closures = true;
  testing::with_workers(1, options, [&](TaskRuntime& runtime) {
    const absl::Status status = runtime.run(root);
    EXPECT_TRUE(status.ok()) << status;
  });
}

uintptr_t address_in(const void* object) { return reinterpret_cast<uintptr_t>(object); }

TEST(ClosureCheck, AcceptsIntegersThatAreAddressesOfLocals) {
  accepts([] {
    const long local = 3;
    const uintptr_t where = address_in(&local);
    EXPECT_EQ(join(spawn([where] { return where; })), where);
    const std::array<uintptr_t, 5> many{where, where, where, where, where};
    EXPECT_EQ(join(spawn([many] { return many[4]; })), where);
    // The function is a pointer, too.
    EXPECT_EQ(join(spawn(address_in, nullptr)), 0u);
    EXPECT_EQ(join(spawn(
                  +[](std::array<uintptr_t, 5> all) { return all[1]; }, many)),
              where);
  });
}

// A handle holds the addresses between which the frames of the task were.
TEST(ClosureCheck, AcceptsHandlesOfSuspendedTasks) {
  accepts([] {
    static SuspendedTask handle;
    task<int> child = spawn([] {
      suspend([](const SuspendedTask& task) { handle = task; });
      return 7;
    });
    const SuspendedTask suspended = handle;
    join(spawn([suspended] { resume(suspended); }));
    EXPECT_EQ(join(std::move(child)), 7);
    const TaskPromise<int> promise;
    task<int> waiter = spawn([future = promise.future()] { return future.get(); });
    join(spawn([promise] { promise.set(8); }));
    EXPECT_EQ(join(std::move(waiter)), 8);
  });
}

// The bytes of a value that was reset, or was never set, may be an address of a local.
TEST(ClosureCheck, AcceptsUnusedBytesOfOptionalAndVariantArguments) {
  accepts([] {
    using Words = std::array<uintptr_t, 6>;
    const long local = 3;
    const uintptr_t where = address_in(&local);
    std::optional<Words> none = Words{where, where, where, where, where, where};
    none.reset();
    EXPECT_TRUE(join(spawn([](std::optional<Words> words) { return !words.has_value(); }, none)));
    std::variant<Words, char> one = Words{where, where, where, where, where, where};
    one = 'x';
    EXPECT_EQ(join(spawn([](std::variant<Words, char> words) { return words.index(); }, one)), 1u);
    EXPECT_EQ(join(spawn_tied([](std::optional<Words> words) { return words.value_or(Words{})[0]; },
                              std::optional<Words>(Words{where}))),
              where);
    // The check does not know what a lambda captures. It may report it.
    EXPECT_FALSE(join(spawn([none] { return none.has_value(); })));
    EXPECT_EQ(join(spawn([one] { return one.index(); })), 1u);
  });
}

// Padding keeps what an earlier call left on the stack.
TEST(ClosureCheck, AcceptsPaddingAfterAPointer) {
  struct Padded {
    const long* at;
    bool flag;
  };
  accepts([] {
    static const long constant = 5;
    const long local = 3;
    alignas(Padded) std::array<std::byte, sizeof(Padded)> bytes;
    const std::array<uintptr_t, 2> words{address_in(&local), address_in(&local)};
    static_assert(sizeof words == sizeof bytes);
    std::memcpy(bytes.data(), words.data(), sizeof words);
    auto* const padded = new (bytes.data()) Padded;
    padded->at = &constant;
    padded->flag = true;
    EXPECT_EQ(join(spawn([copy = *padded] { return copy.flag ? *copy.at : 0; })), 5);
    EXPECT_EQ(join(spawn([](Padded with) { return with.flag ? *with.at : 0; }, *padded)), 5);
    // The bytes behind the flag, in the same word.
    auto function = [at = &constant, flag = true] { return flag ? *at : 0; };
    static_assert(sizeof function == 16);
    const std::array<long, 64> many{};
    const uintptr_t inside = address_in(&many[32]);
    std::memcpy(reinterpret_cast<std::byte*>(&function) + 9,
                reinterpret_cast<const std::byte*>(&inside) + 1, 7);
    EXPECT_EQ(join(spawn(function)), 5);
  });
}

TEST(ClosureCheck, AcceptsPointersThatAreValidInEveryProcess) {
  accepts([] {
    static const long constant = 5;
    const char* const text = "a constant";
    EXPECT_EQ(join(spawn([at = &constant, text] { return *at + (text[0] == 'a' ? 1 : 0); })), 6);
    const std::optional<const long*> maybe = &constant;
    EXPECT_EQ(join(spawn([maybe] { return **maybe; })), 5);
    EXPECT_EQ(join(spawn([](std::variant<const long*, int> of) { return *std::get<0>(of); },
                         std::variant<const long*, int>(&constant))),
              5);
    long (*const function)(long) = fib;
    EXPECT_EQ(join(spawn([function] { return function(9); })), 34);
    EXPECT_EQ(join(spawn(fib, 9L)), 34);
    const CancellationSource source;
    EXPECT_FALSE(join(spawn([token = source.token()] { return token.cancelled(); })));
  });
}

// Closures that own memory do not compile (compile_fail/string_captured_by_child.cc). Children may
// own memory themselves, and return it. A short std::string contains a pointer to itself.
TEST(ClosureCheck, AcceptsChildrenThatOwnMemory) {
  accepts([] {
    for (const size_t length : {size_t{3}, size_t{1000}}) {
      EXPECT_EQ(join(spawn([length] {
                  const std::string own(length, 'x');
                  return join(spawn([length] { return std::string(length, 'y'); })) + own;
                })),
                std::string(length, 'y') + std::string(length, 'x'));
      EXPECT_EQ(join(spawn([length] { return std::vector<long>(length, 7); })).size(), length);
      EXPECT_EQ(*join(spawn([length] { return std::make_unique<size_t>(length); })), length);
    }
    EXPECT_EQ(join(spawn([] {
                const std::function<long(long)> local =
                    [more = std::string("long enough to own")](long n) {
                      return n + static_cast<long>(more.size());
                    };
                return local(1) + join(spawn([n = local(2)] { return n; }));
              })),
              39);
    const auto [text, numbers] = join_all(spawn([] { return std::string("short"); }), spawn([] {
                                            return std::vector<int>{1, 2};
                                          }));
    EXPECT_EQ(text, "short");
    EXPECT_EQ(numbers.size(), 2u);
  });
}

TEST(ClosureCheck, AcceptsLoopsReductionsAndInvocations) {
  accepts([] {
    static std::array<int, 100> seen;
    for (const int grain : {0, 1, 7}) {
      seen = {};
      parallel_for(
          0, 100, [](int i) { ++seen[static_cast<size_t>(i)]; }, grain);
      EXPECT_THAT(seen, ::testing::Each(1));
      EXPECT_EQ(parallel_reduce(
                    0L, 100L, 0L, [](long i) { return i; }, std::plus<>(), grain),
                4950);
      EXPECT_EQ(parallel_reduce(
                    0, 10, [] { return std::string(); }, [](int i) { return std::to_string(i); },
                    std::plus<>(), grain),
                "0123456789");
      EXPECT_EQ(parallel_reduce(0L, 10L, 0L, fib, std::plus<>(), grain), 88);
      const CancellationSource source;
      seen = {};
      parallel_for(
          source.token(), 0, 100, [](int i) { ++seen[static_cast<size_t>(i)]; }, grain);
      EXPECT_THAT(seen, ::testing::Each(1));
    }
    const auto [one, text] =
        parallel_invoke([] { return fib(10); }, [] { return std::string("x"); });
    EXPECT_EQ(one, 55);
    EXPECT_EQ(text, "x");
  });
}

[[gnu::noinline]] uint64_t frame_of_caller() {
  return reinterpret_cast<uint64_t>(__builtin_frame_address(0));
}

// The check sees every fork, but is no steal request: a loop that no thief observes does not fork.
TEST(ClosureCheck, DoesNotSplitLoops) {
  accepts([] {
    static std::set<uint64_t> frames;
    parallel_for(0, 1000, [](int) { frames.insert(frame_of_caller()); });
    EXPECT_EQ(frames.size(), 1u);
    EXPECT_EQ(parallel_reduce(
                  0, 1000, 0L,
                  [](int i) {
                    frames.insert(frame_of_caller() + 1);
                    return long{i};
                  },
                  std::plus<>()),
              499500);
    EXPECT_EQ(frames.size(), 2u);
  });
}

}  // namespace
}  // namespace cariama
