// Places the trace of this process in that of a job of several hosts (trace.h): a number of its
// host, and the difference between its clock and the clock of host 0.
#ifndef CARIAMA_DTUTILS_INTERNAL_TRACE_CLOCK_H_
#define CARIAMA_DTUTILS_INTERNAL_TRACE_CLOCK_H_

#include <cstdint>

#include "dtutils/export.h"
#include "dtutils/random.h"

namespace cariama::internal {

// The result of one comparison with the clock of host 0. All times in ns.
struct TraceClockDifference {
  uint64_t at = 0;     // time of this process's clock
  int64_t ahead = 0;   // time of host 0 minus time of this process
  uint64_t error = 0;  // bound of the error of `ahead`
};

// Sets the number of this process's host; 0 unless it is called. Two hosts may have equal ids of
// processes and threads: the trace adds the number of the host times 2^22, the largest id of Linux.
// Thread-safe, as the function below.
CARIAMA_DTUTILS_EXPORT void set_trace_host(uint32_t number);
// Adds a comparison of the clocks. From now on the times that are written are times of host 0:
// between the first and the last comparison, the difference is interpolated. The file states the
// largest error.
CARIAMA_DTUTILS_EXPORT void add_trace_clock(const TraceClockDifference& compared);

// Mixes two words into the id of an arrow, less than 2^53: equal words give equal ids, and two ids
// of a trace of a million arrows are equal by chance with a probability of 10^-4.
[[nodiscard]] constexpr uint64_t trace_arrow_id(uint64_t stream, uint64_t position) {
  return Random::mix(stream * Random::kStep + position) >> 11;
}

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_TRACE_CLOCK_H_
