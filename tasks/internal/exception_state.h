// What the C++ runtime keeps of a thread's exceptions (Itanium C++ ABI, 2.2.2). It belongs to a
// task, and changes hands with the stack.
#ifndef CARIAMA_TASKS_INTERNAL_EXCEPTION_STATE_H_
#define CARIAMA_TASKS_INTERNAL_EXCEPTION_STATE_H_

#include <cstdint>

namespace cariama::tasks {

struct ExceptionState {
  void* handled = nullptr;     // the exceptions that are being handled
  unsigned int under_way = 0;  // how many are not caught yet

  // (-1: what was under way has gone with a child, see below.)
  [[nodiscard]] bool empty() const {
    return handled == nullptr && static_cast<int>(under_way) <= 0;
  }
};

// A child that is forked in a catch block runs on top of its parent, and both go their ways when
// the child is suspended. The parent's frames are above `boundary`, the child's below; each caught
// exception names the frame that caught it, as the unwinder of GCC noted it. What is under way, not
// caught yet, counts as the child's: nothing tells whose it is, and who waits then is a destructor
// that joins, mostly.

// Whether frames below `boundary` handle any.
[[nodiscard]] bool has_exceptions_below(const ExceptionState& state, uint64_t boundary);
// Takes those out of `state`, and leaves the others there.
[[nodiscard]] ExceptionState split_exceptions(ExceptionState& state, uint64_t boundary);
// The reverse: puts `upper` on top of `state`.
void join_exceptions(ExceptionState& state, const ExceptionState& upper);

// Of the calling thread. Not inlined: the compiler would keep the address of a thread_local across
// a switch.
[[nodiscard]] ExceptionState& exception_state();

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_EXCEPTION_STATE_H_
