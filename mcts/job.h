// A job: so many rollouts from one node, wanted by somebody who waits for their sum.
//
// This is how a search goes down a tree that is spread over processes without coming back to the
// root for every rollout (after TDS-df-UCT: Yoshizoe et al. 2011): a selection that arrives at a
// node of another process asks that process for a number of rollouts from there, and goes on with
// something else. One answer brings all of them back.
#ifndef CARIAMA_MCTS_JOB_H_
#define CARIAMA_MCTS_JOB_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "mcts/node.h"

namespace cariama::mcts {

// A place in a table, and how often it was used before: so that an old name is not taken for a new
// one.
struct SlotId {
  uint32_t slot = 0;
  uint32_t generation = 0;
};

// Units are what a job waits for: rollouts, the creation of nodes on its way, its place in the
// queue. They are counted as open before anybody can end them; the job is over when none is left.
template <Game G>
class Job {
 public:
  // Rollouts of which AMAF statistics are sent back, at most.
  static constexpr uint32_t kMaxSamples = 64;

  Node<G>* node = nullptr;
  bool root = false;
  bool share = false;      // of the root's rollouts, begun at a copy of the root (mirror.h)
  uint32_t requester = 0;  // a thread
  SlotId ticket;           // of the requester

  // Precondition: it is over. One unit is open besides the rollouts.
  void start(int64_t rollouts) {
    completed_.store(0, std::memory_order_relaxed);
    value_.store(0, std::memory_order_relaxed);
    samples_used_.store(0, std::memory_order_relaxed);
    if (!root && !share && samples_.size() < kMaxSamples) samples_.resize(kMaxSamples);
    open_.store(rollouts + 1, std::memory_order_relaxed);
    to_issue_.store(rollouts, std::memory_order_release);
  }

  // Up to `most` of the rollouts that nobody has begun; they are the caller's to end.
  [[nodiscard]] uint32_t take(uint32_t most) {
    int64_t left = to_issue_.load(std::memory_order_acquire);
    while (left > 0) {
      const auto taken = static_cast<uint32_t>(std::min<int64_t>(left, most));
      if (to_issue_.compare_exchange_weak(left, left - taken, std::memory_order_acq_rel)) {
        return taken;
      }
    }
    return 0;
  }
  // All of them.
  [[nodiscard]] uint64_t take_all() {
    return static_cast<uint64_t>(to_issue_.exchange(0, std::memory_order_acq_rel));
  }
  [[nodiscard]] uint64_t left() const {
    return static_cast<uint64_t>(std::max<int64_t>(to_issue_.load(std::memory_order_relaxed), 0));
  }
  [[nodiscard]] bool exhausted() const { return to_issue_.load(std::memory_order_acquire) <= 0; }
  // Rollouts that were taken and given up are wanted again. Their units are still open.
  void put_back(uint32_t count) { to_issue_.fetch_add(count, std::memory_order_acq_rel); }

  void add_unit() { open_.fetch_add(1, std::memory_order_relaxed); }  // by who has one open
  // True: the job is over, and the caller's. Of no units: whether it is over.
  [[nodiscard]] bool end_units(uint64_t count) {
    const auto ended = static_cast<int64_t>(count);
    return open_.fetch_sub(ended, std::memory_order_acq_rel) == ended;
  }

  // Rollouts have a value. Before their units are ended.
  void add(uint32_t count, double sum, std::span<const Sample<G>> samples) {
    completed_.fetch_add(count, std::memory_order_relaxed);
    if (root || share) return;
    value_.fetch_add(sum, std::memory_order_relaxed);
    if constexpr (HasAmaf<G>) {
      for (const Sample<G>& sample : samples) {
        const uint32_t at = samples_used_.fetch_add(1, std::memory_order_relaxed);
        if (at < kMaxSamples) samples_[at] = sample;
      }
    }
  }

  [[nodiscard]] uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }
  // Once it is over.
  [[nodiscard]] double value() const { return value_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::span<const Sample<G>> samples() const {
    const uint32_t used = samples_used_.load(std::memory_order_relaxed);
    return {samples_.data(), std::min(used, static_cast<uint32_t>(samples_.size()))};
  }

 private:
  std::atomic<int64_t> to_issue_{0};
  std::atomic<int64_t> open_{0};
  std::atomic<uint64_t> completed_{0};
  std::atomic<double> value_{0};
  std::atomic<uint32_t> samples_used_{0};
  std::vector<Sample<G>> samples_;
};

// The jobs that this process was asked for. Thread-safe; a lock for every few rollouts.
template <Game G>
class JobQueue {
 public:
  struct Taken {
    Job<G>* job = nullptr;
    uint32_t rollouts = 0;
    bool last = false;  // the job left the queue: the caller ends that unit as well
  };

  [[nodiscard]] Job<G>& new_job() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      all_.push_back(std::make_unique<Job<G>>());
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
    {
      const std::lock_guard lock(mutex_);
      (job.share ? shares_ : queue_).push_back(&job);
    }
    size_.fetch_add(1, std::memory_order_seq_cst);  // see Host::wake_workers
  }
  // From the oldest job; shares of the root come last, nobody waits for them. all: every rollout
  // that nobody has begun.
  [[nodiscard]] Taken take(uint32_t most, bool all = false) {
    if (size_.load(std::memory_order_relaxed) == 0) return {};
    const std::lock_guard lock(mutex_);
    std::deque<Job<G>*>& queue = queue_.empty() ? shares_ : queue_;
    if (queue.empty()) return {};
    Taken taken{queue.front()};
    taken.rollouts = all ? static_cast<uint32_t>(taken.job->take_all()) : taken.job->take(most);
    if (taken.job->exhausted()) {
      taken.last = true;
      queue.pop_front();
      size_.fetch_sub(1, std::memory_order_relaxed);
    }
    return taken;
  }
  [[nodiscard]] bool empty() const { return size_.load(std::memory_order_seq_cst) == 0; }

 private:
  std::mutex mutex_;
  std::deque<Job<G>*> queue_;
  std::deque<Job<G>*> shares_;
  std::vector<Job<G>*> free_;
  std::vector<std::unique_ptr<Job<G>>> all_;
  std::atomic<uint32_t> size_{0};
};

// A choice on the way of a rollout, in a node of this process.
template <Game G>
struct Step {
  Node<G>* node;
  int move;
};

// What this process waits for from another one.
template <Game G>
struct Ticket {
  Job<G>* job = nullptr;      // that it is a part of: units of it are open
  uint32_t rank = 0;          // who has to answer
  uint32_t rollouts = 0;      // that were asked for; 0: the creation of a node
  std::vector<Step<G>> path;  // to the move whose child is there; empty: a share of the root's
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_JOB_H_
