// cariama-info --job: what a job really uses.
#ifndef CARIAMA_TOOLS_INFO_JOB_H_
#define CARIAMA_TOOLS_INFO_JOB_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dsfabric/run_job.h"
#include "dtutils/allocators/rdma_allocator.h"
#include "dtutils/allocators/superpages.h"
#include "dtutils/wait.h"
#include "riutils/messenger.h"
#include "riutils/messenger_options.h"
#include "tools/info/options.h"
#include "tools/info/report.h"
#include "tools/program.h"

namespace cariama {

// The device and the path that one process of the job uses for another one.
struct JobPath {
  Rank to;
  std::string transport;
  std::unique_ptr<RDMAMessenger> messenger;  // to thread 0 of that process
};

inline absl::StatusOr<JobPath> use_path(ThreadContext& self, Rank to,
                                        const MessengerOptions& options) {
  Fabric& fabric = self.fabric();
  JobPath path;
  path.to = to;
  path.transport = fabric.device_description(to);
  path.messenger = std::make_unique<RDMAMessenger>(self, fabric.thread_of(to), options);
  if (absl::Status ready = path.messenger->setup(); !ready.ok()) return ready;
  return path;
}

inline void report_job_options(Report& report, const Fabric& fabric,
                               const MessengerOptions& messenger) {
  report_environment(report);
  report.heading("Options in effect");
  const OptionRows option(report);
  const FabricOptions& options = fabric.options();
  option("job", "processes", uint64_t{fabric.size()});
  option("job", "threads", uint64_t{fabric.threads()});
  report_allocators(option, options.superpages, options.thread_buffers, options.general_memory);
  report_fabric(option, options);
  report_messenger(option, messenger);
}

// `before`: registered bytes in use before the process had a connection.
inline void report_process(Report& report, const Fabric& fabric, const std::vector<JobPath>& paths,
                           uint64_t before) {
  const auto rank = static_cast<int64_t>(fabric.rank());
  report.heading(absl::StrCat("Process ", fabric.label(fabric.rank())).c_str());
  const RDMAAllocatorStatistics memory = fabric.memory_statistics();
  report.fact("registered_memory", {{"rank", rank}}, memory.bytes, "bytes");
  for (size_t kind = 0; kind < kPageKinds; ++kind) {
    if (memory.bytes_by_kind[kind] == 0) continue;
    report.fact(
        "pages",
        {{"rank", rank}, {"kind", std::string(page_kind_name(static_cast<PageKind>(kind)))}},
        memory.bytes_by_kind[kind], "bytes");
  }
  if (!paths.empty()) {
    report.fact("memory_per_peer", {{"rank", rank}}, (memory.bytes_in_use - before) / paths.size(),
                "bytes");
  }
  for (const JobPath& path : paths) {
    const auto to = static_cast<int64_t>(path.to);
    report.fact("path", {{"rank", rank}, {"to", to}}, path.transport);
    report.fact("arrival", {{"rank", rank}, {"to", to}},
                std::string(arrival_name(path.messenger->arrival())));
  }
}

// Thread 0 of each process sets up a channel to thread 0 of each other process. Then the processes
// print one after the other.
inline absl::Status describe_job(ThreadContext& self, bool json,
                                 const MessengerOptions& messenger) {
  if (self.index() != 0) return absl::OkStatus();
  Fabric& fabric = self.fabric();
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  const uint64_t before = fabric.memory_statistics().bytes_in_use;
  std::vector<JobPath> paths;
  for (uint32_t to = 0; to < fabric.size(); ++to) {
    if (to == fabric.rank()) continue;
    absl::StatusOr<JobPath> path = use_path(self, to, messenger);
    if (!path.ok()) return path.status();
    paths.push_back(*std::move(path));
  }
  Collectives all(fabric);
  for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
    if (absl::Status turn = all.barrier(deadline); !turn.ok()) return turn;
    if (rank != fabric.rank()) continue;
    Report report(json);
    if (rank == 0) report_job_options(report, fabric, messenger);
    report_process(report, fabric, paths, before);
    std::fputs(report.text().c_str(), stdout);
    if (absl::Status written = flush_output(); !written.ok()) return written;
  }
  if (absl::Status last = all.barrier(deadline); !last.ok()) return last;
  for (JobPath& path : paths) {
    if (absl::Status ended = path.messenger->shutdown(deadline); !ended.ok()) return ended;
  }
  return absl::OkStatus();
}

inline int run_job_report(int argc, char** argv, bool json, const std::string& preset) {
  const auto fabric = fabric_preset(preset);
  const auto messenger = messenger_preset(preset);
  if (!fabric.ok() || !messenger.ok()) {
    std::fprintf(stderr, "cariama-info: --preset is default or paper, not '%s'\n", preset.c_str());
    return 2;
  }
  return run_job({.launch = {.processes = 2}, .fabric = *fabric}, argc, argv,
                 [&](ThreadContext& self) { return describe_job(self, json, *messenger); });
}

}  // namespace cariama

#endif  // CARIAMA_TOOLS_INFO_JOB_H_
