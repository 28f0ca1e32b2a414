#undef _FORTIFY_SOURCE  // with it the headers define recv() and poll(), too
// The functions of the C library that the simulation replaces. A thread that does not belong to a
// simulation calls the originals.
#include <dlfcn.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/simulation/simulation_scheduler.h"

#define SIMULATED extern "C" __attribute__((visibility("default")))

namespace cariama::testing::simulation {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
// The clocks at the start of a simulation. Not 0: a time before it is not negative.
constexpr uint64_t kStart = 1000 * kSecond;
constexpr uint64_t kStartOfDay = 1'700'000'000 * kSecond;  // CLOCK_REALTIME
// CLOCK_REALTIME is set forward by this time in each second second, and back in the next one. A
// wait whose deadline is on this clock then ends at once, or a day late.
constexpr uint64_t kSetForward = 24 * 3600 * kSecond;

// Returns the function of the C library that `name` is without this file.
template <typename F>
F original(const char* name, const char* version = nullptr) {
  void* const found =
      version == nullptr ? dlsym(RTLD_NEXT, name) : dlvsym(RTLD_NEXT, name, version);
  if (found == nullptr) {
    std::fprintf(stderr, "simulation: no function %s\n", name);
    _exit(1);
  }
  return reinterpret_cast<F>(found);
}

uint64_t nanoseconds(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * kSecond + static_cast<uint64_t>(time.tv_nsec);
}

timespec as_timespec(uint64_t time) {
  return {static_cast<time_t>(time / kSecond), static_cast<long>(time % kSecond)};
}

uint64_t start_of(clockid_t clock) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return kStart;
  return kStartOfDay + (world->now / kSecond % 2 == 1 ? kSetForward : 0);
}

// The virtual time at which `clock` shows `time`.
uint64_t time_of(clockid_t clock, const timespec& time) {
  const uint64_t shown = nanoseconds(time);
  return shown <= start_of(clock) ? 0 : shown - start_of(clock);
}

int note_descriptor(int descriptor) {
  if (self != nullptr && descriptor >= 0) world->descriptors[descriptor] = self->process;
  return descriptor;
}

// Called after each operation on a descriptor: others may be ready now.
template <typename T>
T changed(T result) {
  if (self == nullptr) return result;
  const int error = errno;
  if (result >= 0 || (error != EAGAIN && error != EWOULDBLOCK)) ++world->changes;
  point();
  errno = error;
  return result;
}

// ---- Mutexes and condition variables ------------------------------------------------------------

int lock_original(pthread_mutex_t* mutex) {
  static const auto next = original<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  return next(mutex);
}
int try_original(pthread_mutex_t* mutex) {
  static const auto next = original<int (*)(pthread_mutex_t*)>("pthread_mutex_trylock");
  return next(mutex);
}
int unlock_original(pthread_mutex_t* mutex) {
  static const auto next = original<int (*)(pthread_mutex_t*)>("pthread_mutex_unlock");
  return next(mutex);
}

// Returns EBUSY if the deadline came first.
int lock(pthread_mutex_t* mutex, uint64_t deadline) {
  int result = 0;
  while ((result = try_original(mutex)) == EBUSY) {
    if (world->now >= deadline) return EBUSY;
    self->locks = true;
    block("pthread_mutex_lock", mutex, deadline);
    self->locks = false;
  }
  if (result == 0) ++self->mutexes;
  return result;
}

void unlock(pthread_mutex_t* mutex) {
  static_cast<void>(unlock_original(mutex));
  --self->mutexes;
  wake(mutex, INT_MAX);
}

int wait(pthread_cond_t* condition, pthread_mutex_t* mutex, uint64_t deadline) {
  unlock(mutex);
  const bool woken = block("pthread_cond_wait", condition, deadline);
  const int locked = lock(mutex, kNever);
  if (locked != 0) return locked;
  return woken ? 0 : ETIMEDOUT;
}

// ---- Threads ------------------------------------------------------------------------------------

void* begin_thread(void* argument) {
  Thread& me = *static_cast<Thread*>(argument);
  wait_for_turn(me);
  self = &me;
  pthread_setspecific(end_key, &me);
  return me.body(me.argument);
}

int create_original(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                    void* argument) {
  static const auto next =
      original<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>(
          "pthread_create");
  return next(thread, attributes, body, argument);
}

// ---- Waiting ------------------------------------------------------------------------------------

int poll_original(pollfd* entries, nfds_t count, int timeout) {
  static const auto next = original<int (*)(pollfd*, nfds_t, int)>("poll");
  return next(entries, count, timeout);
}

int poll_until(pollfd* entries, nfds_t count, uint64_t deadline) {
  point();
  while (true) {
    const int ready = poll_original(entries, count, 0);
    if (ready != 0 || world->now >= deadline) return ready;
    block("poll", nullptr, deadline, true);
  }
}

long futex(uint32_t* word, int operation, uint32_t value, const timespec* timeout) {
  switch (operation & FUTEX_CMD_MASK) {
    case FUTEX_WAIT:
    case FUTEX_WAIT_BITSET: {
      point();
      if (std::atomic_ref<uint32_t>(*word).load() != value) {
        errno = EAGAIN;
        return -1;
      }
      uint64_t deadline = kNever;
      if (timeout != nullptr) {
        const bool relative = (operation & FUTEX_CMD_MASK) == FUTEX_WAIT;
        const clockid_t clock =
            (operation & FUTEX_CLOCK_REALTIME) != 0 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
        deadline = relative ? world->now + nanoseconds(*timeout) : time_of(clock, *timeout);
      }
      if (block("futex", word, deadline)) return 0;
      errno = ETIMEDOUT;
      return -1;
    }
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET: {
      const int count = wake(word, static_cast<int>(value));
      point();
      return count;
    }
    default:
      give_up(1, "a futex operation that is not simulated");
  }
}

int sleep_for(uint64_t time) {
  const uint64_t deadline = world->now + time;
  while (world->now < deadline) block("sleep", nullptr, deadline);
  return 0;
}

}  // namespace

long system_call(long number, long a, long b, long c, long d, long e, long f) {
  static const auto next = original<long (*)(long, long, long, long, long, long, long)>("syscall");
  return next(number, a, b, c, d, e, f);
}

}  // namespace cariama::testing::simulation

// ---- The functions of the C library ------------------------------------------------------------

using namespace cariama::testing::simulation;  // NOLINT(google-build-using-namespace)

SIMULATED int pthread_create(pthread_t* handle, const pthread_attr_t* attributes,
                             void* (*body)(void*), void* argument) {
  if (self == nullptr) return create_original(handle, attributes, body, argument);
  auto thread = std::make_unique<Thread>();
  thread->number = static_cast<uint32_t>(world->threads.size());
  thread->process = world->process_of_next != UINT32_MAX
                        ? std::exchange(world->process_of_next, UINT32_MAX)
                        : self->process;
  static_cast<void>(world->process(thread->process));
  thread->body = body;
  thread->argument = argument;
  if (const int error = create_original(handle, attributes, &begin_thread, thread.get());
      error != 0) {
    return error;
  }
  thread->handle = *handle;
  world->threads.push_back(std::move(thread));
  point();
  return 0;
}

SIMULATED int pthread_join(pthread_t handle, void** result) {
  static const auto next = original<int (*)(pthread_t, void**)>("pthread_join");
  if (self != nullptr) {
    for (const auto& thread : world->threads) {
      if (thread->number == 0 || pthread_equal(thread->handle, handle) == 0) continue;
      Thread* const other = thread.get();
      while (other->state != Thread::State::kEnded) block("pthread_join", other, kNever);
      other->handle = pthread_t{};  // may be the handle of a later thread
      break;
    }
  }
  return next(handle, result);
}

SIMULATED int pthread_once(pthread_once_t* once, void (*function)()) {
  static const auto next = original<int (*)(pthread_once_t*, void (*)())>("pthread_once");
  Thread* const me = std::exchange(self, nullptr);  // no other thread runs meanwhile
  const int result = next(once, function);
  self = me;
  return result;
}

SIMULATED int pthread_mutex_lock(pthread_mutex_t* mutex) {
  if (self == nullptr) return lock_original(mutex);
  point();
  return lock(mutex, kNever);
}

SIMULATED int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                                      const timespec* time) {
  static const auto next =
      original<int (*)(pthread_mutex_t*, clockid_t, const timespec*)>("pthread_mutex_clocklock");
  if (self == nullptr) return next(mutex, clock, time);
  const int result = lock(mutex, time_of(clock, *time));
  return result == EBUSY ? ETIMEDOUT : result;
}

SIMULATED int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* time) {
  static const auto next =
      original<int (*)(pthread_mutex_t*, const timespec*)>("pthread_mutex_timedlock");
  if (self == nullptr) return next(mutex, time);
  return pthread_mutex_clocklock(mutex, CLOCK_REALTIME, time);
}

SIMULATED int pthread_mutex_trylock(pthread_mutex_t* mutex) {
  const int result = try_original(mutex);
  if (self != nullptr && result == 0) ++self->mutexes;
  return result;
}

SIMULATED int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  if (self == nullptr) return unlock_original(mutex);
  unlock(mutex);
  point();
  return 0;
}

SIMULATED int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static const auto next =
      original<int (*)(pthread_cond_t*, pthread_mutex_t*)>("pthread_cond_wait", "GLIBC_2.3.2");
  if (self == nullptr) return next(condition, mutex);
  return wait(condition, mutex, kNever);
}

SIMULATED int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                     clockid_t clock, const timespec* time) {
  static const auto next =
      original<int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
          "pthread_cond_clockwait");
  if (self == nullptr) return next(condition, mutex, clock, time);
  return wait(condition, mutex, time_of(clock, *time));
}

SIMULATED int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                     const timespec* time) {
  static const auto next = original<int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*)>(
      "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (self == nullptr) return next(condition, mutex, time);
  return wait(condition, mutex, time_of(CLOCK_REALTIME, *time));
}

SIMULATED int pthread_cond_signal(pthread_cond_t* condition) {
  static const auto next = original<int (*)(pthread_cond_t*)>("pthread_cond_signal", "GLIBC_2.3.2");
  if (self == nullptr) return next(condition);
  wake(condition, 1);
  point();
  return 0;
}

SIMULATED int pthread_cond_broadcast(pthread_cond_t* condition) {
  static const auto next =
      original<int (*)(pthread_cond_t*)>("pthread_cond_broadcast", "GLIBC_2.3.2");
  if (self == nullptr) return next(condition);
  wake(condition, INT_MAX);
  point();
  return 0;
}

// ---- Time and chance

SIMULATED int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (self == nullptr) {
    return static_cast<int>(system_call(SYS_clock_gettime, clock, reinterpret_cast<long>(time)));
  }
  world->now += 20;
  *time = as_timespec(start_of(clock) + world->now);
  return 0;
}

SIMULATED int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  static const auto next =
      original<int (*)(clockid_t, int, const timespec*, timespec*)>("clock_nanosleep");
  if (self == nullptr) return next(clock, flags, time, left);
  if ((flags & TIMER_ABSTIME) == 0) return sleep_for(nanoseconds(*time));
  const uint64_t until = time_of(clock, *time);
  return until > world->now ? sleep_for(until - world->now) : 0;
}

SIMULATED int nanosleep(const timespec* time, timespec* left) {
  static const auto next = original<int (*)(const timespec*, timespec*)>("nanosleep");
  if (self == nullptr) return next(time, left);
  return sleep_for(nanoseconds(*time));
}

SIMULATED int sched_yield() noexcept {
  if (self == nullptr) return static_cast<int>(system_call(SYS_sched_yield));
  point(true);
  return 0;
}

SIMULATED ssize_t getrandom(void* bytes, size_t count, unsigned flags) {
  if (self == nullptr) {
    return system_call(SYS_getrandom, reinterpret_cast<long>(bytes), static_cast<long>(count),
                       flags);
  }
  for (size_t i = 0; i < count; ++i) {
    static_cast<unsigned char*>(bytes)[i] = static_cast<unsigned char>(world->draw());
  }
  return static_cast<ssize_t>(count);
}

// std::random_device::operator()().
extern "C" __attribute__((visibility("default"))) unsigned draw_random(void*) asm(
    "_ZNSt13random_device9_M_getvalEv");
unsigned draw_random(void*) {
  unsigned value = 0;
  getrandom(&value, sizeof value, 0);
  return value;
}

// ---- Descriptors

SIMULATED int poll(pollfd* entries, nfds_t count, int timeout) {
  if (self == nullptr) return poll_original(entries, count, timeout);
  return poll_until(entries, count,
                    timeout < 0 ? kNever : world->now + static_cast<uint64_t>(timeout) * 1'000'000);
}

SIMULATED int socket(int domain, int type, int protocol) noexcept {
  static const auto next = original<int (*)(int, int, int)>("socket");
  return note_descriptor(next(domain, type, protocol));
}

SIMULATED int socketpair(int domain, int type, int protocol, int* ends) noexcept {
  static const auto next = original<int (*)(int, int, int, int*)>("socketpair");
  const int result = next(domain, type, protocol, ends);
  if (result == 0) {
    note_descriptor(ends[0]);
    note_descriptor(ends[1]);
  }
  return result;
}

SIMULATED int eventfd(unsigned value, int flags) noexcept {
  static const auto next = original<int (*)(unsigned, int)>("eventfd");
  return note_descriptor(next(value, flags));
}

SIMULATED int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  static const auto next = original<int (*)(int, sockaddr*, socklen_t*, int)>("accept4");
  return changed(note_descriptor(next(listener, address, length, flags)));
}

// The name of a local socket is random. A simulation of the same seed that runs beside this one
// draws the same name.
struct OwnName {
  OwnName(const sockaddr* of, socklen_t bytes) : length(bytes) {
    std::memcpy(&address, of, bytes);
    if (self == nullptr || of->sa_family != AF_UNIX) return;
    const pid_t process = getpid();
    std::memcpy(reinterpret_cast<char*>(&address) + length, &process, sizeof process);
    length += sizeof process;
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_storage address{};
  socklen_t length;
};

SIMULATED int bind(int descriptor, const sockaddr* address, socklen_t length) noexcept {
  static const auto next = original<int (*)(int, const sockaddr*, socklen_t)>("bind");
  const OwnName own(address, length);
  return next(descriptor, own.get(), own.length);
}

SIMULATED int connect(int descriptor, const sockaddr* address, socklen_t length) {
  static const auto next = original<int (*)(int, const sockaddr*, socklen_t)>("connect");
  const OwnName own(address, length);
  return changed(next(descriptor, own.get(), own.length));
}

SIMULATED int shutdown(int descriptor, int how) noexcept {
  static const auto next = original<int (*)(int, int)>("shutdown");
  return changed(next(descriptor, how));
}

SIMULATED int close(int descriptor) {
  static const auto next = original<int (*)(int)>("close");
  if (self != nullptr) world->descriptors.erase(descriptor);
  return changed(next(descriptor));
}

SIMULATED ssize_t send(int descriptor, const void* bytes, size_t count, int flags) {
  static const auto next = original<ssize_t (*)(int, const void*, size_t, int)>("send");
  return changed(next(descriptor, bytes, count, flags));
}

SIMULATED ssize_t sendmsg(int descriptor, const msghdr* message, int flags) {
  static const auto next = original<ssize_t (*)(int, const msghdr*, int)>("sendmsg");
  return changed(next(descriptor, message, flags));
}

SIMULATED ssize_t recv(int descriptor, void* bytes, size_t count, int flags) {
  static const auto next = original<ssize_t (*)(int, void*, size_t, int)>("recv");
  return changed(next(descriptor, bytes, count, flags));
}

SIMULATED ssize_t recvmsg(int descriptor, msghdr* message, int flags) {
  static const auto next = original<ssize_t (*)(int, msghdr*, int)>("recvmsg");
  return changed(next(descriptor, message, flags));
}

SIMULATED ssize_t write(int descriptor, const void* bytes, size_t count) {
  static const auto next = original<ssize_t (*)(int, const void*, size_t)>("write");
  return changed(next(descriptor, bytes, count));
}

SIMULATED ssize_t read(int descriptor, void* bytes, size_t count) {
  static const auto next = original<ssize_t (*)(int, void*, size_t)>("read");
  return changed(next(descriptor, bytes, count));
}

// What the headers call instead with _FORTIFY_SOURCE.
SIMULATED int __poll_chk(pollfd* entries, nfds_t count, int timeout, size_t) {
  return poll(entries, count, timeout);
}
SIMULATED ssize_t __recv_chk(int descriptor, void* bytes, size_t count, size_t, int flags) {
  return recv(descriptor, bytes, count, flags);
}
SIMULATED ssize_t __read_chk(int descriptor, void* bytes, size_t count, size_t) {
  return read(descriptor, bytes, count);
}

SIMULATED long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && self != nullptr) {
    return futex(reinterpret_cast<uint32_t*>(arguments[0]), static_cast<int>(arguments[1]),
                 static_cast<uint32_t>(arguments[2]),
                 reinterpret_cast<const timespec*>(arguments[3]));
  }
  return system_call(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                     arguments[5]);
}
