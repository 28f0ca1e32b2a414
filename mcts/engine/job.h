// A job: a number of rollouts from one node, requested by another process, which receives the sum
// of their values in one answer.
//
// Jobs let a search descend a tree that is distributed over processes without a return to the root
// for every rollout (after TDS-df-UCT: Yoshizoe et al. 2011). When the selection reaches a node of
// another process, the worker requests a number of rollouts from that node as a job of the owner.
// The worker continues with other rollouts. The owner sends one answer when all rollouts of the job
// have ended.
//
// The search itself is also a job: the root's job, in rank 0. It has no requester and no answer.
#ifndef CARIAMA_MCTS_ENGINE_JOB_H_
#define CARIAMA_MCTS_ENGINE_JOB_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

#include "dsfabric/ids.h"
#include "mcts/engine/node.h"
#include "mcts/engine/selection.h"
#include "mcts/engine/slot_table.h"
#include "mcts/options.h"
#include "mcts/values.h"

namespace cariama::mcts {

// A job counts its pending operations: its rollouts, the creation of nodes by its rollouts, and its
// membership in the job queue. An operation is added to the count before any thread can end it. The
// job is finished when no operation is pending.
template <Game G>
class Job {
 public:
  // The answer contains the AMAF statistics of at most this number of playouts.
  static constexpr uint32_t kMaxSamples = 64;

  Job() = default;
  // shares_left: if the job is a share, it adds the number of its rollouts that have not been taken
  // to this sum over all shares.
  explicit Job(std::atomic<int64_t>& shares_left) : shares_left_(&shares_left) {}

  Node<G>* node = nullptr;  // the rollouts begin here
  bool root = false;        // the job of the search itself, in rank 0
  bool share = false;   // a share of the root's rollouts, begun at a copy of the root (copies.h)
  ThreadId requester;   // the requesting thread
  SlotId ticket;        // the requester's ticket for this job
  bool queued = false;  // the job is in the job queue, whose lock guards this

  // Starts the job with this number of rollouts. Adds one pending operation beside the rollouts,
  // which the caller or the job queue ends. Requires: the job is finished.
  void start(int64_t rollouts) {
    completed_.store(0, std::memory_order_relaxed);
    if (!root) clear_value();
    samples_used_.store(0, std::memory_order_relaxed);
    if (!root && !share && samples_.size() < kMaxSamples) samples_.resize(kMaxSamples);
    pending_.store(rollouts + 1, std::memory_order_relaxed);
    count_left(rollouts);
    to_issue_.store(rollouts, std::memory_order_release);
  }

  // Sets the sum of the values to 0. start() does so except for the root's job, whose rollouts a
  // search may start several times.
  void clear_value() {
    for (std::atomic<double>& one : internal::numbers_of(value_)) {
      one.store(0, std::memory_order_relaxed);
    }
  }

  // Takes up to `most` of the rollouts that have not been taken, and returns their number. The
  // caller has to run and end them.
  [[nodiscard]] uint32_t take(uint32_t most) {
    int64_t left = to_issue_.load(std::memory_order_acquire);
    while (left > 0) {
      const auto taken = static_cast<uint32_t>(std::min<int64_t>(left, most));
      if (to_issue_.compare_exchange_weak(left, left - taken, std::memory_order_acq_rel)) {
        count_left(-int64_t{taken});
        return taken;
      }
    }
    return 0;
  }
  // Takes all rollouts that have not been taken, and returns their number.
  [[nodiscard]] uint64_t take_all() {
    const int64_t taken = to_issue_.exchange(0, std::memory_order_acq_rel);
    count_left(-taken);
    return static_cast<uint64_t>(taken);
  }
  // Returns the number of rollouts that have not been taken.
  [[nodiscard]] uint64_t left() const {
    return static_cast<uint64_t>(std::max<int64_t>(to_issue_.load(std::memory_order_relaxed), 0));
  }
  [[nodiscard]] bool exhausted() const { return to_issue_.load(std::memory_order_acquire) <= 0; }
  // Returns `count` taken rollouts to the job, which other threads can take again. Their operations
  // stay pending.
  void put_back(uint32_t count) {
    count_left(count);
    to_issue_.fetch_add(count, std::memory_order_acq_rel);
  }

  // Adds a pending operation. Requires: another operation, which the caller has to end, is pending.
  void add_pending() { pending_.fetch_add(1, std::memory_order_relaxed); }
  // Ends `count` pending operations. Returns true if this finished the job: then the caller owns
  // it. With count 0 it returns whether the job is finished.
  [[nodiscard]] bool end_pending(uint64_t count) {
    const auto ended = static_cast<int64_t>(count);
    return pending_.fetch_sub(ended, std::memory_order_acq_rel) == ended;
  }

  // Adds `count` completed rollouts with the sum of their values and their playouts. Requires:
  // their operations are still pending.
  void add(uint32_t count, const internal::SumOf<G>& sum, std::span<const Sample<G>> samples) {
    completed_.fetch_add(count, std::memory_order_relaxed);
    const bool of_root = root || share;
    // In games of two players the result of a search does not need the sum of the root's job.
    if (kTwoPlayers<G> && of_root) return;
    const auto to = internal::numbers_of(value_);
    const auto from = internal::numbers_of(sum);
    for (size_t i = 0; i < to.size(); ++i) to[i].fetch_add(from[i], std::memory_order_relaxed);
    if (of_root) return;
    if constexpr (HasAmaf<G>) {
      for (const Sample<G>& sample : samples) {
        const uint32_t at = samples_used_.fetch_add(1, std::memory_order_relaxed);
        if (at < kMaxSamples) samples_[at] = sample;
      }
    }
  }

  [[nodiscard]] uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }
  // The results. Requires: the job is finished, or it is the root's job, whose sum is that of all
  // completed rollouts of the search, 0 in games of two players.
  [[nodiscard]] internal::SumOf<G> value() const {
    internal::SumOf<G> sum{};
    const auto to = internal::numbers_of(sum);
    const auto from = internal::numbers_of(value_);
    for (size_t i = 0; i < to.size(); ++i) to[i] = from[i].load(std::memory_order_relaxed);
    return sum;
  }
  [[nodiscard]] std::span<const Sample<G>> samples() const {
    const uint32_t used = samples_used_.load(std::memory_order_relaxed);
    return {samples_.data(), std::min(used, static_cast<uint32_t>(samples_.size()))};
  }

 private:
  void count_left(int64_t change) {
    if (share) shares_left_->fetch_add(change, std::memory_order_relaxed);
  }

  std::atomic<int64_t>* shares_left_ = nullptr;
  std::atomic<int64_t> to_issue_{0};
  std::atomic<int64_t> pending_{0};
  std::atomic<uint64_t> completed_{0};
  std::conditional_t<kTwoPlayers<G>, std::atomic<double>,
                     std::array<std::atomic<double>, players<G>()>>
      value_{};
  std::atomic<uint32_t> samples_used_{0};
  std::vector<Sample<G>> samples_;
};

// The jobs that other processes requested from this process. Thread-safe. Workers take the lock
// once per few rollouts.
template <Game G>
class JobQueue {
 public:
  struct Taken {
    Job<G>* job = nullptr;
    uint32_t rollouts = 0;
    // The job left the queue. The caller has to end the pending operation for its membership.
    bool last = false;
  };

  [[nodiscard]] Job<G>& new_job() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      all_.push_back(std::make_unique<Job<G>>(shares_left_));
      return *all_.back();
    }
    Job<G>* job = free_.back();
    free_.pop_back();
    return *job;
  }
  void recycle(Job<G>& job) {
    const std::lock_guard lock(mutex_);
    free_.push_back(&job);
  }
  void push(Job<G>& job) {
    const std::lock_guard lock(mutex_);
    enter(job);
  }
  // Returns taken rollouts to a share, which any worker can take again. Requires: their operations
  // are pending.
  void put_back(Job<G>& job, uint32_t count) {
    const std::lock_guard lock(mutex_);
    job.put_back(count);
    if (job.queued) return;
    job.add_pending();
    enter(job);
  }
  // Takes up to `most` rollouts of the oldest job, or with `all` every rollout of it that has not
  // been taken. Shares of the root are taken last, since no rollout waits for their answer.
  [[nodiscard]] Taken take(uint32_t most, bool all = false) {
    if (empty(/*shares=*/true)) return {};
    const std::lock_guard lock(mutex_);
    std::deque<Job<G>*>& queue = queue_.empty() ? shares_ : queue_;
    if (queue.empty()) return {};
    Taken taken{queue.front()};
    taken.rollouts = all ? static_cast<uint32_t>(taken.job->take_all()) : taken.job->take(most);
    if (taken.job->exhausted()) {
      taken.last = true;
      taken.job->queued = false;
      queue.pop_front();
      (&queue == &shares_ ? shares_size_ : size_).fetch_sub(1, std::memory_order_relaxed);
    }
    return taken;
  }
  // Returns true if every job is finished: no thread is running a rollout of one, and none waits
  // for an answer.
  [[nodiscard]] bool unused() {
    const std::lock_guard lock(mutex_);
    return free_.size() == all_.size();
  }
  // Returns the number of rollouts of all shares that have not been taken. While a thread takes
  // rollouts or puts them back, the number may differ by these.
  [[nodiscard]] int64_t shares_left() const { return shares_left_.load(std::memory_order_relaxed); }
  // shares: includes the shares of the root.
  [[nodiscard]] bool empty(bool shares) const {
    return size_.load(std::memory_order_seq_cst) == 0 &&
           (!shares || shares_size_.load(std::memory_order_seq_cst) == 0);
  }

 private:
  // Adds a job to its queue. Requires: mutex_ is locked. seq_cst: see Host::wake_workers().
  void enter(Job<G>& job) {
    job.queued = true;
    (job.share ? shares_ : queue_).push_back(&job);
    (job.share ? shares_size_ : size_).fetch_add(1, std::memory_order_seq_cst);
  }

  std::mutex mutex_;
  std::deque<Job<G>*> queue_;
  std::deque<Job<G>*> shares_;
  std::vector<Job<G>*> free_;
  std::vector<std::unique_ptr<Job<G>>> all_;
  std::atomic<uint32_t> size_{0};         // of queue_
  std::atomic<uint32_t> shares_size_{0};  // of shares_
  std::atomic<int64_t> shares_left_{0};
};

// One selection on the path of a rollout: the node, which is in this process, and the chosen move.
template <Game G>
struct Step {
  Node<G>* node;
  int move;
  // The value that each rollout of a ticket has in the node until the answer arrives; for player()
  // of the node.
  float expected = 0;
};

// The record of a request to another process, kept until the answer arrives. The answer contains
// the SlotId of the ticket.
template <Game G>
struct Ticket {
  Job<G>* job = nullptr;  // the job that the request is a part of; its operations are still pending
  Rank rank;              // the process that has to answer
  uint32_t rollouts = 0;  // number of requested rollouts; 0: the creation of a node is requested
  // From the node of the job to the move whose child is in the other process. Empty for a share of
  // the root's rollouts.
  std::vector<Step<G>> path;
  RemoteNode node{};     // the node from which the rollouts were requested; unused otherwise
  bool playout = false;  // only playouts of the position after `path` are requested
};

// Adds the expected value of `rollouts` rollouts to each move of a path: it stands for the rollouts
// that another process will run (SelectionOptions::virtual_loss).
template <Game G>
void add_expected(std::span<Step<G>> path, uint32_t rollouts, const SelectionOptions& options) {
  for (Step<G>& step : path) {
    step.expected = expected_value(*step.node, step.move, rollouts, options);
    step.node->add_value(step.move, static_cast<double>(step.expected) * rollouts);
  }
}
// Subtracts what add_expected() added for the rollouts of a ticket.
template <Game G>
void remove_expected(const Ticket<G>& ticket) {
  for (const Step<G>& step : ticket.path) {
    step.node->add_value(step.move, -static_cast<double>(step.expected) * ticket.rollouts);
  }
}

// Removes the visits of `count` rollouts that end without a value from the moves of their path.
template <Game G>
void remove_visits(std::span<const Step<G>> path, uint32_t count) {
  for (const Step<G>& step : path) step.node->remove_visits(step.move, count);
}

// Requests rollouts from a node of the receiver.
struct JobRequest {
  SlotId node;
  uint32_t rollouts = 0;
  ThreadId requester;  // the requesting thread
  SlotId ticket;
  bool share = false;  // begin at the copy of the root; `node` is not used
};
// The answer to a JobRequest, or to a request for playouts (remote_playouts.h). The samples of the
// playouts follow.
template <Game G>
struct JobAnswer {
  SlotId ticket;
  uint32_t rank = 0;
  uint32_t completed = 0;            // rollouts; the others have ended without a value
  internal::SumOf<G> value{};        // sum of the values
  Outcome outcome = Outcome::kOpen;  // of the job's node
  bool full = false;                 // the process has no memory for nodes
  bool useless = false;              // the job's node does not exist, or its outcome is proved

  // Returns false if no process of a job of `processes` sends this answer. An infinite value
  // would stay in the nodes of the path.
  [[nodiscard]] bool is_possible(uint32_t processes) const {
    const auto numbers = internal::numbers_of(value);
    return rank < processes &&
           std::ranges::all_of(numbers, [](double one) { return std::isfinite(one); });
  }
};
// Requests the creation of a node; the position follows.
struct Creation {
  ThreadId requester;
  SlotId ticket;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_JOB_H_
