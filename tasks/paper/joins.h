// Completes a scheduler class template of this folder with a join policy.
#ifndef CARIAMA_TASKS_PAPER_JOINS_H_
#define CARIAMA_TASKS_PAPER_JOINS_H_

#include "tasks/internal/scheduler.h"
#include "tasks/internal/worker_kind.h"
#include "tasks/runtime.h"

namespace cariama::tasks {

// JoinPolicy::kGreedy. `Of` is a class template with the most derived class as its argument.
template <template <typename> class Of>
class Greedy final : public Of<Greedy<Of>> {
  using Base = Of<Greedy<Of>>;

 public:
  using Base::Base;
};

// JoinPolicy::kWaitQueue: every joiner waits in the queue of its worker (Akiyama and Taura). The
// product has this queue too, for joiners that must continue in their process.
template <template <typename> class Of>
class WaitQueue final : public Of<WaitQueue<Of>> {
  using Base = Of<WaitQueue<Of>>;

 public:
  using Base::Base;

  void wait_for_child(typename Base::Leaving& left) {
    left.stays = true;
    Base::wait_for_child(left);
  }
};

template <template <typename> class Of>
[[nodiscard]] WorkerKind kind_with(JoinPolicy join,
                                   WorkerMemory (*memory)(const TaskOptions&, int)) {
  if (join == JoinPolicy::kWaitQueue) return {memory, create_worker<WaitQueue<Of>>};
  return {memory, create_worker<Greedy<Of>>};
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_PAPER_JOINS_H_
