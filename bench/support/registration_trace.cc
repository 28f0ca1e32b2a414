#include "bench/support/registration_trace.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "dtutils/error.h"

namespace cariama::bench {
namespace {

constexpr uintptr_t kTracePage = 4096;

int64_t transfer_ns(size_t bytes) { return 2000 + static_cast<int64_t>(bytes / 10); }

struct RawMessage {
  TraceMessage message;
  int64_t compute = 0;  // c_ns
};

// Sets begin and end on the axis of processor time.
void to_cpu_axis(std::vector<RawMessage>& rank) {
  int64_t transfers = 0;
  for (size_t first = 0; first < rank.size();) {
    size_t last = first;
    int64_t duration = 0;
    while (last < rank.size() && rank[last].compute == rank[first].compute) {
      duration += transfer_ns(rank[last++].message.bytes);
    }
    for (; first < last; ++first) {
      rank[first].message.begin = rank[first].compute + transfers;
      rank[first].message.end = rank[first].message.begin + duration;
    }
    transfers += duration;
  }
}

// Fills next_use and what concerns signatures.
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
  std::map<uintptr_t, int64_t> next_of;  // by page
  for (size_t i = rank.size(); i-- > 0;) {
    TraceMessage& message = rank[i];
    for (uintptr_t page = message.address / kTracePage;
         page <= (message.address + message.bytes - 1) / kTracePage; ++page) {
      const auto [next, is_new] = next_of.try_emplace(page, message.begin);
      if (!is_new) {
        message.next_use = std::min(message.next_use, next->second);
        next->second = message.begin;
      }
    }
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
  found = packed ? pclose(stream) == 0 : std::fclose(stream) == 0;
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
    RawMessage raw;
    if (cells.size() < 9 || !absl::SimpleAtoi(cells[0], &rank) ||
        !absl::SimpleAtoi(cells[1], &raw.message.begin) ||
        !absl::SimpleAtoi(cells[2], &raw.message.end) || !absl::SimpleHexAtoi(cells[4], &site) ||
        !absl::SimpleAtoi(cells[5], &raw.message.address) ||
        !absl::SimpleAtoi(cells[6], &raw.message.bytes) ||
        !absl::SimpleAtoi(cells[8], &raw.compute) || raw.message.bytes == 0) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        absl::StrCat(file, ": line ", line_number, " is not a message"));
    }
    raw.message.call_site = site + 1;  // 0 ends a call stack
    // Both directions of a collective have one call site, but are different communications.
    if (cells[3] == "alltoall_r") raw.message.call_site ^= uintptr_t{1} << 40;
    ranks[rank].push_back(raw);
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

OracleValues oracle_values(const std::vector<RankTrace>& ranks, int64_t horizon_ns) {
  OracleValues values;
  std::map<int64_t, int64_t> changes;  // of the registered bytes
  for (const RankTrace& rank : ranks) {
    std::map<uintptr_t, std::pair<int64_t, int64_t>> intervals;  // by page: from, to
    const auto close = [&](const std::pair<int64_t, int64_t>& interval) {
      values.byte_seconds += static_cast<double>(interval.second - interval.first) * 1e-9 *
                             static_cast<double>(kTracePage);
      changes[interval.first] += kTracePage;
      changes[interval.second] -= kTracePage;
    };
    for (const TraceMessage& message : rank) {
      for (uintptr_t page = message.address / kTracePage;
           page <= (message.address + message.bytes - 1) / kTracePage; ++page) {
        const auto [known, is_new] = intervals.try_emplace(page, message.begin, message.end);
        if (is_new) continue;
        if (message.begin - known->second.second > horizon_ns) {
          close(known->second);
          known->second = {message.begin, message.end};
        } else {
          known->second.second = std::max(known->second.second, message.end);
        }
      }
    }
    for (auto& [page, interval] : intervals) {
      // Leave-pinned: until the end of the rank.
      if (horizon_ns == INT64_MAX) interval.second = std::max(interval.second, rank.back().end);
      close(interval);
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
    const auto exchange = [&](uintptr_t from, uintptr_t site) {
      compute += compute_ns;
      time += compute_ns;
      for (const bool sends : {true, false}) {
        absl::StrAppendFormat(&text, "%d,%d,%d,%s,%x,%d,%d,-1,%d\n", rank, time, time + transfer,
                              sends ? "alltoall_s" : "alltoall_r", site, array(sends ? from : 1),
                              bytes, compute);
      }
      time += transfer;
    };
    // Initialisation (arrays 0 and 1) twice, then the iterations (arrays 2 and 1).
    for (int iteration = -2; iteration < iterations; ++iteration) {
      const uintptr_t from = iteration < 0 ? 0 : 2;
      const uintptr_t site = iteration < 0 ? 0x100 + static_cast<uintptr_t>(-iteration) : 0x200;
      for (int dimension = 0; dimension < layout; ++dimension) {
        exchange(from, site + 0x10 * static_cast<uintptr_t>(dimension));
      }
    }
  }
  return text;
}

}  // namespace cariama::bench
