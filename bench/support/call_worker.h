// A thread of bench_call: in the sending process it calls, in the other one it runs what arrives.
#ifndef CARIAMA_BENCH_SUPPORT_CALL_WORKER_H_
#define CARIAMA_BENCH_SUPPORT_CALL_WORKER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/support/byte_ring.h"
#include "bench/support/rounds.h"
#include "bench/support/transfer_side.h"
#include "dsfabric/fabric.h"
#include "riutils/aggregator.h"
#include "riutils/messenger.h"

namespace cariama::bench {

enum class CallMode : uint8_t {
  kRing,         // the ceiling of calls that are published one by one (byte_ring.h)
  kRingBatched,  // ... and of those that are published 4 KiB at a time
  kMaxRaw,  // SENDs of that size by a Transmitter, from and to registered memory, nothing invoked
  kSend,    // send-based calls
  kWrite,   // RDMAMessenger
  kTrad,    // RDMAAggregator
  kOvfl,    // RDMAOverflowAggregator
};
// "ring", "ring-batched", "max-raw", "send", "write", "trad", "ovfl".
[[nodiscard]] std::string call_mode_name(CallMode mode);
[[nodiscard]] std::optional<CallMode> call_mode_named(const std::string& name);
[[nodiscard]] constexpr bool needs_fabric(CallMode mode) { return mode >= CallMode::kSend; }

// Sizes of messages in bytes; the compiler knows each.
inline constexpr uint64_t kCallSizes[] = {8, 64, 256, 4096};

struct CallLoad {
  CallMode mode = CallMode::kWrite;
  uint64_t size = 8;
  int handlers = 1;      // 1 or 4, in turn
  bool latency = false;  // round trips of call_return, one at a time
};
// Messages are sent in multiples of this.
[[nodiscard]] uint64_t call_round(uint64_t size);
// What the receiver's handlers add up to. (Nothing is invoked by kMaxRaw.)
[[nodiscard]] uint64_t call_sum(const CallLoad& load, uint64_t messages);

class CallWorker {
 public:
  struct Place {
    bool sends = false;
    uint32_t index = 0;               // within the process
    ByteRing* ring = nullptr;         // to or from the worker of that index in the other process
    ThreadContext* thread = nullptr;  // if there is a fabric
    uint32_t destination = 0;
    MessengerOptions options{};
    Side* side = nullptr;  // of worker 0, if there is kMaxRaw
  };
  explicit CallWorker(const Place& place) : place_(place) {}

  // Takes part in a round: meets the others, sends or receives `messages`, says what happened.
  [[nodiscard]] absl::StatusOr<RoundResult> run(const CallLoad& load, uint64_t messages,
                                                Rounds& rounds);
  // Ends the channels. The receiver has to poll() meanwhile.
  [[nodiscard]] absl::Status close();
  // While nothing is measured.
  void poll() {
    if (place_.thread != nullptr) look();
  }
  // Of the last round of a latency: nanoseconds from the call until its result is there.
  [[nodiscard]] std::vector<double>& round_trips() { return round_trips_; }

 private:
  // Runs what has arrived.
  size_t look() { return place_.thread->fabric().process_calls(); }
  template <size_t kBytes, int kHandlers>
  [[nodiscard]] absl::Status send(CallMode mode, uint64_t messages);
  template <size_t kBytes>
  [[nodiscard]] absl::Status receive(CallMode mode, uint64_t messages);
  template <size_t kBytes>
  [[nodiscard]] absl::Status round_trip(CallMode mode, uint64_t count);
  [[nodiscard]] absl::Status raw(uint64_t size, uint64_t messages);
  // The channels are made when they are first used.
  [[nodiscard]] RDMAMessenger& messenger(CallMode mode);

  const Place place_;
  std::unique_ptr<RDMAMessenger> messengers_[3];  // one for each mode: each has chunks of its own
  std::vector<double> round_trips_;
};

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_CALL_WORKER_H_
