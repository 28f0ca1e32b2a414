#include "dtutils/registration/user_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/huge_pages.h"
#include "dtutils/internal/validate.h"
#include "dtutils/registration/pinner.h"

namespace cariama {
namespace {

// Registers with a domain, and pins through another pinner for the same time.
class PinnerOfBoth final : public Pinner {
 public:
  PinnerOfBoth(std::shared_ptr<Pinner> domain, std::shared_ptr<Pinner> also)
      : domain_(std::move(domain)), also_(std::move(also)) {}

  [[nodiscard]] absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* address,
                                                                  size_t bytes) override {
    auto pinned = also_->pin(address, bytes);
    if (!pinned.ok()) return pinned;
    auto region = domain_->pin(address, bytes);
    if (!region.ok()) return region;
    using Regions = std::pair<std::shared_ptr<MemoryRegion>, std::shared_ptr<MemoryRegion>>;
    const auto both = std::make_shared<Regions>(*std::move(pinned), *std::move(region));
    return std::shared_ptr<MemoryRegion>(both, both->second.get());
  }
  [[nodiscard]] bool counts_against_memlock() const override {
    return domain_->counts_against_memlock() || also_->counts_against_memlock();
  }

 private:
  const std::shared_ptr<Pinner> domain_;
  const std::shared_ptr<Pinner> also_;
};

absl::Status read_only_target() {
  return internal::invalid_argument("the target of a transfer is read-only memory",
                                    "pass writable memory");
}

// Returns false if a page of the range does not permit writing. A device that pins no memory does
// not find out, and the copy of its transfer would end the process. Touches each page, as the
// transfer will.
bool is_writable(std::byte* address, size_t bytes) {
  const uintptr_t page = internal::base_page();
  const uintptr_t start = reinterpret_cast<uintptr_t>(address) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(address) + bytes;
  if (madvise(reinterpret_cast<void*>(start), end - start, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return true;  // what else is wrong with the memory, the cache reports
  // Before Linux 5.14 the kernel does not know the advice.
  static const bool knows = madvise(nullptr, 0, MADV_POPULATE_WRITE) == 0;
  return !knows;
}

}  // namespace

LentMemory::~LentMemory() {
  if (bounced()) bounce_.free_or_keep(std::move(memory_));
}

void LentMemory::copy_back() {
  if (bounced() && memory_.size() != 0) {
    std::memcpy(target_, memory_.get_buffer(), memory_.size());
  }
}

UserMemory::UserMemory(std::shared_ptr<ProtectionDomain> domain, GeneralAllocator& bounce,
                       UserMemoryOptions options)
    : domain_(std::move(domain)), bounce_(bounce), options_(std::move(options)) {}

absl::StatusOr<RegistrationCache*> UserMemory::cache() {
  if (RegistrationCache* const made = made_.load(std::memory_order_acquire)) return made;
  const std::lock_guard lock(mutex_);
  if (cache_ == nullptr) {
    // No right for peers to write: a peer names this memory only to READ it.
    std::shared_ptr<Pinner> pinner = std::make_shared<DomainPinner>(
        domain_, Access::kLocalWrite | Access::kRemoteRead, Access::kRemoteRead);
    if (options_.pinner != nullptr) {
      pinner = std::make_shared<PinnerOfBoth>(std::move(pinner), options_.pinner);
    }
    auto cache = RegistrationCache::create(
        std::move(pinner), options_.registration ? options_.registration() : RegistrationOptions{});
    if (!cache.ok()) return cache.status();
    cache_ = *std::move(cache);
    made_.store(cache_.get(), std::memory_order_release);
  }
  return cache_.get();
}

absl::StatusOr<size_t> UserMemory::piece_bytes(size_t bytes) {
  if (bytes <= options_.bounce_bytes) return bytes;
  auto made = cache();
  if (!made.ok()) return made.status();
  const size_t piece = (*made)->policy().piece_bytes(bytes);
  return piece == 0 ? bytes : std::min(piece, bytes);
}

// Not inlined: the recorded call stack begins at the frame of this function, so that the frames of
// the library do not count.
[[gnu::noinline]] absl::StatusOr<std::unique_ptr<LentMemory>> UserMemory::lend_source(
    std::span<const std::byte> source, size_t piece, const void* frame) {
  if (frame == nullptr) frame = __builtin_frame_address(0);
  // The device only reads the memory. The transport contract has no const memory, hence the cast.
  auto lent = lend(const_cast<std::byte*>(source.data()), source.size(), piece, frame, false);
  if (lent.ok() && (*lent)->bounced() && !source.empty()) {
    std::memcpy((*lent)->memory_.get_buffer(), source.data(), source.size());
  }
  return lent;
}

[[gnu::noinline]] absl::StatusOr<std::unique_ptr<LentMemory>> UserMemory::lend_target(
    std::span<std::byte> target, size_t piece, const void* frame) {
  if (frame == nullptr) frame = __builtin_frame_address(0);
  auto lent = lend(target.data(), target.size(), piece, frame, true);
  asm volatile("");  // so the call is no tail call, before which the frame would end
  return lent;
}

absl::StatusOr<std::unique_ptr<LentMemory>> UserMemory::lend(std::byte* address, size_t bytes,
                                                             size_t piece, const void* frame,
                                                             bool writes) {
  if (address == nullptr && bytes != 0) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "lending a null range", "pass mapped memory");
  }
  std::unique_ptr<LentMemory> lent(new LentMemory(bounce_));
  if (bytes <= options_.bounce_bytes) {
    auto copy = bounce_.allocate(bytes);
    if (!copy.ok()) return copy.status();
    lent->memory_ = *std::move(copy);
    lent->target_ = address;
    return lent;
  }
  if (writes && domain_ != nullptr && !domain_->pins_memory() && !is_writable(address, bytes)) {
    return read_only_target();
  }
  auto made = cache();
  if (!made.ok()) return made.status();
  // A helper registers the first two pieces ahead; the others are used once.
  const UseContext context{.transient = piece >= 2 && (*made)->policy().records_uses(),
                           .frame = frame};
  for (bool again = false;; again = true) {
    auto acquired = (*made)->acquire(address, bytes, context);
    if (!acquired.ok()) return acquired.status();
    if (!writes || has_access(acquired->region().access(), Access::kLocalWrite)) {
      lent->use_ = *std::move(acquired);
      break;
    }
    if (again) return read_only_target();
    // The memory may have become writable after it was registered: mprotect(2) is not noticed.
    acquired->release();
    (*made)->forget(address, bytes);
  }
  // Not owned: use_ owns the region.
  auto* const region = const_cast<MemoryRegion*>(&lent->use_.region());
  lent->range_.emplace(std::vector<RegisteredRange::Registration>{
      {domain_.get(), std::shared_ptr<MemoryRegion>(std::shared_ptr<void>(), region)}});
  lent->memory_ = {address, bytes, &*lent->range_};
  return lent;
}

}  // namespace cariama
