// Runs all threads of a program one at a time, in virtual time, in an order that a seed determines.
// The program is the real one: its threads, mutexes, condition variables, futexes, sleeps, clocks,
// random numbers and sockets are those of the C library, which simulation_threads.cc replaces.
//
//   simulation::run({.seed = 7}, [] {
//     std::thread other = simulation::start(1, [] { ... });  // a thread of "process" 1
//     simulation::sleep_until(5ms);
//     simulation::kill(1);  // its threads run no more; its sockets are closed
//   });
//
// A thread runs until it blocks, or until it locks or unlocks a mutex, wakes another thread,
// yields, or calls a function of a socket, and the seed chooses another thread. Atomic operations
// are no such points. When no thread can run, the clock advances to the next deadline. If there is
// none, the program has deadlocked: it prints what each thread waits for, and exits with kDeadlock.
//
// A process is a number: threads belong to the process of the thread that starts them, and so do
// the descriptors that they open. All processes share their memory.
#ifndef CARIAMA_TESTS_SIMULATION_SIMULATION_THREADS_H_
#define CARIAMA_TESTS_SIMULATION_SIMULATION_THREADS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace cariama::testing::simulation {

// The exit codes of a simulation that cannot continue.
inline constexpr int kDeadlock = 3;
inline constexpr int kTooLong = 4;

struct Options {
  uint64_t seed = 1;
  // One in so many of the points above passes the turn, if the thread could continue.
  uint32_t one_in = 8;
  // The virtual time after which the program exits with kTooLong.
  std::chrono::nanoseconds longest = std::chrono::minutes(10);
};

// Runs `main` in the calling thread, in process 0, until it returns. Once in a program: threads
// that were killed remain.
void run(const Options& options, const std::function<void()>& main);

// The functions below are called by threads of the simulation.

// Starts a thread of `process`.
[[nodiscard]] std::thread start(uint32_t process, std::function<void()> body);
// Returns the virtual time since the start of run().
[[nodiscard]] std::chrono::nanoseconds now();
void sleep_until(std::chrono::nanoseconds time);
// Makes `process` the owner of a descriptor.
void give_descriptor(int descriptor, uint32_t process);
// Ends a process as SIGKILL does. Its threads continue until they wait, or hold no mutex, because
// the processes share the mutexes of the simulated network. Requires: not the caller's process.
void kill(uint32_t process);
// Stops a process for `time`, as SIGSTOP does; threads that hold a mutex as above.
void stop(uint32_t process, std::chrono::nanoseconds time);
// Returns a hash of all choices so far: equal for equal runs.
[[nodiscard]] uint64_t schedule_hash();
// Returns the number of times that the turn has passed to another thread.
[[nodiscard]] uint64_t turns();

}  // namespace cariama::testing::simulation

#endif  // CARIAMA_TESTS_SIMULATION_SIMULATION_THREADS_H_
