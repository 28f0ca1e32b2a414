// Stealing by request and answer (DequeKind::kPrivate), for fabrics without remote atomics and for
// comparison. All entries are private. A thief writes a request id to its cell at the victim, then
// the victim's steal request word, which each fork reads. The victim writes the frames of its
// oldest task to their addresses in the thief's region, which is empty, and then its answer. A
// steal takes one round trip and no atomic; the thief waits only for the victim. Source: private
// deques (Acar, Chargueraud and Rainey, PPoPP'13).
//
// Every worker answers in every state: a running task at forks, joins and polls; an idle worker in
// each round of its search; a thief while it waits for its own answer. So two thieves cannot wait
// for each other for ever. A victim without a task to hand over answers so at once.
//
// A request id contains the number of its run. A thief that observes the end of the run stops
// waiting for its answer. Victims do not answer requests of an earlier run, because the thief's
// region may be in use again. A victim that hands over a task does so before the run ends, because
// the root joins all tasks.
//
// The thief does not see an answer before the frames and the entry: larger writes are acknowledged
// before the answer is posted, and small ones are posted before it on the same connection.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dtutils/trace.h"
#include "tasks/internal/sanitizer.h"
#include "tasks/internal/scheduler.h"
#include "tasks/internal/steal_request.h"
#include "tasks/internal/steal_timer.h"
#include "tasks/paper/joins.h"
#include "tasks/paper/kinds.h"

namespace cariama::tasks {
namespace {

using std::chrono::steady_clock;

// A request id is {number of the run, number of the request in the run}. Its highest bit is free:
// an answer is request id * 2 + has_entry.
constexpr uint64_t kRunMask = 0x7fffffff;
constexpr uint64_t kNumberMask = 0xffffffff;

// The dependent round trips of a steal. RemoteAccess::round_trips() cannot be used here: the thief
// hands tasks over while it waits, which adds round trips of its own.
constexpr uint64_t kOneAnswer = 1;

// Messages from one peer to this worker. This scheduler adds a cell for each rank to the tail of
// the region; only that rank writes it.
struct alignas(64) StealRequestCell {
  std::atomic<uint64_t> request;   // request id of the peer's request for a task
  std::atomic<uint64_t> answered;  // the peer's answer: this worker's request id * 2 + has_entry
  PublicEntry entry;  // has_entry == 1: the task handed over; its frames are in this region
};
static_assert(sizeof(StealRequestCell) == 64);

template <typename Derived>
class PrivateScheduler : public Scheduler<Derived, Worker> {
  using Base = Scheduler<Derived, Worker>;
  using Base::access_;
  using Base::area_;
  using Base::entries_;
  using Base::fork_state;
  using Base::rank;
  using Base::reports_;
  using Base::runs_;
  using Base::taken_from_;

 public:
  PrivateScheduler(const TaskOptions& options, const WorkerMemory& memory, StackRegion& region,
                   RemoteAccess& access, uint64_t canary)
      : Base(options, memory, region, access, canary),
        request_cells_(reinterpret_cast<StealRequestCell*>(this->added_memory()),
                       static_cast<size_t>(access.size())),
        answered_(static_cast<size_t>(access.size())) {
    this->sleep_without_wakeups();
  }

  void serve_steal_request() override { answer_requests(); }
  void on_search_round() {
    Base::on_search_round();
    answer_requests();
  }
  // A steal waits for the answer of its victim, which may not be running: after a yield, try one
  // only at every kRequestEvery-th switch.
  void after(typename Base::Leaving& left) {
    constexpr uint64_t kRequestEvery = 16;
    Base::after(left);
    if (this->task_switches_ % kRequestEvery != 0) this->yielded_ = false;
  }
  [[nodiscard]] bool steal_from(int victim) {
    typename Base::StealTimer timer(*this);
    const uint64_t request_id = (runs_ & kRunMask) << 32 | (++requests_sent_ & kNumberMask);
    const StealRequestCell& cell = request_cells_[static_cast<size_t>(victim)];
    // This worker's cell at the victim. It has the same address there as here.
    StealRequestCell& there = request_cells_[static_cast<size_t>(rank())];
    must(access_.write(victim, address_of(&there.request), &request_id, sizeof request_id));
    must(access_.write(victim, address_of(&area_.public_part.steal_request), &kAnyEntryRequest,
                       sizeof kAnyEntryRequest));
    timer.mark(1);
    this->set_idle(true);  // not late, if the victim is
    auto next_liveness_check = steady_clock::now() + kVictimCheckInterval;
    uint64_t answer = 0;
    for (uint64_t round = 0;; ++round) {
      answer = cell.answered.load(std::memory_order_acquire);
      if (answer >> 1 == request_id) break;
      answer_requests();
      if (this->run_end_.reached()) return false;
      this->pause_idle(round);
      this->leave_run_if_late();
      if (steady_clock::now() < next_liveness_check) continue;
      // The victim may have died: this read then fails.
      must(access_.read(victim, address_of(&area_.finished), &area_.join_copy.arrivals,
                        sizeof(uint64_t)));
      next_liveness_check = steady_clock::now() + kVictimCheckInterval;
    }
    if ((answer & 1) == 0) return false;
    timer.mark(2);
    const PublicEntry entry = cell.entry;
    ++taken_from_[static_cast<size_t>(victim)];
    timer.mark(3);
    this->count_steal(entry.top - entry.sp, kOneAnswer);
    timer.sample(entry.top - entry.sp, kOneAnswer);
    this->install(entry.top, entry.report, {reinterpret_cast<void*>(entry.sp), entry.record});
    return true;
  }

 private:
  void answer_requests() {
    std::atomic<uint64_t>& steal_request = area_.public_part.steal_request;
    if (steal_request.load(std::memory_order_relaxed) == kNoRequest) return;
    // Clear the word before reading the cells: a request that arrives later sets the word again.
    steal_request.store(kNoRequest, std::memory_order_seq_cst);
    for (int thief = 0; thief < access_.size(); ++thief) {
      const uint64_t request_id =
          request_cells_[static_cast<size_t>(thief)].request.load(std::memory_order_seq_cst);
      if (request_id == answered_[static_cast<size_t>(thief)]) continue;
      if (request_id >> 32 != (runs_ & kRunMask)) continue;  // a request id of a run that has ended
      answered_[static_cast<size_t>(thief)] = request_id;
      answer(thief, request_id);
    }
  }

  // A task that waits in another layer answers, too, and must not be abandoned there. So a failure
  // of the thief is only noted.
  void answer(int thief, uint64_t request_id) {
    // This worker's cell at the thief. It has the same address there as here.
    StealRequestCell& there = request_cells_[static_cast<size_t>(rank())];
    uint64_t* const floor = fork_state().floor;
    // A task that forks in a catch block, or while an exception unwinds, must stay in this process,
    // where its exception is.
    const bool hands_over =
        floor < fork_state().top && (*floor & kForkTied) == 0 && this->exceptions().empty();
    if (hands_over) {
      const auto position = static_cast<size_t>(floor - entries_);
      if (reports_[position] == 0) reports_[position] = this->new_record().word();
      const PublicEntry entry{sp_of(entries_[position]), sp_of(entries_[position - 1]),
                              reports_[position - 1], reports_[position]};
      const TraceScope trace("tasks", "hand over", "bytes", entry.top - entry.sp);
      this->before_publication(entry.sp, entry.top);
      frames_leave(entry.sp, entry.top);
      absl::Status written = access_.write(thief, address_of(&there.entry), &entry, sizeof entry);
      if (written.ok()) {
        written = access_.write(thief, entry.sp, reinterpret_cast<const void*>(entry.sp),
                                entry.top - entry.sp);
      }
      if (!written.ok()) return this->note_failure(written);
      fork_state().floor = floor + 1;
      area_.public_part.copied.fetch_add(1, std::memory_order_release);
      area_.taken_by[thief % 64].fetch_add(1, std::memory_order_relaxed);
      ++this->statistics_.published;
    }
    const uint64_t answer = request_id << 1 | (hands_over ? 1 : 0);
    absl::Status answered =
        access_.write(thief, address_of(&there.answered), &answer, sizeof answer);
    if (!answered.ok()) this->note_failure(answered);
  }

  const std::span<StealRequestCell> request_cells_;
  uint64_t requests_sent_ = 0;
  std::vector<uint64_t> answered_;  // the id of the last answered request of each rank
};

WorkerMemory private_deque_memory(const TaskOptions& options, int workers) {
  WorkerMemory memory = uni_address_memory(options, workers);
  memory.added_bytes = static_cast<size_t>(workers) * sizeof(StealRequestCell);
  return memory;
}

}  // namespace

WorkerKind private_deque_kind(JoinPolicy join) {
  return kind_with<PrivateScheduler>(join, private_deque_memory);
}

}  // namespace cariama::tasks
