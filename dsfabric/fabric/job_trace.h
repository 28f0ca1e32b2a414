// The part of this process in the trace of its job (dtutils/trace.h): its name, and the comparison
// of its clock with that of rank 0 if the two are on different hosts.
#ifndef CARIAMA_DSFABRIC_FABRIC_JOB_TRACE_H_
#define CARIAMA_DSFABRIC_FABRIC_JOB_TRACE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "dsfabric/bootstrap/fabric_job.h"
#include "dtutils/internal/trace_clock.h"
#include "dtutils/wait.h"

namespace cariama::internal {

// Names this process in the trace, and sets the number of its host.
void name_in_trace(const FabricJob& job);

// Compares the clocks, if a trace is recorded and this process is on another host than rank 0.
// Called when the fabric starts and when finalize() begins; the trace interpolates the difference
// between the two. Blocks at most a second. If rank 0 does not answer, the trace states that the
// times are not aligned.
void align_trace(const FabricJob& job);

// Writes the events recorded so far to the file of the trace. Reports the first error of the
// process.
void write_job_trace();

// Compares the clock of this process with that of `rank`, by several round trips, and returns the
// result of the fastest one. The clock of `rank` is read between the two ends of a round trip, so
// the error is at most half of the time of the round trip. Blocks. Errors: those of a call with a
// result.
[[nodiscard]] absl::StatusOr<TraceClockDifference> compare_trace_clock(Fabric& fabric,
                                                                       uint32_t rank,
                                                                       Deadline deadline);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_FABRIC_JOB_TRACE_H_
