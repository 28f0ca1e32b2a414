// The distributed-system fabric: processes and long-lived threads with names, connected on first
// use, that call each other (Seriema §3, §4.3). What users of this layer include.
//
//   int main() {
//     auto job = Fabric::create({.threads = 2});  // launched by cariama-run, mpirun, nobody
//     Fabric& fabric = **job;
//     auto self = fabric.init_thread(0);          // this thread is a worker now
//     call(fabric, 1, [from = fabric.rank()] { std::printf("rank %u calls\n", from); });
//     while (...) fabric.process_calls();         // runs what others asked this thread to do
//     fabric.finalize(deadline_after(10s));
//   }
//
// Names. A process has a rank, 0 to size() - 1. Each has threads() long-lived threads; thread
// `index` of process `rank` has the global id rank * threads() + index, and calls go to global ids.
// Short-lived threads have no name, and may call without set-up.
//
// Delivery. Calls from one thread to one thread run once each, in the order of issue, or report
// that they did not. They run where the destination thread has chosen: in itself, when it calls
// process_calls() or waits; or in helper threads of the process; or in one consumer for the whole
// process. At any time one thread runs the calls to a given destination.
//
// Inside a call nothing waits for credits: what a call sends is kept back if the receiver is
// behind, up to deferred_bytes per process, and sent later in order. So calls that call back cannot
// deadlock.
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
#include "dtutils/transmitter.h"
#include "dtutils/wait.h"

namespace cariama {

class Fabric;

namespace internal {
class Broker;
class FabricCore;
class Peer;
class PendingCall;
}  // namespace internal

// What is no thread's id: the caller has no name, or "the service of that process".
inline constexpr uint32_t kNoThread = UINT32_MAX;

// Where the calls to a thread run.
enum class CallConsumer : uint8_t {
  kThread,   // in itself
  kHelpers,  // in the helper threads of the process (FabricOptions::helper_threads)
  kProcess,  // in the one process consumer
};

// What happens when a process of the job dies.
enum class FailurePolicy : uint8_t {
  kAbort,     // this process says who died, and ends with exit code 1
  kContinue,  // what was under way to it ends with UNAVAILABLE; everything else goes on
};

// Options, all with defaults. Sizes in bytes.
struct FabricOptions {
  // Long-lived threads per process. Default: what the launcher was asked for, else 1. Equal in all.
  std::optional<uint32_t> threads{};
  // Threads that receive whatever the others do: none, or one for each device. Workers receive
  // besides, when they process calls, and while they wait and are awake; a service thread stands
  // aside meanwhile. With 0 only they do, and waiting never sleeps.
  uint32_t service_threads = 1;
  uint32_t helper_threads = 0;
  // Connections between two processes; a thread uses the one of its index modulo this.
  uint32_t queue_pairs = 1;
  // Send-based calls: how many a sender may have under way on one connection, and how long one is
  // at most, header included. A connection takes receive_units * receive_unit_bytes at each end,
  // and as much again for what it sends.
  uint32_t receive_units = 16;
  uint32_t receive_unit_bytes = 4096;
  uint32_t send_depth = 256;
  // What calls may keep back for receivers that are behind, per process; and, as much again, what
  // of arrived calls waits for its thread outside of receive units, so that a thread that does not
  // run its calls holds up nobody else. Beyond it, whoever sends to this process waits.
  uint64_t deferred_bytes = uint64_t{64} << 20;
  FailurePolicy on_failure = FailurePolicy::kAbort;
  // Buffers for call_buffer that are not registered (user_buffer.h): up to this they are copied
  // into registered memory, which saves a registration, a system call; longer ones are registered
  // through the hook, or, without one, with the device for as long as they are needed.
  uint64_t bounce_bytes = 16u << 10;
  BufferRegistrar registrar{};
  // For making connections, and for each collective step of set-up.
  std::chrono::milliseconds timeout{30'000};
  // A heartbeat of the sleeping service thread: the longest that a missed event can go unnoticed.
  std::chrono::milliseconds heartbeat{100};
  // Over a network: after this time without an acknowledgement a message is sent again, and a peer
  // that lets seven of these pass counts as dead. More for hosts that stand still at times, as
  // virtual machines on a loaded machine do.
  std::chrono::milliseconds ack_timeout{67};
  // The devices to use, instead of shm to processes of the same host and verbs to others: for tests
  // on sim and fault. One device, used for every pair.
  std::shared_ptr<Device> device{};
};

// What a process has done so far. Counts.
struct FabricStatistics {
  uint64_t calls_sent = 0;  // send-based, also those to own threads
  uint64_t calls_run = 0;
  uint64_t calls_rejected = 0;  // arrived with an unknown function, malformed, or for no thread
  uint64_t sends = 0;           // messages of the send-based path, answers included
  uint64_t writes = 0;          // notifications and results sent by RDMA WRITE, credits included
  uint64_t credit_waits = 0;    // times that a sender found no credit
  uint64_t deferred = 0;        // messages that were kept back
  uint64_t connections = 0;
  uint64_t wakes = 0;   // of sleeping threads of other processes
  uint64_t rounds = 0;  // times that service threads woke, or found something without sleeping
};

// A long-lived thread's place in the fabric. Made by Fabric::init_thread, ends with the thread's
// use of it. Thread-compatible: it belongs to its thread.
class CARIAMA_DSFABRIC_EXPORT ThreadContext {
 public:
  ~ThreadContext();
  ThreadContext(const ThreadContext&) = delete;
  ThreadContext& operator=(const ThreadContext&) = delete;

  [[nodiscard]] Fabric& fabric() const { return fabric_; }
  [[nodiscard]] uint32_t index() const { return index_; }  // within the process
  [[nodiscard]] uint32_t global_id() const { return global_id_; }
  [[nodiscard]] int numa_node() const { return numa_node_; }  // where its memory is, or -1

  // Registered memory of this thread's own node, recycled by itself: for buffers to transfer.
  [[nodiscard]] CircularAllocator& buffers() { return *circular_allocator; }

  // The paper's name for it (Listing 1).
  std::unique_ptr<CircularAllocator> circular_allocator;

 private:
  friend class Fabric;
  ThreadContext(Fabric& fabric, uint32_t index, uint32_t global_id, int numa_node)
      : fabric_(fabric), index_(index), global_id_(global_id), numa_node_(numa_node) {}

  Fabric& fabric_;
  uint32_t index_;
  uint32_t global_id_;
  int numa_node_;
  bool named_ = false;  // the fabric knows it
};

// One process of a job. Thread-safe unless a function says otherwise. Usually one per
// operating-system process; several may live in one, for tests in simulated time.
class CARIAMA_DSFABRIC_EXPORT Fabric {
 public:
  // Joins the job: finds the launcher, opens devices, meets the others. Collective. Errors: those
  // of make_bootstrap and open_device; FAILED_PRECONDITION (another build, other options).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Fabric>> create(
      const FabricOptions& options = {});
  // With a bootstrap and a broker of the caller's: for simulated jobs. The broker is asked for a
  // handler's answer through `broker_of`, which is called once.
  using BrokerMaker = std::function<absl::StatusOr<std::unique_ptr<internal::Broker>>(
      Bootstrap&, std::function<absl::StatusOr<std::string>(int, std::string_view)>)>;
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Fabric>> create(
      const FabricOptions& options, std::unique_ptr<Bootstrap> bootstrap,
      const BrokerMaker& broker_of);

  // Without finalize() before it: leaves at once, as a process that dies, but orderly for itself.
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

  // Makes the calling thread worker `index` of this process: pins nothing, makes its allocator on
  // its own node. Errors: OUT_OF_RANGE, ALREADY_EXISTS (another thread has that index). The context
  // must be destroyed by the same thread, before the fabric.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<ThreadContext>> init_thread(
      uint32_t index, CallConsumer consumer = CallConsumer::kThread);
  // The context of the calling thread in this fabric, or nullptr.
  [[nodiscard]] ThreadContext* this_thread() const;

  // Runs calls that have arrived for the calling worker thread, `most` at most; if there are none,
  // looks for new ones itself. Never waits. Returns how many.
  size_t process_calls(size_t most = SIZE_MAX);
  // Lets calls in, sends what was kept back, notices what failed: the work of service threads. By
  // hand it is needed only without them, by a thread that neither processes calls nor waits in a
  // function of this class (Synchronizer::wait() does not receive). Never waits.
  size_t progress();
  // Waits for `condition` and runs calls meanwhile (on a worker thread); sleeps when there are
  // none. The condition has to become true by a call, by progress, or by wake(). False: the
  // deadline came first.
  [[nodiscard]] bool wait(const std::function<bool()>& condition, Deadline deadline = kForever);
  // As wait(), for a condition that a plain RDMA WRITE makes true, which wakes nobody: polls.
  [[nodiscard]] bool wait_polling(const std::function<bool()>& condition,
                                  Deadline deadline = kForever);
  // Makes worker `index` of this process look at its condition.
  void wake(uint32_t index);

  // The end of the job: every process calls it (one thread of each; the others have left, or go on
  // running their calls). Runs what is under way, also the calls to threads that have left; waits
  // for the others; then accepts no call any more. Errors: DEADLINE_EXCEEDED (names who did not
  // come; it may be called again), those of the bootstrap.
  [[nodiscard]] absl::Status finalize(Deadline deadline);

  // Whether finalize() has seen the job end: no call is accepted any more.
  [[nodiscard]] bool finalized() const;

  // OK, or UNAVAILABLE with the reason if that process is known to be dead.
  [[nodiscard]] absl::Status peer_status(uint32_t rank) const;

  // Registered memory of the process, for any thread.
  [[nodiscard]] GeneralAllocator& memory();
  // The connection to a process, made if need be: for code that transfers by itself (one
  // Transmitter per thread) beside calls. Blocks while connecting. Errors: UNAVAILABLE,
  // FAILED_PRECONDITION (refused: another build), INVALID_ARGUMENT (no such rank, or our own).
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
