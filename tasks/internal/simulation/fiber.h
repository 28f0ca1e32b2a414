// A stack of its own for each simulated worker, so that the real, blocking code of the protocols
// can be left in the middle of an operation and continued when it is done.
#ifndef CARIAMA_TASKS_INTERNAL_SIMULATION_FIBER_H_
#define CARIAMA_TASKS_INTERNAL_SIMULATION_FIBER_H_

#include <cstddef>

#include "tasks/context.h"
#include "tasks/internal/sanitizer.h"

namespace cariama::tasks {

class Fiber {
 public:
  // entry(argument) begins with the first resume(), calls arrived() first, and never returns. The
  // stack is the caller's; what stands on it is never unwound: nothing there may own anything
  // across a suspend().
  void start(std::byte* bottom, size_t bytes, void (*entry)(void*), void* argument) {
    bottom_ = bottom;
    bytes_ = bytes;
    sp_ = make_context(bottom + bytes - kStackEndBytes, entry, argument);
  }
  // Runs it until it suspends itself.
  void resume() {
    before_run(bottom_, bytes_);
    cariama_run(sp_, 0);
    after_run();
  }
  // By the fiber itself.
  [[gnu::noinline]] void suspend() {
    before_leave(bottom_ + bytes_);
    cariama_suspend(&sp_);
    on_stack();
  }
  static void arrived() { on_stack(); }

 private:
  std::byte* bottom_ = nullptr;
  size_t bytes_ = 0;
  void* sp_ = nullptr;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SIMULATION_FIBER_H_
