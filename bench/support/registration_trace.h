// Traces of the communication of a program, for replays against a registration cache.
//
// Format: text, one message per line: rank, t_ns, t_end_ns, kind, callsite_hash, addr, bytes,
// peer, c_ns. Lines that start with # are comments. [t_ns, t_end_ns) is the time of use on the wall
// clock; c_ns is the processor time that the rank has spent outside of communication when the
// message began.
#ifndef CARIAMA_BENCH_SUPPORT_REGISTRATION_TRACE_H_
#define CARIAMA_BENCH_SUPPORT_REGISTRATION_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cariama::bench {

struct TraceMessage {
  int64_t begin = 0;  // ns since the start of the rank, on the chosen axis
  int64_t end = 0;
  uintptr_t call_site = 0;
  uintptr_t address = 0;
  size_t bytes = 0;
  uint32_t peer = UINT32_MAX;       // the other rank, if there is one
  int64_t next_use = INT64_MAX;     // begin of the next message that uses one of its pages
  bool signature_is_known = false;  // its signature was used twice before
  bool signature_is_new = false;    // its signature was never used before
};
using RankTrace = std::vector<TraceMessage>;  // ordered by begin

// kCpu: c_ns plus a transfer time of 2 us + bytes / (10 GB/s) for each message; the messages of one
// call are in transfer together.
enum class Axis : uint8_t { kCpu, kWall };

// Reads a trace; a name that ends with .xz is read through the program xz. Errors: NOT_FOUND,
// INVALID_ARGUMENT (the text names the line).
[[nodiscard]] absl::StatusOr<std::vector<RankTrace>> read_trace(const std::string& file, Axis axis);

// Groups the ranks at random into nodes of `per_node`, and removes the messages within a node,
// which need no registration. Returns the ranks of each node. The same seed gives the same groups.
[[nodiscard]] std::vector<std::vector<size_t>> group_ranks(std::vector<RankTrace>& ranks,
                                                           size_t per_node, uint64_t seed);

// The values of the oracle policy, computed from the trace alone. The oracle knows all future uses.
// It keeps a page registered between two uses if the gap is at most `horizon_ns`. `byte_seconds`
// counts whole pages. `peak` is the largest sum over all ranks at one time.
struct OracleValues {
  double byte_seconds = 0;
  uint64_t peak = 0;
};
// The time in ns that a registration of whole pages takes: before the use to register them, after
// it to deregister them. During that time the memory counts as registered.
struct RegistrationCosts {
  int64_t register_base = 0;
  int64_t register_page = 0;
  int64_t deregister_base = 0;
  int64_t deregister_page = 0;
};
[[nodiscard]] OracleValues oracle_values(const std::vector<RankTrace>& ranks, int64_t horizon_ns,
                                         const RegistrationCosts& costs = {});

// A bound for predictions from time alone. The two call sites and the buffer of the second message
// identify each gap from one message to the next. For each message the memory is registered when
// the `quantile` of these gaps has passed since the message before, and deregistered at the end of
// its use. Returns the byte-seconds. A message is late with the probability `quantile`.
[[nodiscard]] double predictable_byte_seconds(const std::vector<RankTrace>& ranks, double quantile);

// Returns a trace of the FT benchmark as text: `ranks` ranks, layout 1 or 2 (processor dimensions),
// `bytes` in each of the three arrays of a rank, `compute_ns` between two exchanges. With layout 2
// the ranks form two rows, and each exchange is one along the rows and one along the columns, that
// is with the one other rank of the column.
[[nodiscard]] std::string transform_trace_text(uint32_t ranks, int layout, size_t bytes,
                                               int64_t compute_ns, int iterations);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_REGISTRATION_TRACE_H_
