// The shm device, and the functions that its queue pairs need. The public header is shm_device.h.
#ifndef CARIAMA_DTUTILS_SHM_DEVICE_CORE_H_
#define CARIAMA_DTUTILS_SHM_DEVICE_CORE_H_

#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/shm/control_segment.h"
#include "dtutils/shm/link.h"
#include "dtutils/shm/receive_queue.h"
#include "dtutils/shm/region_table.h"
#include "dtutils/shm/robust_lock.h"
#include "dtutils/shm/service.h"

namespace cariama::shm {

class ShmCompletionQueue;
class ShmQueuePair;

// Shared memory of a destroyed queue pair to which its peer may still be writing.
struct RetiredQueuePair {
  std::shared_ptr<Link> link;
  const QueuePairHeader* peer = nullptr;
  uint32_t peer_serial = 0;
  uint32_t index = 0;  // index in the queue pair table
  ControlBlock ring;
  std::shared_ptr<ReceiveQueue> receives;

  // Returns true if the peer can no longer access the memory: the peer is outside of any operation
  // (and was notified of the destruction before), the peer's queue pair was destroyed itself, or
  // its process has ended.
  [[nodiscard]] bool reusable() const {
    return link == nullptr || link->ended.load() ||
           QueuePairStatus(peer->status.load()).serial() != peer_serial ||
           peer->in_peer.load() == 0;
  }
};

class ShmDevice final : public Device,
                        public Service::Client,
                        public std::enable_shared_from_this<ShmDevice> {
 public:
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<Device>> open();
  ~ShmDevice() override;

  Transport transport() const override { return Transport::kShm; }
  std::string description() const override { return "shm"; }
  const DeviceLimits& limits() const override { return limits_; }
  int numa_node() const override { return -1; }
  absl::StatusOr<std::shared_ptr<ProtectionDomain>> create_domain() override;

  [[nodiscard]] const std::shared_ptr<ControlSegment>& control() const { return control_; }
  [[nodiscard]] RegionTable& regions() { return *regions_; }
  [[nodiscard]] Service& service() { return *service_; }

  // Returns true in a forked child of the process that opened the device. The device's threads do
  // not exist there and the shared state belongs to the parent, so destructors must leave both
  // unchanged.
  [[nodiscard]] bool inherited() const { return getpid() != pid_; }

  // An index in the queue pair table, and a serial number that was never used before.
  struct Place {
    uint32_t index;
    uint32_t serial;
  };
  [[nodiscard]] std::optional<Place> take_place();

  void add(ShmQueuePair* queue_pair);
  // Removes the queue pair. After the return no thread of the device accesses it.
  void remove(ShmQueuePair* queue_pair);
  // Takes the memory of a destroyed queue pair, and frees it as soon as retired.reusable().
  void retire(RetiredQueuePair retired) noexcept;

  // Returns the link to a peer device, and creates it on first use. Counts one use for the queue
  // pair; the caller must return it with release().
  [[nodiscard]] absl::StatusOr<std::shared_ptr<Link>> link_to(const Uuid& uuid, int pid,
                                                              std::string_view peer);
  void release(const std::shared_ptr<Link>& link);
  [[nodiscard]] absl::StatusOr<std::shared_ptr<Link>> known_link(const Uuid& uuid,
                                                                 std::string_view peer);
  // Gives the queue pair its link, atomically with respect to peer_ended(): either peer_ended()
  // finds the queue pair, or bind() sees that the peer has ended.
  void bind(ShmQueuePair* queue_pair, const std::shared_ptr<Link>& link);

  // Returns true if queue pairs have operations that wait for a posted receive.
  [[nodiscard]] bool anything_waits() const {
    return waiting_.load(std::memory_order_relaxed) != 0;
  }
  void count_waiting(int change);
  // Retries the waiting operations of the queue pairs that report to `completions`. Never blocks.
  void progress_sends(const ShmCompletionQueue* completions);

  // Service::Client
  bool progress() override;
  void process_ended(const std::shared_ptr<Link>& link) override;
  void connection_ended(const std::shared_ptr<Link>& link) override;

 private:
  explicit ShmDevice(std::shared_ptr<ControlSegment> control);
  void peer_ended(const std::shared_ptr<Link>& link);
  void sweep();

  const pid_t pid_ = getpid();
  DeviceLimits limits_;
  std::shared_ptr<ControlSegment> control_;
  std::unique_ptr<RegionTable> regions_;
  std::atomic<uint32_t> next_domain_{1};
  std::atomic<int> waiting_{0};

  std::mutex queue_pairs_mutex_;  // locked before the mutex of a queue pair
  std::vector<ShmQueuePair*> queue_pairs_;

  std::mutex places_mutex_;
  uint32_t unused_place_ = 0;
  uint32_t next_serial_ = 1;
  std::vector<uint32_t> free_places_;
  std::vector<RetiredQueuePair> retired_;

  // Locked while a link is added, so that two callers do not add two links to one peer. Not locked
  // while a caller waits for the answer of a peer's process.
  std::mutex adding_mutex_;
  std::mutex links_mutex_;
  std::map<Uuid, std::shared_ptr<Link>> links_;

  // Declared last, so that these threads stop before the members above are destroyed.
  std::unique_ptr<PeerWatch> watch_;
  std::unique_ptr<Service> service_;
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_DEVICE_CORE_H_
