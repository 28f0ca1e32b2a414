#include "dsfabric/internal/crash_report.h"

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/debugging/symbolize.h"

namespace cariama::internal {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr int kMostFrames = 64;
constexpr int kMostNamed = 12;
constexpr size_t kLongestName = 200;

// Set once, before the handlers. The handler must not allocate.
char process_label[256];
std::atomic<bool> reporting{false};

// A text in a buffer on the stack, for a signal handler.
class Text {
 public:
  void add(const char* text) { add(text, std::strlen(text)); }
  void add(const char* text, size_t length) {
    length = std::min(length, sizeof bytes_ - used_);
    std::memcpy(bytes_ + used_, text, length);
    used_ += length;
  }
  void add_decimal(unsigned number) {
    char digits[12];
    char* at = digits + sizeof digits;
    do {
      *--at = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    add(at, static_cast<size_t>(digits + sizeof digits - at));
  }
  void add_address(uintptr_t address) {
    char digits[2 + 2 * sizeof address];
    char* at = digits + sizeof digits;
    do {
      *--at = "0123456789abcdef"[address % 16];
      address /= 16;
    } while (address != 0);
    *--at = 'x';
    *--at = '0';
    add(at, static_cast<size_t>(digits + sizeof digits - at));
  }
  void print() const {
    size_t printed = 0;
    while (printed < used_) {
      const ssize_t count = write(STDERR_FILENO, bytes_ + printed, used_ - printed);
      if (count <= 0) return;
      printed += static_cast<size_t>(count);
    }
  }

 private:
  char bytes_[4096];
  size_t used_ = 0;
};

// Adds the functions of the stack below the handler. `at`: where the signal came, or nullptr.
void add_callers(Text& text, const void* at) {
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
    text.add(named == 0 ? ", in\n  " : ", called from ");
    if (absl::Symbolize(address, name, sizeof name)) {
      text.add(name);
    } else {
      text.add_address(reinterpret_cast<uintptr_t>(frames[i]));
    }
    ++named;
    if (std::strcmp(name, "main") == 0) break;
  }
}

[[nodiscard]] const void* interrupted_at(const void* context) {
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(
      static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<const void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.pc);
#else
  static_cast<void>(context);
  return nullptr;
#endif
}

void on_crash(int signal, siginfo_t* info, void* context) {
  // One report: a second thread, or a fault in this handler, ends the process at once.
  if (!reporting.exchange(true)) {
    Text text;
    text.add("cariama: ");
    text.add(process_label);
    text.add(" dies of signal ");
    text.add_decimal(static_cast<unsigned>(signal));
    text.add(" (");
    text.add(sigdescr_np(signal));
    text.add(")");
    if (signal != SIGABRT && info->si_code > 0) {
      text.add(" at address ");
      text.add_address(reinterpret_cast<uintptr_t>(info->si_addr));
    }
    add_callers(text, interrupted_at(context));
    text.add("\n");
    text.print();
  }
  // The handler was reset when it was entered: the signal takes its default action.
  ::raise(signal);
}

}  // namespace

void report_crashes(std::string_view label) {
  static std::atomic<bool> done{false};
  const char* const wanted = std::getenv("CARIAMA_CRASH_REPORT");
  if ((wanted != nullptr && std::strcmp(wanted, "0") == 0) || done.exchange(true)) return;
  label = label.substr(0, sizeof process_label - 1);
  std::copy(label.begin(), label.end(), process_label);
  // Both load and allocate on first use, which a signal handler must not.
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
    action.sa_flags = static_cast<int>(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER);
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace cariama::internal
