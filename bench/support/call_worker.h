// A thread of bench_call: sends calls in the sending process, and runs them in the receiving one.
#ifndef CARIAMA_BENCH_SUPPORT_CALL_WORKER_H_
#define CARIAMA_BENCH_SUPPORT_CALL_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <map>
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
#include "dtutils/memory.h"
#include "riutils/aggregator.h"
#include "riutils/messenger.h"

namespace cariama::bench {

enum class CallMode : uint8_t {
  kRing,         // ceiling of calls that are published one by one (byte_ring.h)
  kRingBatched,  // ceiling of calls that are published 4 KiB at a time
  kMaxRaw,  // SENDs of that size by a Transmitter, from and to registered memory; invokes nothing
  kSend,    // send-based calls
  kWrite,   // RDMAMessenger
  kTrad,    // RDMAAggregator
  kOvfl,    // RDMAOverflowAggregator
  // The forms in which RDMAMessenger sends a payload that kWrite copies into the call if it is
  // large:
  kCaptured,  // call, of a closure that captures the payload
  kRead,      // call_buffer<Sync> of registered memory, which the receiver READs
};
// Returns "ring", "ring-batched", "max-raw", "send", "write", "trad", "ovfl", "captured" or "read".
[[nodiscard]] std::string call_mode_name(CallMode mode);
[[nodiscard]] std::optional<CallMode> call_mode_named(const std::string& name);
[[nodiscard]] constexpr bool needs_fabric(CallMode mode) { return mode >= CallMode::kSend; }

// Sizes of payloads in bytes; each is a compile-time constant in the loops.
inline constexpr uint64_t kCallSizes[] = {8, 64, 256, 4096, 65536};

struct CallLoad {
  CallMode mode = CallMode::kWrite;
  uint64_t size = 8;
  int handlers = 1;      // 1 or 4, in turn
  bool latency = false;  // round trips of call_return, one at a time
};
// Returns the number of messages in a round; loads consist of whole rounds.
[[nodiscard]] uint64_t call_round(uint64_t size);
// Returns the expected sum of the receiver's handlers. Not for kMaxRaw, which invokes nothing.
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
    Side* side = nullptr;  // for worker 0, if kMaxRaw is measured
  };
  explicit CallWorker(const Place& place) : place_(place) {}

  // Takes part in a round: waits until all workers are ready, then sends or receives `messages`
  // messages. Returns this worker's times and counts.
  [[nodiscard]] absl::StatusOr<RoundResult> run(const CallLoad& load, uint64_t messages,
                                                Rounds& rounds);
  // Ends the channels. The receiver has to poll() meanwhile.
  [[nodiscard]] absl::Status close();
  // Runs calls that have arrived. Called between measurements.
  void poll() {
    if (place_.thread != nullptr) look();
  }
  // Returns the times in nanoseconds from each call to its result, of the last latency round.
  [[nodiscard]] std::vector<double>& round_trips() { return round_trips_; }

 private:
  // Runs calls that have arrived.
  size_t look() { return place_.thread->fabric().process_calls(); }
  template <size_t kBytes, int kHandlers>
  [[nodiscard]] absl::Status send(CallMode mode, uint64_t messages);
  template <size_t kBytes>
  [[nodiscard]] absl::Status receive(CallMode mode, uint64_t messages);
  template <size_t kBytes>
  [[nodiscard]] absl::Status round_trip(CallMode mode, uint64_t count);
  [[nodiscard]] absl::Status raw(uint64_t size, uint64_t messages);
  // Returns the channel of `mode`; creates it on first use.
  [[nodiscard]] RDMAMessenger& messenger(CallMode mode);
  // Returns registered memory that contains the payloads of a round, one behind the other.
  template <size_t kBytes>
  [[nodiscard]] absl::StatusOr<RDMAMemory*> registered_payloads();

  const Place place_;
  // One for each mode of one-sided calls: each has chunks of its own.
  std::unique_ptr<RDMAMessenger> messengers_[5];
  std::map<size_t, RDMAMemory> payloads_;  // for kRead, by size
  std::vector<double> round_trips_;
};

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_CALL_WORKER_H_
