#include "dsfabric/fabric/crash_report.h"

#include <execinfo.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>

#include "absl/debugging/symbolize.h"
#include "dtutils/internal/signal_safe_text.h"

namespace cariama::internal {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr int kMostFrames = 64;
constexpr int kMostNamed = 12;
constexpr size_t kLongestName = 200;

// The handler needs room for a signal frame, two texts, and the symbolizer.
constexpr size_t kHandlerStackBytes = 64 << 10;
// An overflow faults within one frame of the stack pointer. Frames are smaller than this.
constexpr uintptr_t kMostFrameBytes = 1 << 20;
// The number of times that a further crashing thread checks whether the first one has ended the
// process.
constexpr int kMostWaits = 1000;
constexpr timespec kWait{0, 10'000'000};

// Set once, before the handlers. The handler must not allocate.
char process_label[256];
std::atomic<bool> installed{false};
// The thread that prints the callers, or 0.
std::atomic<pid_t> reporter{0};

// Adds the functions of the stack below the handler. `at`: where the signal came, or nullptr.
void add_callers(SignalSafeText& text, const void* at) {
  void* frames[kMostFrames];
  const int count = backtrace(frames, kMostFrames);
  // The frames above the fault are the handler's and the kernel's trampoline.
  int first = 0;
  for (int i = 0; at != nullptr && i < count; ++i) {
    if (frames[i] == at) first = i;
  }
  if (first == 0) first = std::min(count, 3);
  int named = 0;
  for (int i = first; i < count && named < kMostNamed; ++i) {
    char name[kLongestName] = "";
    // A return address may lie behind a function that ends with a call.
    const char* const address = static_cast<const char*>(frames[i]) - (i == first ? 0 : 1);
    text.add(named == 0 ? " was in " : ", called from ");
    if (absl::Symbolize(address, name, sizeof name)) {
      text.add(name);
    } else {
      text.add_address(reinterpret_cast<uintptr_t>(frames[i]));
    }
    ++named;
    if (std::strcmp(name, "main") == 0) break;
  }
}

// The registers of the interrupted code. 0: not known on this processor.
struct Interrupted {
  uintptr_t instruction = 0;
  uintptr_t stack_pointer = 0;
};
[[nodiscard]] Interrupted interrupted_at(const void* context) {
  [[maybe_unused]] const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return {static_cast<uintptr_t>(machine.gregs[REG_RIP]),
          static_cast<uintptr_t>(machine.gregs[REG_RSP])};
#elif defined(__aarch64__)
  return {machine.pc, machine.sp};
#else
  return {};
#endif
}

// True if si_addr is an address that the program accessed. (A general protection fault, for example
// by a non-canonical address, has the code SI_KERNEL and no address.)
[[nodiscard]] bool has_address(int signal, int code) {
  return signal == SIGBUS ? code > 0 && code != SI_KERNEL
                          : signal == SIGSEGV && (code == SEGV_MAPERR || code == SEGV_ACCERR);
}

// Ends the process by `signal`, at the latest when the handler returns.
void die(int signal) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  ::raise(signal);
}

void on_crash(int signal, siginfo_t* info, void* context) {
  const auto self = static_cast<pid_t>(syscall(SYS_gettid));
  pid_t first = 0;
  if (!reporter.compare_exchange_strong(first, self) && first == self) {
    return die(signal);  // a fault in this handler
  }
  const Interrupted at = interrupted_at(context);
  SignalSafeText line;
  line.add("cariama: ").add(process_label).add(" dies of signal ");
  line.add_decimal(static_cast<uint64_t>(signal)).add(" (").add(sigdescr_np(signal)).add(")");
  if (has_address(signal, info->si_code)) {
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    line.add(" at address ").add_address(address);
    const uintptr_t below = at.stack_pointer - kMostFrameBytes;
    if (at.stack_pointer != 0 && address - below < 2 * kMostFrameBytes) {
      line.add(" (stack overflow?)");
    }
  }
  // Print the line now, so that it is complete if the search for the callers does not end.
  line.add("\n").print();
  if (first != 0) {
    for (int i = 0; i < kMostWaits; ++i) nanosleep(&kWait, nullptr);
    return die(signal);
  }
  SignalSafeText callers;
  callers.add("cariama: ").add(process_label);
  add_callers(callers, reinterpret_cast<const void*>(at.instruction));
  callers.add("\n").print();
  die(signal);
}

// True if an allocation of this thread has failed.
thread_local bool allocation_failed = false;

[[noreturn]] void on_failed_allocation() {
  allocation_failed = true;
  throw std::bad_alloc();  // as without a handler
}

// Returns true if std::terminate() was called because of a std::bad_alloc.
[[nodiscard]] bool terminated_by_allocation() {
  if (std::current_exception() == nullptr) {
    // An exception that leaves a noexcept function cannot be inspected.
    return std::uncaught_exceptions() > 0 && allocation_failed;
  }
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return true;
  } catch (...) {
    return false;
  }
}

// Service threads and destructors allocate memory, and have no caller to which they could report a
// failed allocation.
[[noreturn]] void on_terminate() {
  if (terminated_by_allocation()) {
    SignalSafeText line;
    line.add("cariama: ").add(process_label).add(" cannot allocate memory (std::bad_alloc): ");
    line.add("raise ulimit -v or -d, or the memory limit of the container\n").print();
    SignalSafeText callers;
    callers.add("cariama: ").add(process_label);
    add_callers(callers, nullptr);
    callers.add("\n").print();
    _exit(1);
  }
  __gnu_cxx::__verbose_terminate_handler();
  std::abort();
}

// The stack on which the handler runs in a thread. The thread's own stack may be used up.
class HandlerStack {
 public:
  HandlerStack() {
    stack_t present{};
    // A thread may have a stack of this kind already, for example from a sanitizer.
    if (sigaltstack(nullptr, &present) != 0 || (present.ss_flags & SS_DISABLE) == 0) return;
    void* const memory = mmap(nullptr, kHandlerStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) return;
    memory_ = memory;
    const stack_t own{memory, 0, kHandlerStackBytes};
    sigaltstack(&own, nullptr);
  }
  ~HandlerStack() {
    if (memory_ == nullptr) return;
    stack_t present{};
    if (sigaltstack(nullptr, &present) == 0 && present.ss_sp == memory_) {
      const stack_t none{nullptr, SS_DISABLE, 0};
      sigaltstack(&none, nullptr);
    }
    munmap(memory_, kHandlerStackBytes);
  }
  HandlerStack(const HandlerStack&) = delete;
  HandlerStack& operator=(const HandlerStack&) = delete;

 private:
  void* memory_ = nullptr;  // nullptr: the thread has no stack from here
};

}  // namespace

void report_crashes(std::string_view label) {
  static std::atomic<bool> done{false};
  const char* const wanted = std::getenv("CARIAMA_CRASH_REPORT");
  if ((wanted != nullptr && std::strcmp(wanted, "0") == 0) || done.exchange(true)) return;
  label = label.substr(0, sizeof process_label - 1);
  std::copy(label.begin(), label.end(), process_label);
  // backtrace() and Symbolize() load libraries and allocate memory at their first use, which a
  // signal handler must not do. So use them once here.
  absl::InitializeSymbolizer("/proc/self/exe");
  void* frame = nullptr;
  static_cast<void>(backtrace(&frame, 1));
  char name[8];
  static_cast<void>(
      absl::Symbolize(reinterpret_cast<const void*>(&report_crashes), name, sizeof name));
  for (const int signal : kSignals) {
    struct sigaction before {};
    if (sigaction(signal, nullptr, &before) != 0 || (before.sa_flags & SA_SIGINFO) != 0 ||
        before.sa_handler != SIG_DFL) {
      continue;
    }
    struct sigaction action {};
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(signal, &action, nullptr);
  }
  if (std::get_terminate() == &__gnu_cxx::__verbose_terminate_handler) {
    std::set_terminate(on_terminate);
    if (std::get_new_handler() == nullptr) std::set_new_handler(on_failed_allocation);
  }
  installed.store(true, std::memory_order_release);
  report_overflows_of_this_thread();
}

void report_overflows_of_this_thread() {
  if (!installed.load(std::memory_order_acquire)) return;
  thread_local const HandlerStack stack;
  static_cast<void>(stack);
}

}  // namespace cariama::internal
