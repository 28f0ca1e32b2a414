#include <time.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/internal/fabric_core.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

constexpr size_t kReceiveBatch = 32;

// Returns the steady clock's time, some milliseconds late, at a tenth of the steady clock's price.
// Checks for a due heartbeat are far more frequent than heartbeats.
Deadline coarse_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Deadline(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

// The core whose call the calling thread is running, and the rank that sent the call.
thread_local FabricCore* running_core = nullptr;
thread_local uint32_t running_rank = 0;
// The fabric of which the calling thread is a worker, and its index there.
thread_local FabricCore* worker_core = nullptr;
thread_local uint32_t worker_index = kNoThread;
// The worker whose calls the calling thread is running, and its fabric.
thread_local FabricCore* consumed_core = nullptr;
thread_local uint32_t consumed_index = kNoThread;

class Running {
 public:
  Running(FabricCore* core, uint32_t rank) : core_(running_core), rank_(running_rank) {
    running_core = core;
    running_rank = rank;
  }
  ~Running() {
    running_core = core_;
    running_rank = rank_;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  FabricCore* core_;
  uint32_t rank_;
};

}  // namespace

FabricCore* FabricCore::running() { return running_core; }
void FabricCore::set_running(FabricCore* core, uint32_t rank) {
  running_core = core;
  running_rank = rank;
}
uint32_t FabricCore::running_source() { return running_rank; }
uint32_t FabricCore::this_worker() const { return worker_core == this ? worker_index : kNoThread; }

// ---- Arrival ------------------------------------------------------------------------------------

size_t FabricCore::poll_port(Port& port) {
  if (port.polling.load(std::memory_order_relaxed) ||
      port.polling.exchange(true, std::memory_order_acquire)) {
    return 0;
  }
  std::array<Completion, kReceiveBatch> batch;
  const size_t count = port.receives->poll(batch);
  for (size_t i = 0; i < count; ++i) {
    const Completion& completion = batch[i];
    auto* const unit = reinterpret_cast<ArrivedMessage*>(completion.id);
    Connection& connection = *unit->connection;
    if (completion.status != CompletionStatus::kSuccess) [[unlikely]] {
      Peer& peer = *peers_[connection.rank()];
      connection.queue().progress();
      const absl::Status known = connection.status();
      fail_peer(peer, known.ok() ? to_status(completion, peer.label) : known);
      continue;
    }
    static_cast<void>(connection.unit_of(completion));
    if (completion.kind == CompletionKind::kReceiveImmediate) {
      CallSourceRegistry* const registry = call_source_registry_.load(std::memory_order_acquire);
      if ((completion.immediate & kCallSourceEvent) == 0) {
        wake(completion.immediate);
      } else if (registry != nullptr) {
        registry->event(connection.rank(), completion.immediate & ~kCallSourceEvent);
      }
      finish(unit);
    } else {
      deliver(unit);
    }
  }
  port.polling.store(false, std::memory_order_release);
  if (count != 0) notify_waiters();
  return count;
}

void FabricCore::deliver(ArrivedMessage* message) {
  MessageHeader header;
  if (message->size < sizeof header + sizeof(CallHeader)) {
    reject(message->rank, "it is too short");
    return end(message);
  }
  std::memcpy(&header, message->bytes, sizeof header);
  if (header.destination == kNoThread) return run(message);
  if (header.destination >= threads_) {
    reject(message->rank, "its destination is not a thread of this process");
    return end(message);
  }
  Connection* const connection = message->connection;
  if (connection != nullptr && connection->hold(message) && reserve(held_bytes_, message->size)) {
    auto* const copy = new OwnMessage(message->size, message->rank);
    std::memcpy(copy->bytes, message->bytes, message->size);
    finish(message);
    message = copy;
  }
  Worker& worker = *workers_[header.destination];
  worker.inbox.push(message);
  // This load comes after the push, and both are sequentially consistent. take_worker() stores the
  // consumer, then wakes the helpers, which examine the inbox. So this thread sees the new
  // consumer, or the helpers see the message.
  if (worker.consumer.load(std::memory_order_seq_cst) != CallConsumer::kThread) {
    helpers_wake_->wake();
  }
  if (finalizing_.load(std::memory_order_seq_cst)) notify_waiters();
}

void FabricCore::reject(uint32_t from, std::string_view why) {
  // Reports only rejections number 1, 2, 4, 8, ..., so that a flood of invalid calls does not flood
  // stderr.
  const uint64_t count = calls_rejected_.fetch_add(1, std::memory_order_relaxed) + 1;
  if ((count & (count - 1)) != 0) return;
  std::fprintf(stderr, "cariama: rank %u rejected a call from %s: %.*s (%lu so far)\n", rank_,
               label(from).c_str(), static_cast<int>(why.size()), why.data(),
               static_cast<unsigned long>(count));
}

void FabricCore::finish(ArrivedMessage* unit) {
  Connection& connection = *unit->connection;
  if (connection.finish(unit)) [[likely]]
    return;
  Port& port = *peers_[connection.rank()]->port;
  port.owes_credits.store(true, std::memory_order_seq_cst);
  port.channel->wake();
}

// Called when the message has been run or dropped, and every call that it caused has been sent.
void FabricCore::end(ArrivedMessage* message) {
  peers_[message->rank]->ended.fetch_add(1, std::memory_order_seq_cst);
  if (message->connection != nullptr) {
    finish(message);
  } else {
    held_bytes_.fetch_sub(message->size, std::memory_order_relaxed);
    delete static_cast<OwnMessage*>(message);
  }
}

void FabricCore::run(ArrivedMessage* message) {
  const uint32_t from = message->rank;
  if (message->resume) {
    const Running running(this, from);
    message->resume.resume();
    return end(message);
  }
  MessageHeader header;
  std::memcpy(&header, message->bytes, sizeof header);
  auto parsed = parse_call({message->bytes + sizeof header, message->size - sizeof header});
  if (!parsed.ok()) {
    reject(from, parsed.status().message().data());
  } else {
    std::string result;
    IncomingCall call;
    call.closure = parsed->closure;
    call.source_thread = header.source;
    if ((parsed->header.flags() & kCallReturn) != 0) call.result = &result;
    if (parsed->has_notify) call.notify = &parsed->notify;
    const Running running(this, from);
    run_call(parsed->header, call);
    if (call.outcome == CallOutcome::kDone || call.outcome == CallOutcome::kThrew) {
      calls_run_.fetch_add(1, std::memory_order_relaxed);
    } else {
      reject(from, call.outcome == CallOutcome::kUnknown ? "no function has its id"
                                                         : "its closure is malformed");
    }
    if (!call.answered_later) answer(from, call.notify, call, result);
  }
  end(message);
}

// ---- Pulled buffers -----------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Pull>> FabricCore::begin_pull(uint32_t rank,
                                                             const RemoteMemoryLocator& source) {
  auto pull = std::make_unique<Pull>();
  pull->rank = rank;
  pull->size = source.length;
  auto buffer = memory_->allocate(source.length);
  if (!buffer.ok()) return buffer.status();
  pull->buffer = *buffer;
  absl::Status begun;
  if (rank == rank_) {
    std::memcpy(pull->buffer.get_buffer(), reinterpret_cast<const void*>(source.address),
                source.length);
    pull->done.decrease();
  } else if (auto connected = connection_of_this_thread(rank); !connected.ok()) {
    begun = connected.status();
  } else {
    pull->connection = *connected;
    begun = transfer(**connected, [&](Connection& through) {
      return through.read(pull->buffer, 0, pull->size, source, &pull->done);
    });
  }
  if (begun.ok()) return pull;
  static_cast<void>(memory_->free(pull->buffer));
  return begun;
}

void pull_and_run(IncomingCall& call, const RemoteMemoryLocator& source, Pulling pulling,
                  std::unique_ptr<PulledFunction> function) {
  FabricCore& core = *FabricCore::running();
  const uint32_t rank = FabricCore::running_source();
  auto begun = core.begin_pull(rank, source);
  if (!begun.ok()) throw std::runtime_error(std::string(begun.status().message()));
  Pull& pull = **begun;
  if (pulling == Pulling::kAsync) {
    pull.function = std::move(function);
    if (call.notify != nullptr) pull.notify = *call.notify;
    call.answered_later = true;
    return core.end_pull_later(*std::move(begun));
  }
  // Frees the buffer on every path.
  const struct Holder {
    ~Holder() { static_cast<void>(core.memory().free(pull.buffer)); }
    FabricCore& core;
    Pull& pull;
  } holder{core, pull};
  if (pull.connection != nullptr) {
    if (absl::Status came = core.await_transfer(*pull.connection, pull.done); !came.ok()) {
      throw std::runtime_error(std::string(came.message()));
    }
  }
  function->run(pull.buffer.get_buffer(), pull.size);
}

void FabricCore::end_pull_later(std::unique_ptr<Pull> pull) {
  peers_[pull->rank]->begun.fetch_add(1, std::memory_order_seq_cst);
  const std::lock_guard lock(pulls_mutex_);
  pulls_.push_back(std::move(pull));
  pull_count_.fetch_add(1, std::memory_order_release);
  if (options_.service_threads != 0 && !puller_.joinable()) {
    puller_ = std::thread([this] { pull_until_stopped(); });
  }
  pulls_wake_.wake();
}

size_t FabricCore::run_pulls() {
  if (pull_count_.load(std::memory_order_acquire) == 0) return 0;
  if (running_pulls_.exchange(true, std::memory_order_acquire)) return 0;
  std::vector<std::unique_ptr<Pull>> there;
  {
    const std::lock_guard lock(pulls_mutex_);
    for (auto& pull : pulls_) {
      if (pull->connection != nullptr) pull->connection->poll_sends();
      const bool lost = pull->connection != nullptr && !pull->done.done() &&
                        !pull->connection->status().ok() && !pull->connection->awaited();
      if (lost) pull->done.fail(pull->connection->status());
      if (pull->done.done()) there.push_back(std::move(pull));
    }
    std::erase(pulls_, nullptr);
  }
  for (auto& pull : there) {
    const Running running(this, pull->rank);
    IncomingCall call;
    try {
      if (absl::Status came = pull->done.status(); !came.ok()) {
        throw std::runtime_error(std::string(came.message()));
      }
      pull->function->run(pull->buffer.get_buffer(), pull->size);
    } catch (...) {
      note_exception(call);
    }
    static_cast<void>(memory_->free(pull->buffer));
    answer(pull->rank, pull->notify ? &*pull->notify : nullptr, call, "");
    peers_[pull->rank]->ended.fetch_add(1, std::memory_order_seq_cst);
  }
  pull_count_.fetch_sub(there.size(), std::memory_order_relaxed);
  running_pulls_.store(false, std::memory_order_release);
  if (!there.empty()) notify_waiters();
  return there.size();
}

void FabricCore::pull_until_stopped() {
  WakeWordParking parking(pulls_wake_);
  const auto stopped = [&] { return stopping_.load(std::memory_order_acquire); };
  while (!stopped()) {
    const auto look = [&] { return run_pulls() != 0 || stopped(); };
    // While a READ is in flight this thread must poll for its completion, so it does not sleep.
    const bool idle = pull_count_.load(std::memory_order_acquire) == 0;
    static_cast<void>(wait_until(
        [&] { return look() || (idle && pull_count_.load(std::memory_order_acquire) != 0); },
        kForever, idle ? &parking : nullptr));
  }
}

// ---- Workers ------------------------------------------------------------------------------------

absl::Status FabricCore::take_worker(uint32_t index, CallConsumer consumer,
                                     ThreadContext* context) {
  if (index >= threads_) {
    return make_error(absl::StatusCode::kOutOfRange, ErrorScope::kOperation,
                      "there is no worker " + std::to_string(index) + ": the process has " +
                          std::to_string(threads_) + " threads",
                      "raise threads");
  }
  if (worker_core != nullptr) {
    return make_error(absl::StatusCode::kAlreadyExists, ErrorScope::kOperation,
                      "this thread is worker " + std::to_string(worker_index) + " already");
  }
  if (consumer == CallConsumer::kHelpers && options_.helper_threads == 0) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      "this fabric has no helper threads", "set helper_threads");
  }
  Worker& worker = *workers_[index];
  if (worker.taken.exchange(true)) {
    return make_error(absl::StatusCode::kAlreadyExists, ErrorScope::kOperation,
                      "another thread is worker " + std::to_string(index) + " of this process");
  }
  worker.context.store(context, std::memory_order_release);
  worker.consumer.store(consumer, std::memory_order_seq_cst);
  if (consumer == CallConsumer::kProcess) {
    const std::lock_guard lock(process_consumer_mutex_);
    if (!process_consumer_.joinable()) {
      process_consumer_ = std::thread([this] { help(CallConsumer::kProcess); });
    }
  }
  helpers_wake_->wake();  // calls may have arrived before
  worker_core = this;
  worker_index = index;
  return absl::OkStatus();
}

void FabricCore::leave_worker(uint32_t index) {
  Worker& worker = *workers_[index];
  worker.context.store(nullptr, std::memory_order_release);
  worker.taken.store(false, std::memory_order_release);
  if (worker_core == this && worker_index == index) {
    worker_core = nullptr;
    worker_index = kNoThread;
  }
  if (finalizing_.load(std::memory_order_seq_cst)) notify_waiters();
}

bool FabricCore::is_running_calls_of(uint32_t thread) const {
  return consumed_core == this && thread == rank_ * threads_ + consumed_index;
}

size_t FabricCore::process_calls(uint32_t index, size_t most) {
  Inbox& inbox = workers_[index]->inbox;
  CallSource* const source = workers_[index]->source.load(std::memory_order_acquire);
  // Another consumer may hold the inbox; it may also be this thread, in an outer frame. A call that
  // polls for calls must not run later calls before it has ended itself.
  if ((inbox.empty() && source == nullptr) || !inbox.try_consume()) return 0;
  FabricCore* const outer_core = std::exchange(consumed_core, this);
  const uint32_t outer_index = std::exchange(consumed_index, index);
  size_t count = source != nullptr ? source->run(most) : 0;
  while (count < most) {
    InboxNode* const node = inbox.pop();
    if (node == nullptr) break;
    run(static_cast<ArrivedMessage*>(node));
    ++count;
  }
  consumed_core = outer_core;
  consumed_index = outer_index;
  inbox.done();
  if (count != 0) notify_waiters();
  return count;
}

// Sleeps on behalf of all workers whose calls helpers of this role run. If another helper is
// running a worker's calls, that helper re-checks the worker before it sleeps itself; this one
// skips the worker.
class FabricCore::HelperParking final : public Parking {
 public:
  HelperParking(FabricCore& core, CallConsumer role)
      : core_(core), role_(role), parking_(*core.helpers_wake_) {}
  void announce() override {
    parking_.announce();
    static_cast<void>(ask([](CallSource& source) {
      source.announce_sleep();
      return true;
    }));
  }
  void sleep(Deadline deadline) override {
    if (ask([](CallSource& source) { return source.may_sleep(); })) {
      parking_.sleep(deadline);
    } else {
      parking_.retract();
    }
  }
  void retract() override { parking_.retract(); }

 private:
  template <typename Question>
  bool ask(Question&& question) {
    bool all = true;
    for (const auto& worker : core_.workers_) {
      CallSource* const source = worker->source.load(std::memory_order_acquire);
      if (source == nullptr || worker->consumer.load(std::memory_order_acquire) != role_ ||
          !worker->inbox.try_consume()) {
        continue;
      }
      all = question(*source) && all;
      worker->inbox.done();
    }
    return all;
  }

  FabricCore& core_;
  const CallConsumer role_;
  WakeWordParking parking_;
};

void FabricCore::help(CallConsumer role) {
  HelperParking parking(*this, role);
  while (!stopping_.load(std::memory_order_acquire)) {
    static_cast<void>(wait_until(
        [&] {
          size_t count = 0;
          for (uint32_t i = 0; i < threads_; ++i) {
            if (workers_[i]->consumer.load(std::memory_order_acquire) == role) {
              count += process_calls(i, SIZE_MAX);
            }
          }
          return count != 0 || stopping_.load(std::memory_order_acquire);
        },
        kForever, &parking));
  }
}

size_t FabricCore::progress() {
  size_t count = run_pulls() + take_answers(nullptr);
  for (auto& port : ports_) {
    count += poll_port(*port);
    service_port(*port, coarse_now());
  }
  return count;
}

// ---- Waiting ------------------------------------------------------------------------------------

// A thread that waits, or that polls for calls, receives messages itself while it is awake. So no
// message takes a detour through another thread. The service threads pause meanwhile: see serve().
size_t FabricCore::receive() {
  size_t count = 0;
  for (auto& port : ports_) {
    // Load before storing: while the service thread does not write the flag, its cache line stays
    // shared.
    if (!port->received.load(std::memory_order_relaxed)) {
      port->received.store(true, std::memory_order_relaxed);
    }
    count += poll_port(*port);
  }
  return count;
}

// Called before the thread sleeps: from now on the service threads receive.
void FabricCore::stop_receiving() {
  for (auto& port : ports_) {
    port->received.store(false, std::memory_order_relaxed);
    port->resumption.wake();
  }
}

// Sleeps on the word of a worker, or on bystanders_, and counts itself in sleeping_threads_. No
// wake-up is lost: a notifier makes its event visible, then reads sleeping_threads_; a sleeper
// increments sleeping_threads_, then re-checks. Both accesses are read-modify-writes of one word,
// so the notifier sees the sleeper, or the sleeper sees the event.
class FabricCore::WaiterParking final : public Parking {
 public:
  // `worker` is the worker whose calls the sleeping thread runs itself, or nullptr.
  WaiterParking(FabricCore& core, WakeWord& word, Worker* worker)
      : core_(core), sleeping_threads_(core.sleeping_threads_), word_(word), worker_(worker) {}
  [[nodiscard]] bool has_slept() const { return has_slept_; }
  void announce() override {
    if (!std::exchange(has_slept_, true)) {
      core_.stop_polling_answers();
      core_.stop_receiving();
    }
    sleeping_threads_.fetch_add(1, std::memory_order_acq_rel);
    ticket_ = word_.announce();
    static_cast<void>(ask([](CallSource& source) {
      source.announce_sleep();
      return true;
    }));
  }
  void sleep(Deadline deadline) override {
    if (!ask([](CallSource& source) { return source.may_sleep(); })) return retract();
    word_.sleep(ticket_, deadline);
    sleeping_threads_.fetch_sub(1, std::memory_order_acq_rel);
  }
  void retract() override {
    word_.retract();
    sleeping_threads_.fetch_sub(1, std::memory_order_acq_rel);
  }

 private:
  // If this thread is inside of a call, the inbox is in use, and the worker's calls cannot run
  // before that call ends; so their source is not asked.
  template <typename Question>
  bool ask(Question&& question) {
    if (worker_ == nullptr) return true;
    CallSource* const source = worker_->source.load(std::memory_order_acquire);
    if (source == nullptr || !worker_->inbox.try_consume()) return true;
    const bool answer = question(*source);
    worker_->inbox.done();
    return answer;
  }

  FabricCore& core_;
  std::atomic<uint32_t>& sleeping_threads_;
  WakeWord& word_;
  Worker* const worker_;
  uint32_t ticket_ = 0;
  bool has_slept_ = false;
};

void FabricCore::resume(uint32_t index, std::coroutine_handle<> coroutine) {
  if (index == kNoThread) return coroutine.resume();
  auto message = std::make_unique<OwnMessage>(sizeof(MessageHeader) + sizeof(CallHeader), rank_);
  const MessageHeader header{index, kNoThread};
  std::memcpy(message->bytes, &header, sizeof header);
  message->resume = coroutine;
  peers_[rank_]->begun.fetch_add(1, std::memory_order_seq_cst);
  held_bytes_.fetch_add(message->size, std::memory_order_relaxed);
  deliver(message.release());
}

void FabricCore::resume_after(Synchronizer& done, std::coroutine_handle<> coroutine) {
  {
    const std::lock_guard lock(awaited_mutex_);
    awaited_.push_back({&done, this_worker(), coroutine});
    awaited_count_.fetch_add(1, std::memory_order_seq_cst);
  }
  resume_finished();  // `done` may have finished meanwhile
}

void FabricCore::resume_finished() {
  std::vector<AwaitedSynchronizer> finished;
  {
    const std::lock_guard lock(awaited_mutex_);
    std::erase_if(awaited_, [&](const AwaitedSynchronizer& one) {
      if (!one.done->done()) return false;
      finished.push_back(one);
      return true;
    });
    awaited_count_.fetch_sub(finished.size(), std::memory_order_relaxed);
  }
  for (const AwaitedSynchronizer& one : finished) resume(one.worker, one.coroutine);
}

void FabricCore::notify_waiters() {
  if (awaited_count_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
    resume_finished();
  if (sleeping_threads_.fetch_add(0, std::memory_order_acq_rel) == 0) [[likely]]
    return;
  for (auto& worker : workers_) worker->inbox.arrivals().wake();
  bystanders_.wake();
}

void FabricCore::wake(uint32_t index) {
  if (index >= threads_) return;
  workers_[index]->inbox.arrivals().wake();
  if (workers_[index]->consumer.load(std::memory_order_seq_cst) != CallConsumer::kThread) {
    helpers_wake_->wake();
  }
}

CallSourceRegistry& FabricCore::call_source_registry(
    std::unique_ptr<CallSourceRegistry> (*make)(Fabric& fabric)) {
  if (CallSourceRegistry* const there = call_source_registry_.load(std::memory_order_acquire);
      there != nullptr) {
    return *there;
  }
  const std::lock_guard lock(call_source_registry_mutex_);
  if (owned_call_source_registry_ == nullptr) {
    owned_call_source_registry_ = make(*fabric_);
    for (uint32_t i = 0; i < threads_; ++i) {
      workers_[i]->source.store(&owned_call_source_registry_->source(i), std::memory_order_release);
    }
    call_source_registry_.store(owned_call_source_registry_.get(), std::memory_order_release);
    // Workers that are already asleep have not announced this to their new sources: wake them.
    for (uint32_t i = 0; i < threads_; ++i) wake(i);
  }
  return *owned_call_source_registry_;
}

bool FabricCore::wait_polling(const std::function<bool()>& condition, Deadline deadline) {
  const uint32_t index = this_worker();
  return wait_until(
      [&] {
        if (options_.service_threads == 0) {
          if (take_answers(nullptr) != 0 && condition()) return true;
          progress();
        } else {
          receive();
        }
        if (index != kNoThread) process_own_calls(index, kReceiveBatch);
        return condition();
      },
      deadline);
}

bool FabricCore::wait(const std::function<bool()>& condition, Deadline deadline) {
  // Without service threads, the waiting thread must poll, so it does not sleep.
  if (options_.service_threads == 0) return wait_polling(condition, deadline);
  const uint32_t index = this_worker();
  Worker* const worker = index == kNoThread ? nullptr : workers_[index].get();
  const bool runs_calls = worker != nullptr &&
                          worker->consumer.load(std::memory_order_relaxed) == CallConsumer::kThread;
  WaiterParking parking(*this, worker == nullptr ? bystanders_ : worker->inbox.arrivals(),
                        runs_calls ? worker : nullptr);
  const auto look = [&] {
    const size_t run = index == kNoThread ? 0 : process_own_calls(index, kReceiveBatch);
    if (condition()) return true;
    // Once this thread has slept, the service threads receive for it.
    if (run != 0 || parking.has_slept()) return false;
    start_polling_answers();
    if (take_answers(this_poller()) != 0 && condition()) return true;
    if (receive() != 0 && index != kNoThread) process_own_calls(index, kReceiveBatch);
    return condition();
  };
  const bool came = wait_until(look, deadline, &parking);
  if (!parking.has_slept()) stop_polling_answers();
  return came;
}

}  // namespace cariama::internal
