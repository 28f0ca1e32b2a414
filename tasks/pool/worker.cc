#include "tasks/pool/worker.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/internal/peer_remedy.h"
#include "tasks/internal/idle_policy.h"
#include "tasks/internal/steal_request.h"
#include "tasks/pool/protocol_impl.h"

namespace cariama {
namespace {

using pool::internal::Cell;

Cell no_cells[2];
// How long a worker waits for the report of a death after a peer has left the run: the death may be
// why the peer left.
constexpr std::chrono::seconds kCausePatience{1};
constexpr std::chrono::milliseconds kCausePause{1};
bool a_run_is_active() { return pool::internal::deque.limit != no_cells + 1; }

absl::Status cannot_be_completed(const std::string& why) {
  return make_error(absl::StatusCode::kUnavailable, ErrorScope::kPeer,
                    "the run of the task pool cannot be completed: " + why,
                    "start the job again, from a checkpoint of the application if it has one");
}

[[noreturn]] void misused(const char* text) { throw std::logic_error(text); }

}  // namespace

namespace pool::internal {

Deque deque = tasks::unused_deque();

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
  __builtin_unreachable();  // g++ 12 ignores noreturn of a virtual function
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

using std::chrono::steady_clock;

const std::atomic<uint64_t> kAlwaysBlocked{pool::internal::kBlocked};
pool::internal::Deque unused_deque() {
  return {no_cells + 1, no_cells + 1, reinterpret_cast<Cell*>(kNeverPublished), no_cells + 1,
          &kAlwaysBlocked};
}

PoolSlowPaths* this_pool_worker = nullptr;
template class PoolProtocol<PoolWorker>;

PoolWorker::PoolWorker(const PoolOptions& options, std::byte* memory, RemoteAccess& access,
                       Fabric& fabric, PoolUnits& units)
    : PoolProtocol(options, memory, access,
                   Victims(options.victims, VictimOrder::kByDistance,
                           options.seed + static_cast<uint64_t>(access.rank()))),
      idle_sleep_ns_(static_cast<uint64_t>(std::chrono::nanoseconds(options.idle_sleep).count())),
      run_timeout_(options.run_timeout),
      fabric_(fabric),
      units_(units),
      level_of_(static_cast<size_t>(access.size()), kVictimLevels - 1) {
  for (size_t level = 0; level < options.victims.size(); ++level) {
    for (const Rank peer : options.victims[level]) {
      level_of_[peer] = static_cast<uint8_t>(std::min(level, kVictimLevels - 1));
    }
  }
  this_pool_worker = this;
}

PoolWorker::~PoolWorker() {
  pool::internal::deque = unused_deque();
  this_pool_worker = nullptr;
}

void PoolWorker::pause(uint64_t round) const { idle_pause(round, idle_sleep_ns_); }
void PoolWorker::run_calls() { static_cast<void>(fabric_.process_calls()); }
std::string PoolWorker::label(uint64_t rank) const {
  return fabric_.label(static_cast<uint32_t>(rank));
}

// A transfer to a peer has failed. The peer may live, and may have left the run because a third
// process is dead: that process is the cause. Waits for some time until the fabric has noticed it.
void PoolWorker::await_cause() {
  const auto deadline = steady_clock::now() + kCausePatience;
  while (broken().ok() && steady_clock::now() < deadline) {
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
  if (broken().ok() && steady_clock::now() >= deadline_) fail(too_late(""));
}

absl::Status PoolWorker::too_late(const std::string& working) const {
  return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kPeer,
                    "tasks of the run have not ended within PoolOptions::run_timeout, " +
                        std::to_string(run_timeout_.count()) + " ms" +
                        (working.empty() ? "" : "; workers with tasks" + working),
                    cariama::internal::peer_remedy(cariama::internal::PeerRemedy::kSilent));
}

void PoolWorker::check_peers() {
  next_check_ = steady_clock::now() + kVictimCheckInterval;
  // When a peer dies, the workers that notice the death leave the run. The dead worker is the
  // cause, not the workers that have left.
  std::string failed;
  std::string left;
  std::string working;
  bool dead = false;
  for (int peer = 0; peer < access_.size() && broken().ok(); ++peer) {
    if (peer == rank()) continue;
    const std::string& label = fabric_.label(static_cast<uint32_t>(peer));
    absl::Status alive = fabric_.peer_status(static_cast<uint32_t>(peer));
    dead |= !alive.ok();
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
    if (status == kWorking) working += (working.empty() ? ": " : ", ") + label;
    if (status == kLeft)
      left += (left.empty() ? "" : "; ") + label + " has left the run with an error: " +
              std::string(cariama::internal::peer_remedy(cariama::internal::PeerRemedy::kEnded));
  }
  // The death of a process is reported instead of the time limit. A worker that cannot be read is
  // not: it may itself have left the run because of the time limit.
  if (!dead && steady_clock::now() >= deadline_) return fail(too_late(working));
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

}  // namespace tasks
}  // namespace cariama
