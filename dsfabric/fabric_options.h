// The options of a fabric (fabric.h).
#ifndef CARIAMA_DSFABRIC_FABRIC_OPTIONS_H_
#define CARIAMA_DSFABRIC_FABRIC_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "dsfabric/export.h"
#include "dsfabric/failure_policy.h"
#include "dtutils/allocators/circular_allocator.h"
#include "dtutils/allocators/general_allocator.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/device.h"
#include "dtutils/registration/registration_cache.h"

namespace cariama {

// Where the calls to a thread run.
enum class CallConsumer : uint8_t {
  kThread,   // in the thread itself
  kHelpers,  // in the helper threads of the process (FabricOptions::helper_threads), and in
             // process_calls() of the thread itself
  kProcess,  // in the one process consumer
};

// Which threads of a process share a connection to another process.
enum class QueuePairSharing : uint8_t {
  kProcess,   // all threads share `queue_pairs` connections: worker i uses connection i modulo them
  kNumaNode,  // one connection for each NUMA node: a worker uses that of its node
  kThread,    // one connection for each long-lived thread
};

// Options, all with defaults. Sizes in bytes.
struct FabricOptions {
  // Limit of `threads`, `helper_threads`, `queue_pairs` and `receive_units`.
  static constexpr uint32_t kMaxPerProcess = 1u << 16;

  // Long-lived threads per process, from 1 to kMaxPerProcess, and less than 2^32 in the job.
  // Default: the number that the user has requested from the launcher (-t), else 1. Must be equal
  // in all processes.
  std::optional<uint32_t> threads{};
  // 1: for each device a thread receives independently of the workers. 0: there are no such
  // threads. Workers also receive when they process calls, and while they wait and are awake; the
  // service thread pauses meanwhile. With 0 only the workers receive, and waits poll instead of
  // sleeping.
  uint32_t service_threads = 1;
  uint32_t helper_threads = 0;  // at most kMaxPerProcess
  // Which threads share a connection to another process. `queue_pairs` is used with kProcess;
  // with kNumaNode and kThread, Fabric::options() returns the number that results. This number must
  // be equal in all processes. With more connections, fewer threads share a send queue. Each
  // connection takes the memory of its receive_units and send_depth. Each thread takes up to two
  // Transmitters of a connection, which has at most TransmitQueue::kMaxTransmitters: so at most 127
  // threads can share one.
  QueuePairSharing queue_pair_sharing = QueuePairSharing::kProcess;
  uint32_t queue_pairs = 1;  // from 1 to kMaxPerProcess
  // Send-based calls: receive_units, from 1 to kMaxPerProcess, is the largest number of messages
  // that a sender may have in flight on one connection; receive_unit_bytes, a multiple of 8 of at
  // least 256, is the maximum length of a message with its headers of 16 bytes (40 with an object
  // for `consumed`). A message in flight takes a unit of this size at each end.
  uint32_t receive_units = 16;
  uint32_t receive_unit_bytes = 4096;
  // Memory of the receive units of a process: each connection has reserved_units (at least 1; at
  // most receive_units are used) from its creation to its end. While messages arrive it takes more,
  // as long as all connections together have at most shared_unit_bytes of these. So the memory is
  // at most connections * reserved_units * receive_unit_bytes + shared_unit_bytes. A connection
  // without further units works with its reserved ones: its sender waits more often.
  uint32_t reserved_units = 4;  // 2 of them return their credits by one WRITE
  uint64_t shared_unit_bytes = uint64_t{4} << 20;
  // A sender that has sent no message on a connection for this time returns the units that are not
  // reserved. Checked at each heartbeat.
  std::chrono::milliseconds return_units_after{10'000};
  uint32_t send_depth = 256;  // operations in flight on a connection, at least 2
  // Limit per process of the calls that are deferred because their receivers have no room. Beyond
  // it a call that would be deferred is refused.
  uint64_t deferred_bytes = uint64_t{64} << 20;
  // Limit per process of the arrived calls that are copied out of their receive units because their
  // destination thread does not run them, so that this thread does not block calls to other
  // threads. Beyond it senders to this process run out of credits and wait. Calls within the
  // process count, too: at the limit Retry waits, and all others and calls inside a call are
  // refused. Answers count, but are not refused.
  uint64_t buffered_bytes = uint64_t{64} << 20;
  // Limit of the sum of the chunks that this process grants to incoming one-sided channels
  // (messenger_options.h). The last quarter is only for the first chunk of a channel. At the limit
  // a sender continues with its chunks; a call of a sender that has none, or none that is large
  // enough, gets RESOURCE_EXHAUSTED or is deferred (RetryAsync). Default: no limit. Each thread
  // registers the memory of its chunks in pieces of superpages.chunk_bytes, so up to that much more
  // for each thread is registered. The process's memory budget applies in addition.
  uint64_t channel_bytes = std::numeric_limits<uint64_t>::max();
  // Default: the failure of a process is an error of the operations that need the process.
  FailurePolicy on_failure = FailurePolicy::kContinue;
  // Registered memory of the process: superpages and chunks of each NUMA node. Chunks are smaller
  // than dtutils' default because a fabric of many processes takes many small ones.
  RDMAAllocatorOptions superpages{.chunk_bytes = size_t{64} << 10};
  // ThreadContext::buffers() of each thread.
  CircularAllocatorOptions thread_buffers{.initial_units = 16};
  // Fabric::memory(), and the global memory that this process owns.
  GeneralAllocatorOptions general_memory{};
  // Memory that the user did not register, as the buffer of a call (user_buffer.h) or of a
  // Transmitter on one of the fabric's connections: up to this size it is copied into registered
  // memory. Longer memory is registered through a RegistrationCache for each device, whose policy
  // decides how long it stays registered. The helpers of these caches share a board with those of
  // the other processes of the job on this host (helper_board.h): a helper runs only if the job
  // leaves a core idle, unless HelperOptions say otherwise. Jobs do not see each other's boards.
  uint64_t bounce_bytes = 16u << 10;
  // Returns the options of such a cache. Called at the first use of longer memory through each
  // device, since a policy serves one cache. Empty: the defaults (least recently used memory is
  // deregistered at the budget).
  //   options.registration = [] { return RegistrationOptions{.max_bytes = size_t{1} << 30}; };
  std::function<RegistrationOptions()> registration{};
  // Time limit for making a connection, and for each collective step of set-up. More than 0.
  std::chrono::milliseconds timeout{30'000};
  // If not zero: after this time a call with Retry (the default) that still finds no room at its
  // destination returns DEADLINE_EXCEEDED and is not sent; also one of a messenger. So a thread
  // does not wait longer for a process that is stopped, or that does not run its calls. Zero: the
  // call waits until there is room, or until the destination's process fails.
  std::chrono::milliseconds retry_timeout{0};
  // Interval at which a sleeping service thread wakes to detect failures, to give a sign of life
  // and to retry deferred work. The arrival of calls does not depend on it. Must be
  // more than 0. With service_threads == 0 it may be 0: then at each poll.
  std::chrono::milliseconds heartbeat{100};
  // If not zero: a process that gives no sign of life for this time is considered failed, as if it
  // had died. The process may only be stopped (SIGSTOP, a debugger) or get no processor time.
  // Operations that wait for the process then end with UNAVAILABLE. The other processes cut their
  // connections to it, so when it continues, its own operations to them fail. (It can still access
  // memory of other processes of its host that it has mapped.) Zero: operations wait for a stopped
  // process, and only a deadline ends them.
  //
  // A sign of life is a WRITE of 8 bytes to each connected process at each heartbeat, sent by the
  // service threads. With service_threads == 0 a process gives signs only while it waits, polls for
  // calls, or calls progress(). Time during which the observing process is stopped does not count.
  // So a job that is stopped and continued as a whole loses no process.
  //
  // Must be at least four heartbeats, and equal in all processes. Choose it longer than any pause
  // that the machines impose: paging, and more runnable threads than cores.
  std::chrono::milliseconds lease{0};
  // For verbs: after this time without an acknowledgement a message is sent again. A peer that
  // lets seven of these intervals pass is considered failed. Raise it for hosts that stall, such as
  // virtual machines on a loaded host.
  std::chrono::milliseconds ack_timeout{67};
  // One device to use for every pair of processes, instead of shm within a host and verbs between
  // hosts: for jobs on sim and fault.
  std::shared_ptr<Device> device{};

  // Returns the values of Seriema where the paper states them: superpages of 1 GiB from the start
  // in chunks of 2 MiB (section 4.2). The paper does not state how many receive units a process
  // has, nor how queue pairs are shared: these keep their defaults. A process then takes at least
  // 1 GiB for each NUMA node on which it has threads.
  [[nodiscard]] static FabricOptions paper() {
    FabricOptions options;
    options.superpages = RDMAAllocatorOptions::paper();
    return options;
  }
};

// Returns the options of the preset `name`: "default" or "paper". Error: INVALID_ARGUMENT.
[[nodiscard]] CARIAMA_DSFABRIC_EXPORT absl::StatusOr<FabricOptions> fabric_preset(
    std::string_view name);

}  // namespace cariama

#endif  // CARIAMA_DSFABRIC_FABRIC_OPTIONS_H_
