#include "dsfabric/global_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/bootstrap/fabric_job.h"
#include "dsfabric/calls/awaited_transfers.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/calls/workers.h"
#include "dsfabric/internal/per_peer.h"
#include "dsfabric/memory/remote_heap.h"
#include "dsfabric/peers/connect_deadline.h"
#include "dsfabric/peers/ports.h"
#include "dsfabric/send_call.h"
#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/internal/shared_copy.h"
#include "dtutils/synchronizer.h"
#include "dtutils/transmitter.h"

namespace cariama {
namespace {

constexpr size_t kSlotBytes = 64;  // memory of a small operation
constexpr size_t kSlotsPerBlock = 128;
// Pieces of a long transfer that are in flight at a time.
constexpr size_t kPiecesInFlight = 4;

absl::Status not_a_word(const Fabric& fabric, const GlobalAddress& place) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "there is no aligned word for atomics at address " +
                        std::to_string(place.address) + " of " + fabric.label(place.rank),
                    "use memory that was allocated by RemoteMemory or GlobalMemory");
}

absl::Status no_such_place(const Fabric& fabric, const GlobalAddress& place) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    place.address == 0
                        ? "a null pointer into global memory was accessed"
                        : "a pointer into global memory has rank " + std::to_string(place.rank) +
                              ", but the size of the job is " + std::to_string(fabric.size()));
}

}  // namespace

struct GlobalTransfer::Operation {
  Synchronizer done{0};
  RDMAMemory slot;               // the operation's own memory
  RDMAMemory piece;              // allocated for one transfer; empty: none
  RDMAMemory* memory = nullptr;  // the slot or the piece; nullptr: the caller's memory is used
  bool abandoned = false;
  std::atomic<bool> handed_over{false};  // to the fabric, which runs its end: see hand_over()
  GlobalMemory::Lane* lane = nullptr;
  std::byte* into = nullptr;  // where received data is copied to
  size_t bytes = 0;
};

struct GlobalTransfer::Execution {
  explicit Execution(Rank owner_of_word) : owner(owner_of_word) {}
  // Returns the status of the atomic. Requires: done.done().
  [[nodiscard]] absl::Status outcome() const;

  const Rank owner;
  Synchronizer done;
  std::array<uint64_t, 2> answer{};  // {1 if the word exists, its value before the operation}
};

struct GlobalMemory::Lane {
  Transmitter transmitter;
  const ProtectionDomain* domain;
};

struct GlobalMemory::Pool {
  using Operation = GlobalTransfer::Operation;
  explicit Pool(uint32_t processes) : lanes(std::make_unique<Lanes>(processes)) {}

  using Lanes = internal::PerPeer<Lane>;
  std::unique_ptr<Lanes> lanes;
  // The operations that have been allocated; `free` lists those that are not in use.
  std::deque<Operation> operations;
  std::vector<RDMAMemory> blocks;
  std::vector<Operation*> free;
  size_t abandoned = 0;
};

// ---- Handles ------------------------------------------------------------------------------------

bool GlobalTransfer::done() {
  if (execution_ != nullptr) return execution_->done.done();
  if (operation_ == nullptr || operation_->done.done()) return true;
  operation_->lane->transmitter.queue().progress();
  return operation_->done.done();
}

absl::Status GlobalTransfer::wait(Deadline deadline) { return finish(deadline, nullptr, 0); }

absl::Status GlobalTransfer::finish(Deadline deadline, void* result, size_t bytes) {
  if (execution_ != nullptr) {
    Execution& execution = *execution_;
    // Fabric::wait() runs calls before it tests its condition, so an operation that has ended is
    // not waited for.
    const auto ended = [&] { return execution.done.done(); };
    if (!ended() && !memory_->fabric().wait(ended, deadline)) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                        memory_->fabric().label(execution.owner) +
                            " did not execute an atomic operation on its memory in time",
                        internal::peer_remedy(internal::PeerRemedy::kSilent));
    }
    status_ = execution.outcome();
    if (status_.ok() && result != nullptr) {
      std::memcpy(result, &execution.answer[1], std::min(bytes, sizeof(uint64_t)));
      execution_ = nullptr;
    }
    return status_;
  }
  if (operation_ == nullptr) return status_;
  Operation& operation = *operation_;
  if (!operation.done.done()) {
    Transmitter& transmitter = operation.lane->transmitter;
    // A completion of the transmitter's queue does not wake a thread that sleeps, so this thread
    // polls.
    static_cast<void>(memory_->fabric().wait_polling(
        [&] {
          transmitter.queue().progress();
          return operation.done.done() || !transmitter.queue().status().ok();
        },
        deadline));
    const absl::Status waited = transmitter.wait(operation.done, deadline);
    if (!operation.done.done()) return waited;
  }
  status_ = operation.done.status();
  if (status_.ok()) {
    if (operation.into != nullptr) {
      std::memcpy(operation.into, operation.memory->get_buffer(), operation.bytes);
    } else if (result != nullptr) {
      std::memcpy(result, operation.memory->get_buffer(), bytes);
    }
  }
  operation_ = nullptr;
  memory_->give_back(&operation);
  return status_;
}

std::shared_ptr<const Synchronizer> GlobalTransfer::execution() const {
  if (execution_ == nullptr) return nullptr;
  return {execution_, &execution_->done};
}

absl::Status GlobalTransfer::nothing_to_notify() {
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                    "a handle that belongs to no operation has no end",
                    "call notify() on the handle that rget(), rput() or an atomic returned");
}

Fabric& GlobalTransfer::memory_fabric() const { return memory_->fabric(); }

// An operation that was handed over. Any thread may run its end, so the thread of the GlobalMemory
// reuses the operation's record later, when `handed_over` is false again.
class GlobalTransfer::Ending final : public internal::AwaitedTransfer {
 public:
  Ending(Operation& operation, internal::EventReceiver event, std::span<std::byte> result)
      : operation_(operation), event_(std::move(event)), result_(result) {}
  [[nodiscard]] bool ended() override {
    return internal::has_ended(operation_.lane->transmitter.queue(), operation_.done);
  }
  void finish() override {
    const absl::Status status = operation_.done.status();
    std::span<const std::byte> value;
    if (status.ok() && operation_.memory != nullptr) {
      value = {operation_.memory->get_buffer(), operation_.bytes};
      if (operation_.into != nullptr) std::memcpy(operation_.into, value.data(), value.size());
      if (!result_.empty()) std::memcpy(result_.data(), value.data(), result_.size());
    }
    event_.complete(status, value);
    operation_.handed_over.store(false, std::memory_order_release);
  }
  void drop(const absl::Status& why) override {
    event_.complete(why);
    operation_.handed_over.store(false, std::memory_order_release);
  }

 private:
  Operation& operation_;
  const internal::EventReceiver event_;
  const std::span<std::byte> result_;
};

absl::Status GlobalTransfer::Execution::outcome() const {
  if (!done.status().ok() || answer[0] != 0) return done.status();
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                    "the owner has no aligned word for atomics at that address",
                    "use memory that was allocated by RemoteMemory or GlobalMemory");
}

// An atomic that was handed over, and that its owner executes.
class GlobalTransfer::Executing final : public internal::AwaitedTransfer {
 public:
  Executing(std::shared_ptr<Execution> execution, internal::EventReceiver event,
            std::span<std::byte> result)
      : execution_(std::move(execution)), event_(std::move(event)), result_(result) {}
  [[nodiscard]] bool ended() override { return execution_->done.done(); }
  void finish() override {
    const absl::Status status = execution_->outcome();
    const auto value = std::as_bytes(std::span(&execution_->answer[1], 1));
    if (status.ok() && !result_.empty()) {
      std::memcpy(result_.data(), value.data(), result_.size());
    }
    event_.complete(status, value);
  }
  void drop(const absl::Status& why) override { event_.complete(why); }

 private:
  const std::shared_ptr<Execution> execution_;
  const internal::EventReceiver event_;
  const std::span<std::byte> result_;
};

absl::Status GlobalTransfer::hand_over(internal::EventReceiver event, std::span<std::byte> result,
                                       std::span<const std::byte> ready) {
  if (!status_.ok()) return status_;
  Fabric& fabric = memory_->fabric();
  internal::AwaitedTransfers& transfers = internal::transfers_of(fabric);
  const auto handed_over = [this] {
    status_ =
        make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                   "the end of this operation was given to another object", "wait for that object");
    return absl::OkStatus();
  };
  if (execution_ != nullptr) {
    if (absl::Status prepared = transfers.prepare(); !prepared.ok()) return prepared;
    transfers.add(
        std::make_unique<Executing>(std::exchange(execution_, nullptr), std::move(event), result));
    return handed_over();
  }
  if (operation_ == nullptr) {
    if (!result.empty()) std::memcpy(result.data(), ready.data(), result.size());
    event.complete(status_, ready);
    internal::workers_of(fabric).notify_waiters();
    return handed_over();
  }
  if (absl::Status prepared = transfers.prepare(); !prepared.ok()) return prepared;
  Operation& operation = *operation_;
  auto ending = std::make_unique<Ending>(operation, std::move(event), result);
  operation_ = nullptr;
  operation.abandoned = true;
  ++memory_->pool_->abandoned;
  operation.handed_over.store(true, std::memory_order_relaxed);
  transfers.add(std::move(ending));
  return handed_over();
}

void GlobalTransfer::drop() {
  if (operation_ == nullptr) return;
  if (operation_->done.done()) return memory_->give_back(std::exchange(operation_, nullptr));
  operation_->abandoned = true;
  ++memory_->pool_->abandoned;
  operation_ = nullptr;
}

// ---- Resources ----------------------------------------------------------------------------------

GlobalMemory::GlobalMemory(Fabric& fabric, const GlobalMemoryOptions& options)
    : fabric_(fabric), options_(options), pool_(std::make_unique<Pool>(fabric.size())) {
  by_owner_ = options.atomics == AtomicsBy::kOwner;
  if (options.atomics != AtomicsBy::kAutomatic) return;
  for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
    const Device* const device = internal::ports_of(fabric).device(rank);
    if (device == nullptr) continue;
    const Transport transport = device->transport();
    if (transport != Transport::kShm && transport != Transport::kSim) by_owner_ = true;
  }
}

absl::StatusOr<std::unique_ptr<GlobalMemory>> GlobalMemory::create(
    Fabric& fabric, const GlobalMemoryOptions& options) {
  if (options.piece_bytes == 0) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "pieces of 0 bytes", "set piece_bytes");
  }
  return std::unique_ptr<GlobalMemory>(new GlobalMemory(fabric, options));
}

GlobalMemory::~GlobalMemory() {
  use_.end();
  for (GlobalTransfer::Operation& operation : pool_->operations) {
    const auto ended = [&] { return !operation.handed_over.load(std::memory_order_acquire); };
    if (!ended()) static_cast<void>(fabric_.wait_polling(ended, kForever));
    // Every transfer ends, at the latest by the peer's failure.
    if (!operation.done.done()) {
      static_cast<void>(operation.lane->transmitter.wait(operation.done, kForever));
    }
    if (operation.piece.get_buffer() != nullptr) {
      fabric_.memory().free_or_keep(std::move(operation.piece));
    }
  }
  pool_->lanes.reset();
  for (RDMAMemory& block : pool_->blocks) {
    fabric_.memory().free_or_keep(std::move(block));
  }
}

absl::StatusOr<GlobalMemory::Lane*> GlobalMemory::lane(Rank rank) {
  const internal::Lifecycle& lifecycle = internal::job_of(fabric_).lifecycle();
  if (lifecycle.is_closed()) return lifecycle.closed_error();
  Lane* lane = pool_->lanes->find(rank);
  if (lane == nullptr) {
    const ThreadContext* const context = fabric_.this_thread();
    auto queue = fabric_.connection(rank, context == nullptr ? ThreadIndex(0) : context->index());
    if (!queue.ok()) return queue.status();
    auto transmitter = Transmitter::create(**queue);
    if (!transmitter.ok()) return transmitter.status();
    // If code that ran while connection() waited has made the lane, get() returns that one.
    lane = &pool_->lanes->get(rank, Lane{*std::move(transmitter), fabric_.domain(rank)});
  }
  return lane;
}

absl::StatusOr<std::byte*> GlobalMemory::mapped(const GlobalAddress& place, size_t bytes) {
  if (place.address == 0 || place.rank >= fabric_.size()) return no_such_place(fabric_, place);
  if (place.rank == fabric_.rank()) return reinterpret_cast<std::byte*>(place.address);
  auto to = lane(place.rank);
  if (!to.ok()) return to.status();
  if (absl::Status status = (*to)->transmitter.queue().status(); !status.ok()) return status;
  return (*to)->transmitter.queue().queue_pair().direct_access(locator_of(fabric_, place, bytes));
}

// Allocates an operation with memory of `bytes`; 0: the caller provides the memory.
absl::StatusOr<GlobalTransfer::Operation*> GlobalMemory::take_operation(Rank rank, size_t bytes) {
  using Operation = GlobalTransfer::Operation;
  Pool& pool = *pool_;
  auto to = lane(rank);
  if (!to.ok()) return to.status();
  // Memory of long transfers is not left unused.
  if ((pool.free.empty() || bytes > kSlotBytes) && pool.abandoned != 0) {
    for (Operation& operation : pool.operations) {
      if (!operation.abandoned || operation.handed_over.load(std::memory_order_acquire)) continue;
      if (!operation.done.done()) operation.lane->transmitter.queue().progress();
      if (!operation.done.done()) continue;
      --pool.abandoned;
      give_back(&operation);
    }
  }
  if (pool.free.empty()) {
    auto block = fabric_.memory().allocate(kSlotBytes * kSlotsPerBlock);
    if (!block.ok()) return block.status();
    const RDMAMemory& slots = pool.blocks.emplace_back(*std::move(block));
    for (size_t i = 0; i < kSlotsPerBlock; ++i) {
      Operation& operation = pool.operations.emplace_back();
      operation.slot = RDMAMemory(slots.get_buffer() + i * kSlotBytes, kSlotBytes, slots.range());
      pool.free.push_back(&operation);
    }
  }
  Operation& operation = *pool.free.back();
  if (bytes > kSlotBytes) {
    auto piece = fabric_.memory().allocate(bytes);
    if (!piece.ok()) return piece.status();
    operation.piece = *std::move(piece);
    operation.memory = &operation.piece;
  } else if (bytes != 0) {
    // Remove the use tags of peers that the slot was used with before.
    if (operation.slot.is_free()) operation.slot.clear_uses();
    operation.memory = &operation.slot;
  }
  pool.free.pop_back();
  operation.lane = *to;
  operation.bytes = bytes;
  operation.done.reset();
  return &operation;
}

void GlobalMemory::give_back(GlobalTransfer::Operation* operation) {
  if (operation->piece.get_buffer() != nullptr) {
    fabric_.memory().free_or_keep(std::move(operation->piece));
  }
  operation->memory = nullptr;
  operation->abandoned = false;
  operation->into = nullptr;
  pool_->free.push_back(operation);
}

// ---- Operations ---------------------------------------------------------------------------------

void GlobalMemory::start_get(GlobalTransfer& handle, const GlobalAddress& from, size_t bytes,
                             std::byte* into, bool later) {
  handle.memory_ = this;
  if (bytes == 0) return;
  auto direct = mapped(from, bytes);
  if (!direct.ok()) {
    handle.status_ = direct.status();
    return;
  }
  if (*direct != nullptr) {
    ++statistics_.direct;
    internal::copy_beside_atomics(into, *direct, bytes);
    return;
  }
  auto operation = take_operation(from.rank, bytes);
  if (!operation.ok()) {
    handle.status_ = operation.status();
    return;
  }
  ++statistics_.transfers;
  (*operation)->into = later ? into : nullptr;
  handle.status_ =
      (*operation)
          ->lane->transmitter.read(*(*operation)->memory, 0, bytes,
                                   locator_of(fabric_, from, bytes), &(*operation)->done);
  if (!handle.status_.ok()) {
    (*operation)->done.reset(0);
    return give_back(*operation);
  }
  handle.operation_ = *operation;
}

void GlobalMemory::start_put(GlobalTransfer& handle, const GlobalAddress& to, size_t bytes,
                             const std::byte* data) {
  handle.memory_ = this;
  if (bytes == 0) return;
  auto direct = mapped(to, bytes);
  if (!direct.ok()) {
    handle.status_ = direct.status();
    return;
  }
  if (*direct != nullptr) {
    ++statistics_.direct;
    std::memcpy(*direct, data, bytes);
    return;
  }
  auto operation = take_operation(to.rank, bytes);
  if (!operation.ok()) {
    handle.status_ = operation.status();
    return;
  }
  ++statistics_.transfers;
  std::memcpy((*operation)->memory->get_buffer(), data, bytes);
  handle.status_ =
      (*operation)
          ->lane->transmitter.write(*(*operation)->memory, 0, bytes, locator_of(fabric_, to, bytes),
                                    &(*operation)->done);
  if (!handle.status_.ok()) {
    (*operation)->done.reset(0);
    return give_back(*operation);
  }
  handle.operation_ = *operation;
}

GlobalTransfer GlobalMemory::start_registered(const GlobalAddress& remote, RDMAMemory& local,
                                              uint64_t offset, size_t bytes, bool put) {
  GlobalTransfer handle;
  handle.memory_ = this;
  handle.status_ = internal::check_range(&local, offset, bytes);
  if (!handle.status_.ok()) return handle;
  if (bytes == 0) return handle;
  std::byte* const at = local.get_buffer() + offset;
  auto direct = mapped(remote, bytes);
  if (!direct.ok() || *direct != nullptr) {
    handle.status_ = direct.status();
    if (!direct.ok()) return handle;
    ++statistics_.direct;
    if (put) {
      std::memcpy(*direct, at, bytes);
    } else {
      internal::copy_beside_atomics(at, *direct, bytes);
    }
    return handle;
  }
  auto operation = take_operation(remote.rank, 0);
  if (!operation.ok()) {
    handle.status_ = operation.status();
    return handle;
  }
  ++statistics_.transfers;
  Transmitter& transmitter = (*operation)->lane->transmitter;
  const RemoteMemoryLocator place = locator_of(fabric_, remote, bytes);
  handle.status_ = put ? transmitter.write(local, offset, bytes, place, &(*operation)->done)
                       : transmitter.read(local, offset, bytes, place, &(*operation)->done);
  if (!handle.status_.ok()) {
    (*operation)->done.reset(0);
    give_back(*operation);
    return handle;
  }
  handle.operation_ = *operation;
  return handle;
}

absl::Status GlobalMemory::in_pieces(const GlobalAddress& remote, size_t bytes, std::byte* into,
                                     const std::byte* from, Deadline deadline) {
  std::array<GlobalTransfer, kPiecesInFlight> in_flight;
  for (size_t offset = 0, i = 0; offset < bytes; offset += options_.piece_bytes, ++i) {
    GlobalTransfer& handle = in_flight[i % kPiecesInFlight];
    if (absl::Status ended = handle.wait(deadline); !ended.ok()) return ended;
    handle = GlobalTransfer();
    GlobalAddress place = remote;
    place.address += offset;
    const size_t size = std::min(options_.piece_bytes, bytes - offset);
    const internal::ScopedConnectDeadline scope(deadline);
    if (into != nullptr) {
      start_get(handle, place, size, into + offset, true);
    } else {
      start_put(handle, place, size, from + offset);
    }
  }
  absl::Status all;
  for (GlobalTransfer& handle : in_flight) all.Update(handle.wait(deadline));
  return all;
}

// ---- Atomics ------------------------------------------------------------------------------------

uint64_t GlobalMemory::execute(Atomic kind, uint64_t* word, uint64_t operand, uint64_t desired) {
  std::atomic_ref<uint64_t> at(*word);
  if (kind == Atomic::kFetchAdd) return at.fetch_add(operand, std::memory_order_seq_cst);
  uint64_t before = operand;
  at.compare_exchange_strong(before, desired, std::memory_order_seq_cst);
  return before;
}

GlobalValue<uint64_t> GlobalMemory::start_atomic(const GlobalAddress& word, Atomic kind,
                                                 uint64_t operand, uint64_t desired,
                                                 WhenFull when_full) {
  GlobalValue<uint64_t> handle;
  handle.memory_ = this;
  if (word.address % sizeof(uint64_t) != 0) {
    handle.status_ =
        word.rank < fabric_.size() ? not_a_word(fabric_, word) : no_such_place(fabric_, word);
    return handle;
  }
  if (by_owner_ && word.address != 0 && word.rank < fabric_.size() && word.rank != fabric_.rank()) {
    ask_owner(handle, word, kind, operand, desired, when_full);
    return handle;
  }
  auto direct = mapped(word, sizeof(uint64_t));
  if (!direct.ok()) {
    handle.status_ = direct.status();
    return handle;
  }
  if (*direct != nullptr) {
    ++statistics_.direct;
    const uint64_t before = execute(kind, reinterpret_cast<uint64_t*>(*direct), operand, desired);
    std::memcpy(handle.value_, &before, sizeof before);
    return handle;
  }
  auto operation = take_operation(word.rank, sizeof(uint64_t));
  if (!operation.ok()) {
    handle.status_ = operation.status();
    return handle;
  }
  ++statistics_.transfers;
  GlobalTransfer::Operation& op = **operation;
  const RemoteMemoryLocator place = locator_of(fabric_, word, sizeof(uint64_t));
  handle.status_ =
      kind == Atomic::kFetchAdd
          ? op.lane->transmitter.fetch_add(*op.memory, 0, place, operand, &op.done)
          : op.lane->transmitter.compare_swap(*op.memory, 0, place, operand, desired, &op.done);
  if (!handle.status_.ok()) {
    op.done.reset(0);
    give_back(&op);
    return handle;
  }
  handle.operation_ = &op;
  return handle;
}

void GlobalMemory::ask_owner(GlobalValue<uint64_t>& handle, const GlobalAddress& word, Atomic kind,
                             uint64_t operand, uint64_t desired, WhenFull when_full) {
  using Answer = std::array<uint64_t, 2>;
  struct Receiver final : internal::ResultReceiver {
    explicit Receiver(std::shared_ptr<GlobalTransfer::Execution> to) : execution(std::move(to)) {}
    void receive(std::span<const std::byte> result) override {
      execution->answer = load_value<Answer>(result);
    }
    std::shared_ptr<GlobalTransfer::Execution> execution;
  };
  auto execution = std::make_shared<GlobalTransfer::Execution>(word.rank);
  const auto call = make_call([address = word.address, operand, desired, kind]() -> Answer {
    Fabric& fabric = *running_fabric();
    auto& heap = internal::attachment_of<internal::RemoteHeap>(fabric);
    if (address % sizeof(uint64_t) != 0 || kind > Atomic::kCompareExchange ||
        !heap.contains(address, sizeof(uint64_t))) {
      return {0, 0};
    }
    return {1, execute(kind, reinterpret_cast<uint64_t*>(address), operand, desired)};
  });
  ++statistics_.executed;
  internal::CallEnd end;
  end.consumed = internal::EventReceiver(execution->done);
  end.receiver = std::make_unique<Receiver>(execution);
  handle.status_ = internal::send_call(fabric_, word.rank, internal::kService,
                                       OutgoingCall::of(call), when_full, end);
  if (handle.status_.ok()) handle.execution_ = std::move(execution);
}

absl::StatusOr<uint64_t> GlobalMemory::exchange(global_ptr<uint64_t> word, uint64_t value,
                                                Deadline deadline) {
  auto start = [&] {
    const internal::ScopedConnectDeadline scope(deadline);
    return load(word);
  };
  auto expected = start().wait(deadline);
  while (expected.ok()) {
    auto before = compare_exchange(word, *expected, value).wait(deadline);
    if (!before.ok() || *before == *expected) return before;
    expected = before;
  }
  return expected;
}

}  // namespace cariama
