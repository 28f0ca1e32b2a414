// A device that makes the faults of real fabrics happen on demand: a decorator over any other
// device.
//
//   auto control = std::make_shared<FaultControl>();
//   auto device = make_fault_device(*open_device({}), FaultOptions::benign(seed), control);
//   ... the program under test, unchanged ...
//   control->injected(Fault::kTornWrite);   // it really happened
//
// The faults of benign() are allowed by the contract at any time: completions that come late,
// operations that start late, WRITEs whose bytes land in several steps, receivers that are not
// ready for a while, queues that are short. Every correct program works under them with every seed.
// The others break things in the ways that the contract provides for: operations that fail, and
// peers that fall silent.
//
// What is decided for an operation (whether it is late, torn, fails) follows from the seed and the
// order of posting to its queue pair alone, so that a failure is met again with the same seed. When
// it happens is counted in ticks: each poll() of a completion queue of the device is one, and while
// work is held back a thread of the device adds one every 50 us, so that it also moves on when the
// program does not poll. Over a simulated fabric there is no thread: give all devices of the fabric
// one FaultControl, and a poll on any of them is a tick for all. Then runs replay.
//
// A faulty device connects to plain ones of the same transport as well: faults at one end only.
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
  kLateCompletion,    // a completion is withheld, and those behind it in its queue
  kLateOperation,     // an operation is held back before it starts, and those behind it
  kTornWrite,         // a WRITE becomes several smaller ones, in any order, at different times
  kReceiverNotReady,  // posted receives are held back: senders find none
  kFailedOperation,   // an operation is not executed but fails, and both queue pairs with it
  kLostPeer,          // nothing completes any more until kRetryExceeded
};
inline constexpr size_t kFaultKinds = 6;

// The fault's name: "late completion", "torn write", ...
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::string_view fault_name(Fault fault);

// What may happen. The defaults inject nothing: a decorator that only watches.
struct FaultOptions {
  uint64_t seed = 1;

  // Probabilities, per completion, operation, WRITE of more than 8 bytes, and receive.
  double late_completion = 0;
  double late_operation = 0;
  double torn_write = 0;
  // Only while all queue pairs of the device retry without end (receiver_retry_count 7, the
  // default; both ends usually have the same): a sender that gives up would be right to.
  double receiver_not_ready = 0;
  uint32_t longest_hold = 64;  // ticks; each is held for 1 to so many

  double failed_operation = 0;
  uint64_t fail_nth = 0;  // of each queue pair, counted from 1; 0: none
  CompletionStatus fail_status = CompletionStatus::kRemoteOperation;

  uint64_t lose_peer_after = 0;    // operations posted to a queue pair; 0: never
  uint32_t lost_peer_ticks = 256;  // from there to kRetryExceeded

  // Upper limits of what the device offers.
  std::optional<uint32_t> max_send_depth{};
  std::optional<uint32_t> max_receive_depth{};
  std::optional<uint32_t> max_segments{};
  std::optional<uint32_t> max_inline{};

  // All that a correct program must bear, often.
  [[nodiscard]] CARIAMA_DTUTILS_EXPORT static FaultOptions benign(uint64_t seed);
};

// Switches and counters of one or more faulty devices. Thread-safe.
class CARIAMA_DTUTILS_EXPORT FaultControl {
 public:
  // All are on at first; the options say how often they happen. Work that is held back when its
  // fault is switched off is still released in its time.
  void enable(Fault fault, bool on) {
    enabled_[static_cast<size_t>(fault)].store(on, std::memory_order_relaxed);
  }
  void enable_all(bool on) {
    for (auto& enabled : enabled_) enabled.store(on, std::memory_order_relaxed);
  }
  [[nodiscard]] bool enabled(Fault fault) const {
    return enabled_[static_cast<size_t>(fault)].load(std::memory_order_relaxed);
  }

  // How often it happened so far.
  [[nodiscard]] uint64_t injected(Fault fault) const {
    return injected_[static_cast<size_t>(fault)].load(std::memory_order_relaxed);
  }

  // The next operation that is posted fails with `status`, whatever the switches say.
  void fail_next(CompletionStatus status) {
    fail_next_.store(static_cast<int>(status), std::memory_order_relaxed);
  }

  // From now on, nothing completes on the queue pairs that were connected with this label
  // (ConnectOptions::peer), and what the peer sends is not reported; lost_peer_ticks after the
  // first pending operation they fail with kRetryExceeded, and repair() gives UNAVAILABLE until
  // restored. The peer's one-sided operations on our memory are not stopped: lose us at its end,
  // too.
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
  std::atomic<bool> any_lost_{false};
  mutable std::mutex mutex_;
  std::set<std::string, std::less<>> lost_;
  std::vector<std::weak_ptr<fault::Core>> devices_;
};

// Decorates `inner`. Without `control` the device gets one of its own. transport() is kFault,
// description() "fault(shm)". Errors of `inner` pass through unchanged.
[[nodiscard]] CARIAMA_DTUTILS_EXPORT std::shared_ptr<Device> make_fault_device(
    std::shared_ptr<Device> inner, const FaultOptions& options,
    std::shared_ptr<FaultControl> control = nullptr);

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_FAULT_FAULT_DEVICE_H_
