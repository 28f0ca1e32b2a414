// Notifies AddressSanitizer and ThreadSanitizer of switches between the stacks of a worker. In a
// build without a sanitizer all functions are empty.
//
// AddressSanitizer stores the bounds of the current stack and poisons the memory around locals.
// Frames that are left without a return would stay poisoned, so a task unpoisons its frames before
// it leaves. ThreadSanitizer stores the call stack of each thread. Here each run of a task, from a
// switch to it to the next switch, is a separate fiber for it. The fiber begins with enough
// function entries for all returns that may follow.
//
//   before_run, after_run    around cariama_run(), on the scheduler's stack
//   before_leave             before cariama_suspend() or cariama_leave(), on the task's stack
//   on_stack                 after a switch to the task's stack
//   frames_leave             before frames are handed over to another worker
//   before_peers             release: before peers can access memory of this worker
//   after_peers              acquire: after peers may have accessed it
#ifndef CARIAMA_TASKS_INTERNAL_SANITIZER_H_
#define CARIAMA_TASKS_INTERNAL_SANITIZER_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace cariama::tasks {

#if defined(__SANITIZE_ADDRESS__)

struct SwitchState {
  void* scheduler_fake = nullptr;
  const void* scheduler_bottom = nullptr;
  size_t scheduler_bytes = 0;
  bool arriving = false;
};
inline SwitchState switch_state;

inline void before_run(const void* bottom, size_t bytes) {
  switch_state.arriving = true;
  __sanitizer_start_switch_fiber(&switch_state.scheduler_fake, bottom, bytes);
}
// A fork that returns with a record may or may not have switched stacks; `arriving` tells which.
inline void on_stack() {
  if (!std::exchange(switch_state.arriving, false)) return;
  __sanitizer_finish_switch_fiber(nullptr, &switch_state.scheduler_bottom,
                                  &switch_state.scheduler_bytes);
}
// Always inlined, so that it also unpoisons the part of the caller's frame below the frame address.
__attribute__((always_inline)) inline void before_leave(const void* top) {
  const char* here = nullptr;
#if defined(__x86_64__)
  asm volatile("movq %%rsp, %0" : "=r"(here));
#else
  asm volatile("mov %0, sp" : "=r"(here));
#endif
  __asan_unpoison_memory_region(here, static_cast<size_t>(static_cast<const char*>(top) - here));
  __sanitizer_start_switch_fiber(nullptr, switch_state.scheduler_bottom,
                                 switch_state.scheduler_bytes);
}
inline void after_run() {
  __sanitizer_finish_switch_fiber(switch_state.scheduler_fake, nullptr, nullptr);
}
// The frames [begin, end) of tasks above the running one, which will continue in another worker.
inline void frames_leave(uint64_t begin, uint64_t end) {
  __asan_unpoison_memory_region(reinterpret_cast<const void*>(begin), end - begin);
}

#elif defined(__SANITIZE_THREAD__)

extern "C" void __tsan_func_entry(void* pc);
struct SwitchState {
  void* scheduler = nullptr;
  void* task = nullptr;
};
inline SwitchState switch_state;

// Number of function entries at the beginning of a fiber. More than any test nests; ThreadSanitizer
// has room for 65 536.
inline constexpr int kCallsBefore = 4096;

__attribute__((no_sanitize("thread"))) inline void before_run(const void*, size_t) {
  switch_state.scheduler = __tsan_get_current_fiber();
  switch_state.task = __tsan_create_fiber(0);
  __tsan_switch_to_fiber(switch_state.task, 0);
  for (int i = 0; i < kCallsBefore; ++i) __tsan_func_entry(__builtin_return_address(0));
}
inline void on_stack() {}
__attribute__((no_sanitize("thread"))) inline void before_leave(const void*) {
  __tsan_switch_to_fiber(switch_state.scheduler, 0);
}
__attribute__((no_sanitize("thread"))) inline void after_run() {
  __tsan_destroy_fiber(switch_state.task);
}
inline void frames_leave(uint64_t, uint64_t) {}

// The worker's thread and the thread that serves atomics (atomic_server.h) synchronise through
// peers in other processes, which ThreadSanitizer does not see: a peer learns the address of a
// block before it requests an atomic on it, and gets the answer before it releases the block.
// before_peers() and after_peers() declare this order.
inline char peers;
inline void before_peers() { __tsan_release(&peers); }
inline void after_peers() { __tsan_acquire(&peers); }

#else

inline void before_run(const void*, size_t) {}
inline void on_stack() {}
inline void before_leave(const void*) {}
inline void after_run() {}
inline void frames_leave(uint64_t, uint64_t) {}

#endif

#if !defined(__SANITIZE_THREAD__)
inline void before_peers() {}
inline void after_peers() {}
#endif

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SANITIZER_H_
