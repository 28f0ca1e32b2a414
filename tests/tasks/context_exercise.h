// Everything that the assembly promises (tasks/context.h), without a test framework:
// context_test.cc runs it here, aarch64/context_program.cpp on an emulated processor. Each function
// returns what is wrong, or nullptr. To be included in one file of a program, which must not
// use the scheduler.
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

// The canary of tasks, and that in force.
inline constexpr uint64_t kCanary = 0x5a00123456789a00;
inline uint64_t canary() {
#if defined(__x86_64__)
  uint64_t value = 0;
  asm volatile("movq %%fs:40, %0" : "=r"(value));
  return value;
#else
  return kCanary;  // of the process there, the same on all stacks
#endif
}

// A worker of the simplest kind: a stack, a few entries, no thief.
struct SmallWorker {
  SmallWorker() {
    cariama_fork_state = {entries + 1, entries + 1, &attention, nullptr, kCanary, 0};
    attentions = 0;
    ends = 0;
  }
  [[nodiscard]] std::byte* top() { return stack + sizeof stack - kStackEndBytes; }
  // Frames that were left without a return: AddressSanitizer still guards their locals.
  void forget_frames() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, sizeof stack);
#endif
  }

  alignas(64) std::byte stack[64 << 10];
  uint64_t entries[64] = {};
  std::atomic<uint64_t> attention{0};
  static inline int attentions = 0;
  static inline uint64_t attention_first = 0;
  static inline uint64_t attention_second = 0;
  static inline uint64_t attention_bytes = 0;
  static inline int ends = 0;
  static inline uint64_t end_value = 0;
  static inline SmallWorker* current = nullptr;
};

// What a task did, seen from outside.
struct Log {
  int step = 0;
  const char* wrong = nullptr;
  void* sp = nullptr;  // of the suspended task
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

// Keeps values in as many callee-saved registers as there are, across a call of `f`.
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
    CARIAMA_EXPECT(result.value == 42 && result.record == 0, "a fork returned something else");
  });
  CARIAMA_EXPECT(kept, "a fork changed callee-saved registers");
  CARIAMA_EXPECT(cariama_fork_state.top == cariama_fork_state.floor, "top is not where it was");
  const uint64_t entry = *exercise_log.entry;
  CARIAMA_EXPECT((entry & 7) == 0, "an untied entry has flags");
  fork_to<returns_sum, kForkTied, 0>(1, 1);
  CARIAMA_EXPECT((*exercise_log.entry & 7) == kForkTied, "a tied entry has no flag");
  SmallWorker::current->attention.store(1);
  const ForkResult result = fork_to<returns_sum, 0, 48>(20, 22);
  CARIAMA_EXPECT(SmallWorker::attentions == 1 && SmallWorker::attention_first == 20 &&
                     SmallWorker::attention_second == 22 && SmallWorker::attention_bytes == 48,
                 "attention was not paid, or to something else");
  CARIAMA_EXPECT(result.value == 42, "a fork with attention returned something else");
  // The entry is public when the child returns; or the child was continued without its parent.
  const ForkResult late = fork_to<publishes_parent, 0, 0>(30, 3);
  CARIAMA_EXPECT(SmallWorker::ends == 1 && SmallWorker::end_value == 33,
                 "a child returned to a parent that was not private");
  CARIAMA_EXPECT(late.value == 33 && late.record == 0, "a late end returned something else");
  fork_to<loses_parent, 0, 0>(50, 5);
  CARIAMA_EXPECT(SmallWorker::ends == 2 && SmallWorker::end_value == 55,
                 "a child that was continued without its parent returned to it");
  exercise_log.step = 1;
  cariama_leave();
}

// ---- a parent that goes on without its child: as in a thief ----

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
    CARIAMA_EXPECT(canary() == kCanary, "a task that goes on has another canary");
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
  if (exercise_log.step != 0) return "the parent went on by itself";
  // As a thief does it: the frames are copied away, overwritten, and copied back.
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
    return "the suspended task saw something else";
  }
  return exercise_log.step == 3 ? nullptr : "the suspended task did not come to its end";
}

// The unwinder goes from a grandchild through two forks to the first task, and stops there.
inline const char* exercise_unwind() {
  static SmallWorker worker;
  new (&worker) SmallWorker;
  start(worker, walked_task);
  if (exercise_log.step != 4) return "the walked task did not come to its end";
  if (!exercise_log.walked_to_root) return "the unwinder did not find the first task";
  // walks, its fork, forks_once_more, its fork, walked_task, and the context's entry; the
  // compiler may add none.
  if (exercise_log.frames < 5 || exercise_log.frames > 7) return "the unwinder went astray";
  return nullptr;
}

}  // namespace cariama::tasks::testing

// The scheduler's part of context.h: a program with this header has no scheduler.
namespace cariama::tasks {
extern "C" {
ForkState cariama_fork_state;
void cariama_fork_attention(uint64_t first, uint64_t second, uint64_t bytes, ChildFunction) {
  ++testing::SmallWorker::attentions;
  testing::SmallWorker::attention_first = first;
  testing::SmallWorker::attention_second = second;
  testing::SmallWorker::attention_bytes = bytes;
}
// As if the entry had been taken back from the shelf.
void cariama_fork_end(uint64_t value) {
  ++testing::SmallWorker::ends;
  testing::SmallWorker::end_value = value;
  cariama_fork_state.floor = --cariama_fork_state.top;
}
}
}  // namespace cariama::tasks

#endif  // CARIAMA_TESTS_TASKS_CONTEXT_EXERCISE_H_
