#include "tasks/internal/simulation/machine.h"

#include "tasks/internal/idle_policy.h"

namespace cariama::tasks {
namespace {

// Times in picoseconds of a round of spinning, and of yielding the core.
constexpr int64_t kSpin = 250'000;
constexpr int64_t kYield = 500'000;

}  // namespace

void SimulatedMachine::sleep(int64_t time) {
  run_at(own_time() + time);
  ahead_ = 0;
  fiber_.suspend();
}

void SimulatedMachine::run_at(int64_t time) {
  next_run_ = time;
  cluster_.events().push(time, EventQueue::Kind::kRun, static_cast<uint32_t>(rank_));
}

void SimulatedMachine::answer(int64_t latency) {
  if (!seeks_) return run_at(cluster_.events().now() + latency);
  ahead_ = latency;
  switch_to();
}

void SimulatedMachine::on_write(const void* address) {
  if (polled_ == nullptr || polled_ != address) return;
  const int64_t now = cluster_.events().now();
  if (now < stopped_from || now >= stopped_until) run_at(now);
}

int64_t SimulatedMachine::pause_time(uint64_t round) const {
  if (round < kSpinRounds) return kSpin;
  if (round < kYieldRounds) return kYield;
  const auto most = static_cast<uint64_t>(cluster_.options().idle_sleep.count()) * 1000;
  return static_cast<int64_t>(idle_sleep_ns(round, most)) * 1000;
}

}  // namespace cariama::tasks
