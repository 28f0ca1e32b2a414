#include "dtutils/internal/yield.h"

#include <sched.h>
#include <time.h>

#include <chrono>

namespace cariama::internal {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::microseconds kLong{250};
constexpr std::chrono::milliseconds kUntilNextYield{50};
// To which the kernel adds the timer slack of the thread, by default 50 us.
constexpr timespec kNap{.tv_sec = 0, .tv_nsec = 20'000};

thread_local steady_clock::time_point next_yield;

}  // namespace

void yield_core() {
  const auto start = steady_clock::now();
  if (start < next_yield) {
    nanosleep(&kNap, nullptr);
    return;
  }
  sched_yield();
  const auto end = steady_clock::now();
  if (end - start >= kLong) next_yield = end + kUntilNextYield;
}

bool yields_are_long() { return steady_clock::now() < next_yield; }

}  // namespace cariama::internal
