// Sleep protocol for receivers of plain WRITEs. A WRITE raises no event at the target, so a
// receiver that polls memory must announce to its senders that it sleeps, and the senders must wake
// it with an event (DESIGN invariant 11). The code is the same on every transport.
//
// Sender, after posting the WRITEs of a message:
//   S1. published := number of messages posted so far
//   S2. reads asleep; if it is set, clears it and sends a WRITE_WITH_IMM of 0 bytes
//
// Receiver, when its polls found nothing:
//   R1. arms its completion queue
//   R2. WRITEs asleep = 1 into the sender's memory, then READs published
//   R3. polls the memory once more
//   R4. sleeps, unless R3 found a message or published exceeds the number of consumed messages
//
// No wake-up is lost. The sender writes published, then reads asleep; the receiver writes asleep,
// then reads published. Both words lie in the sender's memory. The two steps of each side are
// ordered: S1 and S2 by a sequentially consistent exchange, the WRITE and READ of R2 by the queue
// pair, which executes a READ after earlier WRITEs. So at least one side sees the other: the sender
// wakes the receiver, or the receiver knows that a message is in flight and continues to poll. The
// waking event is posted after the message's WRITEs on the same queue pair, so it arrives after
// them.
//
// Cost: the sender pays one uncontended atomic exchange per published() (publish a batch at once
// where that matters) and nothing else while the receiver is awake. The receiver pays two
// operations per sender and attempt to sleep, all senders in parallel.
#ifndef CARIAMA_DTUTILS_SLEEP_PROTOCOL_H_
#define CARIAMA_DTUTILS_SLEEP_PROTOCOL_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "dtutils/device.h"
#include "dtutils/export.h"
#include "dtutils/memory.h"
#include "dtutils/transmitter.h"
#include "dtutils/wait.h"

namespace cariama {

// The words of one sender that both sides access. They lie in the sender's registered memory, which
// permits remote read and remote write. Zero-initialised memory is valid.
struct alignas(64) WakeState {
  // Number of messages; written by the sender, read by the receiver.
  std::atomic<uint64_t> published{0};
  std::atomic<uint64_t> asleep{0};  // set by the receiver, cleared by the sender
};
static_assert(sizeof(WakeState) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// The sending end of one channel. Thread-compatible: one thread at a time.
class CARIAMA_DTUTILS_EXPORT WakingSender {
 public:
  // Sends wake-ups through `transmitter`, which must also send the messages. The receiver's
  // completion of a wake-up carries `immediate`. `transmitter` and `state` must outlive this
  // object.
  WakingSender(Transmitter& transmitter, WakeState& state, uint32_t immediate = 0)
      : transmitter_(transmitter), state_(state), immediate_(immediate) {}

  // Publishes that `total` messages have been posted so far, and wakes the receiver if it sleeps.
  // Blocks only as long as Transmitter::notify does. Errors: those of Transmitter::notify.
  [[nodiscard]] absl::Status published(uint64_t total) {
    state_.published.exchange(total, std::memory_order_seq_cst);
    if (state_.asleep.load(std::memory_order_seq_cst) == 0) [[likely]]
      return absl::OkStatus();
    return wake();
  }

  // Returns the number of wake-ups sent so far.
  [[nodiscard]] uint64_t wakes() const { return wakes_; }

 private:
  [[nodiscard]] absl::Status wake();

  Transmitter& transmitter_;
  WakeState& state_;
  uint32_t immediate_;
  uint64_t wakes_ = 0;
};

// The receiving end of any number of channels: the Parking of a thread that polls their memory.
//
//   SleepingReceiver receiver(*receive_completions, *channel);
//   receiver.add_sender(transmitter_to_it, its_wake_state, scratch, &consumed);
//   wait_until([&] { return poll_memory() || poll_receive_completions(); }, kForever, &receiver);
//
// The condition must take wake-ups out of the receive completion queue and post a new receive for
// each (two posted receives per sender are enough). Thread-compatible: one thread at a time.
class CARIAMA_DTUTILS_EXPORT SleepingReceiver final : public Parking {
 public:
  // Requires: `completions` was created with `channel`. Both must outlive this object.
  SleepingReceiver(CompletionQueue& completions, CompletionChannel& channel)
      : completions_(completions), channel_(channel) {}

  // Adds a sender: the transmitter to it, the locator of its WakeState, 16 bytes of this process's
  // registered memory for the WRITE and the READ, and the number of its messages consumed so far
  // (read in announce() and sleep()). All referenced objects must outlive this object.
  void add_sender(Transmitter& transmitter, const RemoteMemoryLocator& wake_state,
                  RDMAMemory& scratch, const uint64_t* consumed);

  // Announces the sleep to every sender, and waits until each sender's `published` was read. Skips
  // a sender whose queue has failed: it cannot send either.
  void announce() override;

  // Sleeps until a wake-up or the deadline. Returns at once if a message is in flight.
  void sleep(Deadline deadline) override;

  // Needs no action: a sender that saw the announcement sends one unneeded wake-up.
  void retract() override {}

  // Returns the number of calls of sleep() that waited on the channel.
  [[nodiscard]] uint64_t sleeps() const { return sleeps_; }

 private:
  struct Sender {
    Transmitter* transmitter;
    RemoteMemoryLocator wake_state;
    RDMAMemory* scratch;
    const uint64_t* consumed;
  };

  CompletionQueue& completions_;
  CompletionChannel& channel_;
  std::vector<Sender> senders_;
  bool told_ = false;
  uint64_t sleeps_ = 0;
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_SLEEP_PROTOCOL_H_
