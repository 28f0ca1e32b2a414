#include "dsfabric/fabric/job_trace.h"

#include <chrono>
#include <string>

#include "dsfabric/invocation/ask.h"
#include "dtutils/diagnostics.h"
#include "dtutils/trace.h"

namespace cariama::internal {
namespace {

constexpr int kRoundTrips = 32;
constexpr std::chrono::seconds kComparison{1};

}  // namespace

void name_in_trace(const FabricJob& job) {
  name_trace_process(job.label(job.rank()));
  set_trace_host(job.host_number(job.rank()));
}

void align_trace(const FabricJob& job) {
  if (!trace_enabled() || job.same_host(0)) return;
  const auto compared = compare_trace_clock(job.fabric(), 0, deadline_after(kComparison));
  if (compared.ok()) add_trace_clock(*compared);
}

void write_job_trace() {
  if (const absl::Status written = write_trace(); !written.ok()) {
    report_once("trace", std::string(written.message()), "");
  }
}

absl::StatusOr<TraceClockDifference> compare_trace_clock(Fabric& fabric, uint32_t rank,
                                                         Deadline deadline) {
  TraceClockDifference best{.error = UINT64_MAX};
  for (int i = 0; i < kRoundTrips; ++i) {
    const uint64_t before = trace_now();
    auto question = ask<uint64_t>(fabric, rank, deadline, nullptr, [] { return trace_now(); });
    const absl::StatusOr<uint64_t> theirs = question.wait(deadline);
    if (!theirs.ok()) return theirs.status();
    const uint64_t after = trace_now();
    const uint64_t error = (after - before) / 2 + 1;
    if (error >= best.error) continue;
    const uint64_t middle = before + (after - before) / 2;
    best = {middle, static_cast<int64_t>(*theirs - middle), error};
  }
  return best;
}

}  // namespace cariama::internal
