#include "bench/support/registration_replay.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "dtutils/error.h"
#include "dtutils/internal/byte_size.h"
#include "dtutils/internal/futex.h"
#include "dtutils/registration/pinner.h"

namespace cariama::bench {
namespace {

constexpr uintptr_t kReplayPage = 4096;
constexpr int64_t kOverslept = 20'000;

// Mapped memory in place of that of the traced program: one mapping for each range of pages that
// the trace uses without a hole.
class TracedMemory {
 public:
  // `present`: the pages exist before they are used. On the virtual clock nothing accesses them.
  explicit TracedMemory(bool present) : present_(present) {}
  ~TracedMemory() {
    for (const auto& [start, range] : ranges_) munmap(range.memory, range.bytes);
  }

  absl::Status map(const RankTrace& rank) {
    std::map<uintptr_t, uintptr_t> pages;  // first byte: end
    for (const TraceMessage& message : rank) {
      const uintptr_t start = message.address / kReplayPage * kReplayPage;
      const uintptr_t end =
          (message.address + message.bytes + kReplayPage - 1) / kReplayPage * kReplayPage;
      pages[start] = std::max(pages[start], end);
    }
    uintptr_t start = 0;
    uintptr_t end = 0;
    for (const auto& [from, to] : pages) {
      if (from > end) {
        if (absl::Status mapped = map(start, end); !mapped.ok()) return mapped;
        start = from;
      }
      end = std::max(end, to);
    }
    return map(start, end);
  }

  [[nodiscard]] std::byte* translate(uintptr_t address) const {
    const auto range = std::prev(ranges_.upper_bound(address));
    return range->second.memory + (address - range->first);
  }

 private:
  struct Range {
    std::byte* memory;
    size_t bytes;
  };

  absl::Status map(uintptr_t start, uintptr_t end) {
    if (start == end) return absl::OkStatus();
    void* const memory =
        mmap(nullptr, end - start, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | (present_ ? MAP_POPULATE : MAP_NORESERVE), -1, 0);
    if (memory == MAP_FAILED) {
      return make_errno_error(
          errno, ErrorScope::kProcess,
          "mapping " + internal::format_bytes(end - start) + " for a buffer of the trace",
          "raise RLIMIT_AS, or free memory; --clock virtual needs addresses only");
    }
    ranges_[start] = {static_cast<std::byte*>(memory), end - start};
    return absl::OkStatus();
  }

  const bool present_;
  std::map<uintptr_t, Range> ranges_;
};

// The virtual clock of the replay in progress.
int64_t virtual_time = 0;
int64_t virtual_clock() { return virtual_time; }

constexpr int64_t pages_of(size_t bytes) { return static_cast<int64_t>(bytes / kReplayPage); }

// Pins nothing, and advances the virtual clock by the cost of pinning.
class CostedPinner final : public Pinner {
 public:
  class Region final : public MemoryRegion {
   public:
    Region(const MemorySource& source, ByteSecondsParts& parts)
        : MemoryRegion(source, Access::kAll), parts_(parts), since_(virtual_time) {
      virtual_time += kPinBase + kPinPerPage * pages_of(length_);
      ready_ = virtual_time;
    }
    ~Region() override {
      virtual_time += kUnpinBase + kUnpinPerPage * pages_of(length_);
      charge(used_ ? parts_.late : parts_.unused, virtual_time);
    }
    // The time at which the registration was complete.
    [[nodiscard]] int64_t ready() const { return ready_; }
    void used(int64_t begin, int64_t end) {
      charge(used_ ? parts_.between : parts_.early, begin);
      charge(parts_.in_use, end);
      used_ = true;
    }

   private:
    void charge(double& part, int64_t until) {
      if (until <= since_) return;
      part += static_cast<double>(until - since_) * 1e-9 * static_cast<double>(length_);
      since_ = until;
    }

    ByteSecondsParts& parts_;
    int64_t since_;  // what lies before is charged
    int64_t ready_;
    bool used_ = false;
  };

  explicit CostedPinner(ByteSecondsParts& parts) : parts_(parts) {}

  absl::StatusOr<std::shared_ptr<MemoryRegion>> pin(std::byte* address, size_t bytes) override {
    return std::make_shared<Region>(MemorySource{.address = address, .length = bytes}, parts_);
  }

 private:
  ByteSecondsParts& parts_;
};

// Brings a replay forward in time: spins, or runs the steps of the helper that are due.
class Time {
 public:
  explicit Time(ReplayClock clock) : clock_(clock) {
    if (clock == ReplayClock::kVirtual) virtual_time = 0;
    start_ = now() + 10'000'000;
  }
  [[nodiscard]] int64_t now() const {
    return clock_ == ReplayClock::kVirtual ? virtual_time : registration_clock();
  }
  [[nodiscard]] int64_t start() const { return start_; }
  void attach(HelperPolicy* helper) { helper_ = helper; }
  void run_until(int64_t time) {
    if (clock_ == ReplayClock::kReal) return spin_until(start_ + time);
    while (helper_ != nullptr && due_ + kWakeDelay <= start_ + time) {
      // The helper runs beside the application, so its clock may be ahead of the time of the
      // messages.
      virtual_time = std::max(due_ + kWakeDelay, helper_free_);
      virtual_time += kStepCost;
      due_ = helper_->step();
      helper_free_ = virtual_time;
    }
    virtual_time = start_ + time;
  }
  // Returns true if acquire() at `begin` had to wait for a registration by the helper.
  [[nodiscard]] bool waited(const MemoryRegion& region, int64_t begin) const {
    const auto* const costed = dynamic_cast<const CostedPinner::Region*>(&region);
    return costed != nullptr && costed->ready() > start_ + begin;
  }

 private:
  const ReplayClock clock_;
  HelperPolicy* helper_ = nullptr;
  int64_t start_ = 0;
  int64_t due_ = 0;
  int64_t helper_free_ = 0;
};

absl::Status replay_rank(const RankTrace& rank, const MakePolicy& make_policy,
                         const MakePinner& make_pinner, uint64_t limit, ReplayClock clock,
                         ReplayResult& result) {
  TracedMemory memory(clock == ReplayClock::kReal);
  if (absl::Status mapped = memory.map(rank); !mapped.ok()) return mapped;
  absl::StatusOr<std::shared_ptr<Pinner>> pinner = std::make_shared<CostedPinner>(result.parts);
  if (clock == ReplayClock::kReal) pinner = make_pinner();
  if (!pinner.ok()) return pinner.status();
  Time time(clock);
  const int64_t start = time.start();
  Timeline timeline;
  timeline.reserve(4 * rank.size() + 16);
  RegistrationOptions options;
  options.max_bytes = limit;
  options.policy = make_policy(clock == ReplayClock::kReal);
  if (clock == ReplayClock::kVirtual) {
    options.clock = virtual_clock;
    // No mapping changes. The results must not depend on whether the system permits userfaultfd.
    options.invalidation = Invalidation::kExplicit;
  }
  options.on_change = [&](int64_t at, uint64_t bytes) { timeline.emplace_back(at - start, bytes); };
  auto cache = RegistrationCache::create(*pinner, options);
  if (!cache.ok()) return cache.status();
  const auto helper = std::dynamic_pointer_cast<HelperPolicy>(options.policy);
  time.attach(helper.get());

  struct Running {
    RegistrationUse whole;
    std::unique_ptr<ChunkedRegistration> pieces;
    int64_t piece_ns = 0;
  };
  std::multimap<int64_t, Running> running;  // by the end of the transfer, or of its piece
  const auto note_use = [&](const MemoryRegion& region, int64_t begin, int64_t end) {
    if (const auto* const costed = dynamic_cast<const CostedPinner::Region*>(&region)) {
      const_cast<CostedPinner::Region*>(costed)->used(begin, end);
    }
  };
  absl::Status failed;
  // Ends the transfers that end before `until`, in order. A transfer in pieces continues with its
  // next piece.
  const auto run_until = [&](int64_t until) {
    while (failed.ok() && !running.empty() && running.begin()->first <= until) {
      const int64_t end = running.begin()->first;
      Running one = std::move(running.begin()->second);
      running.erase(running.begin());
      time.run_until(end);
      const int64_t before = time.now();
      if (one.pieces != nullptr && !one.pieces->done()) {
        const auto piece = one.pieces->next();
        failed.Update(piece.status());
        // The use of a piece ends when the piece after the next one begins.
        if (piece.ok()) note_use(*piece->region, time.now(), start + end + 2 * one.piece_ns);
        running.emplace(end + one.piece_ns, std::move(one));
      } else {
        one = {};
      }
      result.main_ns += static_cast<double>(time.now() - before);
    }
    time.run_until(until);
  };
  int64_t last = 0;
  for (const TraceMessage& message : rank) {
    run_until(message.begin);
    if (!failed.ok()) return failed;
    const CallStack stack{message.call_site};
    const UseContext context{&stack,
                             message.next_use == INT64_MAX ? INT64_MAX : start + message.next_use};
    const std::byte* const address = memory.translate(message.address);
    const int64_t before = time.now();
    Running one;
    bool hit = false;
    const size_t piece_bytes = options.policy->piece_bytes(message.bytes);
    if (piece_bytes != 0 && message.bytes > piece_bytes) {
      one.pieces = std::make_unique<ChunkedRegistration>(**cache, address, message.bytes,
                                                         piece_bytes, context);
      auto piece = one.pieces->next();
      if (!piece.ok()) return piece.status();
      hit = piece->was_hit && !time.waited(*piece->region, message.begin);
      const auto pieces = static_cast<int64_t>((message.bytes + piece_bytes - 1) / piece_bytes);
      one.piece_ns = (message.end - message.begin) / pieces;
      note_use(*piece->region, start + message.begin, start + message.begin + 2 * one.piece_ns);
    } else {
      auto acquired = (*cache)->acquire(address, message.bytes, context);
      if (!acquired.ok()) return acquired.status();
      hit = acquired->was_hit() && !time.waited(acquired->region(), message.begin);
      one.whole = *std::move(acquired);
      note_use(one.whole.region(), start + message.begin, start + message.end);
      one.piece_ns = message.end - message.begin;
    }
    const int64_t after = time.now();
    result.main_ns += static_cast<double>(after - before);
    if (hit) result.hit_ns.push_back(static_cast<double>(after - before));
    ++result.messages;
    result.overslept += before - start > message.begin + kOverslept ? 1 : 0;
    result.late += hit ? 0 : 1;
    result.first_uses += message.signature_is_new ? 1 : 0;
    result.repeated += message.signature_is_known ? 1 : 0;
    result.late_repeated += message.signature_is_known && !hit ? 1 : 0;
    last = std::max(last, message.end);
    running.emplace(message.begin + one.piece_ns, std::move(one));
  }
  run_until(last);
  while (failed.ok() && !running.empty()) run_until(running.begin()->first);
  if (!failed.ok()) return failed;
  const RegistrationStatistics statistics = (*cache)->statistics();
  result.byte_seconds += statistics.byte_seconds;
  result.registrations += statistics.registrations;
  result.seconds += static_cast<double>(last) * 1e-9;
  if (helper != nullptr) {
    result.helper_steps += helper->statistics().steps;
    result.helper_cpu_seconds += static_cast<double>(helper->statistics().cpu_nanoseconds) * 1e-9;
    result.errors += helper->statistics().errors;
  }
  cache->reset();
  result.timelines.push_back(std::move(timeline));
  return absl::OkStatus();
}

}  // namespace

void spin_until(int64_t time) {
  while (registration_clock() < time) internal::cpu_relax();
}

uint64_t ReplayResult::peak_bytes(std::span<const size_t> ranks) const {
  std::multimap<int64_t, int64_t> changes;
  for (const size_t rank : ranks) {
    int64_t before = 0;
    for (const auto& [time, bytes] : timelines[rank]) {
      changes.emplace(time, static_cast<int64_t>(bytes) - before);
      before = static_cast<int64_t>(bytes);
    }
  }
  int64_t now = 0;
  int64_t peak = 0;
  for (const auto& [time, change] : changes) peak = std::max(peak, now += change);
  return static_cast<uint64_t>(peak);
}

absl::StatusOr<ReplayResult> replay_trace(const std::vector<RankTrace>& ranks,
                                          const MakePolicy& make_policy,
                                          const MakePinner& make_pinner, uint64_t limit,
                                          ReplayClock clock) {
  ReplayResult result;
  for (const RankTrace& rank : ranks) {
    if (absl::Status done = replay_rank(rank, make_policy, make_pinner, limit, clock, result);
        !done.ok()) {
      return done;
    }
  }
  return result;
}

}  // namespace cariama::bench
