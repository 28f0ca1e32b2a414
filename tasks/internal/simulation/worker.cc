#include "tasks/internal/simulation/worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tasks/internal/scheduler.h"
#include "tasks/paper/joins.h"

namespace cariama::tasks {
namespace {

// End of the oldest task's frames. The value is arbitrary.
constexpr uint64_t kRegionTop = uint64_t{1} << 40;
// Time in picoseconds between two polls of `copied`.
constexpr int64_t kCopiedPollTime = 100'000;

// A simulation ends by Cluster, not by a worker.
const std::atomic<uint64_t> kNoEnd{0};

template <typename Derived>
using SimulatedScheduler = Scheduler<Derived, SimulatedWorker>;

}  // namespace

std::unique_ptr<SimulatedWorker> SimulatedWorker::create(Cluster& cluster, int rank) {
  if (cluster.options().join == JoinPolicy::kWaitQueue) {
    return std::make_unique<WaitQueue<SimulatedScheduler>>(cluster, rank);
  }
  return std::make_unique<Greedy<SimulatedScheduler>>(cluster, rank);
}

SimulatedWorker::SimulatedWorker(Cluster& cluster, int rank)
    : SimulatedMachine(cluster, rank, cluster.options().own_access),
      SchedulerState(Victims::in_blocks(rank, cluster.options().workers, cluster.options().blocks,
                                        cluster.options().victim_order, cluster.options().seed)),
      memory_{*this},
      public_part_(memory_, area_.public_part),
      joins_(access_, area_.join_copy) {
  constexpr size_t kEntries = 16;
  resize_deque(kEntries);
  fork_state_.top = fork_state_.floor = entries_ + 1;
  if (cluster.options().workers > 1) area_.public_part.steal_request.store(kRefillRequest);
}

uint64_t SimulatedWorker::OwnMemory::compare_swap(std::atomic<uint64_t>& word, uint64_t expected,
                                                  uint64_t desired) const {
  return must(worker.access_.compare_swap(worker.rank_, address_of(&word), expected, desired));
}

const RunEnd SimulatedWorker::kEndless{&kNoEnd, 1};

void SimulatedWorker::install_root(const SimulatedFrame& root, Reference record) {
  incoming_ = {.frame = root, .sp = kRegionTop - cluster_.frame_bytes(), .top = kRegionTop};
  install(kRegionTop, record.word(), {reinterpret_cast<void*>(incoming_.sp), 0});
}

const SimulatedTask* SimulatedWorker::find(const PublicEntry& entry) const {
  // stack_ is in descending order of sp.
  const auto found =
      std::lower_bound(stack_.begin(), stack_.end(), entry.sp,
                       [](const SimulatedTask& task, uint64_t sp) { return task.sp > sp; });
  const auto position = static_cast<size_t>(found - stack_.begin());
  if (found == stack_.end() || found->sp != entry.sp || found->top != entry.top) return nullptr;
  if (position + 1 >= report_words_.size() || reports_[position + 1] != entry.record) {
    return nullptr;
  }
  return &*found;
}

// Pauses between two attempts to find work.
void SimulatedWorker::pause(int64_t time) {
  if (seeks_) {
    ahead_ += time;
  } else {
    sleep(time);
  }
}

void SimulatedWorker::own_access() {
  const SimulatedFaults& faults = cluster_.options().faults;
  if (cluster_.happens(faults.pause)) sleep(cluster_.up_to(faults.pause_most));
  spend(cluster_.options().own_access);
}

// ---- tasks ----

// Makes room for this number of entries.
void SimulatedWorker::resize_deque(size_t entries) {
  const auto top = fork_state_.top - entries_;
  const auto floor = fork_state_.floor - entries_;
  entry_words_.resize(entries);
  report_words_.resize(entries);
  entries_ = entry_words_.data();
  reports_ = report_words_.data();
  fork_state_.top = entries_ + top;
  fork_state_.floor = entries_ + floor;
}

void SimulatedWorker::run(const Context& context) {
  const auto sp = address_of(context.sp);
  if (stack_.back().sp != sp) {
    // The task below has been suspended. If a thief had taken this task too, it would have set
    // is_taken.
    stack_.pop_back();
    if (block_of(Reference(context.record)).is_taken) {
      cluster_.violated("an entry was taken twice");
    }
  }
  if (stack_.back().sp != sp) cluster_.violated("a task was continued that is not here");
  if (context.record != 0) stack_.back().outstanding.push_back(context.record);
  for (;;) {
    SimulatedTask& task = stack_.back();
    if (task.joins && !task.outstanding.empty()) {
      if (!join_child()) return;
      continue;
    }
    task.joins = false;
    if (task.ends) {
      if (!end_task()) return;
      continue;
    }
    SimulatedStep step;
    cluster_.program().step(task.frame, step);
    task.count.add(step.count);
    const std::atomic<uint64_t>& steal_request = area_.public_part.steal_request;
    compute(step.cost, step.polls, &steal_request, [&] {
      // Repeat if a thief has written another request meanwhile.
      for (uint64_t wanted = kNoRequest;
           steal_request.load() != kNoRequest && steal_request.load() != wanted;) {
        wanted = steal_request.load();
        serve_steal_request();
      }
    });
    switch (step.kind) {
      case SimulatedStep::Kind::kFork:
        fork(step.child);
        break;
      case SimulatedStep::Kind::kEnd:
        task.ends = true;
        [[fallthrough]];
      case SimulatedStep::Kind::kJoin:
        task.joins = true;
        break;
    }
  }
}

// Corresponds to fork_to() of fork_to.h.
void SimulatedWorker::fork(const SimulatedFrame& child) {
  const uint64_t top = stack_.back().sp;
  const auto position = static_cast<size_t>(fork_state_.top - entries_);
  if (position == entry_words_.size()) resize_deque(2 * position);
  *fork_state_.top++ = top;
  stack_.push_back({.frame = child, .sp = top - cluster_.frame_bytes(), .top = top});
  statistics_.stack_high_water =
      std::max(statistics_.stack_high_water, kRegionTop - stack_.back().sp);
  if (area_.public_part.steal_request.load(std::memory_order_relaxed) != kNoRequest)
    serve_steal_request();
}

// Corresponds to pop_parent() of fork_join.h and Worker::end_task().
bool SimulatedWorker::end_task() {
  const SimulatedCount count = stack_.back().count;
  const uint64_t* const entry = --fork_state_.top;
  const Reference record(reports_[entry - entries_]);
  if (entry >= fork_state_.floor || take_parent_back()) {
    if (record && block_of(record).is_taken) cluster_.violated("an entry was taken twice");
    stack_.pop_back();
    stack_.back().count.add(count);
    return true;
  }
  TaskResult result;
  result.kind = TaskResultKind::kValue;
  result.bytes = sizeof count;
  static_assert(sizeof count <= TaskResult::kInlineBytes);
  std::memcpy(result.value, &count, sizeof count);
  if (std::exchange(block_of(record).is_ended, true)) cluster_.violated("a child ended twice");
  leaving_.why = Leaving::Why::kEnded;
  leaving_.next = must(joins_.deliver(record, result));
  return false;
}

// Corresponds to Worker::poll_result() and wait_for().
bool SimulatedWorker::join_child() {
  SimulatedTask& task = stack_.back();
  const Reference record(task.outstanding.back());
  const std::optional<TaskResult> result = must(joins_.poll_result(record));
  if (result.has_value()) {
    SimulatedCount count;
    std::memcpy(&count, result->value, sizeof count);
    task.count.add(count);
    task.outstanding.pop_back();
    access_.release(record);
    return true;
  }
  ++statistics_.joins_waited;
  leaving_.why = Leaving::Why::kJoin;
  leaving_.sp = reinterpret_cast<void*>(task.sp);
  leaving_.record = record;
  leaving_.stays = false;
  return false;
}

Reference SimulatedWorker::new_record() {
  ++statistics_.records;
  return {rank_, &cluster_.allocate().record};
}

// ---- called by the scheduler ----

void SimulatedWorker::install(uint64_t top, uint64_t report, const Context& context) {
  entries_[0] = top;
  reports_[0] = report;
  next_ = context;
  stack_.clear();
  stack_.push_back(std::move(incoming_));
  statistics_.stack_high_water =
      std::max(statistics_.stack_high_water, kRegionTop - stack_.back().sp);
}

void SimulatedWorker::copy_out(Suspended& task) {
  SimulatedBlock& block = cluster_.allocate();
  spend(cluster_.options().switch_cost);
  block.frames = stack_.back();
  task.frames = Reference(rank_, &block.record).word();
  statistics_.suspended_bytes += task.top - task.sp;
}

void SimulatedWorker::copy_in(const Suspended& task) {
  const Reference frames(task.frames);
  SimulatedBlock& block = block_of(frames);
  if (std::exchange(block.is_resumed, true)) cluster_.violated("a task was resumed twice");
  access_.read_parked(block, frames, incoming_);
  spend(cluster_.options().switch_cost);
  access_.release(frames);
}

void SimulatedWorker::read_frames(int victim, uint64_t /*from*/, const PublicEntry& entry) {
  if (entry.record == 0 || std::exchange(block_of(Reference(entry.record)).is_taken, true)) {
    cluster_.violated("an entry was taken twice");
  }
  access_.read_frames(victim, entry, incoming_);
}

void SimulatedWorker::await_thief(uint64_t /*round*/) { sleep(kCopiedPollTime); }

// A worker must not run ahead of the clock if workers can be stopped, or if it polls records in its
// own memory.
SimulatedWorker::Search::Search(SimulatedWorker& worker)
    : worker_(worker), begin_(worker.own_time()) {
  worker.seeks_ = worker.cluster_.options().faults.stops == 0 && worker.waiting_.empty();
}

SimulatedWorker::Search::~Search() {
  if (std::exchange(worker_.seeks_, false)) worker_.sleep(0);
  worker_.statistics_.idle_ns += static_cast<uint64_t>(worker_.own_time() - begin_) / 1000;
}

void SimulatedWorker::Search::pause(uint64_t round) {
  const SimulationOptions& options = worker_.cluster_.options();
  if (worker_.victims_.empty()) return worker_.sleep(options.limit.count());
  worker_.pause(worker_.pause_time(round));
}

}  // namespace cariama::tasks
