// What processes share: the layout of a device's control segment, and the few operations on it that
// both sides perform.
//
// A control segment is one sparse memfd per device, sealed, mapped by every peer. It holds no user
// data: keys, the state of queue pairs, receive queues, rings of receive completions, words to
// sleep on. Peers write into it, so its owner keeps what it relies on (request ids, free lists,
// sizes) in private memory, and checks every index that it reads here.
//
// Queue pair headers and key entries stand in fixed tables whose memory never becomes anything
// else: a late write of a peer meets a header whose serial number no longer fits, and changes
// nothing.
#ifndef CARIAMA_DTUTILS_SHM_LAYOUT_H_
#define CARIAMA_DTUTILS_SHM_LAYOUT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "dtutils/completion.h"
#include "dtutils/internal/futex.h"

namespace cariama::shm {

inline constexpr uint32_t kMagic = 0x4d485343;  // "CSHM"
inline constexpr uint32_t kVersion = 1;

// Address space per peer; pages exist only where something was written.
inline constexpr uint64_t kControlBytes = uint64_t{1} << 30;
inline constexpr uint32_t kMaxRegions = 1u << 16;
inline constexpr uint32_t kMaxQueuePairs = 1u << 16;
inline constexpr uint32_t kMaxDepth = 1u << 15;  // of a send, receive or shared receive queue
inline constexpr uint32_t kMaxSegments = 16;
inline constexpr uint32_t kMaxQueuePairsPerCompletionQueue = 4096;
// Every page is a multiple of it.
inline constexpr uint64_t kSmallestPage = 4096;
inline constexpr uint64_t kMaxMessage = uint64_t{1} << 31;  // bytes

using Uuid = std::array<uint8_t, 16>;

// A plain field that the other side may change at any moment. Read so it has one value: what was
// checked is what is used.
template <typename Integer>
[[nodiscard]] inline Integer read_once(const Integer& shared) {
  return std::atomic_ref(const_cast<Integer&>(shared)).load(std::memory_order_relaxed);
}

// ---- Keys ---------------------------------------------------------------------------------------

// A remote key is a random number over the region's index in the key table; a local key likewise,
// with the top bit set, so that neither passes for the other.
inline constexpr uint64_t kLocalKeyBit = uint64_t{1} << 63;
[[nodiscard]] constexpr uint32_t key_index(uint64_t key) { return key & (kMaxRegions - 1); }

// One registered region, as peers look it up. `key` is 0 while the entry is free; it is stored last
// and cleared first, and a reader of the other fields looks at it again afterwards.
struct alignas(64) KeyEntry {
  std::atomic<uint64_t> key;
  std::atomic<uint64_t> base;
  std::atomic<uint64_t> length;
  std::atomic<uint32_t> access;
  std::atomic<uint32_t> domain;
  std::atomic<uint32_t> has_descriptor;  // else reached by cross-memory attach
};
static_assert(sizeof(KeyEntry) == 64);

// ---- Queue pairs --------------------------------------------------------------------------------

enum class LinkState : uint8_t {
  kWaiting,   // the other end has not connected (repaired) yet
  kReady,     // both ends have
  kBroken,    // an operation of either end failed
  kPeerGone,  // the other end was destroyed
  kPeerDead,  // the other process ended
  kClosed,    // the header is free
};

// The state of one end in one word, so that the hot path compares it with what it expects: serial
// number of the queue pair (never used twice by a device) | generation (connect is 1, each repair()
// adds 1) | LinkState. A change by the other end names serial and generation: what was meant for an
// earlier life has no effect.
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
  // Written at creation, connect(), and when something breaks.
  alignas(64) std::atomic<uint64_t> status;
  std::atomic<uint64_t> nonce;       // random, also in address(): proves that this is the one meant
  std::atomic<uint64_t> peer_nonce;  // of the queue pair that the owner connected to
  std::atomic<uint64_t> receive_queue;  // offsets within the segment
  std::atomic<uint64_t> receive_ring;
  std::atomic<uint64_t> completion_queue;  // the receive completion queue's SharedCompletionQueue
  std::atomic<uint32_t> ring_entries;      // a power of two
  std::atomic<uint32_t> ready_bit;         // in it
  // Written by the owner around each operation that touches the peer's control segment beyond
  // headers and keys. While it is not 0 the peer must not give that memory another use.
  alignas(64) std::atomic<uint32_t> in_peer;
  std::atomic<uint32_t> domain;
};
static_assert(sizeof(QueuePairHeader) == 128);

// ---- Receive queues -----------------------------------------------------------------------------
//
// Posted receives, of one queue pair or shared. Peers take them without the owner's CPU, in the
// order of posting. A slot holds one request; `word` says who has it. The ring names the slot of
// each position.

inline constexpr uint32_t kClaimantBits = 20;
inline constexpr uint32_t kOwnerClaims =
    (1u << kClaimantBits) - 1;  // the owner takes it back itself

struct SharedSegment {
  uint64_t address;
  uint64_t key;  // remote key of the region
  uint32_t length;
  uint32_t reserved;
};

struct ReceiveSlot {
  // 0: free. position + 1 over claimant: 0 for a posted request, else the index + 1 of the queue
  // pair (of the owner) that it was taken for, or kOwnerClaims.
  std::atomic<uint64_t> word;
  uint64_t capacity;  // bytes of all segments
  uint32_t segment_count;
  uint32_t invalid;  // a local key was wrong when it was posted
  [[nodiscard]] SharedSegment* segments() { return reinterpret_cast<SharedSegment*>(this + 1); }
};

struct ReceiveQueueHeader {
  alignas(64) std::atomic<uint64_t> head;  // the next position to take
  alignas(64) uint32_t entries;            // of the ring: a power of two
  uint32_t slots;
  uint32_t stride;  // bytes from slot to slot
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

// A receive queue in a mapped control segment; sizes are copied so that the other side cannot
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

  // Owner: publishes `slot` (filled, free) at `position`.
  void publish(uint64_t position, uint32_t slot_index) const {
    slot(slot_index)->word.store(posted_word(position, 0), std::memory_order_release);
    // seq_cst: whoever publishes and then finds the queue pair alive can rely on being seen by
    // whoever breaks it and then takes back what is posted.
    ring_[position & mask_].store((position + 1) << 16 | slot_index, std::memory_order_seq_cst);
  }

  // Takes the oldest posted request, or nothing. Lock-free; a taker that dies half-way is helped by
  // the next one.
  [[nodiscard]] std::optional<uint32_t> claim(uint32_t claimant) const {
    // Each turn is caused by another taker's progress; the bound only matters if the segment is
    // corrupt.
    for (uint32_t turn = 0; turn <= 4 * (mask_ + 1) + 1024; ++turn) {
      uint64_t head = header_->head.load(std::memory_order_seq_cst);
      const uint64_t entry = ring_[head & mask_].load(std::memory_order_seq_cst);
      if (entry >> 16 < head + 1) {
        if (header_->head.load(std::memory_order_acquire) == head) return std::nullopt;
        continue;
      }
      const uint32_t index = entry & 0xffff;
      // An entry of a later round proves that this position was taken: only the head lags.
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

// One per queue pair: the connected peer writes, the owner's completion queue reads. Positions only
// grow, also across repair(). As many entries as the receive queue has slots at least: a slot is
// free again when its completion was read, so the ring cannot overflow.
struct ReceiveRingEntry {
  std::atomic<uint64_t> sequence;  // position + 1: stored last
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

struct alignas(64) SharedChannel {
  std::atomic<uint32_t> events;    // counts; the futex
  std::atomic<uint32_t> sleeping;  // somebody waits, or is about to

  void signal() {
    events.fetch_add(1);  // seq_cst, as the sleeper's store and load in wait(): one sees the other
    if (sleeping.load() != 0) internal::futex_wake(&events);
  }
};

enum Armed : uint32_t { kDisarmed, kArmed, kArmedSolicited };

// The part of a completion queue that peers touch: which of its queue pairs have something new.
struct SharedCompletionQueue {
  alignas(64) std::atomic<uint32_t> armed;
  std::atomic<uint64_t> channel;  // offset, or 0
  alignas(64) std::atomic<uint64_t> ready[kMaxQueuePairsPerCompletionQueue / 64];

  // Wakes who armed the queue. To be called after the completion was made visible by a seq_cst
  // operation: whoever armed without seeing it is seen here.
  void fire(SharedChannel* wake, bool solicited) {
    const uint32_t state = armed.load();
    if (state == kDisarmed || (state == kArmedSolicited && !solicited)) return;
    if (armed.exchange(kDisarmed) != kDisarmed && wake != nullptr) wake->signal();
  }

  void announce(uint32_t bit, SharedChannel* wake, bool solicited) {
    ready[bit / 64].fetch_or(uint64_t{1} << (bit % 64));
    fire(wake, solicited);
  }
};

// ---- The segment --------------------------------------------------------------------------------

struct ControlHeader {
  uint32_t magic;
  uint32_t version;
  uint64_t bytes;
  Uuid uuid;
  int32_t pid;  // in the owner's namespace: compared with what the socket says
  // The robust futex (Documentation/locking/robust-futex-ABI in the kernel): the thread id of the
  // service thread while the device is open.
  alignas(64) std::atomic<uint32_t> owner_lock;
  std::atomic<uint32_t> closed;  // 1: closed in order, before owner_lock was released
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
