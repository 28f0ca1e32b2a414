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

constexpr size_t kPollBatch = 32;

// The steady clock, some milliseconds late, for a tenth of its price: looks for a heartbeat are far
// more than heartbeats.
Deadline coarse_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Deadline(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

// What the calling thread runs at the moment.
thread_local FabricCore* running_core = nullptr;
thread_local uint32_t running_rank = 0;
// Which worker the calling thread is, of which fabric.
thread_local FabricCore* worker_core = nullptr;
thread_local uint32_t worker_index = kNoThread;
// Whose calls the calling thread runs, if any.
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
  std::array<Completion, kPollBatch> batch;
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
      CallBringer* const bringer = bringer_.load(std::memory_order_acquire);
      if ((completion.immediate & kBringerEvent) == 0) {
        wake(completion.immediate);
      } else if (bringer != nullptr) {
        bringer->event(connection.rank(), completion.immediate & ~kBringerEvent);
      }
      finish(unit);
    } else {
      deliver(unit);
    }
  }
  port.polling.store(false, std::memory_order_release);
  if (count != 0) news();
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
    reject(message->rank, "it is for no thread of this process");
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
  // After the push, both sequentially consistent: take_worker() changes the consumer, then looks
  // into the inbox. One of the two sees the other.
  if (worker.consumer.load(std::memory_order_seq_cst) != CallConsumer::kThread) {
    helpers_wake_->wake();
  }
  if (finalizing_.load(std::memory_order_seq_cst)) news();
}

void FabricCore::reject(uint32_t from, std::string_view why) {
  // Said once in a while: a flood of them must not become a flood of lines.
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

// The message has been run or dropped, and what followed from it was sent.
void FabricCore::end(ArrivedMessage* message) {
  peers_[message->rank]->over.fetch_add(1, std::memory_order_seq_cst);
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
  // Given back whatever happens.
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
    peers_[pull->rank]->over.fetch_add(1, std::memory_order_seq_cst);
  }
  pull_count_.fetch_sub(there.size(), std::memory_order_relaxed);
  running_pulls_.store(false, std::memory_order_release);
  if (!there.empty()) news();
  return there.size();
}

void FabricCore::pull_until_stopped() {
  WakeWordParking parking(pulls_wake_);
  const auto stopped = [&] { return stopping_.load(std::memory_order_acquire); };
  while (!stopped()) {
    const auto look = [&] { return run_pulls() != 0 || stopped(); };
    // While something is under way somebody has to poll for it.
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
  helpers_wake_->wake();  // calls may have come before
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
  if (finalizing_.load(std::memory_order_seq_cst)) news();
}

bool FabricCore::is_running_calls_of(uint32_t thread) const {
  return consumed_core == this && thread == rank_ * threads_ + consumed_index;
}

size_t FabricCore::process_calls(uint32_t index, size_t most) {
  Inbox& inbox = workers_[index]->inbox;
  CallSource* const source = workers_[index]->source.load(std::memory_order_acquire);
  // Held by a consumer, perhaps by us further up the stack: a call that lets calls in does not
  // overtake the one that it is.
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
  if (count != 0) news();
  return count;
}

// Sleeps for all workers whose calls helpers of this role run. A worker that another helper is busy
// with is left to that one, which looks again before it sleeps.
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
    look_after(*port, coarse_now());
  }
  return count;
}

// ---- Waiting ------------------------------------------------------------------------------------

// Threads that wait, and those that look for calls, receive by themselves while they are awake, so
// that what they wait for takes no way through another thread. The service threads stand aside
// meanwhile: see serve().
size_t FabricCore::receive() {
  size_t count = 0;
  for (auto& port : ports_) {
    // Read first: while the service thread does not look, the line is shared.
    if (!port->received.load(std::memory_order_relaxed)) {
      port->received.store(true, std::memory_order_relaxed);
    }
    count += poll_port(*port);
  }
  return count;
}

// The thread is about to sleep. What comes from now on, the service threads find.
void FabricCore::stop_receiving() {
  for (auto& port : ports_) {
    port->received.store(false, std::memory_order_relaxed);
    port->resumption.wake();
  }
}

// Sleeps on the word of a worker, or of the bystanders, and says that somebody does. News come so:
// what happened is made visible, then resting_ is read; a thread that rests changes resting_, then
// looks once more. Both are read-modify-writes of one word, so one of the two sees the other.
class FabricCore::Resting final : public Parking {
 public:
  // `worker`, if its calls are run by who rests.
  Resting(FabricCore& core, WakeWord& word, Worker* worker)
      : core_(core), resting_(core.resting_), word_(word), worker_(worker) {}
  [[nodiscard]] bool rested() const { return rested_; }
  void announce() override {
    if (!std::exchange(rested_, true)) {
      core_.unattend_answers();
      core_.stop_receiving();
    }
    resting_.fetch_add(1, std::memory_order_acq_rel);
    ticket_ = word_.announce();
    static_cast<void>(ask([](CallSource& source) {
      source.announce_sleep();
      return true;
    }));
  }
  void sleep(Deadline deadline) override {
    if (!ask([](CallSource& source) { return source.may_sleep(); })) return retract();
    word_.sleep(ticket_, deadline);
    resting_.fetch_sub(1, std::memory_order_acq_rel);
  }
  void retract() override {
    word_.retract();
    resting_.fetch_sub(1, std::memory_order_acq_rel);
  }

 private:
  // Inside of a call they are not run before it ends, whatever comes.
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
  std::atomic<uint32_t>& resting_;
  WakeWord& word_;
  Worker* const worker_;
  uint32_t ticket_ = 0;
  bool rested_ = false;
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
  resume_finished();  // it may have ended meanwhile
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

void FabricCore::news() {
  if (awaited_count_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
    resume_finished();
  if (resting_.fetch_add(0, std::memory_order_acq_rel) == 0) [[likely]]
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

CallBringer& FabricCore::bringer(std::unique_ptr<CallBringer> (*make)(Fabric& fabric)) {
  if (CallBringer* const there = bringer_.load(std::memory_order_acquire); there != nullptr) {
    return *there;
  }
  const std::lock_guard lock(bringer_mutex_);
  if (bringer_owned_ == nullptr) {
    bringer_owned_ = make(*fabric_);
    for (uint32_t i = 0; i < threads_; ++i) {
      workers_[i]->source.store(&bringer_owned_->source(i), std::memory_order_release);
    }
    bringer_.store(bringer_owned_.get(), std::memory_order_release);
    // Who sleeps already did so without telling its source.
    for (uint32_t i = 0; i < threads_; ++i) wake(i);
  }
  return *bringer_owned_;
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
        if (index != kNoThread) process_own_calls(index, kPollBatch);
        return condition();
      },
      deadline);
}

bool FabricCore::wait(const std::function<bool()>& condition, Deadline deadline) {
  // Who has to poll does not sleep.
  if (options_.service_threads == 0) return wait_polling(condition, deadline);
  const uint32_t index = this_worker();
  Worker* const worker = index == kNoThread ? nullptr : workers_[index].get();
  const bool runs_calls = worker != nullptr &&
                          worker->consumer.load(std::memory_order_relaxed) == CallConsumer::kThread;
  Resting parking(*this, worker == nullptr ? bystanders_ : worker->inbox.arrivals(),
                  runs_calls ? worker : nullptr);
  const auto look = [&] {
    const size_t run = index == kNoThread ? 0 : process_own_calls(index, kPollBatch);
    if (condition()) return true;
    // Once it has slept, others receive for it.
    if (run != 0 || parking.rested()) return false;
    attend_answers();
    if (take_answers(this_attendant()) != 0 && condition()) return true;
    if (receive() != 0 && index != kNoThread) process_own_calls(index, kPollBatch);
    return condition();
  };
  const bool came = wait_until(look, deadline, &parking);
  if (!parking.rested()) unattend_answers();
  return came;
}

}  // namespace cariama::internal
