#include "tasks/internal/scheduler.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "dtutils/error.h"
#include "dtutils/trace.h"
#include "tasks/internal/copy_frames.h"
#include "tasks/internal/sanitizer.h"

namespace cariama::tasks {
namespace {

using std::chrono::steady_clock;

uint64_t address_of(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

// What a fork outside of a task runs into: an entry that goes nowhere, and attention. The latter is
// also what makes each fork come to cariama_fork_attention() when closures are to be looked at.
uint64_t no_entries[1];
const std::atomic<uint64_t> kAlways{1};

// Of frames that lie where they belong: only the rank means something.
Reference in_place(int rank) { return {rank, kPinnedAddress + 1}; }

}  // namespace

extern "C" {
ForkState cariama_fork_state = {no_entries, no_entries, &kAlways, nullptr, 0, 0};
void cariama_fork_attention(uint64_t first, uint64_t second, uint64_t bytes, ChildFunction child) {
  worker_of_task("spawn")->attend({child, first, second, bytes});
}
void cariama_fork_end(uint64_t value) {
  if (!pop_parent()) end_with_value(&value, sizeof value);
}
}

Worker* this_worker = nullptr;

Worker* worker_of_task(const char* operation) {
  if (this_worker == nullptr || !this_worker->in_task()) {
    end_job(make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                       std::string(operation) + " outside of a task",
                       "call it from within TaskRuntime::run()"));
  }
  return this_worker;
}

void end_job(const absl::Status& status) {
  std::string text = "cariama tasks: ";
  if (this_worker != nullptr) text += "rank " + std::to_string(this_worker->rank()) + ": ";
  text += std::string(status.message());
  if (this_worker != nullptr) text += "; " + this_worker->what_is_lost() + ": the job ends";
  std::fprintf(stderr, "%s\n", text.c_str());
  std::fflush(stderr);
  _exit(70);  // EX_SOFTWARE; no destructor may run on a stack that is not its own
}

uint64_t Worker::OwnMemory::compare_swap(std::atomic<uint64_t>& word, uint64_t expected,
                                         uint64_t desired) const {
  return must(access.compare_swap(access.rank(), address_of(&word), expected, desired));
}

Worker::Worker(const TaskOptions& options, StackRegion& region, RemoteAccess& access,
               uint64_t canary)
    : options_(options),
      region_(region),
      access_(access),
      area_(area_of(region)),
      asked_(reinterpret_cast<AskCell*>(region.tail() + sizeof(WorkerArea) +
                                        static_cast<size_t>(access.size()) * sizeof(AtomicCell)),
             static_cast<size_t>(access.size())),
      entries_(reinterpret_cast<uint64_t*>(region.tail() + entries_offset(access.size()))),
      reports_(entries_ + entry_count(options)),
      guard_(region, "TaskOptions::stack_bytes", entries_),
      pinned_(options.pinned_bytes,
              [this](size_t index, const MemorySource& source) {
                return access_.add_segment(index, source);
              }),
      memory_{access},
      shelf_(memory_, area_.shelf),
      joins_(access, area_.join_copy),
      the_(memory_, area_.the),
      victims_(options.victims, options.victim_order,
               options.seed + static_cast<uint64_t>(access.rank())) {
  pinned_.on_collect([this](void* block) { exceptions_.erase(block); });
  cariama_fork_state = {entries_ + 1,
                        entries_ + 1,
                        options.check_closures || options.deque == DequeKind::kThe ||
                                options.scheme != StackScheme::kUni
                            ? &kAlways
                            : &area_.shelf.attention,
                        nullptr,
                        canary,
                        0};
  taken_from_.resize(static_cast<size_t>(access.size()));
  answered_.resize(static_cast<size_t>(access.size()));
  for (int peer = 0; peer < access.size(); ++peer) {
    void* const area = access.mapped(peer, address_of(&area_), sizeof area_);
    if (area == nullptr) {
      peers_.clear();
      break;
    }
    peers_.push_back(static_cast<WorkerArea*>(area));
  }
  if (access.size() > 1) area_.shelf.attention.store(kRefill, std::memory_order_relaxed);
  if (options.scheme == StackScheme::kIso) {
    iso_.emplace(options, region, access.rank(), access.size(),
                 reinterpret_cast<std::atomic<uint64_t>*>(region.tail() +
                                                          words_offset(options, access.size())));
    guard_.watch(*iso_);
  }
  this_worker = this;
}

Worker::~Worker() {
  this_worker = nullptr;
  cariama_fork_state = {no_entries, no_entries, &kAlways, nullptr, 0, 0};
}

// ---- called by running tasks ----

void Worker::attend(const FirstCall& child) {
  if (options_.check_closures) {
    if (child.bytes != 0) {
      check_closure(reinterpret_cast<const void*>(child.first), child.bytes);
    } else {
      const uint64_t words[2] = {child.first, child.second};
      check_closure(words, sizeof words);
    }
  }
  if (options_.scheme != StackScheme::kUni) fork_apart(child);
  attend();
}

void Worker::check_closure(const void* closure, size_t bytes) const {
  const auto lowest = address_of(__builtin_frame_address(0));
  const auto end = address_of(stack_end());
  for (size_t offset = 0; offset + sizeof(uint64_t) <= bytes; offset += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(closure) + offset, sizeof word);
    if (word < lowest || word >= end) continue;
    end_job(make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                       "a task was spawned with a pointer or reference to a local of a task",
                       "pass values: the local may be in another process when the child uses it"));
  }
}

void Worker::attend() {
  if (options_.deque == DequeKind::kThe) return attend_the();
  if (options_.deque == DequeKind::kPrivate) return answer_requests();
  std::atomic<uint64_t>& attention = area_.shelf.attention;
  const uint64_t wanted = attention.load(std::memory_order_relaxed);
  if (wanted == kCalm) return;
  if (shelf_.count() != 0) {
    attention.store(kCalm, std::memory_order_relaxed);
    return;
  }
  if (options_.scheme != StackScheme::kUni) return publish_parents(wanted);
  // Whoever forked in a catch block, or while one is looked for, has to come back to its exception.
  if (!exceptions().empty()) return;
  // Private entries that may go: up to the first tied one, since the oldest goes first.
  uint64_t* const floor = cariama_fork_state.floor;
  uint64_t* end = floor;
  while (end < cariama_fork_state.top && end < floor + 2 * kShelfSlots && (*end & kForkTied) == 0) {
    ++end;
  }
  const auto spare = static_cast<size_t>(end - floor);
  const uint32_t count = how_many_to_publish(wanted, spare);
  if (count == 0) return;
  // Before it is published: a thief that takes the last one asks for more.
  attention.store(kCalm, std::memory_order_relaxed);
  const auto position = static_cast<size_t>(floor - entries_);
  for (size_t i = position; i < position + count; ++i) {
    if (reports_[i] == 0) reports_[i] = new_record().word();
    if (options_.check_frames) check_frames(sp_of(entries_[i]), sp_of(entries_[i - 1]));
  }
  make_public(
      [&](uint32_t i) {
        const size_t at = position + i;
        return PublicEntry{sp_of(entries_[at]), sp_of(entries_[at - 1]), reports_[at - 1],
                           reports_[at]};
      },
      count);
  cariama_fork_state.floor = floor + count;
}

bool Worker::take_parent_back() {
  uint64_t* const top = cariama_fork_state.top;
  if (top == entries_) return false;
  if (options_.deque == DequeKind::kThe) {
    const auto position = static_cast<uint64_t>(top - entries_);
    if (!the_.pop(position, [this](uint64_t round) { await_thief(round); })) return false;
    cariama_fork_state.floor = top;
    return true;
  }
  // (Nothing is ever public where thieves ask: what is not private has been handed over.)
  if (!shelf_.take_back()) return false;
  cariama_fork_state.floor = top;
  ++statistics_.taken_back;
  shelf_.refill_if_empty();
  return true;
}

uint64_t Worker::task_top() const { return sp_of(entries_[depth() - 1]); }

ExceptionState Worker::take_exceptions() {
  leaving_.exceptions = std::exchange(exceptions(), {});
  if (leaving_.exceptions.empty()) return {};
  return split_exceptions(leaving_.exceptions, task_top());
}

void Worker::end_task(const Outcome& outcome) {
  leaving_.why = Leaving::Why::kEnded;
  // `top` is where the entry of the parent was that could not be taken back.
  leaving_.next = deliver(Reference(reports_[depth()]), outcome);
  before_leave(stack_end());
  cariama_leave();
}

namespace {

// Returns when the task is continued, maybe in another process (unless exceptions are active).
[[gnu::noinline]] void leave(void** sp) {
  const ExceptionState exceptions = this_worker->take_exceptions();
  const bool lets_others_run = std::exchange(this_worker->lets_others_run, false);
  before_leave(this_worker->stack_end());
  cariama_suspend(sp);
  arrived_on_stack();
  // On top of its parent's, if that never went on.
  if (!exceptions.empty()) join_exceptions(this_worker->exceptions(), exceptions);
  this_worker->lets_others_run = lets_others_run;
}

}  // namespace

Outcome join(Reference record) {
  for (;;) {
    Worker& worker = *worker_of_task("join");  // each time round: it may be another process
    std::optional<Outcome> outcome = worker.look(record);
    if (outcome.has_value()) return *outcome;
    worker.wait_for(record);
  }
}

std::optional<Outcome> Worker::look(Reference record) {
  const std::optional<Outcome> outcome = must(joins_.look(record));
  if (outcome.has_value()) release(record);
  return outcome;
}

void Worker::wait_for(Reference record) {
  ++statistics_.joins_waited;
  trace_instant("tasks", "join waits");
  // A task that handles exceptions waits where they are: in this worker's queue.
  const bool stays = options_.join == JoinPolicy::kWaitQueue || handles_exceptions();
  leaving_.why = Leaving::Why::kJoin;
  leaving_.record = record;
  leaving_.stays = stays;
  leave(&leaving_.sp);
}

void Worker::suspend(void (*publish)(void*, const Suspended&), void* argument) {
  if (handles_exceptions()) {
    throw std::logic_error("cariama::suspend: an exception is being handled");
  }
  leaving_.why = Leaving::Why::kSuspend;
  leaving_.publish = publish;
  leaving_.argument = argument;
  leave(&leaving_.sp);
}

void Worker::yield() {
  leaving_.why = Leaving::Why::kYield;
  leave(&leaving_.sp);
}

// ---- records and outcomes ----

void* Worker::allocate(size_t bytes) {
  void* block = pinned_.reuse(bytes);
  if (block == nullptr) block = must(pinned_.allocate(bytes));
  after_peers();
  return block;
}

void Worker::release(Reference block) {
  if (block.rank() == rank()) {
    pinned_.release(reinterpret_cast<void*>(block.address()));
  } else {
    const uint64_t released = 1;
    must(access_.write(block.rank(), PinnedArea::release_address(block.address()), &released,
                       sizeof released));
  }
}

Reference Worker::new_record(size_t more) {
  auto* record = new (allocate(sizeof(JoinRecord) + more)) JoinRecord;
  record->arrivals.store(0, std::memory_order_relaxed);
  before_peers();
  ++statistics_.records;
  return {rank(), record};
}

Outcome Worker::value_outcome(const void* value, size_t bytes) {
  if (bytes > UINT32_MAX) {
    end_job(make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                       "a task's result of " + std::to_string(bytes) + " bytes is too large",
                       "return less than 4 GiB, or leave it in global memory"));
  }
  Outcome outcome;
  outcome.kind = OutcomeKind::kValue;
  outcome.bytes = static_cast<uint32_t>(bytes);
  void* to = outcome.value;
  if (bytes > Outcome::kInlineBytes) {
    outcome.kind = OutcomeKind::kFar;
    to = allocate(bytes);
    outcome.block = Reference(rank(), to).word();
  }
  if (bytes != 0) std::memcpy(to, value, bytes);
  return outcome;
}

Outcome Worker::failed_outcome(const std::exception_ptr& exception) {
  ExceptionText text = describe(exception);
  text.type += '\0';
  text.type += text.text;
  Outcome outcome;
  outcome.kind = OutcomeKind::kFailed;
  outcome.bytes = static_cast<uint32_t>(text.type.size());
  void* block = allocate(text.type.size());
  std::memcpy(block, text.type.data(), text.type.size());
  exceptions_[block] = exception;
  pinned_.mark(block);
  outcome.block = Reference(rank(), block).word();
  return outcome;
}

Suspended Worker::deliver(Reference record, const Outcome& outcome) {
  return must(joins_.deliver(record, outcome));
}

std::vector<std::byte> Worker::fetch(const Outcome& outcome) {
  std::vector<std::byte> bytes(outcome.bytes);
  if (outcome.bytes == 0) {
  } else if (outcome.block == 0) {
    std::memcpy(bytes.data(), outcome.value, bytes.size());
  } else if (const Reference block(outcome.block); block.rank() == rank()) {
    std::memcpy(bytes.data(), reinterpret_cast<const void*>(block.address()), bytes.size());
  } else {
    void* copy = allocate(bytes.size());
    must(access_.read(block.rank(), block.address(), copy, bytes.size()));
    std::memcpy(bytes.data(), copy, bytes.size());
    pinned_.release(copy);
  }
  return bytes;
}

void Worker::take_value(const Outcome& outcome, void* value, size_t bytes) {
  if (bytes == 0) return drop(outcome);
  if (outcome.bytes != bytes) {
    end_job(make_error(absl::StatusCode::kInternal, ErrorScope::kProcess,
                       "a task's result has " + std::to_string(outcome.bytes) + " bytes, not " +
                           std::to_string(bytes)));
  }
  if (outcome.block == 0) {
    if (bytes != 0) std::memcpy(value, outcome.value, bytes);
    return;
  }
  const Reference block(outcome.block);
  if (block.rank() == rank()) {
    std::memcpy(value, reinterpret_cast<const void*>(block.address()), bytes);
  } else {
    // `value` is a local of a task: the region is registered.
    must(access_.read(block.rank(), block.address(), value, bytes));
  }
  release(block);
}

std::vector<std::byte> Worker::take_bytes(const Outcome& outcome) {
  std::vector<std::byte> bytes = fetch(outcome);
  drop(outcome);
  return bytes;
}

void Worker::drop(const Outcome& outcome) {
  if (outcome.block != 0) release(Reference(outcome.block));
}

void Worker::rethrow(const Outcome& outcome) {
  const Reference block(outcome.block);
  if (block.rank() == rank()) {
    const auto found = exceptions_.find(reinterpret_cast<const void*>(block.address()));
    const std::exception_ptr exception = found->second;
    release(block);
    std::rethrow_exception(exception);
  }
  const std::vector<std::byte> bytes = take_bytes(outcome);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t end = text.find('\0');
  throw_described(text.substr(0, end), text.substr(end + 1));
}

// ---- on the scheduler's stack ----

absl::StatusOr<Worker::RootResult> Worker::run_root(ChildFunction root, uint64_t first,
                                                    uint64_t second) {
  ++runs_;
  const Reference record = new_record();
  auto* const state = reinterpret_cast<JoinRecord*>(record.address());
  settle();
  begin(new_stack(), record, {root, first, second, 0});
  work([state] { return state->arrivals.load(std::memory_order_acquire) != 0; });
  const Outcome outcome = state->outcome;
  RootResult result;
  if (outcome.kind == OutcomeKind::kFailed) {
    try {
      rethrow(outcome);
    } catch (const std::exception& error) {
      result.exception = error.what();
    } catch (...) {
      result.exception = "an exception that is not a std::exception";
    }
  } else {
    result.bytes = take_bytes(outcome);
  }
  release(record);
  for (int peer = 0; peer < access_.size(); ++peer) {
    if (peer == rank()) continue;
    const absl::Status status =
        access_.write(peer, address_of(&area_.finished), &runs_, sizeof runs_);
    if (!status.ok()) return status;
    wake_peer(peer);
  }
  return result;
}

void Worker::run_until_finished() {
  ++runs_;
  work([this] { return area_.finished.load(std::memory_order_acquire) >= runs_; });
}

template <typename Finished>
void Worker::work(const Finished& finished) {
  run_has_ended_ = finished;
  exception_state_ = &exception_state();
  for (;;) {
    if (next_.sp == nullptr && !find_work(finished)) break;
    run(std::exchange(next_, {}));
    after(leaving_);
  }
  run_has_ended_ = {};
  // Tasks that nobody will ever continue.
  ready_.clear();
  waiting_.clear();
}

void Worker::first_entry(void* argument) {
  arrived_on_stack();
  const FirstCall call = *static_cast<FirstCall*>(argument);
  // There is no parent to come back to, and its place is no private entry: a result that is more
  // than a word ends the task by itself.
  const ForkResult result =
      call.function(call.first, call.second, &cariama_fork_state, cariama_fork_state.top - 1);
  cariama_fork_end(result.value);
  std::abort();
}

void Worker::begin(std::byte* top, Reference record, const FirstCall& call) {
  first_call_ = call;
  install(address_of(top), record.word(),
          {make_context(top - kChildWordBytes, first_entry, &first_call_), 0});
}

// Part of work(): the processor foretells returns by the calls before them, and after a change of
// stacks each return out of a function that was called before it goes wrong.
[[gnu::always_inline]] inline void Worker::run(const Context& context) {
  in_task_ = true;
  ++stretches_;
  const TraceScope trace("tasks", "run");
  const std::span<std::byte> stack = stack_of(context.sp);
  before_run(stack.data(), stack.size());
  cariama_run(context.sp, context.record);
  after_run();
  in_task_ = false;
}

void Worker::after(const Leaving& left) {
  switch (left.why) {
    case Leaving::Why::kEnded:
      if (iso_.has_value()) end_stack();
      if (left.next.frames != 0) install(left.next);
      break;
    case Leaving::Why::kJoin:
      wait_for_child(left);
      break;
    case Leaving::Why::kSuspend: {
      Suspended task;
      park(left.sp, task);
      left.publish(left.argument, task);
      break;
    }
    case Leaving::Why::kYield:
      ready_.emplace_back();
      park(left.sp, ready_.back());
      yielded_ = true;
      break;
    case Leaving::Why::kFork:
      begin_apart(left);
      break;
  }
}

void Worker::park(void* sp, Suspended& task) {
  const TraceScope trace("tasks", "suspend");
  const size_t position = depth() - 1;
  parked_top_ = cariama_fork_state.top;
  popped_ = false;
  task.sp = address_of(sp);
  task.top = sp_of(entries_[position]);
  ++statistics_.suspensions;
  if (iso_.has_value()) {
    task.frames = in_place(rank()).word();
  } else {
    const size_t bytes = task.top - task.sp;
    void* frames = allocate(bytes + PinnedArea::kNoteBytes);
    copy_frames(frames, sp, bytes);
    pinned_.note_frames(frames, task.sp, task.top);
    task.frames = Reference(rank(), frames).word();
    statistics_.suspended_bytes += bytes;
  }
  task.report = reports_[position];
  if (position == 0) return;
  // Its parent goes on here, if it is still here: as if stolen by ourselves.
  uint64_t* const top = cariama_fork_state.top = entries_ + position;
  if (top < cariama_fork_state.floor && !take_parent_back()) return;
  popped_ = true;
  if (task.report == 0) task.report = new_record().word();
  reports_[position] = 0;
  next_ = {reinterpret_cast<void*>(sp_of(*top)), task.report};
  exceptions() = leaving_.exceptions;
}

void Worker::unpark(const Suspended& task) {
  cariama_fork_state.top = parked_top_;
  // Nobody has seen the record: the next entry at this position may have it.
  if (popped_) reports_[depth() - 1] = task.report;
  next_ = {reinterpret_cast<void*>(task.sp), 0};
  if (!iso_.has_value()) release(Reference(task.frames));
}

void Worker::wait_for_child(const Leaving& left) {
  Suspended task;
  park(left.sp, task);
  if (left.stays) {
    waiting_.push_back({task, left.record});
    return;
  }
  // False: the child has ended since we looked, and goes its way.
  if (!must(joins_.wait(left.record, task))) unpark(task);
}

template <typename Finished>
bool Worker::find_work(const Finished& finished) {
  const TraceScope trace("tasks", "idle");
  settle();
  if (options_.scheme != StackScheme::kUni && resume_parent()) return true;
  // By steal_clock(), and not read when there is something at once, or between finding it and
  // running it: any clock takes a good part of the time that this takes.
  uint64_t begin = 0;
  uint64_t end = 0;
  bool found = false;
  for (uint64_t round = 0; !finished(); ++round) {
    if (on_idle_) on_idle_();
    if (options_.deque == DequeKind::kPrivate) answer_requests();
    // A task that only waits its turn lets stolen ones go first, once; now and then only where the
    // answer of a victim has to be waited for, who may not be running.
    constexpr uint64_t kAskEvery = 16;
    const bool steal_first = std::exchange(yielded_, false) && !victims_.empty() &&
                             (options_.deque != DequeKind::kPrivate || stretches_ % kAskEvery == 0);
    if (steal_first && steal(victims_.next())) {
      found = true;
    } else if (!ready_.empty()) {
      const Suspended task = ready_.front();
      ready_.pop_front();
      install(task);
      found = true;
    } else if (!victims_.empty() && steal(victims_.next())) {
      found = true;
    } else {
      found = resume_waiting();
    }
    if (found) break;
    if (round == 0) begin = steal_clock();
    pause_idle(round, finished);
    end = steal_clock();
  }
  idle_ticks_ += end - begin;
  return found;
}

bool Worker::resume_waiting() {
  if (waiting_.empty()) return false;
  const Waiting oldest = waiting_.front();
  waiting_.pop_front();
  if (!has_arrived(oldest.record)) {
    waiting_.push_back(oldest);
    return false;
  }
  install(oldest.task);
  return true;
}

bool Worker::has_arrived(Reference record) { return must(joins_.look(record)).has_value(); }

void Worker::install(uint64_t top, uint64_t report, const Context& context) {
  entries_[0] = top;
  reports_[0] = report;
  close_stack(reinterpret_cast<void*>(top));
  orphan(reinterpret_cast<void*>(top));
  next_ = context;
}

void Worker::install(const Suspended& task) {
  settle();
  const Reference frames(task.frames);
  void* const sp = reinterpret_cast<void*>(task.sp);
  ++statistics_.resumed;
  const uint64_t from = iso_.has_value() ? task.sp : frames.address();
  if (frames.rank() != rank()) {
    ++statistics_.resumed_remote;
    must(access_.read(frames.rank(), from, sp, task.top - task.sp));
  } else if (from != task.sp) {
    copy_frames(sp, reinterpret_cast<const void*>(from), task.top - task.sp);
  }
  if (!iso_.has_value()) release(frames);
  install(task.top, task.report, {sp, 0});
}

std::pair<const std::atomic<uint64_t>*, uint64_t> Worker::new_token() {
  // Serials begin at 1: the words are zeros at first.
  const uint64_t serial = must(access_.fetch_add(0, address_of(&area_.tokens), 1)) + 1;
  return {&area_.cancelled[serial % kCancellationTokens], serial};
}

void Worker::cancel(const std::atomic<uint64_t>* word, uint64_t serial) {
  for (int peer = 0; peer < access_.size(); ++peer) {
    must(access_.write(peer, address_of(word), &serial, sizeof serial));
  }
}

void Worker::make_ready(const Suspended& task) { ready_.push_back(task); }

TaskStatistics Worker::statistics() const {
  TaskStatistics statistics = statistics_;
  if (!iso_.has_value()) statistics.stack_high_water = region_.high_water();
  statistics.stack_reserved = region_.stack_bytes();
  statistics.pinned_bytes = pinned_.segment_total();
  const auto ns = static_cast<double>((steady_clock::now() - created_).count());
  const auto ticks = static_cast<double>(steal_clock() - created_tick_);
  statistics.idle_ns = static_cast<uint64_t>(static_cast<double>(idle_ticks_) * ns / ticks);
  return statistics;
}

}  // namespace cariama::tasks
