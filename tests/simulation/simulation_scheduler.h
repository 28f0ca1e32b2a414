// The state of a simulation (simulation_threads.h), and what the replaced functions do with it.
#ifndef CARIAMA_TESTS_SIMULATION_SIMULATION_SCHEDULER_H_
#define CARIAMA_TESTS_SIMULATION_SIMULATION_SCHEDULER_H_

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/simulation/simulation_threads.h"

namespace cariama::testing::simulation {

inline constexpr uint64_t kNever = UINT64_MAX;

// The function syscall() of the C library, which the simulation replaces.
long system_call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                 long f = 0);

struct Thread {
  enum class State : uint8_t { kReady, kBlocked, kEnded };

  uint32_t number = 0;
  uint32_t process = 0;
  State state = State::kReady;
  const char* blocked_in = "";
  const void* waits_for = nullptr;  // a mutex, a condition variable, a futex or a thread
  uint64_t deadline = kNever;
  bool locks = false;  // waits for a mutex
  bool polls = false;  // looks at its descriptors again after any change of one
  uint64_t changes_seen = 0;
  bool woken = false;
  uint32_t mutexes = 0;  // that it holds
  std::atomic<uint32_t> turn{0};
  pthread_t handle{};
  void* (*body)(void*) = nullptr;
  void* argument = nullptr;
};

struct Process {
  bool dying = false;
  bool dead = false;
  uint64_t stopped_until = 0;
};

// Only the thread that has the turn uses it.
struct World {
  Options options;
  uint64_t random = 0;
  uint64_t now = 0;
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  uint64_t turns = 0;
  uint64_t changes = 0;  // of descriptors
  uint64_t last_look = kNever;
  uint32_t slow = UINT32_MAX;  // the thread that runs only if no other one can, if there is one
  uint64_t until_next_slow = 0;
  uint32_t process_of_next = UINT32_MAX;
  long ending = 0;  // the kernel's number of a thread that has had its last turn
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Process> processes;
  std::map<int, uint32_t> descriptors;

  uint64_t draw() {  // splitmix64
    uint64_t z = random += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  Process& process(uint32_t number) {
    if (number >= processes.size()) processes.resize(number + 1);
    return processes[number];
  }
};

extern World* world;  // nullptr: no simulation runs
// The state of the calling thread, or nullptr if it does not belong to the simulation.
extern constinit thread_local Thread* self;
extern pthread_key_t end_key;  // of the thread's state; the destructor is end_thread()

// Ends the program with the exit code, after a report of what each thread waits for.
[[noreturn]] void give_up(int code, const char* why);
// A point at which another thread may run; always, if it can.
void point(bool always = false);
// Blocks until wake() of `waits_for`, the deadline or, if `polls`, the next change of a descriptor.
// Returns true if the thread was woken.
bool block(const char* in, const void* waits_for, uint64_t deadline, bool polls = false);
// Wakes up to `most` threads that wait for `object`, which the seed chooses. Returns their number.
int wake(const void* object, int most);
// Waits until the turn comes to a new thread.
void wait_for_turn(Thread& thread);
// Passes the turn for the last time.
void end_thread(void* thread);

}  // namespace cariama::testing::simulation

#endif  // CARIAMA_TESTS_SIMULATION_SIMULATION_SCHEDULER_H_
