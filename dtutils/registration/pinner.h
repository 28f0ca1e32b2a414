// Pinners: the objects through which a RegistrationCache registers memory.
//
//   auto pinner = std::make_shared<DomainPinner>(domain, Access::kAll);   // for transfers
//   auto pinner = *IoUringPinner::create();   // pins pages in the kernel, without a device
//
// IoUringPinner replaces a device on a machine that has none. Registering a fixed buffer with
// io_uring pins pages for the long term on the kernel path that verbs drivers use, and counts
// against RLIMIT_MEMLOCK as a registration with a device does (docs/registration.md, "Costs").
#ifndef CARIAMA_DTUTILS_REGISTRATION_PINNER_H_
#define CARIAMA_DTUTILS_REGISTRATION_PINNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

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
  // Registers [address, address + bytes). Destroying the region ends the registration. The region
  // keeps alive the state of the pinner that it needs, so it may outlive the pinner. Blocks for the
  // duration of the system call. Errors: RESOURCE_EXHAUSTED (the text names the limit and the value
  // needed), INVALID_ARGUMENT (part of the range is not mapped).
  [[nodiscard]] virtual absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* address,
                                                                          size_t bytes) = 0;
  // Calls pin(). Returns an exception that it throws, or an empty region, as an error.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<MemoryRegion>> try_pin(std::byte* address,
                                                                      size_t bytes);
  // Returns true if pinned bytes count against RLIMIT_MEMLOCK: the default of
  // RegistrationOptions::max_bytes then follows that limit.
  [[nodiscard]] virtual bool counts_against_memlock() const { return true; }
};

// Registers with a protection domain: ibv_reg_mr on verbs, the table of regions on shm.
class CARIAMA_DTUTILS_EXPORT DomainPinner final : public Pinner {
 public:
  // `read_only_access`: if the memory does not permit a registration with `access` (read-only
  // memory with a right to write), pin() registers with these rights instead.
  // MemoryRegion::access() returns the rights of the registration. Transports that pin no memory
  // (shm, sim) do not look at the rights of the memory.
  DomainPinner(std::shared_ptr<ProtectionDomain> domain, Access access,
               std::optional<Access> read_only_access = std::nullopt);
  [[nodiscard]] absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* address,
                                                                  size_t bytes) override;
  [[nodiscard]] bool counts_against_memlock() const override {
    return domain_ != nullptr && domain_->pins_memory();
  }

 private:
  const std::shared_ptr<ProtectionDomain> domain_;
  const Access access_;
  const std::optional<Access> read_only_access_;
};

// Pins anonymous, memfd and hugetlb memory through io_uring. The kernel refuses memory that is
// read-only or backed by a file on disk. The cache accounts for such memory, but no page of it is
// pinned, and accounted_only() of its region returns true.
class CARIAMA_DTUTILS_EXPORT IoUringPinner final : public Pinner {
 public:
  class State;

  // `slots`: the largest number of pinned pieces, 1 to 16384; a range takes one for each GiB that
  // it begins. Errors: INVALID_ARGUMENT (`slots`), UNAVAILABLE (the system refuses io_uring),
  // RESOURCE_EXHAUSTED (descriptors, RLIMIT_MEMLOCK).
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<IoUringPinner>> create(uint32_t slots = 8192);

  // A child of fork() needs a pinner of its own: FAILED_PRECONDITION.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* address,
                                                                  size_t bytes) override;

  // Returns true if pin() only accounted for the region. Requires: this class made the region.
  [[nodiscard]] static bool accounted_only(const MemoryRegion& region);

 private:
  explicit IoUringPinner(std::shared_ptr<State> state);
  const std::shared_ptr<State> state_;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_REGISTRATION_PINNER_H_
