#include "dsfabric/user_buffer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/call_source.h"
#include "dsfabric/fabric/fabric_core.h"
#include "dsfabric/send_call.h"
#include "dtutils/error.h"

namespace cariama {

absl::StatusOr<std::shared_ptr<MemoryRegion>> register_for_one_transfer(
    ProtectionDomain& domain, std::span<const std::byte> buffer) {
  // The device only reads the buffer. The transport contract has no const memory, hence the cast.
  return domain.register_memory(
      {.address = const_cast<std::byte*>(buffer.data()), .length = buffer.size()},
      Access::kRemoteRead);
}

namespace internal {
namespace {

absl::Status no_such_rank(uint32_t rank, uint32_t size) {
  return make_error(
      absl::StatusCode::kOutOfRange, ErrorScope::kOperation,
      "there is no rank " + std::to_string(rank) + ": the job has " + std::to_string(size));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LentBuffer>> LentBuffer::make(Fabric& fabric, uint32_t rank,
                                                             std::span<const std::byte> buffer) {
  if (rank >= fabric.size()) return no_such_rank(rank, fabric.size());
  std::unique_ptr<LentBuffer> lent(new LentBuffer(fabric));
  // Transfers within this process use the buffer in place.
  if (rank == fabric.rank()) {
    lent->memory_ = {const_cast<std::byte*>(buffer.data()), buffer.size(), nullptr};
    return lent;
  }
  const FabricOptions& options = fabric.options();
  if (buffer.size() <= options.bounce_bytes) {
    auto copy = fabric.memory().allocate(std::max<size_t>(buffer.size(), 1));
    if (!copy.ok()) return copy.status();
    if (!buffer.empty()) std::memcpy(copy->get_buffer(), buffer.data(), buffer.size());
    lent->bounced_ = true;
    lent->memory_ = *copy;
    return lent;
  }
  const ProtectionDomain* const domain = fabric.domain(rank);
  const auto& domains = fabric.core().memory().domains();
  const auto found = std::find_if(domains.begin(), domains.end(),
                                  [&](const auto& one) { return one.get() == domain; });
  auto region =
      options.registrar != nullptr ? options.registrar(**found, buffer)
      : options.registration != nullptr
          ? fabric.core().memory().lend_registered(static_cast<size_t>(found - domains.begin()),
                                                   buffer, options.registration)
          : register_for_one_transfer(**found, buffer);
  if (!region.ok()) return region.status();
  const std::byte* const first = (*region)->address();
  if (buffer.data() < first || buffer.data() + buffer.size() > first + (*region)->length()) {
    return make_error(
        absl::StatusCode::kInternal, ErrorScope::kProcess,
        "FabricOptions::registrar has returned a region that does not cover the buffer");
  }
  lent->range_ = std::make_unique<RegisteredRange>(
      std::vector<RegisteredRange::Registration>{{domain, *std::move(region)}});
  lent->memory_ = {const_cast<std::byte*>(buffer.data()), buffer.size(), lent->range_.get()};
  return lent;
}

LentBuffer::~LentBuffer() {
  // This is the allocator's free(); the analyzer mistakes it for that of C.
  // NOLINTNEXTLINE(clang-analyzer-unix.MismatchedDeallocator)
  if (bounced_) static_cast<void>(fabric_.memory().free(memory_));
}

absl::Status write_user_buffer(Fabric& fabric, uint32_t rank, std::span<const std::byte> buffer,
                               const RemoteMemoryLocator& target) {
  if (rank >= fabric.size()) return no_such_rank(rank, fabric.size());
  if (absl::Status can_be = check_target(rank, target, buffer.size()); !can_be.ok()) return can_be;
  if (rank == fabric.rank()) {
    if (!buffer.empty()) {
      std::memcpy(reinterpret_cast<void*>(target.address), buffer.data(), buffer.size());
    }
    return absl::OkStatus();
  }
  auto connection = fabric.core().sender().connection_of_this_thread(rank);
  if (!connection.ok()) return connection.status();
  auto lent = LentBuffer::make(fabric, rank, buffer);
  if (!lent.ok()) return lent.status();
  Synchronizer done;
  absl::Status posted = fabric.core().sender().transfer(**connection, [&](Connection& through) {
    return through.write((*lent)->memory(), 0, buffer.size(), target, &done);
  });
  if (!posted.ok()) return posted;
  return fabric.core().sender().await_transfer(**connection, done);
}

uint64_t lend_until_answered(Fabric& fabric, uint32_t rank, std::unique_ptr<LentBuffer> lent,
                             Synchronizer* done) {
  return expect_answer(fabric, rank,
                       [held = std::shared_ptr<LentBuffer>(std::move(lent)), done](
                           const absl::Status& status, std::span<const std::byte>) mutable {
                         // release the buffer before its owner is notified and may free it
                         held.reset();
                         if (done == nullptr) return;
                         if (status.ok()) {
                           done->decrease();
                         } else {
                           done->fail(status);
                         }
                       });
}

}  // namespace internal
}  // namespace cariama
