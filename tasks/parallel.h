// Common shapes of fork and join: several functions at once, ranges by halving, many children.
//
//   cariama::parallel_invoke([=] { left(n); }, [=] { right(n); });
//   cariama::parallel_for(0, n, [=](long i) { ... }, 100);
//   long sum = cariama::parallel_reduce(0L, n, 0L, [=](long i) { return i * i; }, std::plus<>());
//
// All functions given must be trivially copyable, as for spawn() (task.h): they capture values. All
// children have ended when one of these returns or throws; if several threw, the exception of one
// of them arrives.
#ifndef CARIAMA_TASKS_PARALLEL_H_
#define CARIAMA_TASKS_PARALLEL_H_

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

#include "tasks/fork_join.h"
#include "tasks/task.h"

namespace cariama {
namespace tasks {

// Calls f; what it throws becomes a join record, for a caller that has children to join first: it
// must not do that while an exception is under way. 0 if it threw nothing.
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

}  // namespace tasks

// Runs all of them, at the same time where there are workers.
template <std::invocable F>
void parallel_invoke(F f) {
  f();
}
template <std::invocable F, std::invocable... Fs>
void parallel_invoke(F f, Fs... rest) {
  task<void> first = spawn(f);
  const uint64_t failure = tasks::call_guarded([&] { parallel_invoke(rest...); });
  join(std::move(first));
  if (failure != 0) [[unlikely]]
    tasks::join_record(failure, nullptr, 0);
}

// f(i) for all i in [begin, end), in pieces of at most `grain` (at least 1), each of which one task
// does in order.
template <std::integral I, std::invocable<I> F>
void parallel_for(I begin, I end, F f, I grain = 1) {
  if (end - begin <= grain) {
    for (; begin < end; ++begin) f(begin);
    return;
  }
  const I middle = begin + (end - begin) / 2;
  task<void> low = spawn([=] { parallel_for(begin, middle, f, grain); });
  const uint64_t failure = tasks::call_guarded([&] { parallel_for(middle, end, f, grain); });
  join(std::move(low));
  if (failure != 0) [[unlikely]]
    tasks::join_record(failure, nullptr, 0);
}

// combine(...(identity, map(begin)), ... map(end - 1)), for an associative `combine`: the order is
// kept, the grouping is not. T is what travels: see transfer.h.
template <std::integral I, typename T, typename Map, typename Combine>
T parallel_reduce(I begin, I end, T identity, Map map, Combine combine, I grain = 1) {
  if (end - begin <= grain) {
    T sum = std::move(identity);
    for (; begin < end; ++begin) sum = combine(std::move(sum), map(begin));
    return sum;
  }
  const I middle = begin + (end - begin) / 2;
  task<T> low =
      spawn([=] { return parallel_reduce(begin, middle, identity, map, combine, grain); });
  T high = identity;
  const uint64_t failure = tasks::call_guarded(
      [&] { high = parallel_reduce(middle, end, identity, map, combine, grain); });
  T sum = join(std::move(low));
  if (failure != 0) [[unlikely]]
    tasks::join_record(failure, nullptr, 0);
  return combine(std::move(sum), std::move(high));
}

// Any number of children without results, joined at the end of the scope: also when an exception
// leaves it.
//
//   {
//     cariama::TaskScope scope;
//     for (long i = 0; i < n; ++i) scope.spawn([i] { work(i); });
//     scope.join();        // throws what the first of them threw; without it ~TaskScope waits too
//   }
//
// Remembers up to kRemembered children whose parent went on without them; with one more it waits
// for the oldest. 8 bytes each in the frame.
class TaskScope {
 public:
  static constexpr size_t kRemembered = 30;

  TaskScope() = default;
  // Waits. Exceptions that nobody joined are dropped.
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

  // Waits for all children so far. Throws what the first one that is known to have failed threw.
  void join() {
    collect(0);
    if (failure_ != 0) tasks::join_record(std::exchange(failure_, 0), nullptr, 0);
  }

 private:
  [[gnu::noinline, gnu::cold]] void remember(uint64_t record) {
    if (count_ == kRemembered) collect(kRemembered / 2);
    children_[count_++] = record;
  }
  // Joins the oldest until `left` are left.
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
  uint64_t failure_ = 0;  // a record that says what the first failed child threw
  std::array<uint64_t, kRemembered> children_;
};

}  // namespace cariama

#endif  // CARIAMA_TASKS_PARALLEL_H_
