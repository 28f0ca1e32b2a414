// Fiber: a separate stack for each simulated worker. The simulation can leave the real, blocking
// code of the protocols in the middle of an operation, and continue it when the operation is
// complete.
#ifndef CARIAMA_TASKS_INTERNAL_SIMULATION_FIBER_H_
#define CARIAMA_TASKS_INTERNAL_SIMULATION_FIBER_H_

#include <cstddef>

#include "tasks/context.h"
#include "tasks/internal/sanitizer.h"

namespace cariama::tasks {

class Fiber {
 public:
  // Prepares the fiber. The first resume() calls entry(argument), which must call arrived() first
  // and must not return. The stack [bottom, bottom + bytes) belongs to the caller. It is never
  // unwound, so its frames must not own resources across a suspend().
  void start(std::byte* bottom, size_t bytes, void (*entry)(void*), void* argument) {
    bottom_ = bottom;
    bytes_ = bytes;
    sp_ = make_context(bottom + bytes - kStackEndBytes, entry, argument);
  }
  // Runs the fiber until it suspends itself.
  void resume() {
    before_run(bottom_, bytes_);
    cariama_run(sp_, 0);
    after_run();
  }
  // Called by the fiber: switches back to the caller of resume().
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
