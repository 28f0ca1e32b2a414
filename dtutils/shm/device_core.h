// The shm device, and what its queue pairs need of it. See shm_device.h for users.
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

// Shared memory of a destroyed queue pair that its peer may still be writing to.
struct Remains {
  std::shared_ptr<Link> link;
  const QueuePairHeader* peer = nullptr;
  uint32_t peer_serial = 0;
  uint32_t index = 0;  // in the queue pair table
  ControlBlock ring;
  std::shared_ptr<ReceiveQueue> receives;

  // Whether the peer can no longer touch it: it is outside of any operation (and was told before),
  // was destroyed itself, or its process has ended.
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

  // True in a forked child of the process that opened the device. The threads are not there and the
  // shared state is the parent's: destructors leave both alone.
  [[nodiscard]] bool inherited() const { return getpid() != pid_; }

  // A place in the queue pair table and a serial number that was never used.
  struct Place {
    uint32_t index;
    uint32_t serial;
  };
  [[nodiscard]] std::optional<Place> take_place();

  void add(ShmQueuePair* queue_pair);
  // After it no thread of the device touches the queue pair.
  void remove(ShmQueuePair* queue_pair);
  // Frees it, at once or when the peer is known to be out of it.
  void bury(Remains remains);

  // The link to a peer device, made when first asked for. The queue pair's use of it is counted;
  // give it back with release().
  [[nodiscard]] absl::StatusOr<std::shared_ptr<Link>> link_to(const Uuid& uuid, int pid,
                                                              std::string_view peer);
  void release(const std::shared_ptr<Link>& link);
  [[nodiscard]] absl::StatusOr<std::shared_ptr<Link>> known_link(const Uuid& uuid,
                                                                 std::string_view peer);
  // Gives the queue pair its link, in one step with peer_ended(): one of the two sees the other.
  void bind(ShmQueuePair* queue_pair, const std::shared_ptr<Link>& link);

  // Queue pairs with operations that wait for a receiver.
  [[nodiscard]] bool anything_waits() const {
    return waiting_.load(std::memory_order_relaxed) != 0;
  }
  void count_waiting(int change);
  // Tries waiting operations of the queue pairs that report to `completions`. Never blocks.
  void progress_sends(const ShmCompletionQueue* completions);

  // Service::Client
  bool progress() override;
  void process_ended(const std::shared_ptr<Link>& link) override;

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

  std::mutex queue_pairs_mutex_;  // before the mutex of a queue pair
  std::vector<ShmQueuePair*> queue_pairs_;

  std::mutex places_mutex_;
  uint32_t unused_place_ = 0;
  uint32_t next_serial_ = 1;
  std::vector<uint32_t> free_places_;
  std::vector<Remains> remains_;

  // Held while a peer is asked, so that two callers do not make two links to it. Never taken by the
  // service thread: two devices that connect to each other wait for each other's.
  std::mutex connecting_mutex_;
  std::mutex links_mutex_;
  std::map<Uuid, std::shared_ptr<Link>> links_;

  // Last: their threads call into the above.
  std::unique_ptr<PeerWatch> watch_;
  std::unique_ptr<Service> service_;
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_DEVICE_CORE_H_
