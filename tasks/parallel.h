// Common patterns of fork and join: parallel_invoke() runs several functions, parallel_for() and
// parallel_reduce() split a range, TaskScope joins many children.
//
//   cariama::parallel_invoke([=] { left(n); }, [=] { right(n); });
//   cariama::parallel_for(0L, n, [=](long i) { ... });
//   long sum = cariama::parallel_reduce(0L, n, 0L, [=](long i) { return i * i; }, std::plus<>());
//
// All functions passed must be trivially copyable and capture values, as for spawn() (task.h). When
// one of the functions above returns or throws, all its children have ended. If several children
// threw, the caller gets one of the exceptions.
#ifndef CARIAMA_TASKS_PARALLEL_H_
#define CARIAMA_TASKS_PARALLEL_H_

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <tuple>
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

// Returns the number of indices in [begin, end), which may exceed the greatest I.
// Requires: begin <= end.
template <std::integral I>
[[nodiscard]] constexpr auto range_size(I begin, I end) {
  using Size = std::make_unsigned_t<I>;
  return static_cast<Size>(static_cast<Size>(end) - static_cast<Size>(begin));
}
// Returns begin + count, for a count that may exceed the greatest I.
template <std::integral I>
[[nodiscard]] constexpr I advanced(I begin, std::make_unsigned_t<I> count) {
  return static_cast<I>(static_cast<std::make_unsigned_t<I>>(begin) + count);
}
template <std::integral I>
[[nodiscard]] constexpr I middle_of(I begin, I end) {
  return advanced(begin, static_cast<std::make_unsigned_t<I>>(range_size(begin, end) / 2));
}
// Returns true if [begin, end) has at most `grain` indices.
template <std::integral I>
[[nodiscard]] constexpr bool is_one_piece(I begin, I end, I grain) {
  return begin >= end || range_size(begin, end) <= static_cast<std::make_unsigned_t<I>>(grain);
}

// How many indices a loop without a grain runs between two checks for a steal request. Such a loop
// splits its range only when a thief requests work (lazy binary splitting: Tzannes, Caragea, Barua
// and Vishkin, PPoPP 2010, where the loop looks at its own deque instead). The first interval is
// one index. Each interval is twice as long as the one before it, so that the checks cost little
// where the body is short, but at most 1/kParts of the range that is left: if all bodies take
// equally long, a request waits for at most this part of the work.
class CheckInterval {
 public:
  static constexpr uint32_t kLongest = 256;
  static constexpr uint32_t kParts = 32;

  template <std::unsigned_integral Size>
  [[nodiscard]] Size next(Size remaining) {
    const auto part = static_cast<Size>(remaining / kParts);
    const Size interval =
        part < length_ ? (part == 0 ? Size{1} : part) : static_cast<Size>(length_);
    if (length_ < kLongest) length_ *= 2;
    return interval;
  }

 private:
  uint32_t length_ = 1;
};

// Calls run(begin, middle) and run(middle, end), the former as a child. Its closure is not read
// (TaskOptions::check_closures): the functions that it contains were checked when the loop began.
template <std::integral I, typename Run>
void run_halves(I begin, I end, Run run) {
  const I middle = middle_of(begin, end);
  task<void> low = spawn_call<kClosureNotRead, void>([=] { run(begin, middle); });
  const uint64_t failure = call_guarded([&] { run(middle, end); });
  if (failure != 0) [[unlikely]]
    rethrow_after(low, failure);
  join(std::move(low));
}

// parallel_for() with a grain, and without one. Calls check() before each piece or interval.
template <std::integral I, typename F, typename Check>
void for_pieces(I begin, I end, F f, I grain, Check check) {
  check();
  if (is_one_piece(begin, end, grain)) {
    for (; begin < end; ++begin) f(begin);
    return;
  }
  run_halves(begin, end, [=](I from, I to) { for_pieces(from, to, f, grain, check); });
  check();
}
template <std::integral I, typename F, typename Check>
void for_on_request(I begin, I end, F f, Check check) {
  CheckInterval interval;
  while (begin < end) {
    check();
    const auto remaining = range_size(begin, end);
    if (remaining > 1 && steal_is_requested()) {
      run_halves(begin, end, [=](I from, I to) { for_on_request(from, to, f, check); });
      break;
    }
    for (const I stop = advanced(begin, interval.next(remaining)); begin < stop; ++begin) f(begin);
  }
  check();
}
// As parallel_for(), without a grain if grain < 1.
template <std::integral I, typename F, typename Check>
void for_range(I begin, I end, F f, I grain, Check check) {
  if constexpr (require_values<F>()) {
    if (grain < 1) {
      for_on_request(begin, end, f, check);
    } else {
      for_pieces(begin, end, f, grain, check);
    }
  }
}

// Returns the neutral element of a reduction.
template <typename Identity>
[[nodiscard]] inline auto identity_value(const Identity& identity) {
  if constexpr (std::invocable<const Identity&>) {
    return identity();
  } else {
    return identity;
  }
}

// Returns the combination of the results of reduce() for both halves of the range.
// If T owns memory, all parts are children, so that their results are safe while this task waits.
// As for run_halves(), the closures are not read.
template <typename T, std::integral I, typename Identity, typename Reduce, typename Combine>
T reduce_halves(I begin, I end, Identity identity, Reduce reduce, Combine combine) {
  const I middle = middle_of(begin, end);
  task<T> low = spawn_call<kClosureNotRead, T>([=]() -> T { return reduce(begin, middle); });
  if constexpr (kTravelsAsBytes<T>) {
    T high = identity_value(identity);
    const uint64_t failure = call_guarded([&] { high = reduce(middle, end); });
    if (failure != 0) [[unlikely]]
      rethrow_after(low, failure);
    T sum = join(std::move(low));
    return combine(std::move(sum), std::move(high));
  } else {
    task<T> high = spawn_call<kClosureNotRead, T>([=]() -> T { return reduce(middle, end); });
    auto [sum, more] = join_all(std::move(low), std::move(high));
    return combine(std::move(sum), std::move(more));
  }
}

// parallel_reduce() with a grain, and without one.
template <typename T, std::integral I, typename Identity, typename Map, typename Combine>
T reduce_pieces(I begin, I end, Identity identity, Map map, Combine combine, I grain) {
  if (is_one_piece(begin, end, grain)) {
    T sum = identity_value(identity);
    for (; begin < end; ++begin) sum = combine(std::move(sum), map(begin));
    return sum;
  }
  return reduce_halves<T>(
      begin, end, identity,
      [=](I from, I to) { return reduce_pieces<T>(from, to, identity, map, combine, grain); },
      combine);
}
// Reduces a first part of [begin, end) until a thief requests work, and sets `begin` to the index
// that follows this part.
template <typename T, std::integral I, typename Identity, typename Map, typename Combine>
T reduce_until_request(I& begin, I end, Identity identity, Map map, Combine combine) {
  T sum = identity_value(identity);
  CheckInterval interval;
  I at = begin;
  while (at < end) {
    const auto remaining = range_size(at, end);
    if (remaining > 1 && steal_is_requested()) break;
    const I stop = advanced(at, interval.next(remaining));
    for (; at < stop; ++at) sum = combine(std::move(sum), map(at));
  }
  begin = at;
  return sum;
}
template <typename T, std::integral I, typename Identity, typename Map, typename Combine>
T reduce_on_request(I begin, I end, Identity identity, Map map, Combine combine) {
  const auto reduce = [=](I from, I to) {
    return reduce_on_request<T>(from, to, identity, map, combine);
  };
  if constexpr (kTravelsAsBytes<T>) {
    T sum = reduce_until_request<T>(begin, end, identity, map, combine);
    if (begin >= end) return sum;
    return combine(std::move(sum), reduce_halves<T>(begin, end, identity, reduce, combine));
  } else {
    // The first part's result must not be a local while this task forks.
    std::optional<T> first = reduce_until_request<T>(begin, end, identity, map, combine);
    if (begin >= end) return *std::move(first);
    task<T> before = ended_task<T>(*first);
    first.reset();
    task<T> after = spawn_call<kClosureNotRead, T>(
        [=]() -> T { return reduce_halves<T>(begin, end, identity, reduce, combine); });
    auto [sum, more] = join_all(std::move(before), std::move(after));
    return combine(std::move(sum), std::move(more));
  }
}

template <std::invocable F>
void invoke_all(F f) {
  f();
}
template <std::invocable F, std::invocable... Fs>
void invoke_all(F f, Fs... rest) {
  task<void> first = spawn(f);
  const uint64_t failure = call_guarded([&] { invoke_all(rest...); });
  if (failure != 0) [[unlikely]]
    rethrow_after(first, failure);
  join(std::move(first));
}

}  // namespace tasks

// Runs all the functions, in parallel if workers are idle, and waits for them. Returns void if none
// of them has a result, otherwise a std::tuple of their results, as join_all().
template <std::invocable... Fs>
requires(sizeof...(Fs) > 0) auto parallel_invoke(Fs... functions) {
  tasks::require_values<Fs...>();
  if constexpr ((std::is_void_v<std::invoke_result_t<Fs&>> && ...)) {
    tasks::invoke_all(functions...);
  } else {
    std::tuple<task<std::invoke_result_t<Fs&>>...> children{spawn(functions)...};
    return std::apply([](auto&... child) { return join_all(std::move(child)...); }, children);
  }
}

// Calls f(i) for all i in [begin, end). One task runs each piece of the range in ascending order.
//
// Without a grain (grain < 1), the range is split in half when a thief requests work, and the parts
// likewise: the number of pieces follows from the number of idle workers, and a short body costs
// little more than in a loop. A thief waits until the running interval ends, at most 256 indices
// and 1/32 of the piece. With a grain, the whole range is split into pieces of at most `grain`
// indices, whether or not workers are idle: for bodies whose durations differ much.
template <std::integral I, std::invocable<I> F>
[[gnu::always_inline]] inline void parallel_for(I begin, I end, F f,
                                                std::type_identity_t<I> grain = 0) {
  tasks::check_parts(f);
  tasks::for_range(begin, end, f, grain, [] {});
}

// Returns combine(... combine(identity, map(begin)) ..., map(end - 1)). `combine` must be
// associative and `identity` its neutral element: the operands keep their order, but their grouping
// is not specified. `identity` is a value, or a function without arguments that returns it. T must
// be transferable (transfer.h). Splits the range like parallel_for(). With a grain, the grouping is
// the same in every run: for sums of floating-point numbers that must be reproducible.
//
//   auto all = cariama::parallel_reduce(0L, n, [] { return std::vector<long>(); }, ones, appended);
//
// The type of `identity` is the type of the result, as with std::accumulate: for sums of long give
// 0L, not 0. A T that is not trivially copyable needs the function. If T owns memory, `map` and
// `combine` must neither spawn nor join: a partial result is a local of the task that computes it.
template <std::integral I, typename Identity, typename Map, typename Combine>
[[gnu::always_inline]] inline auto parallel_reduce(I begin, I end, Identity identity, Map map,
                                                   Combine combine,
                                                   std::type_identity_t<I> grain = 0)
    -> decltype(tasks::identity_value(identity)) {
  using T = decltype(tasks::identity_value(identity));
  if constexpr (tasks::require_values<Identity, Map, Combine>()) {
    tasks::check_parts(identity, map, combine);
    if (grain < 1) return tasks::reduce_on_request<T>(begin, end, identity, map, combine);
    return tasks::reduce_pieces<T>(begin, end, identity, map, combine, grain);
  } else {
    __builtin_unreachable();
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
