// The thief's side of the deques with public entries (DequeKind::kSplit and kThe).
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "dtutils/trace.h"
#include "tasks/internal/scheduler.h"
#include "tasks/internal/steal_timer.h"

namespace cariama::tasks {
bool Worker::steal(int victim) {
  ++statistics_.steal_attempts;
  ++statistics_.tried[std::min(victims_.level(), kVictimLevels - 1)];
  switch (options_.deque) {
    case DequeKind::kThe:
      return steal_the(victim);
    case DequeKind::kPrivate:
      return steal_by_request(victim);
    default:
      return steal_split(victim);
  }
}

// Requires: this worker has claimed the entry. Reads its frames, and reports that to the victim.
void Worker::take_frames(int victim, uint64_t from, uint64_t sp, uint64_t top, StealTimer& timer) {
  timer.mark(2);
  const TraceScope trace("tasks", "steal", "bytes", top - sp);
  must(access_.read(victim, from, reinterpret_cast<void*>(sp), top - sp));
  timer.mark(3);
  must(report_copied(access_, victim, area_.public_part));
  const uint64_t taken = ++taken_from_[static_cast<size_t>(victim)];
  must(access_.write(victim, address_of(&area_.taken_by[rank() % 64]), &taken, sizeof taken));
  count_steal();
}

bool Worker::steal_split(int victim) {
  StealTimer timer(*this);
  const ClaimResult got = must(claim_from_public_part(
      access_, victim, area_.public_part, area_.public_part_copy, [&] { timer.mark(1); }));
  if (got.claim != Claim::kClaimed) {
    statistics_.steal_lost += got.claim == Claim::kLost;
    return false;
  }
  const PublicEntry entry = area_.public_part_copy.slots[got.first];
  take_frames(victim, frames_of(entry), entry.sp, entry.top, timer);
  timer.mark(4);
  timer.succeeded(entry.top - entry.sp, timer.trips());
  install(entry.top, entry.report, {reinterpret_cast<void*>(entry.sp), entry.record});
  return true;
}

// Implements the thief's protocol of the_deque.h.
bool Worker::steal_the(int victim) {
  StealTimer timer(*this);
  TheQueue& queue = area_.the;
  must(access_.read(victim, address_of(&queue.lock), area_.the_words, sizeof area_.the_words));
  if (area_.the_words[0] != 0 || area_.the_words[1] >= area_.the_words[2]) return false;
  timer.mark(1);
  if (must(access_.fetch_add(victim, address_of(&queue.lock), 1)) != 0) {
    ++statistics_.steal_lost;
    return false;
  }
  const uint64_t base = must(access_.fetch_add(victim, address_of(&queue.base), 1));
  const std::array<ReadPiece, 3> pieces{
      ReadPiece{address_of(&queue.top), area_.the_words, sizeof(uint64_t)},
      ReadPiece{address_of(entries_ + base - 1), area_.the_entries, sizeof area_.the_entries},
      ReadPiece{address_of(reports_ + base - 1), area_.the_reports, sizeof area_.the_reports}};
  must(access_.read(victim, pieces));
  constexpr uint64_t kFree = 0;
  if (base + 1 > area_.the_words[0] || (area_.the_entries[1] & kForkTied) != 0) {
    must(access_.write(victim, address_of(&queue.base), &base, sizeof base));
    must(access_.write(victim, address_of(&queue.lock), &kFree, sizeof kFree));
    ++statistics_.steal_lost;
    return false;
  }
  const uint64_t sp = sp_of(area_.the_entries[1]);
  const uint64_t top = sp_of(area_.the_entries[0]);
  const uint64_t report = area_.the_reports[0];
  const uint64_t record = area_.the_reports[1];
  take_frames(victim, sp, sp, top, timer);
  must(access_.write(victim, address_of(&queue.lock), &kFree, sizeof kFree));
  timer.mark(4);
  timer.succeeded(top - sp, timer.trips());
  install(top, report, {reinterpret_cast<void*>(sp), record});
  return true;
}

// Makes all pushed entries public, and allocates their join records. Does nothing while the running
// task handles exceptions.
void Worker::publish_the() {
  uint64_t* const floor = cariama_fork_state.floor;
  uint64_t* const top = cariama_fork_state.top;
  if (floor == top || !exceptions().empty()) return;
  for (auto i = static_cast<size_t>(floor - entries_); entries_ + i < top; ++i) {
    if (reports_[i] == 0) reports_[i] = new_record().word();
    if (options_.check_frames) check_frames(sp_of(entries_[i]), sp_of(entries_[i - 1]));
    ++statistics_.published;
  }
  cariama_fork_state.floor = top;
  the_.push(static_cast<uint64_t>(top - entries_));
}

}  // namespace cariama::tasks
