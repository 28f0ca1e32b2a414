#include "tests/simulation/simulation_threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "tests/simulation/simulation_scheduler.h"

namespace cariama::testing::simulation {

World* world = nullptr;
constinit thread_local Thread* self = nullptr;
pthread_key_t end_key;

void wait_for_turn(Thread& thread) {
  while (thread.turn.exchange(0, std::memory_order_acquire) == 0) {
    system_call(SYS_futex, reinterpret_cast<long>(&thread.turn), FUTEX_WAIT_PRIVATE, 0);
  }
  // The C library frees memory of the ended thread: if this thread allocated meanwhile, addresses
  // would depend on which of the two is faster.
  const long ending = std::exchange(world->ending, 0);
  while (ending != 0 && system_call(SYS_tgkill, system_call(SYS_getpid), ending, 0) == 0) {
    system_call(SYS_sched_yield);
  }
}

[[noreturn]] void give_up(int code, const char* why) {
  std::fprintf(stderr, "simulation: seed %lu, %.6f s: %s\n", world->options.seed,
               static_cast<double>(world->now) / 1e9, why);
  for (const auto& thread : world->threads) {
    if (thread->state == Thread::State::kEnded) continue;
    const Process& process = world->process(thread->process);
    std::fprintf(stderr, "  process %u thread %u: %s%s%s, holds %u mutexes\n", thread->process,
                 thread->number, thread->state == Thread::State::kReady ? "runs" : "waits in ",
                 thread->state == Thread::State::kReady ? "" : thread->blocked_in,
                 process.dead ? " (dead)" : "", thread->mutexes);
    for (const auto& other : world->threads) {
      if (thread->waits_for != other.get()) continue;
      std::fprintf(stderr, "    for thread %u of process %u\n", other->number, other->process);
    }
  }
  std::fflush(nullptr);
  system_call(SYS_exit_group, code);
  __builtin_unreachable();
}

namespace {

// The longest time that a thread stands still, in choices of the next thread.
constexpr uint64_t kLongestSlow = 1000;

void give_turn(Thread& thread) {
  thread.turn.store(1, std::memory_order_release);
  system_call(SYS_futex, reinterpret_cast<long>(&thread.turn), FUTEX_WAKE_PRIVATE, 1);
}

// Returns true if the thread may hold a mutex that the processes share, which they would not do in
// different memories. A thread that waits for something else than a mutex holds none of these.
bool holds_mutex(const Thread& thread) {
  const bool waits = thread.state == Thread::State::kBlocked && !thread.locks;
  return thread.mutexes != 0 && thread.state != Thread::State::kEnded && !waits;
}

// A thread that holds a mutex continues although its process is stopped, or is about to die.
bool is_suspended(const Thread& thread) {
  const Process& process = world->process(thread.process);
  if (process.dead) return true;
  return !holds_mutex(thread) && (process.dying || world->now < process.stopped_until);
}

bool can_run(const Thread& thread) {
  if (thread.state == Thread::State::kEnded || is_suspended(thread)) return false;
  if (thread.state == Thread::State::kReady) return true;
  return thread.deadline <= world->now || (thread.polls && thread.changes_seen != world->changes);
}

// Returns the next thread to run.
Thread& choose() {
  std::vector<Thread*> candidates;
  while (true) {
    for (const auto& thread : world->threads) {
      if (can_run(*thread)) candidates.push_back(thread.get());
    }
    if (!candidates.empty()) break;
    // Before time passes, all descriptors are looked at once more: the kernel may have delivered
    // later than the call that sent.
    if (std::exchange(world->last_look, world->now) != world->now) {
      ++world->changes;
      continue;
    }
    uint64_t next = kNever;
    for (const auto& thread : world->threads) {
      const Process& process = world->process(thread->process);
      if (thread->state == Thread::State::kEnded || process.dead || process.dying) continue;
      const uint64_t ready = thread->state == Thread::State::kReady ? 0 : thread->deadline;
      if (ready != kNever) next = std::min(next, std::max(ready, process.stopped_until));
    }
    if (next == kNever) give_up(kDeadlock, "no thread can run");
    world->now = std::max(world->now, next);
    if (world->now > static_cast<uint64_t>(world->options.longest.count())) {
      give_up(kTooLong, "the program takes too long");
    }
  }
  // A thread that stands still for hundreds of turns of the others opens windows between two of its
  // steps that are rarely open otherwise.
  if (world->until_next_slow-- == 0) {
    world->until_next_slow = world->draw() % kLongestSlow;
    world->slow = static_cast<uint32_t>(world->draw() % (2 * world->threads.size()));
  }
  if (candidates.size() > 1) {
    std::erase_if(candidates, [](const Thread* thread) { return thread->number == world->slow; });
  }
  Thread& chosen = *candidates[world->draw() % candidates.size()];
  for (const uint64_t word : {uint64_t{chosen.number}, world->now}) {
    world->hash = (world->hash ^ word) * 1099511628211U;
  }
  return chosen;
}

void pass_turn() {
  Thread& next = choose();
  if (&next == self) return;
  ++world->turns;
  give_turn(next);
  wait_for_turn(*self);
}

}  // namespace

void point(bool always) {
  world->now += 200 + world->draw() % 1024;
  if (always || world->draw() % world->options.one_in == 0) pass_turn();
}

bool block(const char* in, const void* waits_for, uint64_t deadline, bool polls) {
  Thread& me = *self;
  me.state = Thread::State::kBlocked;
  me.blocked_in = in;
  me.waits_for = waits_for;
  me.deadline = deadline;
  me.polls = polls;
  me.changes_seen = world->changes;
  me.woken = false;
  pass_turn();
  me.state = Thread::State::kReady;
  me.waits_for = nullptr;
  me.deadline = kNever;
  me.polls = false;
  return me.woken;
}

int wake(const void* object, int most) {
  std::vector<Thread*> waiting;
  for (const auto& thread : world->threads) {
    if (thread->state == Thread::State::kBlocked && thread->waits_for == object && !thread->woken) {
      waiting.push_back(thread.get());
    }
  }
  int count = 0;
  while (count < most && !waiting.empty()) {
    const size_t which = world->draw() % waiting.size();
    Thread& thread = *waiting[which];
    thread.woken = true;
    thread.state = Thread::State::kReady;
    waiting[which] = waiting.back();
    waiting.pop_back();
    ++count;
  }
  return count;
}

// Runs after those of the thread's variables.
void end_thread(void* argument) {
  Thread& me = *static_cast<Thread*>(argument);
  me.state = Thread::State::kEnded;
  wake(&me, INT_MAX);
  Thread& next = choose();
  world->ending = system_call(SYS_gettid);
  self = nullptr;
  give_turn(next);
}

// ---- The interface ------------------------------------------------------------------------------

void run(const Options& options, const std::function<void()>& main) {
  static World the_world;
  the_world.options = options;
  the_world.random = options.seed * 0xd1342543de82ef95U;
  pthread_key_create(&end_key, &end_thread);
  the_world.threads.push_back(std::make_unique<Thread>());
  the_world.processes.resize(1);
  world = &the_world;
  self = the_world.threads.front().get();
  main();
  self = nullptr;
}

std::thread start(uint32_t process, std::function<void()> body) {
  world->process_of_next = process;
  return std::thread(std::move(body));
}

std::chrono::nanoseconds now() { return std::chrono::nanoseconds(world->now); }

void sleep_until(std::chrono::nanoseconds time) {
  const auto deadline = static_cast<uint64_t>(time.count());
  while (world->now < deadline) block("sleep", nullptr, deadline);
}

void give_descriptor(int descriptor, uint32_t process) { world->descriptors[descriptor] = process; }

void kill(uint32_t process) {
  world->process(process).dying = true;
  const auto any_holds_mutex = [&] {
    return std::any_of(world->threads.begin(), world->threads.end(), [&](const auto& thread) {
      return thread->process == process && holds_mutex(*thread);
    });
  };
  while (any_holds_mutex()) point(true);
  world->process(process).dead = true;
  for (auto at = world->descriptors.begin(); at != world->descriptors.end();) {
    if (at->second == process) {
      system_call(SYS_close, at->first);
      at = world->descriptors.erase(at);
    } else {
      ++at;
    }
  }
  ++world->changes;
  point();
}

void stop(uint32_t process, std::chrono::nanoseconds time) {
  world->process(process).stopped_until = world->now + static_cast<uint64_t>(time.count());
}

uint64_t schedule_hash() { return world->hash; }
uint64_t turns() { return world->turns; }

}  // namespace cariama::testing::simulation
