// RemoteAccess over the queue pairs of dtutils: the same code on shm, verbs and sim.
//
// Memory. At connect() every worker makes one region known (stack and tail of StackRegion). Its
// segments of the pinned area follow as they are made: their locators lie in a table in the tail,
// which a peer reads when it meets an address of a segment that it does not know yet: one more
// round trip for each segment of each peer.
//
// Costs, P workers: each has P queue pairs (one to itself, where the device's atomics need it) and
// one completion queue; 40 bytes of table for each segment of each peer.
#ifndef CARIAMA_TASKS_INTERNAL_QUEUE_PAIR_ACCESS_H_
#define CARIAMA_TASKS_INTERNAL_QUEUE_PAIR_ACCESS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/process_group.h"
#include "tasks/internal/atomic_server.h"
#include "tasks/internal/pinned_area.h"
#include "tasks/internal/remote_access.h"

namespace cariama::tasks {

// Lies in the tail of a worker's region, 64-byte aligned, zeros at first.
struct alignas(64) AccessArea {
  std::array<RemoteMemoryLocator, kMaxSegments> segments;  // address 0: not made yet
  uint64_t atomic_result;
  uint64_t discarded_result;           // of post_add(), which may still be under way
  std::array<std::byte, 120> staging;  // of writes that the device cannot take inline
};

class CARIAMA_TASKS_EXPORT QueuePairAccess final : public RemoteAccess {
 public:
  // Registers `region` and connects with all other ranks of the exchange, which do the same.
  // `area` lies in `region`. Both are kept. `name`: what its keys in the exchange begin with,
  // another one for each connect(). Blocks until all are connected, or until `deadline`. With
  // `served`, cells in `region` for each rank, zeros at first, the device's atomics are not used:
  // those on a worker's memory are executed by a thread of that worker (atomic_server.h).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<QueuePairAccess>> connect(
      Exchange& exchange, std::shared_ptr<Device> device, const MemorySource& region,
      AccessArea& area, Exchange::Deadline deadline, const std::string& name = "tasks",
      std::span<AtomicCell> served = {});

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
    uint32_t unsignaled = 0;       // posted since the last signaled request
    uint32_t most_unsignaled = 1;  // so many; then one is signaled, so that there is always room
    bool asked = false;            // an atomic that it serves has not been answered yet
  };

  QueuePairAccess(Exchange& exchange, const MemorySource& region, AccessArea& area,
                  std::span<AtomicCell> served)
      : RemoteAccess(exchange.rank(), exchange.size()),
        source_(region),
        area_(area),
        served_(served) {}
  [[nodiscard]] absl::Status set_up(Exchange& exchange, std::shared_ptr<Device> device,
                                    Exchange::Deadline deadline, const std::string& name);

  // The rest of a request, which must have room for `segment`.
  [[nodiscard]] absl::Status address(int peer, uint64_t remote, size_t bytes, WorkRequest& request);
  [[nodiscard]] absl::StatusOr<LocalKey> local_key(const void* local, size_t bytes) const;
  // Whether the 8 bytes at `address` are memory of this worker that peers know.
  [[nodiscard]] bool is_known(uint64_t address) const;
  [[nodiscard]] absl::Status connect_served(Exchange& exchange, int peer,
                                            Exchange::Deadline deadline, const std::string& pair);
  // Sends a request for a served atomic; and waits for the answer to the last one, if there is one.
  [[nodiscard]] absl::Status ask(int peer, const AtomicRequest& request);
  [[nodiscard]] absl::Status await_answer(int peer);
  [[nodiscard]] absl::StatusOr<uint64_t> serve(int peer, const AtomicRequest& request);
  // Takes one completion, if there is one (id is 0 otherwise).
  struct Done {
    uint64_t id = 0;
    absl::Status status;
  };
  [[nodiscard]] Done poll();
  // Posts, and waits until it has completed.
  [[nodiscard]] absl::Status execute(int peer, std::span<WorkRequest> requests);
  // Posts without waiting, but for room.
  [[nodiscard]] absl::Status post(int peer, WorkRequest& request);
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
  std::atomic<size_t> segment_count_{0};
  bool native_atomics_ = false;  // of the own memory: all atomics on it are the CPU's
  std::unique_ptr<AtomicServer> server_;
};

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_QUEUE_PAIR_ACCESS_H_
