// The accounting of a send queue that several threads share: which operation is signaled, when a
// buffer is free, when the next operation may be posted. Seriema §4.1, with k and k' kept apart from
// the hot path. Pure: it posts nothing, so that a test can drive every interleaving of it.
//
// The variables, for a queue of depth D:
//   granted   tickets handed out. A lane (a thread's place) takes several at once, posts one operation
//             per ticket, and may post ticket t only while t < retired + D.
//   posted    per lane: operations posted; written by its lane only, after each post.
//   retired   a number of operations known to be complete: completions polled, so their slots are free.
//   epoch     the paper's flush number as the sender sees it: one more with each signaled operation.
//   flushed   (a FlushCell) the paper's k': a buffer with a tag below it is free.
//   mark      the highest ticket end at which an operation was signaled AND posted.
//
// Posts to one queue pair are ordered as if by a lock, and a post happens-before every later one
// (QueuePair's contract). X is signaled, O is any operation.
//
// (1) No buffer is free too early. X takes v = ++epoch before it is posted; O's tag is read from epoch
//     after O was posted. If tag < v, O's read did not see X's increment; had X been posted before O,
//     O's post would have ordered X's increment before O's read. So O was posted before X, and X's
//     completion, which publishes flushed = v, proves O complete. Free is: tag < flushed.
// (2) The queue never overflows. X carries c = (sum of posted, read before X is posted) + 1: at least c
//     operations were posted up to and with X, so its completion retires c. Whoever posts ticket t
//     has seen retired > t - D; tickets are distinct, so at most t + 1 <= retired + D operations were
//     ever posted, and retired of them have freed their slots.
// (3) A completion is always on its way. A lane looks at the mark when it posts the first operation of a
//     grant and signals if its end lies `interval` or more ahead. Lanes hold at most 0.3 D tickets
//     unused (grant_size). So a full queue (every ticket below retired + D posted, or held by a lane
//     that does not post) has 0.7 D operations outstanding at least, while after the last signaled one
//     at most interval + 0.3 D = 0.55 D can have been posted. So a signaled one is outstanding, and
//     polling will retire it.
// (4) Nobody waits for another thread: there is no loop here whose end depends on one (raise() gives up
//     as soon as the value is there). A lane that is suspended between its post and its count delays the
//     retirement of one slot, no more; a depth of at least twice the number of lanes keeps room.
#ifndef CARIAMA_DTUTILS_SIGNALING_H_
#define CARIAMA_DTUTILS_SIGNALING_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cariama::internal {

// How many tickets a lane takes at once: its share of the shared counter's cost. A lane that came as
// the n-th takes D/(16 n), so that 64 lanes together can never hold more than
// D/16 * (1 + 1/2 + ... + 1/64) < 0.3 D unused. A grant of 1 is used at once: nothing is held.
constexpr uint64_t grant_size(uint64_t depth, uint64_t lanes) {
  return std::max<uint64_t>(1, depth / (16 * std::max<uint64_t>(1, lanes)));
}

// Operations between two signaled ones. A quarter of the depth: completions of the first quarter come
// back while the other three are in flight, so the pipeline has no bubble.
constexpr uint64_t signal_interval(uint64_t depth) { return std::max<uint64_t>(1, depth / 4); }

// Raises a monotone maximum. Ends as soon as the value is at least `value`. Each failed exchange means
// that another thread raised it for another completion, of which there are at most D: bounded.
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
  uint64_t operations = 0;    // c: so many operations are complete
};

// A thread's place on a shared queue. One thread at a time; `posted` is read by all.
template <template <typename> class Atomic>
struct alignas(64) SignalingLane {
  Atomic<uint64_t> posted{0};
  uint64_t next = 0;       // the next ticket to post
  uint64_t allowed = 0;    // tickets below it may be posted now
  uint64_t grant_end = 0;  // tickets below it are this lane's
  bool fresh = false;      // the next post is the first of its grant
};

template <template <typename> class Atomic, size_t kMaxLanes>
class Signaling {
 public:
  using Lane = SignalingLane<Atomic>;

  explicit Signaling(uint64_t depth, uint64_t first_flush_number = 0)
      : depth_(depth), interval_(signal_interval(depth)), epoch_(first_flush_number) {}

  // Makes a lane known, so that its posts are counted. Lanes are never removed; a thread that leaves
  // hands its lane, with the tickets it holds, to the next one. False if there are kMaxLanes.
  bool add_lane(Lane* lane) {
    const uint64_t index = lane_count_.fetch_add(1, std::memory_order_acq_rel);
    if (index >= kMaxLanes) return false;
    lanes_[index].store(lane, std::memory_order_release);
    return true;
  }

  // Slow path, when lane.next == lane.allowed: makes at least one ticket postable, or returns false if
  // the queue is full for this lane: poll, then ask again.
  bool acquire(Lane& lane) {
    if (lane.next == lane.grant_end) {
      const uint64_t size = grant_size(depth_, lane_count_.load(std::memory_order_relaxed));
      lane.next = granted_.fetch_add(size, std::memory_order_relaxed);
      lane.grant_end = lane.next + size;
      lane.fresh = true;
    }
    // Acquire: the slots below were seen free by the thread that polled.
    const uint64_t room = retired_.load(std::memory_order_acquire) + depth_;
    lane.allowed = std::clamp(room, lane.next, lane.grant_end);
    return lane.next < lane.allowed;
  }

  // Whether the operation that this lane posts next has to be signaled (3).
  [[nodiscard]] bool due(const Lane& lane) const {
    return lane.fresh && lane.grant_end >= mark_.load(std::memory_order_relaxed) + interval_;
  }

  // Before posting a signaled operation.
  [[nodiscard]] Proof before_signaled() {
    Proof proof;
    proof.flush_number = epoch_.fetch_add(1, std::memory_order_acq_rel) + 1;
    proof.operations = posted() + 1;
    return proof;
  }

  // After posting one operation of the lane, signaled or not: counts it.
  void after_post(Lane& lane) {
    ++lane.next;
    lane.fresh = false;
    lane.posted.store(lane.posted.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  // After posting a signaled operation, before after_post().
  void after_signaled(const Lane& lane) { raise(mark_, lane.grant_end); }

  // The tag for a buffer whose operation has been posted.
  [[nodiscard]] uint64_t tag() const { return epoch_.load(std::memory_order_acquire); }

  // The completion of a signaled operation was polled. Frees its buffers and slots with one update
  // each.
  void retire(const Proof& proof, Atomic<uint64_t>& flushed) {
    raise(flushed, proof.flush_number);
    raise(retired_, proof.operations);
  }

  // Everything posted is complete (after a repair, or at the end); no lane posts meanwhile.
  void retire_all(Atomic<uint64_t>& flushed) { retire(before_signaled_all(), flushed); }

  [[nodiscard]] uint64_t posted() const {
    const uint64_t count =
        std::min<uint64_t>(lane_count_.load(std::memory_order_acquire), kMaxLanes);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; ++i) {
      if (const Lane* lane = lanes_[i].load(std::memory_order_acquire)) {
        sum += lane->posted.load(std::memory_order_acquire);
      }
    }
    return sum;
  }
  [[nodiscard]] uint64_t retired() const { return retired_.load(std::memory_order_acquire); }
  [[nodiscard]] uint64_t depth() const { return depth_; }
  [[nodiscard]] uint64_t interval() const { return interval_; }

  // Whether the queue is at least half full as far as this lane can see: time to poll.
  [[nodiscard]] bool half_full(const Lane& lane) const {
    return lane.grant_end > retired_.load(std::memory_order_relaxed) + depth_ / 2;
  }

 private:
  Proof before_signaled_all() {
    return {epoch_.fetch_add(1, std::memory_order_acq_rel) + 1, posted()};
  }

  const uint64_t depth_;
  const uint64_t interval_;
  // Read after every post, changed once per signaled operation.
  alignas(64) Atomic<uint64_t> epoch_;
  // Changed once per grant.
  alignas(64) Atomic<uint64_t> granted_{0};
  // Changed once per signaled operation, read once per grant.
  alignas(64) Atomic<uint64_t> retired_{0};
  Atomic<uint64_t> mark_{0};
  Atomic<uint64_t> lane_count_{0};
  std::array<Atomic<Lane*>, kMaxLanes> lanes_{};
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_SIGNALING_H_
