// The definitions of PoolProtocol (protocol.h), for the files that instantiate it.
#ifndef CARIAMA_TASKS_POOL_PROTOCOL_IMPL_H_
#define CARIAMA_TASKS_POOL_PROTOCOL_IMPL_H_

#include <algorithm>
#include <cstring>
#include <utility>

#include "dsfabric/internal/call_failures.h"
#include "dtutils/error.h"
#include "dtutils/trace.h"
#include "tasks/exceptions.h"
#include "tasks/pool/failure.h"
#include "tasks/pool/protocol.h"

namespace cariama::tasks {

template <typename Derived>
PoolProtocol<Derived>::PoolProtocol(const PoolOptions& options, std::byte* memory,
                                    RemoteAccess& access, Victims victims)
    : options_(options),
      access_(access),
      area_(*reinterpret_cast<PoolArea*>(memory)),
      shared_cells_(options.cells),
      cells_(reinterpret_cast<Cell*>(memory + cells_offset(access.size()))),
      victims_(std::move(victims)) {
  area_.request.store(kBlocked, std::memory_order_relaxed);
  const auto begin = reinterpret_cast<uint64_t>(memory);
  const size_t bytes = cells_offset(access.size()) + shared_cells_ * sizeof(Cell);
  for (int peer = 0; peer < access.size(); ++peer) {
    void* const there = access.mapped(peer, begin, bytes);
    if (there == nullptr) {
      mapped_.clear();
      break;
    }
    mapped_.push_back(static_cast<std::byte*>(there));
  }
}

template <typename Derived>
void PoolProtocol<Derived>::fail(absl::Status status) {
  if (!broken_.ok() || status.ok()) return;
  broken_ = std::move(status);
  area_.status.store(kLeft, std::memory_order_release);
}

template <typename Derived>
void PoolProtocol<Derived>::check_or_break(const absl::Status& status) {
  if (status.ok()) return;
  if (broken_.ok() && absl::IsUnavailable(status)) self().await_cause();
  fail(status);
  throw RunIsBroken();
}

template <typename Derived>
template <typename T>
T PoolProtocol<Derived>::value_or_break(absl::StatusOr<T> value) {
  check_or_break(value.status());
  return *std::move(value);
}

template <typename Derived>
void PoolProtocol<Derived>::enter(uint64_t status) {
  set_status(status);
  deque.head = cells_;
  deque.limit = cells_ + shared_cells_ + options_.private_cells;
  set_tail(cells_);
  deque.request = access_.size() == 1 ? &kAlwaysBlocked : &area_.request;
  idle_round_ = 0;
}

template <typename Derived>
void PoolProtocol<Derived>::leave() {
  // The deque is empty. Every thief's request was answered, and later ones find kBlocked.
  if (broken_.ok()) {
    try {
      serve();
    } catch (const RunIsBroken&) {
    }
  }
  deque = unused_deque();
}

template <typename Derived>
void PoolProtocol<Derived>::set_tail(Cell* tail) {
  deque.tail = tail;
  deque.publish_from = access_.size() == 1 ? reinterpret_cast<Cell*>(kNeverPublished) : tail + 2;
}

// ---- Victim -------------------------------------------------------------------------------------

template <typename Derived>
uint64_t PoolProtocol<Derived>::OwnMemory::compare_swap(std::atomic<uint64_t>& word,
                                                        uint64_t expected, uint64_t desired) const {
  ++worker.statistics_.blockings;
  if (worker.mapped_.empty()) {
    return worker.value_or_break(worker.access_.compare_swap(
        worker.rank(), reinterpret_cast<uint64_t>(&word), expected, desired));
  }
  word.compare_exchange_strong(expected, desired, std::memory_order_acq_rel);
  return expected;
}

template <typename Derived>
void PoolProtocol<Derived>::serve() {
  if (access_.size() == 1) return;
  const bool has_tasks = deque.head >= deque.publish_from;
  const uint64_t request_id = has_tasks ? request_cell_.open() : request_cell_.close();
  if (request_id == kNoRequestId) return;
  const int thief = thief_of(request_id);
  uint64_t count = 0;
  if (has_tasks) {
    count = how_many();
    statistics_.deepest_deque = std::max<uint64_t>(statistics_.deepest_deque,
                                                   static_cast<uint64_t>(deque.head - deque.tail));
    for (uint64_t i = 0; i < count; ++i) pack(area_.outgoing.parcels[i], deque.tail[i], thief);
    statistics_.handed_over += count;
    set_tail(deque.tail + count);
  }
  request_cell_.take(request_id, deque.head < deque.publish_from ? kBlocked : kOpen);
  answer(request_id, thief, count);
}

// Returns the rank that a request names. It indexes arrays, so a rank that cannot be ends the run.
template <typename Derived>
int PoolProtocol<Derived>::thief_of(uint64_t request) {
  const int thief = rank_of_request(request);
  if (!names_a_thief(request, rank(), access_.size())) {
    check_or_break(make_error(absl::StatusCode::kInternal, ErrorScope::kPeer,
                              "a steal request names rank " + std::to_string(thief)));
  }
  return thief;
}

// Returns the number of tasks to hand over: at most all but one.
template <typename Derived>
uint64_t PoolProtocol<Derived>::how_many() const {
  const auto tasks = static_cast<uint64_t>(deque.head - deque.tail);
  const uint64_t wanted = options_.steal == kStealHalf ? tasks / 2 : options_.steal;
  const auto shared =
      deque.tail < shared_end() ? static_cast<uint64_t>(shared_end() - deque.tail) : 0;
  return std::min({wanted, tasks - 1, shared, uint64_t{kMostParcels}});
}

template <typename Derived>
void PoolProtocol<Derived>::pack(Parcel& parcel, Cell& cell, int thief) {
  const bool foreign = ForeignTask::is_in(cell);
  if (foreign) {
    const ForeignTask task = ForeignTask::load(cell);
    parcel.function = task.function;
    parcel.bytes = task.bytes;
    parcel.origin = cell.origin;
    // A thief that reports to a wrong cell overwrites Cell::state.
    if (!is_possible(parcel, shared_cells_, access_.size())) refuse_task(task.sender);
  } else {
    parcel.function = cell.kind->registration->id.load(std::memory_order_relaxed);
    if (parcel.function == 0) {
      check_or_break(
          make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                     "a task's function is in a library that was loaded after the pool was created",
                     "load the library before TaskPool::create(), in every process"));
    }
    parcel.bytes = cell.kind->argument_bytes;
    parcel.origin =
        Origin{static_cast<uint32_t>(rank()), static_cast<uint32_t>(&cell - cells_)}.word();
    cell.state.store(kRunning, std::memory_order_relaxed);
  }
  std::memcpy(parcel.payload, cell.payload, parcel.bytes);
  self().begin_unit(static_cast<uint64_t>(thief));
  if (foreign) self().end_unit(ForeignTask::load(cell).sender);
  cell.thief = static_cast<uint64_t>(thief);
}

// Answers the request `request_id` of `thief` with the first `count` parcels of area_.outgoing.
template <typename Derived>
void PoolProtocol<Derived>::answer(uint64_t request_id, int thief, uint64_t count) {
  const TraceScope trace("pool", "answer", "tasks", count);
  ++statistics_.requests;
  area_.outgoing.count = count;
  size_t bytes = sizeof(uint64_t);
  if (count != 0) {
    bytes = offsetof(TransferCell, parcels) + (count - 1) * sizeof(Parcel) +
            offsetof(Parcel, payload) + area_.outgoing.parcels[count - 1].bytes;
  }
  if (!mapped_.empty()) {
    PoolArea& there = area_of(thief);
    std::memcpy(&there.transfer, &area_.outgoing, bytes);
    there.answer.store(request_id, std::memory_order_release);
    return;
  }
  check_or_break(
      access_.write(thief, reinterpret_cast<uint64_t>(&area_.transfer), &area_.outgoing, bytes));
  check_or_break(access_.write(thief, reinterpret_cast<uint64_t>(&area_.answer), &request_id,
                               sizeof request_id));
}

// ---- Thief --------------------------------------------------------------------------------------

template <typename Derived>
void PoolProtocol<Derived>::record(const PoolAttempt& attempt) {
  if (log_.size() < options_.recorded_attempts) log_.push_back(attempt);
}

// Asks the victim for tasks. Returns the previous value of the victim's request cell: kOpen if the
// request is now in the cell.
template <typename Derived>
uint64_t PoolProtocol<Derived>::request_from(int victim, uint64_t request_id) {
  if (mapped_.empty()) {
    return value_or_break(access_.compare_swap(victim, reinterpret_cast<uint64_t>(&area_.request),
                                               kOpen, request_id));
  }
  std::atomic<uint64_t>& request = area_of(victim).request;
  // A load first: most attempts find kBlocked, and a compare-and-swap would take the cache line
  // from its owner.
  uint64_t seen = request.load(std::memory_order_relaxed);
  if (seen != kOpen) return seen;
  request.compare_exchange_strong(seen, request_id, std::memory_order_acq_rel);
  return seen;
}

template <typename Derived>
void PoolProtocol<Derived>::await_answer(uint64_t request_id) {
  for (uint64_t round = 0; area_.answer.load(std::memory_order_acquire) != request_id; ++round) {
    serve();
    self().pause(round);
    // The victim usually answers while this thief spins.
    if (round >= kSpinRounds) run_calls_and_check_peers(round);
  }
}

template <typename Derived>
bool PoolProtocol<Derived>::attempt(Step step, int victim, size_t level) {
  serve();
  // The tasks that the victim may send must fit into the deque: a task that has arrived cannot be
  // refused.
  if (static_cast<uint64_t>(deque.limit - deque.head) < most_parcels(options_)) return false;
  const auto start = self().now();
  const uint64_t request_id = request_id_of(rank(), ++requests_sent_);
  PoolAttempt attempt{.step = step, .level = static_cast<uint8_t>(level), .victim = victim};
  const uint64_t seen = request_from(victim, request_id);
  if (seen == kOpen) {
    await_answer(request_id);
    const auto tasks =
        tasks_in(area_.transfer, most_parcels(options_), shared_cells_, access_.size());
    if (!tasks.has_value()) refuse_task(static_cast<uint64_t>(victim));
    attempt.tasks = *tasks;
    attempt.result = attempt.tasks != 0 ? Result::kStolen : Result::kRejected;
  } else {
    attempt.result = seen == kBlocked ? Result::kBlocked : Result::kBusy;
  }
  attempt.ns = static_cast<uint64_t>((self().now() - start).count());
  const bool stolen = attempt.result == Result::kStolen;
  PoolStatistics& counts = statistics_;
  ++counts.attempts;
  ++counts.tried[level];
  counts.leapfrog_attempts += step == Step::kLeapfrog;
  counts.blocked += attempt.result == Result::kBlocked;
  counts.busy += attempt.result == Result::kBusy;
  counts.rejected += attempt.result == Result::kRejected;
  (stolen ? counts.steal_ns : counts.failed_ns)[level] += attempt.ns;
  record(attempt);
  if (!stolen) return false;
  ++counts.steals;
  ++counts.stolen[level];
  counts.leapfrog_steals += step == Step::kLeapfrog;
  counts.stolen_tasks += attempt.tasks;
  run_parcels(victim, attempt.tasks);
  return true;
}

template <typename Derived>
template <typename Done>
bool PoolProtocol<Derived>::search(const Done& done) {
  for (size_t level = 0; level < victims_.levels(); ++level) {
    victims_.shuffle(level, shuffled_);
    // attempt() may run tasks that search themselves, and thus change shuffled_: but then it
    // returns true, and the search ends.
    for (size_t i = 0; i < shuffled_.size(); ++i) {
      if (attempt(Step::kLevel, shuffled_[i], std::min(level, kVictimLevels - 1))) return true;
      if (done()) return true;
    }
  }
  return false;
}

// Breaks the run: the worker `sender` has handed over a task that cannot be.
template <typename Derived>
void PoolProtocol<Derived>::refuse_task(uint64_t sender) {
  self().end_unit(sender);
  fail(make_error(absl::StatusCode::kInternal, ErrorScope::kPeer,
                  self().label(sender) + " handed over an invalid task",
                  "run the same program in every process"));
  throw RunIsBroken();
}

// Runs the tasks in the transfer cell: the first at once, the others from the deque, where they can
// be stolen meanwhile.
template <typename Derived>
void PoolProtocol<Derived>::run_parcels(int victim, uint64_t count) {
  const TraceScope trace("pool", "stolen tasks", "tasks", count);
  const uint64_t status = area_.status.load(std::memory_order_relaxed);
  set_status(kWorking);
  Parcel first = area_.transfer.parcels[0];
  Cell* const mark = deque.head;
  for (uint64_t i = 1; i < count; ++i) {
    const Parcel& parcel = area_.transfer.parcels[i];
    Cell& cell = *deque.head;
    ForeignTask::store(cell, parcel, static_cast<uint64_t>(victim));
    std::memcpy(cell.payload, parcel.payload, sizeof cell.payload);
    ++deque.head;
  }
  execute(first.function, first.origin, victim, first.payload, first.bytes);
  run_foreign_cells(mark);
  set_status(status);
}

// Runs the tasks of other workers in the deque that thieves have left.
template <typename Derived>
void PoolProtocol<Derived>::run_foreign_cells(Cell* mark) {
  while (deque.head != mark) {
    Cell* const cell = deque.head - 1;
    deque.head = cell;
    if (cell < deque.tail) {
      set_tail(cell);  // handed on: another thief reports to the owner
      continue;
    }
    const ForeignTask task = ForeignTask::load(*cell);
    alignas(64) std::byte payload[pool::kPayloadBytes];
    std::memcpy(payload, cell->payload, sizeof payload);
    execute(task.function, cell->origin, static_cast<int>(task.sender), payload, task.bytes);
  }
}

template <typename Derived>
IncomingCall PoolProtocol<Derived>::run_task(FunctionStub stub, std::span<std::byte> payload) {
  Cell* const mark = deque.head;
  IncomingCall call;
  call.closure = payload;
  stub(call);
  if (deque.head != mark) finish(mark);
  return call;
}

// Runs a task of another worker, and sends its result to that worker.
template <typename Derived>
void PoolProtocol<Derived>::execute(uint32_t function, uint64_t origin, int from,
                                    std::byte* payload, uint32_t bytes) {
  const Origin owner = Origin::of(origin);
  const FunctionStub stub = FunctionTable::resolve({function});
  if (stub == nullptr || bytes > pool::kPayloadBytes || owner.index >= shared_cells_ ||
      owner.rank >= static_cast<uint32_t>(access_.size())) {
    refuse_task(static_cast<uint64_t>(from));
  }
  const std::span room(payload, pool::kPayloadBytes);
  const bool was_in_task = std::exchange(in_task_, true);
  const IncomingCall call = run_task(stub, room);
  in_task_ = was_in_task;
  if (!broken_.ok()) {
    self().end_unit(static_cast<uint64_t>(from));
    return;
  }
  uint64_t length = call.closure.size();
  uint64_t state = kDone;
  if (call.outcome != CallOutcome::kDone) {
    const PackedFailure failure = pack_failure(call.error_type, call.error_text, room);
    length = failure.bytes;
    state = failure.form == FailureForm::kNamed ? kFailedNamed : kFailedHashed;
  }
  try {
    send_result(owner, payload, length, state);
  } catch (const RunIsBroken&) {
  }
  self().end_unit(static_cast<uint64_t>(from));
}

template <typename Derived>
void PoolProtocol<Derived>::send_result(Origin origin, const std::byte* payload, uint64_t bytes,
                                        uint64_t state) {
  const uint64_t word = state | bytes << kStateBits;
  Cell& cell = cells_[origin.index];  // same address in every worker
  const auto peer = static_cast<int>(origin.rank);
  if (peer == rank()) {  // this worker got its own task back in a batch
    std::memcpy(cell.payload, payload, bytes);
    cell.state.store(word, std::memory_order_release);
    return;
  }
  if (!mapped_.empty()) {
    auto& there =
        *reinterpret_cast<Cell*>(mapped_[origin.rank] + (reinterpret_cast<std::byte*>(&cell) -
                                                         reinterpret_cast<std::byte*>(&area_)));
    std::memcpy(there.payload, payload, bytes);
    there.state.store(word, std::memory_order_release);
    return;
  }
  if (bytes != 0) {
    check_or_break(access_.write(peer, reinterpret_cast<uint64_t>(cell.payload), payload, bytes));
  }
  check_or_break(access_.write(peer, reinterpret_cast<uint64_t>(&cell.state), &word, sizeof word));
}

// ---- Owner --------------------------------------------------------------------------------------

// Waits until the thief has reported the end of the task in `cell`. Runs other tasks meanwhile.
template <typename Derived>
void PoolProtocol<Derived>::wait_for(Cell* cell) {
  const auto ended = [cell] { return cell->state.load(std::memory_order_acquire) != kRunning; };
  ++statistics_.syncs_stolen;
  if (ended()) return;
  ++statistics_.syncs_waited;
  const TraceScope trace("pool", "sync waits", "thief", cell->thief);
  const auto thief = static_cast<int>(cell->thief);
  for (uint64_t round = 0; !ended();) {
    if (attempt(Step::kLeapfrog, thief, self().level_of(thief)) || (!ended() && search(ended))) {
      round = 0;
      check_or_break(broken_);
      continue;
    }
    if (ended()) return;
    self().pause(round++);  // attempt() has answered the thieves
    run_calls_and_check_peers(round);
  }
}

template <typename Derived>
void PoolProtocol<Derived>::remove_stolen(Cell* cell) {
  deque.head = cell;
  set_tail(cell);
}

template <typename Derived>
void PoolProtocol<Derived>::await_stolen(const Kind& kind, void* result) {
  Cell* const cell = deque.head - 1;
  check_or_break(broken_);
  if (cell < cells_) misused("pool::sync() without a spawned task");
  if (cell->kind != &kind) misused("pool::sync() of another function than the newest spawn's");
  wait_for(cell);
  remove_stolen(cell);
  const EndOfTask end = EndOfTask::decode(cell->state.load(std::memory_order_relaxed));
  const uint64_t bytes = end.bytes;
  if (end.has_failed()) {
    throw_packed(end.kind == kFailedNamed ? FailureForm::kNamed : FailureForm::kHashed,
                 std::span(cell->payload, bytes));
  }
  if (bytes != kind.result_bytes) {
    check_or_break(make_error(absl::StatusCode::kInternal, ErrorScope::kPeer,
                              "a task's result has " + std::to_string(bytes) + " bytes, not " +
                                  std::to_string(kind.result_bytes)));
  }
  if (bytes != 0) std::memcpy(result, cell->payload, bytes);
}

template <typename Derived>
void PoolProtocol<Derived>::finish(Cell* mark) noexcept {
  if (deque.head < mark) {
    fail(make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                    "a pool task synced more tasks than it had spawned",
                    "sync each spawned task once, in the task that spawned it"));
    deque.head = mark;
  }
  while (deque.head != mark && broken_.ok()) {
    Cell* const cell = deque.head - 1;
    if (cell < deque.tail) {
      try {
        wait_for(cell);
      } catch (const RunIsBroken&) {
        break;
      }
      remove_stolen(cell);
      continue;
    }
    deque.head = cell;
    alignas(64) std::byte payload[pool::kPayloadBytes];
    std::memcpy(payload, cell->payload, sizeof payload);
    static_cast<void>(run_task(cell->kind->stub, payload));
  }
  if (!broken_.ok()) {
    deque.head = mark;
    if (deque.tail > mark) set_tail(mark);
  }
}

template <typename Derived>
void PoolProtocol<Derived>::no_room() const {
  throw std::length_error("the deque of the task pool is full: " +
                          std::to_string(options_.cells + options_.private_cells) +
                          " tasks are spawned and not synced; raise PoolOptions::private_cells");
}

// ---- Runs ---------------------------------------------------------------------------------------

template <typename Derived>
typename PoolProtocol<Derived>::FirstResult PoolProtocol<Derived>::run_first(const Kind& kind,
                                                                             std::byte* payload) {
  self().begin_unit(static_cast<uint64_t>(rank()));
  in_task_ = true;
  const IncomingCall call = run_task(kind.stub, std::span(payload, pool::kPayloadBytes));
  in_task_ = false;
  self().end_unit(static_cast<uint64_t>(rank()));
  if (call.outcome == CallOutcome::kDone) return {};
  return {cariama::internal::describe_exception(demangled(call.error_type), call.error_text)};
}

template <typename Derived>
bool PoolProtocol<Derived>::search_and_run() {
  bool found = false;
  try {
    while (broken_.ok() && search([] { return false; })) {
      found = true;
      idle_round_ = 0;
    }
  } catch (const RunIsBroken&) {
    return found;
  }
  ++statistics_.detections;
  record({.step = Step::kDetection});
  return found;
}

template <typename Derived>
void PoolProtocol<Derived>::pause_idle() {
  try {
    serve();
  } catch (const RunIsBroken&) {
  }
  self().pause(idle_round_++);
  check_peers_if_due(idle_round_);
}

template <typename Derived>
void PoolProtocol<Derived>::pause_task(uint64_t round) {
  try {
    serve();
  } catch (const RunIsBroken&) {  // the next sync() throws it
  }
  self().pause(round);
}

template <typename Derived>
bool PoolProtocol<Derived>::all_idle() {
  for (int peer = 0; peer < access_.size(); ++peer) {
    uint64_t status = kIdle;
    if (peer == rank()) {
      status = area_.status.load(std::memory_order_acquire);
    } else if (!mapped_.empty()) {
      status = area_of(peer).status.load(std::memory_order_acquire);
    } else {
      const absl::Status read = access_.read(peer, reinterpret_cast<uint64_t>(&area_.status),
                                             &area_.status_copy, sizeof(uint64_t));
      if (!read.ok()) fail(read);
      status = area_.status_copy;
    }
    if (status != kIdle) return false;
  }
  return true;
}

template <typename Derived>
void PoolProtocol<Derived>::run_until_all_idle() {
  for (;;) {
    set_idle();
    search_and_run();
    if (!broken_.ok() || all_idle()) return;
    pause_idle();
    self().run_calls();
  }
}

template <typename Derived>
void PoolProtocol<Derived>::run_calls_and_check_peers(uint64_t round) {
  const bool awaited = std::exchange(awaits_answer_, true);
  self().run_calls();
  awaits_answer_ = awaited;
  check_peers_if_due(round);
  check_or_break(broken_);
}

template <typename Derived>
PoolStatistics PoolProtocol<Derived>::statistics() const {
  PoolStatistics counts = statistics_;
  counts.round_trips = access_.round_trips() - trips_before_;
  return counts;
}

template <typename Derived>
void PoolProtocol<Derived>::reset_statistics() {
  statistics_ = {};
  trips_before_ = access_.round_trips();
}

}  // namespace cariama::tasks

#endif  // CARIAMA_TASKS_POOL_PROTOCOL_IMPL_H_
