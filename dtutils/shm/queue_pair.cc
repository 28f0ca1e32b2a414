// The hot path. Setting up, breaking and repairing is in queue_pair_connection.cc, what needs the
// queue pair's mutex in queue_pair_message.cc.
#include "dtutils/shm/queue_pair.h"

#include <sys/uio.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "dtutils/internal/validate.h"
#include "dtutils/shm/copy.h"

namespace cariama::shm {
namespace {

[[nodiscard]] bool is_one_sided(Opcode opcode) {
  return opcode == Opcode::kWrite || opcode == Opcode::kRead || internal::is_atomic(opcode);
}

// Opcode, flags and segment count of a request, each loaded by itself. The caller has just stored
// them one by one: a load that spans several stores waits until they have left the store buffer,
// which takes longer than all the rest of a small transfer. So the compiler must not join these
// loads.
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

// PostResult{count}, put together as one word: member by member it goes through the stack, where
// reading back what narrower stores wrote costs more than a transfer of 8 bytes.
[[nodiscard]] PostResult all_posted(uint32_t count) {
  static_assert(offsetof(PostResult, posted) == 0 && offsetof(PostResult, error) == 4 &&
                sizeof(PostResult) == 12);
  auto head = std::bit_cast<uint64_t>(std::array<uint32_t, 2>{count, 0});
  asm("" : "+r"(head));  // keeps the compiler from taking it apart
  PostResult result;
  std::memcpy(static_cast<void*>(&result), &head, sizeof head);
  return result;
}

// The remote side is asked for what the operation does to it.
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

// Counts a completion that will be pushed. Limits: send_depth unpolled completions of this queue
// pair, so that it cannot fill a queue that others share; and room in the ring.
bool ShmQueuePair::reserve(bool in_ring) {
  // seq_cst, before the look at expected_ in usable(): a thread that makes operations wait, and
  // reads its flush number afterwards, must not miss that this one was signaled earlier.
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

// Copies into the mapping of the peer's memory, if that is all there is to do.
[[gnu::always_inline]] inline bool ShmQueuePair::write_mapped(const void* local, uint32_t bytes,
                                                              uint64_t remote_address,
                                                              RemoteKey remote_key) {
  const RemoteRegion* const region = link_->known(remote_key.value);
  if (region == nullptr || region->key != remote_key.value || region->revoked() ||
      region->write_domain != peer_domain_ || !region->contains(remote_address, bytes))
      [[unlikely]] {
    return false;
  }
  copy_out(region->local(remote_address), static_cast<const std::byte*>(local), bytes);
  return true;
}

bool ShmQueuePair::write_now(const void* local, uint32_t bytes, LocalKey key,
                             uint64_t remote_address, RemoteKey remote_key) {
  // As much as may be inline needs no key.
  if (!usable() || (bytes > limits_.max_inline &&
                    (bytes > kMaxMessage || !local_regions_[key_index(key.value)].allows(
                                                key, local, bytes, domain_number_)))) [[unlikely]] {
    return false;
  }
  return write_mapped(local, bytes, remote_address, remote_key);
}

// One plain WRITE without a stack frame; everything else is the business of post_list().
PostResult ShmQueuePair::post_send(std::span<const WorkRequest> requests) {
  if (requests.size() == 1) [[likely]] {
    const WorkRequest& request = requests.front();
    const Shape shape = shape_of(request);
    if (shape.is_plain_write() && usable()) [[likely]] {
      const Segment& segment = request.segments[0];
      const uint32_t bytes = segment.length;
      const bool readable =
          shape.is_inline()
              ? bytes <= limits_.max_inline
              : bytes <= kMaxMessage && local_regions_[key_index(segment.key.value)].allows(
                                            segment.key, segment.address, bytes, domain_number_);
      if (readable && write_mapped(segment.address, bytes, request.remote_address,
                                   request.remote_key)) [[likely]] {
        return all_posted(1);
      }
    }
  }
  return post_list(requests);
}

[[gnu::noinline]] PostResult ShmQueuePair::post_list(std::span<const WorkRequest> requests) {
  const auto count = static_cast<uint32_t>(requests.size());
  const uint32_t posted = post_plain_writes(requests, 0);
  return posted == count ? all_posted(count) : post_any(requests, posted);
}

// From a request that is not a plain write on.
[[gnu::noinline]] PostResult ShmQueuePair::post_any(std::span<const WorkRequest> requests,
                                                    uint32_t first) {
  const auto count = static_cast<uint32_t>(requests.size());
  for (uint32_t i = first;; i = post_plain_writes(requests, i + 1)) {
    if (i == count) return all_posted(count);
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
    const Outcome outcome = execute_one_sided(request);
    if (!outcome.ok()) [[unlikely]] {
      fail_unlocked(request, outcome);
    } else if (signaled) {
      complete(request, outcome);
    }
  }
}

// Executes unsignaled WRITEs of one segment into mapped memory from requests[first] on. Returns the
// index of the first request that is something else, or wrong. The state of the queue pair, and
// whether the keys are still registered, is looked at once a list: who ends them now cannot tell
// the difference.
[[gnu::always_inline]] inline uint32_t ShmQueuePair::post_plain_writes(
    std::span<const WorkRequest> requests, uint32_t first) {
  const auto count = static_cast<uint32_t>(requests.size());
  if (!usable()) [[unlikely]]
    return first;
  uint64_t local_key = 0;  // is no key, and covers nothing
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
      const RemoteRegion* region = link_->find(request.remote_key.value);
      if (region == nullptr || region->revoked() || region->write_domain != peer_domain_) {
        return i;
      }
      remote_key = request.remote_key.value;
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

Outcome ShmQueuePair::execute_one_sided(const WorkRequest& request) {
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
  if (bytes == 0) return {};  // keys of empty transfers are not looked at

  const RemoteRegion* region = link_->find(request.remote_key.value);
  if (region == nullptr || region->revoked() || !region->contains(request.remote_address, bytes) ||
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

// Memory that has no descriptor: the kernel copies (process_vm_readv(2)).
Outcome ShmQueuePair::attach_copy(const WorkRequest& request, uint64_t bytes) {
  if (internal::is_atomic(request.opcode)) {
    // No other process can do an atomic operation there; the owner's CPU is not to be involved.
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
        case EFAULT:  // registered, but not, or no longer, there
          return {CompletionStatus::kRemoteAccess, error};
        default:  // EPERM: Yama's ptrace_scope forbids it
          return {CompletionStatus::kRemoteOperation, error};
      }
    }
    // At most 2 GiB are moved at once, and a fault in the middle shows as a short count.
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

void ShmQueuePair::complete(const WorkRequest& request, Outcome outcome) {
  Completion completion;
  completion.id = request.id;
  completion.status = outcome.status;
  completion.kind = internal::completion_kind(request.opcode);
  completion.queue_pair = number_;
  completion.vendor_error = outcome.vendor_error;
  send_queue_->push(completion, account_);
}

std::byte* ShmQueuePair::direct_access(const RemoteMemoryLocator& remote) {
  if (state() != QueuePairState::kConnected) return nullptr;
  const RemoteRegion* region = link_->find(remote.key.value);
  if (region == nullptr || region->revoked() || !region->mapped || region->domain != peer_domain_ ||
      !region->contains(remote.address, remote.length) ||
      !has_access(region->access, Access::kRemoteRead | Access::kRemoteWrite)) {
    return nullptr;
  }
  return region->local(remote.address);
}

}  // namespace cariama::shm
