#include "dtutils/shm/device_core.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <optional>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/shm/domain.h"
#include "dtutils/shm/queue_pair.h"
#include "dtutils/shm/shm_device.h"

namespace cariama::shm {
namespace {

// Timeout for the answer of a peer's service thread. Long, because that thread may share its
// processor with spinning threads.
constexpr std::chrono::seconds kLinkTimeout{10};

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> ShmDevice::open() {
  Uuid uuid;
  if (getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
    return make_errno_error(errno, ErrorScope::kProcess, "getrandom", "");
  }
  auto control = ControlSegment::create(uuid);
  if (!control.ok()) return control.status();
  std::shared_ptr<ShmDevice> device(new ShmDevice(*control));
  auto regions = RegionTable::create(*control);
  if (!regions.ok()) return regions.status();
  device->regions_ = *std::move(regions);
  device->watch_ = std::make_unique<PeerWatch>(
      [raw = device.get()](const std::shared_ptr<Link>& link) { raw->peer_ended(link); });
  device->service_ = std::make_unique<Service>(*control, device->regions_.get(), device.get());
  if (absl::Status status = device->service_->start(); !status.ok()) return status;
  add_local_segment(*control);
  return std::shared_ptr<Device>(std::move(device));
}

ShmDevice::ShmDevice(std::shared_ptr<ControlSegment> control) : control_(std::move(control)) {
  limits_.max_send_depth = kMaxDepth;
  limits_.max_receive_depth = kMaxDepth;
  limits_.max_completions = 1u << 22;
  limits_.max_segments = kMaxSegments;
  limits_.max_inline = 1024;
  limits_.max_outstanding_reads = kMaxDepth;  // READs complete during posting
  limits_.mtu = 4096;
  limits_.max_message = kMaxMessage;
  limits_.atomics = true;
}

ShmDevice::~ShmDevice() {
  if (inherited()) {
    // In a forked child the threads do not exist, so it must neither join them nor destroy their
    // objects.
    static_cast<void>(service_.release());
    static_cast<void>(watch_.release());
    return;
  }
  remove_local_segment(control_->uuid());
  // The threads of the service and of the watch call each other's object, so the service's thread
  // is stopped first, while both objects exist.
  if (service_ != nullptr) service_->stop();  // nullptr: open() has failed before
  watch_.reset();
}

absl::StatusOr<std::shared_ptr<ProtectionDomain>> ShmDevice::create_domain() {
  return std::make_shared<ShmDomain>(shared_from_this(), next_domain_.fetch_add(1));
}

std::optional<ShmDevice::Place> ShmDevice::take_place() {
  sweep();
  std::lock_guard lock(places_mutex_);
  // The destructor of the queue pair, which calls retire(), needs no memory for these lists then.
  retired_.reserve(unused_place_ + 1);
  free_places_.reserve(unused_place_ + 1);
  uint32_t index;
  if (!free_places_.empty()) {
    index = free_places_.back();
    free_places_.pop_back();
  } else if (unused_place_ < kMaxQueuePairs) {
    index = unused_place_++;
  } else {
    return std::nullopt;
  }
  return Place{index, next_serial_++};
}

void ShmDevice::add(ShmQueuePair* queue_pair) {
  std::lock_guard lock(queue_pairs_mutex_);
  queue_pairs_.push_back(queue_pair);
}

void ShmDevice::remove(ShmQueuePair* queue_pair) {
  std::lock_guard lock(queue_pairs_mutex_);
  std::erase(queue_pairs_, queue_pair);
}

void ShmDevice::retire(RetiredQueuePair retired) noexcept {
  {
    std::lock_guard lock(places_mutex_);
    retired_.push_back(std::move(retired));
  }
  sweep();
}

void ShmDevice::sweep() {
  const auto take = [this](size_t& at) -> std::optional<RetiredQueuePair> {
    std::lock_guard lock(places_mutex_);
    while (at < retired_.size() && !retired_[at].reusable()) ++at;
    if (at >= retired_.size()) return std::nullopt;
    RetiredQueuePair item = std::move(retired_[at]);
    if (at + 1 != retired_.size()) retired_[at] = std::move(retired_.back());
    retired_.pop_back();
    return item;
  };
  size_t at = 0;
  while (std::optional<RetiredQueuePair> item = take(at)) {
    // Repost the receives of a shared receive queue that were claimed for this queue pair and never
    // reported.
    const uint32_t claimant = item->index + 1;
    try {
      for (uint32_t slot : item->receives->claimed_by(claimant)) {
        item->receives->repost(slot, claimant);
      }
    } catch (const std::bad_alloc&) {  // a later sweep reposts them
      std::lock_guard lock(places_mutex_);
      retired_.push_back(*std::move(item));
      return;
    }
    if (item->link != nullptr) release(item->link);
    item->ring = ControlBlock();
    std::lock_guard lock(places_mutex_);
    free_places_.push_back(item->index);
  }
}

// Returns the link and counts one more use of it, or nullptr if there is no link yet.
absl::StatusOr<std::shared_ptr<Link>> ShmDevice::known_link(const Uuid& uuid,
                                                            std::string_view peer) {
  std::lock_guard lock(links_mutex_);
  auto it = links_.find(uuid);
  if (it == links_.end()) return nullptr;
  if (it->second->state.load() != PeerState::kAlive) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                      "connect to " + std::string(peer) + ": its process has ended",
                      "restart the peer");
  }
  ++it->second->users;
  return it->second;
}

absl::StatusOr<std::shared_ptr<Link>> ShmDevice::link_to(const Uuid& uuid, int pid,
                                                         std::string_view peer) {
  absl::StatusOr<std::shared_ptr<Link>> known = known_link(uuid, peer);
  if (!known.ok() || *known != nullptr) return known;
  std::shared_ptr<ControlSegment> segment = find_local_segment(uuid);
  const bool local = segment != nullptr;
  if (local && pid != getpid()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "connect to " + std::string(peer) + ": the address is damaged",
                      "bring address() of the peer's queue pair here unchanged");
  }
  absl::StatusOr<std::shared_ptr<Link>> link =
      local ? Link::local(std::move(segment)) : Link::connect(uuid, pid, kLinkTimeout, peer);
  if (!link.ok()) return link;
  std::lock_guard adding(adding_mutex_);
  // Another thread may have added a link to this peer meanwhile.
  known = known_link(uuid, peer);
  if (!known.ok() || *known != nullptr) return known;
  if (!local) {
    if (absl::Status watched = watch_->add(*link); !watched.ok()) return watched;
    if (absl::Status watched = service_->add_link(*link); !watched.ok()) {
      watch_->remove(link->get());
      return watched;
    }
  }
  {
    std::lock_guard lock(links_mutex_);
    (*link)->users = 1;
    links_.emplace(uuid, *link);
  }
  return link;
}

void ShmDevice::release(const std::shared_ptr<Link>& link) {
  std::lock_guard lock(links_mutex_);
  if (--link->users != 0) return;
  if (!link->is_local()) {
    watch_->remove(link.get());
    service_->remove_link(link.get());
  }
  links_.erase(link->uuid());
}

void ShmDevice::bind(ShmQueuePair* queue_pair, const std::shared_ptr<Link>& link) {
  std::lock_guard lock(queue_pairs_mutex_);
  queue_pair->set_link(link.get());
  if (const PeerState state = link->state.load(); state != PeerState::kAlive) {
    queue_pair->peer_ended(state == PeerState::kDead);
  }
}

void ShmDevice::peer_ended(const std::shared_ptr<Link>& link) {
  {
    std::lock_guard lock(queue_pairs_mutex_);
    for (ShmQueuePair* queue_pair : queue_pairs_) {
      if (queue_pair->link() == link.get()) {
        queue_pair->peer_ended(link->state.load() == PeerState::kDead);
        queue_pair->end_peer();
        queue_pair->progress();
      }
    }
  }
  service_->kick();
}

void ShmDevice::process_ended(const std::shared_ptr<Link>& link) {
  // Without robust futexes this is the first notification of the end.
  PeerState alive = PeerState::kAlive;
  const bool closed = control_header(link->control())->closed.load() != 0;
  link->state.compare_exchange_strong(alive, closed ? PeerState::kClosed : PeerState::kDead);
  peer_ended(link);  // has no effect on the queue pairs that know the end
  link->ended.store(true);
  {
    std::lock_guard lock(queue_pairs_mutex_);
    for (ShmQueuePair* queue_pair : queue_pairs_) {
      if (queue_pair->link() == link.get()) queue_pair->recover_receives();
    }
  }
  sweep();
}

// The robust lock of a closed device is free, unless another process has written its word since.
void ShmDevice::connection_ended(const std::shared_ptr<Link>& link) {
  PeerState alive = PeerState::kAlive;
  if (control_header(link->control())->closed.load() == 0) return;
  link->state.compare_exchange_strong(alive, PeerState::kClosed);
  peer_ended(link);
}

void ShmDevice::count_waiting(int change) {
  if (waiting_.fetch_add(change) == 0 && change > 0) service_->kick();
}

void ShmDevice::progress_sends(const ShmCompletionQueue* completions) {
  std::unique_lock lock(queue_pairs_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (ShmQueuePair* queue_pair : queue_pairs_) {
    if (queue_pair->send_completions() == completions) queue_pair->progress();
  }
}

bool ShmDevice::progress() {
  if (!anything_waits()) return false;
  std::lock_guard lock(queue_pairs_mutex_);
  for (ShmQueuePair* queue_pair : queue_pairs_) queue_pair->progress();
  return anything_waits();
}

}  // namespace cariama::shm

namespace cariama {

absl::StatusOr<std::shared_ptr<Device>> open_shm_device() { return shm::ShmDevice::open(); }

}  // namespace cariama
