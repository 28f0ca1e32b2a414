// Task pools: tasks that run to their end on the worker that started them (the slides: atomic
// tasks).
//
//   long fib(long n) {
//     if (n < 2) return n;
//     pool::Children<fib> child;
//     child.spawn(n - 1);                          // other workers may steal this task
//     const long right = pool::call<fib>(n - 2);
//     return child.sync() + right;
//   }
//   int main(int argc, char** argv) {
//     if (auto code = cariama::launch_self({.processes = 2}, argc, argv)) return *code;
//     auto fabric = cariama::Fabric::create();
//     auto self = (*fabric)->init_thread(0);
//     auto workers = cariama::TaskPool::create(**fabric, {});
//     absl::StatusOr<long> result = (*workers)->run<fib>(40);      // on every rank
//     ...
//   }
//
// Each worker has a private deque of task cells. Only its owner changes the deque: spawn() writes a
// cell, sync() takes the newest cell back and calls its function. A thief asks for work by a
// compare-and-swap on the victim's request cell. The victim answers in communicate(), which call()
// and sync() execute: it writes its oldest tasks to the thief's transfer cell. The thief runs the
// task and writes the result into the cell of the task's owner. A worker with fewer than two tasks
// blocks its request cell, so that thieves fail after one round trip and without its CPU. Sources:
// request, transfer and status cells: Oortwijn, Master's thesis, University of Twente 2015, and
// Oortwijn, van Dijk and van de Pol, "Distributed Binary Decision Diagrams for Symbolic
// Reachability", SPIN'17; private deques: Acar, Chargueraud and Rainey, PPoPP'13; leapfrogging:
// Wagner and Calder, PPoPP'93.
//
// In contrast to the tasks of task.h, a task of a pool never moves after it has started, so its
// locals may be anything, and the processes need neither start_workers() nor equal addresses of
// code, stack and heap. (The memory of the pool itself is at a fixed address.) While a task waits
// in sync() for a child that a thief runs, its worker runs other tasks on top of it: first tasks
// stolen from that thief (leapfrogging), then tasks of workers at increasing distance.
//
// Functions and data. A task's function is named in messages by its id in the table of invocable
// functions (dsfabric/function_table.h). Arguments and result are plain data and travel in the
// task's cell: kPayloadBytes for the arguments, and as many for the result. A function whose
// arguments do not fit, are not trivially copyable, or are pointers, std::span, std::string_view or
// std::reference_wrapper does not compile. Larger data belong into global memory
// (dsfabric/global_memory.h).
//
// Exceptions. A task may throw. The exception propagates from the sync() of the task, if a thief
// ran it then as described in tasks/exceptions.h: an exception of the same type if it is a
// registered one. Type name and text travel in kPayloadBytes: a longer text is cut. If the name of
// a registered type leaves no room for the text, 8 bytes represent it. The name of any other type
// is cut to half of the bytes. Children that the failing task has not synced are finished first,
// and their results are dropped.
//
// A run that cannot be completed, because a worker has died for example, unwinds the tasks that
// wait, by an exception that sync() throws. It is no std::exception. A task that catches it with
// catch (...) throws it again. A function that is noexcept does not compile as a task, because the
// exception would end the process.
//
// Cost. spawn() and sync() of a task that no thief has stolen execute no system call and, while the
// deque holds two tasks or more, no atomic read-modify-write. When the deque falls below two tasks,
// the next call() or sync() blocks the request cell by one compare-and-swap on it, and opens it by
// a store when there are two again. A steal takes one round trip for the compare-and-swap and one
// for the answer, and the victim's CPU. Memory of each worker: 15488 bytes, 64 bytes for each
// worker of the job, and 128 bytes for each of PoolOptions::cells, registered; 128 bytes for each
// of PoolOptions::private_cells, not registered. Untouched cells take address space only, except on
// devices that pin registered memory.
#ifndef CARIAMA_TASKS_POOL_H_
#define CARIAMA_TASKS_POOL_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/function_table.h"
#include "dsfabric/ids.h"
#include "tasks/exceptions.h"
#include "tasks/export.h"
#include "tasks/runtime.h"
#include "tasks/transfer.h"

namespace cariama {

class Fabric;

namespace pool {

// The most bytes of a task's arguments, and of its result.
inline constexpr size_t kPayloadBytes = 96;

namespace internal {

// The description of the function of a task. One constant for each function.
struct Kind {
  FunctionStub stub;  // calls the function with the arguments in call.closure
  ::cariama::internal::FunctionRegistration* registration;
  uint32_t argument_bytes;
  uint32_t result_bytes;
};

// A task in the deque of a worker, in registered memory. The owner writes all members, except that
// a thief writes `payload` and then `state` when the task has ended.
struct alignas(64) Cell {
  const Kind* kind;
  std::atomic<uint64_t> state;  // of a stolen task: kRunning, kDone or kFailed (pool/cells.h)
  uint64_t thief;               // the rank that took it
  uint64_t origin;              // the owner's rank and cell, if the owner is another worker
  std::byte payload[kPayloadBytes];
};
static_assert(sizeof(Cell) == 128);

// The contents of a request cell. All other values are request ids of thieves.
inline constexpr uint64_t kOpen = 0;
inline constexpr uint64_t kBlocked = 1;

// The part of the worker that the inline functions below use.
struct alignas(64) Deque {
  Cell* head;          // the next task is written here
  Cell* tail;          // the cells before this one were stolen
  Cell* publish_from;  // head >= publish_from: at least two tasks are in the deque
  Cell* limit;         // the end of the memory for cells
  const std::atomic<uint64_t>* request;
};
CARIAMA_TASKS_EXPORT extern Deque deque;

// The slow paths. serve() changes this worker's request cell, or answers a request.
CARIAMA_TASKS_EXPORT void serve();
// Waits until the newest task of the deque, which a thief has stolen, has ended. Removes its cell,
// and copies its result to `result`. Throws the task's exception.
CARIAMA_TASKS_EXPORT void await_stolen(const Kind& kind, void* result);
// Finishes all tasks of this deque from `mark` on, and drops their results and exceptions.
CARIAMA_TASKS_EXPORT void finish(Cell* mark) noexcept;
[[noreturn]] CARIAMA_TASKS_EXPORT void no_room();
// Stores type and text of the exception that is being handled.
CARIAMA_TASKS_EXPORT void note_failure(IncomingCall& call) noexcept;

// The arguments of a task as plain data.
template <typename... T>
struct Pack {};
template <typename First, typename... Rest>
struct Pack<First, Rest...> {
  First first;
  [[no_unique_address]] Pack<Rest...> rest;
};
inline Pack<> packed() { return {}; }
template <typename First, typename... Rest>
Pack<First, Rest...> packed(const First& first, const Rest&... rest) {
  return {first, packed(rest...)};
}

template <typename T>
inline constexpr bool kIsPlain = tasks::kTravelsAsBytes<T> && !::cariama::internal::kPointsHere<T>;

// Of what is no function: is_task() prints the reason.
template <typename F>
struct Signature {
  using Result = int;
  using Arguments = Pack<>;
  static constexpr size_t kCount = SIZE_MAX;
  template <typename... A>
  static Arguments pack(A&&...) {
    return {};
  }
};
template <typename R, typename... P>
struct Signature<R (*)(P...)> {
  static constexpr bool kMayThrow = true;
  using Result = R;
  using Arguments = Pack<std::decay_t<P>...>;
  static constexpr size_t kCount = sizeof...(P);
  static constexpr bool kNoOutputs =
      (!(std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>)&&...);
  static constexpr bool kPlain = (kIsPlain<std::decay_t<P>> && ...);
  static constexpr bool kPlainResult =
      std::is_void_v<R> || (kIsPlain<std::decay_t<R>> && !std::is_reference_v<R>);
  static constexpr bool kFits = sizeof(Arguments) <= kPayloadBytes;
  template <typename... A>
  static Arguments pack(A&&... arguments) {
    if constexpr (kCount == 0 || sizeof...(A) != kCount) {  // its caller refuses another number
      return {};
    } else {
      return packed<std::decay_t<P>...>(std::forward<A>(arguments)...);
    }
  }
};
template <typename R, typename... P>
struct Signature<R (*)(P...) noexcept> : Signature<R (*)(P...)> {
  static constexpr bool kMayThrow = false;
};

template <typename R>
constexpr size_t size_of_result() {
  if constexpr (std::is_void_v<R>) {
    return 0;
  } else {
    return sizeof(R);
  }
}

// True if F can be the function of a task. Otherwise the compiler prints the reason.
template <auto F>
constexpr bool is_task() {
  using S = Signature<decltype(F)>;
  if constexpr (S::kCount == SIZE_MAX) {
    static_assert(S::kCount != SIZE_MAX,
                  "cariama: a pool task is a function with a name, given as a template argument: "
                  "run<f>(arguments...), Children<f>; no lambda, since other processes call it by "
                  "its name");
  } else if constexpr (!S::kMayThrow) {
    static_assert(
        S::kMayThrow,
        "cariama: a pool task is noexcept, but a run that cannot be completed unwinds its tasks "
        "by an exception: declare the function without noexcept");
  } else if constexpr (!S::kNoOutputs) {
    static_assert(
        S::kNoOutputs,
        "cariama: a pool task cannot change its caller's variables: return a value instead of "
        "taking a reference that is not const");
  } else if constexpr (!S::kPlain) {
    static_assert(
        S::kPlain,
        "cariama: an argument of a pool task is not plain data that another process can use: pass "
        "trivially copyable values and global_ptr, no pointers, views or references");
  } else if constexpr (!S::kPlainResult) {
    static_assert(
        S::kPlainResult,
        "cariama: the result of a pool task is not plain data that another process can use: "
        "return a trivially copyable value, and put large data into global memory");
  } else if constexpr (!S::kFits) {
    static_assert(
        S::kFits,
        "cariama: the arguments of a pool task exceed pool::kPayloadBytes: put them into global "
        "memory and pass a global_ptr");
  } else {
    static_assert(
        size_of_result<typename S::Result>() <= kPayloadBytes,
        "cariama: the result of a pool task exceeds pool::kPayloadBytes: put it into global "
        "memory and return a global_ptr");
  }
  return true;
}

// True if F takes so many arguments. If F is no function, is_task() prints the reason.
template <auto F, size_t kArguments>
inline constexpr bool kTakes =
    Signature<decltype(F)>::kCount == kArguments || Signature<decltype(F)>::kCount == SIZE_MAX;
// The template argument of a task's function that is passed as an argument.
struct NotGiven {};

// Calls F. If F cannot be called with constants, is_task() has printed the reason.
template <auto F, typename... Done>
[[gnu::always_inline]] inline auto apply(const Pack<>&, const Done&... done) ->
    typename Signature<decltype(F)>::Result {
  if constexpr (std::is_pointer_v<decltype(F)> &&
                std::is_invocable_v<decltype(F), const Done&...>) {
    return F(done...);
  } else {
    __builtin_unreachable();
  }
}
template <auto F, typename First, typename... Rest, typename... Done>
[[gnu::always_inline]] inline auto apply(const Pack<First, Rest...>& pack, const Done&... done) ->
    typename Signature<decltype(F)>::Result {
  return apply<F>(pack.rest, done..., pack.first);
}

template <typename T>
[[gnu::always_inline]] inline T read(const std::byte* payload) {
  alignas(T) std::byte copy[sizeof(T)];
  std::memcpy(copy, payload, sizeof(T));
  return *std::launder(reinterpret_cast<T*>(copy));
}

// Runs the task whose arguments are in call.closure. Overwrites them by its result, to whose size
// it sets the closure.
template <auto F>
void stub(IncomingCall& call) {
  using S = Signature<decltype(F)>;
  try {
    std::byte* const payload = call.closure.data();
    const auto arguments = read<typename S::Arguments>(payload);
    if constexpr (std::is_void_v<typename S::Result>) {
      apply<F>(arguments);
      call.closure = call.closure.first(0);
    } else {
      const typename S::Result result = apply<F>(arguments);
      std::memcpy(payload, static_cast<const void*>(&result), sizeof result);
      call.closure = call.closure.first(sizeof result);
    }
  } catch (...) {
    note_failure(call);
  }
}

template <auto F>
inline constexpr Kind kKind{
    &stub<F>, &::cariama::internal::RegisteredFunction<&stub<F>>::registration,
    sizeof(typename Signature<decltype(F)>::Arguments),
    static_cast<uint32_t>(size_of_result<typename Signature<decltype(F)>::Result>())};

// Calls the function here. When it has ended, finishes the children that it has not synced: those
// from `mark` on.
template <auto F, typename Arguments>
[[gnu::always_inline]] inline auto run_here(Cell* mark, const Arguments& arguments) ->
    typename Signature<decltype(F)>::Result {
  try {
    if constexpr (std::is_void_v<typename Signature<decltype(F)>::Result>) {
      apply<F>(arguments);
      if (deque.head != mark) [[unlikely]]
        finish(mark);
    } else {
      const auto result = apply<F>(arguments);
      if (deque.head != mark) [[unlikely]]
        finish(mark);
      return result;
    }
  } catch (...) {
    finish(mark);
    throw;
  }
}

template <auto F>
[[gnu::noinline, gnu::cold]] auto sync_stolen() -> typename Signature<decltype(F)>::Result {
  using R = typename Signature<decltype(F)>::Result;
  if constexpr (std::is_void_v<R>) {
    await_stolen(kKind<F>, nullptr);
  } else {
    alignas(R) std::byte result[sizeof(R)];
    await_stolen(kKind<F>, result);
    return *std::launder(reinterpret_cast<R*>(result));
  }
}

}  // namespace internal

// The functions below may be called only by tasks: in functions that TaskPool::run() has called,
// directly or not. They belong to the thread that called run(). In other code spawn() and sync()
// throw std::logic_error.

// Answers the steal request that a thief has sent to this worker, or opens or blocks the worker's
// request cell. Four loads if there is nothing to do. call() and sync() do it too; a long
// computation without them should call it now and then. Errors: ends the run() if the connection to
// the thief has failed.
[[gnu::always_inline]] inline void communicate() {
  const internal::Deque& deque = internal::deque;
  const uint64_t expected = deque.head < deque.publish_from ? internal::kBlocked : internal::kOpen;
  if (deque.request->load(std::memory_order_relaxed) != expected) [[unlikely]]
    internal::serve();
}

// Adds the task F(arguments...) to the deque. This worker or a thief runs it before the sync() that
// belongs to it returns. Copies the arguments. Never blocks. Throws std::length_error if the deque
// has PoolOptions::cells + PoolOptions::private_cells tasks.
template <auto F, typename... A>
[[gnu::always_inline]] inline void spawn(A&&... arguments) {
  using S = internal::Signature<decltype(F)>;
  static_assert(internal::is_task<F>());
  static_assert(internal::kTakes<F, sizeof...(A)>,
                "cariama: spawn() takes all arguments of the task's function");
  internal::Deque& deque = internal::deque;
  internal::Cell* const cell = deque.head;
  if (cell == deque.limit) [[unlikely]]
    internal::no_room();
  const typename S::Arguments packed = S::pack(std::forward<A>(arguments)...);
  cell->kind = &internal::kKind<F>;
  std::memcpy(cell->payload, static_cast<const void*>(&packed), sizeof packed);
  deque.head = cell + 1;
}

// Runs the newest task that the caller has spawned and not synced, or waits for the thief that has
// stolen it, and returns its result. Tasks are synced in the reverse order of their spawns.
// Requires: that task was spawned by the calling task, with the same F. Throws the exception of the
// task; std::logic_error if the newest task is not one of F.
template <auto F>
[[gnu::always_inline]] inline auto sync() -> typename internal::Signature<decltype(F)>::Result {
  using S = internal::Signature<decltype(F)>;
  internal::Deque& deque = internal::deque;
  internal::Cell* const cell = deque.head - 1;
  if (cell < deque.tail || cell->kind != &internal::kKind<F>) [[unlikely]]
    return internal::sync_stolen<F>();
  const auto arguments = internal::read<typename S::Arguments>(cell->payload);
  deque.head = cell;
  communicate();
  return internal::run_here<F>(cell, arguments);
}

// Calls F(arguments...) as a task: executes communicate(), calls the function, and finishes the
// children that it has not synced.
template <auto F, typename... A>
[[gnu::always_inline]] inline auto call(A&&... arguments) ->
    typename internal::Signature<decltype(F)>::Result {
  using S = internal::Signature<decltype(F)>;
  static_assert(internal::is_task<F>());
  static_assert(internal::kTakes<F, sizeof...(A)>,
                "cariama: call() takes all arguments of the task's function");
  communicate();
  return internal::run_here<F>(internal::deque.head, S::pack(std::forward<A>(arguments)...));
}

// Spawns children of one function. sync() returns their results in the reverse order of the spawns,
// that of the last child first, whichever child ends first. Its destructor finishes the
// children that were not synced, for example because an exception was thrown, and drops their
// results. Objects of one task are destroyed in the reverse order of their first spawns: local
// variables are. Requires: a task with several objects for one F syncs the children of the object
// that spawned last first. In another order each gets results of the other, undetected. Belongs to
// the task that creates it.
template <auto F>
class Children {
  static_assert(internal::is_task<F>());

 public:
  using Result = typename internal::Signature<decltype(F)>::Result;

  Children() = default;
  ~Children() {
    if (count_ != 0) [[unlikely]]
      internal::finish(internal::deque.head - count_);
  }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  // As pool::spawn().
  template <typename... A>
  [[gnu::always_inline]] void spawn(A&&... arguments) {
    pool::spawn<F>(std::forward<A>(arguments)...);
    ++count_;
  }
  // As pool::sync(). Requires: !empty(). After a std::logic_error of sync() itself, the child still
  // counts.
  [[gnu::always_inline]] Result sync() {
    const internal::Cell* const newest = internal::deque.head - 1;
    --count_;
    try {
      return pool::sync<F>();
    } catch (...) {
      if (internal::deque.head > newest) ++count_;  // sync() has removed no task
      throw;
    }
  }
  // The number of children that were not synced yet.
  [[nodiscard]] size_t size() const { return count_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }

 private:
  size_t count_ = 0;
};

}  // namespace pool

// How the workers find out that a run has ended.
//   kDetector    the fabric's termination detector (dsfabric/quiescence.h). Each stolen task is a
//                unit of work.
//   kStatusScan  Oortwijn's scan: a worker that finds no task reads the status cells of all
//                workers, and leaves when all are IDLE. The scan does not see a task that is in
//                transfer from a victim that is already IDLE to a thief that is still IDLE. It is
//                correct only because rank 0 stays WORKING until the root task has ended, and the
//                root task waits for all its descendants. For comparison.
enum class PoolTermination : uint8_t { kDetector, kStatusScan };

// PoolOptions::steal: hand over half of the tasks, at most 64, of those in the first `cells` cells.
inline constexpr uint32_t kStealHalf = UINT32_MAX;

// Options of a TaskPool. create() compares those that must be equal in all workers: `cells`,
// `steal`, `termination` and `atomics`. All other options may differ.
struct PoolOptions {
  // Number of cells of the deque that thieves can take. If the deque has more tasks, up to
  // private_cells further ones are in memory of this process, and only this worker runs them.
  // From 2 to 2^27 (private_cells: from 0), both rounded up to a multiple of 32; together at least
  // `steal`, or 64 with kStealHalf.
  size_t cells = size_t{1} << 16;  // must be equal in all workers
  size_t private_cells = size_t{1} << 22;
  // Number of tasks that a victim hands over at a time: at most this many, and at most all but one.
  // From 1 to 64, or kStealHalf. Must be equal in all workers.
  uint32_t steal = 1;
  PoolTermination termination = PoolTermination::kDetector;  // must be equal in all workers
  uint64_t seed = 1;                                         // of the random order of victims
  // As TaskOptions::victims.
  std::vector<std::vector<Rank>> victims{};
  // As TaskOptions::idle_sleep.
  std::chrono::microseconds idle_sleep{50};
  // Size in bytes to which create() raises the stack limit of the calling thread, if that is the
  // main thread and the limit is lower; at most to the hard limit (ulimit -Hs), without an error.
  // Above 128 MiB other mappings may lie below the stack: set ulimit -s before the program starts.
  // Tasks nest on this stack. A worker that waits in sync() runs stolen tasks above the waiting
  // one, from any part of the tree, so it may need the stack of several paths of the tree.
  size_t stack_bytes = size_t{64} << 20;
  // The number of steal attempts that each worker records, from the first on
  // (TaskPool::take_attempts()).
  size_t recorded_attempts = 0;
  // As TaskOptions::atomics. Must be equal in all workers.
  RemoteAtomics atomics = RemoteAtomics::kAutomatic;
  // Time limit for create(). In each run, also for the meeting of all workers after the last task,
  // in which they exchange the result; with PoolTermination::kStatusScan, also for the meeting
  // before the root task. The tasks have no limit. A worker that comes later ends the run with
  // DEADLINE_EXCEEDED, and every further run(). From 1 ms to 100 years.
  std::chrono::milliseconds timeout{30'000};
  // Time limit for the tasks of each run; 0: none. The worker leaves the run with DEADLINE_EXCEEDED
  // when it is idle or waits in sync() and the time has passed, also if another worker is stopped
  // (SIGSTOP) and never answers. A function of a task is not interrupted. From 0 to 100 years.
  std::chrono::milliseconds run_timeout{0};
};

// A step of a search for work, in the order of execution.
struct PoolAttempt {
  enum class Step : uint8_t {
    kLeapfrog,   // an attempt on the thief of the task that sync() waits for
    kLevel,      // an attempt on a worker of `level`
    kDetection,  // all levels were tried: termination detection
  };
  enum class Result : uint8_t {
    kStolen,    // got at least one task
    kBlocked,   // the victim's request cell was BLOCKED
    kBusy,      // another thief's request was in the cell
    kRejected,  // the victim answered that it has no task to spare
    kNone,      // kDetection
  };
  Step step = Step::kLevel;
  Result result = Result::kNone;
  uint8_t level = 0;  // distance of the victim, as an index of VictimLevel
  int victim = -1;
  uint32_t tasks = 0;  // tasks received
  uint64_t ns = 0;     // duration of the attempt, without the execution of the tasks

  friend bool operator==(const PoolAttempt&, const PoolAttempt&) = default;
};

// Counters of one worker since create() or reset_statistics().
struct CARIAMA_TASKS_EXPORT PoolStatistics {
  uint64_t steals = 0;             // attempts that got tasks
  uint64_t stolen_tasks = 0;       // the tasks that they got
  uint64_t attempts = 0;           // all attempts: steals + blocked + busy + rejected
  uint64_t blocked = 0;            // attempts that found the request cell BLOCKED
  uint64_t busy = 0;               // attempts that found the request of another thief
  uint64_t rejected = 0;           // attempts that the victim answered without a task
  uint64_t leapfrog_attempts = 0;  // attempts on the thief of the awaited task
  uint64_t leapfrog_steals = 0;
  uint64_t detections = 0;     // searches of all levels without success, each before a detection
  uint64_t handed_over = 0;    // tasks that thieves took from this worker
  uint64_t requests = 0;       // requests that this worker answered, with tasks or without
  uint64_t blockings = 0;      // compare-and-swaps by which this worker blocked its request cell
  uint64_t syncs_waited = 0;   // syncs of a stolen task that had not ended
  uint64_t syncs_stolen = 0;   // syncs of a stolen task
  uint64_t deepest_deque = 0;  // most tasks in the deque at the time of a hand-over
  uint64_t round_trips = 0;    // dependent round trips of one-sided operations
  std::array<uint64_t, kVictimLevels> tried{};      // attempts by distance, leapfrogging included
  std::array<uint64_t, kVictimLevels> stolen{};     // steals by distance, leapfrogging included
  std::array<uint64_t, kVictimLevels> steal_ns{};   // sum of the durations of steals
  std::array<uint64_t, kVictimLevels> failed_ns{};  // sum of the durations of other attempts

  // Adds the counters of another worker; deepest_deque becomes the maximum of both.
  void add(const PoolStatistics& other);
  // Returns every counter with its name ("steals", "steals_numa_node"), for tables and programs.
  [[nodiscard]] std::vector<std::pair<std::string, uint64_t>> counters() const;
};

// The workers of a job, one process each, which run a root task and all its descendants.
// Thread-compatible: one thread creates it, calls its functions and destroys it.
class CARIAMA_TASKS_EXPORT TaskPool {
 public:
  // Creates the pool of this process. Collective: every process of the fabric calls it. The calling
  // thread becomes the worker. While it is idle, it runs the calls that arrive for it, if it has a
  // context (Fabric::init_thread()); otherwise it only polls the devices. Blocks at most
  // options.timeout. Errors: INVALID_ARGUMENT (names the option), FAILED_PRECONDITION (this process
  // already has a TaskPool, or options differ), ALREADY_EXISTS (the fixed addresses of the pool's
  // memory are in use), those of Fabric::bootstrap() and of the device.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TaskPool>> create(
      Fabric& fabric, const PoolOptions& options = {});
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  // Collective: runs F(arguments...) as the root task, on rank 0, with rank 0's arguments. All
  // workers run its descendants. Blocks until all tasks have ended, and returns the result on every
  // rank. While the worker is idle, waits in sync() for a thief, or waits for the answer of a
  // victim, it runs the calls that arrive for its thread. Errors: ABORTED (the root task threw;
  // the message has the exception's text); FAILED_PRECONDITION (the caller is a task, or not the
  // thread that created the pool, or this process passed another F than rank 0; the pool stays
  // usable).
  //
  // After the following errors every further run() returns the same error, and this worker leaves
  // the run: DEADLINE_EXCEEDED (a worker came later than PoolOptions::timeout, or tasks have not
  // ended within PoolOptions::run_timeout: the message names the workers that have some);
  // UNAVAILABLE (a worker has died, or left the run with an error; the message names it);
  // FAILED_PRECONDITION (a task synced more tasks than it had spawned, or a task's function is in a
  // library that was loaded after create()); INTERNAL (a worker sent data that this one cannot
  // decode); those of Exchange and of the device.
  template <auto F = pool::internal::NotGiven{}, typename... A,
            typename R = typename pool::internal::Signature<decltype(F)>::Result>
  [[nodiscard]] auto run(A&&... arguments)
      -> std::conditional_t<std::is_void_v<R>, absl::Status, absl::StatusOr<R>> {
    static_assert(pool::internal::is_task<F>());
    static_assert(pool::internal::kTakes<F, sizeof...(A)>,
                  "cariama: run() takes all arguments of the task's function");
    std::byte payload[pool::kPayloadBytes] = {};
    const auto packed = pool::internal::Signature<decltype(F)>::pack(std::forward<A>(arguments)...);
    std::memcpy(payload, static_cast<const void*>(&packed), sizeof packed);
    const absl::Status ended = run_first(pool::internal::kKind<F>, payload);
    if constexpr (std::is_void_v<R>) {
      return ended;
    } else {
      if (!ended.ok()) return ended;
      return pool::internal::read<R>(payload);
    }
  }

  [[nodiscard]] Rank rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] PoolStatistics statistics() const;
  void reset_statistics();
  // Returns the attempts recorded since the last call, at most
  // PoolOptions::recorded_attempts.
  [[nodiscard]] std::vector<PoolAttempt> take_attempts();

 private:
  struct Parts;
  explicit TaskPool(std::unique_ptr<Parts> parts);
  [[nodiscard]] absl::Status run_first(const pool::internal::Kind& kind, std::byte* payload);

  std::unique_ptr<Parts> parts_;
};

}  // namespace cariama

#endif  // CARIAMA_TASKS_POOL_H_
