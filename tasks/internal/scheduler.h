// Scheduler: the scheduler's loop. It runs a task until the task leaves its stack, keeps the state
// that continues the task, and finds the next task: the parent, a ready task, or one that it
// steals.
//
// This is the scheduler of the product: a split deque (split_deque.h), the greedy join
// (join_protocol.h), and a uni-address stack (stack_region.h). The deques, joins and stacks that
// exist for comparison are in tasks/paper/: each is a class that derives from Scheduler and
// replaces the functions in which it differs. `Derived` is the most derived class, so the loop
// calls the replaced functions directly.
//
// `Machine` executes tasks and owns the memory: a process (Worker, worker.h), or a part of a
// simulated cluster (SimulatedMachine). The using-declarations below list what Scheduler needs of
// it. All operations that move or overwrite frames of the region run between tasks, so that they do
// not change the stack on which they run.
#ifndef CARIAMA_TASKS_INTERNAL_SCHEDULER_H_
#define CARIAMA_TASKS_INTERNAL_SCHEDULER_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tasks/context.h"
#include "tasks/internal/join_protocol.h"
#include "tasks/internal/must.h"
#include "tasks/internal/peer_words.h"
#include "tasks/internal/scheduler_state.h"
#include "tasks/internal/split_deque.h"
#include "tasks/internal/split_deque_thief.h"

namespace cariama::tasks {

template <typename Derived, typename Machine>
class Scheduler : public Machine {
 public:
  using Machine::Machine;

  void work(const RunEnd& end) override;
  void serve_steal_request() override;
  [[nodiscard]] bool take_parent_back() override;

 protected:
  using typename Machine::Context;
  using typename Machine::Leaving;
  using typename Machine::Waiting;
  // Measures the times of the steps of a steal: mark(step), sample(bytes, trips).
  using typename Machine::StealTimer;
  // One search for work: its pauses, and the idle time.
  using typename Machine::Search;

  using Machine::access_;             // RemoteAccess to the peers
  using Machine::await_thief;         // one round of waiting for a thief that copies frames
  using Machine::before_publication;  // the frames [sp, top) will be public
  using Machine::drop_copy;           // reverts copy_out()
  using Machine::entries_;
  using Machine::exceptions;    // the exceptions of the running task
  using Machine::fork_state;    // top and floor of the deque
  using Machine::has_sleepers;  // returns true if a peer sleeps that wake_sleepers() can wake
  using Machine::install;       // makes a task the oldest one of the region and the next one to run
  using Machine::joins_;
  using Machine::leaving_;
  using Machine::new_record;
  using Machine::next_;
  using Machine::note_taken;  // notes for debugging that this worker took a task from the victim
  using Machine::on_search_round;
  using Machine::parked_top_;
  using Machine::popped_;
  using Machine::public_part_;
  using Machine::public_words;  // the PublicPart and the buffer for the PublicPart of a peer
  using Machine::rank;
  using Machine::read_frames;  // reads the frames of a claimed entry
  using Machine::ready_;
  using Machine::reports_;
  using Machine::run;  // runs a task until it leaves; it fills leaving_
  using Machine::run_end_;
  using Machine::searches_;
  using Machine::statistics_;
  using Machine::steal_attempts_total_;
  using Machine::steals_total_;
  using Machine::taken_;
  using Machine::victims_;
  using Machine::waiting_;
  using Machine::wake_sleepers;  // wakes at most this number of sleeping peers
  using Machine::yielded_;

  [[nodiscard]] Derived& self() { return static_cast<Derived&>(*this); }

  // Position of the running task in the deque, plus one.
  [[nodiscard]] size_t depth() { return static_cast<size_t>(fork_state().top - entries_); }

  // Handles a task that has left.
  void after(Leaving& left);
  // Registers the task that has left as the waiter of a join record.
  void wait_for_child(Leaving& left);
  // Copies the frames of the task that has left out of the stack, stores its handle in `task`, and
  // makes its parent the next task if it is in this region. Writes to a reference instead of
  // returning the handle: a copy would wait for the store buffer.
  void park(void* sp, Suspended& task);
  // Reverts the last park().
  void unpark(const Suspended& task);

  // Finds the next task and installs it. Returns false if the run ended first.
  [[nodiscard]] bool find_work();
  // Installs the oldest task of waiting_ if its child has ended. Otherwise moves it to the end of
  // the queue and returns false.
  [[nodiscard]] bool resume_waiting();
  // Returns true in the first round of every 16th search. Ready tasks and steals are tried before
  // the joiners in waiting_. Without these polls, a joiner would never continue while each search
  // finds a ready task or a steal succeeds.
  [[nodiscard]] bool polls_waiting_first(uint64_t round) {
    constexpr uint64_t kPollEvery = 16;
    return round == 0 && ++searches_ % kPollEvery == 0;
  }
  // Call it when all tasks of the region have ended or been taken, before another task is
  // installed. Empties the deque, and waits until thieves have copied the frames of all stolen
  // tasks.
  void quiesce_region();
  // Copies the frames of a suspended task in, and installs the task.
  void resume(const Suspended& task);

  // Publishes entries for the steal request `wanted`. Requires: no entry is public.
  void publish(uint64_t wanted);
  // Publishes `count` entries and wakes sleeping peers. Requires: no entry is public.
  template <typename Entries>
  void make_public(const Entries& entry, uint32_t count) {
    public_part_.publish(entry, count);
    statistics_.published += count;
    wake_sleepers(count);
  }

  // Steals a task of the victim and installs it. steal() also counts the attempt.
  [[nodiscard]] bool steal(int victim);
  [[nodiscard]] bool steal_from(int victim);
  // Reads the frames of an entry that this worker has claimed, from the victim's memory at `from`,
  // and reports that to the victim.
  void take_frames(int victim, uint64_t from, const PublicEntry& entry, StealTimer& timer);
  void count_steal(uint64_t bytes, uint64_t trips) {
    ++statistics_.stolen[std::min(victims_.level(), kVictimLevels - 1)];
    victims_.succeeded();
    ++statistics_.steals;
    steals_total_.add();
    statistics_.stolen_bytes += bytes;
    statistics_.steal_trips += trips;
  }
};

// ---- the loop ----

template <typename Derived, typename Machine>
void Scheduler<Derived, Machine>::work(const RunEnd& end) {
  run_end_ = end;
  for (;;) {
    if (next_.sp == nullptr && !self().find_work()) break;
    run(std::exchange(next_, {}));
    self().after(leaving_);
  }
  if (run_end_.has_failed()) throw RunFailed();
  // Drop tasks that were suspended and will never be continued.
  ready_.clear();
  waiting_.clear();
}

template <typename Derived, typename Machine>
void Scheduler<Derived, Machine>::after(Leaving& left) {
  switch (left.why) {
    case Leaving::Why::kEnded:
      if (left.next.frames != 0) resume(left.next);
      break;
    case Leaving::Why::kJoin:
      self().wait_for_child(left);
      break;
    case Leaving::Why::kSuspend: {
      Suspended task;
      park(left.sp, task);
      left.publish(left.argument, task);
      break;
    }
    case Leaving::Why::kYield:
      ready_.emplace_back();
      park(left.sp, ready_.back());
      yielded_ = true;
      break;
    case Leaving::Why::kRunFailed:
      throw RunFailed();
  }
}

template <typename Derived, typename Machine>
bool Scheduler<Derived, Machine>::find_work() {
  self().quiesce_region();
  Search search(*this);
  for (uint64_t round = 0; !run_end_.reached(); ++round) {
    self().on_search_round();
    // After a yield, try a joiner and a steal before the ready tasks, one of which has yielded: it
    // may wait for the joiner, and is always ready itself.
    const bool yielded = std::exchange(yielded_, false);
    if ((yielded || polls_waiting_first(round)) && resume_waiting()) return true;
    if (yielded && !victims_.empty() && steal(victims_.next())) return true;
    if (!ready_.empty()) {
      const Suspended task = ready_.front();
      ready_.pop_front();
      resume(task);
      return true;
    }
    if (!victims_.empty() && steal(victims_.next())) return true;
    if (resume_waiting()) return true;
    search.pause(round);
  }
  return false;
}

template <typename Derived, typename Machine>
bool Scheduler<Derived, Machine>::resume_waiting() {
  if (waiting_.empty()) return false;
  const Waiting oldest = waiting_.front();
  waiting_.pop_front();
  if (!must(joins_.poll_result(oldest.record)).has_value()) {
    waiting_.push_back(oldest);
    return false;
  }
  resume(oldest.task);
  return true;
}

// ---- suspended tasks ----

template <typename Derived, typename Machine>
void Scheduler<Derived, Machine>::wait_for_child(Leaving& left) {
  Suspended task;
  park(left.sp, task);
  if (left.stays) {
    waiting_.push_back({task, left.record});
    return;
  }
  // wait() returns false if the child has ended since the last poll: then the task continues.
  if (!must(joins_.wait(left.record, task))) unpark(task);
}

template <typename Derived, typename Machine>
void Scheduler<Derived, Machine>::park(void* sp, Suspended& task) {
  ForkState& state = fork_state();
  const size_t position = depth() - 1;
  parked_top_ = state.top;
  popped_ = false;
  task.sp = address_of(sp);
  task.top = sp_of(entries_[position]);
  ++statistics_.suspensions;
  self().copy_out(task);
  task.report = reports_[position];
  if (position == 0) return;
  // If the parent was not stolen, it continues in this worker, like a task that the worker has
  // stolen from itself.
  uint64_t* const top = state.top = entries_ + position;
  if (top < state.floor && !self().take_parent_back()) return;
  popped_ = true;
  if (task.report == 0) task.report = new_record().word();
  reports_[position] = 0;
  next_ = {reinterpret_cast<void*>(sp_of(*top)), task.report};
  exceptions() = leaving_.exceptions;
}

template <typename Derived, typename Machine>
void Scheduler<Derived, Machine>::unpark(const Suspended& task) {
  fork_state().top = parked_top_;
  // No other worker has a reference to the record that park() allocated, so it becomes the report
  // of this position again.
  if (popped_) reports_[depth() - 1] = task.report;
  next_ = {reinterpret_cast<void*>(task.sp), 0};
  self().drop_copy(task);
}

// ---- the region ----

template <typename Derived, typename Machine>
void Scheduler<Derived, Machine>::quiesce_region() {
  ForkState& state = fork_state();
  const auto taken = static_cast<size_t>(state.floor - (entries_ + 1));
  state.top = state.floor = entries_ + 1;
  if (taken == 0) return;
  taken_ += taken;
  statistics_.stolen_from += taken;
  uint64_t copied = public_part_.copied();
  for (uint64_t round = 0; copied < taken_; ++round) {
    await_thief(round);
    copied = public_part_.copied();
  }
  if (copied != taken_) must(malformed_words(rank(), "the number of copied tasks"));
  std::fill(reports_ + 1, reports_ + 1 + taken, 0);
}

template <typename Derived, typename Machine>
void Scheduler<Derived, Machine>::resume(const Suspended& task) {
  self().quiesce_region();
  ++statistics_.resumed;
  statistics_.resumed_remote += Reference(task.frames).rank() != rank();
  self().copy_in(task);
  self().install(task.top, task.report, {reinterpret_cast<void*>(task.sp), 0});
}

// ---- the deque: owner ----

template <typename Derived, typename Machine>
void Scheduler<Derived, Machine>::serve_steal_request() {
  const uint64_t wanted =
      public_part_.request_to_serve([this](uint32_t entries) { wake_sleepers(entries); });
  if (wanted != kNoRequest) self().publish(wanted);
}

template <typename Derived, typename Machine>
void Scheduler<Derived, Machine>::publish(uint64_t wanted) {
  // A task that forks in a catch block, or while an exception unwinds, must stay in this process,
  // where its exception is.
  if (!exceptions().empty()) return;
  // Count the private entries that may be published: those before the first tied one, because the
  // oldest entries are published first.
  ForkState& state = fork_state();
  uint64_t* const floor = state.floor;
  uint64_t* end = floor;
  while (end < state.top && end < floor + 2 * kPublicSlots && (*end & kForkTied) == 0) ++end;
  const uint32_t count = how_many_to_publish(wanted, static_cast<size_t>(end - floor),
                                             [this] { return has_sleepers(); });
  if (count == 0) return;
  const auto position = static_cast<size_t>(floor - entries_);
  for (size_t i = position; i < position + count; ++i) {
    if (reports_[i] == 0) reports_[i] = new_record().word();
    before_publication(sp_of(entries_[i]), sp_of(entries_[i - 1]));
  }
  make_public(
      [&](uint32_t i) {
        const size_t at = position + i;
        return PublicEntry{sp_of(entries_[at]), sp_of(entries_[at - 1]), reports_[at - 1],
                           reports_[at]};
      },
      count);
  state.floor = floor + count;
}

template <typename Derived, typename Machine>
bool Scheduler<Derived, Machine>::take_parent_back() {
  ForkState& state = fork_state();
  if (state.top == entries_) return false;
  if (!public_part_.take_back()) return false;
  state.floor = state.top;
  ++statistics_.taken_back;
  public_part_.refill_if_empty();
  return true;
}

// ---- the deque: thief ----

template <typename Derived, typename Machine>
bool Scheduler<Derived, Machine>::steal(int victim) {
  ++statistics_.steal_attempts;
  steal_attempts_total_.add();
  ++statistics_.tried[std::min(victims_.level(), kVictimLevels - 1)];
  return self().steal_from(victim);
}

template <typename Derived, typename Machine>
bool Scheduler<Derived, Machine>::steal_from(int victim) {
  StealTimer timer(*this);
  const uint64_t trips_before = access_.round_trips();
  const auto words = public_words();
  const ClaimResult got =
      must(claim_from_public_part(access_, victim, words.part, words.copy, [&] { timer.mark(1); }));
  if (got.claim != Claim::kClaimed) {
    statistics_.steal_lost += got.claim == Claim::kLost;
    return false;
  }
  const PublicEntry entry = words.copy.slots[got.first];
  take_frames(victim, self().frames_of(entry), entry, timer);
  const uint64_t trips = access_.round_trips() - trips_before;
  count_steal(entry.top - entry.sp, trips);
  timer.sample(entry.top - entry.sp, trips);
  self().install(entry.top, entry.report, {reinterpret_cast<void*>(entry.sp), entry.record});
  return true;
}

template <typename Derived, typename Machine>
void Scheduler<Derived, Machine>::take_frames(int victim, uint64_t from, const PublicEntry& entry,
                                              StealTimer& timer) {
  timer.mark(2);
  read_frames(victim, from, entry);
  timer.mark(3);
  must(report_copied(access_, victim, public_words().part));
  note_taken(victim);
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_INTERNAL_SCHEDULER_H_
