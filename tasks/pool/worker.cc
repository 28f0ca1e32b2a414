#include "tasks/pool/worker.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/trace.h"
#include "tasks/internal/idle_policy.h"
#include "tasks/internal/steal_request.h"
#include "tasks/pool/failure.h"

namespace cariama {
namespace {

using pool::internal::Cell;

// The deque of a process without a running pool: it has no room, and communicate() does nothing.
const std::atomic<uint64_t> kAlwaysBlocked{pool::internal::kBlocked};
Cell no_cells[2];
// How long a worker that sees that a peer has left looks for the death that is the cause.
constexpr std::chrono::seconds kCausePatience{1};
constexpr std::chrono::milliseconds kCausePause{1};
constexpr uintptr_t kNever = UINTPTR_MAX & ~uintptr_t{63};
pool::internal::Deque unused_deque() {
  return {no_cells + 1, no_cells + 1, reinterpret_cast<Cell*>(kNever), no_cells + 1,
          &kAlwaysBlocked};
}
bool a_run_is_active() { return pool::internal::deque.limit != no_cells + 1; }

uint64_t nanoseconds(std::chrono::steady_clock::duration time) {
  return static_cast<uint64_t>(std::chrono::nanoseconds(time).count());
}

absl::Status cannot_be_completed(const std::string& why) {
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                    "the run of the task pool cannot be completed: " + why,
                    "start the job again, from a checkpoint of the application if it has one");
}

[[noreturn]] void misused(const char* text) { throw std::logic_error(text); }

}  // namespace

namespace pool::internal {

Deque deque = unused_deque();

void serve() {
  if (tasks::this_pool_worker != nullptr) tasks::this_pool_worker->serve();
}
void await_stolen(const Kind& kind, void* result) {
  if (!a_run_is_active()) misused("pool::sync() outside of TaskPool::run()");
  tasks::this_pool_worker->await_stolen(kind, result);
}
void finish(Cell* mark) noexcept {
  if (tasks::this_pool_worker != nullptr) tasks::this_pool_worker->finish(mark);
}
void no_room() {
  if (!a_run_is_active()) misused("pool::spawn() outside of TaskPool::run()");
  tasks::this_pool_worker->no_room();
}
void note_failure(IncomingCall& call) noexcept {
  call.outcome = CallOutcome::kThrew;
  try {
    const tasks::ExceptionText text = tasks::describe(std::current_exception());
    call.error_type = text.type;
    call.error_text = text.text;
  } catch (...) {  // no memory for the text
  }
}

}  // namespace pool::internal

namespace tasks {

using pool::internal::deque;
using pool::internal::kBlocked;
using pool::internal::kOpen;
using std::chrono::steady_clock;

PoolWorker* this_pool_worker = nullptr;

PoolWorker::PoolWorker(const PoolOptions& options, std::byte* memory, RemoteAccess& access,
                       Fabric& fabric, PoolUnits& units)
    : options_(options),
      idle_sleep_ns_(static_cast<uint64_t>(nanoseconds(options.idle_sleep))),
      shared_cells_(options.cells),
      access_(access),
      fabric_(fabric),
      units_(units),
      area_(*reinterpret_cast<PoolArea*>(memory)),
      cells_(reinterpret_cast<Cell*>(memory + cells_offset(access.size()))),
      victims_(options.victims, VictimOrder::kByDistance,
               options.seed + static_cast<uint64_t>(access.rank())),
      level_of_(static_cast<size_t>(access.size()), kVictimLevels - 1) {
  for (size_t level = 0; level < options.victims.size(); ++level) {
    for (const Rank peer : options.victims[level]) {
      level_of_[peer] = static_cast<uint8_t>(std::min(level, kVictimLevels - 1));
    }
  }
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
  this_pool_worker = this;
}

PoolWorker::~PoolWorker() {
  deque = unused_deque();
  this_pool_worker = nullptr;
}

void PoolWorker::fail(absl::Status status) {
  if (!broken_.ok() || status.ok()) return;
  broken_ = std::move(status);
  area_.status.store(kLeft, std::memory_order_release);
}

void PoolWorker::check_or_break(const absl::Status& status) {
  if (status.ok()) return;
  if (broken_.ok() && absl::IsUnavailable(status)) await_cause();
  fail(status);
  throw RunIsBroken();
}

// A transfer to a peer has failed. The peer may live, and may have left the run because a third
// process is dead: that process is the cause. Waits for some time until the fabric has noticed it.
void PoolWorker::await_cause() {
  const auto deadline = steady_clock::now() + kCausePatience;
  while (broken_.ok() && steady_clock::now() < deadline) {
    std::string dead;
    for (uint32_t peer = 0; peer < static_cast<uint32_t>(access_.size()); ++peer) {
      const absl::Status alive = fabric_.peer_status(peer);
      if (alive.ok()) continue;
      dead +=
          (dead.empty() ? "" : "; ") + fabric_.label(peer) + ": " + std::string(alive.message());
    }
    if (!dead.empty()) return fail(cannot_be_completed(dead));
    std::this_thread::sleep_for(kCausePause);
  }
}
template <typename T>
T PoolWorker::value_or_break(absl::StatusOr<T> value) {
  check_or_break(value.status());
  return *std::move(value);
}

void PoolWorker::enter(uint64_t status) {
  set_status(status);
  deque.head = cells_;
  deque.limit = cells_ + shared_cells_ + options_.private_cells;
  set_tail(cells_);
  deque.request = access_.size() == 1 ? &kAlwaysBlocked : &area_.request;
  idle_round_ = 0;
}

void PoolWorker::leave() {
  // The deque is empty. Every thief's request was answered, and later ones find kBlocked.
  if (broken_.ok()) {
    try {
      serve();
    } catch (const RunIsBroken&) {
    }
  }
  deque = unused_deque();
}

void PoolWorker::set_tail(Cell* tail) {
  deque.tail = tail;
  deque.publish_from = access_.size() == 1 ? reinterpret_cast<Cell*>(kNever) : tail + 2;
}

// ---- Victim -------------------------------------------------------------------------------------

uint64_t PoolWorker::OwnMemory::compare_swap(std::atomic<uint64_t>& word, uint64_t expected,
                                             uint64_t desired) const {
  ++worker.statistics_.blockings;
  if (worker.mapped_.empty()) {
    return worker.value_or_break(worker.access_.compare_swap(
        worker.rank(), reinterpret_cast<uint64_t>(&word), expected, desired));
  }
  word.compare_exchange_strong(expected, desired, std::memory_order_acq_rel);
  return expected;
}

void PoolWorker::serve() {
  if (access_.size() == 1) return;
  const bool has_tasks = deque.head >= deque.publish_from;
  const uint64_t ticket = has_tasks ? request_cell_.open() : request_cell_.close();
  if (ticket == kNoTicket) return;
  const int thief = thief_of(ticket);
  uint64_t count = 0;
  if (has_tasks) {
    count = how_many();
    statistics_.deepest_deque = std::max<uint64_t>(statistics_.deepest_deque,
                                                   static_cast<uint64_t>(deque.head - deque.tail));
    for (uint64_t i = 0; i < count; ++i) pack(area_.outgoing.parcels[i], deque.tail[i], thief);
    statistics_.handed_over += count;
    set_tail(deque.tail + count);
  }
  request_cell_.take(ticket, deque.head < deque.publish_from ? kBlocked : kOpen);
  answer(ticket, thief, count);
}

// Returns the rank that a request names. It indexes arrays, so a rank that cannot be ends the run.
int PoolWorker::thief_of(uint64_t request) {
  const int thief = rank_of_ticket(request);
  if (!names_a_thief(request, rank(), access_.size())) {
    check_or_break(make_error(absl::StatusCode::kInternal, ErrorScope::kPeer,
                              "a steal request names rank " + std::to_string(thief)));
  }
  return thief;
}

// Returns the number of tasks to hand over: at most all but one.
uint64_t PoolWorker::how_many() const {
  const auto tasks = static_cast<uint64_t>(deque.head - deque.tail);
  const uint64_t wanted = options_.steal == kStealHalf ? tasks / 2 : options_.steal;
  const auto shared =
      deque.tail < shared_end() ? static_cast<uint64_t>(shared_end() - deque.tail) : 0;
  return std::min({wanted, tasks - 1, shared, uint64_t{kMostParcels}});
}

void PoolWorker::pack(Parcel& parcel, Cell& cell, int thief) {
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
  units_.begin(static_cast<uint64_t>(thief));
  if (foreign) units_.end(ForeignTask::load(cell).sender);
  cell.thief = static_cast<uint64_t>(thief);
}

// Answers the request `ticket` of `thief` with the first `count` parcels of area_.outgoing.
void PoolWorker::answer(uint64_t ticket, int thief, uint64_t count) {
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
    there.answer.store(ticket, std::memory_order_release);
    return;
  }
  check_or_break(
      access_.write(thief, reinterpret_cast<uint64_t>(&area_.transfer), &area_.outgoing, bytes));
  check_or_break(
      access_.write(thief, reinterpret_cast<uint64_t>(&area_.answer), &ticket, sizeof ticket));
}

// ---- Thief --------------------------------------------------------------------------------------

void PoolWorker::record(const PoolAttempt& attempt) {
  if (log_.size() < options_.recorded_attempts) log_.push_back(attempt);
}

// Asks the victim for tasks. Returns the previous value of the victim's request cell: kOpen if the
// request is now in the cell.
uint64_t PoolWorker::request_from(int victim, uint64_t ticket) {
  if (mapped_.empty()) {
    return value_or_break(
        access_.compare_swap(victim, reinterpret_cast<uint64_t>(&area_.request), kOpen, ticket));
  }
  std::atomic<uint64_t>& request = area_of(victim).request;
  // A load first: most attempts find kBlocked, and a compare-and-swap would take the cache line
  // from its owner.
  uint64_t seen = request.load(std::memory_order_relaxed);
  if (seen != kOpen) return seen;
  request.compare_exchange_strong(seen, ticket, std::memory_order_acq_rel);
  return seen;
}

void PoolWorker::await_answer(uint64_t ticket) {
  for (uint64_t round = 0; area_.answer.load(std::memory_order_acquire) != ticket; ++round) {
    serve();
    idle_pause(round, idle_sleep_ns_);
    // The victim usually answers while this thief spins.
    if (round >= kSpinRounds) run_calls_and_check_peers(round);
  }
}

bool PoolWorker::attempt(Step step, int victim, size_t level) {
  serve();
  // The tasks that the victim may send must fit into the deque: a task that has arrived cannot be
  // refused.
  if (static_cast<uint64_t>(deque.limit - deque.head) < most_parcels(options_)) return false;
  const auto start = steady_clock::now();
  const uint64_t ticket = ticket_of(rank(), ++requests_sent_);
  PoolAttempt attempt{.step = step, .level = static_cast<uint8_t>(level), .victim = victim};
  const uint64_t seen = request_from(victim, ticket);
  if (seen == kOpen) {
    await_answer(ticket);
    const auto tasks =
        tasks_in(area_.transfer, most_parcels(options_), shared_cells_, access_.size());
    if (!tasks.has_value()) refuse_task(static_cast<uint64_t>(victim));
    attempt.tasks = *tasks;
    attempt.result = attempt.tasks != 0 ? Result::kStolen : Result::kRejected;
  } else {
    attempt.result = seen == kBlocked ? Result::kBlocked : Result::kBusy;
  }
  attempt.ns = nanoseconds(steady_clock::now() - start);
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

template <typename Done>
bool PoolWorker::search(const Done& done) {
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
void PoolWorker::refuse_task(uint64_t sender) {
  units_.end(sender);
  fail(make_error(absl::StatusCode::kInternal, ErrorScope::kPeer,
                  fabric_.label(static_cast<uint32_t>(sender)) + " handed over an invalid task",
                  "run the same program in every process"));
  throw RunIsBroken();
}

// Runs the tasks in the transfer cell: the first at once, the others from the deque, where they can
// be stolen meanwhile.
void PoolWorker::run_parcels(int victim, uint64_t count) {
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
void PoolWorker::run_foreign_cells(Cell* mark) {
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

IncomingCall PoolWorker::run_task(FunctionStub stub, std::span<std::byte> payload) {
  Cell* const mark = deque.head;
  IncomingCall call;
  call.closure = payload;
  stub(call);
  if (deque.head != mark) finish(mark);
  return call;
}

// Runs a task of another worker, and sends its result to that worker.
void PoolWorker::execute(uint32_t function, uint64_t origin, int from, std::byte* payload,
                         uint32_t bytes) {
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
    units_.end(static_cast<uint64_t>(from));
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
  units_.end(static_cast<uint64_t>(from));
}

void PoolWorker::send_result(Origin origin, const std::byte* payload, uint64_t bytes,
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
void PoolWorker::wait_for(Cell* cell) {
  const auto ended = [cell] { return cell->state.load(std::memory_order_acquire) != kRunning; };
  ++statistics_.syncs_stolen;
  if (ended()) return;
  ++statistics_.syncs_waited;
  const TraceScope trace("pool", "sync waits", "thief", cell->thief);
  const auto thief = static_cast<int>(cell->thief);
  for (uint64_t round = 0; !ended();) {
    if (attempt(Step::kLeapfrog, thief, level_of_[static_cast<size_t>(thief)]) ||
        (!ended() && search(ended))) {
      round = 0;
      check_or_break(broken_);
      continue;
    }
    if (ended()) return;
    idle_pause(round++, idle_sleep_ns_);  // attempt() has answered the thieves
    run_calls_and_check_peers(round);
  }
}

void PoolWorker::remove_stolen(Cell* cell) {
  deque.head = cell;
  set_tail(cell);
}

void PoolWorker::await_stolen(const Kind& kind, void* result) {
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

void PoolWorker::finish(Cell* mark) noexcept {
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

void PoolWorker::no_room() const {
  throw std::length_error("the deque of the task pool is full: " +
                          std::to_string(options_.cells + options_.private_cells) +
                          " tasks are spawned and not synced; raise PoolOptions::private_cells");
}

// ---- Runs ---------------------------------------------------------------------------------------

PoolWorker::FirstResult PoolWorker::run_first(const Kind& kind, std::byte* payload) {
  units_.begin(static_cast<uint64_t>(rank()));
  in_task_ = true;
  const IncomingCall call = run_task(kind.stub, std::span(payload, pool::kPayloadBytes));
  in_task_ = false;
  units_.end(static_cast<uint64_t>(rank()));
  if (call.outcome == CallOutcome::kDone) return {};
  return {call.error_text.empty() ? "an exception without a text" : call.error_text};
}

bool PoolWorker::search_and_run() {
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

void PoolWorker::pause_idle() {
  try {
    serve();
  } catch (const RunIsBroken&) {
  }
  idle_pause(idle_round_++, idle_sleep_ns_);
  check_peers_if_due(idle_round_);
}

void PoolWorker::pause_task(uint64_t round) {
  try {
    serve();
  } catch (const RunIsBroken&) {  // the next sync() throws it
  }
  idle_pause(round, idle_sleep_ns_);
}

bool PoolWorker::all_idle() {
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

void PoolWorker::check_peers_if_due(uint64_t round) {
  if (round >= kSpinRounds && steady_clock::now() >= next_check_) check_peers();
}

void PoolWorker::run_calls_and_check_peers(uint64_t round) {
  const bool awaited = std::exchange(awaits_answer_, true);
  static_cast<void>(fabric_.process_calls());
  awaits_answer_ = awaited;
  check_peers_if_due(round);
  check_or_break(broken_);
}

void PoolWorker::check_peers() {
  next_check_ = steady_clock::now() + kVictimCheckInterval;
  // When a peer dies, the workers that notice the death leave the run. The dead worker is the
  // cause, not the workers that have left.
  std::string failed;
  std::string left;
  for (int peer = 0; peer < access_.size() && broken_.ok(); ++peer) {
    if (peer == rank()) continue;
    const std::string& label = fabric_.label(static_cast<uint32_t>(peer));
    absl::Status alive = fabric_.peer_status(static_cast<uint32_t>(peer));
    // The fabric notices the deaths of processes to which it is connected, and it may have no
    // connection to this peer. A read through the pool's own connection fails if the peer is dead.
    if (alive.ok()) {
      alive = access_.read(peer, reinterpret_cast<uint64_t>(&area_.status), &area_.status_copy,
                           sizeof(uint64_t));
    }
    const uint64_t status = alive.ok() ? area_.status_copy : kIdle;
    if (!alive.ok()) {
      failed += (failed.empty() ? "" : "; ") + label + ": " + std::string(alive.message());
    }
    if (status == kLeft)
      left += (left.empty() ? "" : "; ") + label + " has left the run with an error";
  }
  if (failed.empty()) {
    if (left.empty()) return;
    // This worker may notice the death later than the worker that left the run because of it.
    if (!left_until_) left_until_ = steady_clock::now() + kCausePatience;
    if (steady_clock::now() < *left_until_) return;
  } else {
    await_cause();  // a peer that cannot be read may have left the run and ended its pool
  }
  failed += (failed.empty() || left.empty() ? "" : "; ") + left;
  fail(cannot_be_completed(failed));
}

PoolStatistics PoolWorker::statistics() const {
  PoolStatistics counts = statistics_;
  counts.round_trips = access_.round_trips() - trips_before_;
  return counts;
}

void PoolWorker::reset_statistics() {
  statistics_ = {};
  trips_before_ = access_.round_trips();
}

}  // namespace tasks
}  // namespace cariama
