// A decorator over any other device that injects the faults of real fabrics on demand.
//
//   auto control = std::make_shared<FaultControl>();
//   auto device = make_fault_device(*open_device({}), FaultOptions::benign(seed), control);
//   ... the program under test, unchanged ...
//   control->injected(Fault::kTornWrite);   // number of torn writes that really happened
//
// The contract permits the faults of benign() at any time: late completions, operations that start
// late, WRITEs whose bytes land in several steps, receivers that are not ready for a while, short
// queues. Every correct program works under them with every seed. The other faults are failures for
// which the contract defines the outcome: operations that fail, and peers that stop answering.
//
// Whether a fault hits an operation (late, torn, failed) depends only on the seed and the order of
// posting to its queue pair, so that the same seed reproduces a failure. The time of a fault is
// counted in ticks. Each poll() of a completion queue of the device is one tick. While work is
// delayed, a thread of the device adds one tick every 50 us, so that delayed work also advances
// when the program does not poll. Over a simulated fabric there is no such thread: give all devices
// of the fabric one FaultControl, and a poll on any of them is a tick for all. Then runs are
// reproducible.
//
// A fault device also connects to plain devices of the same transport; then only one end injects
// faults.
#ifndef CARIAMA_DTUTILS_FAULT_FAULT_DEVICE_H_
#define CARIAMA_DTUTILS_FAULT_FAULT_DEVICE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dtutils/completion.h"
#include "dtutils/device.h"
#include "dtutils/export.h"

namespace cariama {

namespace fault {
class Core;
}  // namespace fault

enum class Fault : uint8_t {
  kLateCompletion,    // delays a completion, and the later ones of its queue
  kLateOperation,     // delays the start of an operation, and of the later ones
  kTornWrite,         // splits a WRITE into several smaller ones, in any order, at different times
  kReceiverNotReady,  // delays posted receives: senders find none
  kFailedOperation,   // an operation is not executed but fails, and both queue pairs with it
  kLostPeer,          // no operation completes any more until kRetryExceeded
};
inline constexpr size_t kFaultKinds = 6;

// Returns the fault's name: "late completion", "torn write", ...
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view fault_name(Fault fault);

// Kinds and probabilities of faults. The defaults inject nothing.
struct FaultOptions {
  uint64_t seed = 1;

  // Probability per completion, per operation, and per WRITE of more than 8 bytes.
  double late_completion = 0;
  double late_operation = 0;
  double torn_write = 0;
  // Probability per receive. Applied only while all queue pairs of the device retry without end
  // (receiver_retry_count 7, the default; both ends usually have the same value): a sender with a
  // finite count would correctly fail.
  double receiver_not_ready = 0;
  uint32_t longest_hold = 64;  // each delay is 1 to longest_hold ticks

  double failed_operation = 0;  // probability per operation
  // Index of the operation that fails, per queue pair, counted from 1; 0: none.
  uint64_t fail_nth = 0;
  CompletionStatus fail_status = CompletionStatus::kRemoteOperation;

  // Number of operations posted to a queue pair before its peer is lost; 0: never.
  uint64_t lose_peer_after = 0;
  uint32_t lost_peer_ticks = 256;  // from the loss to kRetryExceeded

  // Upper limits for the limits that the device reports.
  std::optional<uint32_t> max_send_depth{};
  std::optional<uint32_t> max_receive_depth{};
  std::optional<uint32_t> max_segments{};
  std::optional<uint32_t> max_inline{};

  // Returns options that inject, often, every fault that a correct program must tolerate.
  [[nodiscard]] CARIAMA_DTUTILS_EXPORT static FaultOptions benign(uint64_t seed);
};

// Switches and counters of one or more fault devices. Thread-safe.
class CARIAMA_DTUTILS_EXPORT FaultControl {
 public:
  // Switches a fault on or off. All faults are on initially; the options set their probability.
  // Work that is already delayed when its fault is switched off is still released at its time.
  void enable(Fault fault, bool on) {
    enabled_[static_cast<size_t>(fault)].store(on, std::memory_order_relaxed);
  }
  void enable_all(bool on) {
    for (auto& enabled : enabled_) enabled.store(on, std::memory_order_relaxed);
  }
  [[nodiscard]] bool enabled(Fault fault) const {
    return enabled_[static_cast<size_t>(fault)].load(std::memory_order_relaxed);
  }

  // Returns how often the fault was injected so far.
  [[nodiscard]] uint64_t injected(Fault fault) const {
    return injected_[static_cast<size_t>(fault)].load(std::memory_order_relaxed);
  }

  // Makes the next posted operation fail with `status`, independent of the switches.
  void fail_next(CompletionStatus status) {
    fail_next_.store(static_cast<int>(status), std::memory_order_relaxed);
  }

  // Makes the next `posts` posted operations find no memory, independent of the switches: they
  // throw std::bad_alloc, and nothing is posted.
  void deny_memory(uint32_t posts) { denied_.store(posts, std::memory_order_relaxed); }

  // Simulates the loss of a peer. From now on, no operation completes on the queue pairs that were
  // connected with this label (ConnectOptions::peer), and messages from the peer are not reported.
  // lost_peer_ticks after the first pending operation they fail with kRetryExceeded, and repair()
  // returns UNAVAILABLE until restore_peer(). The peer's one-sided operations on this process's
  // memory are not stopped: to stop them, lose this process at the peer's end, too.
  void lose_peer(std::string_view label);
  void restore_peer(std::string_view label);

 private:
  friend class fault::Core;

  [[nodiscard]] bool is_lost(std::string_view label) const;
  void count(Fault fault) {
    injected_[static_cast<size_t>(fault)].fetch_add(1, std::memory_order_relaxed);
  }
  void add_device(const std::shared_ptr<fault::Core>& core);
  [[nodiscard]] std::vector<std::shared_ptr<fault::Core>> devices() const;

  friend CARIAMA_DTUTILS_EXPORT std::shared_ptr<Device> make_fault_device(
      std::shared_ptr<Device> inner, const FaultOptions& options,
      std::shared_ptr<FaultControl> control);

  static constexpr int kNone = -1;
  std::array<std::atomic<bool>, kFaultKinds> enabled_{true, true, true, true, true, true};
  std::array<std::atomic<uint64_t>, kFaultKinds> injected_{};
  std::atomic<int> fail_next_{kNone};
  std::atomic<uint32_t> denied_{0};  // posts that are still to find no memory
  std::atomic<bool> any_lost_{false};
  mutable std::mutex mutex_;
  std::set<std::string, std::less<>> lost_;
  std::vector<std::weak_ptr<fault::Core>> devices_;
};

// Decorates `inner`. Without `control` the device creates its own FaultControl. transport() is
// kFault, description() "fault(shm)". Errors of `inner` pass through unchanged.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::shared_ptr<Device> make_fault_device(
    std::shared_ptr<Device> inner, const FaultOptions& options,
    std::shared_ptr<FaultControl> control = nullptr);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_FAULT_FAULT_DEVICE_H_
