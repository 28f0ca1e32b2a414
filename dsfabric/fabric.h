// The distributed-system fabric: processes and long-lived threads with names, connected on first
// use, that call each other (Seriema §3, §4.3). The main header of this layer.
//
//   int main() {
//     auto job = Fabric::create({.threads = 2});  // started by cariama-run, mpirun, or alone
//     Fabric& fabric = **job;
//     auto self = fabric.init_thread(0);          // this thread is now worker 0
//     call(fabric, 1, [from = fabric.rank()] { std::printf("rank %u calls\n", from); });
//     while (...) fabric.process_calls();         // runs the calls sent to this thread
//     fabric.finalize(deadline_after(10s));
//   }
//
// Names. A process has a rank, 0 to size() - 1. Each has threads() long-lived threads; thread
// `index` of process `rank` has the global id rank * threads() + index, and calls go to global ids.
// Short-lived threads have no name; they may call without set-up.
//
// Delivery. Calls from one thread to one thread run exactly once each, in the order of issue, or
// report that they did not. The destination thread chooses where its calls run: in the thread
// itself, when it calls process_calls() or waits; in helper threads of the process; or in one
// consumer thread for the whole process. At any time, one thread runs the calls to a given
// destination.
//
// Inside a call no operation waits for credits. If the receiver has no room, calls sent inside a
// call are deferred, up to deferred_bytes per process, and sent later in order. So calls that call
// back cannot deadlock.
#ifndef CARIAMA_DSFABRIC_FABRIC_H_
#define CARIAMA_DSFABRIC_FABRIC_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap.h"
#include "dsfabric/buffer_registrar.h"
#include "dsfabric/call_encoding.h"
#include "dsfabric/export.h"
#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/device.h"
#include "dtutils/registration/registration_cache.h"
#include "dtutils/transmitter.h"
#include "dtutils/wait.h"

namespace cariama {

class Fabric;

namespace internal {
class Broker;
class FabricCore;
class PendingCall;
}  // namespace internal

// Not a thread id: means "the caller has no name", or "the service of that process".
inline constexpr uint32_t kNoThread = UINT32_MAX;

// Where the calls to a thread run.
enum class CallConsumer : uint8_t {
  kThread,   // in the thread itself
  kHelpers,  // in the helper threads of the process (FabricOptions::helper_threads)
  kProcess,  // in the one process consumer
};

// What a process does when it detects that another process of the job is dead.
enum class FailurePolicy : uint8_t {
  kAbort,     // it prints which process is dead, and exits with code 1
  kContinue,  // operations in flight to the dead process end with UNAVAILABLE; the rest continues
};

// Options, all with defaults. Sizes in bytes.
struct FabricOptions {
  // Long-lived threads per process. Default: what the launcher was asked for, else 1. Must be equal
  // in all processes.
  std::optional<uint32_t> threads{};
  // Threads that receive independently of the workers. 0: none; otherwise one for each device.
  // Workers also receive when they process calls, and while they wait and are awake; the service
  // thread pauses meanwhile. With 0 only the workers receive, and waits poll instead of sleeping.
  uint32_t service_threads = 1;
  uint32_t helper_threads = 0;
  // Connections between two processes. Worker i uses connection i modulo this number.
  uint32_t queue_pairs = 1;
  // Send-based calls: receive_units is the number of messages that a sender may have in flight on
  // one connection; receive_unit_bytes is the maximum length of a message, header included. A
  // connection takes receive_units * receive_unit_bytes at each end, and the same again for its
  // outgoing messages.
  uint32_t receive_units = 16;
  uint32_t receive_unit_bytes = 4096;
  uint32_t send_depth = 256;
  // Two limits per process, each of this many bytes. First: calls that are deferred because their
  // receivers have no room. Second: arrived calls that are copied out of their receive units while
  // their destination thread does not run them, so that such a thread does not block calls to other
  // threads. Beyond the second limit, senders to this process run out of credits and wait. Answers
  // count, but are not refused.
  uint64_t deferred_bytes = uint64_t{64} << 20;
  FailurePolicy on_failure = FailurePolicy::kAbort;
  // Buffers for call_buffer that are not registered (user_buffer.h): up to this size they are
  // copied into registered memory, which saves a registration, a system call. Longer buffers are
  // registered through `registrar`, or as `registration` says; without both, with the device until
  // the transfer has ended.
  uint64_t bounce_bytes = 16u << 10;
  BufferRegistrar registrar{};
  // If set, and `registrar` is not: buffers for call_buffer above bounce_bytes are registered
  // through a RegistrationCache, whose policy decides how long they stay registered. Called at the
  // first such transfer through each device, since a policy serves one cache.
  //   options.registration = [] { return RegistrationOptions{.max_bytes = size_t{1} << 30}; };
  std::function<RegistrationOptions()> registration{};
  // Time limit for making a connection, and for each collective step of set-up.
  std::chrono::milliseconds timeout{30'000};
  // Wake-up interval of a sleeping service thread: the longest time that a missed event stays
  // undetected.
  std::chrono::milliseconds heartbeat{100};
  // For verbs: after this time without an acknowledgement a message is sent again. A peer that
  // lets seven of these intervals pass is considered failed. Raise it for hosts that stall, such as
  // virtual machines on a loaded host.
  std::chrono::milliseconds ack_timeout{67};
  // One device to use for every pair of processes, instead of shm within a host and verbs between
  // hosts. For tests on sim and fault.
  std::shared_ptr<Device> device{};
};

// Counters of one process.
struct FabricStatistics {
  uint64_t calls_sent = 0;  // send-based calls, including calls to threads of this process
  uint64_t calls_run = 0;
  // Calls that arrived with an unknown function, malformed, or for no existing thread.
  uint64_t calls_rejected = 0;
  uint64_t sends = 0;         // messages of the send-based path, answers included
  uint64_t writes = 0;        // notifications and results sent by RDMA WRITE, credits included
  uint64_t credit_waits = 0;  // times that a sender found no credit
  uint64_t deferred = 0;      // messages that were deferred
  uint64_t connections = 0;
  uint64_t wakes = 0;   // wake-ups of sleeping threads of other processes
  uint64_t rounds = 0;  // times that a service thread woke up or found work without sleeping
};

// A long-lived thread's registration in the fabric. Created by Fabric::init_thread; its destructor
// ends the registration. Thread-compatible: only its own thread uses it.
class CARIAMA_DSFABRIC_EXPORT ThreadContext {
 public:
  ~ThreadContext();
  ThreadContext(const ThreadContext&) = delete;
  ThreadContext& operator=(const ThreadContext&) = delete;

  [[nodiscard]] Fabric& fabric() const { return fabric_; }
  [[nodiscard]] uint32_t index() const { return index_; }  // within the process
  [[nodiscard]] uint32_t global_id() const { return global_id_; }
  [[nodiscard]] int numa_node() const { return numa_node_; }  // NUMA node of its memory, or -1

  // Registered memory on this thread's NUMA node, for buffers to transfer. The allocator recycles
  // the buffers automatically.
  [[nodiscard]] CircularAllocator& buffers() { return *circular_allocator; }

  // The paper's name for buffers() (Listing 1).
  std::unique_ptr<CircularAllocator> circular_allocator;

 private:
  friend class Fabric;
  ThreadContext(Fabric& fabric, uint32_t index, uint32_t global_id, int numa_node)
      : fabric_(fabric), index_(index), global_id_(global_id), numa_node_(numa_node) {}

  Fabric& fabric_;
  uint32_t index_;
  uint32_t global_id_;
  int numa_node_;
  bool named_ = false;  // the fabric has registered this thread
};

// One process of a job. Thread-safe unless a function says otherwise. Usually there is one per
// operating-system process; tests in simulated time run several in one operating-system process.
class CARIAMA_DSFABRIC_EXPORT Fabric {
 public:
  // Joins the job: finds the launcher, opens devices, exchanges set-up data with all processes.
  // Collective. Errors: those of make_bootstrap and open_device; FAILED_PRECONDITION (another
  // build, other options; no device reaches a process).
  //
  // In a job of several processes, a signal that ends the process by default (SIGSEGV, SIGBUS,
  // SIGFPE, SIGILL, SIGABRT) prints the rank and the function with its callers first, unless the
  // program handles the signal or CARIAMA_CRASH_REPORT is 0.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Fabric>> create(
      const FabricOptions& options = {});
  // Joins with a given bootstrap and broker: for simulated jobs. `broker_of` is called once; its
  // second argument is the handler that answers the requests of peers.
  using BrokerMaker = std::function<absl::StatusOr<std::unique_ptr<internal::Broker>>(
      Bootstrap&, std::function<absl::StatusOr<std::string>(int, std::string_view)>)>;
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Fabric>> create(
      const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap,
      const BrokerMaker& broker_of);

  // Without a preceding finalize(), the destructor leaves the job at once. The other processes see
  // this as the death of the process; this process's own threads and memory are released in order.
  //
  // In a child of fork() the fabric cannot be used: calls return UNAVAILABLE, and the destructor
  // does nothing, so that the parent stays in the job. Messengers, global memory and thread
  // contexts must not be touched there: only exec and _exit are safe.
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  [[nodiscard]] uint32_t rank() const;
  [[nodiscard]] uint32_t size() const;     // processes
  [[nodiscard]] uint32_t threads() const;  // per process
  [[nodiscard]] uint32_t total_threads() const { return size() * threads(); }
  [[nodiscard]] uint32_t rank_of(uint32_t thread) const { return thread / threads(); }
  // "rank 3 (on node1, pid 4711)".
  [[nodiscard]] const std::string& label(uint32_t rank) const;

  // Makes the calling thread worker `index` of this process. Does not bind it to a core; creates
  // its allocator on its NUMA node. Errors: OUT_OF_RANGE, ALREADY_EXISTS (another thread has that
  // index). The same thread must destroy the context, before the fabric.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<ThreadContext>> init_thread(
      uint32_t index, CallConsumer consumer = CallConsumer::kThread);
  // Returns the context of the calling thread in this fabric, or nullptr.
  [[nodiscard]] ThreadContext* this_thread() const;

  // Runs at most `most` calls that have arrived for the calling worker thread. If there are none,
  // polls the devices once for new calls. Never blocks. Returns the number of calls that ran.
  size_t process_calls(size_t most = SIZE_MAX);
  // Does the work of the service threads once: receives messages, sends deferred calls, detects
  // failed peers. Call it only if there are no service threads, from a thread that neither
  // processes calls nor waits in a function of this class (Synchronizer::wait() does not receive).
  // Never blocks.
  size_t progress();
  // Blocks until `condition` is true; a worker thread runs its calls meanwhile. Sleeps when there
  // are no calls. The condition must become true by a call, by progress of the fabric, or before a
  // wake(). Returns false if the deadline came first.
  [[nodiscard]] bool wait(const std::function<bool()>& condition, Deadline deadline = kForever);
  // As wait(), for a condition that a plain RDMA WRITE makes true. A plain WRITE does not wake a
  // sleeping thread, so this function polls.
  [[nodiscard]] bool wait_polling(const std::function<bool()>& condition,
                                  Deadline deadline = kForever);
  // Makes worker `index` of this process wake and re-check its condition.
  void wake(uint32_t index);

  // Ends the job. Every process calls it, from one thread; the process's other threads have left,
  // or continue to run their calls. Runs all calls in flight, including calls to threads that have
  // left; blocks until all processes have called it and no call is in flight; from then on no call
  // is accepted. Errors: DEADLINE_EXCEEDED (names the processes that did not call it in time; it
  // may be called again), those of the bootstrap.
  [[nodiscard]] absl::Status finalize(Deadline deadline);

  // Returns true if finalize() has seen the job end: no call is accepted any more.
  [[nodiscard]] bool finalized() const;

  // Returns OK, or UNAVAILABLE with the reason if that process is considered failed.
  [[nodiscard]] absl::Status peer_status(uint32_t rank) const;

  // Registered memory of the process. Any thread may use the allocator.
  [[nodiscard]] GeneralAllocator& memory();
  // Returns the connection to a process, and makes it if necessary. For code that posts its own
  // transfers (one Transmitter per thread) beside calls. Blocks while connecting. Errors:
  // UNAVAILABLE, FAILED_PRECONDITION (refused: another build), INVALID_ARGUMENT (no such rank, or
  // this process's own rank).
  [[nodiscard]] absl::StatusOr<TransmitQueue*> connection(uint32_t rank, uint32_t thread_index = 0);
  [[nodiscard]] const ProtectionDomain* domain(uint32_t rank) const;

  [[nodiscard]] Bootstrap& bootstrap();
  [[nodiscard]] const FabricOptions& options() const;
  [[nodiscard]] FabricStatistics statistics() const;

  [[nodiscard]] internal::FabricCore& core() { return *core_; }

 private:
  explicit Fabric(std::unique_ptr<internal::FabricCore> core);
  std::unique_ptr<internal::FabricCore> core_;
};

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_FABRIC_H_
