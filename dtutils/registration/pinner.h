// Pinners: what a RegistrationCache does to memory in order to register it.
//
//   auto pinner = std::make_shared<DomainPinner>(domain, Access::kAll);   // for transfers
//   auto pinner = *IoUringPinner::create();   // pins pages in the kernel, without a device
//
// IoUringPinner is the stand-in for a device where there is none: registering a fixed buffer with
// io_uring pins pages for the long term on the kernel path that verbs drivers use, and counts
// against RLIMIT_MEMLOCK like them (docs/registration.md, "Costs").
#ifndef CARIAMA_DTUTILS_REGISTRATION_PINNER_H_
#define CARIAMA_DTUTILS_REGISTRATION_PINNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/device.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"

namespace cariama {

// Registers ranges of whole pages. Thread-safe.
class CARIAMA_DTUTILS_EXPORT Pinner {
 public:
  virtual ~Pinner() = default;
  // Registers [address, address + bytes). Destroying the region ends the registration; it keeps
  // what it needs of the pinner. Blocks for the duration of the system call. Errors:
  // RESOURCE_EXHAUSTED (the text names the limit and the value needed), INVALID_ARGUMENT (part of
  // the range is not mapped).
  [[nodiscard]] virtual absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* address,
                                                                          size_t bytes) = 0;
  // Returns true if pinned bytes count against RLIMIT_MEMLOCK: the default of
  // RegistrationOptions::max_bytes then follows that limit.
  [[nodiscard]] virtual bool counts_against_memlock() const { return true; }
};

// Registers with a protection domain: ibv_reg_mr on verbs, the table of regions on shm.
class CARIAMA_DTUTILS_EXPORT DomainPinner final : public Pinner {
 public:
  // `read_only_access`: if registering with `access` fails because of the memory, as for read-only
  // memory with a right to write, pin() registers with these rights instead. MemoryRegion::access()
  // tells which.
  DomainPinner(std::shared_ptr<ProtectionDomain> domain, Access access,
               std::optional<Access> read_only_access = std::nullopt);
  [[nodiscard]] absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* address,
                                                                  size_t bytes) override;
  [[nodiscard]] bool counts_against_memlock() const override { return domain_->pins_memory(); }

 private:
  const std::shared_ptr<ProtectionDomain> domain_;
  const Access access_;
  const std::optional<Access> read_only_access_;
};

// Pins anonymous, memfd and hugetlb memory through io_uring. The kernel refuses memory that is
// read-only or backed by a file on disk: such memory is accounted for by the cache, but not pinned,
// and accounted_only() of its region is true.
class CARIAMA_DTUTILS_EXPORT IoUringPinner final : public Pinner {
 public:
  class State;

  // `slots`: the largest number of pinned pieces; a range takes one for each GiB that it begins.
  // Errors: UNAVAILABLE (the system refuses io_uring), RESOURCE_EXHAUSTED.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<IoUringPinner>> create(uint32_t slots = 8192);

  [[nodiscard]] absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* address,
                                                                  size_t bytes) override;

  // Returns true if pin() only accounted for the region. Requires: this class made the region.
  [[nodiscard]] static bool accounted_only(const MemoryRegion& region);

  // Copies the bytes that a device would read through the registration: those of the pinned pages,
  // whatever is mapped at the address now. For tests of stale registrations; out.size() <= 64 KiB,
  // within one GiB of the region. Errors: INVALID_ARGUMENT, those of io_uring.
  [[nodiscard]] absl::Status read_through(const MemoryRegion& region, const std::byte* address,
                                          std::span<std::byte> out);

 private:
  explicit IoUringPinner(std::shared_ptr<State> state);
  const std::shared_ptr<State> state_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_REGISTRATION_PINNER_H_
