#include "dtutils/sleep_protocol.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "dtutils/synchronizer.h"

namespace cariama {
namespace {

// Offsets in the 16 bytes of scratch memory: the source of the WRITE, and the target of the READ.
constexpr uint64_t kFlag = 0;
constexpr uint64_t kPublished = 8;

}  // namespace

absl::Status WakingSender::wake() {
  // asleep is cleared before the wake-up is sent: an announcement that arrives after the clearing
  // sets asleep again and gets a wake-up of its own.
  if (state_.asleep.exchange(0, std::memory_order_seq_cst) == 0) return absl::OkStatus();
  ++wakes_;
  return transmitter_.notify(immediate_);
}

void SleepingReceiver::add_sender(Transmitter& transmitter, const RemoteMemoryLocator& wake_state,
                                  RDMAMemory& scratch, const uint64_t* consumed) {
  const uint64_t flag = 1;
  std::memcpy(scratch.get_buffer() + kFlag, &flag, sizeof flag);
  senders_.push_back({&transmitter, wake_state, &scratch, consumed});
}

void SleepingReceiver::announce() {
  told_ = completions_.arm().ok();
  Synchronizer read(0);
  for (Sender& sender : senders_) {
    const RemoteMemoryLocator published =
        sender.wake_state.slice(offsetof(WakeState, published), sizeof(uint64_t));
    const RemoteMemoryLocator asleep =
        sender.wake_state.slice(offsetof(WakeState, asleep), sizeof(uint64_t));
    std::memcpy(sender.scratch->get_buffer() + kPublished, sender.consumed, sizeof(uint64_t));
    if (!sender.transmitter->write(*sender.scratch, kFlag, sizeof(uint64_t), asleep).ok()) continue;
    read.add();
    if (!sender.transmitter->read(*sender.scratch, kPublished, sizeof(uint64_t), published, &read)
             .ok()) {
      read.decrease();
    }
  }
  // This wait ends: every READ completes, or fails with its queue.
  static_cast<void>(wait_until([&] {
    for (const Sender& sender : senders_) sender.transmitter->queue().progress();
    return read.done();
  }));
}

void SleepingReceiver::sleep(Deadline deadline) {
  if (!told_) return;
  const bool under_way = std::any_of(senders_.begin(), senders_.end(), [](const Sender& sender) {
    uint64_t published;
    std::memcpy(&published, sender.scratch->get_buffer() + kPublished, sizeof published);
    return published > *sender.consumed;
  });
  if (under_way) return;
  ++sleeps_;
  static_cast<void>(channel_.wait(deadline == kForever
                                      ? std::chrono::nanoseconds::max()
                                      : deadline - std::chrono::steady_clock::now()));
}

}  // namespace cariama
