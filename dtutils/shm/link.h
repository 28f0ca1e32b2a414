// This process's view of one peer device: its control segment, its regions, and its liveness. All
// queue pairs of a device that connect to the same peer device share one link. Each side creates
// its own link.
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
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/shm/control_segment.h"
#include "dtutils/shm/layout.h"
#include "dtutils/shm/remote_region.h"
#include "dtutils/shm/wire.h"
#include "dtutils/shm/writable_regions.h"

namespace cariama::shm {

enum class PeerState : uint8_t { kAlive, kDead, kClosed };

class Link {
 public:
  // Creates a link to a device of another process: connects to its service thread, and receives its
  // control segment and regions. Blocks until the peer answers or `timeout` has passed. Errors:
  // UNAVAILABLE (the peer is gone or does not answer), PERMISSION_DENIED (it belongs to another
  // user or another process name space), FAILED_PRECONDITION (another version).
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<Link>> connect(
      const Uuid& uuid, int pid, std::chrono::milliseconds timeout, std::string_view peer);
  // The part of connect() after `owned`, a socket, is connected to the peer's service thread. Each
  // system call blocks for as long as the timeouts of the socket permit. Errors as of connect().
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<Link>> greet(FileDescriptor owned,
                                                                   const Uuid& uuid, int pid,
                                                                   std::string_view peer);
  // Creates a link to a device of this process.
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

  // The peer's liveness. `state` becomes kDead when the first thread of the peer process is known
  // to have died. `ended` becomes true when its last thread has died; only then may memory that the
  // peer writes be reused.
  std::atomic<PeerState> state{PeerState::kAlive};
  std::atomic<bool> ended{false};
  // Number of queue pairs that use the link; guarded by the device.
  uint32_t users = 0;

  // The peer's regions known to this process, indexed by key_index(). The table never moves.
  [[nodiscard]] const RemoteRegionCell* regions() const { return regions_; }

  // Returns the region with that key, or an empty optional if there is none or its registration has
  // ended. Wait-free if this process used the region before. Otherwise it may take a lock, map
  // memory, and ask the peer (at most 200 ms).
  [[nodiscard]] std::optional<RemoteRegion> find(uint64_t key) {
    const RemoteRegionCell& cell = regions_[key_index(key)];
    std::optional<RemoteRegion> region = cell.read(key);
    if (!region.has_value()) [[unlikely]]
      region = find_slow(key);
    if (region.has_value() && !cell.is_registered(key)) [[unlikely]]
      return std::nullopt;
    return region;
  }

  // Returns the cells of the regions that queue pairs of the peer's domain `domain` write. Valid as
  // long as the link. Error: RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::StatusOr<const WritableCell*> writable_regions(uint32_t domain);
  // Enters a region that find() returned into the cells of its domain, if WRITEs may be stored into
  // it directly. Does nothing if another thread has locked the link: the next WRITE tries again.
  void make_writable(const RemoteRegion& region);

  // Processes the messages that the peer has sent. Returns false if the connection has ended.
  bool drain();

 private:
  // A piece of a file that is or was mapped in this process.
  struct Piece {
    uint64_t device;  // st_dev and st_ino identify the file
    uint64_t inode;
    uint64_t start;
    uint64_t length;
    int protection;
    // clang-tidy 14 reports a null pointer for the literal zero in a defaulted comparison.
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
  [[nodiscard]] static void* aligned_place(const Piece& piece);
  [[nodiscard]] void* map(const Piece& piece, int descriptor);
  void add(const RemoteRegion& region);
  void retire(uint32_t index);

  Uuid uuid_{};
  std::byte* control_ = nullptr;
  std::shared_ptr<ControlSegment> segment_;  // local links only
  pid_t pid_ = 0;
  FileDescriptor socket_;
  FileDescriptor process_;  // pidfd

  // Indexed by key_index(). Sparse: a page is allocated where a key was used, 4 MiB at most.
  RemoteRegionCell* regions_ = nullptr;

  std::mutex mutex_;  // guards all members below, and changes of regions_ and of cells
  std::map<uint32_t, std::unique_ptr<WritableRegions>> writable_;  // by domain
  std::unordered_map<uint32_t, Mapping> mappings_;  // the mappings of regions_, by key_index()
  // Address ranges stay reserved until the link closes, because an operation of another thread may
  // be using them: see retire(). Memory that is registered again is mapped at its previous address.
  std::multimap<Piece, void*> retired_;
  uint64_t unknown_key_ = 0;  // the last key that the peer reported as unknown
};

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_LINK_H_
