// Fork-join tasks that migrate between processes: ordinary C++ functions, whose half-run stacks are
// stolen by idle workers.
//
//   long fib(long n) {
//     if (n < 2) return n;
//     cariama::task<long> left = cariama::spawn(fib, n - 1);
//     const long right = fib(n - 2);
//     return cariama::join(std::move(left)) + right;
//   }
//   ... runtime.run([] { return fib(40); }) ...                 // runtime.h
//
// spawn() runs the child at once; what may be taken elsewhere is the caller, who goes on behind the
// spawn, in another process if it is stolen. So every spawn, and every join that has to wait, is a
// point where a task may change its process. What is on its stack travels along, and lies at the
// same address there; nothing else does:
//
//  - Locals may not own private memory across a spawn or join: no std::vector, no open file, no
//    lock. Pointers to functions, to constants and to the task's own locals stay right.
//  - No pointer to a local of a task may go to another task: a child gets values. A lambda that
//    captures by reference compiles, and is wrong; TaskOptions::check_closures finds it.
//  - Who forks inside a catch block, or while an exception is on its way, cannot be stolen there,
//    and a join comes back to the same process: exceptions live in private memory.
//  - thread_local variables and errno are those of the process that the task is in just now.
//
// Cost of spawn + join when nothing is stolen: a few instructions more than the call (docs/tasks.md
// has figures); no allocation, no fence, no atomic. Stack per level: kContextBytes + 16 + the frame
// of the caller and of the child's first function.
//
// All functions here are called by tasks only; elsewhere spawn() and join() end the program with a
// sentence. A worker has one thread, so nothing here is about thread-safety.
#ifndef CARIAMA_TASKS_TASK_H_
#define CARIAMA_TASKS_TASK_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "tasks/context.h"
#include "tasks/fork_join.h"
#include "tasks/fork_to.h"
#include "tasks/transfer.h"

namespace cariama {

template <typename T>
class task;

namespace tasks {

// Results that travel in a register.
template <typename T>
inline constexpr bool kInRegister = std::is_trivially_copyable_v<T> && sizeof(T) <= 8;

// ... as a whole word, also where they are left for a parent that went on.
template <typename T>
[[nodiscard]] inline T from_word(uint64_t word) {
  alignas(T) std::byte value[sizeof(T)];
  std::memcpy(value, &word, sizeof value);
  return *std::launder(reinterpret_cast<T*>(value));
}

struct Nothing {};
template <typename T>
using Stored = std::conditional_t<std::is_void_v<T>, Nothing, T>;

// task<T>::record_: 0, the value is here; kTaken, it is not any more; else a join record.
inline constexpr uint64_t kTaken = 1;

// What a child function gets: two words. Small closures travel in them, in registers. Of others,
// and where the result needs a place, the first word is the address of the closure in the parent's
// frame, which the child copies before anything else happens; and the second is where the result
// goes, in the parent's frame: only a child that has its parent back writes there.
template <typename Call, typename T>
inline constexpr bool kCallInRegisters = sizeof(Call) <= 16 && kInRegister<Stored<T>>;

// A load that the compiler does not join with its neighbours.
template <typename Word>
[[gnu::always_inline]] inline Word load_apart(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  asm("" : "+r"(word));
  return word;
}

// A copy of what has just been stored field by field: a load that is wider than the stores would
// wait until all of them have left the store buffer, which takes longer than the whole fork. So
// loads are narrow, as fields are; and stores are wide, for who copies the copy as a whole.
template <typename Plain>
[[gnu::always_inline]] inline void copy_fields(Plain& to, const Plain& from) {
  const auto* const source = reinterpret_cast<const std::byte*>(&from);
  auto* const target = reinterpret_cast<std::byte*>(&to);
  constexpr size_t kMost = 128;
  if constexpr (sizeof(Plain) >= 4 && sizeof(Plain) <= kMost) {
    constexpr size_t kWide = sizeof(Plain) / 16 * 16;
    for (size_t at = 0; at < kWide; at += 16) {
      using Four = uint32_t __attribute__((vector_size(16)));
      using Two = uint64_t __attribute__((vector_size(16)));
      Two both;
      if constexpr (alignof(Plain) >= 8) {
        both = Two{load_apart<uint64_t>(source + at), load_apart<uint64_t>(source + at + 8)};
      } else {
        const Four four{load_apart<uint32_t>(source + at), load_apart<uint32_t>(source + at + 4),
                        load_apart<uint32_t>(source + at + 8),
                        load_apart<uint32_t>(source + at + 12)};
        std::memcpy(&both, &four, sizeof both);
      }
      std::memcpy(target + at, &both, sizeof both);
    }
    size_t at = kWide;
    if constexpr (sizeof(Plain) % 16 >= 8) {
      uint64_t word;
      if constexpr (alignof(Plain) >= 8) {
        word = load_apart<uint64_t>(source + at);
      } else {
        word = load_apart<uint32_t>(source + at) | uint64_t{load_apart<uint32_t>(source + at + 4)}
                                                       << 32;
      }
      std::memcpy(target + at, &word, sizeof word);
      at += sizeof word;
    }
    if constexpr (sizeof(Plain) % 8 >= 4) {
      const auto word = load_apart<uint32_t>(source + at);
      std::memcpy(target + at, &word, sizeof word);
      at += sizeof word;
    }
    std::memcpy(target + at, source + at, sizeof(Plain) - at);
  } else {
    std::memcpy(&to, &from, sizeof to);
  }
}

// The end of a child without its parent whose result is more than a word.
template <typename T>
[[noreturn]] void end_child(T& value) {
  if constexpr (std::is_trivially_copyable_v<T>) {
    end_with_value(&value, sizeof value);
  } else {
    // No destructor of these frames will run: what owns memory goes first.
    auto* packed = new std::vector<std::byte>;
    Transfer<T>::pack(value, *packed);
    std::destroy_at(&value);
    end_with_packed(packed);
  }
}

// The child's part of a fork (ChildFunction). What only the cold paths need in memory is copied
// there, so that the rest stays in registers.
template <typename Call, typename T>
ForkResult run_child(uint64_t first, uint64_t second, ForkState* state, uint64_t* entry) {
  union Argument {
    Argument() {}
    ~Argument() {}
    Call call;
  } argument;
  Call& call = argument.call;
  if constexpr (kCallInRegisters<Call, T>) {
    const uint64_t words[2] = {first, second};
    std::memcpy(static_cast<void*>(&call), words, sizeof call);
  } else {
    copy_fields(call, *reinterpret_cast<const Call*>(first));
  }
  union Result {
    Result() {}
    ~Result() {}
    Stored<T> value;
  } result;
  std::exception_ptr* failure = nullptr;
  try {
    if constexpr (std::is_void_v<T>) {
      call();
    } else {
      new (&result.value) T(call());
    }
  } catch (...) {
    failure = new std::exception_ptr(std::current_exception());
  }
  if (failure != nullptr) [[unlikely]]
    return end_failed_child(failure);
  if constexpr (kInRegister<Stored<T>>) {
    uint64_t word = 0;
    if constexpr (!std::is_void_v<T>) std::memcpy(&word, &result.value, sizeof result.value);
    return {word, 0};
  } else {
    if (!takes_back(state, entry)) [[unlikely]] {
      if (!pop_parent()) end_child<T>(result.value);
    }
    auto* const slot = reinterpret_cast<T*>(second);
    if constexpr (std::is_trivially_copyable_v<T>) {
      copy_fields(*slot, result.value);
    } else {
      new (slot) T(std::move(result.value));
      std::destroy_at(&result.value);
    }
    return {0, 0};
  }
}

}  // namespace tasks

// A child that was spawned and not joined yet. Movable; joined by its destructor at the latest,
// which drops the result (and the exception). Must not leave the task that made it.
template <typename T>
class [[nodiscard]] task {
  static_assert(!std::is_reference_v<T>, "a task's result travels: return a value");

 public:
  task(task&& other) noexcept : record_(std::exchange(other.record_, tasks::kTaken)) {
    if (record_ != 0) return;
    if constexpr (std::is_trivially_copyable_v<Stored>) {
      std::memcpy(&value_, &other.value_, sizeof value_);
    } else {
      new (&value_) Stored(std::move(other.value_));
      std::destroy_at(&other.value_);
    }
  }
  task& operator=(task&&) = delete;
  ~task() {
    if (record_ == tasks::kTaken) return;
    if (record_ != 0) [[unlikely]] {
      tasks::join_and_drop(record_);
    } else if constexpr (!std::is_trivially_destructible_v<Stored>) {
      std::destroy_at(&value_);
    }
  }

  // Whether the result is here: join() will neither wait nor change the process.
  [[nodiscard]] bool ready() const { return record_ == 0; }

  // For those who join by other means (TaskScope): the join record, or 0 if the child has ended;
  // the task counts as joined.
  [[nodiscard]] uint64_t release_record() requires std::is_void_v<T> {
    return std::exchange(record_, tasks::kTaken);
  }

 private:
  using Stored = tasks::Stored<T>;
  template <typename Call, uint64_t kFlags>
  struct In {};
  template <uint64_t kFlags, typename R, typename Call>
  friend task<R> spawn_call(const Call& call);
  template <typename R>
  friend R join(task<R>&& child);

  template <typename Call, uint64_t kFlags>
  [[gnu::always_inline]] task(In<Call, kFlags>, const Call& call) {
    tasks::ForkResult result;
    if constexpr (tasks::kCallInRegisters<Call, T>) {
      uint64_t words[2] = {0, 0};
      std::memcpy(words, static_cast<const void*>(&call), sizeof call);
      result = tasks::fork_to<&tasks::run_child<Call, T>, kFlags, 0>(words[0], words[1]);
    } else {
      result = tasks::fork_to<&tasks::run_child<Call, T>, kFlags, sizeof call>(
          reinterpret_cast<uint64_t>(&call), reinterpret_cast<uint64_t>(&value_));
    }
    record_ = result.record;
    if (result.record != 0) [[unlikely]] {
      tasks::arrived_on_stack();
    } else if constexpr (!std::is_void_v<T> && tasks::kInRegister<Stored>) {
      std::memcpy(&value_, &result.value, sizeof value_);
    }
  }

  T take() {
    const uint64_t record = std::exchange(record_, tasks::kTaken);
    if (record != 0) [[unlikely]]
      return take_record(record);
    if constexpr (!std::is_void_v<T>) {
      if constexpr (std::is_trivially_copyable_v<T>) {
        return value_;
      } else {
        T value(std::move(value_));
        std::destroy_at(&value_);
        return value;
      }
    }
  }
  [[gnu::noinline, gnu::cold]] static T take_record(uint64_t record) {
    if (record == tasks::kTaken) throw std::logic_error("cariama::join: this task was joined");
    if constexpr (std::is_void_v<T>) {
      tasks::join_record(record, nullptr, 0);
    } else if constexpr (tasks::kInRegister<T>) {
      uint64_t word = 0;
      tasks::join_record(record, &word, sizeof word);  // may return in another process
      return tasks::from_word<T>(word);
    } else if constexpr (std::is_trivially_copyable_v<T>) {
      alignas(T) std::byte value[sizeof(T)];
      tasks::join_record(record, value, sizeof value);  // may return in another process
      return *std::launder(reinterpret_cast<T*>(value));
    } else {
      return Transfer<T>::unpack(tasks::join_packed(record));
    }
  }

  uint64_t record_;
  union {
    Stored value_;
  };
};

template <uint64_t kFlags, typename T, typename Call>
[[gnu::always_inline]] inline task<T> spawn_call(const Call& call) {
  static_assert(std::is_trivially_copyable_v<Call> && std::is_trivially_destructible_v<Call>,
                "what a task is spawned with travels as bytes: capture and pass trivially copyable "
                "values only");
  return task<T>(typename task<T>::template In<Call, kFlags>{}, call);
}

// Runs f(args...) as a child, now; the caller goes on behind this call when the child has ended, or
// earlier, in another process. f and args are copied as bytes: a lambda with trivially copyable
// captures, or a function.
template <typename F, typename... Args>
requires std::invocable<F&, Args&...>
[[gnu::always_inline]] inline auto spawn(F f, Args... args)
    -> task<std::invoke_result_t<F&, Args&...>> {
  if constexpr (sizeof...(Args) == 0) {
    return spawn_call<0, std::invoke_result_t<F&>>(f);  // each copy takes time
  } else {
    auto call = [f, args...]() mutable -> decltype(auto) { return f(args...); };
    return spawn_call<0, std::invoke_result_t<F&, Args&...>>(call);
  }
}

// As spawn(), but the caller stays in this process at this point: for a caller that holds what
// cannot travel. What the child forks cannot be stolen either before the child has ended, since the
// oldest goes first.
template <typename F, typename... Args>
requires std::invocable<F&, Args&...>
[[gnu::always_inline]] inline auto spawn_tied(F f, Args... args)
    -> task<std::invoke_result_t<F&, Args&...>> {
  auto call = [f, args...]() mutable -> decltype(auto) { return f(args...); };
  return spawn_call<tasks::kForkTied, std::invoke_result_t<F&, Args&...>>(call);
}

// The child's result, when it has ended. Throws what it threw (exceptions.h), std::logic_error if
// the task was joined or moved from. Tasks may be joined in any order.
template <typename T>
[[gnu::always_inline]] inline T join(task<T>&& child) {
  return child.take();
}

}  // namespace cariama

#endif  // CARIAMA_TASKS_TASK_H_
