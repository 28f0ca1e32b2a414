// DequeKind::kThe: the scheduler with the deque of the_deque.h.
#include <array>
#include <atomic>
#include <cstdint>

#include "tasks/internal/scheduler.h"
#include "tasks/internal/steal_timer.h"
#include "tasks/paper/joins.h"
#include "tasks/paper/kinds.h"
#include "tasks/paper/the_deque.h"

namespace cariama::tasks {
namespace {

// The memory that this scheduler adds to the tail of the region.
struct TheWords {
  TheQueue queue;
  // Buffers into which this worker reads the memory of a victim.
  uint64_t queue_copy[3];  // lock, base, top
  uint64_t entries[2];     // the entries of the stolen task's parent and of the stolen task
  uint64_t reports[2];     // the reports at the same two positions
};

template <typename Derived>
class TheScheduler : public Scheduler<Derived, Worker> {
  using Base = Scheduler<Derived, Worker>;
  using Base::access_;
  using Base::entries_;
  using Base::fork_state;
  using Base::reports_;
  using Base::statistics_;

 public:
  TheScheduler(const TaskOptions& options, const WorkerMemory& memory, StackRegion& region,
               RemoteAccess& access, uint64_t canary)
      : Base(options, memory, region, access, canary),
        words_(*reinterpret_cast<TheWords*>(this->added_memory())),
        memory_{{access}},
        the_(memory_, words_.queue) {
    this->intercept_forks_and_loops();
    this->sleep_without_wakeups();
    quiesce_region();  // the queue begins at position 1
  }

  // Makes all pushed entries public, and allocates their join records. Does nothing while the
  // running task handles exceptions.
  void serve_steal_request() override {
    uint64_t* const floor = fork_state().floor;
    uint64_t* const top = fork_state().top;
    if (floor == top || !this->exceptions().empty()) return;
    for (auto i = static_cast<size_t>(floor - entries_); entries_ + i < top; ++i) {
      if (reports_[i] == 0) reports_[i] = this->new_record().word();
      this->before_publication(sp_of(entries_[i]), sp_of(entries_[i - 1]));
      ++statistics_.published;
    }
    fork_state().floor = top;
    the_.push(static_cast<uint64_t>(top - entries_));
  }

  [[nodiscard]] bool take_parent_back() override {
    uint64_t* const top = fork_state().top;
    if (top == entries_) return false;
    const auto position = static_cast<uint64_t>(top - entries_);
    if (!the_.pop(position, [this](uint64_t round) { this->await_thief(round); })) return false;
    fork_state().floor = top;
    return true;
  }

  void quiesce_region() {
    fork_state().floor =
        entries_ + 1 + the_.reset([this](uint64_t round) { this->await_thief(round); });
    Base::quiesce_region();
  }

  // Implements the thief's protocol of the_deque.h.
  [[nodiscard]] bool steal_from(int victim) {
    typename Base::StealTimer timer(*this);
    const uint64_t trips_before = access_.round_trips();
    TheQueue& queue = words_.queue;
    must(
        access_.read(victim, address_of(&queue.lock), words_.queue_copy, sizeof words_.queue_copy));
    if (words_.queue_copy[0] != 0 || words_.queue_copy[1] >= words_.queue_copy[2]) return false;
    timer.mark(1);
    const auto release = [&] {
      must(access_.post_add(victim, address_of(&queue.lock), kMinusOne));
    };
    if (must(access_.fetch_add(victim, address_of(&queue.lock), 1)) != 0) {
      release();
      ++statistics_.steal_lost;
      return false;
    }
    const uint64_t base = must(access_.fetch_add(victim, address_of(&queue.base), 1));
    const std::array<ReadPiece, 3> pieces{
        ReadPiece{address_of(&queue.top), words_.queue_copy, sizeof(uint64_t)},
        ReadPiece{address_of(entries_ + base - 1), words_.entries, sizeof words_.entries},
        ReadPiece{address_of(reports_ + base - 1), words_.reports, sizeof words_.reports}};
    must(access_.read(victim, pieces));
    if (base + 1 > words_.queue_copy[0] || (words_.entries[1] & kForkTied) != 0) {
      must(access_.write(victim, address_of(&queue.base), &base, sizeof base));
      release();
      ++statistics_.steal_lost;
      return false;
    }
    const PublicEntry entry{sp_of(words_.entries[1]), sp_of(words_.entries[0]), words_.reports[0],
                            words_.reports[1]};
    this->take_frames(victim, entry.sp, entry, timer);
    release();
    const uint64_t trips = access_.round_trips() - trips_before;
    this->count_steal(entry.top - entry.sp, trips);
    timer.sample(entry.top - entry.sp, trips);
    this->install(entry.top, entry.report, {reinterpret_cast<void*>(entry.sp), entry.record});
    return true;
  }

 private:
  struct FencedMemory : Base::OwnMemory {
    // Does not block.
    void add(std::atomic<uint64_t>& word, uint64_t addend) const {
      must(this->access.post_add(this->access.rank(), address_of(&word), addend));
    }
    // On x86-64 a read-modify-write of a private word is a full fence. clang compiles
    // std::atomic_thread_fence to an mfence, which is several times as slow.
    void fence() const { fence_word.fetch_add(1, std::memory_order_seq_cst); }
    mutable std::atomic<uint64_t> fence_word{0};
  };

  TheWords& words_;
  FencedMemory memory_;
  TheOwner<FencedMemory> the_;
};

WorkerMemory the_deque_memory(const TaskOptions& options, int workers) {
  WorkerMemory memory = uni_address_memory(options, workers);
  memory.added_bytes = sizeof(TheWords);
  return memory;
}

}  // namespace

WorkerKind the_deque_kind(JoinPolicy join) {
  return kind_with<TheScheduler>(join, the_deque_memory);
}

}  // namespace cariama::tasks
