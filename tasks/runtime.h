// TaskRuntime: the workers of a job, one process each, which run a root task and all its children.
//
//   int main(int argc, char** argv) {
//     if (auto code = cariama::start_workers({.processes = 2}, argc, argv)) return *code;
//     auto fabric = cariama::Fabric::create();
//     auto runtime = cariama::TaskRuntime::create(**fabric, {});
//     absl::StatusOr<long> result = (*runtime)->run([] { return fib(40); });   // on every rank
//     return (*fabric)->finalize(cariama::deadline_after(10s)).ok() ? 0 : 1;
//   }
//
// Code, C++ runtime and thread-local memory must have equal addresses in all processes. Processes
// that begin with start_workers() (start.h) satisfy this, and so do processes forked from one
// process (run_processes()). create() compares the addresses; if they differ, it returns an error
// that names the difference.
#ifndef CARIAMA_TASKS_RUNTIME_H_
#define CARIAMA_TASKS_RUNTIME_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/failure_policy.h"
#include "dsfabric/ids.h"
#include "dtutils/device.h"
#include "dtutils/process_group.h"
#include "tasks/context.h"
#include "tasks/export.h"
#include "tasks/task.h"

namespace cariama {

// How a joiner waits for a child that has not ended.
//   kGreedy     the worker of the child continues the joiner when the child ends (join_record.h)
//   kWaitQueue  the joiner waits in the queue of its worker, which polls the oldest joiner of the
//               queue after each steal attempt that failed (the policy of Akiyama and Taura), after
//               a task has yielded, and in every 16th search for a task
enum class JoinPolicy : uint8_t { kGreedy, kWaitQueue };

// The deque that holds the continuations of forked parents.
//   kSplit    internal/split_deque.h
//   kThe      paper/the_deque.h, the deque of Akiyama and Taura. Each fork costs several times
//             as much as with kSplit, a steal takes two more round trips, and peers cannot wake
//             idle workers.
//   kPrivate  paper/private_scheduler.cc. No entry is public: the thief sends a request, and the
//             victim hands a task over at its next fork, join or poll(). A steal takes one round
//             trip and no atomic, but needs the CPU of the victim: while the victim runs a leaf
//             without poll(), the thief waits.
enum class DequeKind : uint8_t { kSplit, kThe, kPrivate };

// Where the stacks of tasks are (docs/tasks.md has a comparison).
//   kUni    all tasks of a worker nest on one stack, which has the same address in every worker.
//           The frames of a parent stay in place when it forks.
//   kCrude  only one task at a time is on the stack. A parent that forks, and a task that waits,
//           are copied out completely, and copied in again later (Akiyama and Taura, HPDC'15, 5.1).
//   kIso    each task has its own stack, at addresses that no other task of the job has. Each
//           worker therefore reserves addresses for the stacks of all workers (HPDC'15, section 4).
// kCrude and kIso exist for comparison. They need DequeKind::kSplit; each of their forks goes
// through the scheduler and allocates a join record.
enum class StackScheme : uint8_t { kUni, kCrude, kIso };

// The component that executes the atomics of peers on a worker's memory.
//   kDevice     the device
//   kServed     a thread of the worker that owns the memory (internal/atomic_server.h). An atomic
//               takes at least the time in which that thread wakes up.
//   kAutomatic  kDevice if the devices of all workers support remote atomics, else kServed
enum class RemoteAtomics : uint8_t { kAutomatic, kDevice, kServed };

// The order in which an idle worker tries victims.
//   kRandom      all other workers with equal probability
//   kByDistance  in turn a random worker that shares its last-level cache, its NUMA node, its host,
//                and a worker of another host. Most steals are then between near workers, from
//                which frames and data arrive sooner. The stolen pieces are smaller, and there are
//                several times as many steals. docs/tasks.md has figures.
enum class VictimOrder : uint8_t { kRandom, kByDistance };

namespace tasks {
// True in a debug build: the file that includes this header is compiled without NDEBUG. Not inline,
// because each file has its own.
#ifdef NDEBUG
constexpr bool kDebugBuild = false;
#else
constexpr bool kDebugBuild = true;
#endif
}  // namespace tasks

struct TaskOptions {
  // Size in bytes of the uni-address stack, which all nested tasks of one worker share. Untouched
  // pages take address space only, except on devices that pin memory. kIso: total size of the
  // stacks that one worker has for the tasks it begins; each worker reserves this size for every
  // worker. Must be equal in all workers.
  size_t stack_bytes = size_t{64} << 20;
  StackScheme scheme = StackScheme::kUni;  // must be equal in all workers
  // kIso: size in bytes of the stack of one task, including a guard page. A multiple of 4096, at
  // least 8192 and at most stack_bytes. Must be equal in all workers.
  size_t iso_stack_bytes = size_t{64} << 10;
  // Limit in bytes for the suspended tasks, join records and large results of one worker. The
  // memory grows by segments of 256 KiB, 512 KiB and so on, whose sum does not exceed the limit: a
  // limit of 1.9 GiB allows segments up to 512 MiB, together 1 GiB. At least 256 KiB. A block is
  // not larger than a segment, so a single result or stack has at most about half of the limit.
  size_t pinned_bytes = size_t{1} << 30;
  JoinPolicy join = JoinPolicy::kGreedy;
  DequeKind deque = DequeKind::kSplit;                // must be equal in all workers
  RemoteAtomics atomics = RemoteAtomics::kAutomatic;  // must be equal in all workers
  uint64_t seed = 1;                                  // of the random choice of victims
  VictimOrder victim_order = VictimOrder::kRandom;
  // victims[d] holds the ranks at distance d from this worker. Each rank but that of this worker
  // may appear once; the worker never steals from a rank that is missing. If one is missing, the
  // idle worker reads a word of every rank each 100 ms, to notice failures. If empty, create()
  // computes the distances (VictimLevel) from the CPU binding of the workers at that time.
  std::vector<std::vector<Rank>> victims{};
  // An idle worker spins, then yields its core, then sleeps between its steal attempts. The first
  // sleep takes 256 us, or this value if it is smaller. The length doubles every 16 attempts up to
  // this value, which bounds how late the worker finds new work. At most 1 s. 0: the worker yields
  // its core, and never sleeps.
  std::chrono::microseconds idle_sleep{50};
  // After some of these sleeps, an idle worker that its peers can wake sleeps until a peer
  // publishes work. (Its peers can wake it if the transport maps the memory of all workers, that is
  // over shm on one host, with DequeKind::kSplit and a runtime that was created without a Fabric.)
  // This is the longest of these sleeps, which bounds how late the worker notices the death of a
  // peer. At most 24 hours.
  std::chrono::milliseconds wakeable_sleep{10};
  // Checks at each spawn whether the closure contains a pointer to a local of a task. If so, ends
  // the program with a message that names the function that spawned. Costs a few ns per spawn.
  // Reads a closure only if the function or an argument may contain a pointer, by its type: an
  // address in an integer is not found. Only prints the message, once for each function, if the
  // closure also has padding (`this` and an int), a floating-point number or a union
  // (std::optional): there the word may be what an earlier call left on the stack. Ends a valid
  // program if a closure has, beside a pointer, an integer that is such an address (as in the
  // handle of a suspended task), or an array of which a part was never set.
  // Default: true if the file that constructs the TaskOptions is compiled without NDEBUG, however
  // the library was compiled. If the files of a program differ in this, set the option: the default
  // may be that of any of them.
  bool check_closures = tasks::kDebugBuild;
  // Checks whether frames that are made public contain pointers into the private heap of this
  // process (the memory of a small std::vector, for example), and reports each such function once
  // on stderr. A hint, and off by default also in a debug build: no frame tells which of its words
  // are locals in use, so what an earlier call left there is reported, too, with AddressSanitizer
  // in nearly every program. Knows only the heap of the main thread: not blocks of 128 KiB and
  // more, and not blocks that other threads have allocated. Reads all frames that are made public.
  bool check_frames = false;
  // What this worker does when another worker fails during a run, or run_timeout passes. kContinue:
  // run() returns the error on every surviving worker, and abandons all tasks of the run. kAbort:
  // the process prints the reason and ends with exit code 70; it runs no destructors. Default: for
  // a runtime that was created with a Fabric, FabricOptions::on_failure, else kContinue.
  std::optional<FailurePolicy> on_failure{};
  // Time limit for create(), and for exchanging the result after a run. From 1 ms to 100 years.
  std::chrono::milliseconds timeout{30'000};
  // Time limit for the tasks of each run, from this worker's call of run() on; 0: none. The worker
  // leaves the run with DEADLINE_EXCEEDED when it is idle, waits for a thief, a victim or another
  // layer, and the time has passed, also if another worker is stopped (SIGSTOP) and never answers.
  // It reports that to the others, whose running tasks are abandoned as after the failure of a
  // worker (run()). A task is not interrupted between its calls of this library. With a limit, each
  // search for a task reads the clock. From 0 to 100 years.
  std::chrono::milliseconds run_timeout{0};
};

class Fabric;

// Distance of a victim: the nearest level that thief and victim share (last-level cache, NUMA node,
// host), or kNetwork. With TaskOptions::victims, the index in it; larger indices are counted as
// kNetwork.
enum class VictimLevel : uint8_t { kCoreComplex, kNumaNode, kHost, kNetwork };
inline constexpr size_t kVictimLevels = 4;

// Counters of one worker since create() or reset_statistics().
struct CARIAMA_TASKS_EXPORT TaskStatistics {
  uint64_t steals = 0;                           // tasks that this worker stole
  uint64_t steal_attempts = 0;                   // steals that it tried, on any victim
  uint64_t steal_lost = 0;                       // attempts that saw an entry, but did not get it
  std::array<uint64_t, kVictimLevels> tried{};   // steal_attempts by distance
  std::array<uint64_t, kVictimLevels> stolen{};  // steals by distance
  uint64_t stolen_bytes = 0;                     // bytes of frames of the stolen tasks
  uint64_t steal_trips = 0;                      // dependent round trips of the successful steals
  uint64_t stolen_from = 0;                      // entries that thieves took from this worker
  uint64_t published = 0;                        // entries made public or handed over
  uint64_t taken_back = 0;                       // public entries that this worker took back
  uint64_t suspensions = 0;                      // tasks that were suspended
  uint64_t suspended_bytes = 0;                  // bytes of frames that were copied out
  uint64_t joins_waited = 0;                     // joins that had to wait
  uint64_t resumed = 0;                          // suspended tasks that continued in this worker
  uint64_t resumed_remote = 0;    // those of `resumed` that were suspended in another worker
  uint64_t records = 0;           // join records allocated
  uint64_t idle_ns = 0;           // time without work, after a first search that found none
  uint64_t wakeable_sleeps = 0;   // sleeps from which a peer can wake this worker
  uint64_t stack_high_water = 0;  // most bytes of stack used since create(); 0 with kIso
  uint64_t stack_reserved = 0;    // bytes of address space reserved for stacks
  uint64_t pinned_bytes = 0;      // bytes of all segments of the pinned area since create()

  // Adds the counters of another worker. stack_high_water and stack_reserved become the maximum of
  // both.
  void add(const TaskStatistics& other);
  // Returns every counter with its name ("steals", "steals_numa_node"), for tables and programs.
  [[nodiscard]] std::vector<std::pair<std::string, uint64_t>> counters() const;
};

// The calling thread of create() becomes the worker: it calls run() and destroys the runtime.
class CARIAMA_TASKS_EXPORT TaskRuntime {
 public:
  // Creates the runtime of this process. Collective: every rank of the exchange calls it. Options
  // whose comment says so must be equal; the others may differ. `exchange` must outlive the
  // runtime. `device` connects the workers. Default: the transport that CARIAMA_TRANSPORT names;
  // without it, shm if all workers are on one host, else verbs for all pairs. (A worker uses one
  // device for all its peers, because the atomics of a network card and those of a CPU are not
  // atomic to each other.) Errors: those of Exchange and of the device; FAILED_PRECONDITION (the
  // processes differ in the address or option that the message names, or this process already has a
  // TaskRuntime); INVALID_ARGUMENT (options that exclude each other, or an option that the message
  // names); ALREADY_EXISTS (the addresses of the stack are in use).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TaskRuntime>> create(
      Exchange& exchange, const TaskOptions& options, std::shared_ptr<Device> device = nullptr);
  // Creates the runtime whose workers are the processes of a fabric, which must outlive the
  // runtime. Collective. Requires: the caller is the thread that created the fabric. Options and
  // errors are those of create() with an Exchange. An idle worker runs the calls that have arrived
  // for its thread, if the thread has a context (Fabric::init_thread()); otherwise it only polls
  // the devices. FabricOptions::ack_timeout holds for the connections of the workers, too.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TaskRuntime>> create(
      Fabric& fabric, const TaskOptions& options);
  // Local: does not wait for peers, also after an error of run(). Requires: the last run() has
  // returned on every rank, or has returned an error.
  ~TaskRuntime();
  TaskRuntime(const TaskRuntime&) = delete;
  TaskRuntime& operator=(const TaskRuntime&) = delete;

  // Collective: runs `root` as the root task, on rank 0, with the captured values of rank 0. All
  // ranks pass the same function or lambda expression; values captured in other ranks are ignored.
  // All workers run its descendants. Blocks until `root` has ended, and returns its result on every
  // rank. Requires: `root` is trivially copyable and captures values; every rank calls run() before
  // TaskOptions::timeout has passed since `root` has ended. Errors: ABORTED (root threw; the
  // message has the exception's text); FAILED_PRECONDITION (the caller is a task, or a call that
  // arrived during a run; or this rank passed another function than rank 0: rank 0 returns its
  // result, and run() may be called again). After the following errors every later run() returns
  // the same error: those of Exchange; UNAVAILABLE (a worker has failed; the message names its
  // rank, and counts the lost tasks of the worker on which run() returns); DEADLINE_EXCEEDED (the
  // tasks have not ended within TaskOptions::run_timeout of a worker; the message names the workers
  // that have tasks). With FailurePolicy::kAbort the process ends instead of the last two.
  //
  // The failure of a worker, and the end of run_timeout. The worker that notices it reports it to
  // the others. Each worker then abandons its tasks: a running task at its next spawn, poll(),
  // suspend(), yield() or join that waits, all others where they are. No abandoned task continues,
  // and the destructors of its locals do not run. What they own, such as heap memory and locks, is
  // never released; so a task holds no lock across these functions. A task that computes without
  // them, or waits in another layer without await(), delays the return of run(). docs/tasks.md has
  // the details.
  template <typename F, typename T = std::invoke_result_t<F&>>
  [[nodiscard]] auto run(F root)
      -> std::conditional_t<std::is_void_v<T>, absl::Status, absl::StatusOr<T>> {
    tasks::require_values<F>();
    tasks::require_transferable<T>();
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
      if (bytes->size() != sizeof word) return absl::InternalError("a result of unexpected size");
      std::memcpy(&word, bytes->data(), sizeof word);
      return tasks::from_word<T>(word);
    } else if constexpr (tasks::kTravelsAsBytes<T>) {
      alignas(T) std::byte value[sizeof(T)];
      if (bytes->size() != sizeof value) return absl::InternalError("a result of unexpected size");
      std::memcpy(value, bytes->data(), sizeof value);
      return *std::launder(reinterpret_cast<T*>(value));
    } else {
      return Transfer<T>::unpack(std::as_bytes(std::span(*bytes)));
    }
  }

  [[nodiscard]] Rank rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] TaskStatistics statistics() const;
  void reset_statistics();

 private:
  struct Parts;
  explicit TaskRuntime(std::unique_ptr<Parts> parts);
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TaskRuntime>> create(
      Exchange& exchange, const TaskOptions& options, std::shared_ptr<Device> device,
      std::chrono::microseconds ack_timeout);
  [[nodiscard]] absl::StatusOr<std::string> run_bytes(tasks::ChildFunction root, uint64_t first,
                                                      uint64_t second);

  std::unique_ptr<Parts> parts_;
};

// Serves a steal request: makes entries public or hands a task over, if a thief has requested it.
// Long computations without spawn or join should call it now and then. Two loads if there is no
// request. Only tasks may call it.
inline void poll() {
  if (tasks::steal_is_requested()) [[unlikely]]
    tasks::serve_steal_request();
}

// Returns true if thieves have stolen all ancestors of the calling task that were on this worker's
// stack, and have copied their frames. One load. The result can change from false to true at any
// time. Only tasks may call it.
[[nodiscard]] CARIAMA_TASKS_EXPORT bool parent_is_stolen();

// Returns the number of tasks that thieves have stolen from this worker so far and whose frames
// they have copied. Only tasks may call it.
[[nodiscard]] CARIAMA_TASKS_EXPORT uint64_t tasks_stolen_from_here();

}  // namespace cariama

#endif  // CARIAMA_TASKS_RUNTIME_H_
