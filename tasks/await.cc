#include "tasks/await.h"

#include <utility>

#include "tasks/internal/scheduler.h"

namespace cariama::tasks {

OtherTasksMayRun::OtherTasksMayRun()
    : before_(std::exchange(worker_of_task("await")->other_tasks_may_run, true)) {}
OtherTasksMayRun::~OtherTasksMayRun() { this_worker->other_tasks_may_run = before_; }

}  // namespace cariama::tasks
