// Saving and resuming contexts, in assembly: context_x86_64.cc, context_aarch64.cc.
//
// A worker is a process with two stacks. Tasks run on the uni-address region
// (internal/stack_region.h), one below the other: the running one is the lowest. The scheduler runs
// on the process's own stack.
//
//   cariama_run       scheduler → a task's saved context
//   cariama_suspend   task → scheduler; what it saved is continued by a later cariama_run
//   cariama_leave     task → scheduler; the task has ended
//   fork_to()         saves the calling task in place, announces that (one word in the deque), and
//                     calls the child right below, as an ordinary call (fork_to.h)
//
// A saved context is the stack pointer. All four leave the same picture at it, so a context that
// one of them saved can be continued by another, and the unwind information of each is right on
// both stacks: gdb, perf and exceptions walk from a child through its fork into its parent.
//
//   x86-64, kContextBytes = 56:    r15 r14 r13 r12 rbx rbp, return address
//   AArch64, kContextBytes = 160:  x29 x30 x19..x28 d8..d15
//
// The word below a context that a fork saved belongs to the child's frames: where the entry of
// its parent is. The end of the child takes that back if it is private, which is one comparison;
// whoever continues a child without its parent puts 0 there (orphan()), which no entry is at.
//
// Not saved: the floating-point control words (MXCSR, x87 control, FPCR). Every worker has the
// same, and a task must not change them across a fork or join. Source: Akiyama and Taura, HPDC'15,
// Appendix A; the one-word entry is the stack pointer since all else lies there.
#ifndef CARIAMA_TASKS_CONTEXT_H_
#define CARIAMA_TASKS_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tasks/export.h"

namespace cariama::tasks {

#if defined(__x86_64__)
inline constexpr size_t kContextBytes = 56;
#elif defined(__aarch64__)
inline constexpr size_t kContextBytes = 160;
#else
#error "cariama tasks: no context switch for this processor"
#endif

// What a fork and the end of a child touch: one cache line that nobody else reads or writes. There
// is one per process, since a worker is a process: no thread_local look-up, and no pointer to it
// that could be stale after a migration. The deque (internal/split_deque.h) owns the first three.
struct alignas(64) ForkState {
  uint64_t* top;    // where the next entry goes
  uint64_t* floor;  // entries from here on are private: taking them back needs no atomic
  const std::atomic<uint64_t>* attention;  // not 0: the next fork calls cariama_fork_attention()
  void* scheduler_sp;                      // of the scheduler, while a task runs
  // Of the stack protector (x86-64): frames of tasks have the job's, those of the scheduler that of
  // their process. Each is in force on its own stack, so no frame ever sees the other.
  uint64_t task_canary;
  uint64_t scheduler_canary;
};
static_assert(sizeof(ForkState) == 64);

// What a fork returns, in registers. In the thief that took the parent, `record` is the join record
// of the child and `value` means nothing; otherwise the child has ended, record is 0 or, if it
// threw, a join record that says so, and value is what the child function returned.
struct ForkResult {
  uint64_t value;
  uint64_t record;
};

// The child. When it returns, the fork takes the parent's entry back and returns its result to
// the parent; if the parent is gone, cariama_fork_end() gets the result's value. A child whose
// result is more than a word takes the entry back itself, before it writes to its parent's frames:
// `entry` is where that is, see takes_back(); it returns only if it got it.
using ChildFunction = ForkResult (*)(uint64_t first, uint64_t second, ForkState* state,
                                     uint64_t* entry);

// What a fork does when its child returns, for those that cannot wait so long: takes the
// parent's entry back. (To do so twice changes nothing.) False: out of the ordinary, nothing was
// done: the entry is not private any more, or the child was continued in another process, where
// `entry` means nothing. (Decrementing top would be simpler; but then each fork has to wait for the
// loads and stores of all forks before it.)
[[nodiscard, gnu::always_inline]] inline bool takes_back(ForkState* state, uint64_t* entry) {
  if (state->top != entry + 1 || entry < state->floor) [[unlikely]]
    return false;
  asm("" : "+r"(entry));  // else the compiler may use what it has just loaded, since it is equal
  state->top = entry;
  return true;
}

extern "C" {

CARIAMA_TASKS_EXPORT extern ForkState cariama_fork_state;

#if !defined(__x86_64__)
// fork_to<child, flags, bytes>(first, second).
CARIAMA_TASKS_EXPORT ForkResult cariama_fork(uint64_t first, uint64_t second, ChildFunction child,
                                             uint64_t flags, uint64_t bytes);
#endif

// Continues the context at `sp`, which sees {0, record}. Returns when a task suspends or leaves.
void cariama_run(void* sp, uint64_t record);

// Saves the calling task, stores its stack pointer to *sp and returns to the scheduler. Returns
// {0, record} of the cariama_run that continues it.
ForkResult cariama_suspend(void** sp);

// Returns to the scheduler, for good.
[[noreturn]] void cariama_leave();

// Called by a fork on the caller's stack, below the saved context, when *attention is not 0.
// `bytes` of a closure are where `first` says, or it is 0, and both words are values. It may leave
// in place of returning: then the child is begun by other means.
CARIAMA_TASKS_EXPORT void cariama_fork_attention(uint64_t first, uint64_t second, uint64_t bytes,
                                                 ChildFunction child);

// Called by a fork when its child has returned `value` and its parent's entry is not private.
// Takes it back from the shelf and returns, or leaves the value in the child's join record and ends
// the task.
CARIAMA_TASKS_EXPORT void cariama_fork_end(uint64_t value);
}

// Flags of an entry; the rest of it is a stack pointer, a multiple of 8.
inline constexpr uint64_t kForkTied = 1;  // never to be stolen
[[nodiscard]] constexpr uint64_t sp_of(uint64_t entry) { return entry & ~uint64_t{7}; }

// Writes a context to the 16-byte aligned `stack_top`, downwards: continued, it calls
// entry(argument), which must not return. Returns the context. Unwinders stop there.
[[nodiscard]] void* make_context(void* stack_top, void (*entry)(void*), void* argument);

// Bytes at and above a task's oldest frame that close_stack() writes.
inline constexpr size_t kStackEndBytes = (kContextBytes + 15) / 16 * 16;

// Puts an end for unwinders where a task's oldest frame begins, when its parent is not above it:
// a context full of zeros, whose return address no function has.
void close_stack(void* stack_top);

// Bytes below a task's highest that its fork keeps for itself: the word that orphan() writes.
inline constexpr size_t kChildWordBytes = 16;

// Of a task whose frames end at `stack_top`: its parent is not above it any more.
inline void orphan(void* stack_top) { static_cast<uint64_t*>(stack_top)[-1] = 0; }

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_CONTEXT_H_
