// The rank that is transferred to: it does what the measuring rank asks, over the Exchange, and
// otherwise sleeps.
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
    kFill,      // fills them with the pattern
    kIsFilled,  // replies 1 if they hold the pattern, else 0
    kWord,      // replies with the sum of the first words, which atomics count up
    kReceive,   // replies at once, then receives `messages`
    kEnd,       // ends serve_target()
  };
  Kind kind = Kind::kEnd;
  uint32_t threads = 1;
  uint64_t size = 0;
  uint64_t messages = 0;
  uint64_t manual = 0;  // kReceive: 1 on the manual queue pair, 0 on the automatic one
};

// The measuring rank's side: asks, waits for the reply.
class TargetControl {
 public:
  explicit TargetControl(Exchange& exchange) : exchange_(exchange) {}
  [[nodiscard]] absl::StatusOr<uint64_t> ask(const TargetCommand& command);

 private:
  Exchange& exchange_;
  uint64_t asked_ = 0;
};

// The other rank's: serves until kEnd. Errors: the first that a command met.
[[nodiscard]] absl::Status serve_target(Side& side);

// Receives `messages` into the slots of the first window. Posts no more than come, so that none is
// left for the next size.
[[nodiscard]] absl::Status receive_messages(Side& side, QueuePair& queue_pair, uint64_t size,
                                            uint64_t messages);

// Fills this rank's windows with the pattern, or looks whether they hold it.
void fill_windows(Side& side, uint32_t threads, uint64_t size);
[[nodiscard]] bool windows_filled(Side& side, uint32_t threads, uint64_t size);
void clear_windows(Side& side, uint32_t threads, uint64_t size);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_TRANSFER_TARGET_H_
