// Fork-join tasks that migrate between processes. Tasks are ordinary C++ functions; idle workers
// steal the stacks of started functions.
//
//   long fib(long n) {
//     if (n < 2) return n;
//     cariama::task<long> left = cariama::spawn(fib, n - 1);
//     const long right = fib(n - 2);
//     return cariama::join(std::move(left)) + right;
//   }
//   ... runtime.run([] { return fib(40); }) ...                 // runtime.h
//
// spawn() runs the child immediately. The continuation of the caller can be stolen: the caller then
// continues after the spawn in another process. So a task may change its process at every spawn,
// and at every join that has to wait. Its stack moves with it and has the same addresses there.
// Nothing else moves:
//
//  - A local must not own memory or other resources of the process across a spawn or join: no
//    std::vector, no open file, no lock. Pointers to functions, to constants and to the task's own
//    locals stay valid. Results that own memory are safe until they are joined (transfer.h); join
//    several of them by join_all().
//  - A task must not pass the address of one of its locals to another task: children get values. A
//    lambda that captures by reference does not compile. A captured pointer compiles, because it
//    may be valid in every process; in a debug build, a spawn with a pointer to a local ends the
//    program with a message (TaskOptions::check_closures).
//  - While a task is in a catch block or unwinds for an exception, it is not stolen at a spawn, and
//    a join continues in the same process, because exceptions are in private memory.
//  - A longjmp() over a spawn, or over a join that waits, to a setjmp() before it is undefined, and
//    no check detects it: both are calls of the C library that this library does not see. The
//    jmp_buf is encrypted with a value of the process (on Linux the pointer guard), so in another
//    process longjmp() jumps to a random address, mostly with SIGSEGV in a task. In the same
//    process, and in workers forked from one process, it also leaves out children that were not
//    joined. Between two such points setjmp() and longjmp() are allowed.
//  - thread_local variables and errno are those of the process in which the task currently runs.
//
// Cost of spawn + join if nothing is stolen: a few instructions more than a call (docs/tasks.md has
// figures), no allocation, no fence, no atomic. Stack per level: kContextBytes
// (with the return address of the fork), 8 bytes for the child's word and 8 for the child's return
// address, and the frames of the caller and of the child's first function.
//
// Only tasks may call these functions; elsewhere spawn() and join() end the program with a message.
// A worker has one thread, so none of these functions needs to be thread-safe.
#ifndef CARIAMA_TASKS_TASK_H_
#define CARIAMA_TASKS_TASK_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dsfabric/holds_reference.h"
#include "tasks/context.h"
#include "tasks/fork_join.h"
#include "tasks/fork_to.h"
#include "tasks/transfer.h"

namespace cariama {

template <typename T>
class task;

namespace tasks {

// True for types whose values fit into one register.
template <typename T>
inline constexpr bool kInRegister = kTravelsAsBytes<T> && sizeof(T) <= 8;

// Returns the value of such a type whose bytes are the first bytes of `word`. A fork result and a
// join record hold these values as whole words.
template <typename T>
[[nodiscard]] inline T from_word(uint64_t word) {
  alignas(T) std::byte value[sizeof(T)];
  std::memcpy(value, &word, sizeof value);
  return *std::launder(reinterpret_cast<T*>(value));
}

struct Nothing {};
template <typename T, bool kAsBytes>
struct StoredOf {
  using Type = Nothing;
};
template <typename T>
struct StoredOf<T, true> {
  using Type = T;
};
// The form in which task<T> stores a result. A result that does not travel as bytes (transfer.h) is
// never in the frames of the parent, which may be stolen at its next spawn: it stays packed in its
// record.
template <typename T>
using Stored = typename StoredOf<T, kTravelsAsBytes<T>>::Type;
template <typename T>
inline constexpr bool kStoresNothing = std::is_same_v<Stored<T>, Nothing>;

template <typename T>
using ValueOf = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

// Returns a task that has ended with the packed `value`. Requires: T does not travel as bytes.
template <typename T>
[[nodiscard]] task<T> ended_task(const T& value);

// task<T>::record_ is 0 if the child has ended and its value, if any, is in the task object, kTaken
// if the task was joined or moved from, and otherwise the join record of the child.
inline constexpr uint64_t kTaken = 1;

// A child function gets two words. If closure and result are small, the words are the closure,
// passed in registers. Otherwise the first word is the address of the closure in the parent's
// frame, and the second is the address for the result in the parent's frame. The child copies the
// closure first, before the parent can be stolen from it. It writes the result only after it has
// popped the entry of its parent.
template <typename Call, typename T>
inline constexpr bool kCallInRegisters = sizeof(Call) <= 16 && kInRegister<Stored<T>>;

// Loads one word. The compiler does not merge this load with adjacent loads into a wider one.
template <typename Word>
[[gnu::always_inline]] inline Word load_apart(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  asm("" : "+r"(word));
  return word;
}

// Copies an object whose fields have just been stored one by one. A load that is wider than these
// stores cannot be forwarded from the store buffer: it waits until the stores have left it, which
// takes longer than the whole fork. So the loads are as narrow as the fields. The stores are wide,
// so that a later wide load of the copy can be forwarded.
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
    std::memcpy(static_cast<void*>(&to), &from, sizeof to);
  }
}

// The child function of a fork (ChildFunction in context.h): runs the closure and returns its
// result or its exception. The exception is copied to the heap and only the pointer to it is a
// local, so that the fast path keeps its values in registers.
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
  std::vector<std::byte>* packed = nullptr;
  std::exception_ptr* failure = nullptr;
  try {
    if constexpr (std::is_void_v<T>) {
      call();
    } else if constexpr (kStoresNothing<T>) {
      const T value = call();
      auto bytes = std::make_unique<std::vector<std::byte>>();
      Transfer<T>::pack(value, *bytes);
      packed = bytes.release();
    } else {
      new (&result.value) T(call());
    }
  } catch (...) {
    failure = new std::exception_ptr(std::current_exception());
  }
  if (failure != nullptr) [[unlikely]]
    return end_failed_child(failure);
  if constexpr (!std::is_void_v<T> && kStoresNothing<T>) {
    return end_packed_child(packed);
  } else if constexpr (kInRegister<Stored<T>>) {
    uint64_t word = 0;
    if constexpr (!std::is_void_v<T>) std::memcpy(&word, &result.value, sizeof result.value);
    return {word, 0};
  } else {
    if (!takes_back(state, entry)) [[unlikely]] {
      if (!pop_parent()) end_with_value(&result.value, sizeof result.value);
    }
    copy_fields(*reinterpret_cast<T*>(second), result.value);
    return {0, 0};
  }
}

}  // namespace tasks

// A child that was spawned and not joined yet. Movable. The destructor joins a child that was not
// joined, and drops its result or exception. The object must stay in the task that created it.
template <typename T>
class [[nodiscard]] task {
 public:
  task(task&& other) noexcept : record_(std::exchange(other.record_, tasks::kTaken)) {
    if (record_ == 0) std::memcpy(static_cast<void*>(&value_), &other.value_, sizeof value_);
  }
  task& operator=(task&&) = delete;
  ~task() {
    if (record_ == tasks::kTaken) return;
    if (record_ != 0) [[unlikely]]
      tasks::join_and_drop(record_);
  }

  // Returns true if the child has ended and its value is in this object: join() will then neither
  // wait nor change the process. False for a child that threw, and for a result that does not
  // travel as bytes (transfer.h).
  [[nodiscard]] bool ready() const { return record_ == 0; }

  // Returns the child's join record, or 0 if the child has ended, and marks this task as joined.
  // The caller must join the record itself (TaskScope).
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
  template <typename... Rs>
  friend std::tuple<tasks::ValueOf<Rs>...> join_all(task<Rs>&&... children);
  template <typename R>
  friend task<R> tasks::ended_task(const R& value);

  explicit task(uint64_t record) : record_(record) {}

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
    } else if constexpr (!tasks::kStoresNothing<T> && tasks::kInRegister<Stored>) {
      std::memcpy(static_cast<void*>(&value_), &result.value, sizeof value_);
    }
  }

  T take() {
    const uint64_t record = std::exchange(record_, tasks::kTaken);
    if constexpr (!std::is_void_v<T> && tasks::kStoresNothing<T>) {
      return take_record(record);  // such a result always has a record
    } else {
      if (record != 0) [[unlikely]]
        return take_record(record);
      if constexpr (!std::is_void_v<T>) return value_;
    }
  }
  tasks::ValueOf<T> take_value() {
    if constexpr (std::is_void_v<T>) {
      take();
      return {};
    } else {
      return take();
    }
  }
  void await() const {
    if (record_ > tasks::kTaken) tasks::await_record(record_);
  }
  [[gnu::noinline, gnu::cold]] static T take_record(uint64_t record) {
    if (record == tasks::kTaken) throw std::logic_error("cariama::join: this task was joined");
    if constexpr (std::is_void_v<T>) {
      tasks::join_record(record, nullptr, 0);
    } else if constexpr (tasks::kInRegister<T>) {
      uint64_t word = 0;
      tasks::join_record(record, &word, sizeof word);  // may return in another process
      return tasks::from_word<T>(word);
    } else if constexpr (tasks::kTravelsAsBytes<T>) {
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

template <typename T>
task<T> tasks::ended_task(const T& value) {
  static_assert(!kTravelsAsBytes<T>);
  std::vector<std::byte> bytes;
  Transfer<T>::pack(value, bytes);
  const uint64_t record = make_record();
  complete_record(record, bytes.data(), bytes.size());
  return task<T>(record);
}

namespace tasks {

// True for types that refer to an object of the caller: the owner of that object, often a local of
// the caller, may be in another process when the task uses it.
template <typename T>
inline constexpr bool kRefersToCaller = internal::holds_reference<T>();
template <typename T>
inline constexpr bool kRefersToCaller<std::reference_wrapper<T>> = !std::is_function_v<T>;

// Does not compile unless T can be the function of a task, or an argument of it. A function, so
// that a program gets the message once for each type.
template <typename T>
constexpr bool require_value() {
  constexpr bool kCopied = std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>;
  static_assert(!kRefersToCaller<T>,
                "cariama: this function or argument of a task refers to a variable of the caller "
                "([&], [&x] or std::ref), which may be in another process when the task uses it; "
                "capture and pass values, and return results");
  static_assert(kCopied || kRefersToCaller<T>,
                "cariama: this function or argument of a task is not trivially copyable, for "
                "example because it owns memory as std::string does, but it travels as bytes; "
                "capture and pass plain data (a neutral element: a function that returns it)");
  return kCopied && !kRefersToCaller<T>;
}
// Returns true if a value of T may contain a pointer to data. TaskOptions::check_closures reads
// only closures with such values: others may contain words that look like a pointer to a local,
// such as the handle of a suspended task, or an element of an array that was never set.
template <typename T>
constexpr bool may_hold_pointer() {
  if constexpr (std::is_pointer_v<T>) {
    return !std::is_function_v<std::remove_pointer_t<T>>;
  } else if constexpr (std::is_scalar_v<T> || std::is_empty_v<T> ||
                       !std::is_trivially_copyable_v<T>) {  // the last do not compile
    return false;
  } else {
    return !internal::ConstantFromBytes<T>;
  }
}
template <typename T>
inline constexpr bool kMayHoldPointer = may_hold_pointer<T>();
// Both contain a union, also if their values contain no pointer.
template <typename T>
inline constexpr bool kMayHoldPointer<std::optional<T>> = kMayHoldPointer<T>;
template <typename... Ts>
inline constexpr bool kMayHoldPointer<std::variant<Ts...>> = (kMayHoldPointer<Ts> || ...);

// Returns the flag of a fork of `Call`, which consists of values of the types Ts. In padding, and
// in the parts of a union that are not in use, a closure contains what an earlier call left on the
// stack. (The trait is also false for a floating-point number.)
template <typename Call, typename... Ts>
constexpr uint64_t closure_flag() {
  if (!(kMayHoldPointer<Ts> || ...)) return kClosureNotRead;
  return std::has_unique_object_representations_v<Call> ? kClosureOfValues : kClosureWithGaps;
}

// TaskOptions::check_closures for functions of which later closures, with more members, will
// contain copies. Inlined, so that the message names the caller.
template <typename T>
[[gnu::always_inline]] inline void check_part(const T& part) {
  constexpr uint64_t kFlag = closure_flag<T, T>();
  if constexpr (kFlag != kClosureNotRead) check_value(&part, sizeof part, kFlag);
}
template <typename... Ts>
[[gnu::always_inline]] inline void check_parts(const Ts&... parts) {
  (check_part(parts), ...);
}

template <typename... Ts>
constexpr bool require_values() {
  return (require_value<Ts>() && ...);
}
// True of functions, lambdas and of everything else that can be called with these arguments.
template <typename F, typename... Args>
concept Callable =
    std::invocable<F&, Args&...> || std::is_function_v<std::remove_pointer_t<F>> || requires {
  &F::operator();
};
// Does not compile unless f(args...) can be called.
template <typename F, typename... Args>
constexpr bool require_call() {
  constexpr bool kCalls = std::is_invocable_v<F&, Args&...>;
  static_assert(
      kCalls,
      "cariama: spawn(f, arguments...) calls f(arguments...), and f cannot be called with "
      "these arguments: pass as many as f takes, of types that convert to its own");
  return kCalls;
}
// The result of the child f(args...). If that cannot be called: the result of f, or int.
template <typename F>
auto declared_result(int) -> typename decltype(std::function(std::declval<F>()))::result_type;
template <typename F>
int declared_result(...);
template <typename F, typename... Args>
struct ChildResult : std::type_identity<decltype(declared_result<F>(0))> {};
template <typename F, typename... Args>
requires std::invocable<F&, Args&...>
struct ChildResult<F, Args...> : std::invoke_result<F&, Args&...> {
};
template <typename F, typename... Args>
using ChildTask = task<typename ChildResult<F, Args...>::type>;

}  // namespace tasks

template <uint64_t kFlags, typename T, typename Call>
[[gnu::always_inline]] inline task<T> spawn_call(const Call& call) {
  tasks::require_transferable<T>();
  return task<T>(typename task<T>::template In<Call, kFlags>{}, call);
}

// Implements spawn() and spawn_tied().
template <uint64_t kFlags, typename F, typename... Args>
[[gnu::always_inline]] inline tasks::ChildTask<F, Args...> spawn_bound(F& f, Args&... args) {
  using T = std::invoke_result_t<F&, Args&...>;
  if constexpr (sizeof...(Args) == 0) {
    // A wrapper would cost one more copy of f.
    return spawn_call<kFlags | tasks::closure_flag<F, F>(), T>(f);
  } else if constexpr (std::is_empty_v<F> && std::is_trivially_default_constructible_v<F>) {
    // A member f would be padding.
    auto call = [args...]() mutable -> decltype(auto) {
      F function{};
      return function(args...);
    };
    return spawn_call<kFlags | tasks::closure_flag<decltype(call), Args...>(), T>(call);
  } else {
    auto call = [f, args...]() mutable -> decltype(auto) { return f(args...); };
    return spawn_call<kFlags | tasks::closure_flag<decltype(call), F, Args...>(), T>(call);
  }
}

// Runs f(args...) as a child, immediately. Returns when the child has ended or has been suspended
// or, if the caller is stolen, earlier and in another process. Requires: f and args are trivially
// copyable values, without references to variables of the caller; they are copied as bytes. f is a
// function or a lambda that captures such values.
template <typename F, typename... Args>
requires tasks::Callable<F, Args...>
[[gnu::always_inline]] inline tasks::ChildTask<F, Args...> spawn(F f, Args... args) {
  if constexpr (!tasks::require_call<F, Args...>()) {
    __builtin_unreachable();
  } else {
    tasks::require_values<F, Args...>();
    return spawn_bound<0>(f, args...);
  }
}

// Like spawn(), but thieves cannot steal the caller at this spawn. Use it in a caller whose frame
// holds objects that must not leave the process. It does not bind the caller at later waits: if the
// child suspends (await(), yield(), suspend(), TaskFuture::get()), spawn_tied() returns, and join()
// may continue the caller in another process. Destroy such objects before that join(), or let the
// child not suspend. Until the child has ended, thieves cannot steal its
// descendants' continuations either, because thieves take the oldest entry first.
template <typename F, typename... Args>
requires tasks::Callable<F, Args...>
[[gnu::always_inline]] inline tasks::ChildTask<F, Args...> spawn_tied(F f, Args... args) {
  if constexpr (!tasks::require_call<F, Args...>()) {
    __builtin_unreachable();
  } else {
    tasks::require_values<F, Args...>();
    return spawn_bound<tasks::kForkTied>(f, args...);
  }
}

// Waits until the child has ended, and returns its result. Throws the child's exception
// (exceptions.h), or std::logic_error if `child` was already joined or moved from. A task may join
// its children in any order.
template <typename T>
[[gnu::always_inline]] inline T join(task<T>&& child) {
  return child.take();
}

// Waits until all the children have ended, and then returns their results. Use it for results that
// own memory: after join() has returned such a result, another join that waits could continue the
// task in another process, where that memory does not exist. If children threw, throws the
// exception of the first of them; the results of the others are dropped with their tasks.
//
// A task<void> has the result std::monostate.
template <typename... Ts>
inline std::tuple<tasks::ValueOf<Ts>...> join_all(task<Ts>&&... children) {
  (children.await(), ...);
  return std::tuple<tasks::ValueOf<Ts>...>{children.take_value()...};
}

}  // namespace cariama

#endif  // CARIAMA_TASKS_TASK_H_
