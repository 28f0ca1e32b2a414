// The exception state that the C++ runtime keeps for a thread (Itanium C++ ABI, 2.2.2). Here it
// belongs to the running task, and the scheduler saves and restores it when it switches tasks.
#ifndef CARIAMA_TASKS_INTERNAL_EXCEPTION_STATE_H_
#define CARIAMA_TASKS_INTERNAL_EXCEPTION_STATE_H_

#include <cstdint>

namespace cariama::tasks {

struct ExceptionState {
  void* handled = nullptr;    // list of the exceptions that are being handled, newest first
  unsigned int uncaught = 0;  // number of exceptions that have been thrown but not caught

  // Returns true if there is no exception. `uncaught` can be -1: the uncaught exception of a parent
  // was counted as its child's (see below) and left with the child.
  [[nodiscard]] bool empty() const { return handled == nullptr && static_cast<int>(uncaught) <= 0; }
};

// A child that is forked in a catch block shares the state with its parent until the child is
// suspended; then the state must be split. The parent's frames are above the address `boundary`,
// the child's below it. Each caught exception contains the stack pointer of the frame that caught
// it (GCC's unwinder stores it). Uncaught exceptions are counted as the child's, because they do
// not name a frame, and because the usual case is a destructor of the child that joins while it
// unwinds.

// Returns true if frames below `boundary` handle exceptions.
[[nodiscard]] bool has_exceptions_below(const ExceptionState& state, uint64_t boundary);
// Moves the exceptions of frames below `boundary`, and the uncaught ones, from `state` to the
// result.
[[nodiscard]] ExceptionState split_exceptions(ExceptionState& state, uint64_t boundary);
// Reverts split_exceptions(): adds the exceptions of `upper`, which are newer, to `state`.
void join_exceptions(ExceptionState& state, const ExceptionState& upper);

// Returns the state of the calling thread. Not inlined, because the compiler would otherwise reuse
// the address of a thread_local variable after a switch.
[[nodiscard]] ExceptionState& exception_state();

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_EXCEPTION_STATE_H_
