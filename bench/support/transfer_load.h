// The loops that bench_transfer measures: the same messages through the same memory, in four ways.
#ifndef CARIAMA_BENCH_SUPPORT_TRANSFER_LOAD_H_
#define CARIAMA_BENCH_SUPPORT_TRANSFER_LOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/support/transfer_side.h"

namespace cariama::bench {

enum class Mode : uint8_t {
  kCeiling,  // memcpy into the mapped memory of the peer, and a release store after each message
  kManual,   // QueuePair, with signaling as a careful user writes it
  kAuto,     // Transmitter: one line for each transfer
};
[[nodiscard]] std::string mode_name(Mode mode);

struct Load {
  Mode mode = Mode::kAuto;
  Operation operation = Operation::kWrite;
  Window window{8, 64};
  uint64_t messages = 0;  // of each thread
  uint32_t threads = 1;   // on one queue pair
  uint32_t list = 1;      // manual: work requests for one doorbell
};

// Whether this transport can do it: there is no ceiling where the peer's memory is not mapped, nor
// for SENDs.
[[nodiscard]] bool possible(Side& side, const Load& load);

// Transfers, and waits until all has completed. Returns the seconds from the moment when all
// threads were ready to the end of the last one. For SENDs the other rank must be receiving.
[[nodiscard]] absl::StatusOr<double> run_load(Side& side, const Load& load);

// Transfers `load.messages` messages one after the other; returns the nanoseconds from each post to
// the moment when its completion is known here, the clock's own cost included.
[[nodiscard]] absl::StatusOr<std::vector<double>> run_latency(Side& side, const Load& load);

// What two reads of the clock in a row show, in nanoseconds: the median of many.
[[nodiscard]] double clock_cost();

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_TRANSFER_LOAD_H_
