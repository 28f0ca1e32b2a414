// A library for LD_PRELOAD that makes the n-th call of one function of the C library fail, in one
// process of a job. It counts from the program's call of fail_nth_call_start() on.
//
//   FAIL_NTH_CALL=mmap:3      the function, and n
//   FAIL_NTH_CALL_IN=1        the value of CARIAMA_RANK; "launcher": the process without a rank
//   FAIL_NTH_CALL_LOG=FILE    gets a line for the call that failed, and its callers
//
// The failing function sets the errno that the kernel reports if a limit or memory is exhausted.
//
// A program may call fail_nth_new_here() instead: then operator new fails in the calling thread.
#undef _FORTIFY_SOURCE  // with it the headers define recv() and poll(), too
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
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#define FAIL_NTH_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Set by fail_nth_call_start(), before `counting`.
char chosen[32];
long chosen_number = 0;
char log_file[256];
std::atomic<bool> counting{false};
std::atomic<long> calls{0};
// True while this library calls backtrace(), which may call the functions below.
thread_local bool busy = false;

// A run makes thousands of allocations. They count once for each path of calls that leads to them:
// for each combination of the caller and its caller. (Two frames are those of this library.)
constexpr int kPathFrames = 5;
constexpr size_t kMostPaths = size_t{1} << 16;
std::atomic<uint64_t> paths[kMostPaths];  // hashes; 0: free

void log_call() {
  busy = true;
  const int log = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  void* callers[24];
  const int count = backtrace(callers, 24);
  dprintf(log, "%s %ld failed in\n", chosen, chosen_number);
  backtrace_symbols_fd(callers, count, log);
  close(log);
  busy = false;
}

// Allocations of this thread up to the one that fails; 0: none fails.
thread_local long allocations_left = 0;

// Returns true if the n-th call of the chosen function is this one.
bool fails(const char* function) {
  if (!counting.load(std::memory_order_acquire) || busy) return false;
  if (std::strcmp(function, chosen) != 0) return false;
  if (calls.fetch_add(1) + 1 != chosen_number) return false;
  log_call();
  return true;
}

// Returns true if no earlier call of the process had the same innermost callers.
bool is_new_path() {
  busy = true;
  void* callers[kPathFrames];
  const int count = backtrace(callers, kPathFrames);
  busy = false;
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (int i = 0; i < count; ++i) {
    hash = (hash ^ reinterpret_cast<uintptr_t>(callers[i])) * 1099511628211U;
  }
  for (size_t i = hash;; ++i) {
    uint64_t before = 0;
    if (paths[i % kMostPaths].compare_exchange_strong(before, hash)) return true;
    if (before == hash) return false;
  }
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

// The n-th allocation of the calling thread from now on fails; with 0 none fails. Returns true if
// the allocation of the last call has not come.
FAIL_NTH_EXPORT bool fail_nth_new_here(long n) {
  const bool left = allocations_left != 0;
  allocations_left = n;
  return left;
}

// ---- System calls -------------------------------------------------------------------------------

// Defines the function, which fails with `error` and returns `value`, or calls the original.
#define FAIL_NTH(result, function, value, error, parameters, arguments)                          \
  FAIL_NTH_EXPORT result function parameters {                                                   \
    static const auto original = next_of(static_cast<result(*) parameters>(nullptr), #function); \
    if (fails(#function)) {                                                                      \
      errno = error;                                                                             \
      return value;                                                                              \
    }                                                                                            \
    return original arguments;                                                                   \
  }

FAIL_NTH(void*, mmap, MAP_FAILED, ENOMEM,
         (void* address, size_t bytes, int access, int flags, int file, off_t offset),
         (address, bytes, access, flags, file, offset))
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

// operator new fails, and malloc() does not: libraries that others have written (libcrypto, hwloc)
// crash if their own allocations fail. Sanitizers define the operators in the program, so they do
// not come here.

namespace {
void* allocate(size_t bytes, size_t alignment) {
  if (allocations_left != 0 && --allocations_left == 0) return nullptr;
  const bool counts = counting.load(std::memory_order_acquire) && !busy &&
                      std::strcmp(chosen, "new") == 0 && is_new_path();
  if (counts && fails("new")) return nullptr;
  return alignment == 0 ? std::malloc(bytes) : std::aligned_alloc(alignment, bytes);
}
void* allocate_or_throw(size_t bytes, size_t alignment) {
  void* const memory = allocate(bytes == 0 ? 1 : bytes, alignment);
  if (memory != nullptr) return memory;
  if (const std::new_handler handler = std::get_new_handler(); handler != nullptr) handler();
  throw std::bad_alloc();
}
size_t rounded(size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<size_t>(alignment);
  return (bytes + unit - 1) / unit * unit;
}
}  // namespace

#define FAIL_NTH_NEW __attribute__((visibility("default")))
FAIL_NTH_NEW void* operator new(size_t bytes) { return allocate_or_throw(bytes, 0); }
FAIL_NTH_NEW void* operator new[](size_t bytes) { return allocate_or_throw(bytes, 0); }
FAIL_NTH_NEW void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(rounded(bytes, alignment), static_cast<size_t>(alignment));
}
FAIL_NTH_NEW void* operator new[](size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(rounded(bytes, alignment), static_cast<size_t>(alignment));
}
FAIL_NTH_NEW void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes == 0 ? 1 : bytes, 0);
}
FAIL_NTH_NEW void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes == 0 ? 1 : bytes, 0);
}
