// Tests of the assembly of tasks/context.h without a test framework. context_test.cc runs them on
// this processor, aarch64/context_program.cpp on an emulated one. Each exercise_...() function
// returns nullptr or a text that names the error. Include this header in exactly one file of a
// program that does not link the scheduler.
#ifndef CARIAMA_TESTS_TASKS_CONTEXT_EXERCISE_H_
#define CARIAMA_TESTS_TASKS_CONTEXT_EXERCISE_H_

#include <unwind.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tasks/context.h"
#include "tasks/fork_to.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace cariama::tasks::testing {

// kCanary is the canary of tasks; canary() returns the current one.
inline constexpr uint64_t kCanary = 0x5a00123456789a00;
inline uint64_t canary() {
#if defined(__x86_64__)
  uint64_t value = 0;
  asm volatile("movq %%fs:40, %0" : "=r"(value));
  return value;
#else
  return kCanary;  // the canary is not switched on this processor
#endif
}

// A minimal worker: a stack and a few entries, without thieves. The static members record the calls
// of cariama_fork_steal_request() and cariama_fork_end().
struct SmallWorker {
  SmallWorker() {
    cariama_fork_state = {entries + 1, entries + 1, &steal_request, nullptr,
                          kCanary,     0,           &steal_request};
    steal_requests = 0;
    ends = 0;
  }
  [[nodiscard]] std::byte* top() { return stack + sizeof stack - kStackEndBytes; }
  // Unpoisons the stack: AddressSanitizer still protects the locals of frames that were left
  // without a return.
  void forget_frames() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, sizeof stack);
#endif
  }

  alignas(64) std::byte stack[64 << 10];
  uint64_t entries[64] = {};
  std::atomic<uint64_t> steal_request{0};
  static inline int steal_requests = 0;
  static inline uint64_t request_first = 0;
  static inline uint64_t request_second = 0;
  static inline uint64_t request_bytes = 0;
  static inline int ends = 0;
  static inline uint64_t end_value = 0;
  static inline SmallWorker* current = nullptr;
};

// The work that a task did, and the first error that it found.
struct Log {
  int step = 0;
  const char* wrong = nullptr;
  void* sp = nullptr;  // stack pointer of the suspended task
  uint64_t* entry = nullptr;
  uint64_t seen_record = 0;
  uint64_t seen_value = 0;
  int frames = 0;
  bool walked_to_root = false;
};
inline Log exercise_log;

#define CARIAMA_EXPECT(condition, text) \
  do {                                  \
    if (!(condition)) {                 \
      exercise_log.wrong = text;        \
      cariama_leave();                  \
    }                                   \
  } while (false)

// Holds values in all callee-saved registers across a call of `f`. Returns true if they are
// unchanged.
template <typename F>
[[gnu::noinline]] bool keeps_registers(uint64_t seed, F f) {
  volatile uint64_t source[8];
  for (int i = 0; i < 8; ++i) source[i] = seed * 31 + static_cast<uint64_t>(i);
  const uint64_t a = source[0], b = source[1], c = source[2], d = source[3];
  const uint64_t e = source[4], g = source[5], h = source[6], j = source[7];
  const double x = static_cast<double>(source[0]) * 0.5, y = static_cast<double>(source[1]) * 0.25;
  f();
  return a == source[0] && b == source[1] && c == source[2] && d == source[3] && e == source[4] &&
         g == source[5] && h == source[6] && j == source[7] &&
         x == static_cast<double>(source[0]) * 0.5 && y == static_cast<double>(source[1]) * 0.25;
}

inline ForkResult returns_sum(uint64_t first, uint64_t second, ForkState* state, uint64_t* entry) {
  if (state != &cariama_fork_state) exercise_log.wrong = "a child got another state";
  if (entry + 1 != state->top) exercise_log.wrong = "a child got another entry";
  if ((reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) & 15) != 0) {
    exercise_log.wrong = "a child's stack is not aligned";
  }
  exercise_log.entry = entry;
  if (entry < state->floor) exercise_log.wrong = "a child has no entry";
  return {first + second, 0};
}
inline ForkResult publishes_parent(uint64_t first, uint64_t second, ForkState* state, uint64_t*) {
  state->floor = state->top;
  return {first + second, 0};
}
inline ForkResult loses_parent(uint64_t first, uint64_t second, ForkState*, uint64_t* entry) {
  orphan(reinterpret_cast<void*>(sp_of(*entry)));
  return {first + second, 0};
}

// ---- a fork whose child returns ----

inline void fork_returns(void*) {
  const bool kept = keeps_registers(3, [] {
    const ForkResult result = fork_to<returns_sum, 0, 0>(40, 2);
    CARIAMA_EXPECT(result.value == 42 && result.record == 0, "a fork returned another result");
  });
  CARIAMA_EXPECT(kept, "a fork changed callee-saved registers");
  CARIAMA_EXPECT(cariama_fork_state.top == cariama_fork_state.floor, "top is not where it was");
  const uint64_t entry = *exercise_log.entry;
  CARIAMA_EXPECT((entry & 7) == 0, "an untied entry has flags");
  fork_to<returns_sum, kForkTied, 0>(1, 1);
  CARIAMA_EXPECT((*exercise_log.entry & 7) == kForkTied, "a tied entry has no flag");
  SmallWorker::current->steal_request.store(1);
  const ForkResult result = fork_to<returns_sum, 0, 48>(20, 22);
  CARIAMA_EXPECT(SmallWorker::steal_requests == 1 && SmallWorker::request_first == 20 &&
                     SmallWorker::request_second == 22 && SmallWorker::request_bytes == 48,
                 "a steal request was not served, or with other arguments");
  CARIAMA_EXPECT(result.value == 42, "a fork with a steal request returned another value");
  // First the entry is public when the child returns, then the child has no parent.
  const ForkResult late = fork_to<publishes_parent, 0, 0>(30, 3);
  CARIAMA_EXPECT(SmallWorker::ends == 1 && SmallWorker::end_value == 33,
                 "a child returned to a parent that was not private");
  CARIAMA_EXPECT(late.value == 33 && late.record == 0, "cariama_fork_end() changed the result");
  fork_to<loses_parent, 0, 0>(50, 5);
  CARIAMA_EXPECT(SmallWorker::ends == 2 && SmallWorker::end_value == 55,
                 "a child that was continued without its parent returned to it");
  exercise_log.step = 1;
  cariama_leave();
}

// ---- a parent that continues without its child, as in a thief ----

inline ForkResult leaves_parent(uint64_t, uint64_t, ForkState* state, uint64_t* entry) {
  exercise_log.entry = entry;
  state->top = entry;
  cariama_leave();
}

inline void fork_is_taken(void*) {
  const bool kept = keeps_registers(5, [] {
    const ForkResult result = fork_to<leaves_parent, 0, 0>(0, 0);
    exercise_log.seen_record = result.record;
  });
  CARIAMA_EXPECT(kept, "a parent that was taken lost callee-saved registers");
  exercise_log.step = 2;
  cariama_leave();
}

// ---- suspend ----

inline void suspends(void*) {
  CARIAMA_EXPECT(canary() == kCanary, "a task has the canary of the process");
  const bool kept = keeps_registers(7, [] {
    const ForkResult result = cariama_suspend(&exercise_log.sp);
    exercise_log.seen_value = result.value;
    exercise_log.seen_record = result.record;
    CARIAMA_EXPECT(canary() == kCanary, "a continued task has another canary");
  });
  CARIAMA_EXPECT(kept, "a suspended task lost callee-saved registers");
  exercise_log.step = 3;
  cariama_leave();
}

// ---- unwinding ----

struct Walk {
  int frames = 0;
  bool root = false;
  uintptr_t root_begin;
};
void walked_task(void*);

inline _Unwind_Reason_Code count_frame(_Unwind_Context* context, void* argument) {
  auto* walk = static_cast<Walk*>(argument);
  ++walk->frames;
  if (_Unwind_FindEnclosingFunction(reinterpret_cast<void*>(_Unwind_GetIP(context))) ==
      reinterpret_cast<void*>(walk->root_begin)) {
    walk->root = true;
  }
  return walk->frames < 100 ? _URC_NO_REASON : _URC_NORMAL_STOP;
}

inline ForkResult walks(uint64_t, uint64_t, ForkState* state, uint64_t* entry) {
  Walk walk{.root_begin = reinterpret_cast<uintptr_t>(&walked_task)};
  _Unwind_Backtrace(count_frame, &walk);
  exercise_log.frames = walk.frames;
  exercise_log.walked_to_root = walk.root;
  static_cast<void>(takes_back(state, entry));
  return {0, 0};
}
inline ForkResult forks_once_more(uint64_t, uint64_t, ForkState* state, uint64_t* entry) {
  fork_to<walks, 0, 0>(0, 0);
  static_cast<void>(takes_back(state, entry));
  return {0, 0};
}
void walked_task(void*) {
  fork_to<forks_once_more, 0, 0>(0, 0);
  exercise_log.step = 4;
  cariama_leave();
}

// Runs `task` on a fresh worker until it leaves or suspends.
inline void start(SmallWorker& worker, void (*task)(void*)) {
  SmallWorker::current = &worker;
  exercise_log = {};
  cariama_run(make_context(worker.top(), task, nullptr), 0);
  worker.forget_frames();
}

inline const char* exercise_fork() {
  static SmallWorker worker;
  new (&worker) SmallWorker;
  bool kept = keeps_registers(11, [] { start(worker, fork_returns); });
  if (exercise_log.wrong != nullptr) return exercise_log.wrong;
  if (!kept) return "the scheduler lost callee-saved registers";
  return exercise_log.step == 1 ? nullptr : "the task did not come to its end";
}

inline const char* exercise_steal() {
  static SmallWorker worker;
  new (&worker) SmallWorker;
  start(worker, fork_is_taken);
  if (exercise_log.step != 0) return "the parent continued before it was taken";
  // Like a steal: copy the frames away, overwrite them, and copy them back.
  const uint64_t sp = *exercise_log.entry;
  const size_t bytes = reinterpret_cast<uint64_t>(worker.top()) - sp;
  static std::byte copy[64 << 10];
  std::memcpy(copy, reinterpret_cast<void*>(sp), bytes);
  std::memset(worker.stack, 0x5a, sizeof worker.stack);
  std::memcpy(reinterpret_cast<void*>(sp), copy, bytes);
  cariama_run(reinterpret_cast<void*>(sp), 77);
  worker.forget_frames();
  if (exercise_log.wrong != nullptr) return exercise_log.wrong;
  if (exercise_log.seen_record != 77) return "the parent saw another record";
  return exercise_log.step == 2 ? nullptr : "the parent did not come to its end";
}

inline const char* exercise_suspend() {
  static SmallWorker worker;
  new (&worker) SmallWorker;
  const uint64_t before = canary();
  start(worker, suspends);
  if (canary() != before) return "suspending left the scheduler the canary of tasks";
  if (exercise_log.step != 0 || exercise_log.sp == nullptr) return "the task did not suspend";
  cariama_run(exercise_log.sp, 88);
  worker.forget_frames();
  if (canary() != before) return "leaving left the scheduler the canary of tasks";
  if (exercise_log.wrong != nullptr) return exercise_log.wrong;
  if (exercise_log.seen_value != 0 || exercise_log.seen_record != 88) {
    return "the suspended task got another result";
  }
  return exercise_log.step == 3 ? nullptr : "the suspended task did not come to its end";
}

// Checks that the unwinder walks from a grandchild through two forks to the root task, and stops
// there.
inline const char* exercise_unwind() {
  static SmallWorker worker;
  new (&worker) SmallWorker;
  start(worker, walked_task);
  if (exercise_log.step != 4) return "the walked task did not come to its end";
  if (!exercise_log.walked_to_root) return "the unwinder did not find the root task";
  // Expected frames: walks, its fork, forks_once_more, its fork, walked_task, and the context's
  // entry.
  if (exercise_log.frames < 5 || exercise_log.frames > 7) return "the unwinder found other frames";
  return nullptr;
}

}  // namespace cariama::tasks::testing

// Replaces the symbols of context.h that the scheduler defines.
namespace cariama::tasks {
extern "C" {
ForkState cariama_fork_state;
void cariama_fork_steal_request(uint64_t first, uint64_t second, uint64_t bytes, ChildFunction) {
  ++testing::SmallWorker::steal_requests;
  testing::SmallWorker::request_first = first;
  testing::SmallWorker::request_second = second;
  testing::SmallWorker::request_bytes = bytes;
}
// Acts as if the entry had been taken back from the public part.
void cariama_fork_end(uint64_t value) {
  ++testing::SmallWorker::ends;
  testing::SmallWorker::end_value = value;
  cariama_fork_state.floor = --cariama_fork_state.top;
}
}
}  // namespace cariama::tasks

#endif  // CARIAMA_TESTS_TASKS_CONTEXT_EXERCISE_H_
