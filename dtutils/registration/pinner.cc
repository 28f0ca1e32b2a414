#include "dtutils/registration/pinner.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/internal/mapping_monitor.h"
#include "dtutils/internal/memory_limits.h"
#include "dtutils/internal/read_through.h"
#include "dtutils/internal/validate.h"

namespace cariama {

namespace {

constexpr uint32_t kMostSlots = 16384;             // the kernel's limit of a table
constexpr size_t kMostOfOneSlot = internal::kGiB;  // the kernel's limit of one fixed buffer
constexpr size_t kMostRead = 64 * internal::kKiB;
constexpr std::string_view kClosedRemedy =
    "do not close descriptors of the library (closefrom, close_range): io_uring has lost its own";

absl::Status not_mapped(const std::byte* address, size_t bytes) {
  const auto start = reinterpret_cast<uintptr_t>(address);
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    absl::StrCat("registering ", internal::format_bytes(bytes), " at 0x",
                                 absl::Hex(start), ": part of the range is not mapped"),
                    "pass mapped memory");
}

}  // namespace

DomainPinner::DomainPinner(std::shared_ptr<ProtectionDomain> domain, Access access,
                           std::optional<Access> read_only_access)
    : domain_(std::move(domain)), access_(access), read_only_access_(read_only_access) {}

absl::StatusOr<std::shared_ptr<MemoryRegion>> DomainPinner::pin(std::byte* address, size_t bytes) {
  if (domain_ == nullptr) {
    return internal::invalid_argument("a DomainPinner without a protection domain",
                                      "pass that of the queue pairs");
  }
  // A device that pins the memory finds out by itself.
  if (!domain_->pins_memory() && !internal::is_mapped(address, bytes))
    return not_mapped(address, bytes);
  const MemorySource source{.address = address, .length = bytes};
  auto region = domain_->register_memory(source, access_);
  if (region.ok() || !read_only_access_.has_value() || absl::IsResourceExhausted(region.status())) {
    return region;
  }
  auto read_only = domain_->register_memory(source, *read_only_access_);
  return read_only.ok() ? std::move(read_only) : std::move(region);
}

// The ring and its sparse table of fixed buffers. Regions share it, so that it outlives them.
class IoUringPinner::State {
 public:
  ~State() {
    if (ready_) io_uring_queue_exit(&ring_);
    if (fork_page_ != nullptr && is_of_this_process()) internal::free_fork_page(fork_page_);
  }

  // A forked child has the descriptor of its parent's ring, and must not change its buffers.
  [[nodiscard]] bool is_of_this_process() const {
    return internal::in_registering_process(fork_page_);
  }

  absl::Status open(uint32_t slots) {
    if (slots == 0 || slots > kMostSlots) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        "an IoUringPinner with " + std::to_string(slots) + " slots",
                        "pass 1 to " + std::to_string(kMostSlots));
    }
    if (fork_page_ == nullptr) {
      return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                        "no page can be mapped that is cleared at fork");
    }
    if (const int error = io_uring_queue_init(4, &ring_, 0); error != 0) {
      // The kernel counts the ring, too, against the limit of a process without CAP_IPC_LOCK.
      if (error == -ENOMEM) {
        return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                          "no memory for a ring of io_uring",
                          "raise RLIMIT_MEMLOCK (ulimit -l) to 64 KiB and the bytes to register");
      }
      const bool descriptors = error == -EMFILE || error == -ENFILE;
      return make_errno_error(
          -error, ErrorScope::kProcess, "io_uring is not available",
          descriptors ? "raise ulimit -n"
                      : "allow io_uring (sysctl kernel.io_uring_disabled, the seccomp filter of "
                        "the container), or register with a device");
    }
    ready_ = true;
    if (const int error = io_uring_register_buffers_sparse(&ring_, slots); error != 0) {
      return make_errno_error(-error, ErrorScope::kProcess, "creating a table of fixed buffers",
                              "Linux 5.19 or newer is needed");
    }
    for (uint32_t slot = slots; slot > 0; --slot) free_.push_back(slot - 1);
    return absl::OkStatus();
  }

  // Returns a negative error number, or 0.
  int set_slot(uint32_t slot, std::byte* address, size_t bytes) {
    const iovec range{address, bytes};
    const __u64 tag = 0;
    const int updated = io_uring_register_buffers_update_tag(&ring_, slot, &range, &tag, 1);
    return updated == 1 ? 0 : updated;
  }

  // Returns false if the program has closed the descriptor of the ring.
  [[nodiscard]] bool is_open() {
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    io_uring_free_probe(probe);
    return probe != nullptr;
  }

  bool take_slots(size_t count, std::vector<uint32_t>& slots) {
    const std::lock_guard lock(mutex_);
    if (free_.size() < count) return false;
    slots.assign(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
    free_.resize(free_.size() - count);
    return true;
  }
  void return_slots(const std::vector<uint32_t>& slots) {
    const std::lock_guard lock(mutex_);
    free_.insert(free_.end(), slots.begin(), slots.end());
  }

  absl::Status read_through(uint32_t slot, const std::byte* address, std::span<std::byte> out) {
    const std::lock_guard lock(mutex_);
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      return make_errno_error(errno, ErrorScope::kProcess, "creating a pipe");
    }
    const FileDescriptor reading(ends[0]);
    const FileDescriptor writing(ends[1]);
    io_uring_sqe* const request = io_uring_get_sqe(&ring_);
    io_uring_prep_write_fixed(request, writing.get(), address, static_cast<unsigned>(out.size()), 0,
                              static_cast<int>(slot));
    io_uring_cqe* completion = nullptr;
    int error = io_uring_submit(&ring_);
    if (error >= 0) error = io_uring_wait_cqe(&ring_, &completion);
    if (error < 0) {
      return make_errno_error(-error, ErrorScope::kProcess, "submitting to io_uring");
    }
    const int written = completion->res;
    io_uring_cqe_seen(&ring_, completion);
    if (written != static_cast<int>(out.size())) {
      return make_errno_error(written < 0 ? -written : EIO, ErrorScope::kOperation,
                              "reading through a fixed buffer");
    }
    for (size_t done = 0; done < out.size();) {
      const ssize_t got = read(reading.get(), out.data() + done, out.size() - done);
      if (got <= 0) return make_errno_error(EIO, ErrorScope::kOperation, "reading a pipe");
      done += static_cast<size_t>(got);
    }
    return absl::OkStatus();
  }

 private:
  io_uring ring_{};
  const std::atomic<uint64_t>* const fork_page_ = internal::make_fork_page();
  bool ready_ = false;
  std::mutex mutex_;
  std::vector<uint32_t> free_;
};

namespace {

class IoUringRegion final : public MemoryRegion {
 public:
  IoUringRegion(std::shared_ptr<IoUringPinner::State> state, const MemorySource& source,
                std::vector<uint32_t> slots)
      : MemoryRegion(source, Access::kAll), state_(std::move(state)), slots_(std::move(slots)) {
    local_key_ = {slots_.empty() ? UINT64_MAX : slots_.front()};
    remote_key_ = {local_key_.value};
  }
  ~IoUringRegion() override {
    if (!state_->is_of_this_process()) return;
    for (const uint32_t slot : slots_) static_cast<void>(state_->set_slot(slot, nullptr, 0));
    state_->return_slots(slots_);
  }
  [[nodiscard]] const std::vector<uint32_t>& slots() const { return slots_; }
  [[nodiscard]] IoUringPinner::State& state() const { return *state_; }

 private:
  const std::shared_ptr<IoUringPinner::State> state_;
  const std::vector<uint32_t> slots_;  // empty: accounted for, not pinned
};

}  // namespace

IoUringPinner::IoUringPinner(std::shared_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::shared_ptr<IoUringPinner>> IoUringPinner::create(uint32_t slots) {
  auto state = std::make_shared<State>();
  if (absl::Status opened = state->open(slots); !opened.ok()) return opened;
  return std::shared_ptr<IoUringPinner>(new IoUringPinner(std::move(state)));
}

absl::StatusOr<std::shared_ptr<MemoryRegion>> IoUringPinner::pin(std::byte* address, size_t bytes) {
  if (!state_->is_of_this_process()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "an IoUringPinner of the parent process is used after fork",
                      "create a pinner in the child");
  }
  std::vector<uint32_t> slots;
  if (!state_->take_slots(bytes / kMostOfOneSlot + (bytes % kMostOfOneSlot != 0 ? 1 : 0), slots)) {
    if (!internal::is_mapped(address, bytes)) return not_mapped(address, bytes);
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      "all slots of the IoUringPinner are in use",
                      "pass more to IoUringPinner::create(), or lower "
                      "RegistrationOptions::max_regions");
  }
  const MemorySource source{.address = address, .length = bytes};
  // Made before the memory is pinned: its destructor ends what is pinned and returns the slots.
  std::shared_ptr<IoUringRegion> region;
  try {
    region = std::make_shared<IoUringRegion>(state_, source, slots);
  } catch (const std::bad_alloc&) {
    state_->return_slots(slots);
    throw;
  }
  int error = 0;
  for (size_t i = 0; i < slots.size() && error == 0; ++i) {
    const size_t offset = i * kMostOfOneSlot;
    error = state_->set_slot(slots[i], address + offset, std::min(bytes - offset, kMostOfOneSlot));
  }
  if (error == 0) return region;
  region.reset();
  if (error == -ENOMEM) {
    return internal::explain_no_memory(internal::query_memory_limits(), bytes);
  }
  if (error != -EFAULT && error != -EOPNOTSUPP) {
    return make_errno_error(-error, ErrorScope::kProcess,
                            "pinning " + internal::format_bytes(bytes),
                            error == -EBADF ? kClosedRemedy : "");
  }
  if (!internal::is_mapped(address, bytes)) return not_mapped(address, bytes);
  // The descriptor may belong to another file now, which refuses the request with the same error.
  if (!state_->is_open()) {
    return make_errno_error(EBADF, ErrorScope::kProcess, "pinning " + internal::format_bytes(bytes),
                            kClosedRemedy);
  }
  return std::make_shared<IoUringRegion>(state_, source, std::vector<uint32_t>{});
}

absl::StatusOr<std::shared_ptr<MemoryRegion>> Pinner::try_pin(std::byte* address, size_t bytes) {
  const std::string what = "pinning " + internal::format_bytes(bytes);
  try {
    auto region = pin(address, bytes);
    if (!region.ok() || *region != nullptr) return region;
    return make_error(absl::StatusCode::kInternal, ErrorScope::kProcess,
                      what + ": the pinner returned no region", "correct Pinner::pin()");
  } catch (const std::bad_alloc&) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      what + ": no memory for the region", "free memory");
  } catch (const std::exception& thrown) {
    return make_error(absl::StatusCode::kInternal, ErrorScope::kProcess,
                      what + ": the pinner threw " + thrown.what(), "correct Pinner::pin()");
  }
}

bool IoUringPinner::accounted_only(const MemoryRegion& region) {
  return static_cast<const IoUringRegion&>(region).slots().empty();
}

absl::Status internal::read_through(const MemoryRegion& region, const std::byte* address,
                                    std::span<std::byte> out) {
  const auto& pinned = static_cast<const IoUringRegion&>(region);
  if (address < region.address() || address + out.size() > region.address() + region.length() ||
      out.size() > kMostRead || out.empty() || pinned.slots().empty()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "read_through() beyond the region, of more than 64 KiB, or not pinned");
  }
  const auto offset = static_cast<size_t>(address - region.address());
  return pinned.state().read_through(pinned.slots()[offset / kMostOfOneSlot], address, out);
}

}  // namespace cariama
