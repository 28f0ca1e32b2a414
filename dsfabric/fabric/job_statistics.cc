#include "dsfabric/fabric/job_statistics.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/serializer.h"
#include "dtutils/error.h"
#include "dtutils/statistics.h"

namespace cariama::internal {
namespace {

constexpr const char* kSumsKey = "statistics";

using Sums = std::map<std::string, uint64_t>;  // "fabric.calls_run" → sum over all objects

Sums own_sums() {
  Sums sums;
  for (const Statistic& statistic : statistics_snapshot()) {
    sums[statistic.kind + "." + statistic.name] += statistic.value;
  }
  return sums;
}

// The values of one counter in all processes.
struct Row {
  uint64_t sum = 0;
  uint64_t least = UINT64_MAX;
  uint64_t most = 0;
  uint32_t rank_of_most = 0;
  uint32_t processes = 0;
};

}  // namespace

absl::StatusOr<StatisticsRequest> parse_statistics_request(std::string_view text, uint32_t rank,
                                                           uint32_t size) {
  StatisticsRequest request;
  if (text.empty()) return request;
  const std::vector<std::string> words = absl::StrSplit(std::string(text), ',');
  for (const std::string& word : words) {
    if (word == "off") {
      request.is_off = true;
    } else if (word == "exit") {
      request.table_at_end = true;
    } else {
      const std::string prefix = "unix:";
      const bool is_socket = word.substr(0, prefix.size()) == prefix;
      const std::string path = is_socket ? word.substr(prefix.size()) : word;
      if (path.empty()) {
        return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
                          "CARIAMA_STATISTICS is '" + std::string(text) + "', with an empty word",
                          "use exit, off, unix:PATH or FILE, separated by commas");
      }
      if (size > 1 && path.find("%r") == std::string::npos &&
          path.find("%p") == std::string::npos) {
        return make_error(
            absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
            absl::StrCat("CARIAMA_STATISTICS names ", path, " for all ", size, " processes"),
            "use %r for the rank: " + word + ".%r");
      }
      (is_socket ? request.socket_path : request.file_path) =
          absl::StrReplaceAll(path, {{"%r", absl::StrCat(rank)}, {"%p", absl::StrCat(getpid())}});
    }
  }
  return request;
}

absl::StatusOr<std::unique_ptr<JobStatistics>> JobStatistics::start(const FabricJob& job) {
  const char* const text = std::getenv("CARIAMA_STATISTICS");
  auto request = parse_statistics_request(text == nullptr ? "" : text, job.rank(), job.size());
  if (!request.ok()) return request.status();
  std::unique_ptr<JobStatistics> made(new JobStatistics(job, *std::move(request)));
  if (made->request_.is_off) return made;

  static std::mutex mutex;
  static std::weak_ptr<StatisticsService> shared;
  const std::lock_guard lock(mutex);
  made->service_ = shared.lock();
  if (made->service_ != nullptr) return made;
  // 16 of the 64 digits: people read it in cariama-top.
  const std::string name = job_name(job.bootstrap().secret(), "statistics").substr(0, 16);
  auto service = StatisticsService::start({.labels = {{"job", name},
                                                      {"rank", absl::StrCat(job.rank())},
                                                      {"size", absl::StrCat(job.size())}},
                                           .socket_path = made->request_.socket_path,
                                           .file_path = made->request_.file_path});
  if (service.ok()) {
    made->service_ = *std::move(service);
    shared = made->service_;
  } else if (text != nullptr && *text != '\0') {
    return service.status();
  }
  return made;
}

void JobStatistics::put_sums() {
  if (!request_.table_at_end) return;
  std::string bytes;
  save_value(bytes, own_sums());
  // Rank 0 names a process whose sums are missing.
  static_cast<void>(job_.bootstrap().put(kSumsKey, bytes));
}

void JobStatistics::print_table(Deadline deadline) {
  if (!request_.table_at_end || job_.rank() != 0) return;
  std::map<std::string, Row> rows;
  std::vector<std::string> missing;
  for (uint32_t rank = 0; rank < job_.size(); ++rank) {
    auto bytes = job_.bootstrap().get(static_cast<int>(rank), kSumsKey, deadline);
    Sums sums;
    try {
      if (bytes.ok()) {
        auto in = std::as_bytes(std::span(*bytes));
        sums = load_value<Sums>(in);
      }
    } catch (const std::exception&) {
      bytes = absl::DataLossError("");
    }
    if (!bytes.ok()) {
      missing.push_back(job_.label(rank));
      continue;
    }
    for (const auto& [name, value] : sums) {
      Row& row = rows[name];
      row.sum += value;
      row.least = std::min(row.least, value);
      if (row.processes++ == 0 || value > row.most) {
        row.most = value;
        row.rank_of_most = rank;
      }
    }
  }
  const size_t processes = job_.size() - missing.size();
  std::string table = absl::StrFormat(
      "cariama: statistics of %d process%s\n  %-40s %16s %14s %14s  %s\n", processes,
      processes == 1 ? "" : "es", "counter", "sum", "least", "most", "in rank");
  for (const auto& [name, row] : rows) {
    if (row.most == 0) continue;
    absl::StrAppendFormat(&table, "  %-40s %16d %14d %14d  %d\n", name, row.sum,
                          row.processes < processes ? 0 : row.least, row.most, row.rank_of_most);
  }
  for (const std::string& label : missing) {
    absl::StrAppend(&table, "  without ", label, ", which has not reported its counters\n");
  }
  // One write, so that the output of other processes does not come in between.
  std::fwrite(table.data(), 1, table.size(), stderr);
}

}  // namespace cariama::internal
