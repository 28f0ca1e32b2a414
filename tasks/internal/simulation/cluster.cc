#include "tasks/internal/simulation/cluster.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "dtutils/error.h"
#include "tasks/internal/simulation/machine.h"

namespace cariama::tasks {
namespace {

// Address space for blocks. Pages are allocated when they are first touched.
constexpr size_t kHeapBytes = size_t{32} << 30;

std::byte* map(void* address, size_t bytes) {
  const int flags =
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (address == nullptr ? 0 : MAP_FIXED_NOREPLACE);
  void* const memory = mmap(address, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

Cluster::Cluster(const SimulatedProgram& program, const SimulationOptions& options)
    : program_(program), options_(options), events_(options.seed), random_(mixed(~options.seed)) {}

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::create(const SimulatedProgram& program,
                                                         const SimulationOptions& options,
                                                         size_t stack_bytes,
                                                         const MakeMachine& make) {
  const auto invalid = [](const char* what) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what);
  };
  if (options.workers < 1 || options.workers >= 1 << 26) {
    return invalid("SimulationOptions::workers is from 1 to 2^26 - 1");
  }
  for (size_t i = 0; i < options.blocks.size(); ++i) {
    if (options.blocks[i] < 1 || (i > 0 && options.blocks[i] % options.blocks[i - 1] != 0)) {
      return invalid("SimulationOptions::blocks: each is a multiple of the one before");
    }
  }
  if (options.frame_bytes == 0 || options.gigabytes_per_second <= 0) {
    return invalid("SimulationOptions::frame_bytes and gigabytes_per_second are more than 0");
  }
  std::unique_ptr<Cluster> cluster(new Cluster(program, options));
  const auto workers = static_cast<size_t>(options.workers);
  // At the address of real pinned areas, because a Reference contains the distance from this
  // address.
  cluster->heap_ = map(reinterpret_cast<void*>(kPinnedAddress), kHeapBytes);
  if (cluster->heap_ != reinterpret_cast<std::byte*>(kPinnedAddress)) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      "a simulation needs the addresses of the pinned area",
                      "destroy this process's TaskRuntime first");
  }
  // Leave the first block unused: a Reference cannot name a record at the first byte.
  cluster->heap_used_ = sizeof(SimulatedBlock);
  cluster->stacks_bytes_ = workers * stack_bytes;
  cluster->stacks_ = map(nullptr, cluster->stacks_bytes_);
  if (cluster->stacks_ == nullptr) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      "no address space for the stacks of simulated workers",
                      "lower SimulationOptions::workers");
  }
  cluster->ports_.resize((workers - 1) / static_cast<size_t>(options.blocks.back()) + 1);
  for (int rank = 0; rank < options.workers; ++rank) {
    cluster->machines_.push_back(make(*cluster, rank));
    cluster->machines_.back()->start(cluster->stacks_ + static_cast<size_t>(rank) * stack_bytes,
                                     stack_bytes);
  }
  return cluster;
}

Cluster::~Cluster() {
  machines_.clear();
  if (heap_ != nullptr) {
    for (size_t at = sizeof(SimulatedBlock); at < heap_used_; at += sizeof(SimulatedBlock)) {
      reinterpret_cast<SimulatedBlock*>(heap_ + at)->~SimulatedBlock();
    }
    munmap(heap_, kHeapBytes);
  }
  if (stacks_ != nullptr) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stacks_, stacks_bytes_);
#endif
    munmap(stacks_, stacks_bytes_);
  }
}

void Cluster::run_until(const std::function<bool()>& ended) {
  for (int i = 0; i < options_.faults.stops; ++i) {
    SimulatedMachine& stopped = machine(static_cast<int>(random() % machines_.size()));
    stopped.stopped_from = up_to(options_.faults.stop_before);
    stopped.stopped_until = stopped.stopped_from + options_.faults.stop_for.count();
  }
  for (const auto& machine : machines_) machine->run_at(0);
  while (!ended() && violation_.empty() && !events_.empty() &&
         events_.now() <= options_.limit.count()) {
    const EventQueue::Event event = events_.pop();
    switch (event.kind) {
      case EventQueue::Kind::kRun: {
        SimulatedMachine& runs = *machines_[event.index];
        if (!runs.runs_at(event.time)) break;  // obsolete: the machine was interrupted
        if (event.time >= runs.stopped_from && event.time < runs.stopped_until) {
          runs.run_at(runs.stopped_until);
        } else {
          runs.switch_to();
        }
        break;
      }
      case EventQueue::Kind::kExecute:
        machines_[event.index]->access().execute();
        break;
      case EventQueue::Kind::kPosted:
        execute(posted_[event.index]);
        free_posted_.push_back(event.index);
        break;
    }
  }
}

SimTime Cluster::work() const {
  SimTime work{0};
  for (const auto& machine : machines_) work += SimTime(machine->worked());
  return work;
}

size_t Cluster::level(int from, int to) const {
  size_t level = 0;
  while (level < options_.blocks.size() &&
         from / options_.blocks[level] != to / options_.blocks[level]) {
    ++level;
  }
  return level;
}

int64_t Cluster::latency(int from, int to) {
  return options_.latency[level(from, to)].count() + up_to(options_.jitter);
}

int64_t Cluster::through_port(int rank, int64_t time) {
  int64_t& free = ports_[static_cast<size_t>(rank / options_.blocks.back())];
  const int64_t executed = std::max(time, free);
  free = executed + options_.message_gap.count();
  return executed;
}

SimulatedBlock& Cluster::allocate() {
  SimulatedBlock* block = nullptr;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
    block->~SimulatedBlock();
  } else {
    block = reinterpret_cast<SimulatedBlock*>(heap_ + heap_used_);
    heap_used_ += sizeof(SimulatedBlock);
    if (heap_used_ > kHeapBytes) std::abort();  // more than 10^8 blocks
  }
  new (block) SimulatedBlock{};
  block->is_live = true;
  return *block;
}

void Cluster::free(SimulatedBlock& block) {
  if (!std::exchange(block.is_live, false)) violated("a block was released twice");
  block.frames.outstanding = {};
  free_.push_back(&block);
}

SimulatedBlock& Cluster::block_at(uint64_t address) {
  const size_t offset = address - kPinnedAddress;
  auto& block = *reinterpret_cast<SimulatedBlock*>(heap_ + offset / sizeof(SimulatedBlock) *
                                                               sizeof(SimulatedBlock));
  if (!block.is_live) violated("a block was used after its release");
  return block;
}

void* Cluster::memory(int from, int rank, uint64_t address) {
  if (address - kPinnedAddress < kHeapBytes) {
    block_at(address);
    return reinterpret_cast<void*>(address);
  }
  // Real workers have their areas at equal addresses. Here, translate the offset in the area of
  // `from` to the area of `rank`.
  return machine(rank).memory() + (address - reinterpret_cast<uint64_t>(machine(from).memory()));
}

void Cluster::post(int64_t arrival, Posted operation) {
  uint32_t index = 0;
  if (free_posted_.empty()) {
    index = static_cast<uint32_t>(posted_.size());
    posted_.push_back(std::move(operation));
  } else {
    index = free_posted_.back();
    free_posted_.pop_back();
    posted_[index] = std::move(operation);
  }
  events_.push(arrival, EventQueue::Kind::kPosted, index);
}

void Cluster::execute(const Posted& operation) {
  // The operation itself is not delayed by the port, because its worker does not wait for it. But
  // it delays later operations at the port.
  static_cast<void>(through_port(operation.target, events_.now()));
  // post() got the address already translated to the target's memory.
  void* const there = reinterpret_cast<void*>(operation.address);
  switch (operation.kind) {
    case Posted::Kind::kWrite:
      std::memcpy(there, operation.more.empty() ? operation.data.data() : operation.more.data(),
                  operation.bytes);
      machine(operation.target).on_write(there);
      break;
    case Posted::Kind::kAdd:
      static_cast<std::atomic<uint64_t>*>(there)->fetch_add(operation.addend);
      break;
    case Posted::Kind::kRelease:
      free(block_at(operation.address));
      break;
  }
}

}  // namespace cariama::tasks
