#include "tasks/await.h"

#include <utility>

#include "tasks/internal/scheduler.h"

namespace cariama::tasks {

LetsOthersRun::LetsOthersRun()
    : before_(std::exchange(worker_of_task("await")->lets_others_run, true)) {}
LetsOthersRun::~LetsOthersRun() { this_worker->lets_others_run = before_; }

}  // namespace cariama::tasks
