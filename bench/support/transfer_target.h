// The target rank of the transfers: it executes commands of the measuring rank, which arrive over
// the Exchange, and otherwise sleeps.
#ifndef CARIAMA_BENCH_SUPPORT_TRANSFER_TARGET_H_
#define CARIAMA_BENCH_SUPPORT_TRANSFER_TARGET_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/support/transfer_side.h"

namespace cariama::bench {

struct TargetCommand {
  enum class Kind : uint32_t {
    kClear,     // zeroes the windows
    kFill,      // fills the windows with the pattern
    kIsFilled,  // answers 1 if the windows contain the pattern, else 0
    kWord,      // answers with the sum of the windows' first words, which atomics increment
    kReceive,   // answers immediately, then receives `messages`
    kEnd,       // ends serve_target()
  };
  Kind kind = Kind::kEnd;
  uint32_t threads = 1;
  uint64_t size = 0;
  uint64_t messages = 0;
  uint64_t manual = 0;  // kReceive: 1 on the manual queue pair, 0 on the automatic one
};

// Used by the measuring rank: sends a command and blocks until its answer has arrived.
class TargetControl {
 public:
  explicit TargetControl(Exchange& exchange) : exchange_(exchange) {}
  [[nodiscard]] absl::StatusOr<uint64_t> ask(const TargetCommand& command);

 private:
  Exchange& exchange_;
  uint64_t asked_ = 0;
};

// Used by the target rank: executes commands until kEnd. Returns the first error of a command.
[[nodiscard]] absl::Status serve_target(Side& side);

// Receives `messages` messages into the slots of the first window. Posts exactly as many receives
// as messages, so that no receive is left for messages of the next size.
[[nodiscard]] absl::Status receive_messages(Side& side, QueuePair& queue_pair, uint64_t size,
                                            uint64_t messages);

// Fill this rank's windows with the pattern; return whether they contain it; clear them.
void fill_windows(Side& side, uint32_t threads, uint64_t size);
[[nodiscard]] bool windows_filled(Side& side, uint32_t threads, uint64_t size);
void clear_windows(Side& side, uint32_t threads, uint64_t size);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_TRANSFER_TARGET_H_
