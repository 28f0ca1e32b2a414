// This process's view of one peer device: its control segment, its regions, and whether it lives.
// Shared by all queue pairs of a device that connect to the same peer device. Each side makes its
// own.
#ifndef CARIAMA_DTUTILS_SHM_LINK_H_
#define CARIAMA_DTUTILS_SHM_LINK_H_

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "dtutils/memory.h"
#include "dtutils/shm/control_segment.h"
#include "dtutils/shm/layout.h"
#include "dtutils/shm/wire.h"

namespace cariama::shm {

// A region of the peer, ready for use. Immutable; lives as long as its Link.
struct RemoteRegion {
  uint64_t key;
  uint64_t base;                           // as the owner names it
  uint64_t length;                         // bytes
  const std::atomic<uint64_t>* owner_key;  // == key until the owner ends the registration
  uint64_t delta;                          // mapped: owner's address + delta = ours (modulo 2^64)
  Access access;
  uint32_t domain;
  bool mapped;  // else reached by cross-memory attach
  // domain if WRITEs go straight into the mapping (mapped, remote write access), else kNoDomain:
  // the one thing that the hot path compares. Set by Link::add().
  uint32_t write_domain;
  static constexpr uint32_t kNoDomain = UINT32_MAX;

  [[nodiscard]] bool contains(uint64_t address, uint64_t bytes) const {
    const uint64_t offset = address - base;  // wraps to something huge below base
    return offset <= length && bytes <= length - offset;
  }
  // Whether receives may lie in it. Else it may be mapped for reading only.
  [[nodiscard]] bool receivable() const {
    return (static_cast<uint32_t>(access) &
            static_cast<uint32_t>(Access::kLocalWrite | Access::kRemoteWrite |
                                  Access::kRemoteAtomic)) != 0;
  }
  [[nodiscard]] bool revoked() const { return owner_key->load(std::memory_order_acquire) != key; }
  [[nodiscard]] std::byte* local(uint64_t address) const {
    return reinterpret_cast<std::byte*>(address + delta);
  }
};

enum class PeerState : uint8_t { kAlive, kDead, kClosed };

class Link {
 public:
  // To a device of another process: connects to its service thread, and receives its control
  // segment and regions. Blocks until it answers or `timeout` has passed. Errors: UNAVAILABLE
  // (gone, or does not answer), PERMISSION_DENIED (another user's, or in another process name
  // space), FAILED_PRECONDITION (another version).
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<Link>> connect(
      const Uuid& uuid, int pid, std::chrono::milliseconds timeout, std::string_view peer);
  // To a device of this process.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<Link>> local(
      std::shared_ptr<ControlSegment> segment);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] const Uuid& uuid() const { return uuid_; }
  [[nodiscard]] std::byte* control() const { return control_; }
  [[nodiscard]] bool is_local() const { return segment_ != nullptr; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int socket() const { return socket_.get(); }
  [[nodiscard]] int process_descriptor() const { return process_.get(); }

  // What is known of the peer. kDead comes first, as soon as one thread of it is known to have
  // died; `ended` when the last one has: only then may memory that it writes be used again.
  std::atomic<PeerState> state{PeerState::kAlive};
  std::atomic<bool> ended{false};
  // Queue pairs that use it; guarded by the device.
  uint32_t users = 0;

  // The last region at that key's place of the table, or nullptr. The caller compares the key.
  [[nodiscard]] const RemoteRegion* known(uint64_t key) const {
    return table_[key_index(key)].load(std::memory_order_acquire);
  }
  // The region with that key, or nullptr. Wait-free if it was used before; else may take a lock,
  // map memory, and ask the peer (at most 200 ms). The caller checks revoked().
  [[nodiscard]] const RemoteRegion* find(uint64_t key) {
    const RemoteRegion* region = known(key);
    if (region != nullptr && region->key == key) [[likely]]
      return region;
    return find_slow(key);
  }

  // Takes in what the peer has sent. False: the connection has ended.
  bool drain();

 private:
  struct Mapping {
    void* address;
    size_t length;
  };

  Link() = default;
  [[nodiscard]] absl::Status make_table();
  [[nodiscard]] const RemoteRegion* find_slow(uint64_t key);
  bool drain_locked();
  void add_mapped(const Message& message, const FileDescriptor& descriptor);
  void retire(uint64_t key);
  const RemoteRegion* add(const RemoteRegion& region);

  Uuid uuid_{};
  std::byte* control_ = nullptr;
  std::shared_ptr<ControlSegment> segment_;  // local links only
  pid_t pid_ = 0;
  FileDescriptor socket_;
  FileDescriptor process_;  // pidfd

  // By key_index. Sparse: a page exists where a key was used.
  std::atomic<const RemoteRegion*>* table_ = nullptr;

  std::mutex mutex_;  // all below
  // Regions and mappings stay until the link closes, because an operation of another thread may be
  // using them. The memory behind a revoked mapping is given up at once all the same: see retire().
  std::deque<RemoteRegion> regions_;
  std::vector<Mapping> mappings_;
  uint64_t unknown_key_ = 0;  // the last one that the peer said it does not have
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_LINK_H_
