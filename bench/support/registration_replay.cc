#include "bench/support/registration_replay.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "dtutils/error.h"
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
    void* const memory = mmap(nullptr, end - start, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
      return make_errno_error(errno, ErrorScope::kProcess, "mapping the buffers of the trace");
    }
    ranges_[start] = {static_cast<std::byte*>(memory), end - start};
    return absl::OkStatus();
  }

  std::map<uintptr_t, Range> ranges_;
};

absl::Status replay_rank(const RankTrace& rank, const MakePolicy& make_policy, uint64_t limit,
                         ReplayResult& result) {
  TracedMemory memory;
  if (absl::Status mapped = memory.map(rank); !mapped.ok()) return mapped;
  auto pinner = IoUringPinner::create();
  if (!pinner.ok()) return pinner.status();
  const int64_t start = registration_clock() + 10'000'000;
  Timeline timeline;
  timeline.reserve(4 * rank.size() + 16);
  RegistrationOptions options;
  options.max_bytes = limit;
  options.policy = make_policy();
  options.on_change = [&](int64_t time, uint64_t bytes) {
    timeline.emplace_back(time - start, bytes);
  };
  auto cache = RegistrationCache::create(*pinner, options);
  if (!cache.ok()) return cache.status();
  const auto helper = std::dynamic_pointer_cast<HelperPolicy>(options.policy);

  struct Running {
    Registration whole;
    std::unique_ptr<ChunkedRegistration> pieces;
    int64_t piece_ns = 0;
  };
  std::multimap<int64_t, Running> running;  // by the end of the transfer, or of its piece
  const size_t piece_bytes = options.policy->piece_bytes();
  absl::Status failed;
  // Ends what ends before `time`, in order; a transfer in pieces goes on with its next piece.
  const auto run_until = [&](int64_t time) {
    while (failed.ok() && !running.empty() && running.begin()->first <= time) {
      const int64_t end = running.begin()->first;
      Running one = std::move(running.begin()->second);
      running.erase(running.begin());
      spin_until(start + end);
      const int64_t before = registration_clock();
      if (one.pieces != nullptr && !one.pieces->done()) {
        failed.Update(one.pieces->next().status());
        running.emplace(end + one.piece_ns, std::move(one));
      } else {
        one = {};
      }
      result.main_ns += static_cast<double>(registration_clock() - before);
    }
    spin_until(start + time);
  };
  int64_t last = 0;
  for (const TraceMessage& message : rank) {
    run_until(message.begin);
    if (!failed.ok()) return failed;
    const CallStack stack{message.call_site};
    const UseContext context{&stack,
                             message.next_use == INT64_MAX ? INT64_MAX : start + message.next_use};
    const std::byte* const address = memory.translate(message.address);
    const int64_t before = registration_clock();
    Running one;
    bool hit = false;
    if (piece_bytes != 0 && message.bytes > piece_bytes) {
      one.pieces = std::make_unique<ChunkedRegistration>(**cache, address, message.bytes,
                                                         piece_bytes, context);
      auto piece = one.pieces->next();
      if (!piece.ok()) return piece.status();
      hit = piece->was_hit;
      const auto pieces = static_cast<int64_t>((message.bytes + piece_bytes - 1) / piece_bytes);
      one.piece_ns = (message.end - message.begin) / pieces;
    } else {
      auto acquired = (*cache)->acquire(address, message.bytes, context);
      if (!acquired.ok()) return acquired.status();
      hit = acquired->was_hit();
      one.whole = *std::move(acquired);
      one.piece_ns = message.end - message.begin;
    }
    const int64_t after = registration_clock();
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

uint64_t ReplayResult::peak_bytes() const {
  std::multimap<int64_t, int64_t> changes;
  for (const Timeline& timeline : timelines) {
    int64_t before = 0;
    for (const auto& [time, bytes] : timeline) {
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
                                          const MakePolicy& make_policy, uint64_t limit) {
  ReplayResult result;
  for (const RankTrace& rank : ranks) {
    if (absl::Status done = replay_rank(rank, make_policy, limit, result); !done.ok()) return done;
  }
  return result;
}

}  // namespace cariama::bench
