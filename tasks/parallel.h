// Common patterns of fork and join: parallel_invoke() runs several functions, parallel_for() and
// parallel_reduce() halve a range recursively, TaskScope joins many children.
//
//   cariama::parallel_invoke([=] { left(n); }, [=] { right(n); });
//   cariama::parallel_for(0, n, [=](long i) { ... }, 100);
//   long sum = cariama::parallel_reduce(0L, n, 0L, [=](long i) { return i * i; }, std::plus<>());
//
// All functions passed must be trivially copyable, as for spawn() (task.h): they capture values.
// When one of these functions returns or throws, all its children have ended. If several children
// threw, the caller gets one of the exceptions.
#ifndef CARIAMA_TASKS_PARALLEL_H_
#define CARIAMA_TASKS_PARALLEL_H_

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <type_traits>
#include <utility>

#include "tasks/fork_join.h"
#include "tasks/task.h"

namespace cariama {
namespace tasks {

// Calls f. Returns 0, or a join record with the exception that f threw. The caller first joins its
// other children and then rethrows the exception with join_record(): a task that joins while an
// exception is active is tied to its process.
template <typename F>
[[gnu::always_inline]] inline uint64_t call_guarded(F&& f) {
  std::exception_ptr* failure = nullptr;
  try {
    std::forward<F>(f)();
  } catch (...) {
    failure = new std::exception_ptr(std::current_exception());
  }
  if (failure == nullptr) [[likely]]
    return 0;
  return record_exception(failure);
}

// Waits for `child`, drops its result or exception, and throws the exception of the record
// `failure`.
template <typename T>
[[noreturn, gnu::noinline, gnu::cold]] void rethrow_after(task<T>& child, uint64_t failure) {
  { const task<T> dropped = std::move(child); }
  join_record(failure, nullptr, 0);
  __builtin_unreachable();
}

// is_one_piece() returns true if [begin, end) has at most `grain` indices, middle_of() returns the
// index that halves the range. The number of indices of a signed range may exceed I, so both
// calculate in the unsigned type.
template <std::integral I>
[[nodiscard]] constexpr bool is_one_piece(I begin, I end, I grain) {
  using Size = std::make_unsigned_t<I>;
  return begin >= end || static_cast<Size>(static_cast<Size>(end) - static_cast<Size>(begin)) <=
                             static_cast<Size>(grain);
}
template <std::integral I>
[[nodiscard]] constexpr I middle_of(I begin, I end) {
  using Size = std::make_unsigned_t<I>;
  const auto size = static_cast<Size>(static_cast<Size>(end) - static_cast<Size>(begin));
  return static_cast<I>(static_cast<Size>(begin) + size / 2);
}

// Returns the neutral element of a reduction.
template <typename Identity>
[[nodiscard]] inline auto identity_value(const Identity& identity) {
  if constexpr (std::invocable<const Identity&>) {
    return identity();
  } else {
    static_assert(std::is_trivially_copyable_v<Identity>,
                  "the identity of parallel_reduce travels with a closure: pass a function that "
                  "returns it");
    return identity;
  }
}

}  // namespace tasks

// Runs all the functions, in parallel if workers are idle, and waits for them.
template <std::invocable F>
void parallel_invoke(F f) {
  f();
}
template <std::invocable F, std::invocable... Fs>
void parallel_invoke(F f, Fs... rest) {
  task<void> first = spawn(f);
  const uint64_t failure = tasks::call_guarded([&] { parallel_invoke(rest...); });
  if (failure != 0) [[unlikely]]
    tasks::rethrow_after(first, failure);
  join(std::move(first));
}

// Calls f(i) for all i in [begin, end). The range is split into pieces of at most `grain` indices;
// one task runs each piece in ascending order. Requires: grain >= 1.
template <std::integral I, std::invocable<I> F>
void parallel_for(I begin, I end, F f, std::type_identity_t<I> grain = 1) {
  if (tasks::is_one_piece(begin, end, grain)) {
    for (; begin < end; ++begin) f(begin);
    return;
  }
  const I middle = tasks::middle_of(begin, end);
  task<void> low = spawn([=] { parallel_for(begin, middle, f, grain); });
  const uint64_t failure = tasks::call_guarded([&] { parallel_for(middle, end, f, grain); });
  if (failure != 0) [[unlikely]]
    tasks::rethrow_after(low, failure);
  join(std::move(low));
}

// Returns combine(... combine(identity, map(begin)) ..., map(end - 1)). `combine` must be
// associative and `identity` its neutral element: the operands keep their order, but their grouping
// is not specified. `identity` is a value, or a function without arguments that returns it. T must
// be transferable (transfer.h). Splits the range like parallel_for().
//
//   auto all = cariama::parallel_reduce(0L, n, [] { return std::vector<long>(); }, ones, appended);
//
// A T that is not trivially copyable needs the function. If T owns memory, `map` and `combine` must
// neither spawn nor join: a partial result is a local of the task that computes it.
template <std::integral I, typename Identity, typename Map, typename Combine>
auto parallel_reduce(I begin, I end, Identity identity, Map map, Combine combine,
                     std::type_identity_t<I> grain = 1)
    -> decltype(tasks::identity_value(identity)) {
  using T = decltype(tasks::identity_value(identity));
  if (tasks::is_one_piece(begin, end, grain)) {
    T sum = tasks::identity_value(identity);
    for (; begin < end; ++begin) sum = combine(std::move(sum), map(begin));
    return sum;
  }
  const I middle = tasks::middle_of(begin, end);
  task<T> low =
      spawn([=]() -> T { return parallel_reduce(begin, middle, identity, map, combine, grain); });
  if constexpr (tasks::kTravelsAsBytes<T>) {
    T high = tasks::identity_value(identity);
    const uint64_t failure = tasks::call_guarded(
        [&] { high = parallel_reduce(middle, end, identity, map, combine, grain); });
    if (failure != 0) [[unlikely]]
      tasks::rethrow_after(low, failure);
    T sum = join(std::move(low));
    return combine(std::move(sum), std::move(high));
  } else {
    // The upper half is a child, too, so that its result is safe while this task waits for the
    // lower half.
    task<T> high =
        spawn([=]() -> T { return parallel_reduce(middle, end, identity, map, combine, grain); });
    auto [sum, more] = join_all(std::move(low), std::move(high));
    return combine(std::move(sum), std::move(more));
  }
}

// A scope for any number of children without results. The destructor joins them, also when an
// exception leaves the scope.
//
//   {
//     cariama::TaskScope scope;
//     for (long i = 0; i < n; ++i) scope.spawn([i] { work(i); });
//     scope.join();        // rethrows the first exception; ~TaskScope waits but drops exceptions
//   }
//
// Stores the join records of up to kRemembered children that have not ended when spawn() returns, 8
// bytes each, in the frame of the caller. If there is one more, spawn() first waits for the oldest
// half of them.
class TaskScope {
 public:
  static constexpr size_t kRemembered = 30;

  TaskScope() = default;
  // Waits for all children. Drops exceptions that join() has not rethrown.
  ~TaskScope() {
    if (count_ == 0 && failure_ == 0) [[likely]]
      return;
    collect(0);
    if (failure_ != 0) tasks::join_and_drop(failure_);
  }
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

  template <typename F, typename... Args>
  [[gnu::always_inline]] void spawn(F f, Args... args) {
    task<void> child = cariama::spawn(f, args...);
    if (const uint64_t record = child.release_record(); record != 0) [[unlikely]]
      remember(record);
  }

  // Waits for all children spawned so far. Rethrows the exception of the first child that failed,
  // in the order in which the scope joined them.
  void join() {
    collect(0);
    if (failure_ != 0) tasks::join_record(std::exchange(failure_, 0), nullptr, 0);
  }

 private:
  [[gnu::noinline, gnu::cold]] void remember(uint64_t record) {
    if (count_ == kRemembered) collect(kRemembered / 2);
    children_[count_++] = record;
  }
  // Joins the oldest children until `left` children remain.
  void collect(size_t left) {
    if (count_ <= left) return;
    const size_t joined = count_ - left;
    for (size_t i = 0; i < joined; ++i) {
      const uint64_t failure = tasks::join_for_failure(children_[i]);
      if (failure == 0) continue;
      if (failure_ == 0) {
        failure_ = failure;
      } else {
        tasks::join_and_drop(failure);
      }
    }
    for (size_t i = 0; i < left; ++i) children_[i] = children_[joined + i];
    count_ = left;
  }

  size_t count_ = 0;
  uint64_t failure_ = 0;  // a record with the exception of the first child that failed, or 0
  std::array<uint64_t, kRemembered> children_;
};

}  // namespace cariama

#endif  // CARIAMA_TASKS_PARALLEL_H_
