#include "dtutils/shm/control_segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/memory_limits.h"
#include "dtutils/internal/shared_file.h"

namespace cariama::shm {

absl::StatusOr<std::shared_ptr<ControlSegment>> ControlSegment::create(const Uuid& uuid) {
  const int descriptor = internal::create_shared_file("cariama-control", kControlBytes);
  if (descriptor < 0) {
    const int error = errno;
    return make_errno_error(
        error, ErrorScope::kProcess,
        "creating the 1 GiB control segment (pages are used only where written)",
        internal::shared_file_remedy(error, "free memory"));
  }
  void* const base = mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    close(descriptor);
    return make_errno_error(
        error, ErrorScope::kProcess, "mapping the 1 GiB control segment",
        internal::address_space_remedy(kControlBytes) + " (pages are used only where written)");
  }
  auto segment = std::shared_ptr<ControlSegment>(
      new ControlSegment(static_cast<std::byte*>(base), descriptor, uuid));
  ControlHeader* header = control_header(segment->base());
  header->magic = kMagic;
  header->version = kVersion;
  header->bytes = kControlBytes;
  header->uuid = uuid;
  header->pid = getpid();
  return segment;
}

ControlSegment::~ControlSegment() {
  munmap(base_, kControlBytes);
  close(descriptor_);
}

uint64_t ControlSegment::allocate(uint64_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  uint64_t offset = 0;
  // Only these bytes need zeroing: the kernel zeroes pages that were never written.
  uint64_t used_before = 0;
  {
    std::lock_guard lock(mutex_);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      offset = it->first;
      // First: it may throw.
      if (const uint64_t left = it->second - bytes; left > 0) free_.emplace(offset + bytes, left);
      auto node = free_.extract(it);
      node.mapped() = bytes;
      used_.insert(std::move(node));
      used_before = std::min(bytes, std::max(high_water_, offset) - offset);
      high_water_ = std::max(high_water_, offset + bytes);
      break;
    }
  }
  if (used_before != 0) std::memset(base_ + offset, 0, used_before);
  return offset;
}

// Destructors call this function, so it needs no memory: the node moves between the maps.
void ControlSegment::release(uint64_t offset) {
  std::lock_guard lock(mutex_);
  auto node = used_.extract(offset);
  uint64_t& bytes = node.mapped();
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  free_.insert(std::move(node));
}

namespace {

struct LocalSegments {
  std::mutex mutex;
  std::map<Uuid, std::weak_ptr<ControlSegment>> segments;
};

// Never destroyed: devices with static storage may outlive any other static object.
LocalSegments& local_segments() {
  static LocalSegments* const instance = new LocalSegments;
  return *instance;
}

}  // namespace

std::shared_ptr<ControlSegment> find_local_segment(const Uuid& uuid) {
  LocalSegments& all = local_segments();
  std::lock_guard lock(all.mutex);
  auto it = all.segments.find(uuid);
  if (it == all.segments.end()) return nullptr;
  std::shared_ptr<ControlSegment> segment = it->second.lock();
  // A forked child has a copy of its parent's list, whose devices belong to the parent.
  if (segment == nullptr || control_header(segment->base())->pid != getpid()) return nullptr;
  return segment;
}

void add_local_segment(const std::shared_ptr<ControlSegment>& segment) {
  LocalSegments& all = local_segments();
  std::lock_guard lock(all.mutex);
  all.segments[segment->uuid()] = segment;
}

void remove_local_segment(const Uuid& uuid) {
  LocalSegments& all = local_segments();
  std::lock_guard lock(all.mutex);
  all.segments.erase(uuid);
}

}  // namespace cariama::shm
