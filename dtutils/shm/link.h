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
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "dtutils/shm/control_segment.h"
#include "dtutils/shm/layout.h"
#include "dtutils/shm/remote_region.h"
#include "dtutils/shm/wire.h"

namespace cariama::shm {

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

  // The peer's regions as far as they are known here, by key_index. Stays where it is.
  [[nodiscard]] const RemoteRegionCell* regions() const { return regions_; }

  // The region with that key, or nothing: there is none, or its registration has ended. Wait-free
  // if it was used before; else may take a lock, map memory, and ask the peer (at most 200 ms).
  [[nodiscard]] std::optional<RemoteRegion> find(uint64_t key) {
    const RemoteRegionCell& cell = regions_[key_index(key)];
    std::optional<RemoteRegion> region = cell.read(key);
    if (!region.has_value()) [[unlikely]]
      region = find_slow(key);
    if (region.has_value() && !cell.is_registered(key)) [[unlikely]]
      return std::nullopt;
    return region;
  }

  // Takes in what the peer has sent. False: the connection has ended.
  bool drain();

 private:
  // A piece of a file that is, or was, mapped here.
  struct Piece {
    uint64_t device;  // the file, by st_dev and st_ino
    uint64_t inode;
    uint64_t start;
    uint64_t length;
    int protection;
    // clang-tidy 14 sees a null pointer in the zero that a defaulted comparison compares with.
    auto operator<=>(const Piece&) const = default;
  };
  struct Mapping {
    Piece piece;
    void* address;
  };

  Link() = default;
  [[nodiscard]] absl::Status make_table();
  [[nodiscard]] std::optional<RemoteRegion> find_slow(uint64_t key);
  bool drain_locked();
  void add_mapped(const Message& message, const FileDescriptor& descriptor);
  [[nodiscard]] void* map(const Piece& piece, int descriptor);
  void add(const RemoteRegion& region);
  void retire(uint32_t index);

  Uuid uuid_{};
  std::byte* control_ = nullptr;
  std::shared_ptr<ControlSegment> segment_;  // local links only
  pid_t pid_ = 0;
  FileDescriptor socket_;
  FileDescriptor process_;  // pidfd

  // By key_index. Sparse: a page exists where a key was used, 4 MiB at most.
  RemoteRegionCell* regions_ = nullptr;

  std::mutex mutex_;                                // all below, and changes of regions_
  std::unordered_map<uint32_t, Mapping> mappings_;  // of regions_, by key_index
  // Address space stays taken until the link closes, because an operation of another thread may be
  // using it: see retire(). What is registered again comes back to its place.
  std::multimap<Piece, void*> retired_;
  uint64_t unknown_key_ = 0;  // the last one that the peer said it does not have
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_LINK_H_
