#include "bench/support/task_workers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "bench/support/job.h"
#include "dsfabric/bootstrap.h"
#include "dtutils/wait.h"
#include "tasks/start.h"

namespace cariama::bench {
namespace {

constexpr auto kLong = std::chrono::minutes(30);
constexpr size_t kMostResult = size_t{4} << 20;

// Lies in memory that the forked workers share with this process.
struct Result {
  uint64_t length;
  char bytes[kMostResult];
};

}  // namespace

TaskWorkers::TaskWorkers(int workers, char* const* argv) : size_(workers) {
  if (take(find_bootstrap()) == BootstrapKind::kSingle) return;
  take(execute_unrandomised(argv));
  job_ = take(Fabric::create({.on_failure = FailurePolicy::kAbort}));
  thread_ = take(job_->init_thread(0));
  size_ = static_cast<int>(job_->size());
}

TaskWorkers::~TaskWorkers() {
  if (job_ == nullptr) return;
  take(job_->bootstrap().fence(deadline_after(kLong)));
  thread_.reset();
  take(job_->finalize(deadline_after(kLong)));
}

bool TaskWorkers::reports() const { return job_ == nullptr || job_->rank() == 0; }

std::string TaskWorkers::run(int workers, const TaskOptions& options, const Body& body) {
  const auto work = [&](Exchange& exchange) {
    const auto runtime = take(TaskRuntime::create(exchange, options));
    return body(*runtime, exchange);
  };
  if (job_ == nullptr) return run_forked(workers, false, work);
  std::string result;
  take(job_->bootstrap().fence(deadline_after(kLong)));
  if (workers == size_) {
    pin(job_->rank(), job_->size(), 0, 1);
    result = work(job_->bootstrap());
  } else if (job_->rank() == 0) {
    const auto alone = take(make_bootstrap({.kind = BootstrapKind::kSingle}));
    result = work(*alone);
  }
  take(job_->bootstrap().fence(deadline_after(kLong)));
  return result;
}

std::string TaskWorkers::run_on_fabric(int workers, const TaskOptions& options,
                                       const FabricBody& body) {
  return run_without_runtime(workers, [&](Fabric& fabric) {
    const auto runtime = take(TaskRuntime::create(fabric, options));
    return body(*runtime, fabric);
  });
}

std::string TaskWorkers::run_without_runtime(int workers, const PlainBody& body) {
  if (job_ != nullptr) return body(*job_);
  return run_forked(workers, true, [&](Exchange&) {
    const auto fabric = take(Fabric::create({.on_failure = FailurePolicy::kAbort}));
    auto thread = take(fabric->init_thread(0));
    std::string result = body(*fabric);
    thread.reset();
    take(fabric->finalize(deadline_after(kLong)));
    return result;
  });
}

std::string TaskWorkers::run_forked(int workers, bool fabric,
                                    const std::function<std::string(Exchange&)>& work) {
  void* const memory =
      mmap(nullptr, sizeof(Result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("bench_tasks", absl::ResourceExhaustedError("no memory"));
  auto* const result = static_cast<Result*>(memory);
  const auto worker = [&](Exchange& exchange) {
    pin(static_cast<uint32_t>(exchange.rank()), static_cast<uint32_t>(workers), 0, 1);
    const std::string bytes = work(exchange);
    if (exchange.rank() == 0 && bytes.size() <= kMostResult) {
      result->length = bytes.size();
      std::memcpy(result->bytes, bytes.data(), bytes.size());
    }
    return 0;
  };
  take(fabric ? run_job(workers, worker) : run_processes(workers, worker, {.timeout = kLong}));
  std::string bytes(result->bytes, result->length);
  munmap(memory, sizeof(Result));
  return bytes;
}

}  // namespace cariama::bench
