// Tells AddressSanitizer and ThreadSanitizer about the two stacks of a worker. Nothing otherwise.
//
// AddressSanitizer keeps the bounds of the current stack, and poisons the surroundings of locals:
// frames that are left without a return stay poisoned, so who leaves cleans up behind itself.
// ThreadSanitizer keeps the calls that a thread is in: each stretch that a task runs is a fiber of
// its own, which begins with calls enough for all returns that may follow.
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
// A fork that returns with a record may have come from another stack, or not.
inline void on_stack() {
  if (!std::exchange(switch_state.arriving, false)) return;
  __sanitizer_finish_switch_fiber(nullptr, &switch_state.scheduler_bottom,
                                  &switch_state.scheduler_bytes);
}
// Of the caller's own frame, too: what is under its frame address.
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
// Frames [begin, end) of tasks above the running one, which go on elsewhere only.
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

// More calls than tests nest; ThreadSanitizer has room for 65 536.
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

// The worker's thread and the one that serves atomics (atomic_server.h) synchronise through peers,
// in other processes: these get to know of memory before they ask for an atomic on it, and have its
// answer before they give it back. Before what peers may see; after what they may have done.
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
