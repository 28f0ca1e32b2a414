// A library for LD_PRELOAD that makes the n-th call of one function of the C library fail, in one
// process of a job. It counts from the program's call of fail_nth_call_start() on.
//
//   FAIL_NTH_CALL=mmap:3      the function, and n
//   FAIL_NTH_CALL_IN=1        the value of CARIAMA_RANK; "launcher": the process without a rank
//   FAIL_NTH_CALL_LOG=FILE    gets a line for the call that failed, and its callers
//
// The failing function sets the errno that the kernel reports if a limit or memory is exhausted.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define FAIL_NTH_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Set by fail_nth_call_start(), before `counting`.
char chosen[32];
long chosen_number = 0;
char log_file[256];
std::atomic<bool> counting{false};
std::atomic<long> calls{0};
// backtrace() may call the functions of this library.
thread_local bool logging = false;

void log_call() {
  logging = true;
  const int log = static_cast<int>(syscall(SYS_openat, AT_FDCWD, log_file,
                                           O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  void* callers[24];
  const int count = backtrace(callers, 24);
  dprintf(log, "%s %ld failed in\n", chosen, chosen_number);
  backtrace_symbols_fd(callers, count, log);
  close(log);
  logging = false;
}

// Returns true if the n-th call of the chosen function is this one.
bool fails(const char* function) {
  if (!counting.load(std::memory_order_acquire) || logging) return false;
  if (std::strcmp(function, chosen) != 0) return false;
  if (calls.fetch_add(1) + 1 != chosen_number) return false;
  log_call();
  return true;
}

// Returns the function of the C library, or of a sanitizer, that `function` replaces.
template <typename F>
F next_of(F, const char* function) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, function));
}

}  // namespace

FAIL_NTH_EXPORT void fail_nth_call_start() {
  const char* const what = std::getenv("FAIL_NTH_CALL");
  const char* const where = std::getenv("FAIL_NTH_CALL_IN");
  const char* const log = std::getenv("FAIL_NTH_CALL_LOG");
  if (what == nullptr || where == nullptr || log == nullptr) return;
  const char* const rank = std::getenv("CARIAMA_RANK");
  if (std::strcmp(rank == nullptr ? "launcher" : rank, where) != 0) return;
  const char* const colon = std::strchr(what, ':');
  const auto length = static_cast<size_t>(colon - what);
  if (colon == nullptr || length >= sizeof chosen || std::strlen(log) >= sizeof log_file) return;
  std::memcpy(chosen, what, length);
  chosen_number = std::atol(colon + 1);
  std::strcpy(log_file, log);
  void* frame = nullptr;
  static_cast<void>(backtrace(&frame, 1));  // loads a library at its first use
  counting.store(true, std::memory_order_release);
}

// ---- System calls -------------------------------------------------------------------------------

// Defines FUNCTION(PARAMETERS), which fails with `error` and returns `value`, or calls the original.
#define FAIL_NTH(result, function, value, error, parameters, arguments)            \
  FAIL_NTH_EXPORT result function parameters {                                     \
    static const auto original = next_of(static_cast<result(*) parameters>(nullptr), #function); \
    if (fails(#function)) {                                                        \
      errno = error;                                                               \
      return value;                                                                \
    }                                                                              \
    return original arguments;                                                     \
  }

FAIL_NTH(void*, mmap, MAP_FAILED, ENOMEM,
         (void* address, size_t bytes, int access, int flags, int file, off_t offset),
         (address, bytes, access, flags, file, offset))
FAIL_NTH(int, mprotect, -1, ENOMEM, (void* address, size_t bytes, int access),
         (address, bytes, access))
FAIL_NTH(int, memfd_create, -1, EMFILE, (const char* name, unsigned flags), (name, flags))
FAIL_NTH(int, ftruncate, -1, ENOSPC, (int file, off_t bytes), (file, bytes))
FAIL_NTH(int, socket, -1, EMFILE, (int domain, int type, int protocol), (domain, type, protocol))
FAIL_NTH(int, socketpair, -1, EMFILE, (int domain, int type, int protocol, int* ends),
         (domain, type, protocol, ends))
FAIL_NTH(int, bind, -1, ENOMEM, (int socket, const sockaddr* address, socklen_t bytes),
         (socket, address, bytes))
FAIL_NTH(int, listen, -1, ENOBUFS, (int socket, int backlog), (socket, backlog))
FAIL_NTH(int, accept4, -1, EMFILE, (int socket, sockaddr* address, socklen_t* bytes, int flags),
         (socket, address, bytes, flags))
FAIL_NTH(int, connect, -1, ENOMEM, (int socket, const sockaddr* address, socklen_t bytes),
         (socket, address, bytes))
FAIL_NTH(ssize_t, sendmsg, -1, ENOBUFS, (int socket, const msghdr* message, int flags),
         (socket, message, flags))
FAIL_NTH(ssize_t, recvmsg, -1, ENOMEM, (int socket, msghdr* message, int flags),
         (socket, message, flags))
FAIL_NTH(ssize_t, send, -1, ENOBUFS, (int socket, const void* data, size_t bytes, int flags),
         (socket, data, bytes, flags))
FAIL_NTH(ssize_t, recv, -1, ENOMEM, (int socket, void* data, size_t bytes, int flags),
         (socket, data, bytes, flags))
FAIL_NTH(int, poll, -1, ENOMEM, (pollfd * files, nfds_t count, int timeout),
         (files, count, timeout))
FAIL_NTH(int, ppoll, -1, ENOMEM,
         (pollfd * files, nfds_t count, const timespec* timeout, const sigset_t* mask),
         (files, count, timeout, mask))
FAIL_NTH(int, epoll_create1, -1, EMFILE, (int flags), (flags))
FAIL_NTH(int, epoll_ctl, -1, ENOMEM, (int epoll, int operation, int file, epoll_event* event),
         (epoll, operation, file, event))
FAIL_NTH(int, epoll_wait, -1, EINTR, (int epoll, epoll_event* events, int most, int timeout),
         (epoll, events, most, timeout))
FAIL_NTH(int, pipe2, -1, EMFILE, (int* ends, int flags), (ends, flags))
FAIL_NTH(int, eventfd, -1, EMFILE, (unsigned value, int flags), (value, flags))
FAIL_NTH(int, signalfd, -1, EMFILE, (int file, const sigset_t* mask, int flags),
         (file, mask, flags))
FAIL_NTH(pid_t, fork, -1, EAGAIN, (), ())
FAIL_NTH(int, pthread_create, EAGAIN, EAGAIN,
         (pthread_t * thread, const pthread_attr_t* attributes, void* (*body)(void*), void* value),
         (thread, attributes, body, value))

// O_CREAT is the only flag here with a third argument.
FAIL_NTH_EXPORT int open(const char* path, int flags, ...) {
  static const auto original =
      next_of(static_cast<int (*)(const char*, int, ...)>(nullptr), "open");
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  if (fails("open")) {
    errno = EMFILE;
    return -1;
  }
  return original(path, flags, mode);
}

// ---- Memory -------------------------------------------------------------------------------------

// Sanitizers define these functions in the program, and do not call them here.
#if !defined(FAIL_NTH_NO_MALLOC)
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {
bool allocation_fails() {
  if (!fails("malloc")) return false;
  errno = ENOMEM;
  return true;
}
}  // namespace

FAIL_NTH_EXPORT void* malloc(size_t bytes) {
  return allocation_fails() ? nullptr : __libc_malloc(bytes);
}
FAIL_NTH_EXPORT void* calloc(size_t count, size_t bytes) {
  return allocation_fails() ? nullptr : __libc_calloc(count, bytes);
}
FAIL_NTH_EXPORT void* realloc(void* memory, size_t bytes) {
  return allocation_fails() ? nullptr : __libc_realloc(memory, bytes);
}
FAIL_NTH_EXPORT void* aligned_alloc(size_t alignment, size_t bytes) {
  return allocation_fails() ? nullptr : __libc_memalign(alignment, bytes);
}
FAIL_NTH_EXPORT int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  if (allocation_fails()) return ENOMEM;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
#endif
