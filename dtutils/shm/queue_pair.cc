// The hot path. queue_pair_connection.cc contains creation, connection, failure and repair;
// queue_pair_message.cc contains the operations that need the queue pair's mutex.
#include "dtutils/shm/queue_pair.h"

#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "dtutils/internal/validate.h"
#include "dtutils/shm/copy.h"

namespace cariama::shm {
namespace {

[[nodiscard]] bool is_one_sided(Opcode opcode) {
  return opcode == Opcode::kWrite || opcode == Opcode::kRead || internal::is_atomic(opcode);
}

// Prevents the compiler from combining the loads before and after it. The caller has just stored
// the fields of a request one by one. A load that spans several stores must wait until they have
// left the store buffer, which takes longer than the rest of a small transfer.
[[gnu::always_inline]] inline void separate_loads() {
  std::atomic_signal_fence(std::memory_order_acquire);
}

// Opcode, flags and segment count of a request, each loaded separately (separate_loads()).
struct Shape {
  uint32_t opcode;
  uint32_t flags;
  uint32_t segment_count;

  [[nodiscard]] bool is_plain_write() const {
    return opcode == static_cast<uint32_t>(Opcode::kWrite) && segment_count == 1 &&
           (flags & kSignaled) == 0;
  }
  [[nodiscard]] bool is_inline() const { return (flags & kInline) != 0; }
};
[[nodiscard, gnu::always_inline]] inline Shape shape_of(const WorkRequest& request) {
  Shape shape{static_cast<uint32_t>(request.opcode), request.flags, request.segment_count};
  asm("" : "+r"(shape.opcode), "+r"(shape.flags), "+r"(shape.segment_count));
  return shape;
}

// Returns the access that the remote region must grant for the operation.
[[nodiscard]] Access needed_access(Opcode opcode) {
  switch (opcode) {
    case Opcode::kRead:
      return Access::kRemoteRead;
    case Opcode::kFetchAdd:
    case Opcode::kCompareSwap:
      return Access::kRemoteAtomic;
    default:
      return Access::kRemoteWrite;
  }
}

}  // namespace

// Reserves a completion. With `in_ring`: returns false if send_depth completions are unpolled, so
// that this queue pair cannot fill a completion queue that others share, or if the ring has no
// room. Without: always returns true. (The queue pair itself is one of the references, hence the
// `>`.)
bool ShmQueuePair::reserve(bool in_ring) {
  // seq_cst, before the load of expected_ in usable(): a thread that defers operations, and
  // afterwards reads its flush number, must not miss that this operation was signaled earlier.
  const uint32_t before = account_->references.fetch_add(1);
  if (in_ring && (before > limits_.send_depth || !send_queue_->has_room())) [[unlikely]] {
    account_->references.fetch_sub(1);
    return false;
  }
  return true;
}

bool ShmQueuePair::check_local(const Segment& segment, bool written) const {
  const LocalRegion& region = local_regions_[key_index(segment.key.value)];
  return region.allows(segment.key, segment.address, segment.length, domain_number_) &&
         (!written || region.writable());
}

// Returns true if a WRITE may read its source from this local memory.
[[gnu::always_inline]] inline bool ShmQueuePair::readable(const void* address, uint64_t bytes,
                                                          LocalKey key) const {
  return bytes <= kMaxMessage &&
         local_regions_[key_index(key.value)].allows(key, address, bytes, domain_number_);
}

// Tail-called, so that its callers need no stack frame.
[[gnu::noinline]] static PostResult post_copy(std::byte* to, const void* from, size_t bytes) {
  copy_out_other(to, static_cast<const std::byte*>(from), bytes);
  return {1};
}

static void copy_any(std::byte* to, const std::byte* from, size_t bytes) {
  copy_out(to, from, bytes);
}

bool ShmQueuePair::open_direct_writer(RemoteKey key, DirectWriter& writer) {
  if (!usable()) return false;
  const RemoteRegionCell& cell = link_->regions()[key_index(key.value)];
  const std::optional<RemoteRegion> region = cell.read(key.value);
  if (!region.has_value() || region->write_domain() != peer_domain_) return false;
  // The writer remains valid when the cell gets another key: no address range of the link is
  // unmapped before the link closes, and no other region is mapped there while the owner's table
  // has this key.
  writer = DirectWriter({.key = key.value,
                         .base = region->base,
                         .length = region->length,
                         .delta = region->delta,
                         .state = &header_->status,
                         .usable = &expected_,
                         .registered = cell.owner_key(),
                         .copy = copy_any});
  return true;
}

// A constant, because clang assembles a result that is written as {1} field by field, also where it
// returns that of another function.
static constexpr PostResult kOnePosted{1};

// Executes one inline WRITE of 8 bytes into mapped memory; passes every other request on. It needs
// no stack frame, because it calls functions only as its last step.
[[gnu::noinline]] PostResult ShmQueuePair::post_one(const WorkRequest& request) {
  if (request.opcode != Opcode::kWrite) return post_list_of(request);
  separate_loads();
  if (request.segment_count != 1) [[unlikely]]
    return post_list_of(request);
  separate_loads();
  const Segment& segment = *request.segments;
  if (request.flags != kInline || segment.length != sizeof(uint64_t)) return post_write(request);
  const uint64_t key = request.remote_key.value;
  std::byte* to;
  if (!usable() || !writable_regions_[key_index(key)].word_target(key, request.remote_address, &to))
      [[unlikely]] {
    return post_list_of(request);
  }
  store_word<uint64_t>(to, static_cast<const std::byte*>(segment.address));
  return kOnePosted;
}

// Continues post_one() for a WRITE of one segment that is longer, shorter, or not inline.
[[gnu::noinline]] PostResult ShmQueuePair::post_write(const WorkRequest& request) {
  const Segment& segment = *request.segments;
  const uint32_t bytes = segment.length;
  const uint32_t flags = request.flags;
  const uint64_t key = request.remote_key.value;
  std::byte* to;
  if ((flags & kSignaled) != 0 || !usable() ||
      ((flags & kInline) != 0 ? bytes > limits_.max_inline
                              : !readable(segment.address, bytes, segment.key)) ||
      !writable_regions_[key_index(key)].target(key, request.remote_address, bytes, &to))
      [[unlikely]] {
    return post_list_of(request);
  }
  if (bytes != sizeof(uint64_t)) return post_copy(to, segment.address, bytes);
  store_word<uint64_t>(to, static_cast<const std::byte*>(segment.address));
  return kOnePosted;
}

[[gnu::noinline]] PostResult ShmQueuePair::post_list_of(const WorkRequest& request) {
  return post_list(std::span(&request, 1));
}

PostResult ShmQueuePair::post_send(std::span<const WorkRequest> requests) {
  if (requests.size() == 1) return post_one(requests.front());
  return post_list(requests);
}

[[gnu::noinline]] PostResult ShmQueuePair::post_list(std::span<const WorkRequest> requests) {
  const auto count = static_cast<uint32_t>(requests.size());
  const uint32_t posted = post_plain_writes(requests, 0);
  return posted == count ? PostResult{count} : post_any(requests, posted);
}

// Posts the requests from requests[first] on, which is not a plain WRITE.
[[gnu::noinline]] PostResult ShmQueuePair::post_any(std::span<const WorkRequest> requests,
                                                    uint32_t first) {
  const auto count = static_cast<uint32_t>(requests.size());
  for (uint32_t i = first;; i = post_plain_writes(requests, i + 1)) {
    if (i == count) return {count};
    const WorkRequest& request = requests[i];
    if (!is_one_sided(request.opcode) || !usable()) return post_slow(requests, i);
    const PostError error = internal::validate(request, limits_, true).error;
    if (error != PostError::kNone) return {i, error};
    const bool signaled = (request.flags & kSignaled) != 0;
    if (signaled) {
      if (!reserve(true)) return {i, PostError::kQueueFull};
      if (!usable()) [[unlikely]] {  // see reserve()
        account_->references.fetch_sub(1);
        return post_slow(requests, i);
      }
    }
    const OperationResult result = execute_one_sided(request);
    if (!result.ok()) [[unlikely]] {
      fail_unlocked(request, result);
    } else if (signaled) {
      complete(request, result);
    }
  }
}

// Executes unsignaled WRITEs of one segment into mapped memory from requests[first] on. Returns the
// index of the first request that is of another kind, or is invalid. The state of the queue pair
// and the registration of the keys are checked once per list: if another thread ends them
// meanwhile, it cannot distinguish this from an earlier execution of the list.
[[gnu::always_inline]] inline uint32_t ShmQueuePair::post_plain_writes(
    std::span<const WorkRequest> requests, uint32_t first) {
  const auto count = static_cast<uint32_t>(requests.size());
  if (!usable()) [[unlikely]]
    return first;
  uint64_t local_key = 0;  // not a valid key, and its range is empty
  uint64_t local_base = 0;
  uint64_t local_length = 0;
  uint64_t remote_key = 0;
  uint64_t remote_base = 0;
  uint64_t remote_length = 0;
  uint64_t remote_delta = 0;
  for (uint32_t i = first; i < count; ++i) {
    const WorkRequest& request = requests[i];
    const Shape shape = shape_of(request);
    if (!shape.is_plain_write()) return i;
    const Segment& segment = request.segments[0];
    const uint64_t bytes = segment.length;
    if (shape.is_inline()) {
      if (bytes > limits_.max_inline) return i;
    } else {
      if (segment.key.value != local_key) {
        const LocalRegion& region = local_regions_[key_index(segment.key.value)];
        if (!region.allows(segment.key, segment.address, bytes, domain_number_)) return i;
        local_key = segment.key.value;
        local_base = region.base.load(std::memory_order_relaxed);
        local_length = region.length.load(std::memory_order_relaxed);
      }
      const uint64_t local_offset = reinterpret_cast<uint64_t>(segment.address) - local_base;
      if (local_offset > local_length || bytes > local_length - local_offset) [[unlikely]]
        return i;
    }
    if (request.remote_key.value != remote_key) {
      const std::optional<RemoteRegion> region = link_->find(request.remote_key.value);
      if (!region.has_value() || region->write_domain() != peer_domain_) return i;
      remote_key = request.remote_key.value;
      if (!writable_regions_[key_index(remote_key)].has(remote_key)) link_->make_writable(*region);
      remote_base = region->base;
      remote_length = region->length;
      remote_delta = region->delta;
    }
    const uint64_t remote_offset = request.remote_address - remote_base;
    if (remote_offset > remote_length || bytes > remote_length - remote_offset ||
        bytes > kMaxMessage) [[unlikely]] {
      return i;
    }
    auto* to = reinterpret_cast<std::byte*>(request.remote_address + remote_delta);
    const auto* from = static_cast<const std::byte*>(segment.address);
    if (bytes == 8) {
      store_word<uint64_t>(to, from);
    } else {
      copy_out(to, from, bytes);
    }
  }
  return count;
}

OperationResult ShmQueuePair::execute_one_sided(const WorkRequest& request) {
  const bool is_inline = (request.flags & kInline) != 0;
  const bool scatters =
      request.opcode != Opcode::kWrite && request.opcode != Opcode::kWriteImmediate;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < request.segment_count; ++i) {
    const Segment& segment = request.segments[i];
    bytes += segment.length;
    if (!is_inline && segment.length != 0 && !check_local(segment, scatters)) [[unlikely]] {
      return {CompletionStatus::kLocalProtection};
    }
  }
  if (bytes == 0) return {};  // the keys of empty transfers are not checked

  const std::optional<RemoteRegion> region = link_->find(request.remote_key.value);
  if (!region.has_value() || !region->contains(request.remote_address, bytes) ||
      region->domain != peer_domain_ || !has_access(region->access, needed_access(request.opcode)))
      [[unlikely]] {
    return {CompletionStatus::kRemoteAccess};
  }
  if (!region->mapped) [[unlikely]]
    return attach_copy(request, bytes);

  std::byte* remote = region->local(request.remote_address);
  switch (request.opcode) {
    case Opcode::kRead:
      complete_earlier_writes();
      for (uint32_t i = 0; i < request.segment_count; ++i) {
        const Segment& segment = request.segments[i];
        copy_in(static_cast<std::byte*>(segment.address), remote, segment.length);
        remote += segment.length;
      }
      break;
    case Opcode::kFetchAdd:
    case Opcode::kCompareSwap: {
      std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(remote));
      uint64_t before = request.operand;
      if (request.opcode == Opcode::kFetchAdd) {
        before = word.fetch_add(request.operand);
      } else {
        word.compare_exchange_strong(before, request.swap);
      }
      std::memcpy(request.segments[0].address, &before, sizeof before);
      break;
    }
    default:
      for (uint32_t i = 0; i < request.segment_count; ++i) {
        const Segment& segment = request.segments[i];
        copy_out(remote, static_cast<const std::byte*>(segment.address), segment.length);
        remote += segment.length;
      }
  }
  return {};
}

// Transfers to or from memory that has no descriptor, through the kernel (process_vm_readv(2)).
OperationResult ShmQueuePair::attach_copy(const WorkRequest& request, uint64_t bytes) {
  if (internal::is_atomic(request.opcode)) {
    // No other process can execute an atomic operation there, and the contract excludes the owner's
    // CPU.
    return {CompletionStatus::kRemoteInvalid, EOPNOTSUPP};
  }
  std::array<iovec, kMaxSegments> local;
  size_t count = 0;
  for (uint32_t i = 0; i < request.segment_count; ++i) {
    if (request.segments[i].length == 0) continue;
    local[count++] = {request.segments[i].address, request.segments[i].length};
  }
  iovec* first = local.data();
  iovec remote{reinterpret_cast<void*>(request.remote_address), bytes};
  while (remote.iov_len != 0) {
    const ssize_t moved = request.opcode == Opcode::kRead
                              ? process_vm_readv(link_->pid(), first, count, &remote, 1, 0)
                              : process_vm_writev(link_->pid(), first, count, &remote, 1, 0);
    if (moved <= 0) {
      const auto error = static_cast<uint32_t>(moved == 0 ? EFAULT : errno);
      switch (error) {
        case ESRCH:
          return {CompletionStatus::kPeerDied, error};
        case EFAULT:  // registered, but not or no longer mapped by the owner
          return {CompletionStatus::kRemoteAccess, error};
        default:  // EPERM: Yama's ptrace_scope forbids it
          return {CompletionStatus::kRemoteOperation, error};
      }
    }
    // One call moves at most 2 GiB, and a fault in the middle results in a short count.
    auto left = static_cast<size_t>(moved);
    remote.iov_base = static_cast<std::byte*>(remote.iov_base) + left;
    remote.iov_len -= left;
    while (count != 0 && left >= first->iov_len) {
      left -= first->iov_len;
      ++first;
      --count;
    }
    if (count != 0) {
      first->iov_base = static_cast<std::byte*>(first->iov_base) + left;
      first->iov_len -= left;
    }
  }
  return {};
}

void ShmQueuePair::complete(const WorkRequest& request, OperationResult result,
                            ShmCompletionQueue::Spare* spare) {
  Completion completion;
  completion.id = request.id;
  completion.status = result.status;
  completion.kind = internal::completion_kind(request.opcode);
  completion.queue_pair = number_;
  completion.vendor_error = result.vendor_error;
  if (spare == nullptr) [[likely]] {
    send_queue_->push(completion, account_);
  } else {
    send_queue_->push(completion, account_, std::move(*spare));
  }
}

std::byte* ShmQueuePair::direct_access(const RemoteMemoryLocator& remote) {
  if (state() != QueuePairState::kConnected) return nullptr;
  const std::optional<RemoteRegion> region = link_->find(remote.key.value);
  if (!region.has_value() || !region->mapped || region->domain != peer_domain_ ||
      !region->contains(remote.address, remote.length) ||
      !has_access(region->access, Access::kRemoteRead | Access::kRemoteWrite)) {
    return nullptr;
  }
  return region->local(remote.address);
}

}  // namespace cariama::shm
