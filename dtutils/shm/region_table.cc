#include "dtutils/shm/region_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <limits>
#include <string>

#include "dtutils/error.h"
#include "dtutils/internal/random_word.h"
#include "dtutils/internal/validate.h"

namespace cariama::shm {
namespace {

constexpr uint64_t kNumberMask = ~kLocalKeyBit & ~uint64_t{kMaxRegions - 1};

absl::Status check_descriptor(const MemorySource& source) {
  struct stat status;
  if (fstat(source.descriptor, &status) != 0) {
    return make_errno_error(errno, ErrorScope::kOperation,
                            "register_memory: fstat of the descriptor",
                            "give the memfd that backs the memory, or -1");
  }
  const int seals = fcntl(source.descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
    return internal::invalid_argument(
        "register_memory: the descriptor is not a memfd sealed against shrinking and growing",
        "fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) first (memfd_create needs "
        "MFD_ALLOW_SEALING)");
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  if (source.descriptor_offset > size || source.length > size - source.descriptor_offset) {
    return internal::invalid_argument("register_memory: the descriptor holds " +
                                          std::to_string(size) + " bytes, the region ends at " +
                                          std::to_string(source.descriptor_offset + source.length),
                                      "ftruncate the memfd to its full size before it is sealed");
  }
  if ((reinterpret_cast<uint64_t>(source.address) - source.descriptor_offset) % kSmallestPage !=
      0) {
    return internal::invalid_argument(
        "register_memory: no mapping has that descriptor_offset at that address",
        "give the offset of the region's first byte in the memfd");
  }
  return absl::OkStatus();
}

}  // namespace

RegionTable::RegionTable(std::shared_ptr<ControlSegment> control) : control_(std::move(control)) {}

absl::StatusOr<std::unique_ptr<RegionTable>> RegionTable::create(
    std::shared_ptr<ControlSegment> control) {
  std::unique_ptr<RegionTable> table(new RegionTable(std::move(control)));
  void* local = mmap(nullptr, kMaxRegions * sizeof(LocalRegion), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (local == MAP_FAILED) {
    return make_errno_error(errno, ErrorScope::kProcess, "mapping the region table",
                            "raise ulimit -v");
  }
  table->local_ = static_cast<LocalRegion*>(local);
  return table;
}

RegionTable::~RegionTable() {
  if (local_ != nullptr) munmap(local_, kMaxRegions * sizeof(LocalRegion));
}

absl::StatusOr<RegionTable::Keys> RegionTable::add(const MemorySource& source, Access access,
                                                   uint32_t domain) {
  const auto base = reinterpret_cast<uint64_t>(source.address);
  if (source.address == nullptr || source.length == 0 ||
      source.length > std::numeric_limits<uint64_t>::max() - base) {
    return internal::invalid_argument("register_memory: the range is null, empty, or wraps",
                                      "give memory you own");
  }
  std::shared_ptr<FileDescriptor> descriptor;
  if (source.descriptor >= 0) {
    if (absl::Status status = check_descriptor(source); !status.ok()) return status;
    // A duplicate of the descriptor, so that peers that connect later can get it even if the caller
    // closes its own.
    descriptor = std::make_shared<FileDescriptor>(fcntl(source.descriptor, F_DUPFD_CLOEXEC, 0));
    if (!descriptor->valid()) {
      return make_errno_error(errno, ErrorScope::kProcess, "register_memory: dup of the descriptor",
                              "raise ulimit -n");
    }
  }

  std::lock_guard lock(mutex_);
  uint32_t index;
  if (unused_ < kMaxRegions) {
    index = unused_++;
  } else if (!free_.empty()) {
    index = free_.front();
    free_.pop_front();
  } else {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      "register_memory: a shm device holds 65535 regions",
                      "register larger pieces, or drop regions that are not used");
  }
  Keys keys;
  do keys.remote.value = (internal::random_word() & kNumberMask) | index;
  while (keys.remote.value == index);
  keys.local.value = kLocalKeyBit | (internal::random_word() & kNumberMask) | index;

  LocalRegion& local = local_[index];
  local.base.store(base, std::memory_order_relaxed);
  local.length.store(source.length, std::memory_order_relaxed);
  local.access.store(static_cast<uint32_t>(access), std::memory_order_relaxed);
  local.domain.store(domain, std::memory_order_relaxed);
  local.key.store(keys.local.value, std::memory_order_release);

  if (descriptor != nullptr) {
    Announcement& announcement = announced_[keys.remote.value];
    announcement.descriptor = descriptor;
    Message& message = announcement.message;
    message.type = MessageType::kRegion;
    message.key = keys.remote.value;
    message.base = base;
    message.length = source.length;
    message.offset = source.descriptor_offset;
    message.access = static_cast<uint32_t>(access);
    message.domain = domain;
  }
  KeyEntry& entry = key_table(control_->base())[index];
  entry.base.store(base, std::memory_order_release);
  entry.length.store(source.length, std::memory_order_release);
  entry.access.store(static_cast<uint32_t>(access), std::memory_order_release);
  entry.domain.store(domain, std::memory_order_release);
  entry.has_descriptor.store(descriptor != nullptr ? 1 : 0, std::memory_order_release);
  entry.key.store(keys.remote.value, std::memory_order_release);
  return keys;
}

void RegionTable::remove(const Keys& keys) {
  std::lock_guard lock(mutex_);
  const uint32_t index = key_index(keys.remote.value);
  key_table(control_->base())[index].key.store(0, std::memory_order_seq_cst);
  local_[index].key.store(0, std::memory_order_release);
  announced_.erase(keys.remote.value);
  free_.push_back(index);
}

std::optional<RegionTable::Announcement> RegionTable::announcement(uint64_t remote_key) const {
  std::lock_guard lock(mutex_);
  auto it = announced_.find(remote_key);
  if (it == announced_.end()) return std::nullopt;
  return it->second;
}

std::vector<uint64_t> RegionTable::announced_keys() const {
  std::lock_guard lock(mutex_);
  std::vector<uint64_t> keys;
  keys.reserve(announced_.size());
  for (const auto& [key, announcement] : announced_) keys.push_back(key);
  return keys;
}

}  // namespace cariama::shm
