#include "tasks/runtime.h"

#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/fabric.h"
#include "dtutils/error.h"
#include "dtutils/exchange_connect.h"
#include "dtutils/wait.h"
#include "tasks/internal/check_options.h"
#include "tasks/internal/identity.h"
#include "tasks/internal/pinned_area.h"
#include "tasks/internal/queue_pair_access.h"
#include "tasks/internal/set_up.h"
#include "tasks/internal/stack_region.h"
#include "tasks/internal/victims.h"
#include "tasks/internal/worker.h"
#include "tasks/internal/worker_kind.h"

namespace cariama {

using tasks::Worker;

namespace {

// The wait hook of the worker's thread while a run is active. It handles waits of other layers.
class TaskWaitHook final : public WaitHook {
 public:
  explicit TaskWaitHook(WaitHook& outside) : outside_(outside) {}
  bool pause(uint64_t round) override {
    if (tasks::this_worker == nullptr || !tasks::this_worker->in_task()) {
      return outside_.pause(round);
    }
    tasks::this_worker->pause_task(round);
    return false;  // pause_task() has slept if there was no other task
  }

 private:
  WaitHook& outside_;
};

// Sets `flag` while it exists.
class Running {
 public:
  explicit Running(bool& flag) : flag_(flag) { flag_ = true; }
  ~Running() { flag_ = false; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  bool& flag_;
};

}  // namespace

struct TaskRuntime::Parts {
  Exchange& exchange;
  TaskOptions options;
  std::string name;  // prefix of the runtime's keys in the exchange
  std::unique_ptr<tasks::StackRegion> region;
  std::unique_ptr<tasks::QueuePairAccess> access;
  std::unique_ptr<Worker> worker;
  uint64_t runs = 0;
  bool running = false;   // run() is active
  absl::Status broken{};  // the first error of a run, other than an exception of its tasks
  TaskWaitHook hook{this_thread_wait_hook()};
};

absl::StatusOr<std::unique_ptr<TaskRuntime>> TaskRuntime::create(Exchange& exchange,
                                                                 const TaskOptions& options,
                                                                 std::shared_ptr<Device> device) {
  return create(exchange, options, std::move(device), ConnectOptions().ack_timeout);
}

absl::StatusOr<std::unique_ptr<TaskRuntime>> TaskRuntime::create(
    Exchange& exchange, const TaskOptions& options, std::shared_ptr<Device> device,
    std::chrono::microseconds ack_timeout) {
  if (tasks::this_worker != nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "this process already has a TaskRuntime", "destroy it first");
  }
  if (options.pinned_bytes < tasks::kFirstSegmentBytes) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "TaskOptions::pinned_bytes is " + std::to_string(options.pinned_bytes),
                      "choose at least " + std::to_string(tasks::kFirstSegmentBytes) +
                          " (256 KiB), the size of the first segment");
  }
  if (options.stack_bytes == 0 || options.stack_bytes > tasks::kMostStackBytes) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "TaskOptions::stack_bytes is " + std::to_string(options.stack_bytes),
                      "choose 1 to " + std::to_string(tasks::kMostStackBytes));
  }
  if (options.wakeable_sleep < std::chrono::milliseconds::zero() ||
      options.wakeable_sleep > std::chrono::hours(24)) {
    return make_error(
        absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
        "TaskOptions::wakeable_sleep is " + std::to_string(options.wakeable_sleep.count()) + " ms",
        "choose 0 to 24 hours");
  }
  const auto kind = tasks::worker_kind(options);
  if (!kind.ok()) return kind.status();
  if (absl::Status valid = tasks::check_common_options(
          "TaskOptions", options.victims, options.idle_sleep, options.timeout, options.run_timeout,
          static_cast<uint32_t>(exchange.rank()), static_cast<uint32_t>(exchange.size()));
      !valid.ok()) {
    return valid;
  }
  absl::Status status = tasks::check_shadow_stack(tasks::shadow_stack_features());
  if (!status.ok()) return status;
  const Deadline deadline = deadline_after(options.timeout);
  const auto name = tasks::agree_on_name(exchange, "tasks", deadline);
  if (!name.ok()) return name.status();
  const tasks::Identity mine = tasks::this_identity(options);
  const tasks::WorkerPlace place = tasks::this_place();
  std::vector<tasks::WorkerPlace> places;
  bool one_host = true;
  uint64_t canary = 0;
  status = put_value(exchange, *name + " identity", mine);
  if (status.ok()) status = put_value(exchange, *name + " place", place);
  if (!status.ok()) return status;
  for (int peer = 0; peer < exchange.size(); ++peer) {
    const auto theirs = get_value<tasks::Identity>(exchange, peer, *name + " identity", deadline);
    if (!theirs.ok()) return theirs.status();
    const auto there = get_value<tasks::WorkerPlace>(exchange, peer, *name + " place", deadline);
    if (!there.ok()) return there.status();
    places.push_back(*there);
    one_host = one_host && there->host == place.host;
    if (peer == 0) canary = theirs->canary;
    const std::string difference = tasks::difference(mine, *theirs);
    if (difference.empty()) continue;
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "tasks cannot migrate to " + exchange.label(peer) + ": " + difference);
  }

  if (device == nullptr) {
    absl::StatusOr<std::shared_ptr<Device>> opened = tasks::open_common_device(one_host);
    if (!opened.ok()) return opened.status();
    device = *std::move(opened);
  }
  const auto served = tasks::serves_atomics(exchange, options.atomics, *device, *name, deadline);
  if (!served.ok()) return served.status();
  auto parts = std::make_unique<Parts>(Parts{exchange, options, *name, {}, {}, {}});
  if (options.victims.empty()) {
    parts->options.victims = tasks::ranks_by_distance(places, exchange.rank());
  }
  const tasks::WorkerMemory memory = kind->memory(options, exchange.size());
  auto region = tasks::StackRegion::create(memory.stack_bytes, memory.tail_bytes(exchange.size()));
  if (!region.ok()) return region.status();
  parts->region = *std::move(region);
  auto access = tasks::QueuePairAccess::connect(
      exchange, std::move(device), parts->region->source(), Worker::area_of(*parts->region).access,
      deadline, *name,
      *served ? Worker::atomic_cells(*parts->region, exchange.size())
              : std::span<tasks::AtomicCell>(),
      ack_timeout);
  if (!access.ok()) return access.status();
  parts->access = *std::move(access);
  auto worker = kind->create(parts->options, memory, *parts->region, *parts->access, canary);
  if (!worker.ok()) return worker.status();
  parts->worker = *std::move(worker);
  status = exchange.fence(deadline);
  if (!status.ok()) return status;
  return std::unique_ptr<TaskRuntime>(new TaskRuntime(std::move(parts)));
}

absl::StatusOr<std::unique_ptr<TaskRuntime>> TaskRuntime::create(Fabric& fabric,
                                                                 const TaskOptions& options) {
  TaskOptions of_fabric = options;
  if (!options.on_failure.has_value()) of_fabric.on_failure = fabric.options().on_failure;
  auto runtime =
      create(fabric.bootstrap(), of_fabric, fabric.options().device, fabric.options().ack_timeout);
  if (!runtime.ok()) return runtime;
  (*runtime)->parts_->worker->on_idle([&fabric] { fabric.process_calls(); });
  return runtime;
}

TaskRuntime::TaskRuntime(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

// The last run ended with a fence, so no peer accesses this worker's memory any more.
TaskRuntime::~TaskRuntime() = default;

absl::StatusOr<std::string> TaskRuntime::run_bytes(tasks::ChildFunction root, uint64_t first,
                                                   uint64_t second) {
  // A second run would put its root task onto the frames of the caller, or into the loop of the
  // scheduler that called the caller.
  if (parts_->running) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "TaskRuntime::run() in a task, or in a call that arrived during a run",
                      "use spawn()");
  }
  if (!parts_->broken.ok()) return parts_->broken;
  const Running running(parts_->running);
  const auto breaks = [this](const absl::Status& status) { return parts_->broken = status; };
  // Two keys in turn. When rank 0 stores the result of run n, all workers have entered the fence of
  // run n - 1. So they have read the result of run n - 2, whose key is used again. After a fence
  // that failed this does not hold.
  const std::string key = parts_->name + " result " + std::to_string(++parts_->runs % 2);
  std::string text;
  const ScopedWaitHook hook(parts_->hook);
  if (rank() == 0) {
    const absl::StatusOr<Worker::RootResult> result = parts_->worker->run_root(root, first, second);
    if (!result.ok()) return breaks(result.status());
    // The address of root, which is equal in all workers. Then 'x' if root threw, else 'v'.
    text.assign(reinterpret_cast<const char*>(&root), sizeof root);
    text += result->exception.has_value() ? "x" + *result->exception : "v";
    if (!result->exception.has_value()) {
      text.append(reinterpret_cast<const char*>(result->bytes.data()), result->bytes.size());
    }
    const absl::Status status = parts_->exchange.put(key, text);
    if (!status.ok()) return breaks(status);
  } else {
    const absl::Status status = parts_->worker->run_until_finished();
    if (!status.ok()) return breaks(status);
  }
  const Deadline deadline = deadline_after(parts_->options.timeout);
  if (const absl::Status status = parts_->exchange.fence(deadline); !status.ok()) {
    // A worker that has left the run because of a failure does not come to the fence.
    const absl::Status failure = parts_->worker->failure();
    return breaks(failure.ok() ? status : failure);
  }
  if (rank() != 0) {
    absl::StatusOr<std::string> result = parts_->exchange.get(0, key, deadline);
    if (!result.ok()) return breaks(result.status());
    text = *std::move(result);
  }
  if (std::memcmp(text.data(), &root, sizeof root) != 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      parts_->exchange.label(0) + " ran another function",
                      "call TaskRuntime::run() with the same function in every worker");
  }
  const char form = text[sizeof root];
  text.erase(0, sizeof root + 1);
  if (form == 'x') {
    return make_error(absl::StatusCode::kAborted, ErrorScope::kOperation,
                      "the root task threw: " + text);
  }
  return text;
}

Rank TaskRuntime::rank() const { return static_cast<uint32_t>(parts_->exchange.rank()); }
int TaskRuntime::size() const { return parts_->exchange.size(); }
TaskStatistics TaskRuntime::statistics() const { return parts_->worker->statistics(); }
bool parent_is_stolen() { return tasks::worker_of_task("parent_is_stolen")->all_entries_stolen(); }
uint64_t tasks_stolen_from_here() {
  return tasks::worker_of_task("tasks_stolen_from_here")->stolen_entries();
}
void TaskRuntime::reset_statistics() { parts_->worker->reset_statistics(); }

}  // namespace cariama
