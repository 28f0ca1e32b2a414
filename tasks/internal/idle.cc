// Idle workers: how they pause, sleep and are woken; and waits of a worker for its thieves.
//
// An idle worker spins, yields its core, then sleeps for short times (TaskOptions::idle_sleep). If
// the memory of all workers is mapped here (shm), it finally sleeps until a peer rings
// (dtutils/doorbell.h): it arms its doorbell and its slot in the sleeper set of each of the P - 1
// peers, re-checks for public entries, and sleeps. A worker that publishes entries wakes at most
// one sleeper for each entry, and rank 0 wakes all workers when the run ends.
#include <algorithm>
#include <chrono>
#include <string>

#include "dtutils/internal/yield.h"
#include "tasks/internal/idle_policy.h"
#include "tasks/internal/worker.h"

namespace cariama::tasks {
namespace {

using std::chrono::steady_clock;

std::string count_of(size_t number, const char* what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

}  // namespace

void Worker::pause_idle(uint64_t round) const {
  idle_pause(round, static_cast<uint64_t>(options_.idle_sleep.count()) * 1000);
}

// Returns true if the worker may sleep until a peer wakes it: its peers can do so, it has no ready
// task, and it has nothing to poll itself (joiners in waiting_, on_idle_).
bool Worker::may_sleep_until_woken(uint64_t round) const {
  return round >= kWakeableSleepRounds && !peers_.empty() && options_.idle_sleep.count() != 0 &&
         ready_.empty() && waiting_.empty() && !on_idle_;
}

void Worker::arm() {
  expected_ = area_.doorbell.arm();
  for (int peer = 0; peer < access_.size(); ++peer) {
    if (peer == rank()) continue;
    WorkerArea& area = *peers_[static_cast<size_t>(peer)];
    request_before_sleep(memory_, area.public_part, area.sleepers,
                         static_cast<uint32_t>(rank()) % 64);
  }
}

// Called after arm() when the worker does not sleep any more. A peer that publishes entries then
// wakes another worker for them.
void Worker::disarm() { static_cast<void>(area_.doorbell.take()); }

bool Worker::something_is_public() const {
  return std::any_of(peers_.begin(), peers_.end(), [&](const WorkerArea* area) {
    return PublicState::decode(area->public_part.state.load(std::memory_order_acquire)).count != 0;
  });
}

void Worker::sleep_until_woken() {
  ++statistics_.wakeable_sleeps;
  area_.doorbell.wait(expected_,
                      std::min(steady_clock::now() + options_.wakeable_sleep, run_deadline_));
}

// Called when this number of entries is public. Wakes at most one worker for each entry. A woken
// worker that steals an entry publishes further ones.
void Worker::wake_sleepers(uint32_t entries) {
  // Called even if no peer can sleep: SleeperSet::armed() is a full fence between the clearing of a
  // steal request and the load in leave_run_if_failed().
  wake_for_entries(area_.sleepers, entries, [this](uint32_t slot) {
    // With more than 64 workers, several of them share a slot.
    bool woken = false;
    for (int peer = static_cast<int>(slot); peer < access_.size(); peer += 64)
      woken = ring(peer) || woken;
    return woken;
  });
}

bool Worker::ring(int peer) {
  return !peers_.empty() && peers_[static_cast<size_t>(peer)]->doorbell.ring();
}

void Worker::pause_task(uint64_t round) {
  in_other_layer_ = true;
  serve_steal_request();
  in_other_layer_ = false;
  // The wait of another layer goes on; the task is abandoned afterwards.
  if (is_late()) note_lateness();
  if (!other_tasks_may_run) return pause_idle(round);
  const uint64_t before = task_switches_;
  yield();  // returns in this process
  // If the only switch was the one back to this task, no other task has run.
  fruitless_waits_ = task_switches_ == before + 1 ? fruitless_waits_ + 1 : 0;
  if (fruitless_waits_ != 0) pause_idle(fruitless_waits_);
}

std::string Worker::describe_loss() const {
  const size_t running = (in_task_ ? 1 : 0) + forked_tasks();
  std::string text = count_of(running, "task") + " on its stack and " +
                     count_of(ready_.size() + waiting_.size(), "suspended task") +
                     " of this worker are lost";
  for (int slot = 0; slot < std::min(access_.size(), 64); ++slot) {
    const uint64_t taken = area_.taken_by[slot].load(std::memory_order_relaxed);
    if (taken == 0) continue;
    text += "; rank " + std::to_string(slot) + " stole " + count_of(taken, "task") + " from it";
  }
  return text;
}

// One round of waiting for a thief that copies frames or has the lock. The thief may have died:
// after 100 ms, and then every 100 ms, reads a word of each worker, which fails if the worker is
// dead. Leaves the run when its time has passed: the thief may be stopped.
void Worker::await_thief(uint64_t round) {
  constexpr uint64_t kSpins = 1000;
  if (round < kSpins) {
    cpu_relax();
    return;
  }
  const auto now = steady_clock::now();
  if (round == kSpins) next_liveness_check_ = now + std::chrono::milliseconds(100);
  internal::yield_core();
  if (now >= next_liveness_check_) check_peers();
  leave_run_if_late();
}

void Worker::check_peers() {
  for (int peer = 0; peer < access_.size(); ++peer) {
    must(access_.read(peer, address_of(&area_.finished), &area_.join_copy.arrivals,
                      sizeof(uint64_t)));
  }
  next_liveness_check_ = steady_clock::now() + std::chrono::milliseconds(100);
}

}  // namespace cariama::tasks
