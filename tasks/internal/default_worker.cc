#include "tasks/internal/scheduler.h"
#include "tasks/internal/steal_timer.h"
#include "tasks/internal/worker_kind.h"

namespace cariama::tasks {
namespace {

class DefaultWorker final : public Scheduler<DefaultWorker, Worker> {
 public:
  using Scheduler::Scheduler;
};

}  // namespace

const WorkerKind kDefaultWorker{uni_address_memory, create_worker<DefaultWorker>};

WorkerMemory uni_address_memory(const TaskOptions& options, int /*workers*/) {
  return {.stack_bytes = options.stack_bytes,
          .entries = whole_pages(options.stack_bytes) / (kContextBytes + sizeof(void*)) + 2};
}

}  // namespace cariama::tasks
