// The transport contract: devices and the objects created from them.
//
//   auto device = open_device({});  // verbs if a device with an active port exists, else shm
//   auto domain = (*device)->create_domain();
//   auto completions = (*domain)->create_completion_queue({});
//   auto memory = (*domain)->register_memory({buffer, size}, Access::kAll);
//   auto queue_pair = (*domain)->create_queue_pair({.send_completions = *completions, ...});
//   ... send (*queue_pair)->address() to the peer, and connect() on both sides ...
//
// The contract has four implementations: verbs (libibverbs), shm (processes of one host), sim (a
// simulated cluster in one process) and fault (a decorator that injects failures). A program
// written against this header runs on all of them.
//
// Ownership: an object keeps alive the objects from which it was created, so any order of
// destruction is safe.
// Thread-safety: any thread may call any function unless a class states otherwise.
#ifndef CARIAMA_DTUTILS_DEVICE_H_
#define CARIAMA_DTUTILS_DEVICE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/completion.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"
#include "dtutils/queue_pair.h"

namespace cariama {

enum class Transport : uint8_t { kVerbs, kShm, kSim, kFault };

// "verbs", "shm", "sim", "fault".
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view transport_name(Transport transport);

// Limits of a device, queried from it and never assumed. Sizes in bytes.
struct DeviceLimits {
  uint32_t max_send_depth = 0;
  uint32_t max_receive_depth = 0;
  uint32_t max_completions = 0;  // of one completion queue
  uint32_t max_segments = 0;
  uint32_t max_inline = 0;
  uint32_t max_outstanding_reads = 0;
  uint32_t mtu = 0;
  uint64_t max_message = 0;
  bool atomics = false;  // FETCH_ADD and COMPARE_SWAP
};

// An object on which a thread sleeps until a completion arrives. Any number of completion queues
// may share one channel. At most one thread at a time may wait on it.
class CARIAMA_DTUTILS_EXPORT CompletionChannel {
 public:
  virtual ~CompletionChannel() = default;

  // Sleeps until an armed completion queue has a completion, or until `timeout` has passed. Returns
  // false after the timeout. May return true although no completion arrived, so call it in the
  // usual loop: poll, arm, poll again, wait. An event that came between arm() and wait() is not
  // lost.
  [[nodiscard]] virtual bool wait(std::chrono::nanoseconds timeout) = 0;

  // Makes one present or future wait() return true. Async-signal-safe. Thread-safe.
  virtual void wake() = 0;
};

struct CompletionQueueOptions {
  // The minimum number of completions that fit. Use the sum of send_depth + receive_depth of all
  // queue pairs that use the queue: a failing queue pair reports each outstanding request.
  uint32_t depth = 4096;
  std::shared_ptr<CompletionChannel> channel{};  // optional
};

class CARIAMA_DTUTILS_EXPORT CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;

  // Takes up to completions.size() completions and returns their number. Never blocks. Several
  // threads may poll at once; each completion is delivered to one of them. Polling drives progress
  // on transports that need it (sim: virtual time; shm: sends that wait for a posted receive).
  [[nodiscard]] virtual size_t poll(std::span<Completion> completions) = 0;

  // Requests one event on the channel at the next completion (solicited_only: at the next
  // completion of a message sent with kSolicited, or of a failed request). Poll once more after
  // arming, before waiting. Error: FAILED_PRECONDITION without a channel.
  [[nodiscard]] virtual absl::Status arm(bool solicited_only = false) = 0;

  [[nodiscard]] virtual uint32_t depth() const = 0;
};

struct SharedReceiveQueueOptions {
  uint32_t depth = 1024;
  uint32_t max_segments = 1;
};

// A queue of receives that all queue pairs created with it consume. The completion of a receive is
// delivered to the receive completion queue of the consuming queue pair.
class CARIAMA_DTUTILS_EXPORT SharedReceiveQueue {
 public:
  virtual ~SharedReceiveQueue() = default;
  [[nodiscard]] virtual PostResult post_receive(std::span<const ReceiveRequest> requests) = 0;
  [[nodiscard]] PostResult post_receive(const ReceiveRequest& request) {
    return post_receive(std::span(&request, 1));
  }
  [[nodiscard]] virtual uint32_t depth() const = 0;
};

// Memory regions can be used only with the queue pairs of their own domain.
class CARIAMA_DTUTILS_EXPORT ProtectionDomain {
 public:
  virtual ~ProtectionDomain() = default;

  // Registers the source's memory with the device (verbs: pins it). The cost grows with the size.
  // Errors: INVALID_ARGUMENT (null or empty range, descriptor too short or not sealed),
  // RESOURCE_EXHAUSTED (memlock: the text names the limit and the remedy).
  [[nodiscard]] virtual absl::StatusOr<std::shared_ptr<MemoryRegion>> register_memory(
      const MemorySource& source, Access access) = 0;

  // Returns true if register_memory() pins the memory, which counts against RLIMIT_MEMLOCK (verbs).
  [[nodiscard]] virtual bool pins_memory() const { return true; }

  [[nodiscard]] virtual absl::StatusOr<std::shared_ptr<CompletionChannel>> create_channel() = 0;
  [[nodiscard]] virtual absl::StatusOr<std::shared_ptr<CompletionQueue>> create_completion_queue(
      const CompletionQueueOptions& options) = 0;
  [[nodiscard]] virtual absl::StatusOr<std::shared_ptr<SharedReceiveQueue>>
  create_shared_receive_queue(const SharedReceiveQueueOptions& options) = 0;

  // Creates an unconnected queue pair. Errors: INVALID_ARGUMENT (no completion queue, or one of
  // another device; a depth of 0), RESOURCE_EXHAUSTED.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<QueuePair>> create_queue_pair(
      const QueuePairOptions& options) = 0;
};

class CARIAMA_DTUTILS_EXPORT Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual Transport transport() const = 0;
  // "rxe0 port 1 gid 1 (::ffff:10.77.0.1)", "shm", "sim endpoint 17", "fault(shm)".
  [[nodiscard]] virtual std::string description() const = 0;
  [[nodiscard]] virtual const DeviceLimits& limits() const = 0;
  // The NUMA node that the device is attached to, or -1.
  [[nodiscard]] virtual int numa_node() const = 0;
  [[nodiscard]] virtual absl::StatusOr<std::shared_ptr<ProtectionDomain>> create_domain() = 0;
};

// Selects the device to open. Each empty field takes the default stated beside it.
struct DeviceOptions {
  // Default: the environment variable CARIAMA_TRANSPORT ("verbs" or "shm"), else verbs if a device
  // with an active port exists, else shm. kSim and kFault devices are created by separate functions
  // (sim/sim_fabric.h, fault/fault_device.h).
  std::optional<Transport> transport{};
  // verbs only. The environment variables CARIAMA_DEVICE, CARIAMA_PORT and CARIAMA_GID_INDEX
  // replace the fields that are empty.
  std::string name{};              // "mlx5_0"; default: the first device with an active port
  std::optional<uint32_t> port{};  // default: the first active port
  // RoCE. Default: the RoCE v2 entry of an IPv4 address, else of a routable IPv6 address, else any
  // RoCE v2 entry.
  std::optional<uint32_t> gid_index{};
};

// Opens a device. The error text names the requested device, the devices present, and the remedy. A
// device named explicitly is never replaced by another.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT absl::StatusOr<std::shared_ptr<Device>> open_device(
    const DeviceOptions& options);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_DEVICE_H_
