// QueuePairAccess: RemoteAccess over the queue pairs of dtutils, the same code for all transports.
//
// Memory: connect() publishes the region of each worker (stack and tail of StackRegion). Segments
// of the pinned area are registered later. Their locators are in a table in the tail of the owner.
// A peer reads an entry of this table when it first uses an address in the segment, which costs one
// more round trip for each segment of each peer.
//
// Costs with P workers: each worker has P queue pairs (P - 1 if atomics on its own memory are those
// of its CPU) and one completion queue, and a table of 40 bytes for each segment of each peer.
#ifndef CARIAMA_TASKS_INTERNAL_QUEUE_PAIR_ACCESS_H_
#define CARIAMA_TASKS_INTERNAL_QUEUE_PAIR_ACCESS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/process_group.h"
#include "dtutils/queue_pair.h"
#include "tasks/internal/atomic_server.h"
#include "tasks/internal/pinned_area.h"
#include "tasks/internal/remote_access.h"

namespace cariama::tasks {

// Registered memory in the tail of a worker's region, 64-byte aligned, initially zeros.
struct alignas(64) AccessArea {
  std::array<RemoteMemoryLocator, kMaxSegments> segments;  // address 0: not registered yet
  uint64_t atomic_result;              // result buffer of fetch_add() and compare_swap()
  uint64_t discarded_result;           // result buffer of post_add(), which may be in flight
  std::array<std::byte, 120> staging;  // source of writes that the device cannot post inline
};

class QueuePairAccess final : public RemoteAccess {
 public:
  // Registers `region` and connects to all other ranks of the exchange. Collective. Blocks until
  // all ranks are connected or `deadline` passes. `area` lies in `region`; both must outlive this
  // object. `name` is the prefix of the keys in the exchange and must differ for each connect().
  // If `served` is empty, the device executes atomics. Otherwise `served` holds one cell for each
  // rank, in `region` and initially zero, and a thread of the worker that owns the memory executes
  // them (atomic_server.h). `ack_timeout`: of each connection (ConnectOptions).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<QueuePairAccess>> connect(
      Exchange& exchange, std::shared_ptr<Device> device, const MemorySource& region,
      AccessArea& area, Exchange::Deadline deadline, const std::string& name = "tasks",
      std::span<AtomicCell> served = {},
      std::chrono::microseconds ack_timeout = ConnectOptions().ack_timeout);

  using RemoteAccess::read;
  absl::Status read(int peer, std::span<const ReadPiece> pieces) override;
  absl::Status write(int peer, uint64_t address, const void* local, size_t bytes) override;
  absl::StatusOr<uint64_t> fetch_add(int peer, uint64_t address, uint64_t addend) override;
  absl::StatusOr<uint64_t> compare_swap(int peer, uint64_t address, uint64_t expected,
                                        uint64_t desired) override;
  absl::Status post_add(int peer, uint64_t address, uint64_t addend) override;
  absl::Status add_segment(size_t index, const MemorySource& source) override;
  [[nodiscard]] void* mapped(int peer, uint64_t address, size_t bytes) override;

 private:
  struct Peer {
    std::unique_ptr<QueuePair> queue_pair;
    RemoteMemoryLocator region;
    std::array<RemoteMemoryLocator, kMaxSegments> segments;
    uint32_t unsignaled = 0;       // requests posted since the last signaled one
    uint32_t most_unsignaled = 1;  // limit of `unsignaled`, so that the send queue always has room
    bool request_pending = false;  // the peer has not answered the last request for an atomic yet
    absl::Status failure;  // of the first operation that has failed; returned by all later ones
  };

  QueuePairAccess(Exchange& exchange, const MemorySource& region, AccessArea& area,
                  std::span<AtomicCell> served, std::chrono::microseconds ack_timeout)
      : RemoteAccess(exchange.rank(), exchange.size()),
        source_(region),
        area_(area),
        served_(served),
        ack_timeout_(ack_timeout) {}
  [[nodiscard]] absl::Status set_up(Exchange& exchange, std::shared_ptr<Device> device,
                                    Exchange::Deadline deadline, const std::string& name);

  // Sets remote address and key of `request` for `bytes` bytes at `remote` of the peer. Reads the
  // locator of the segment from the peer if it is not known yet. Error: INTERNAL (not registered).
  [[nodiscard]] absl::Status address(int peer, uint64_t remote, size_t bytes, WorkRequest& request);
  // Returns the local key of registered memory of this worker. Error: INTERNAL (not registered).
  [[nodiscard]] absl::StatusOr<LocalKey> local_key(const void* local, size_t bytes) const;
  // Returns true if the 8 bytes at `address` are registered memory of this worker. Thread-safe: the
  // server of atomics calls it.
  [[nodiscard]] bool is_known(uint64_t address) const;
  // Connects the two queue pairs between this rank and `peer` that served atomics need.
  [[nodiscard]] absl::Status connect_served(Exchange& exchange, int peer,
                                            Exchange::Deadline deadline, const std::string& pair);
  // send_request() posts a request for an atomic to the server at the peer, after the answer to the
  // last request has arrived. await_answer() blocks until the last request is answered. serve()
  // sends a request, waits for its answer, and returns the old value.
  [[nodiscard]] absl::Status send_request(int peer, const AtomicRequest& request);
  [[nodiscard]] absl::Status await_answer(int peer);
  [[nodiscard]] absl::StatusOr<uint64_t> serve(int peer, const AtomicRequest& request);
  // Polls one completion. Its id is 0 if there was none. An error of an operation on another peer
  // than `awaited` is returned by the next operation on that peer.
  struct Done {
    uint64_t id = 0;
    absl::Status status;
  };
  [[nodiscard]] Done poll(int awaited);
  // Posts the requests as one list, the last one signaled, and blocks until they are
  // complete.
  [[nodiscard]] absl::Status execute(int peer, std::span<WorkRequest> requests);
  // Posts a request. Blocks only if there are most_unsignaled unsignaled requests: then this one is
  // signaled, and post() waits for its completion.
  [[nodiscard]] absl::Status post(int peer, WorkRequest& request);
  // Posts an atomic, blocks until it is complete, and returns the old value.
  [[nodiscard]] absl::StatusOr<uint64_t> atomic(int peer, uint64_t remote, WorkRequest request);

  const MemorySource source_;
  AccessArea& area_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<ProtectionDomain> domain_;
  std::shared_ptr<CompletionQueue> completions_;
  std::shared_ptr<MemoryRegion> region_;
  std::array<std::shared_ptr<MemoryRegion>, kMaxSegments> segments_;
  std::vector<Peer> peers_;
  const std::span<AtomicCell> served_;
  const std::chrono::microseconds ack_timeout_;
  std::atomic<size_t> segment_count_{0};
  // True if all atomics on this worker's memory are executed by CPUs (shm, or served atomics). The
  // worker then accesses its own memory directly, without a queue pair to itself.
  bool native_atomics_ = false;
  std::unique_ptr<AtomicServer> server_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_QUEUE_PAIR_ACCESS_H_
