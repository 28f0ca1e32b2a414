// Memory and pinners for tests of the registration cache.
#ifndef CARIAMA_TESTS_DTUTILS_REGISTRATION_PINNING_DOMAIN_H_
#define CARIAMA_TESTS_DTUTILS_REGISTRATION_PINNING_DOMAIN_H_

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "dtutils/error.h"
#include "dtutils/registration/pinner.h"

namespace cariama::testing {

inline constexpr size_t kTestPage = 4096;

// Mapped anonymous memory, unmapped at the end unless unmap() was called.
class MappedPages {
 public:
  explicit MappedPages(size_t pages) : bytes_(pages * kTestPage) {
    void* const address =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address != MAP_FAILED) address_ = static_cast<std::byte*>(address);
  }
  ~MappedPages() { unmap(); }
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;
  void unmap() {
    if (address_ != nullptr) munmap(address_, bytes_);
    address_ = nullptr;
  }
  [[nodiscard]] std::byte* get() const { return address_; }
  [[nodiscard]] std::byte* page(size_t index) const { return address_ + index * kTestPage; }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  std::byte* address_ = nullptr;
  size_t bytes_;
};

// Counts registrations, and pins nothing. Costs come from a hook that may advance a virtual clock.
class CountingPinner final : public Pinner {
 public:
  struct Counts {
    std::atomic<uint64_t> pinned{0};
    std::atomic<uint64_t> unpinned{0};
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> most_bytes{0};
    std::function<void(size_t)> on_pin;    // with the bytes
    std::function<void(size_t)> on_unpin;  // with the bytes
  };

  class Region final : public MemoryRegion {
   public:
    Region(const MemorySource& source, uint64_t key, std::shared_ptr<Counts> counts)
        : MemoryRegion(source, Access::kAll), counts_(std::move(counts)) {
      local_key_ = {key};
      remote_key_ = {key};
    }
    ~Region() override {
      ++counts_->unpinned;
      counts_->bytes -= length_;
      if (counts_->on_unpin) counts_->on_unpin(length_);
    }

   private:
    const std::shared_ptr<Counts> counts_;
  };

  absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* address, size_t bytes) override {
    if (counts->on_pin) counts->on_pin(bytes);
    const uint64_t now = counts->bytes += bytes;
    uint64_t most = counts->most_bytes;
    while (now > most && !counts->most_bytes.compare_exchange_weak(most, now)) {
    }
    return std::make_shared<Region>(MemorySource{.address = address, .length = bytes},
                                    ++counts->pinned, counts);
  }

  const std::shared_ptr<Counts> counts = std::make_shared<Counts>();
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_REGISTRATION_PINNING_DOMAIN_H_
