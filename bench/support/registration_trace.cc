#include "bench/support/registration_trace.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "dtutils/error.h"

namespace cariama::bench {
namespace {

constexpr uintptr_t kTracePage = 4096;

// The pages of a trace in runs that every message uses whole or not at all. A buffer of 256 MiB has
// 65536 pages in a few runs.
class PageRuns {
 public:
  explicit PageRuns(const RankTrace& rank) {
    for (const TraceMessage& message : rank) {
      starts_.push_back(message.address / kTracePage);
      starts_.push_back((message.address + message.bytes - 1) / kTracePage + 1);
    }
    std::sort(starts_.begin(), starts_.end());
    starts_.erase(std::unique(starts_.begin(), starts_.end()), starts_.end());
  }
  [[nodiscard]] size_t count() const { return starts_.size(); }
  [[nodiscard]] int64_t bytes(size_t run) const {
    return static_cast<int64_t>((starts_[run + 1] - starts_[run]) * kTracePage);
  }
  // Calls visit(run) for each run of the message.
  template <typename Visit>
  void for_each(const TraceMessage& message, Visit&& visit) const {
    const uintptr_t end = (message.address + message.bytes - 1) / kTracePage + 1;
    const auto first =
        std::lower_bound(starts_.begin(), starts_.end(), message.address / kTracePage);
    for (auto run = static_cast<size_t>(first - starts_.begin()); starts_[run] < end; ++run) {
      visit(run);
    }
  }

 private:
  std::vector<uintptr_t> starts_;  // and, last, the end of the last run
};

int64_t transfer_ns(size_t bytes) { return 2000 + static_cast<int64_t>(bytes / 10); }

struct RawMessage {
  TraceMessage message;
  int64_t compute = 0;  // c_ns
};

// Sets begin and end on the axis of processor time. Messages that were in progress at the same time
// (both directions of a collective, non-blocking messages until their wait) still are: each begins
// at its processor time, and their transfers take place one after the other, from the processor
// time of the last one.
void to_cpu_axis(std::vector<RawMessage>& rank) {
  int64_t transfers = 0;
  for (size_t first = 0; first < rank.size();) {
    size_t last = first;
    int64_t duration = 0;
    int64_t wall_end = rank[first].message.begin;
    while (last < rank.size() &&
           (rank[last].compute == rank[first].compute || rank[last].message.begin < wall_end)) {
      wall_end = std::max(wall_end, rank[last].message.end);
      duration += transfer_ns(rank[last++].message.bytes);
    }
    int64_t end = rank[last - 1].compute + transfers;
    for (; first < last; ++first) {
      rank[first].message.begin = rank[first].compute + transfers;
      rank[first].message.end = end += transfer_ns(rank[first].message.bytes);
    }
    transfers += duration;
  }
}

// Sets next_use and the fields about signatures.
void annotate(RankTrace& rank) {
  std::map<std::array<uintptr_t, 6>, int> seen;
  for (size_t i = 0; i < rank.size(); ++i) {
    std::array<uintptr_t, 6> signature{};
    for (size_t back = 0; back < 3 && back <= i; ++back) {
      signature[2 * back] = rank[i - back].call_site;
      signature[2 * back + 1] = rank[i - back].address;
    }
    const int before = seen[signature]++;
    rank[i].signature_is_new = before == 0;
    rank[i].signature_is_known = before >= 2;
  }
  const PageRuns runs(rank);
  std::vector<int64_t> next_of(runs.count(), INT64_MAX);
  for (size_t i = rank.size(); i-- > 0;) {
    TraceMessage& message = rank[i];
    runs.for_each(message, [&](size_t run) {
      message.next_use = std::min(message.next_use, next_of[run]);
      next_of[run] = message.begin;
    });
  }
}

std::string contents_of(const std::string& file, bool& found) {
  const bool packed = file.size() > 3 && file.compare(file.size() - 3, 3, ".xz") == 0;
  // The name is an argument of a shell command: quoted.
  std::string quoted;
  for (const char c : file) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  FILE* const stream =
      packed ? popen(("xz -dc '" + quoted + "'").c_str(), "re") : std::fopen(file.c_str(), "re");
  std::string text;
  found = stream != nullptr;
  if (!found) return text;
  std::array<char, 65536> part;
  for (size_t got; (got = std::fread(part.data(), 1, part.size(), stream)) > 0;) {
    text.append(part.data(), got);
  }
  found = std::ferror(stream) == 0;
  found = (packed ? pclose(stream) == 0 : std::fclose(stream) == 0) && found;
  return text;
}

}  // namespace

absl::StatusOr<std::vector<RankTrace>> read_trace(const std::string& file, Axis axis) {
  bool found = false;
  const std::string text = contents_of(file, found);
  if (!found) {
    return make_error(absl::StatusCode::kNotFound, ErrorScope::kOperation,
                      "cannot read the trace " + file);
  }
  std::map<uint32_t, std::vector<RawMessage>> ranks;
  size_t line_number = 0;
  for (const auto line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> cells = absl::StrSplit(line, ',');
    uint32_t rank = 0;
    uint64_t site = 0;
    int64_t peer = -1;
    RawMessage raw;
    if (cells.size() < 9 || !absl::SimpleAtoi(cells[0], &rank) ||
        !absl::SimpleAtoi(cells[1], &raw.message.begin) ||
        !absl::SimpleAtoi(cells[2], &raw.message.end) || !absl::SimpleHexAtoi(cells[4], &site) ||
        !absl::SimpleAtoi(cells[5], &raw.message.address) ||
        !absl::SimpleAtoi(cells[6], &raw.message.bytes) || !absl::SimpleAtoi(cells[7], &peer) ||
        !absl::SimpleAtoi(cells[8], &raw.compute) || raw.message.bytes == 0) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        absl::StrCat(file, ": line ", line_number, " is not a message"));
    }
    constexpr uint64_t kMost = uint64_t{1} << 48;  // longer addresses exist on no machine
    if (raw.message.address >= kMost || raw.message.bytes >= kMost || raw.compute < 0 ||
        raw.message.begin < 0 || raw.message.end < raw.message.begin) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        absl::StrCat(file, ": line ", line_number,
                                     ": the address or the length is 2^48 or more, a time is "
                                     "negative, or the message ends before it begins"));
    }
    raw.message.call_site = site + 1;  // 0 ends a call stack
    // Both directions of a collective have one call site, but are different communications.
    if (cells[3] == "alltoall_r") raw.message.call_site ^= uintptr_t{1} << 40;
    if (peer >= 0) raw.message.peer = static_cast<uint32_t>(peer);
    ranks[rank].push_back(raw);
  }
  if (ranks.empty()) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "the trace " + file + " has no message");
  }
  std::vector<RankTrace> result;
  for (auto& [number, rank] : ranks) {
    if (axis == Axis::kCpu) to_cpu_axis(rank);
    RankTrace& trace = result.emplace_back();
    for (const RawMessage& raw : rank) trace.push_back(raw.message);
    std::stable_sort(trace.begin(), trace.end(),
                     [](const auto& a, const auto& b) { return a.begin < b.begin; });
    const int64_t start = trace.front().begin;
    for (TraceMessage& message : trace) {
      message.begin -= start;
      message.end -= start;
    }
    annotate(trace);
  }
  return result;
}

std::vector<std::vector<size_t>> group_ranks(std::vector<RankTrace>& ranks, size_t per_node,
                                             uint64_t seed) {
  std::vector<size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937_64 random(seed);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  std::vector<std::vector<size_t>> nodes;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i % per_node == 0) nodes.emplace_back();
    nodes.back().push_back(order[i]);
  }
  for (const std::vector<size_t>& node : nodes) {
    for (const size_t rank : node) {
      std::erase_if(ranks[rank], [&node](const TraceMessage& message) {
        return std::find(node.begin(), node.end(), message.peer) != node.end();
      });
      for (TraceMessage& message : ranks[rank]) message.next_use = INT64_MAX;
      annotate(ranks[rank]);
    }
  }
  return nodes;
}

double predictable_byte_seconds(const std::vector<RankTrace>& ranks, double quantile) {
  constexpr int64_t kRegistering = 6000;
  double sum = 0;
  for (const RankTrace& rank : ranks) {
    using Gap = std::array<uintptr_t, 3>;
    std::map<Gap, std::vector<int64_t>> gaps;
    const auto gap_of = [&](size_t i) {
      return Gap{rank[i - 1].call_site, rank[i].call_site, rank[i].address};
    };
    for (size_t i = 1; i < rank.size(); ++i) {
      gaps[gap_of(i)].push_back(rank[i].begin - rank[i - 1].begin);
    }
    for (auto& [name, values] : gaps) std::sort(values.begin(), values.end());
    for (size_t i = 0; i < rank.size(); ++i) {
      const TraceMessage& message = rank[i];
      int64_t lead = 0;
      if (i > 0) {
        const std::vector<int64_t>& known = gaps[gap_of(i)];
        const auto at = static_cast<size_t>(quantile * static_cast<double>(known.size()));
        lead = std::max<int64_t>(message.begin - rank[i - 1].begin - known[at], 0);
      }
      const uintptr_t first = message.address / kTracePage * kTracePage;
      const uintptr_t end =
          (message.address + message.bytes + kTracePage - 1) / kTracePage * kTracePage;
      sum += static_cast<double>(message.end - message.begin + lead + kRegistering) * 1e-9 *
             static_cast<double>(end - first);
    }
  }
  return sum;
}

OracleValues oracle_values(const std::vector<RankTrace>& ranks, int64_t horizon_ns,
                           const RegistrationCosts& costs) {
  OracleValues values;
  std::map<int64_t, int64_t> changes;  // of the registered bytes
  for (const RankTrace& rank : ranks) {
    const PageRuns runs(rank);
    struct Interval {
      int64_t from = 0;
      int64_t to = INT64_MIN;  // before `from`: not used yet
    };
    std::vector<Interval> intervals(runs.count());
    const auto close = [&](size_t run) {
      const auto [from, to] = intervals[run];
      values.byte_seconds +=
          static_cast<double>(to - from) * 1e-9 * static_cast<double>(runs.bytes(run));
      changes[from] += runs.bytes(run);
      changes[to] -= runs.bytes(run);
    };
    for (const TraceMessage& message : rank) {
      const auto pages = static_cast<int64_t>((message.address + message.bytes - 1) / kTracePage +
                                              1 - message.address / kTracePage);
      const int64_t begin = message.begin - costs.register_base - costs.register_page * pages;
      const int64_t end = message.end + costs.deregister_base + costs.deregister_page * pages;
      runs.for_each(message, [&](size_t run) {
        Interval& known = intervals[run];
        const bool is_new = known.to < known.from;
        if (is_new || begin - known.to > horizon_ns) {
          if (!is_new) close(run);
          known = {begin, end};
        } else {
          known.to = std::max(known.to, end);
        }
      });
    }
    for (size_t run = 0; run < intervals.size(); ++run) {
      Interval& interval = intervals[run];
      if (interval.to < interval.from) continue;
      // Leave-pinned: until the end of the rank.
      if (horizon_ns == INT64_MAX) interval.to = std::max(interval.to, rank.back().end);
      close(run);
    }
  }
  int64_t registered = 0;
  for (const auto& [time, change] : changes) {
    registered += change;
    values.peak = std::max(values.peak, static_cast<uint64_t>(registered));
  }
  return values;
}

std::string transform_trace_text(uint32_t ranks, int layout, size_t bytes, int64_t compute_ns,
                                 int iterations) {
  std::string text = absl::StrFormat(
      "# FT, generated: ranks=%d layout=%dD bytes=%d; columns: "
      "rank,t_ns,t_end_ns,kind,callsite_hash,addr,bytes,peer,c_ns\n",
      ranks, layout, bytes);
  const int64_t transfer = 2 * transfer_ns(bytes);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const auto array = [&](uintptr_t index) {
      return (uintptr_t{1} << 40) + (rank * 4 + index) * ((bytes + 4095) / 4096 + 16) * 4096;
    };
    int64_t compute = 0;
    int64_t time = 0;
    const auto exchange = [&](uintptr_t from, uintptr_t site, int64_t peer) {
      compute += compute_ns;
      time += compute_ns;
      for (const bool sends : {true, false}) {
        absl::StrAppendFormat(&text, "%d,%d,%d,%s,%x,%d,%d,%d,%d\n", rank, time, time + transfer,
                              sends ? "alltoall_s" : "alltoall_r", site, array(sends ? from : 1),
                              bytes, peer, compute);
      }
      time += transfer;
    };
    // Initialisation (arrays 0 and 1) twice, then the iterations (arrays 2 and 1).
    for (int iteration = -2; iteration < iterations; ++iteration) {
      const uintptr_t from = iteration < 0 ? 0 : 2;
      const uintptr_t site = iteration < 0 ? 0x100 + static_cast<uintptr_t>(-iteration) : 0x200;
      for (int dimension = 0; dimension < layout; ++dimension) {
        exchange(from, site + 0x10 * static_cast<uintptr_t>(dimension),
                 dimension == 1 ? (rank + ranks / 2) % ranks : -1);
      }
    }
  }
  return text;
}

}  // namespace cariama::bench
