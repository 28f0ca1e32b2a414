// WorkPool: the work of one process in a search, and the state that decides whether its workers may
// begin more of it: the job of the root, the queue of jobs that other processes requested, and the
// tickets of requests to other processes.
//
// The work pool runs no rollout and sends no call. The workers (worker.h) do.
#ifndef CARIAMA_MCTS_ENGINE_WORK_POOL_H_
#define CARIAMA_MCTS_ENGINE_WORK_POOL_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mcts/engine/job.h"
#include "mcts/engine/slot_table.h"
#include "mcts/host.h"
#include "mcts/options.h"

namespace cariama::mcts {

// Why a worker found no rollout to run.
enum class IdleCause : uint8_t {
  kNoShare,   // the process has no share of the root's rollouts, and no request for playouts
  kAnswers,   // other processes run all rollouts of the process's shares, or of the root's job
  kDeferred,  // the rollouts that the process has would be deferred
};
constexpr size_t kIdleCauses = 3;

// Thread-safe.
template <Game G>
class WorkPool final : public LocalInstance {
 public:
  explicit WorkPool(Host& host) : host_(host), outstanding_(host.size()), shared_(host.size()) {}

  [[nodiscard]] JobQueue<G>& jobs() { return jobs_; }
  [[nodiscard]] SlotTable<Ticket<G>>& tickets() { return tickets_; }
  // Rank 0: the job of the search itself.
  [[nodiscard]] Job<G>& root_job() { return root_job_; }

  // Returns true if a worker would find work. seq_cst: see Host::wake_workers().
  [[nodiscard]] bool has_work() const {
    const bool waits = waiting() && !stopping();
    return !jobs_.empty(/*shares=*/!waits) ||
           (!waits && root_open_.load(std::memory_order_seq_cst) && !root_job_.exhausted());
  }

  // Rank 0: lets the workers of this process take rollouts of the root's job, until close_root().
  // The caller wakes the workers. seq_cst: see Host::wake_workers().
  void open_root() { root_open_.store(true, std::memory_order_seq_cst); }
  void close_root() { root_open_.store(false, std::memory_order_seq_cst); }
  [[nodiscard]] bool root_open() const { return root_open_.load(std::memory_order_acquire); }

  // Between stop() and resume() the workers cancel the rollouts that are not begun.
  void stop() { stopping_.store(true, std::memory_order_release); }
  void resume() {
    stopping_.store(false, std::memory_order_release);
    note_answer();  // no answer of the time before the stop is in flight any more
  }
  [[nodiscard]] bool stopping() const { return stopping_.load(std::memory_order_acquire); }

  // A process waits for answers if its rollouts of the root would be deferred: they reach nodes
  // whose owners have too many requests already, children that are being created, or copies that
  // are out of date. has_work() does not count rollouts of the root and of shares while the process
  // waits. The next answer ends the wait.
  //
  // Returns the number of answers so far. A worker reads it before it runs rollouts.
  [[nodiscard]] uint64_t answers() const { return answers_.load(std::memory_order_seq_cst); }
  // The process waits from now on, unless an answer has arrived since answers() returned `answers`:
  // that answer may be the one that the process would wait for. Requires: an answer is in flight
  // then.
  void back_off(uint64_t answers) { backs_off_since_.store(answers, std::memory_order_seq_cst); }
  // Counts an answer, or another event that may end the wait. Wakes the other workers if the
  // process was waiting. The caller has recorded the effects of the answer before. seq_cst: see
  // Host::wake_workers().
  void note_answer() {
    const uint64_t before = answers_.fetch_add(1, std::memory_order_seq_cst);
    const bool waited = backs_off_since_.load(std::memory_order_seq_cst) == before;
    if (waited && host_.threads() > 1) host_.wake_workers();
  }
  [[nodiscard]] bool waiting() const {
    return backs_off_since_.load(std::memory_order_seq_cst) == answers();
  }

  // The number of shares of the root's rollouts that this process has received and not answered.
  [[nodiscard]] std::atomic<int32_t>& open_shares() { return open_shares_; }
  // Why a worker of this process last found no rollout to run.
  void set_idle_cause(IdleCause cause) { idle_cause_.store(cause, std::memory_order_relaxed); }
  [[nodiscard]] IdleCause idle_cause() const { return idle_cause_.load(std::memory_order_relaxed); }

  // The number of rollouts that this process has requested from `rank` and that are in flight,
  // without the shares of the root's rollouts.
  [[nodiscard]] std::atomic<int32_t>& outstanding(uint32_t rank) { return outstanding_[rank]; }
  void add_outstanding(uint32_t rank, int32_t rollouts) {
    outstanding_[rank].fetch_add(rollouts, std::memory_order_relaxed);
    outstanding_sum_.fetch_add(rollouts, std::memory_order_relaxed);
  }
  [[nodiscard]] int64_t outstanding_sum() const {
    return outstanding_sum_.load(std::memory_order_relaxed);
  }
  // Returns true if this process may not request more rollouts of a job now: from process `owner`,
  // by the limit queue_share; or from any process, because more are in flight than the root's job
  // or the shares have left, so that this process has rollouts to run until the answers arrive.
  // Only the root's job and shares are limited: all other jobs are parts of these. visits: of the
  // node in which the rollout began.
  [[nodiscard]] bool is_busy(const Job<G>& job, Rank owner, uint64_t visits,
                             const SearchOptions& options) const {
    if (!(job.root || job.share)) return false;
    const uint64_t limit = std::clamp<uint64_t>(visits / options.queue_share, options.queue_target,
                                                options.queue_limit) *
                           host_.threads();
    return outstanding_[owner].load(std::memory_order_relaxed) >= static_cast<int64_t>(limit) ||
           outstanding_sum() > (job.root ? static_cast<int64_t>(job.left()) : jobs_.shares_left());
  }
  // Rank 0: the number of the root's rollouts that `rank` has in its shares.
  [[nodiscard]] std::atomic<int32_t>& shared(uint32_t rank) { return shared_[rank]; }
  // Rank 0: takes rollouts of the root's job for a share of `rank`, and returns their number: 0 if
  // the process has enough, or none are left.
  //
  // Two shares per thread: one runs while the answer to the other one, and the next share, are in
  // flight. Shares shrink towards the end, so that all processes end at about the same time.
  [[nodiscard]] uint32_t take_share(uint32_t rank) {
    const uint64_t some =
        std::min(kMostShared, root_job_.left() / (4 * host_.size() * host_.threads()) + 1);
    if (shared_[rank].load(std::memory_order_relaxed) >=
        static_cast<int64_t>(2 * some * host_.threads())) {
      return 0;
    }
    const uint32_t rollouts = root_job_.take(static_cast<uint32_t>(some));
    shared_[rank].fetch_add(static_cast<int32_t>(rollouts));
    return rollouts;
  }

 private:
  // Limit of the rollouts in one share. Large: rollouts not begun do not influence the statistics.
  static constexpr uint64_t kMostShared = 4096;

  Host& host_;
  JobQueue<G> jobs_;
  SlotTable<Ticket<G>> tickets_;
  Job<G> root_job_;
  std::atomic<bool> root_open_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> answers_{1};
  std::atomic<uint64_t> backs_off_since_{0};  // equal to answers_: the process waits
  std::atomic<int32_t> open_shares_{0};
  std::atomic<IdleCause> idle_cause_{IdleCause::kNoShare};
  std::vector<std::atomic<int32_t>> outstanding_;
  std::atomic<int64_t> outstanding_sum_{0};
  std::vector<std::atomic<int32_t>> shared_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_WORK_POOL_H_
