// A protection domain that only records registrations, for tests of memory. It records which ranges
// are registered now, and whether each range was still mapped when its registration ended.
#ifndef CARIAMA_TESTS_DTUTILS_ALLOCATORS_FAKE_DOMAIN_H_
#define CARIAMA_TESTS_DTUTILS_ALLOCATORS_FAKE_DOMAIN_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

#include "dtutils/device.h"
#include "dtutils/error.h"

namespace cariama::testing {

// State that FakeDomain and its regions share.
struct Registrations {
  std::mutex mutex;
  std::set<std::pair<uintptr_t, size_t>> live;
  size_t total = 0;               // number of registrations ever made
  size_t ended_while_mapped = 0;  // registrations that ended before their memory was unmapped
  size_t ended_unmapped = 0;  // registrations that ended after their memory was unmapped (a defect)
  size_t unsealed = 0;        // sources whose descriptor did not carry the seals
  size_t refuse_from = SIZE_MAX;  // the registration with this number and all later ones fail
};

class FakeRegion : public MemoryRegion {
 public:
  FakeRegion(const MemorySource& source, Access access, uint64_t key,
             std::shared_ptr<Registrations> registrations)
      : MemoryRegion(source, access), registrations_(std::move(registrations)) {
    local_key_ = {key};
    remote_key_ = {key + (uint64_t{1} << 32)};
  }
  ~FakeRegion() override {
    const std::lock_guard lock(registrations_->mutex);
    registrations_->live.erase({reinterpret_cast<uintptr_t>(address_), length_});
    // mincore(2) fails with ENOMEM where nothing is mapped.
    unsigned char present = 0;
    const bool mapped = mincore(address_, 1, &present) == 0;
    (mapped ? registrations_->ended_while_mapped : registrations_->ended_unmapped) += 1;
  }

 private:
  std::shared_ptr<Registrations> registrations_;
};

class FakeDomain : public ProtectionDomain {
 public:
  absl::StatusOr<std::shared_ptr<MemoryRegion>> register_memory(const MemorySource& source,
                                                                Access access) override {
    const std::lock_guard lock(registrations->mutex);
    if (registrations->total >= registrations->refuse_from) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                        "memlock is 64 KiB, a region needs more", "raise ulimit -l");
    }
    if (source.descriptor >= 0) {
      constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
      if ((fcntl(source.descriptor, F_GET_SEALS) & kSeals) != kSeals) ++registrations->unsealed;
    }
    registrations->live.emplace(reinterpret_cast<uintptr_t>(source.address), source.length);
    return std::make_shared<FakeRegion>(source, access, ++registrations->total, registrations);
  }
  absl::StatusOr<std::shared_ptr<CompletionChannel>> create_channel() override { return none(); }
  absl::StatusOr<std::shared_ptr<CompletionQueue>> create_completion_queue(
      const CompletionQueueOptions&) override {
    return none();
  }
  absl::StatusOr<std::shared_ptr<SharedReceiveQueue>> create_shared_receive_queue(
      const SharedReceiveQueueOptions&) override {
    return none();
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> create_queue_pair(const QueuePairOptions&) override {
    return none();
  }

  const std::shared_ptr<Registrations> registrations = std::make_shared<Registrations>();

 private:
  static absl::Status none() { return absl::UnimplementedError("registers memory only"); }
};

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DTUTILS_ALLOCATORS_FAKE_DOMAIN_H_
