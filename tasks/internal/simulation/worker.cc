#include "tasks/internal/simulation/worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tasks/internal/idle_policy.h"

namespace cariama::tasks {
namespace {

// End of the oldest task's frames. The value is arbitrary.
constexpr uint64_t kRegionTop = uint64_t{1} << 40;
// Times in picoseconds of a round of spinning, of yielding the core, and between two polls of
// `copied`.
constexpr int64_t kSpin = 250'000;
constexpr int64_t kYield = 500'000;
constexpr int64_t kCopiedPollTime = 100'000;

// Operations do not fail in a simulation; errors of the protocol are reported by
// Cluster::violated().
template <typename T>
T value_of(absl::StatusOr<T> value) {
  return *std::move(value);
}

}  // namespace

SimulatedWorker::SimulatedWorker(Cluster& cluster, int rank)
    : cluster_(cluster),
      rank_(rank),
      access_(cluster, *this, rank),
      memory_{*this},
      public_part_(memory_, area_.public_part),
      joins_(access_, area_.join_copy),
      victims_(Victims::in_blocks(rank, cluster.options().workers, cluster.options().blocks,
                                  cluster.options().victim_order, cluster.options().seed)) {
  if (cluster.options().workers > 1) area_.public_part.steal_request.store(kRefillRequest);
}

uint64_t SimulatedWorker::OwnMemory::compare_swap(std::atomic<uint64_t>& word, uint64_t expected,
                                                  uint64_t desired) const {
  return value_of(worker.access_.compare_swap(worker.rank_, reinterpret_cast<uint64_t>(&word),
                                              expected, desired));
}

void SimulatedWorker::main_entry(void* argument) {
  Fiber::arrived();
  auto& worker = *static_cast<SimulatedWorker*>(argument);
  for (;;) {
    if (!worker.has_task_) worker.find_work();
    worker.run();
  }
}

void SimulatedWorker::install_root(const SimulatedFrame& root, Reference record) {
  incoming_ = {.frame = root, .sp = kRegionTop - cluster_.options().frame_bytes, .top = kRegionTop};
  begin_region(record.word());
}

TaskStatistics SimulatedWorker::statistics() const { return statistics_; }

const SimulatedTask* SimulatedWorker::find(const PublicEntry& entry) const {
  // stack_ is in descending order of sp.
  const auto found =
      std::lower_bound(stack_.begin(), stack_.end(), entry.sp,
                       [](const SimulatedTask& task, uint64_t sp) { return task.sp > sp; });
  const auto position = static_cast<size_t>(found - stack_.begin());
  if (found == stack_.end() || found->sp != entry.sp || found->top != entry.top) return nullptr;
  if (position + 1 >= reports_.size() || reports_[position + 1] != entry.record) return nullptr;
  return &*found;
}

void SimulatedWorker::sleep(int64_t time) {
  run_at(cluster_.events().now() + ahead_ + time);
  ahead_ = 0;
  fiber_.suspend();
}

void SimulatedWorker::run_at(int64_t time) {
  next_run_ = time;
  cluster_.events().push(time, EventQueue::Kind::kRun, static_cast<uint32_t>(rank_));
}

void SimulatedWorker::answer(int64_t latency) {
  if (!seeks_) return run_at(cluster_.events().now() + latency);
  ahead_ = latency;
  resume();
}

// Pauses between two attempts to find work.
void SimulatedWorker::pause(int64_t time) {
  if (seeks_) {
    ahead_ += time;
  } else {
    sleep(time);
  }
}

void SimulatedWorker::on_steal_request() {
  const int64_t now = cluster_.events().now();
  if (polls_ && (now < stopped_from || now >= stopped_until)) run_at(now);
}

// Runs the computation of one step.
void SimulatedWorker::compute(SimTime cost, bool polls) {
  worked_ += cost.count();
  if (!polls || cost < cluster_.options().quantum) return spend(cost);
  const auto now = [&] { return cluster_.events().now() + ahead_; };
  const std::atomic<uint64_t>& steal_request = area_.public_part.steal_request;
  for (int64_t left = cost.count(); left > 0;) {
    // Repeat if a thief has written another request meanwhile.
    for (uint64_t wanted = kNoRequest;
         steal_request.load() != kNoRequest && steal_request.load() != wanted;) {
      wanted = steal_request.load();
      serve_steal_request();
    }
    const int64_t begin = now();
    polls_ = true;
    sleep(left);
    polls_ = false;
    left -= now() - begin;
  }
}

void SimulatedWorker::own_access() {
  const SimulatedFaults& faults = cluster_.options().faults;
  if (cluster_.happens(faults.pause)) sleep(cluster_.up_to(faults.pause_most));
  spend(cluster_.options().own_access);
}

// ---- tasks ----

void SimulatedWorker::run() {
  while (has_task_) {
    SimulatedTask& task = stack_.back();
    if (task.joins && !task.outstanding.empty()) {
      join_one();
      continue;
    }
    task.joins = false;
    if (task.ends) {
      end_task();
      continue;
    }
    SimulatedStep step;
    cluster_.program().step(task.frame, step);
    task.count.add(step.count);
    compute(step.cost, step.polls);
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

void SimulatedWorker::fork(const SimulatedFrame& child) {
  const uint64_t top = stack_.back().sp;
  stack_.push_back({.frame = child, .sp = top - cluster_.options().frame_bytes, .top = top});
  if (reports_.size() < stack_.size()) reports_.push_back(0);
  statistics_.stack_high_water =
      std::max(statistics_.stack_high_water, kRegionTop - stack_.back().sp);
  if (area_.public_part.steal_request.load(std::memory_order_relaxed) != kNoRequest)
    serve_steal_request();
}

// Corresponds to Worker::serve_steal_request().
void SimulatedWorker::serve_steal_request() {
  std::atomic<uint64_t>& steal_request = area_.public_part.steal_request;
  const uint64_t wanted = steal_request.load(std::memory_order_relaxed);
  if (public_part_.count() != 0) {
    steal_request.store(kNoRequest, std::memory_order_relaxed);
    return;
  }
  const size_t entries = stack_.size() - 1;
  const uint32_t count =
      how_many_to_publish(wanted, std::min(entries - std::min(entries, floor_), 2 * kPublicSlots));
  if (count == 0) return;
  steal_request.store(kNoRequest, std::memory_order_relaxed);
  const size_t first = floor_;
  for (size_t i = first; i < first + count; ++i) {
    if (reports_[i + 1] == 0) reports_[i + 1] = new_record().word();
  }
  public_part_.publish(
      [&](uint32_t i) {
        const SimulatedTask& task = stack_[first + i];
        return PublicEntry{task.sp, task.top, reports_[first + i], reports_[first + i + 1]};
      },
      count);
  floor_ = first + count;
  statistics_.published += count;
}

// Pops the entry of the running task's parent, private or public. Returns false if it was stolen or
// there is none.
bool SimulatedWorker::take_parent_back() {
  if (stack_.size() == 1) return false;
  const size_t entry = stack_.size() - 2;
  if (entry < floor_) {
    if (!public_part_.take_back()) return false;
    floor_ = entry;
    ++statistics_.taken_back;
    public_part_.refill_if_empty();
  }
  // If a thief had taken this entry too, it would have set is_taken.
  if (reports_[entry + 1] != 0 && block_of(Reference(reports_[entry + 1])).is_taken) {
    cluster_.violated("an entry was taken twice");
  }
  return true;
}

void SimulatedWorker::end_task() {
  const SimulatedCount count = stack_.back().count;
  if (take_parent_back()) {
    stack_.pop_back();
    stack_.back().count.add(count);
    return;
  }
  has_task_ = false;
  const Reference record(reports_[stack_.size() - 1]);
  Outcome outcome;
  outcome.kind = OutcomeKind::kValue;
  outcome.bytes = sizeof count;
  static_assert(sizeof count <= Outcome::kInlineBytes);
  std::memcpy(outcome.value, &count, sizeof count);
  if (std::exchange(block_of(record).is_ended, true)) cluster_.violated("a child ended twice");
  const Suspended waiter = value_of(joins_.deliver(record, outcome));
  if (waiter.frames != 0) install(waiter);
}

// Joins the newest outstanding child of the running task: takes its outcome, or suspends the task.
// Corresponds to Worker::poll_outcome(), wait_for_child() and park().
void SimulatedWorker::join_one() {
  const Reference record(stack_.back().outstanding.back());
  const std::optional<Outcome> outcome = value_of(joins_.poll_outcome(record));
  if (outcome.has_value()) {
    SimulatedCount count;
    std::memcpy(&count, outcome->value, sizeof count);
    stack_.back().count.add(count);
    stack_.back().outstanding.pop_back();
    access_.release(record);
    return;
  }
  ++statistics_.joins_waited;
  const size_t position = stack_.size() - 1;
  SimulatedBlock& block = cluster_.allocate();
  spend(cluster_.options().switch_cost);
  block.frames = stack_.back();
  const SimulatedTask& task = stack_.back();
  Suspended joiner{Reference(rank_, &block.record).word(), task.sp, task.top, reports_[position]};
  ++statistics_.suspensions;
  statistics_.suspended_bytes += task.top - task.sp;
  // If the parent was not stolen, it continues in this worker, like a task that the worker has
  // stolen from itself.
  const bool popped = take_parent_back();
  if (popped) {
    if (joiner.report == 0) joiner.report = new_record().word();
    reports_[position] = 0;
  }
  if (cluster_.options().join == JoinPolicy::kWaitQueue) {
    waiting_.push_back({joiner, record});
  } else if (!value_of(joins_.wait(record, joiner))) {
    // The child has ended meanwhile. No other worker has a reference to the new record of this
    // task, so it becomes the report of this position again.
    if (popped) reports_[position] = joiner.report;
    cluster_.free(block);
    return;
  }
  if (!popped) {
    has_task_ = false;
    return;
  }
  stack_.pop_back();
  stack_.back().outstanding.push_back(joiner.report);
}

Reference SimulatedWorker::new_record() {
  ++statistics_.records;
  return {rank_, &cluster_.allocate().record};
}

// ---- between tasks ----

void SimulatedWorker::find_work() {
  quiesce_region();
  const int64_t begin = cluster_.events().now() + ahead_;
  // A worker must not run ahead of the clock if workers can be stopped, or if it polls records in
  // its own memory.
  seeks_ = cluster_.options().faults.stops == 0 && waiting_.empty();
  for (uint64_t round = 0;; ++round) {
    if (victims_.empty()) {
      sleep(cluster_.options().limit.count());
    } else if (steal(victims_.next()) || resume_waiting()) {
      break;
    }
    if (round < kSpinRounds) {
      pause(kSpin);
    } else if (round < kYieldRounds) {
      pause(kYield);
    } else {
      const auto most = static_cast<uint64_t>(cluster_.options().idle_sleep.count()) * 1000;
      pause(static_cast<int64_t>(idle_sleep_ns(round, most)) * 1000);
    }
  }
  if (std::exchange(seeks_, false)) sleep(0);
  statistics_.idle_ns += static_cast<uint64_t>(cluster_.events().now() + ahead_ - begin) / 1000;
}

// Corresponds to Worker::quiesce_region().
void SimulatedWorker::quiesce_region() {
  const auto taken = static_cast<std::ptrdiff_t>(std::exchange(floor_, 0));
  taken_ += static_cast<uint64_t>(taken);
  statistics_.stolen_from += static_cast<uint64_t>(taken);
  while (!public_part_.all_copied(taken_)) sleep(kCopiedPollTime);
  stack_.clear();
  if (taken > 0) std::fill_n(reports_.begin() + 1, taken, 0);
}

// Makes incoming_ the oldest task of the region, with record `report`.
void SimulatedWorker::begin_region(uint64_t report) {
  stack_.push_back(std::move(incoming_));
  if (reports_.empty()) reports_.push_back(0);
  reports_[0] = report;
  statistics_.stack_high_water =
      std::max(statistics_.stack_high_water, kRegionTop - stack_.back().sp);
  has_task_ = true;
}

bool SimulatedWorker::steal(int victim) {
  const uint64_t trips = access_.round_trips();
  const size_t level = std::min(victims_.level(), kVictimLevels - 1);
  ++statistics_.steal_attempts;
  ++statistics_.tried[level];
  const ClaimResult got = value_of(
      claim_from_public_part(access_, victim, area_.public_part, area_.public_part_copy, [] {}));
  if (got.claim != Claim::kClaimed) {
    statistics_.steal_lost += got.claim == Claim::kLost;
    return false;
  }
  const PublicEntry entry = area_.public_part_copy.slots[got.first];
  const Reference child(entry.record);
  if (entry.record == 0 || std::exchange(block_of(child).is_taken, true)) {
    cluster_.violated("an entry was taken twice");
    return false;
  }
  access_.read_frames(victim, entry, incoming_);
  static_cast<void>(report_copied(access_, victim, area_.public_part));
  victims_.succeeded();
  ++statistics_.steals;
  ++statistics_.stolen[level];
  statistics_.stolen_bytes += entry.top - entry.sp;
  statistics_.steal_trips += access_.round_trips() - trips;
  incoming_.outstanding.push_back(entry.record);
  begin_region(entry.report);
  return true;
}

// Corresponds to Worker::resume_waiting().
bool SimulatedWorker::resume_waiting() {
  if (waiting_.empty()) return false;
  const Waiting oldest = waiting_.front();
  waiting_.pop_front();
  if (!value_of(joins_.poll_outcome(oldest.record)).has_value()) {
    waiting_.push_back(oldest);
    return false;
  }
  install(oldest.task);
  return true;
}

void SimulatedWorker::install(const Suspended& task) {
  quiesce_region();
  const Reference frames(task.frames);
  SimulatedBlock& block = block_of(frames);
  if (std::exchange(block.is_resumed, true)) cluster_.violated("a task was resumed twice");
  ++statistics_.resumed;
  statistics_.resumed_remote += frames.rank() != rank_;
  access_.read_parked(block, frames, incoming_);
  spend(cluster_.options().switch_cost);
  access_.release(frames);
  begin_region(task.report);
}

}  // namespace cariama::tasks
