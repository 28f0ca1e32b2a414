#include "tasks/await.h"

#include <utility>

#include "tasks/internal/worker.h"
#include "tasks/pool/worker.h"

namespace cariama::tasks {

namespace {

bool in_pool_task() { return this_pool_worker != nullptr && this_pool_worker->in_task(); }

}  // namespace

OtherTasksMayRun::OtherTasksMayRun()
    : before_(!in_pool_task() &&
              std::exchange(worker_of_task("await")->other_tasks_may_run, true)) {}
OtherTasksMayRun::~OtherTasksMayRun() {
  if (!in_pool_task()) this_worker->other_tasks_may_run = before_;
}

}  // namespace cariama::tasks
