// What a worker does while it has nothing to do, and what wakes it.
//
// It spins, yields its core, then sleeps. Where all workers can reach each other in memory (shm) it
// sleeps until it is woken: it announces itself to each of the P - 1 others, looks once more, and
// sleeps; who makes entries public, or ends the run, wakes as many as there is work for. No wake-up
// is lost: announcing and looking who has announced itself are read-modify-writes of one word
// (WorkerArea::sleepers), so one comes first. If the announcement does, it is seen; if not, what
// was made public before is seen by the sleeper's second look. Elsewhere (verbs) it sleeps for a
// short time and looks again: TaskOptions::idle_sleep.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "tasks/internal/idle_policy.h"
#include "tasks/internal/scheduler.h"

namespace cariama::tasks {
namespace {

using std::chrono::steady_clock;

uint64_t address_of(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::string count_of(size_t number, const char* what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

}  // namespace

void Worker::pause_idle(uint64_t round) const {
  if (round < kSpinRounds) {
    for (int i = 0; i < kSpinPauses; ++i) cpu_relax();
    return;
  }
  if (round < kYieldRounds) {
    sched_yield();
    return;
  }
  const uint64_t most = static_cast<uint64_t>(options_.idle_sleep.count()) * 1000;
  const timespec time{0, static_cast<long>(idle_sleep_ns(round, most))};
  nanosleep(&time, nullptr);
}

// Not while tasks wait whose end nobody announces here, or the owner of the process wants to look.
bool Worker::may_doze(uint64_t round) const {
  return round >= kDozeRounds && options_.deque == DequeKind::kSplit && !peers_.empty() &&
         options_.idle_sleep.count() != 0 && ready_.empty() && waiting_.empty() && !on_idle_;
}

void Worker::announce_doze() {
  doze_ticket_ = area_.doze.announce();
  const uint64_t bit = uint64_t{1} << (rank() % 64);
  for (int peer = 0; peer < access_.size(); ++peer) {
    if (peer == rank()) continue;
    WorkerArea& area = *peers_[static_cast<size_t>(peer)];
    if (area.shelf.attention.load(std::memory_order_relaxed) != kHungry) {
      area.shelf.attention.store(kHungry, std::memory_order_relaxed);
    }
    area.sleepers.fetch_or(bit, std::memory_order_acq_rel);
  }
}

bool Worker::something_is_public() const {
  return std::any_of(peers_.begin(), peers_.end(), [&](const WorkerArea* area) {
    return ShelfState::decode(area->shelf.state.load(std::memory_order_acquire)).count != 0;
  });
}

void Worker::doze() {
  ++statistics_.dozes;
  area_.doze.sleep(doze_ticket_, steady_clock::now() + options_.doze);
}

// After a publication. Wakes at most one for each entry: who finds some makes more public.
void Worker::wake_sleepers(uint32_t most) {
  if (peers_.empty()) return;
  uint64_t sleeping = area_.sleepers.fetch_add(0, std::memory_order_acq_rel);
  for (; sleeping != 0 && most > 0; --most) {
    const int slot = __builtin_ctzll(sleeping);
    const uint64_t bit = uint64_t{1} << slot;
    sleeping &= ~bit;
    area_.sleepers.fetch_and(~bit, std::memory_order_acq_rel);
    // More than one has the slot where there are more than 64.
    for (int peer = slot; peer < access_.size(); peer += 64) wake_peer(peer);
  }
}

void Worker::wake_peer(int peer) {
  if (!peers_.empty()) peers_[static_cast<size_t>(peer)]->doze.wake();
}

void Worker::pause_task(uint64_t round) {
  // Whoever wants something may have it meanwhile.
  attend();
  if (!lets_others_run) return pause_idle(round);
  const uint64_t before = stretches_;
  yield();  // comes back to this process
  // One stretch is the task's own.
  lonely_ = stretches_ == before + 1 ? lonely_ + 1 : 0;
  if (lonely_ != 0) pause_idle(lonely_);
}

std::string Worker::what_is_lost() const {
  const size_t running = (in_task_ ? depth() : 0) + parents_.size();
  std::string text = count_of(running, "task") + " on its stack and " +
                     count_of(ready_.size() + waiting_.size(), "suspended task") +
                     " of this worker are lost";
  for (int slot = 0; slot < std::min(access_.size(), 64); ++slot) {
    const uint64_t taken = area_.taken_by[slot].load(std::memory_order_relaxed);
    if (taken == 0) continue;
    text += ", and what rank " + std::to_string(slot) + " has of the " + count_of(taken, "task") +
            " that it took from here";
  }
  return text;
}

// The region is empty: what was taken from it must have arrived before something else comes in.
void Worker::settle() {
  if (options_.deque == DequeKind::kThe) {
    cariama_fork_state.floor =
        entries_ + 1 + the_.reset([this](uint64_t round) { await_thief(round); });
  }
  const auto taken = static_cast<size_t>(cariama_fork_state.floor - (entries_ + 1));
  cariama_fork_state.top = cariama_fork_state.floor = entries_ + 1;
  if (taken == 0) return;
  std::fill(reports_ + 1, reports_ + 1 + taken, 0);
  taken_ += taken;
  statistics_.stolen_from += taken;
  for (uint64_t round = 0; !shelf_.all_copied(taken_); ++round) await_thief(round);
}

// A thief is copying; it may be dead, which reading from it tells.
void Worker::await_thief(uint64_t round) {
  constexpr uint64_t kSpins = 1000;
  if (round < kSpins) {
    cpu_relax();
    return;
  }
  const auto now = steady_clock::now();
  if (round == kSpins) next_look_ = now + std::chrono::milliseconds(100);
  sched_yield();
  if (now < next_look_) return;
  for (int peer = 0; peer < access_.size(); ++peer) {
    must(access_.read(peer, address_of(&area_.finished), &area_.join_copy.arrivals,
                      sizeof(uint64_t)));
  }
  next_look_ = now + std::chrono::milliseconds(100);
}

}  // namespace cariama::tasks
