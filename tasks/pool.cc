#include "tasks/pool.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <span>
#include <thread>

#include "dsfabric/fabric.h"
#include "dsfabric/quiescence.h"
#include "dtutils/error.h"
#include "dtutils/exchange_connect.h"
#include "dtutils/wait.h"
#include "tasks/internal/atomic_server.h"
#include "tasks/internal/check_options.h"
#include "tasks/internal/queue_pair_access.h"
#include "tasks/internal/set_up.h"
#include "tasks/internal/stack_region.h"
#include "tasks/internal/victims.h"
#include "tasks/pool/cells.h"
#include "tasks/pool/worker.h"

namespace cariama {
namespace {

using tasks::PoolArea;
using tasks::PoolWorker;

// An idle worker enters the detector again after this time, to check for failed peers.
constexpr std::chrono::seconds kDetectorPatience{2};

// The properties that must be equal in all workers.
struct PoolIdentity {
  ProgramFingerprint program;
  uint64_t cells = 0;
  uint32_t steal = 0;
  uint16_t termination = 0;
  uint16_t atomics = 0;
};

// The registered memory of a pool, and the private cells behind it.
class PoolMemory {
 public:
  static absl::StatusOr<std::unique_ptr<PoolMemory>> create(size_t shared, size_t own) {
    const absl::StatusOr<int> descriptor =
        tasks::map_shared_at(tasks::kPoolAddress, shared, "the memory of the task pool");
    if (!descriptor.ok()) return descriptor.status();
    std::unique_ptr<PoolMemory> memory(new PoolMemory(*descriptor, shared, own));
    void* const wanted = reinterpret_cast<void*>(tasks::kPoolAddress + shared);
    void* const found =
        own == 0 ? wanted
                 : mmap(wanted, own, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (found == wanted) return memory;
    const int error = found == MAP_FAILED ? errno : EEXIST;
    if (found != MAP_FAILED) munmap(found, own);
    memory->own_ = 0;
    return make_errno_error(error, ErrorScope::kProcess, "cannot map the private cells of a pool",
                            "lower PoolOptions::private_cells");
  }
  ~PoolMemory() {
    munmap(begin(), shared_ + own_);
    close(descriptor_);
  }
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  [[nodiscard]] static std::byte* begin() {
    return reinterpret_cast<std::byte*>(tasks::kPoolAddress);
  }
  [[nodiscard]] MemorySource source() const { return {begin(), shared_, descriptor_, 0}; }

 private:
  PoolMemory(int descriptor, size_t shared, size_t own)
      : descriptor_(descriptor), shared_(shared), own_(own) {}
  int descriptor_;
  size_t shared_;
  size_t own_;
};

absl::Status invalid_option(const std::string& text, const char* remedy) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, text, remedy);
}

absl::Status check_options(const PoolOptions& options, int rank, int size) {
  if (options.steal != kStealHalf && (options.steal < 1 || options.steal > tasks::kMostParcels)) {
    return invalid_option("PoolOptions::steal is " + std::to_string(options.steal),
                          "choose 1 to 64, or kStealHalf");
  }
  constexpr size_t kMost = tasks::kMostPoolBytes / sizeof(pool::internal::Cell) / 4;
  if (options.cells < 2 || options.cells > kMost || options.private_cells > kMost) {
    return invalid_option("PoolOptions::cells is " + std::to_string(options.cells) +
                              ", private_cells " + std::to_string(options.private_cells),
                          "choose at least 2 cells, and at most 2^27 of each kind");
  }
  if (options.cells + options.private_cells < tasks::most_parcels(options)) {
    return invalid_option(
        "PoolOptions::cells and private_cells are together fewer than the tasks "
        "of one hand-over",
        "give the deque at least 64 cells");
  }
  return tasks::check_common_options("PoolOptions", options.victims, options.idle_sleep,
                                     options.timeout, options.run_timeout,
                                     static_cast<uint32_t>(rank), static_cast<uint32_t>(size));
}

// The stack of the main thread grows up to the limit at the time of growth, so raising the limit
// takes effect at once. (Linux keeps a gap of at least 128 MiB below it.)
void raise_stack_limit(size_t bytes) {
  if (getpid() != static_cast<pid_t>(syscall(SYS_gettid))) return;
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= bytes) return;
  limit.rlim_cur = std::min<rlim_t>(bytes, limit.rlim_max);
  static_cast<void>(setrlimit(RLIMIT_STACK, &limit));
}

}  // namespace

// The wait hook of the worker's thread during a run. In a task, a wait of another layer lets
// thieves take tasks. Outside of tasks, the worker waits in the termination detector: it searches
// for tasks meanwhile.
class PoolWaitHook final : public WaitHook {
 public:
  explicit PoolWaitHook(PoolWorker& worker) : worker_(worker) {}
  bool pause(uint64_t round) override {
    if (!worker_.may_search()) {
      worker_.pause_task(round);
    } else if (!worker_.search_and_run()) {
      worker_.pause_idle();
    }
    return false;  // the worker has slept if it found no task
  }

 private:
  PoolWorker& worker_;
};

struct TaskPool::Parts {
  Parts(Fabric& its_fabric, const PoolOptions& wanted, std::string its_name)
      : fabric(its_fabric), options(wanted), name(std::move(its_name)) {}
  ~Parts() { use.end(); }

  Fabric& fabric;
  const internal::FabricUse use{fabric, "a TaskPool"};
  const std::thread::id thread = std::this_thread::get_id();  // the worker
  PoolOptions options;
  const std::string name;  // prefix of the pool's keys in the exchange
  std::unique_ptr<PoolMemory> memory{};
  std::unique_ptr<tasks::QueuePairAccess> access{};
  std::unique_ptr<tasks::PoolUnits> units{};
  std::optional<WorkRegistration> registration{};
  std::optional<TerminationDetector> detector{};
  std::unique_ptr<PoolWorker> worker{};
  uint64_t runs = 0;

  [[nodiscard]] absl::Status wait_for_all_tasks();
  // Leaves a run that cannot be completed. Returns `status`.
  [[nodiscard]] absl::Status break_run(const absl::Status& status);
};

absl::StatusOr<std::unique_ptr<TaskPool>> TaskPool::create(Fabric& fabric,
                                                           const PoolOptions& wanted) {
  if (tasks::this_pool_worker != nullptr) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "this process already has a TaskPool", "destroy it first");
  }
  Exchange& exchange = fabric.bootstrap();
  absl::Status status = check_options(wanted, exchange.rank(), exchange.size());
  if (!status.ok()) return status;
  status = FunctionTable::build();
  if (!status.ok()) return status;
  const Deadline deadline = deadline_after(wanted.timeout);
  const auto name = tasks::agree_on_name(exchange, "pool", deadline);
  if (!name.ok()) return name.status();
  auto parts = std::make_unique<Parts>(fabric, wanted, *name);
  PoolOptions& options = parts->options;
  // Whole pages, so that the private cells can be mapped directly behind.
  constexpr size_t kCellsOfPage = tasks::kStackPage / sizeof(pool::internal::Cell);
  options.cells = (options.cells + kCellsOfPage - 1) / kCellsOfPage * kCellsOfPage;
  options.private_cells = (options.private_cells + kCellsOfPage - 1) / kCellsOfPage * kCellsOfPage;

  const PoolIdentity mine{FunctionTable::fingerprint(), options.cells, options.steal,
                          static_cast<uint16_t>(options.termination),
                          static_cast<uint16_t>(options.atomics)};
  const tasks::WorkerPlace place = tasks::this_place();
  status = put_value(exchange, *name + " identity", mine);
  if (status.ok()) status = put_value(exchange, *name + " place", place);
  if (!status.ok()) return status;
  std::vector<tasks::WorkerPlace> places;
  bool one_host = true;
  for (int peer = 0; peer < exchange.size(); ++peer) {
    const auto theirs = get_value<PoolIdentity>(exchange, peer, *name + " identity", deadline);
    if (!theirs.ok()) return theirs.status();
    const auto there = get_value<tasks::WorkerPlace>(exchange, peer, *name + " place", deadline);
    if (!there.ok()) return there.status();
    places.push_back(*there);
    one_host = one_host && there->host == place.host;
    status = FunctionTable::check(theirs->program, exchange.label(peer));
    if (!status.ok()) return status;
    if (theirs->cells != mine.cells || theirs->steal != mine.steal ||
        theirs->termination != mine.termination || theirs->atomics != mine.atomics) {
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                        "the PoolOptions of " + exchange.label(peer) + " differ",
                        "give cells, steal, termination and atomics the same values in every "
                        "process");
    }
  }
  if (options.victims.empty()) {
    options.victims = tasks::ranks_by_distance(places, exchange.rank());
  }

  std::shared_ptr<Device> device = fabric.options().device;
  if (device == nullptr) {
    absl::StatusOr<std::shared_ptr<Device>> opened = tasks::open_common_device(one_host);
    if (!opened.ok()) return opened.status();
    device = *std::move(opened);
  }
  const auto served = tasks::serves_atomics(exchange, options.atomics, *device, *name, deadline);
  if (!served.ok()) return served.status();
  const int workers = exchange.size();
  constexpr size_t kCell = sizeof(pool::internal::Cell);
  auto memory = PoolMemory::create(tasks::cells_offset(workers) + options.cells * kCell,
                                   options.private_cells * kCell);
  if (!memory.ok()) return memory.status();
  parts->memory = *std::move(memory);
  auto& area = *reinterpret_cast<PoolArea*>(PoolMemory::begin());
  area.request.store(pool::internal::kBlocked, std::memory_order_relaxed);
  const std::span<tasks::AtomicCell> atomic_cells(
      reinterpret_cast<tasks::AtomicCell*>(PoolMemory::begin() + sizeof(PoolArea)),
      *served ? static_cast<size_t>(workers) : 0);
  auto access = tasks::QueuePairAccess::connect(exchange, std::move(device),
                                                parts->memory->source(), area.access, deadline,
                                                *name, atomic_cells, fabric.options().ack_timeout);
  if (!access.ok()) return access.status();
  parts->access = *std::move(access);
  parts->units = std::make_unique<tasks::PoolUnits>(workers);
  parts->registration.emplace(fabric, *parts->units);
  if (options.termination == PoolTermination::kDetector) parts->detector.emplace(fabric);
  parts->worker = std::make_unique<PoolWorker>(options, PoolMemory::begin(), *parts->access, fabric,
                                               *parts->units);
  raise_stack_limit(options.stack_bytes);
  status = exchange.fence(deadline);
  if (!status.ok()) return status;
  return std::unique_ptr<TaskPool>(new TaskPool(std::move(parts)));
}

TaskPool::TaskPool(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

// The last run ended with a fence, so no peer accesses this worker's memory any more.
TaskPool::~TaskPool() = default;

// Blocks until all tasks of the run have ended. Runs tasks of other workers meanwhile.
absl::Status TaskPool::Parts::wait_for_all_tasks() {
  PoolWorker& own = *worker;
  if (options.termination == PoolTermination::kStatusScan) {
    own.run_until_all_idle();
    return own.broken();
  }
  own.set_idle();
  while (own.search_and_run()) {
  }
  while (own.broken().ok()) {
    const absl::Status ended =
        detector->wait(std::min(deadline_after(kDetectorPatience), own.deadline()));
    // The detector leaves dead processes out, but their tasks are lost.
    own.check_peers();
    if (!own.broken().ok()) break;
    if (ended.ok()) return ended;
    if (!absl::IsDeadlineExceeded(ended)) own.fail(ended);
  }
  return own.broken();
}

absl::Status TaskPool::Parts::break_run(const absl::Status& status) {
  worker->fail(status);
  units->balance();
  return status;
}

absl::Status TaskPool::run_first(const pool::internal::Kind& kind, std::byte* payload) {
  PoolWorker& worker = *parts_->worker;
  if (parts_->thread != std::this_thread::get_id()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "TaskPool::run() in a thread that has not created the pool",
                      "call run() in the thread that called create(): it is the worker");
  }
  if (worker.in_task()) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "TaskPool::run() in a task", "use pool::call() or pool::spawn()");
  }
  if (!worker.broken().ok()) return worker.broken();
  Exchange& exchange = parts_->fabric.bootstrap();
  // Two keys in turn. When rank 0 stores the result of run n, all workers have entered the fence of
  // run n - 1. So they have read the result of run n - 2, whose key is used again.
  const std::string key = parts_->name + " result " + std::to_string(++parts_->runs % 2);
  const uint32_t id = kind.registration->id.load(std::memory_order_relaxed);
  const std::string function(reinterpret_cast<const char*>(&id), sizeof id);
  const bool first = rank() == 0;
  PoolWaitHook hook(worker);
  std::string text;
  worker.begin_time_limit();
  worker.enter(first ? tasks::kWorking : tasks::kIdle);
  absl::Status status;
  if (parts_->options.termination == PoolTermination::kStatusScan) {
    // No worker may scan before rank 0 is WORKING.
    status = exchange.fence(deadline_after(parts_->options.timeout));
  }
  if (status.ok()) {
    const ScopedWaitHook scoped(hook);
    if (first) {
      const PoolWorker::FirstResult ended = worker.run_first(kind, payload);
      // The id of the function. Then 'x' if the root task threw, else 'v'.
      text = function + (ended.failure.empty() ? "v" : "x" + ended.failure);
      if (ended.failure.empty()) {
        text.append(reinterpret_cast<const char*>(payload), kind.result_bytes);
      }
      status = worker.broken();
      if (status.ok()) status = exchange.put(key, text);
    }
    if (status.ok()) status = parts_->wait_for_all_tasks();
  }
  worker.leave();
  if (!status.ok()) return parts_->break_run(status);
  const Deadline deadline = deadline_after(parts_->options.timeout);
  status = exchange.fence(deadline);
  if (absl::IsDeadlineExceeded(status)) {
    status = make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        "not every process called TaskPool::run(), or one is late by more than "
                        "PoolOptions::timeout: " +
                            std::string(status.message()));
  }
  if (status.ok() && !first) {
    absl::StatusOr<std::string> result = exchange.get(0, key, deadline);
    status = result.status();
    if (result.ok()) text = *std::move(result);
  }
  if (!status.ok()) return parts_->break_run(status);
  if (!text.starts_with(function)) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      exchange.label(0) + " ran another function",
                      "call TaskPool::run() with the same function in every process");
  }
  text.erase(0, function.size());
  if (!text.empty() && text[0] == 'x') {
    return make_error(absl::StatusCode::kAborted, ErrorScope::kOperation,
                      "the root task threw: " + text.substr(1));
  }
  if (text.size() != 1 + kind.result_bytes) {
    return parts_->break_run(make_error(absl::StatusCode::kInternal, ErrorScope::kPeer,
                                        "the result of the root task has " +
                                            std::to_string(text.size() - 1) + " bytes, not " +
                                            std::to_string(kind.result_bytes),
                                        "call run() with the same function in every process"));
  }
  std::copy_n(reinterpret_cast<const std::byte*>(text.data() + 1), kind.result_bytes, payload);
  return absl::OkStatus();
}

Rank TaskPool::rank() const { return static_cast<uint32_t>(parts_->access->rank()); }
int TaskPool::size() const { return parts_->access->size(); }
PoolStatistics TaskPool::statistics() const { return parts_->worker->statistics(); }
void TaskPool::reset_statistics() { parts_->worker->reset_statistics(); }
std::vector<PoolAttempt> TaskPool::take_attempts() { return parts_->worker->take_attempts(); }

}  // namespace cariama
