#include "tasks/runtime.h"

#include <optional>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/exchange_connect.h"
#include "tasks/identity.h"
#include "tasks/queue_pair_access.h"
#include "tasks/scheduler.h"
#include "tasks/stack_region.h"

namespace cariama {

using tasks::Worker;

struct TaskRuntime::Parts {
  Exchange& exchange;
  TaskOptions options;
  std::unique_ptr<tasks::StackRegion> region;
  std::unique_ptr<tasks::QueuePairAccess> access;
  std::unique_ptr<Worker> worker;
  uint64_t runs = 0;
};

absl::StatusOr<std::unique_ptr<TaskRuntime>> TaskRuntime::create(Exchange& exchange,
                                                                 const TaskOptions& options,
                                                                 std::shared_ptr<Device> device) {
  if (tasks::this_worker != nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "this process has a TaskRuntime", "destroy it first");
  }
  const Deadline deadline = deadline_after(options.timeout);
  const tasks::Identity mine = tasks::this_identity(options.stack_bytes);
  absl::Status status = put_value(exchange, "tasks identity", mine);
  if (!status.ok()) return status;
  for (int peer = 0; peer < exchange.size(); ++peer) {
    const auto theirs = get_value<tasks::Identity>(exchange, peer, "tasks identity", deadline);
    if (!theirs.ok()) return theirs.status();
    const std::string difference = tasks::difference(mine, *theirs);
    if (difference.empty()) continue;
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "tasks cannot migrate to " + exchange.label(peer) + ": " + difference);
  }

  if (device == nullptr) {
    absl::StatusOr<std::shared_ptr<Device>> opened = open_device({.transport = Transport::kShm});
    if (!opened.ok()) return opened.status();
    device = *std::move(opened);
  }
  auto parts = std::make_unique<Parts>(Parts{exchange, options, nullptr, nullptr, nullptr});
  auto region =
      tasks::StackRegion::create(options.stack_bytes, Worker::tail_bytes(options.stack_bytes));
  if (!region.ok()) return region.status();
  parts->region = *std::move(region);
  auto access =
      tasks::QueuePairAccess::connect(exchange, std::move(device), parts->region->source(),
                                      Worker::area_of(*parts->region).access, deadline);
  if (!access.ok()) return access.status();
  parts->access = *std::move(access);
  parts->worker = std::make_unique<Worker>(options, *parts->region, *parts->access);
  status = exchange.fence(deadline);
  if (!status.ok()) return status;
  return std::unique_ptr<TaskRuntime>(new TaskRuntime(std::move(parts)));
}

TaskRuntime::TaskRuntime(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

// The last run ended with a fence, so nobody looks at this worker's memory any more.
TaskRuntime::~TaskRuntime() = default;

absl::StatusOr<std::string> TaskRuntime::run_bytes(tasks::ChildFunction root, uint64_t first,
                                                   uint64_t second) {
  const std::string key = "tasks result " + std::to_string(++parts_->runs);
  std::string text;
  if (rank() == 0) {
    const absl::StatusOr<Worker::RootResult> result = parts_->worker->run_root(root, first, second);
    if (!result.ok()) return result.status();
    // The first byte: whether it threw.
    text = result->exception.has_value() ? "x" + *result->exception : "v";
    if (!result->exception.has_value()) {
      text.append(reinterpret_cast<const char*>(result->bytes.data()), result->bytes.size());
    }
    const absl::Status status = parts_->exchange.put(key, text);
    if (!status.ok()) return status;
  } else {
    parts_->worker->run_until_finished();
  }
  const Deadline deadline = deadline_after(parts_->options.timeout);
  const absl::Status status = parts_->exchange.fence(deadline);
  if (!status.ok()) return status;
  if (rank() != 0) {
    absl::StatusOr<std::string> result = parts_->exchange.get(0, key, deadline);
    if (!result.ok()) return result.status();
    text = *std::move(result);
  }
  if (text[0] == 'x') {
    return make_error(absl::StatusCode::kAborted, ErrorScope::kOperation,
                      "the first task threw: " + text.substr(1));
  }
  return text.substr(1);
}

int TaskRuntime::rank() const { return parts_->exchange.rank(); }
int TaskRuntime::size() const { return parts_->exchange.size(); }
TaskStatistics TaskRuntime::statistics() const { return parts_->worker->statistics(); }
void TaskRuntime::reset_statistics() { parts_->worker->reset_statistics(); }

}  // namespace cariama
