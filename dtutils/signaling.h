// Accounting of a send queue that several threads share. It decides when the next operation may be
// posted, which operation is signaled, and when a buffer is free. Seriema §4.1; the paper's k
// (here: credits) and k' (the flush number) are kept off the hot path. This class posts nothing, so
// that a test can drive every interleaving of it. Not for users: they have Transmitter
// (transmitter.h).
//
// A queue of depth D has D credits. A lane (the state of one thread on the queue) takes a batch of
// credits in one step and spends one credit per operation; the operation that spends the last one
// is signaled. The completion of a signaled operation returns the credits of all operations that
// its lane has posted since the signaled one before it. The variables:
//
//   granted   credits that lanes have taken so far, without those that were returned unspent
//   retired   credits returned so far: their operations are complete, and the completion was
//             polled
//   epoch     the paper's flush number at the sender; incremented for each signaled operation
//   flushed   (a FlushCell) the paper's k': a buffer with a tag below it is free
//
// Posts to one queue pair are ordered as if by a lock, and a post happens-before every later one
// (QueuePair's contract). X is a signaled operation, O is any operation.
//
// (1) No buffer is free too early. X takes v = ++epoch before it is posted; O's tag is read from
//     epoch after O was posted. If tag < v, O's read did not see X's increment; had X been posted
//     before O, O's post would have ordered X's increment before O's read. So O was posted before
//     X, and X's completion, which publishes flushed = v, proves O complete. A buffer is free if
//     tag < flushed. X's own buffer need not wait for a later signaled operation: if epoch still is
//     v after X was posted, every operation that takes a higher number is posted after X. So
//     flushed >= v proves X complete, and X's tag is v - 1. If epoch is already higher, the
//     operation with the higher number may have been posted before X, so X is tagged like O.
// (2) The queue never overflows. granted <= retired + D always holds: a lane takes credits by a
//     compare-exchange that checks it, and retired only grows. An operation that occupies a slot
//     spent a credit that is granted and not retired.
// (3) A full queue (granted = retired + D) has a signaled operation in flight. A credit that is not
//     retired is either covered by a signaled operation in flight, or it is loose: unspent, or
//     spent after its lane's last signaled operation. The n-th lane has at most batch_size(D, n)
//     loose credits, all lanes together less than 0.9 D for 256 lanes, the most that a
//     TransmitQueue has. So a signaled operation is in flight, and polling will retire it. Where a
//     batch is one credit, a credit is loose only while its lane is posting with it; a lane that
//     fails to post returns its credits.
// (4) No function waits for another thread: each ends after a bounded number of its own steps.
//     acquire() returns without credits after kAcquireAttempts exchanges that failed because of
//     other lanes' exchanges; an exchange in raise() fails only because of a later completion, of
//     which at most D are in flight. A suspended thread retains its loose credits, and the credits
//     of the completions that it has polled and not yet retired.
// (5) No bubble. With one lane a completion returns for each quarter of the queue, while the other
//     three quarters are in flight. No thread waits for a completion while a credit is left.
#ifndef CARIAMA_DTUTILS_SIGNALING_H_
#define CARIAMA_DTUTILS_SIGNALING_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace cariama::internal {

// Number of credits that a lane takes in one step, and so the number of operations that one
// signaled operation covers. With several lanes each takes fewer, so that the credits retained by
// idle lanes are bounded: D/4 + D/8 (1/2 + ... + 1/256) < 0.9 D.
constexpr uint64_t batch_size(uint64_t depth, uint64_t lanes) {
  return std::max<uint64_t>(1, lanes <= 1 ? depth / 4 : depth / (8 * lanes));
}

// The number of failed exchanges in a row after which acquire() returns without credits. So many
// failures are unlikely: each one means that another lane has taken a batch.
inline constexpr int kAcquireAttempts = 64;

// Raises a monotone maximum to at least `value`. Ends as soon as it is reached.
template <typename AtomicU64>
void raise(AtomicU64& maximum, uint64_t value) {
  uint64_t seen = maximum.load(std::memory_order_relaxed);
  while (seen < value && !maximum.compare_exchange_strong(seen, value, std::memory_order_release,
                                                          std::memory_order_relaxed)) {
  }
}

// The facts that a signaled operation's completion proves.
struct Proof {
  uint64_t flush_number = 0;  // v: buffers with tags below it are free
  // Number of operations of its lane that this completion newly proves complete.
  uint64_t operations = 0;
};

// The state of one thread on a shared queue. Used by one thread at a time; any thread may read
// `posted`.
template <template <typename> class Atomic>
struct alignas(64) SignalingLane {
  Atomic<uint64_t> posted{0};  // operations
  uint64_t covered = 0;        // operations up to and including the last signaled one
  uint64_t credits = 0;        // unspent credits
  uint64_t number = 0;         // flush number of the last signaled operation
};

template <template <typename> class Atomic>
class Signaling {
 public:
  using Lane = SignalingLane<Atomic>;

  explicit Signaling(uint64_t depth, uint64_t first_flush_number = 0)
      : depth_(depth), epoch_(first_flush_number) {}

  // Adds a lane. Lanes are never removed: a thread that leaves returns its lane for the next
  // thread.
  void add_lane() { lanes_.fetch_add(1, std::memory_order_relaxed); }

  // Takes at least one credit for a lane that has none. Returns false if the queue is full, or if
  // other lanes' exchanges made kAcquireAttempts attempts fail. The caller then polls and calls
  // again.
  bool acquire(Lane& lane) {
    const uint64_t size = interval();
    const uint64_t loose = uncovered(lane);  // not 0 after a give_back()
    const uint64_t wanted = size > loose ? size - loose : 1;
    uint64_t granted = granted_.load(std::memory_order_relaxed);
    for (int attempt = 0; attempt < kAcquireAttempts; ++attempt) {
      // Acquire: pairs with the release in retire(); the slots were free when the completion was
      // polled. A stale value of retired_ is only too small, which is safe.
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

  // Returns true if the next operation that this lane posts must be signaled, see (3).
  [[nodiscard]] static bool due(const Lane& lane) { return lane.credits == 1; }

  // Posts one operation of a lane that has a credit; signaled if `wanted` or due. Calls
  // `post_operation(proof)`, which posts the operation and returns true if it was posted. `proof`
  // is null for an unsignaled operation; else it states what the completion will prove.
  template <typename Post>
  bool post(Lane& lane, bool wanted, Post&& post_operation) {
    const bool signaled = wanted || due(lane);
    Proof proof;
    if (signaled) {
      proof = begin_signaled(lane);
      lane.number = proof.flush_number;
    }
    if (!post_operation(signaled ? &proof : nullptr)) [[unlikely]] {
      // The number v is lost. This is harmless: a later signaled operation covers the same
      // operations.
      give_back(lane);
      return false;
    }
    after_post(lane, signaled);
    return true;
  }

  // First part of post(): call it before posting a signaled operation.
  [[nodiscard]] Proof begin_signaled(const Lane& lane) {
    return {epoch_.fetch_add(1, std::memory_order_acq_rel) + 1, uncovered(lane) + 1};
  }
  // Second part of post(): call it after posting an operation.
  static void after_post(Lane& lane, bool signaled) {
    const uint64_t posted = lane.posted.load(std::memory_order_relaxed) + 1;
    lane.posted.store(posted, std::memory_order_relaxed);
    --lane.credits;
    if (signaled) lane.covered = posted;
  }

  // Returns the tag for a buffer whose unsignaled operation has been posted.
  [[nodiscard]] uint64_t tag() const { return epoch_.load(std::memory_order_acquire); }
  // Returns the tag for the buffer of the lane's last operation, which post() has posted, signaled
  // or not.
  [[nodiscard]] uint64_t tag(const Lane& lane) const {
    const uint64_t epoch = tag();
    const bool signaled = uncovered(lane) == 0;
    return signaled && epoch == lane.number ? epoch - 1 : epoch;
  }

  // Returns the credits that a lane has not spent, because it failed to post or its thread leaves.
  void give_back(Lane& lane) {
    granted_.fetch_sub(std::exchange(lane.credits, 0), std::memory_order_relaxed);
  }

  // Processes the polled completion of a signaled operation. Frees its buffers and its slots with
  // one update each.
  void retire(const Proof& proof, Atomic<uint64_t>& flushed) {
    raise(flushed, proof.flush_number);
    retired_.fetch_add(proof.operations, std::memory_order_release);
  }

  // Retires everything that the lane posted, which is complete (after a repair). Requires: the lane
  // does not post meanwhile.
  void retire_all(Lane& lane, Atomic<uint64_t>& flushed) {
    retire({epoch_.fetch_add(1, std::memory_order_acq_rel) + 1, uncovered(lane)}, flushed);
    lane.covered = lane.posted.load(std::memory_order_relaxed);
  }

  // Returns the number of operations between two signaled ones of a lane.
  [[nodiscard]] uint64_t interval() const {
    return batch_size(depth_, lanes_.load(std::memory_order_relaxed));
  }
  [[nodiscard]] uint64_t depth() const { return depth_; }

  // Returns true if at least half of the credits are taken, so that polling is due.
  [[nodiscard]] bool half_full() const {
    return granted_.load(std::memory_order_relaxed) >=
           retired_.load(std::memory_order_relaxed) + (depth_ + 1) / 2;
  }

 private:
  static uint64_t uncovered(const Lane& lane) {
    return lane.posted.load(std::memory_order_relaxed) - lane.covered;
  }

  const uint64_t depth_;
  // Read after every post; written once per signaled operation.
  alignas(64) Atomic<uint64_t> epoch_;
  // Written once per batch.
  alignas(64) Atomic<uint64_t> granted_{0};
  // Written once per signaled operation; read once per batch.
  alignas(64) Atomic<uint64_t> retired_{0};
  Atomic<uint64_t> lanes_{0};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_SIGNALING_H_
