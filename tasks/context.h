// The context switch: assembly functions that save and continue the contexts of tasks. They are in
// context_x86_64.cc and context_aarch64.cc. Not for users.
//
// A worker is a process with two stacks. Tasks run on the uni-address region
// (internal/stack_region.h). The frames of a child lie directly below those of its parent, so the
// running task is the lowest one. The scheduler runs on the process's own stack.
//
//   cariama_run       switches from the scheduler to a task's saved context
//   cariama_suspend   saves the task and switches to the scheduler; a later cariama_run continues
//                     the task
//   cariama_leave     switches from a task that has ended to the scheduler
//   fork_to()         saves the calling task in place, pushes its stack pointer to the deque, and
//                     calls the child below it by an ordinary call (fork_to.h)
//
// A saved context is named by its stack pointer. All four functions use the same layout of the
// saved registers. A context that one function saved can therefore be continued by another, and the
// unwind information of each function is valid on both stacks: gdb, perf and exceptions walk from a
// child through its fork into its parent.
//
//   x86-64, kContextBytes = 56:    r15 r14 r13 r12 rbx rbp, return address
//   AArch64, kContextBytes = 160:  x29 x30 x19..x28 d8..d15
//
// A fork stores the address of the parent's deque entry in the word below the saved context. The
// word belongs to the child's frames. When the child returns, the fork compares this address with
// `floor`: if the entry is private, the fork pops it without an atomic operation. A worker that
// continues a child without its parent stores 0 in this word (orphan()). No entry has the address
// 0, so the comparison fails and the slow path runs.
//
// The floating-point control words (MXCSR, x87 control, FPCR) are not saved. They have the same
// values in every worker, and a task must not change them across a fork or join.
//
// Source: Akiyama and Taura, HPDC'15, Appendix A. Unlike there, an entry of the deque is one word,
// the stack pointer, because all other data of the context lie on the stack.
#ifndef CARIAMA_TASKS_CONTEXT_H_
#define CARIAMA_TASKS_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tasks/export.h"

namespace cariama::tasks {

#if defined(__x86_64__)
inline constexpr size_t kContextBytes = 56;
inline constexpr size_t kReturnAddressOffset = 48;
#elif defined(__aarch64__)
inline constexpr size_t kContextBytes = 160;
inline constexpr size_t kReturnAddressOffset = 8;
#else
#error "cariama tasks: no context switch for this processor"
#endif

// The data that a fork and the end of a child read and write: one cache line, private to the
// worker. A worker is a process, so there is one object per process. It needs no thread_local
// look-up, and tasks hold no pointer to it that would be wrong after a migration. The owner of the
// deque (internal/split_deque.h) maintains the first three members.
struct alignas(64) ForkState {
  uint64_t* top;    // the next entry is pushed here
  uint64_t* floor;  // entries from here up to top are private: popping them needs no atomic
  // If the word is not 0, the next fork calls cariama_fork_steal_request().
  const std::atomic<uint64_t>* steal_request;
  void* scheduler_sp;  // the scheduler's stack pointer while a task runs
  // Canaries of the stack protector (x86-64). Frames of tasks contain the canary of the job, frames
  // of the scheduler the canary of their process. cariama_run(), cariama_suspend() and
  // cariama_leave() set the canary of the stack that they switch to, so each frame is checked
  // against the canary that it was written with.
  uint64_t task_canary;
  uint64_t scheduler_canary;
  // If the word is not 0, steal_is_requested() is true (fork_join.h): loops without a grain split
  // their range. Not the word of steal_request if forks call the library for another reason.
  const std::atomic<uint64_t>* split_request;
};
static_assert(sizeof(ForkState) == 64);

// The result of a fork, returned in two registers. There are two cases:
// - The parent was stolen or continued without its child: `record` is the join record of the child,
//   and `value` has no meaning.
// - The child has ended: `value` is the value of the child function. `record` is 0, or, if the
//   child threw or its result does not travel as bytes (transfer.h), a join record that holds the
//   exception or the result.
struct ForkResult {
  uint64_t value;
  uint64_t record;
};

// The function of a child. `entry` is the address of the parent's deque entry. When the function
// returns, the fork pops this entry and returns the result to the parent. If the entry is not
// private, the fork passes the value to cariama_fork_end(). A child whose result is larger than a
// word must pop the entry itself (takes_back()) before it writes the result to the parent's frames,
// and must return only if it has popped the entry.
using ChildFunction = ForkResult (*)(uint64_t first, uint64_t second, ForkState* state,
                                     uint64_t* entry);

// Pops the parent's entry, as the fork itself does when the child returns, for a child that needs
// the pop earlier. A second pop of the same entry by the fork changes nothing. Returns false and
// changes nothing if the entry is not private, or if the child was continued in another process,
// where `entry` has no meaning. (Stores `entry` instead of decrementing top: a decrement would make
// each fork depend on the loads and stores of top by all forks before it.)
[[nodiscard, gnu::always_inline]] inline bool takes_back(ForkState* state, uint64_t* entry) {
  if (state->top != entry + 1 || entry < state->floor) [[unlikely]]
    return false;
  // Hides the value of `entry`: the compiler may otherwise store the equal value that it has just
  // loaded from top, which creates that dependence.
  asm("" : "+r"(entry));
  state->top = entry;
  return true;
}

extern "C" {

CARIAMA_TASKS_EXPORT extern ForkState cariama_fork_state;

#if !defined(__x86_64__)
// Implements fork_to<child, flags, bytes>(first, second), see fork_to.h.
CARIAMA_TASKS_EXPORT ForkResult cariama_fork(uint64_t first, uint64_t second, ChildFunction child,
                                             uint64_t flags, uint64_t bytes);
#endif

// Continues the context saved at `sp`: there, the fork or suspend returns {0, record}. Returns when
// a task calls cariama_suspend() or cariama_leave(). Called by the scheduler.
void cariama_run(void* sp, uint64_t record);

// Saves the context of the calling task, stores its stack pointer to *sp and switches to the
// scheduler. Returns when a cariama_run(*sp, record) continues the task, with {0, record}.
ForkResult cariama_suspend(void** sp);

// Switches to the scheduler. The calling task has ended; its context is not saved.
[[noreturn]] void cariama_leave();

// Called by a fork, on the caller's stack below the saved context, when *steal_request is not 0.
// The newest entry of the deque, top[-1], is the caller's. If `bytes` is not 0, `first` is the
// address of a closure of `bytes` bytes; otherwise `first` and `second` are values. If the
// scheduler starts the child on another stack, the function does not return but calls
// cariama_leave().
CARIAMA_TASKS_EXPORT void cariama_fork_steal_request(uint64_t first, uint64_t second,
                                                     uint64_t bytes, ChildFunction child);

// Called by a fork when its child has returned `value` and the entry of the parent is not private.
// If the entry is in the public part of the deque, takes it back and returns. If the parent was
// stolen, writes the value to the child's join record and ends the task.
CARIAMA_TASKS_EXPORT void cariama_fork_end(uint64_t value);
}

// Flags in the low 3 bits of an entry. The other bits are a stack pointer, a multiple of 8.
inline constexpr uint64_t kForkTied = 1;  // the entry must not be stolen
// What TaskOptions::check_closures does with the child's closure (closure_flag() in task.h).
inline constexpr uint64_t kClosureFlags = 6;
inline constexpr uint64_t kClosureNotRead = 0;   // it contains no pointer to data
inline constexpr uint64_t kClosureOfValues = 2;  // a pointer to a local ends the program
inline constexpr uint64_t kClosureWithGaps = 4;  // it is reported: its bytes may be unset
[[nodiscard]] constexpr uint64_t sp_of(uint64_t entry) { return entry & ~uint64_t{7}; }

// Writes a new context directly below `stack_top` and returns its stack pointer. When continued,
// the context calls entry(argument), which must not return. Unwinders stop at this call. Requires:
// `stack_top` is 16-byte aligned.
[[nodiscard]] void* make_context(void* stack_top, void (*entry)(void*), void* argument);

// Bytes that close_stack() writes, beginning at the end of a task's oldest frame.
inline constexpr size_t kStackEndBytes = (kContextBytes + 15) / 16 * 16;

// Writes a context of zeros at `stack_top`, the end of the oldest frame of a task whose parent does
// not lie above it. Unwinders stop there, because no function contains the return address 0.
void close_stack(void* stack_top);

// Bytes directly below a task's stack_top that hold the word written by the fork and by orphan().
inline constexpr size_t kChildWordBytes = 16;

// Stores 0 as the address of the parent's entry, for the task whose frames end at `stack_top`: the
// task continues without its parent.
inline void orphan(void* stack_top) { static_cast<uint64_t*>(stack_top)[-1] = 0; }

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_CONTEXT_H_
