// The memory that processes share: the layout of a device's control segment, and the few operations
// on it that both sides perform.
//
// A control segment is one sparse memfd per device, sealed, and mapped by every peer. It contains
// no user data: only keys, the state of queue pairs, receive queues, rings of receive completions,
// and doorbells. Peers write into it. Therefore its owner keeps the data on which it relies
// (request ids, free lists, sizes) in private memory, and checks every index that it reads here.
//
// Queue pair headers and key entries lie in fixed tables whose memory is never used for another
// purpose: a late write of a peer finds a header with a different serial number, and changes
// nothing.
#ifndef CARIAMA_DTUTILS_SHM_LAYOUT_H_
#define CARIAMA_DTUTILS_SHM_LAYOUT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "dtutils/completion.h"
#include "dtutils/doorbell.h"

namespace cariama::shm {

inline constexpr uint32_t kMagic = 0x4d485343;  // "CSHM"
inline constexpr uint32_t kVersion = 1;

// Address space per peer; only pages that were written occupy memory.
inline constexpr uint64_t kControlBytes = uint64_t{1} << 30;
inline constexpr uint32_t kMaxRegions = 1u << 16;
inline constexpr uint32_t kMaxQueuePairs = 1u << 16;
inline constexpr uint32_t kMaxDepth = 1u << 15;  // of a send, receive or shared receive queue
inline constexpr uint32_t kMaxSegments = 16;
inline constexpr uint32_t kMinInline = 8;  // bytes: every queue pair sends a word inline
inline constexpr uint32_t kMaxQueuePairsPerCompletionQueue = 4096;
// Every page size is a multiple of this.
inline constexpr uint64_t kSmallestPage = 4096;
inline constexpr uint64_t kMaxMessage = uint64_t{1} << 31;  // bytes

using Uuid = std::array<uint8_t, 16>;

// Reads a plain field that the other side may change at any time exactly once, so that the checked
// value is the used value.
template <typename Integer>
[[nodiscard]] inline Integer read_once(const Integer& shared) {
  return std::atomic_ref(const_cast<Integer&>(shared)).load(std::memory_order_relaxed);
}

// ---- Keys ---------------------------------------------------------------------------------------

// A remote key is a random number with the region's index in the key table in its low bits. A local
// key has the same form with the top bit set, so that a local key is never valid as a remote key or
// vice versa.
inline constexpr uint64_t kLocalKeyBit = uint64_t{1} << 63;
[[nodiscard]] constexpr uint32_t key_index(uint64_t key) { return key & (kMaxRegions - 1); }

// One registered region, as peers look it up. `key` is 0 while the entry is free. The owner stores
// `key` last and clears it first; a reader of the other fields checks `key` again afterwards.
struct alignas(64) KeyEntry {
  std::atomic<uint64_t> key;
  std::atomic<uint64_t> base;
  std::atomic<uint64_t> length;
  std::atomic<uint32_t> access;
  std::atomic<uint32_t> domain;
  std::atomic<uint32_t> has_descriptor;  // 0: reached by cross-memory attach
};
static_assert(sizeof(KeyEntry) == 64);

// ---- Queue pairs --------------------------------------------------------------------------------

enum class LinkState : uint8_t {
  kWaiting,   // the other end has not connected (or repaired) yet
  kReady,     // both ends have connected
  kBroken,    // an operation of either end failed
  kPeerGone,  // the other end's queue pair was destroyed
  kPeerDead,  // the other end's process ended
  kClosed,    // the header is free
};

// The state of one end in one word, so that the hot path needs one comparison with the expected
// value: serial number of the queue pair (a device never uses one twice) | generation (1 after
// connect(), each repair() adds 1) | LinkState. When the other end changes the word, it compares
// serial and generation, so that a change meant for an earlier generation has no effect.
class QueuePairStatus {
 public:
  constexpr QueuePairStatus(uint32_t serial, uint32_t generation, LinkState state)
      : word_(uint64_t{serial} << 32 | uint64_t{generation & 0xffffff} << 8 |
              static_cast<uint64_t>(state)) {}
  explicit constexpr QueuePairStatus(uint64_t word) : word_(word) {}
  [[nodiscard]] constexpr uint64_t word() const { return word_; }
  [[nodiscard]] constexpr uint32_t serial() const { return static_cast<uint32_t>(word_ >> 32); }
  [[nodiscard]] constexpr uint32_t generation() const { return (word_ >> 8) & 0xffffff; }
  [[nodiscard]] constexpr LinkState state() const { return static_cast<LinkState>(word_ & 0xff); }
  [[nodiscard]] constexpr bool failed() const { return state() >= LinkState::kBroken; }
  [[nodiscard]] constexpr QueuePairStatus with(LinkState state) const {
    return {serial(), generation(), state};
  }

 private:
  uint64_t word_;
};

struct QueuePairHeader {
  // Written at creation, by connect(), and when the connection breaks.
  alignas(64) std::atomic<uint64_t> status;
  // Random; part of address(): proves that the peer connects to the intended queue pair.
  std::atomic<uint64_t> nonce;
  std::atomic<uint64_t> peer_nonce;     // nonce of the queue pair to which the owner connected
  std::atomic<uint64_t> receive_queue;  // offsets within the segment
  std::atomic<uint64_t> receive_ring;
  std::atomic<uint64_t> completion_queue;  // the receive completion queue's SharedCompletionQueue
  std::atomic<uint32_t> ring_entries;      // a power of two
  std::atomic<uint32_t> ready_bit;         // its bit in the completion queue's ready bitmap
  // Written by the owner around each operation that accesses the peer's control segment beyond
  // headers and keys. While it is not 0 the peer must not reuse that memory.
  alignas(64) std::atomic<uint32_t> in_peer;
  std::atomic<uint32_t> domain;
};
static_assert(sizeof(QueuePairHeader) == 128);

// ---- Receive queues -----------------------------------------------------------------------------
//
// Posted receives of one queue pair or of a shared receive queue. Peers take them without the
// owner's CPU, in the order of posting. A slot contains one request; its `word` states which queue
// pair has taken it. The ring maps each position to a slot.

inline constexpr uint32_t kClaimantBits = 20;
inline constexpr uint32_t kOwnerClaims =
    (1u << kClaimantBits) - 1;  // claimant if the owner takes a request back

struct SharedSegment {
  uint64_t address;
  uint64_t key;  // remote key of the region
  uint32_t length;
  uint32_t reserved;
};

struct ReceiveSlot {
  // 0 if the slot is free, else (position + 1) << kClaimantBits | claimant. The claimant is 0 for a
  // posted request, else the index + 1 of the queue pair (of the owner) for which it was taken, or
  // kOwnerClaims.
  std::atomic<uint64_t> word;
  uint64_t capacity;  // total bytes of all segments
  uint32_t segment_count;
  uint32_t invalid;  // not 0 if a local key was wrong at posting
  [[nodiscard]] SharedSegment* segments() { return reinterpret_cast<SharedSegment*>(this + 1); }
};

struct ReceiveQueueHeader {
  alignas(64) std::atomic<uint64_t> head;  // the next position to be taken
  alignas(64) uint32_t entries;            // of the ring: a power of two
  uint32_t slots;
  uint32_t stride;  // bytes from one slot to the next
  uint32_t max_segments;
};

[[nodiscard]] constexpr uint64_t slot_stride(uint32_t max_segments) {
  return (sizeof(ReceiveSlot) + max_segments * sizeof(SharedSegment) + 63) / 64 * 64;
}
[[nodiscard]] constexpr uint64_t receive_queue_bytes(uint32_t entries, uint32_t slots,
                                                     uint32_t max_segments) {
  return sizeof(ReceiveQueueHeader) + entries * sizeof(uint64_t) + 64 +
         slots * slot_stride(max_segments);
}
[[nodiscard]] constexpr uint64_t posted_word(uint64_t position, uint32_t claimant) {
  return (position + 1) << kClaimantBits | claimant;
}

// A receive queue in a mapped control segment. The sizes are copied, so that the other side cannot
// change them later.
class ReceiveQueueView {
 public:
  ReceiveQueueView() = default;
  ReceiveQueueView(std::byte* at, uint32_t entries, uint32_t slots, uint32_t max_segments)
      : header_(reinterpret_cast<ReceiveQueueHeader*>(at)),
        ring_(reinterpret_cast<std::atomic<uint64_t>*>(header_ + 1)),
        slots_(reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(ring_ + entries) + 63) /
                                            64 * 64)),
        mask_(entries - 1),
        slot_count_(slots),
        stride_(static_cast<uint32_t>(slot_stride(max_segments))),
        max_segments_(max_segments) {}

  [[nodiscard]] ReceiveQueueHeader* header() const { return header_; }
  [[nodiscard]] ReceiveSlot* slot(uint32_t index) const {
    return reinterpret_cast<ReceiveSlot*>(slots_ + uint64_t{index} * stride_);
  }
  [[nodiscard]] uint32_t slot_count() const { return slot_count_; }
  [[nodiscard]] uint32_t max_segments() const { return max_segments_; }

  // Called by the owner: publishes the filled `slot` at `position`. Requires: the slot is free.
  void publish(uint64_t position, uint32_t slot_index) const {
    slot(slot_index)->word.store(posted_word(position, 0), std::memory_order_release);
    // seq_cst, for the race with a thread that breaks the queue pair and then takes posted receives
    // back: if the publisher afterwards still finds the queue pair intact, the breaking thread sees
    // the published entry.
    ring_[position & mask_].store((position + 1) << 16 | slot_index, std::memory_order_seq_cst);
  }

  // Takes the oldest posted request and returns its slot, or an empty optional if none is posted.
  // Lock-free: if a taker dies between its two steps, the next taker completes the second one.
  [[nodiscard]] std::optional<uint32_t> claim(uint32_t claimant) const {
    // An iteration repeats only because another taker made progress. The bound matters only if the
    // segment is corrupt.
    for (uint32_t turn = 0; turn <= 4 * (mask_ + 1) + 1024; ++turn) {
      uint64_t head = header_->head.load(std::memory_order_seq_cst);
      const uint64_t entry = ring_[head & mask_].load(std::memory_order_seq_cst);
      if (entry >> 16 < head + 1) {
        if (header_->head.load(std::memory_order_acquire) == head) return std::nullopt;
        continue;
      }
      const uint32_t index = entry & 0xffff;
      // An entry of a later round proves that this position was already taken, so only the head
      // must advance.
      if (entry >> 16 == head + 1) {
        if (index >= slot_count_) return std::nullopt;
        uint64_t expected = posted_word(head, 0);
        if (slot(index)->word.compare_exchange_strong(expected, expected | claimant)) {
          header_->head.compare_exchange_strong(head, head + 1);
          return index;
        }
      }
      header_->head.compare_exchange_strong(head, head + 1);
    }
    return std::nullopt;
  }

 private:
  ReceiveQueueHeader* header_ = nullptr;
  std::atomic<uint64_t>* ring_ = nullptr;
  std::byte* slots_ = nullptr;
  uint32_t mask_ = 0;
  uint32_t slot_count_ = 0;
  uint32_t stride_ = 0;
  uint32_t max_segments_ = 0;
};

// ---- Receive completions ------------------------------------------------------------------------

// One ring per queue pair: the connected peer writes it, the owner's completion queue reads it.
// Positions only grow, also across repair(). The ring has at least as many entries as the receive
// queue has slots. A slot becomes free only when its completion was read, so the ring cannot
// overflow.
struct ReceiveRingEntry {
  std::atomic<uint64_t> sequence;  // position + 1; stored last
  uint32_t slot;
  uint32_t immediate;
  uint32_t bytes;
  uint8_t status;  // CompletionStatus
  uint8_t kind;    // CompletionKind
  uint8_t has_immediate;
  uint8_t reserved;
  uint64_t reserved2;
};
static_assert(sizeof(ReceiveRingEntry) == 32);

// ---- Sleeping -----------------------------------------------------------------------------------

// A completion channel: its thread sleeps until it has an event that it has not consumed.
struct alignas(64) SharedChannel {
  std::atomic<uint32_t> events;  // number of events
  Doorbell doorbell;

  void signal() {
    events.fetch_add(1, std::memory_order_release);
    doorbell.ring();
  }
};

enum Armed : uint32_t { kDisarmed, kArmed, kArmedSolicited };

// The part of a completion queue that peers access: the bits of its queue pairs with new receive
// completions.
struct SharedCompletionQueue {
  alignas(64) std::atomic<uint32_t> armed;
  std::atomic<uint64_t> channel;  // offset, or 0
  alignas(64) std::atomic<uint64_t> ready[kMaxQueuePairsPerCompletionQueue / 64];

  // Step R2 of doorbell.h for the thread that has armed the queue. That thread sleeps on the
  // channel's event count. Requires: a seq_cst operation made the completion visible before.
  void fire(SharedChannel* wake, bool solicited) {
    const uint32_t state = armed.load();
    if (state == kDisarmed || (state == kArmedSolicited && !solicited)) return;
    if (armed.exchange(kDisarmed) != kDisarmed && wake != nullptr) wake->signal();
  }

  // Makes the completions of the queue pair with this bit visible.
  void mark_ready(uint32_t bit) { ready[bit / 64].fetch_or(uint64_t{1} << (bit % 64)); }
  void announce(uint32_t bit, SharedChannel* wake, bool solicited) {
    mark_ready(bit);
    fire(wake, solicited);
  }
};

// ---- The segment --------------------------------------------------------------------------------

struct ControlHeader {
  uint32_t magic;
  uint32_t version;
  uint64_t bytes;
  Uuid uuid;
  int32_t pid;  // in the owner's process name space; compared with the socket's credentials
  // The robust futex (see Documentation/locking/robust-futex-ABI of the kernel): contains the
  // thread id of the service thread while the device is open.
  alignas(64) std::atomic<uint32_t> owner_lock;
  std::atomic<uint32_t> closed;  // 1: closed in an orderly way, before owner_lock was released
};

inline constexpr uint64_t kKeyTableOffset = 4096;
inline constexpr uint64_t kQueuePairTableOffset = kKeyTableOffset + sizeof(KeyEntry) * kMaxRegions;
inline constexpr uint64_t kHeapOffset =
    kQueuePairTableOffset + sizeof(QueuePairHeader) * kMaxQueuePairs;
static_assert(sizeof(ControlHeader) <= kKeyTableOffset && kHeapOffset % 4096 == 0);

[[nodiscard]] inline ControlHeader* control_header(std::byte* control) {
  return reinterpret_cast<ControlHeader*>(control);
}
[[nodiscard]] inline KeyEntry* key_table(std::byte* control) {
  return reinterpret_cast<KeyEntry*>(control + kKeyTableOffset);
}
[[nodiscard]] inline QueuePairHeader* queue_pair_table(std::byte* control) {
  return reinterpret_cast<QueuePairHeader*>(control + kQueuePairTableOffset);
}

}  // namespace cariama::shm

#endif  // CARIAMA_DTUTILS_SHM_LAYOUT_H_
