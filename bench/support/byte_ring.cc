#include "bench/support/byte_ring.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <string>
#include <utility>

#include "dtutils/error.h"

namespace cariama::bench {
namespace {

absl::Status no_memory(const char* what) {
  return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                    std::string("memory for a ring: ") + what + ": errno " + std::to_string(errno));
}

}  // namespace

absl::StatusOr<ByteRing> ByteRing::create(uint64_t capacity) {
  const int fd = memfd_create("cariama-bench-ring", MFD_CLOEXEC);
  if (fd < 0) return no_memory("memfd_create");
  void* const both = mmap(nullptr, 2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool mapped = ftruncate(fd, static_cast<off_t>(capacity)) == 0 && both != MAP_FAILED;
  for (uint64_t half = 0; half < 2 && mapped; ++half) {
    mapped = mmap(static_cast<std::byte*>(both) + half * capacity, capacity, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) != MAP_FAILED;
  }
  close(fd);
  void* const shared = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (!mapped || shared == MAP_FAILED) return no_memory("mmap");
  return ByteRing(static_cast<std::byte*>(both), capacity, new (shared) Shared);
}

ByteRing::ByteRing(ByteRing&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      capacity_(other.capacity_),
      shared_(other.shared_),
      position_(other.position_) {}

ByteRing::~ByteRing() {
  if (memory_ == nullptr) return;
  munmap(memory_, 2 * capacity_);
  munmap(shared_, sizeof(Shared));
}

uint64_t ByteRing::wait_for_room(uint64_t position, uint64_t bytes) const {
  Patience patience;
  while (true) {
    const uint64_t room_until = shared_->tail.load(std::memory_order_acquire) + capacity_;
    if (position + bytes <= room_until) return room_until;
    patience.pause();
  }
}

}  // namespace cariama::bench
