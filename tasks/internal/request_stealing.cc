// Stealing by request and answer: for fabrics without remote atomics, and to compare with. All
// entries are private. A thief writes a ticket to its cell at the victim, then the victim's word of
// attention, at which each fork looks; the victim writes the oldest task's frames to where they
// belong in the thief's region, which is empty, and then its answer. One round trip, no atomic, no
// wait but for the victim. Source: private deques (Acar, Chargueraud and Rainey, PPoPP'13).
//
// Everybody answers, whatever it does: a running task at forks, joins and polls; a worker without
// work in each round; a thief while it waits for its own answer. So thieves cannot wait for each
// other. Who has nothing to spare says so at once.
//
// A ticket names its run. A thief that sees the run end leaves without its answer, and nobody
// answers tickets of another run, when frames would come into a region that is in use. While there
// is a task to be handed over, the run has not ended: its root joins them all.
//
// An answer is not seen too early: what it speaks of has been acknowledged before it is sent, or is
// small and sent before it on the same connection.
#include <atomic>
#include <chrono>
#include <cstdint>

#include "dtutils/trace.h"
#include "tasks/internal/sanitizer.h"
#include "tasks/internal/scheduler.h"
#include "tasks/internal/steal_timer.h"

namespace cariama::tasks {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{100};  // until a silent victim is looked at

uint64_t address_of(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

// A ticket is {run, number of the request in it}, and leaves one bit for the answer.
constexpr uint64_t kRunMask = 0x7fffffff;
constexpr uint64_t kNumberMask = 0xffffffff;

// What a thief waits for; it hands tasks over itself meanwhile, which takes trips of its own.
constexpr uint64_t kOneAnswer = 1;

}  // namespace

bool Worker::steal_by_request(int victim) {
  StealTimer timer(*this);
  const uint64_t ticket = (runs_ & kRunMask) << 32 | (++tickets_ & kNumberMask);
  const AskCell& cell = asked_[static_cast<size_t>(victim)];
  AskCell& there = asked_[static_cast<size_t>(rank())];  // the victim's has the same address
  must(access_.write(victim, address_of(&there.request), &ticket, sizeof ticket));
  must(access_.write(victim, address_of(&area_.shelf.attention), &kHungry, sizeof kHungry));
  timer.mark(1);
  auto next_look = steady_clock::now() + kLook;
  uint64_t answer = 0;
  for (uint64_t round = 0;; ++round) {
    answer = cell.answered.load(std::memory_order_acquire);
    if (answer >> 1 == ticket) break;
    answer_requests();
    if (run_has_ended_()) return false;
    pause_idle(round);
    if (steady_clock::now() < next_look) continue;
    // It may be dead, which reading from it tells.
    must(access_.read(victim, address_of(&area_.finished), &area_.join_copy.arrivals,
                      sizeof(uint64_t)));
    next_look = steady_clock::now() + kLook;
  }
  if ((answer & 1) == 0) return false;
  timer.mark(2);
  const PublicEntry entry = cell.entry;
  ++taken_from_[static_cast<size_t>(victim)];
  victim_was_robbed();
  timer.mark(3);
  timer.mark(4);
  timer.succeeded(entry.top - entry.sp, kOneAnswer);
  install(entry.top, entry.report, {reinterpret_cast<void*>(entry.sp), entry.record});
  return true;
}

void Worker::answer_requests() {
  std::atomic<uint64_t>& attention = area_.shelf.attention;
  if (attention.load(std::memory_order_relaxed) == kCalm) return;
  // Before the cells are looked at: a request that comes later calls again.
  attention.store(kCalm, std::memory_order_seq_cst);
  for (int thief = 0; thief < access_.size(); ++thief) {
    const uint64_t ticket =
        asked_[static_cast<size_t>(thief)].request.load(std::memory_order_seq_cst);
    if (ticket == answered_[static_cast<size_t>(thief)]) continue;
    if (ticket >> 32 != (runs_ & kRunMask)) continue;  // of a run that has ended
    answered_[static_cast<size_t>(thief)] = ticket;
    answer(thief, ticket);
  }
}

void Worker::answer(int thief, uint64_t ticket) {
  AskCell& there = asked_[static_cast<size_t>(rank())];  // the thief's has the same address
  uint64_t* const floor = cariama_fork_state.floor;
  // Whoever forked in a catch block, or while one is looked for, has to come back to its exception.
  const bool hands_over =
      floor < cariama_fork_state.top && (*floor & kForkTied) == 0 && exceptions().empty();
  if (hands_over) {
    const auto position = static_cast<size_t>(floor - entries_);
    if (reports_[position] == 0) reports_[position] = new_record().word();
    const PublicEntry entry{sp_of(entries_[position]), sp_of(entries_[position - 1]),
                            reports_[position - 1], reports_[position]};
    const TraceScope trace("tasks", "hand over", "bytes", entry.top - entry.sp);
    if (options_.check_frames) check_frames(entry.sp, entry.top);
    frames_leave(entry.sp, entry.top);
    must(access_.write(thief, address_of(&there.entry), &entry, sizeof entry));
    must(access_.write(thief, entry.sp, reinterpret_cast<const void*>(entry.sp),
                       entry.top - entry.sp));
    cariama_fork_state.floor = floor + 1;
    area_.shelf.copied.fetch_add(1, std::memory_order_release);
    area_.taken_by[thief % 64].fetch_add(1, std::memory_order_relaxed);
    ++statistics_.published;
  }
  const uint64_t answer = ticket << 1 | (hands_over ? 1 : 0);
  must(access_.write(thief, address_of(&there.answered), &answer, sizeof answer));
}

}  // namespace cariama::tasks
