// The accounting of a send queue that several threads share: when the next operation may be posted,
// which one is signaled, when a buffer is free. Seriema §4.1, with the paper's k (here: credits)
// and k' (the flush number) kept apart from the hot path. Pure: it posts nothing, so that a test
// can drive every interleaving of it.
//
// A queue of depth D has D credits. A lane (a thread's place) takes a batch of them at once and
// spends one per operation; the operation that spends the last one is signaled. The completion of a
// signaled operation brings back the credits of all operations that its lane has posted since the
// signaled one before it. The variables:
//
//   granted   credits handed out so far, without those that were given back unspent
//   retired   credits brought back so far: their operations are complete, and the completion was
//             polled
//   epoch     the paper's flush number as the sender sees it: one more with each signaled operation
//   flushed   (a FlushCell) the paper's k': a buffer with a tag below it is free
//
// Posts to one queue pair are ordered as if by a lock, and a post happens-before every later one
// (QueuePair's contract). X is signaled, O is any operation.
//
// (1) No buffer is free too early. X takes v = ++epoch before it is posted; O's tag is read from
//     epoch after O was posted. If tag < v, O's read did not see X's increment; had X been posted
//     before O, O's post would have ordered X's increment before O's read. So O was posted before
//     X, and X's completion, which publishes flushed = v, proves O complete. Free is: tag <
//     flushed. X's own buffer need not wait for a later signaled operation: if epoch still is v
//     after X was posted, who takes a higher number will post after X. So flushed >= v proves X
//     complete: its tag is v - 1. If epoch is higher already, that one may stand before X, and X is
//     tagged as O is.
// (2) The queue never overflows. granted <= retired + D, always: credits are taken by a
//     compare-exchange that checks it, and retired only grows. An operation that occupies a slot
//     spent a credit that is granted and not retired.
// (3) A full queue (granted = retired + D) has a completion on its way. A credit that is not
//     retired is covered by a signaled operation under way, or it is loose: unspent, or spent after
//     its lane's last signaled operation. The lane that came as the n-th holds at most
//     batch_size(D, n) loose ones, together less than 0.72 D for 64 lanes. So a signaled operation
//     is under way, and polling will retire it. Where batches are of one credit, none is loose but
//     while its lane is posting with it; a lane that fails to post gives its credits back.
// (4) Nobody waits for another thread: every function here ends after a bounded number of its own
//     steps. acquire() gives up after kAcquireAttempts exchanges that other lanes' exchanges
//     spoiled; raise() loses one only to a later completion, of which at most D are under way. A
//     thread that is suspended keeps its loose credits, and those of the completions that it has
//     polled and not yet retired.
// (5) No bubble. With one lane a completion comes back for each quarter of the queue, while the
//     other three are under way. Nobody waits for a completion while a credit is left.
#ifndef CARIAMA_DTUTILS_SIGNALING_H_
#define CARIAMA_DTUTILS_SIGNALING_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace cariama::internal {

// How many credits a lane takes at once, and so how many operations one signaled one covers. With
// several lanes each takes less, so that what idle lanes keep is bounded: D/4 + D/8 (1/2 + ... +
// 1/64) < 0.72 D.
constexpr uint64_t batch_size(uint64_t depth, uint64_t lanes) {
  return std::max<uint64_t>(1, lanes <= 1 ? depth / 4 : depth / (8 * lanes));
}

// As many as a TransmitQueue can have lanes: more failures than that in a row are no accident.
inline constexpr int kAcquireAttempts = 64;

// Raises a monotone maximum. Ends as soon as the value is at least `value`.
template <typename AtomicU64>
void raise(AtomicU64& maximum, uint64_t value) {
  uint64_t seen = maximum.load(std::memory_order_relaxed);
  while (seen < value && !maximum.compare_exchange_strong(seen, value, std::memory_order_release,
                                                          std::memory_order_relaxed)) {
  }
}

// What a signaled operation's completion proves.
struct Proof {
  uint64_t flush_number = 0;  // v: tags below it are free
  uint64_t operations = 0;    // so many operations of its lane are complete that were not before
};

// A thread's place on a shared queue. One thread at a time; `posted` may be read by all.
template <template <typename> class Atomic>
struct alignas(64) SignalingLane {
  Atomic<uint64_t> posted{0};  // operations
  uint64_t covered = 0;        // of these: up to and with the last signaled one
  uint64_t credits = 0;        // unspent
  uint64_t number = 0;         // the flush number of the last signaled one
};

template <template <typename> class Atomic>
class Signaling {
 public:
  using Lane = SignalingLane<Atomic>;

  explicit Signaling(uint64_t depth, uint64_t first_flush_number = 0)
      : depth_(depth), epoch_(first_flush_number) {}

  // A lane more. Lanes are never removed: a thread that leaves hands its lane to the next one.
  void add_lane() { lanes_.fetch_add(1, std::memory_order_relaxed); }

  // For a lane without credits: takes at least one, or returns false: the queue is full (or other
  // lanes have taken credits kAcquireAttempts times meanwhile). Then poll, and ask again.
  bool acquire(Lane& lane) {
    const uint64_t size = interval();
    const uint64_t loose = uncovered(lane);  // not 0 after a give_back()
    const uint64_t wanted = size > loose ? size - loose : 1;
    uint64_t granted = granted_.load(std::memory_order_relaxed);
    for (int attempt = 0; attempt < kAcquireAttempts; ++attempt) {
      // Acquire: the slots were seen free by the thread that polled. An old value is only too
      // small.
      const uint64_t limit = retired_.load(std::memory_order_acquire) + depth_;
      if (granted >= limit) return false;
      const uint64_t taken = std::min(wanted, limit - granted);
      if (granted_.compare_exchange_strong(granted, granted + taken, std::memory_order_relaxed,
                                           std::memory_order_relaxed)) {
        lane.credits = taken;
        return true;
      }
    }
    return false;
  }

  // Whether the operation that this lane posts next has to be signaled (3).
  [[nodiscard]] static bool due(const Lane& lane) { return lane.credits == 1; }

  // Posts one operation of a lane that has a credit: signaled if `wanted` or due. `post(proof)`
  // posts it, signaled with what its completion will prove if `proof` is not null, and returns
  // whether it did.
  template <typename Post>
  bool post(Lane& lane, bool wanted, Post&& post_operation) {
    const bool signaled = wanted || due(lane);
    Proof proof;
    if (signaled) {
      proof = begin_signaled(lane);
      lane.number = proof.flush_number;
    }
    if (!post_operation(signaled ? &proof : nullptr)) [[unlikely]] {
      // The number v is lost, which does no harm: a later one takes its part.
      give_back(lane);
      return false;
    }
    after_post(lane, signaled);
    return true;
  }

  // The parts of post(). Before posting a signaled operation:
  [[nodiscard]] Proof begin_signaled(const Lane& lane) {
    return {epoch_.fetch_add(1, std::memory_order_acq_rel) + 1, uncovered(lane) + 1};
  }
  // After posting an operation:
  static void after_post(Lane& lane, bool signaled) {
    const uint64_t posted = lane.posted.load(std::memory_order_relaxed) + 1;
    lane.posted.store(posted, std::memory_order_relaxed);
    --lane.credits;
    if (signaled) lane.covered = posted;
  }

  // The tag for a buffer whose operation has been posted, unsignaled.
  [[nodiscard]] uint64_t tag() const { return epoch_.load(std::memory_order_acquire); }
  // ... by post(), as the last operation of the lane.
  [[nodiscard]] uint64_t tag(const Lane& lane) const {
    const uint64_t epoch = tag();
    const bool signaled = uncovered(lane) == 0;
    return signaled && epoch == lane.number ? epoch - 1 : epoch;
  }

  // Returns the credits that a lane has not spent: it failed to post, or its thread leaves.
  void give_back(Lane& lane) {
    granted_.fetch_sub(std::exchange(lane.credits, 0), std::memory_order_relaxed);
  }

  // The completion of a signaled operation was polled. Frees its buffers and slots with one update
  // each.
  void retire(const Proof& proof, Atomic<uint64_t>& flushed) {
    raise(flushed, proof.flush_number);
    retired_.fetch_add(proof.operations, std::memory_order_release);
  }

  // Everything that the lane posted is complete, as after a repair; it does not post meanwhile.
  void settle(Lane& lane, Atomic<uint64_t>& flushed) {
    retire({epoch_.fetch_add(1, std::memory_order_acq_rel) + 1, uncovered(lane)}, flushed);
    lane.covered = lane.posted.load(std::memory_order_relaxed);
  }

  // Operations between two signaled ones of a lane.
  [[nodiscard]] uint64_t interval() const {
    return batch_size(depth_, lanes_.load(std::memory_order_relaxed));
  }
  [[nodiscard]] uint64_t depth() const { return depth_; }

  // Whether at least half of the credits are out: time to poll.
  [[nodiscard]] bool half_full() const {
    return granted_.load(std::memory_order_relaxed) >=
           retired_.load(std::memory_order_relaxed) + (depth_ + 1) / 2;
  }

 private:
  static uint64_t uncovered(const Lane& lane) {
    return lane.posted.load(std::memory_order_relaxed) - lane.covered;
  }

  const uint64_t depth_;
  // Read after every post, changed once per signaled operation.
  alignas(64) Atomic<uint64_t> epoch_;
  // Changed once per batch.
  alignas(64) Atomic<uint64_t> granted_{0};
  // Changed once per signaled operation, read once per batch.
  alignas(64) Atomic<uint64_t> retired_{0};
  Atomic<uint64_t> lanes_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_SIGNALING_H_
