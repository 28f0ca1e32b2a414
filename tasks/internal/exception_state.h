// What the C++ runtime keeps of a thread's exceptions (Itanium C++ ABI, 2.2.2). It belongs to a
// task, and changes hands with the stack.
#ifndef CARIAMA_TASKS_INTERNAL_EXCEPTION_STATE_H_
#define CARIAMA_TASKS_INTERNAL_EXCEPTION_STATE_H_

namespace cariama::tasks {

struct ExceptionState {
  void* handled = nullptr;     // the exceptions that are being handled
  unsigned int under_way = 0;  // how many are not caught yet

  [[nodiscard]] bool empty() const { return handled == nullptr && under_way == 0; }
};

// Of the calling thread. Not inlined: the compiler would keep the address of a thread_local across
// a switch.
[[nodiscard]] ExceptionState& exception_state();

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_EXCEPTION_STATE_H_
