// The futex system call, for words of one process and for words shared between processes.
#ifndef CARIAMA_DTUTILS_INTERNAL_FUTEX_H_
#define CARIAMA_DTUTILS_INTERNAL_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "dtutils/doorbell.h"

namespace cariama::internal {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Sleeps while *word == expected, until woken or until the deadline. Spurious returns are possible.
inline void futex_wait(const std::atomic<uint32_t>* word, uint32_t expected, Deadline deadline) {
  timespec until{};
  timespec* timeout = nullptr;
  if (deadline != kForever) {
    const auto since_epoch = deadline.time_since_epoch();  // steady_clock is CLOCK_MONOTONIC
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_epoch);
    until.tv_sec = seconds.count();
    until.tv_nsec = std::chrono::nanoseconds(since_epoch - seconds).count();
    timeout = &until;
  }
  // FUTEX_WAIT_BITSET takes an absolute time, so that a restart after a signal does not prolong it.
  syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, timeout, nullptr, FUTEX_BITSET_MATCH_ANY);
}

// Wakes up to `count` sleepers. The word is not read, so its memory may already be freed.
inline void futex_wake(const std::atomic<uint32_t>* word, int count = INT_MAX) {
  syscall(SYS_futex, word, FUTEX_WAKE, count, nullptr, nullptr, 0);
}

// Hints to the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_FUTEX_H_
