#include "tasks/internal/simulation/pool_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tasks/internal/victims.h"
#include "tasks/pool/protocol_impl.h"

namespace cariama::tasks {
namespace {

// The most stack between two tasks that nest: the frames of a task and of the protocol.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackOfTask = size_t{32} << 10;
#else
constexpr size_t kStackOfTask = size_t{8} << 10;
#endif

}  // namespace

template class PoolProtocol<SimulatedPoolWorker>;

SimulatedPoolWorker::SimulatedPoolWorker(SimulatedPool& pool, Cluster& cluster, int rank)
    : SimulatedMachine(cluster, rank, pool.own_atomic),
      PoolProtocol(pool.options, pool.memory + static_cast<size_t>(rank) * pool.stride,
                   SimulatedMachine::access_,
                   Victims::in_blocks(rank, cluster.options().workers, cluster.options().blocks,
                                      VictimOrder::kByDistance, cluster.options().seed)),
      pool_(pool),
      own_deque_(unused_deque()) {
  // No worker may scan before rank 0 is WORKING.
  area_.status.store(rank == 0 ? kWorking : kIdle, std::memory_order_relaxed);
}

void SimulatedPoolWorker::switch_to() {
  std::swap(pool::internal::deque, own_deque_);
  this_pool_worker = this;
  SimulatedMachine::switch_to();
  this_pool_worker = nullptr;
  std::swap(pool::internal::deque, own_deque_);
}

// Corresponds to TaskPool::run().
void SimulatedPoolWorker::main() {
  least_frame_ =
      reinterpret_cast<uint64_t>(__builtin_frame_address(0)) - pool_.stack_bytes + kStackOfTask;
  const bool is_first = rank_ == 0;
  enter(is_first ? kWorking : kIdle);
  if (is_first) {
    alignas(64) std::byte payload[pool::kPayloadBytes] = {};
    const SimulatedFrame root = cluster_.program().root();
    std::memcpy(payload, &root, sizeof root);
    const FirstResult ended = run_first(pool::internal::kKind<&run>, payload);
    // The exception of a broken run has no text: the cause is in broken().
    if (!ended.failure.empty()) {
      cluster_.violated("the root task failed: " +
                        (broken().ok() ? ended.failure : std::string(broken().message())));
    }
    std::memcpy(static_cast<void*>(&pool_.root_count), payload, sizeof pool_.root_count);
    pool_.root_ended = true;
    pool_.root_end = own_time();
  }
  run_until_all_idle();
  leave();
  if (!broken().ok()) cluster_.violated(std::string(broken().message()));
  ++pool_.left;
  pool_.last_left = std::max(pool_.last_left, own_time());
  sleep_for_ever();
}

void SimulatedPoolWorker::give_up(const char* violation) {
  cluster_.violated(violation);
  for (;;) sleep_for_ever();
}

SimulatedCount SimulatedPoolWorker::run(SimulatedFrame task) {
  return static_cast<SimulatedPoolWorker*>(this_pool_worker)->run_steps(task);
}

SimulatedCount SimulatedPoolWorker::run_steps(SimulatedFrame task) {
  if (reinterpret_cast<uint64_t>(__builtin_frame_address(0)) < least_frame_) {
    give_up("a worker's stack is full: raise PoolSimulationOptions::stack_bytes");
  }
  pool::Children<&run> children;
  SimulatedCount count;
  for (;;) {
    SimulatedStep step;
    cluster_.program().step(task, step);
    count.add(step.count);
    pool::communicate();  // as call()
    compute(step.cost, step.polls, &area_.request, [] { pool::communicate(); });
    if (step.kind == SimulatedStep::Kind::kFork) {
      if (pool::internal::deque.head == pool::internal::deque.limit) {
        give_up("a worker's deque is full: raise PoolSimulationOptions::private_cells");
      }
      children.spawn(step.child);
      continue;
    }
    while (!children.empty()) count.add(children.sync());
    if (step.kind == SimulatedStep::Kind::kEnd) return count;
  }
}

}  // namespace cariama::tasks
