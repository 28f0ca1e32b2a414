#include "dtutils/shm/link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>

#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/internal/memory_limits.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/internal/socket_errors.h"

namespace cariama::shm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAskTimeout{200};
// The largest number of messages processed per call; a socket cannot hold that many. The limit
// ensures that a peer that sends continuously does not block other users of the lock.
constexpr int kMostMessagesOfPeer = 1024;

std::string with_peer(std::string_view what, std::string_view peer) {
  std::string text(what);
  text.append(" (peer ").append(peer).append(")");
  return text;
}

// Returns the block size of the file, which is the huge page size on hugetlb.
uint64_t page_bytes(const struct stat& status) { return static_cast<uint64_t>(status.st_blksize); }

// Returns true if the file behind a received descriptor may be mapped: it is a memory file, its
// size cannot change (otherwise its owner could shrink it and cause SIGBUS in this process), and it
// is long enough.
bool is_mappable(int descriptor, uint64_t offset, uint64_t length, struct stat* status) {
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) return false;
  if (fstat(descriptor, status) != 0 || !S_ISREG(status->st_mode) || status->st_size < 0)
    return false;
  const auto size = static_cast<uint64_t>(status->st_size);
  if (length == 0 || offset > size || length > size - offset) return false;
  return std::has_single_bit(page_bytes(*status));
}

}  // namespace

absl::Status Link::make_table() {
  void* table = mmap(nullptr, kMaxRegions * sizeof(RemoteRegionCell), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) {
    const int number = errno;
    return make_errno_error(number, ErrorScope::kProcess, "mapping the key table of a peer",
                            internal::address_space_remedy(kMaxRegions * sizeof(RemoteRegionCell)));
  }
  regions_ = static_cast<RemoteRegionCell*>(table);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Link>> Link::local(std::shared_ptr<ControlSegment> segment) {
  std::shared_ptr<Link> link(new Link);
  link->uuid_ = segment->uuid();
  link->control_ = segment->base();
  link->pid_ = getpid();
  link->segment_ = std::move(segment);
  if (absl::Status status = link->make_table(); !status.ok()) return status;
  return link;
}

absl::StatusOr<std::shared_ptr<Link>> Link::connect(const Uuid& uuid, int pid,
                                                    std::chrono::milliseconds timeout,
                                                    std::string_view peer) {
  FileDescriptor owned(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!owned.valid()) {
    return make_errno_error(errno, ErrorScope::kProcess, with_peer("socket for shm", peer),
                            "raise ulimit -n");
  }
  const int socket = owned.get();
  const timeval limit{timeout.count() / 1000, timeout.count() % 1000 * 1000};
  // This timeout also applies to connect().
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);

  sockaddr_un address;
  const socklen_t address_length = socket_address(uuid, &address);
  int result;
  do result = ::connect(socket, reinterpret_cast<sockaddr*>(&address), address_length);
  while (result != 0 && errno == EINTR);
  if (result != 0) {
    if (errno == ECONNREFUSED) {
      return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                        with_peer("connect over shm: the device is gone", peer),
                        std::string(internal::peer_remedy(internal::PeerRemedy::kEnded)) +
                            "; both processes must share a host and a network name space");
    }
    return make_errno_error(errno == EAGAIN ? ETIMEDOUT : errno, ErrorScope::kPeer,
                            with_peer("connect over shm: the service thread does not answer", peer),
                            internal::peer_remedy(internal::PeerRemedy::kSilent));
  }
  return greet(std::move(owned), uuid, pid, peer);
}

absl::StatusOr<std::shared_ptr<Link>> Link::greet(FileDescriptor owned, const Uuid& uuid, int pid,
                                                  std::string_view peer) {
  std::shared_ptr<Link> link(new Link);
  link->uuid_ = uuid;
  link->socket_ = std::move(owned);
  if (absl::Status status = link->make_table(); !status.ok()) return status;

  const int socket = link->socket_.get();
  ucred credentials{};
  socklen_t credentials_length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &credentials_length) != 0 ||
      credentials.uid != geteuid()) {
    return make_error(absl::StatusCode::kPermissionDenied, ErrorScope::kPeer,
                      with_peer("connect over shm: the device belongs to another user", peer),
                      "run both as the same user");
  }
  if (credentials.pid != pid) {
    return make_error(absl::StatusCode::kPermissionDenied, ErrorScope::kPeer,
                      with_peer("connect over shm: the process ids do not agree", peer),
                      "run both in one process name space");
  }
  link->pid_ = credentials.pid;
  link->process_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0)));
  if (!link->process_.valid()) {
    const int number = errno;
    return make_errno_error(number == ESRCH ? ECONNRESET : number, ErrorScope::kPeer,
                            with_peer("pidfd_open", peer),
                            number == EMFILE  ? "raise ulimit -n"
                            : number == ESRCH ? internal::peer_remedy(internal::PeerRemedy::kEnded)
                                              : "use Linux 5.3 or newer");
  }

  // An answer that arrives after the pidfd was opened proves that the pidfd refers to this peer.
  Message hello;
  hello.type = MessageType::kHello;
  hello.uuid = uuid;
  int error = send_message(socket, hello, -1, /*wait=*/true);
  Message welcome;
  FileDescriptor control;
  // The service may have refused this process, and closed the connection, before the hello came
  // (EPIPE), or without having read it (ECONNRESET, once). The refusal can be received in any case.
  if (error == 0 || error == EPIPE) {
    error = receive_message(socket, &welcome, &control, /*wait=*/true);
    if (error == ECONNRESET) error = receive_message(socket, &welcome, &control, /*wait=*/true);
  }
  if (error != 0) {
    if (error == EPROTO) {
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                        with_peer("connect over shm: the peer speaks another version", peer),
                        "use the same release on both sides");
    }
    if (error == EMFILE) {
      return make_errno_error(error, ErrorScope::kProcess,
                              with_peer("connect over shm: no descriptor for the peer", peer),
                              "raise ulimit -n");
    }
    if (error != EAGAIN && error != EPIPE && error != ECONNRESET) {
      return make_errno_error(error, ErrorScope::kProcess,
                              with_peer("connect over shm: messages to the service thread", peer),
                              "free memory");
    }
    return make_errno_error(
        error == EAGAIN ? ETIMEDOUT : ECONNRESET, ErrorScope::kPeer,
        with_peer("connect over shm: no answer from the service thread", peer),
        internal::peer_remedy(error == EAGAIN ? internal::PeerRemedy::kSilent
                                              : internal::PeerRemedy::kDisconnected));
  }
  if (welcome.type == MessageType::kRefused && welcome.key == ENOMEM) {
    return make_errno_error(ENOMEM, ErrorScope::kPeer,
                            with_peer("connect over shm: the peer refuses it", peer),
                            "raise ulimit -v and -d of the peer");
  }
  if (welcome.type == MessageType::kRefused) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kPeer,
                      with_peer("connect over shm: the peer has no free descriptor", peer),
                      "raise ulimit -n");
  }
  struct stat file;
  if (welcome.type != MessageType::kWelcome || welcome.uuid != uuid || !control.valid() ||
      !is_mappable(control.get(), 0, kControlBytes, &file)) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                      with_peer("connect over shm: not a sealed control segment", peer),
                      "use the same release on both sides");
  }
  void* base = mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                    control.get(), 0);
  if (base == MAP_FAILED) {
    const int number = errno;
    return make_errno_error(
        number, ErrorScope::kProcess,
        with_peer("mapping the control segment (1 GiB, sparse)", peer),
        internal::address_space_remedy(kControlBytes) + "; each peer on this host takes that much");
  }
  link->control_ = static_cast<std::byte*>(base);
  const ControlHeader* header = control_header(link->control_);
  if (header->magic != kMagic || header->version != kVersion || header->uuid != uuid) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kPeer,
                      with_peer("connect over shm: the control segment is another version's", peer),
                      "use the same release on both sides");
  }
  return link;
}

Link::~Link() {
  for (const auto& [index, mapping] : mappings_) munmap(mapping.address, mapping.piece.length);
  for (const auto& [piece, address] : retired_) munmap(address, piece.length);
  if (regions_ != nullptr) munmap(regions_, kMaxRegions * sizeof(RemoteRegionCell));
  if (!is_local() && control_ != nullptr) munmap(control_, kControlBytes);
}

absl::StatusOr<const WritableCell*> Link::writable_regions(uint32_t domain) {
  const std::lock_guard lock(mutex_);
  auto it = writable_.find(domain);
  if (it == writable_.end()) {
    auto created = WritableRegions::create();
    if (!created.ok()) return created.status();
    it = writable_.emplace(domain, *std::move(created)).first;
  }
  return it->second->cells();
}

void Link::make_writable(const RemoteRegion& region) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  const uint32_t index = key_index(region.key);
  // The region may have been retired meanwhile.
  if (!lock.owns_lock() || regions_[index].key() != region.key) return;
  const auto regions = writable_.find(region.write_domain());
  if (regions != writable_.end()) regions->second->set(region, &key_table(control_)[index].key);
}

std::optional<RemoteRegion> Link::find_slow(uint64_t key) {
  std::lock_guard lock(mutex_);
  const RemoteRegionCell& cell = regions_[key_index(key)];
  if (auto region = cell.read(key)) return region;

  const KeyEntry& entry = key_table(control_)[key_index(key)];
  if (key == 0 || entry.key.load(std::memory_order_acquire) != key) return std::nullopt;
  if (is_local() || entry.has_descriptor.load(std::memory_order_relaxed) == 0) {
    RemoteRegion region;
    region.key = key;
    region.base = entry.base.load(std::memory_order_acquire);
    region.length = entry.length.load(std::memory_order_acquire);
    region.access = static_cast<Access>(entry.access.load(std::memory_order_acquire));
    region.domain = entry.domain.load(std::memory_order_acquire);
    region.mapped = is_local();
    // The entry may have been reused for another region meanwhile (the owner clears the old key,
    // stores the new fields, then stores the new key).
    if (entry.key.load(std::memory_order_acquire) != key) return std::nullopt;
    retire(key_index(key));
    add(region);
    return region;
  }

  // The owner sent the descriptor when it registered the memory, so it is in the socket, unless the
  // socket was full.
  const Clock::time_point deadline = Clock::now() + kAskTimeout;
  bool open = drain_locked();
  if (auto region = cell.read(key)) return region;
  Message ask;
  ask.type = MessageType::kAskRegion;
  ask.key = key;
  bool asked = false;
  unknown_key_ = 0;
  while (open && unknown_key_ != key) {
    if (!asked) {
      const int error = send_message(socket_.get(), ask, -1, /*wait=*/false);
      if (error != 0 && !internal::is_temporary(error)) return std::nullopt;
      asked = error == 0;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) break;
    pollfd ready{socket_.get(), static_cast<int16_t>(asked ? POLLIN : POLLIN | POLLOUT), 0};
    if (poll(&ready, 1, static_cast<int>(left)) < 0 && errno != EINTR &&
        !internal::is_temporary(errno)) {
      break;
    }
    open = drain_locked();
    if (auto region = cell.read(key)) return region;
  }
  return std::nullopt;
}

bool Link::drain() {
  std::lock_guard lock(mutex_);
  return drain_locked();
}

bool Link::drain_locked() {
  for (int i = 0; i < kMostMessagesOfPeer; ++i) {
    Message message;
    FileDescriptor descriptor;
    const int error = receive_message(socket_.get(), &message, &descriptor, /*wait=*/false);
    if (internal::is_temporary(error)) return true;
    if (error == EMFILE) {
      report_once("shm.descriptors",
                  "no descriptor is left to map memory of a peer: transfers to that memory fail",
                  "raise ulimit -n");
      if (message.type == MessageType::kRegion) unknown_key_ = message.key;
      continue;
    }
    if (error != 0) return false;
    if (message.type == MessageType::kRegion && descriptor.valid()) {
      add_mapped(message, descriptor);
    } else if (message.type == MessageType::kRevoked) {
      if (regions_[key_index(message.key)].key() == message.key) retire(key_index(message.key));
    } else if (message.type == MessageType::kUnknown) {
      unknown_key_ = message.key;
    }
  }
  return true;
}

void Link::add_mapped(const Message& message, const FileDescriptor& descriptor) {
  const uint32_t index = key_index(message.key);
  if (message.key != 0 && regions_[index].key() == message.key)
    return;  // received twice: pushed by the owner, and requested
  struct stat file;
  // A word has the same offset within its page in both mappings, so data aligned for the owner must
  // be aligned in this process too.
  const bool aligned = (message.base - message.offset) % kSmallestPage == 0;
  if (message.key == 0 || !aligned ||
      message.base > std::numeric_limits<uint64_t>::max() - message.length ||
      !is_mappable(descriptor.get(), message.offset, message.length, &file)) {
    unknown_key_ = message.key;
    return;
  }
  retire(index);
  const uint64_t page = page_bytes(file);
  const uint64_t start = message.offset & ~(page - 1);
  const uint64_t length = (message.offset + message.length - start + page - 1) & ~(page - 1);
  const auto access = static_cast<Access>(message.access);
  const int protection = access == Access::kRemoteRead ? PROT_READ : PROT_READ | PROT_WRITE;
  const Piece piece{file.st_dev, file.st_ino, start, length, protection};
  // First: without memory for the entry nothing is mapped, and an operation asks for the region.
  const auto entry = mappings_.emplace(index, Mapping{piece, nullptr}).first;
  void* const address = map(piece, descriptor.get());
  if (address == MAP_FAILED) {
    mappings_.erase(entry);
    unknown_key_ = message.key;
    return;
  }
  entry->second.address = address;
  RemoteRegion region;
  region.key = message.key;
  region.base = message.base;
  region.length = message.length;
  region.delta = reinterpret_cast<uint64_t>(address) + (message.offset - start) - message.base;
  region.access = access;
  region.domain = message.domain;
  region.mapped = true;
  add(region);
}

void Link::add(const RemoteRegion& region) {
  const uint32_t index = key_index(region.key);
  regions_[index].set(region, &key_table(control_)[index].key);
}

// Returns an address, not reserved, at which large pages of the file can be mapped as such: where
// address and offset differ by a multiple of 2 MiB. The kernel aligns only mappings of hugetlb
// files by itself. Returns nullptr for small pieces, and if there is no such address.
void* Link::aligned_place(const Piece& piece) {
  constexpr uint64_t kHugePage = uint64_t{2} << 20;
  if (piece.length < kHugePage) return nullptr;
  const uint64_t reserved = piece.length + kHugePage;
  void* const range =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return nullptr;
  munmap(range, reserved);
  const auto begin = reinterpret_cast<uint64_t>(range);
  // The highest such address in the range: mostly next to the mapping above, so that the kernel can
  // merge the mappings that retire() leaves.
  const uint64_t offset = (piece.start - begin) % kHugePage;
  return reinterpret_cast<void*>(begin + (offset == 0 ? kHugePage : offset));
}

// Maps a piece, at its previous address if it was mapped before: an operation still in flight there
// then accesses the memory for which it was meant.
void* Link::map(const Piece& piece, int descriptor) {
  const auto before = retired_.find(piece);
  const bool again = before != retired_.end();
  // Without MAP_FIXED the kernel takes another address if this one is in use by now.
  void* const wanted = again ? before->second : aligned_place(piece);
  void* const address =
      mmap(wanted, piece.length, piece.protection, MAP_SHARED | (again ? MAP_FIXED : 0), descriptor,
           static_cast<off_t>(piece.start));
  // Erased also if mmap failed, because the content of that address range is then unknown.
  if (again) retired_.erase(before);
  return address;
}

// Removes the region at `index` of the table. An operation of another thread may still be copying,
// so no address range is unmapped before the link closes. Instead, anonymous memory replaces the
// mapping: the peer's memory is released now, and a late store has no effect. The cost is address
// space (the kernel merges adjacent anonymous mappings into one) and about 100 bytes for each
// different piece of memory.
void Link::retire(uint32_t index) {
  regions_[index].clear();
  for (const auto& [domain, regions] : writable_) regions->clear(index);
  const auto it = mappings_.find(index);
  if (it == mappings_.end()) return;
  const auto& [piece, address] = it->second;
  // Calls the kernel directly: ThreadSanitizer treats mmap() as a store to the whole range, and
  // would report a race with an operation that is still in flight.
  const int64_t anonymous = syscall(SYS_mmap, address, piece.length, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  // If the call failed, the content of the range is unknown, so it is neither reused nor unmapped.
  if (anonymous != -1) retired_.emplace(piece, address);
  mappings_.erase(it);
}

}  // namespace cariama::shm
