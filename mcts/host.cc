#include "mcts/host.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dsfabric/internal/attachments.h"
#include "dsfabric/internal/question.h"
#include "dsfabric/peer_error.h"
#include "dsfabric/send_call.h"
#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/internal/start_thread.h"
#include "dtutils/trace.h"
#include "dtutils/wait.h"

namespace cariama::mcts {
namespace {

using std::chrono::steady_clock;

thread_local HostThread* this_worker = nullptr;

// The longest sleep of a worker. Worker 0 checks after each sleep whether a process has died.
constexpr std::chrono::milliseconds kHeartbeat{20};
// Time limit for the shutdown of the channels. Peers that are alive answer within milliseconds.
constexpr std::chrono::seconds kPatience{10};
// Iterations of the loop of worker 0 between two checks whether a process has died.
constexpr uint64_t kRoundsBetweenLooks = 64;
// Host::work_patiently() counts this much of its time at once.
constexpr std::chrono::milliseconds kPatienceSlice{50};

// Connects this process to rank 0 if FabricOptions::lease is set. Only connected processes give
// each other signs of life, and the searches of rank 0 may need no other process for a long time.
absl::Status watch_rank_0(Fabric& fabric, const std::atomic<bool>& ending) {
  if (fabric.rank() == 0 || fabric.options().lease.count() == 0) return absl::OkStatus();
  absl::Status sent;
  do {
    sent = service_call<RetryAsync>(fabric, 0, [] {}).status();
  } while (absl::IsDeadlineExceeded(sent) && !ending.load(std::memory_order_acquire));
  // serve() reports the failure of rank 0.
  const bool failed = !fabric.peer_status(0).ok();
  if (sent.ok() || failed || absl::IsDeadlineExceeded(sent)) return absl::OkStatus();
  return make_error(
      sent.code(), error_scope(sent),
      "the search ends without the process that controls it: " + std::string(sent.message()));
}

// Connects this process to all others: a process that is stopped later does not delay a command of
// rank 0, or the rollouts of a worker, by FabricOptions::timeout. A process that cannot be reached
// is left out by the first search. Each process begins with the next rank, so that not all
// processes connect to the same one at the same time.
void connect_all(Fabric& fabric) {
  const uint32_t self = fabric.rank();
  for (uint32_t i = 1; i < fabric.size(); ++i) {
    try {
      static_cast<void>(fabric.connection((self + i) % fabric.size()));
    } catch (const std::bad_alloc&) {
      return;  // the first call connects, and reports the lack of memory
    }
  }
}

// The hosts that this process has created with one fabric. Host::create() is collective, so the
// n-th host of a process belongs to the n-th host of the others.
struct HostCounts {
  explicit HostCounts(Fabric&) {}
  std::atomic<uint64_t> created{0};
  std::atomic<uint64_t> ended{0};  // rank 0: the number of the last host whose end() has run
};

HostCounts& host_counts(Fabric& fabric) {
  return cariama::internal::attachments_of(fabric).get<HostCounts>(fabric);
}

// Asks rank 0 whether end() of its host with this number has run. Its call of that may have run in
// this process before the host existed, and rank 0 may have no host any more. So the question goes
// to its process.
using EndQuestion = cariama::internal::Question<bool>;
std::unique_ptr<EndQuestion> ask_for_end(Fabric& fabric, uint64_t number) {
  return std::make_unique<EndQuestion>(fabric, Rank(0), nullptr, [number] {
    return host_counts(*running_fabric()).ended.load(std::memory_order_acquire) >= number;
  });
}

}  // namespace

size_t new_instance_slot() {
  static std::atomic<size_t> slots{0};
  return slots.fetch_add(1, std::memory_order_relaxed);
}

Host::Host(Fabric* fabric, const HostOptions& options)
    : fabric_(fabric),
      rank_(fabric != nullptr ? fabric->rank() : Rank(0)),
      size_(fabric != nullptr ? fabric->size() : 1),
      num_threads_(fabric != nullptr ? fabric->threads() : options.threads),
      options_(options),
      dead_(size_),
      number_(fabric != nullptr ? ++host_counts(*fabric).created : 1) {
  for (uint32_t i = 0; i < num_threads_; ++i) {
    threads_.push_back(std::make_unique<HostThread>(size_));
    threads_.back()->host = this;
    threads_.back()->index = i;
  }
}

absl::StatusOr<std::unique_ptr<Host>> Host::create(Fabric* fabric, const HostOptions& options) {
  if (fabric == nullptr && options.threads == 0) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                      "a search needs at least one thread");
  }
  std::unique_ptr<Host> host(new Host(fabric, options));
  if (absl::Status entered = host->enter(0); !entered.ok()) return entered;
  host->others_.reserve(host->num_threads_);  // else push_back() could throw while a thread starts
  absl::Status failed;
  std::mutex mutex;
  std::atomic<uint32_t> ready{1};
  for (uint32_t i = 1; i < host->num_threads_; ++i) {
    absl::StatusOr<std::thread> other = cariama::internal::start_thread([&, self = host.get(), i] {
      const absl::Status entered = self->enter(i);
      if (!entered.ok()) {
        const std::lock_guard lock(mutex);
        failed.Update(entered);
      }
      const bool in = entered.ok();
      // After this increment create() may return: this thread uses no local variable of it any
      // more.
      ready.fetch_add(1, std::memory_order_acq_rel);
      if (in) self->run_worker(i);
    });
    if (!other.ok()) {
      const std::lock_guard lock(mutex);
      failed.Update(other.status());
      break;
    }
    host->others_.push_back(*std::move(other));
  }
  const auto all = [&] {
    return ready.load(std::memory_order_acquire) == host->others_.size() + 1;
  };
  static_cast<void>(wait_until(all, kForever));
  if (!failed.ok()) return failed;
  if (fabric != nullptr) connect_all(*fabric);
  return host;
}

Host::~Host() {
  end();
  ending_.store(true, std::memory_order_seq_cst);
  wake_workers();
  // All workers shut their channels down at the same time: the shutdown of a channel needs the
  // thread at the other end to run calls.
  leave(0);
  for (std::thread& other : others_) other.join();
}

absl::Status Host::enter(uint32_t index) {
  HostThread& self = *threads_[index];
  if (fabric_ != nullptr) {
    absl::StatusOr<std::unique_ptr<ThreadContext>> context = fabric_->init_thread(index);
    if (!context.ok()) return context.status();
    self.context = *std::move(context);
    self.aggregators =
        std::make_unique<PeerAggregators>(*self.context, options_.aggregation, self.posts);
  }
  this_worker = &self;
  return absl::OkStatus();
}

void Host::leave(uint32_t index) {
  HostThread& self = *threads_[index];
  const bool here = this_worker == &self;
  if (here && self.aggregators != nullptr) {
    self.aggregators->flush();
    self.aggregators->shutdown(deadline_after(kPatience));
  }
  self.aggregators.reset();
  self.context.reset();
  if (here) this_worker = nullptr;
}

internal::Reception::Reception(Rank caller, bool also_dead) : caller_(caller) {
  accepted_ = this_worker != nullptr;
  if (accepted_ && caller >= this_worker->host->size()) {
    note_malformed("it names a process that does not exist");
    accepted_ = false;
  }
  accepted_ = accepted_ && (also_dead || this_worker->host->alive(caller));
  if (accepted_) ++this_worker->receptions;
}
internal::Reception::~Reception() {
  if (accepted_) --this_worker->receptions;
}
void internal::Reception::fail() noexcept { this_worker->host->note_failure(*this_worker); }
void internal::Reception::end_post() { this_worker->posts.end(caller_); }

bool internal::left_out(Rank rank) {
  return this_worker != nullptr && !this_worker->host->alive(rank);
}

void internal::note_malformed(const char* what) {
  std::fprintf(stderr, "cariama: ignored a malformed message of a search: %s\n", what);
}

void internal::note_large_node(size_t moves) {
  static std::atomic<bool> noted{false};
  if (noted.exchange(true, std::memory_order_relaxed)) return;
  report_once("mcts.large_node",
              "a node with " + std::to_string(moves) +
                  " moves does not fit into a message, so only its own process searches it",
              "let expand() omit moves: about 800 fit");
}

absl::Status internal::status_of(const std::exception_ptr& exception) {
  std::string what = "an exception that is no std::exception";
  try {
    std::rethrow_exception(exception);
  } catch (const std::invalid_argument& invalid) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, invalid.what());
  } catch (const std::bad_alloc&) {
    return make_error(absl::StatusCode::kResourceExhausted, ErrorScope::kProcess,
                      "no memory for a search", "set a lower SearchOptions::memory_bytes");
  } catch (const std::exception& other) {
    what = other.what();
  } catch (...) {
  }
  return make_error(absl::StatusCode::kInternal, ErrorScope::kProcess,
                    absl::StrCat("a function that a search called threw: ", what),
                    "if it is one of the game or of its evaluator, destroy the host");
}

HostThread& Host::here() {
  if (this_worker == nullptr) [[unlikely]] {
    std::fputs(
        "cariama: a search is used by a thread that is no worker of its host: only the thread that "
        "created the host may call run(), advance() and the other functions\n",
        stderr);
    std::abort();
  }
  return *this_worker;
}

uint32_t Host::living() const {
  uint32_t count = 0;
  for (const std::atomic<bool>& dead : dead_) count += dead.load(std::memory_order_acquire) ? 0 : 1;
  return count;
}

uint64_t Host::dead_set_hash() const {
  uint64_t set = 0;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (!alive(rank)) set ^= dead_hash(rank);
  }
  return set;
}

LocalInstance& Host::local(std::type_index type, InstanceMaker make) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<LocalInstance>& instance = instances_[type];
  if (instance == nullptr) instance = make(*this);
  return *instance;
}

void Host::activate(HostedSearch* search) {
  active_.store(search, std::memory_order_seq_cst);
  wake_workers();
}

void Host::take_over() const {
  for (const auto& thread : threads_) {
    if (thread->aggregators != nullptr) static_cast<void>(thread->aggregators->messages());
  }
}

void Host::hand_back() { handed_back_.fetch_add(1, std::memory_order_release); }

void Host::wake_workers() {
  if (fabric_ == nullptr) {
    doorbell_.ring();
  } else if (doorbell_.take()) {
    for (uint32_t i = 0; i < num_threads_; ++i) {
      if (threads_[i].get() != this_worker) fabric_->wake(i);
    }
  }
}

Host::Posts Host::posts() const {
  Posts sum;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (!alive(rank)) continue;
    for (const auto& thread : threads_) {
      sum.begun += thread->posts.begun(rank);
      sum.ended += thread->posts.ended(rank);
    }
  }
  return sum;
}

bool Host::passed() {
  const uint64_t now = deaths_.load(std::memory_order_relaxed);
  // The command whose handler calls this function counts as one reception. More receptions mean
  // that worker 0 is within another call.
  bool all = threads_[0]->receptions <= 1;
  for (uint32_t i = 1; i < num_threads_; ++i) {
    // Acquire: pairs with the release in round(). The effects of the worker's calls are visible.
    if (threads_[i]->deaths.load(std::memory_order_acquire) == now) continue;
    all = false;
    if (fabric_ != nullptr) fabric_->wake(i);
  }
  return all;
}

bool Host::may_sleep(const HostThread& self) {
  if (ending_.load(std::memory_order_seq_cst)) return false;
  if (self.failed) return true;
  if (self.index == 0 && failed_.load(std::memory_order_seq_cst)) return false;
  if (self.deaths.load(std::memory_order_relaxed) != deaths_.load(std::memory_order_seq_cst)) {
    return false;  // passed() waits for a round of this worker
  }
  HostedSearch* active = active_.load(std::memory_order_seq_cst);
  return active == nullptr || !active->has_work(self.index);
}

bool Host::round(HostThread& self) {
  // Not thrown within a call: the sender waits until the call has ended. Acquire: pairs with the
  // store in note_failure().
  if (self.index == 0 && self.receptions == 0 && failed_.load(std::memory_order_acquire)) {
    std::rethrow_exception(failure_);
  }
  // Acquire: pairs with the increment in look_for_deaths(). The calls of this round see which
  // processes had died by then.
  if (const uint64_t deaths = deaths_.load(std::memory_order_acquire);
      self.deaths.load(std::memory_order_relaxed) != deaths) {
    self.deaths.store(deaths, std::memory_order_release);
  }
  const size_t calls = fabric_ != nullptr ? fabric_->process_calls() : 0;
  if (self.index == 0 && ++rounds_ % kRoundsBetweenLooks == 0) look_for_deaths();
  HostedSearch* active = active_.load(std::memory_order_acquire);
  return (active != nullptr && !self.failed && active->work(self.index)) || calls != 0;
}

void Host::sleep(HostThread& self, Deadline deadline, const std::function<bool()>& until) {
  const TraceScope trace("mcts", "idle");
  if (self.aggregators != nullptr) self.aggregators->check();
  if (self.index == 0) look_for_deaths();
  const auto start = steady_clock::now();
  deadline = std::min(deadline, start + kHeartbeat);
  // `until` too: the call that makes it true may run in the wait below.
  const auto condition = [&] { return !may_sleep(self) || (until && until()); };
  if (fabric_ != nullptr) {
    // The wait also ends when calls have run and left batched calls in the aggregators: the next
    // flush publishes these.
    bool first = true;
    static_cast<void>(fabric_->wait(
        [&] {
          const bool again = !first && self.aggregators->dirty();
          first = false;
          // Arm before the check for work. A ring that woke another worker has disarmed the
          // doorbell: arm it again.
          if (!doorbell_.is_armed()) static_cast<void>(doorbell_.arm());
          return again || condition();
        },
        deadline));
  } else {
    DoorbellSleeper sleeper(doorbell_);
    static_cast<void>(wait_until(condition, deadline, &sleeper));
  }
  const auto slept = steady_clock::now() - start;
  self.idle_ns.fetch_add(std::chrono::nanoseconds(slept).count(), std::memory_order_relaxed);
}

void Host::run_worker(uint32_t index) {
  HostThread& self = *threads_[index];
  const auto ending = [this] { return ending_.load(std::memory_order_acquire); };
  try {
    while (!ending()) {
      if (!round(self)) sleep(self, kForever);
    }
  } catch (...) {
    note_failure(self);
  }
  while (!ending()) sleep(self, kForever);
  leave(index);
}

void Host::note_failure(HostThread& self) {
  self.failed = self.index != 0;  // worker 0 throws the exception in round()
  {
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    failure_ = std::current_exception();
    // seq_cst: worker 0 either sees it before it sleeps, or wake_workers() wakes it.
    failed_.store(true, std::memory_order_seq_cst);
  }
  wake_workers();
}

bool Host::step() { return round(*threads_[0]); }

bool Host::work_until(const std::function<bool()>& condition, Deadline deadline) {
  HostThread& self = *threads_[0];
  while (!condition()) {
    if (steady_clock::now() >= deadline) return false;
    if (round(self)) continue;
    if (self.aggregators != nullptr) self.aggregators->flush();
    if (condition()) return true;
    // Sleep at most 200 us: another thread may make the condition true without waking this one.
    sleep(self, std::min(deadline, deadline_after(std::chrono::microseconds(200))), condition);
  }
  return true;
}

bool Host::work_patiently(const std::function<bool()>& condition) {
  for (std::chrono::milliseconds waited{0}; waited < options_.patience;) {
    const auto start = steady_clock::now();
    if (work_until(condition, start + kPatienceSlice)) return true;
    if (steady_clock::now() - start < 2 * kPatienceSlice) waited += kPatienceSlice;
  }
  return false;
}

void Host::look_for_deaths() {
  if (fabric_ == nullptr) return;
  while (!left_out_by_rank_0_.empty()) {
    const Rank late = left_out_by_rank_0_.back();
    left_out_by_rank_0_.pop_back();
    if (alive(late)) mark_dead(late);
  }
  for (uint32_t other = 0; other < size_; ++other) {
    if (other != rank_ && alive(other) && !fabric_->peer_status(other).ok()) mark_dead(other);
  }
}

void Host::mark_dead(Rank rank) {
  dead_[rank].store(true, std::memory_order_release);
  deaths_.fetch_add(1, std::memory_order_seq_cst);
  // leave_out() has reported a process that is alive for the fabric.
  if (const absl::Status peer = fabric_->peer_status(rank); rank_ == 0 && !ended_ && !peer.ok()) {
    report_once("mcts.lost." + std::to_string(rank),
                fabric_->label(rank) +
                    " takes no part in the searches any more, and its part of the tree is lost",
                std::string(peer.message()));
  }
  // Without the lock: lost() may send calls, which may run received calls, which may create
  // instances.
  std::vector<LocalInstance*> instances;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [type, instance] : instances_) instances.push_back(instance.get());
  }
  for (LocalInstance* instance : instances) instance->lost(rank);
}

absl::Status Host::check_caller(std::string_view function) const {
  const auto refused = [&](std::string_view what, std::string_view remedy) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                      absl::StrCat(std::string(function), ": ", std::string(what)), remedy);
  };
  if (this_worker != threads_[0].get()) {
    return refused("the calling thread is not worker 0 of the search's host",
                   "call it in the thread that has created the host");
  }
  if (rank_ != 0) {
    return refused("only rank 0 controls searches", "call Host::serve() in the other processes");
  }
  if (running_fabric() != nullptr) {
    return refused("a handler of a call cannot search: no other call runs before it has ended",
                   "call it after the handler has returned");
  }
  return absl::OkStatus();
}

absl::Status Host::check_idle(std::string_view function) const {
  if (absl::Status caller = check_caller(function); !caller.ok()) return caller;
  if (!searching_ && !ended_) return absl::OkStatus();
  return make_error(
      absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
      absl::StrCat(std::string(function), ": ",
                   searching_ ? "a search of this host is running" : "the host has ended"),
      searching_ ? "end that search first, with Search::finish()" : "call it before Host::end()");
}

absl::Status Host::begin_search(std::string_view function) {
  absl::Status idle = check_idle(function);
  if (idle.ok()) searching_ = true;
  return idle;
}

void Host::report_no_part(Rank rank, double seconds) const {
  report_once("mcts.no_part." + std::to_string(rank),
              absl::StrCat(fabric_->label(rank), " has completed no rollout of a search in ",
                           std::round(seconds), " s: the other processes search without its help"),
              cariama::internal::peer_remedy(cariama::internal::PeerRemedy::kUnreachable));
}

void Host::leave_out(Rank late) {
  report_once("mcts.left_out." + std::to_string(late),
              fabric_->label(late) + " has not answered a search for " +
                  std::to_string(options_.patience.count()) + " ms: the searches go on without it",
              cariama::internal::peer_remedy(cariama::internal::PeerRemedy::kSilent));
  end_part_of(late);
}

void Host::leave_out_lost(Rank lost) {
  report_once("mcts.left_out." + std::to_string(lost),
              fabric_->label(lost) +
                  " and another process have lost their connection: the searches go on without it",
              cariama::internal::peer_remedy(cariama::internal::PeerRemedy::kDisconnected));
  end_part_of(lost);
}

void Host::end_part_of(Rank rank) {
  for (uint32_t other = 1; other < size_; ++other) {
    if (alive(other)) send_left_out(other, rank);
  }
  threads_[0]->aggregators->flush();
  if (alive(rank)) mark_dead(rank);
}

void Host::send_left_out(Rank to, Rank late) {
  threads_[0]->aggregators->command(id(to, 0), [late] {
    Host& host = *Host::here().host;
    if (late == host.rank_) {
      host.left_out_ = true;
      host.ending_.store(true, std::memory_order_seq_cst);
      host.wake_workers();
    } else if (late < host.size_) {
      host.left_out_by_rank_0_.push_back(late);
    }
  });
}

void Host::on_serving(Rank rank) {
  if (rank >= size_) return internal::note_malformed("it names a process that does not exist");
  if (!alive(rank)) {
    send_left_out(rank, rank);
    threads_[0]->aggregators->flush();
  } else if (commander_ != nullptr) {
    commander_->repeat_command(rank);
  }
}

absl::Status Host::serve() {
  HostThread& self = *threads_[0];
  const absl::Status watched =
      fabric_ == nullptr ? absl::OkStatus() : watch_rank_0(*fabric_, ending_);
  if (!watched.ok()) {
    ended_ = true;
    return watched;
  }
  // A thread that had a context before may have run calls of rank 0 without a host: the last
  // command, the call that this process was left out, or that of end().
  std::unique_ptr<EndQuestion> question;
  if (fabric_ != nullptr && rank_ != 0) question = ask_for_end(*fabric_, number_);
  const auto answered = [&] { return question != nullptr && question->answered(); };
  while (!ending_.load(std::memory_order_acquire)) {
    if (answered()) {
      const absl::StatusOr<bool> ended = question->wait(Deadline::min());
      question.reset();
      if (absl::IsDeadlineExceeded(ended.status())) {  // rank 0 was not connected in time
        question = ask_for_end(*fabric_, number_);
      } else if (ended.ok() && *ended) {
        break;
      } else {
        self.aggregators->announce(id(0, 0), [rank = rank_] { here().host->on_serving(rank); });
        self.aggregators->flush();
      }
    }
    if (!round(self)) sleep(self, kForever, answered);
    if (!alive(0)) {
      ended_ = true;
      return dead_peer_error(*fabric_, 0, "the search ends without the process that controls it");
    }
  }
  ended_ = true;
  if (left_out_) {
    return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                      "rank 0 has continued the search without this process, which did not answer "
                      "in time, or which another process has lost",
                      cariama::internal::peer_remedy(cariama::internal::PeerRemedy::kLease));
  }
  return absl::OkStatus();
}

void Host::end() {
  if (ended_) return;
  ended_ = true;
  if (rank_ != 0 || fabric_ == nullptr) return;
  if (threads_[0]->aggregators == nullptr) return;  // create() has failed
  // Release: pairs with the load in ask_for_end(). Before the calls: a process without a host,
  // where one of these does nothing, asks later.
  host_counts(*fabric_).ended.store(number_, std::memory_order_release);
  for (uint32_t other = 1; other < size_; ++other) {
    if (!alive(other)) continue;
    threads_[0]->aggregators->command(id(other, 0), [] {
      Host& host = *Host::here().host;
      host.ending_.store(true, std::memory_order_seq_cst);
      host.wake_workers();
    });
  }
  threads_[0]->aggregators->flush();
}

}  // namespace cariama::mcts
