// The state that all objects of one fault device share: the mutex, the tick counter, the lists of
// objects that a tick advances, and the thread that adds ticks when the program does not poll.
//
// One mutex guards the state of a device. The virtual functions of the contract lock it; all other
// functions in this folder require that it is locked, unless they say otherwise. The inner device
// is called with the mutex locked, except where a call may block (wait, connect, repair).
#ifndef CARIAMA_DTUTILS_FAULT_CORE_H_
#define CARIAMA_DTUTILS_FAULT_CORE_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "dtutils/fault/fault_device.h"
#include "dtutils/random.h"

namespace cariama::fault {

class FaultCompletionQueue;
class FaultQueuePair;
class FaultSharedReceiveQueue;

// A stream of random decisions. Each queue has its own, so that the operations of one thread do not
// change the decisions for another thread.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  [[nodiscard]] bool roll(double probability) {
    if (probability <= 0) return false;
    return static_cast<double>(random_.next() >> 11) * 0x1p-53 < probability;
  }
  // Returns a number from 0 to bound - 1.
  [[nodiscard]] uint64_t below(uint64_t bound) { return random_.next() % bound; }
  template <typename Range>
  void shuffle(Range&& range) {
    random_.shuffle(range);
  }

 private:
  Random random_;
};

class Core {
 public:
  Core(std::shared_ptr<Device> inner, const FaultOptions& options,
       std::shared_ptr<FaultControl> control);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  [[nodiscard]] Device& inner() { return *inner_; }
  [[nodiscard]] const FaultOptions& options() const { return options_; }
  [[nodiscard]] const DeviceLimits& limits() const { return limits_; }

  // --- decisions ---
  [[nodiscard]] Dice make_dice();
  // Decides whether to inject the fault now. Returns true if so; the caller then injects and counts
  // the fault.
  [[nodiscard]] bool strikes(Fault fault, double probability, Dice& dice);
  // Returns the status with which the next operation shall fail, or an empty optional. Each status
  // is returned once.
  [[nodiscard]] std::optional<CompletionStatus> take_fail_next();
  // Returns true if the next operation shall find no memory.
  [[nodiscard]] bool take_denied();
  [[nodiscard]] bool is_lost(std::string_view label) const { return control_->is_lost(label); }
  [[nodiscard]] bool enabled(Fault fault) const { return control_->enabled(fault); }
  void count(Fault fault) { control_->count(fault); }
  // Returns true if posted receives may be delayed, because all senders retry without end.
  [[nodiscard]] bool patient_senders() const { return patient_senders_; }
  void note_receiver_retry_count(uint32_t count) { patient_senders_ &= count == 7; }

  // --- time ---
  [[nodiscard]] uint64_t ticks() const { return ticks_; }
  [[nodiscard]] uint64_t random_release(Dice& dice) {
    return ticks_ + 1 + dice.below(std::max<uint32_t>(1, options_.longest_hold));
  }
  // Adds a tick for this device; over a simulated fabric, for all devices of its FaultControl.
  // Locks the mutexes of these devices.
  void lock_and_tick();
  // Advances all delayed work that is due now.
  void progress();
  // Returns true if work is delayed or outstanding.
  [[nodiscard]] bool busy() const;
  // Returns true if any device that lock_and_tick() advances is busy. Locks the devices' mutexes.
  [[nodiscard]] bool lock_and_ask_busy();
  // Called after work was added: wakes the tick thread, which then adds ticks.
  void wake_thread() { work_.notify_one(); }

  // --- members ---
  void add(FaultCompletionQueue* queue) { completion_queues_.push_back(queue); }
  void remove(FaultCompletionQueue* queue) { std::erase(completion_queues_, queue); }
  void add(FaultSharedReceiveQueue* queue) { shared_receives_.push_back(queue); }
  void remove(FaultSharedReceiveQueue* queue) { std::erase(shared_receives_, queue); }
  // Requires: start_thread() has succeeded.
  void add(FaultQueuePair* queue_pair);
  // Starts the tick thread, if the device needs one and it does not run. Error: RESOURCE_EXHAUSTED
  // (threads).
  [[nodiscard]] absl::Status start_thread();
  void remove(FaultQueuePair* queue_pair);
  // Finds a queue pair by its number, which equals the number of the inner queue pair.
  [[nodiscard]] FaultQueuePair* queue_pair(uint32_t number) {
    const auto found = by_number_.find(number);
    return found == by_number_.end() ? nullptr : found->second;
  }

 private:
  void run_thread();

  const std::shared_ptr<Device> inner_;
  const FaultOptions options_;
  const std::shared_ptr<FaultControl> control_;
  const bool simulated_;
  DeviceLimits limits_;

  std::mutex mutex_;
  uint64_t ticks_ = 0;
  uint64_t dice_made_ = 0;
  bool patient_senders_ = true;
  std::vector<FaultCompletionQueue*> completion_queues_;
  std::vector<FaultSharedReceiveQueue*> shared_receives_;
  std::vector<FaultQueuePair*> queue_pairs_;
  std::unordered_map<uint32_t, FaultQueuePair*> by_number_;

  bool stop_ = false;
  std::condition_variable work_;
  std::thread thread_;  // started with the first queue pair; none over a simulated fabric
};

}  // namespace cariama::fault

#endif  // CARIAMA_DTUTILS_FAULT_CORE_H_
