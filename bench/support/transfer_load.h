// The loops that bench_transfer measures: the same messages through the same memory, in each mode.
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
  kManual,   // QueuePair, with selective signaling as a careful user would write it
  kAuto,     // Transmitter: one line of code per transfer
};
[[nodiscard]] std::string mode_name(Mode mode);

struct Load {
  Mode mode = Mode::kAuto;
  Operation operation = Operation::kWrite;
  Window window{8, 64};
  uint64_t messages = 0;  // per thread
  uint32_t threads = 1;   // on one queue pair
  uint32_t list = 1;      // manual: work requests per doorbell
};

// Returns true if the transport supports the load: kCeiling needs mapped peer memory and has no
// SENDs.
[[nodiscard]] bool possible(Side& side, const Load& load);

// Executes the load and blocks until all transfers have completed. Returns the seconds from the
// moment when all threads were ready to the end of the last thread. For SENDs the other rank must
// be receiving.
[[nodiscard]] absl::StatusOr<double> run_load(Side& side, const Load& load);

// Transfers `load.messages` messages one after the other. Returns for each the nanoseconds from the
// post until this process has polled its completion, including the cost of reading the clock.
[[nodiscard]] absl::StatusOr<std::vector<double>> run_latency(Side& side, const Load& load);

// Returns the median difference of two consecutive clock reads in nanoseconds.
[[nodiscard]] double clock_cost();

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_TRANSFER_LOAD_H_
