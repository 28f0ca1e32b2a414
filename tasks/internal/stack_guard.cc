#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "dtutils/internal/signal_safe_text.h"
#include "tasks/context.h"
#include "tasks/internal/stack_region.h"

namespace cariama::tasks {
namespace {

// The data of the signal handler. Plain data, because the handler may run at any instruction.
struct Guarded {
  uintptr_t begin;
  uintptr_t end;
  uintptr_t region_end;  // of the stacks of tasks, which begin at `end`
  size_t stack_bytes;
  const char* where;
  const char* option;
  // The range that watch() got: stacks of stack_bytes each. The first page of each is its guard.
  uintptr_t stacks_begin;
  uintptr_t stacks_end;
  const uint64_t* entries;
  struct sigaction previous_segv;
  struct sigaction previous_bus;
  struct sigaction previous_abort;
  stack_t previous_stack;
  void* own_stack;
  bool advised;
};
Guarded guarded;

constexpr size_t kHandlerStack = 64 << 10;

// Returns the stack pointer of the interrupted code.
uintptr_t stack_pointer_of(const void* context) {
  const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<uintptr_t>(machine.gregs[REG_RSP]);
#else
  return machine.sp;
#endif
}

// Prints once that a fault was in a task, and which options find its most frequent causes.
void advise(int signal) {
  if (guarded.advised) return;
  guarded.advised = true;
  SignalSafeText line;
  line.add("cariama tasks: signal ").add_decimal(static_cast<uint64_t>(signal)).add(" in a task: ");
  if (signal == SIGABRT) line.add("if the heap is corrupt, or malloc has refused a pointer: ");
  line.add("a frame that has moved to another process may contain a pointer that is ");
  line.add("not valid there: set TaskOptions::check_frames and check_closures, which name the ");
  line.add("function\n").print();
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool of_memory = signal != SIGABRT;  // else si_addr is not set
  const bool below_one = address >= guarded.stacks_begin && address < guarded.stacks_end &&
                         (address - guarded.stacks_begin) % guarded.stack_bytes < kStackPage;
  if (of_memory && (below_one || (address >= guarded.begin && address < guarded.end))) {
    const auto depth = static_cast<uint64_t>(cariama_fork_state.top - guarded.entries);
    SignalSafeText line;
    line.add("cariama tasks: stack overflow: ").add_decimal(depth).add(" tasks deep, ");
    line.add_decimal(guarded.stack_bytes).add(" bytes of ").add(guarded.where);
    line.add(" are used up: raise ").add(guarded.option).add(", or use smaller frames\n").print();
    _exit(134);  // the exit code that a shell reports after abort()
  }
  const uintptr_t stack_pointer = stack_pointer_of(context);
  if (stack_pointer >= guarded.end && stack_pointer < guarded.region_end) advise(signal);
  const struct sigaction& previous = signal == SIGABRT  ? guarded.previous_abort
                                     : signal == SIGBUS ? guarded.previous_bus
                                                        : guarded.previous_segv;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    // Restore the previous action, which ends the process: when the handler returns, the
    // instruction faults again. A signal that a process has sent must be sent again.
    sigaction(signal, &previous, nullptr);
    if (info->si_code <= 0) raise(signal);
  }
}

}  // namespace

StackGuard::StackGuard(const StackRegion& region, const char* option, const uint64_t* entries) {
  guarded.end = reinterpret_cast<uintptr_t>(region.bottom());
  guarded.begin = guarded.end - kStackGuardBytes;
  guarded.region_end = guarded.end + region.stack_bytes();
  guarded.stack_bytes = region.stack_bytes();
  guarded.where = "the uni-address region";
  guarded.option = option;
  guarded.stacks_begin = guarded.stacks_end = 0;
  guarded.entries = entries;
  guarded.own_stack = std::malloc(kHandlerStack);
  if (guarded.own_stack == nullptr) std::abort();
  const stack_t stack{guarded.own_stack, 0, kHandlerStack};
  sigaltstack(&stack, &guarded.previous_stack);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &guarded.previous_segv);
  sigaction(SIGBUS, &action, &guarded.previous_bus);
  sigaction(SIGABRT, &action, &guarded.previous_abort);
}

void StackGuard::watch(std::span<const std::byte> stacks, size_t stack_bytes, const char* option) {
  guarded.stacks_begin = reinterpret_cast<uintptr_t>(stacks.data());
  guarded.stacks_end = guarded.stacks_begin + stacks.size();
  guarded.stack_bytes = stack_bytes;
  guarded.where = "the task's own stack";
  guarded.option = option;
}

StackGuard::~StackGuard() {
  sigaction(SIGSEGV, &guarded.previous_segv, nullptr);
  sigaction(SIGBUS, &guarded.previous_bus, nullptr);
  sigaction(SIGABRT, &guarded.previous_abort, nullptr);
  sigaltstack(&guarded.previous_stack, nullptr);
  std::free(guarded.own_stack);
}

}  // namespace cariama::tasks
