// The workers of a job, one process each, and how a first task is started on them.
//
//   int main(int argc, char** argv) {
//     if (auto code = cariama::start_workers({.processes = 2}, argc, argv)) return *code;
//     auto fabric = cariama::Fabric::create();
//     auto runtime = cariama::TaskRuntime::create(**fabric, {});
//     absl::StatusOr<long> result = (*runtime)->run([] { return fib(40); });   // on every rank
//     return (*fabric)->finalize(cariama::deadline_after(10s)).ok() ? 0 : 1;
//   }
//
// All processes must have code, C++ runtime and thread-local memory at equal addresses:
// start_workers() (start.h) sees to it, or fork them from one process (run_processes does).
// create() compares, and refuses with the difference.
#ifndef CARIAMA_TASKS_RUNTIME_H_
#define CARIAMA_TASKS_RUNTIME_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/process_group.h"
#include "tasks/context.h"
#include "tasks/export.h"
#include "tasks/steal_sample.h"
#include "tasks/task.h"

namespace cariama {

// What happens at a join whose child has not ended. kGreedy: whoever comes second, child or joiner,
// goes on with the joiner. kWaitQueue (the paper's): the joiner waits in its worker's queue, which
// looks at it when it found nothing to steal.
enum class JoinPolicy : uint8_t { kGreedy, kWaitQueue };

// Where the continuations of forks wait for thieves. kSplit: internal/split_deque.h. kThe (the
// paper's): internal/the_deque.h; each fork costs several times as much, a steal has two round
// trips more, and idle workers do not sleep. kPrivate: internal/request_stealing.cc; nothing is
// public, a thief asks its victim, who hands a task over at its next fork, join or poll(): one
// round trip and no atomic, but the victim takes part, and a leaf without poll() keeps its thief
// waiting.
enum class DequeKind : uint8_t { kSplit, kThe, kPrivate };

// Where the stacks of tasks are (docs/tasks.md has a comparison). kUni: all tasks of a worker nest
// on one stack at the same address in each; what forks is left where it is. The others are there to
// be compared with, for DequeKind::kSplit only; each fork goes through the scheduler and has a join
// record. kCrude (Akiyama and Taura, HPDC'15, section 5.1): one task at a time is on the stack; who
// forks or waits is copied out as a whole, and in again. kIso (section 4): each task has a stack of
// its own, at an address that no other task of the job has; so each worker reserves the stacks of
// all workers.
enum class StackScheme : uint8_t { kUni, kCrude, kIso };

// Who executes atomics on a worker's memory that its peers ask for: the device, or (internal/
// atomic_server.h) a thread of that worker, so that an atomic takes as long as that thread takes to
// wake up. kAutomatic: the device, if those of all workers can.
enum class RemoteAtomics : uint8_t { kAutomatic, kDevice, kServed };

// Whom an idle worker tries to steal from. kRandom: all alike. kByDistance: one that shares its
// last-level cache, then one of its NUMA node, of its host, of the others, and so on. That keeps
// most steals near, where frames and data come from sooner, and steals smaller pieces, several
// times as often. docs/tasks.md has figures.
enum class VictimOrder : uint8_t { kRandom, kByDistance };

struct TaskOptions {
  // Of the uni-address stack: what all nested tasks of one worker take together. Address space only
  // until it is touched (on devices that pin memory, memory). kIso: of the stacks of all tasks that
  // one worker begins; each worker reserves that for every one.
  size_t stack_bytes = size_t{64} << 20;
  StackScheme scheme = StackScheme::kUni;  // equal in all workers
  // kIso: of one task's stack, a guard page included.
  size_t iso_stack_bytes = size_t{64} << 10;
  // The most that suspended tasks, join records and large results of one worker may take.
  size_t pinned_bytes = size_t{1} << 30;
  JoinPolicy join = JoinPolicy::kGreedy;
  DequeKind deque = DequeKind::kSplit;                // equal in all workers
  RemoteAtomics atomics = RemoteAtomics::kAutomatic;  // equal in all workers
  uint64_t seed = 1;                                  // of the choice of victims
  VictimOrder victim_order = VictimOrder::kRandom;
  // Ranks by distance from this one, ascending within a distance. Empty: VictimLevel, by what the
  // workers are bound to when the runtime is created.
  std::vector<std::vector<int>> victims{};
  // An idle worker spins, then yields its core, then sleeps. Where it can be woken (all workers on
  // one host, over shm) it sleeps until there is work; elsewhere each time longer, at most this
  // long, which bounds how late it notices. 0: it never sleeps.
  std::chrono::microseconds idle_sleep{50};
  // The longest that it sleeps where it can be woken: how late it notices that a worker has died.
  std::chrono::milliseconds doze{10};
  // Look whether spawned functions carry pointers to locals of their parents. A few ns per spawn.
  bool check_closures = false;
  // Look whether frames that are made public hold pointers into this process's private heap (a
  // std::vector, say), and tell on stderr, once for each function. Some 100 us per publication.
  bool check_frames = false;
  // How many of its first steals each worker takes the time of (TaskRuntime::take_steal_samples).
  size_t steal_samples = 0;
  // Count the page faults of these, too: two system calls each.
  bool sample_faults = false;
  // Of setting up, and of ending a run.
  std::chrono::milliseconds timeout{30'000};
};

class Fabric;

// Distances of victims: who shares the last-level cache, the NUMA node, the host, or nothing.
// (TaskOptions::victims: indices; what is further out counts as the last one.)
enum class VictimLevel : uint8_t { kCoreComplex, kNumaNode, kHost, kNetwork };
inline constexpr size_t kVictimLevels = 4;

// Of one worker, since create() or the last reset.
struct CARIAMA_TASKS_EXPORT TaskStatistics {
  uint64_t steals = 0;                           // tasks taken from other workers
  uint64_t steal_attempts = 0;                   // on any victim
  uint64_t steal_lost = 0;                       // attempts that found something, and came too late
  std::array<uint64_t, kVictimLevels> tried{};   // steal_attempts by distance
  std::array<uint64_t, kVictimLevels> stolen{};  // steals by distance
  uint64_t stolen_bytes = 0;                     // of frames
  uint64_t steal_trips = 0;                      // dependent round trips of the successful ones
  uint64_t stolen_from = 0;                      // entries that others took from here
  uint64_t published = 0;                        // entries made public
  uint64_t taken_back = 0;                       // public entries that the owner took back itself
  uint64_t suspensions = 0;                      // tasks that were copied out
  uint64_t suspended_bytes = 0;                  // of their frames
  uint64_t joins_waited = 0;                     // joins that had to wait
  uint64_t resumed = 0;                          // suspended tasks that went on in this worker
  uint64_t resumed_remote = 0;                   // ... of these, that were suspended in another one
  uint64_t records = 0;                          // join records made
  uint64_t idle_ns = 0;                          // looking for work, after a first look in vain
  uint64_t dozes = 0;                            // times that it slept until woken
  uint64_t stack_high_water = 0;                 // bytes, whole pages, since create(); kIso: 0
  uint64_t stack_reserved = 0;                   // bytes of addresses for stacks, in each worker
  uint64_t pinned_bytes = 0;                     // of the segments, since create()

  // That of several workers: sums, and the most of high water and of what is reserved.
  void add(const TaskStatistics& other);
  // Every counter by its name ("steals", "steals_numa_node"), as tables and programs show them.
  [[nodiscard]] std::vector<std::pair<std::string, uint64_t>> counters() const;
};

class CARIAMA_TASKS_EXPORT TaskRuntime {
 public:
  // Collective: every rank of the exchange calls it, with equal options but `victims`. `device` is
  // for what goes between workers; default: shm if all are on one host, else verbs (one device
  // for all pairs: the atomics of a card and those of a CPU do not exclude each other), or what
  // CARIAMA_TRANSPORT says. Errors: those of Exchange and of the
  // device; FAILED_PRECONDITION (the processes differ: names in what; or one exists already);
  // INVALID_ARGUMENT (options that exclude each other).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TaskRuntime>> create(
      Exchange& exchange, const TaskOptions& options, std::shared_ptr<Device> device = nullptr);
  // The workers are the processes of a fabric, whose main thread this is. While a worker has
  // nothing to do it runs the calls that have arrived for it.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TaskRuntime>> create(
      Fabric& fabric, const TaskOptions& options);
  ~TaskRuntime();
  TaskRuntime(const TaskRuntime&) = delete;
  TaskRuntime& operator=(const TaskRuntime&) = delete;

  // Collective: runs `root` as the first task, on rank 0 at first, with all workers; returns its
  // result on every rank when it has ended. `root` must be trivially copyable. Blocks. Errors:
  // ABORTED (root threw: type and text), and those of Exchange. A worker that dies ends the job.
  template <typename F, typename T = std::invoke_result_t<F&>>
  [[nodiscard]] auto run(F root)
      -> std::conditional_t<std::is_void_v<T>, absl::Status, absl::StatusOr<T>> {
    static_assert(std::is_trivially_copyable_v<F>, "the root task travels as bytes");
    absl::StatusOr<std::string> bytes(std::string{});
    if constexpr (tasks::kCallInRegisters<F, T>) {
      uint64_t words[2] = {0, 0};
      std::memcpy(words, static_cast<const void*>(&root), sizeof root);
      bytes = run_bytes(&tasks::run_child<F, T>, words[0], words[1]);
    } else {
      bytes = run_bytes(&tasks::run_child<F, T>, reinterpret_cast<uint64_t>(&root), 0);
    }
    if (!bytes.ok()) return bytes.status();
    if constexpr (std::is_void_v<T>) {
      return absl::OkStatus();
    } else if constexpr (tasks::kInRegister<T>) {
      uint64_t word = 0;
      if (bytes->size() != sizeof word) return absl::InternalError("a result of another size");
      std::memcpy(&word, bytes->data(), sizeof word);
      return tasks::from_word<T>(word);
    } else if constexpr (std::is_trivially_copyable_v<T>) {
      alignas(T) std::byte value[sizeof(T)];
      if (bytes->size() != sizeof value) return absl::InternalError("a result of another size");
      std::memcpy(value, bytes->data(), sizeof value);
      return *std::launder(reinterpret_cast<T*>(value));
    } else {
      return Transfer<T>::unpack(std::as_bytes(std::span(*bytes)));
    }
  }

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] TaskStatistics statistics() const;
  void reset_statistics();
  // Of this worker's steals since the last call, TaskOptions::steal_samples at most.
  [[nodiscard]] std::vector<StealSample> take_steal_samples();

 private:
  struct Parts;
  explicit TaskRuntime(std::unique_ptr<Parts> parts);
  [[nodiscard]] absl::StatusOr<std::string> run_bytes(tasks::ChildFunction root, uint64_t first,
                                                      uint64_t second);

  std::unique_ptr<Parts> parts_;
};

// For long stretches without spawn or join: makes entries public if a thief asked for one. Two
// loads when nobody did. May be called by tasks only.
inline void poll() {
  if (tasks::cariama_fork_state.attention->load(std::memory_order_relaxed) != 0) [[unlikely]] {
    tasks::attend();
  }
}

// In a task: whether all that it could return to is being continued elsewhere, because it was
// stolen. One load; a thief may change the answer at any time from false to true.
[[nodiscard]] CARIAMA_TASKS_EXPORT bool parent_is_stolen();

// In a task: how many tasks thieves have taken from this worker, their frames included, so far.
[[nodiscard]] CARIAMA_TASKS_EXPORT uint64_t tasks_stolen_from_here();

}  // namespace cariama

#endif  // CARIAMA_TASKS_RUNTIME_H_
