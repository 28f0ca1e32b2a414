// Sleeping while plain WRITEs may arrive: a WRITE wakes nobody, so a receiver that polls memory
// must tell its senders before it sleeps, and they must wake it with an event (DESIGN invariant
// 11). The same code on every transport.
//
// Sender, after posting the WRITEs of a message:        Receiver, when its polls found nothing:
//   1. published := number of messages so far             1. arms its completion queue
//   2. reads asleep; if set, clears it and sends 2. WRITEs asleep = 1 into the sender's memory,
//      WRITE_WITH_IMM of 0 bytes then READs published
//                                                         3. looks at the memory once more
//                                                         4. sleeps, if nothing was found and no
//                                                            message is published that it has not
//                                                            consumed
//
// No wake-up is lost. The sender writes published, then reads asleep; the receiver writes asleep,
// then reads published; both words lie in the sender's memory, each side's two steps are ordered
// (1-2 by a sequentially consistent exchange; the receiver's by the queue pair: a READ is executed
// after earlier WRITEs). So at least one side sees the other: the sender wakes, or the receiver
// knows that a message is under way and goes on polling. The waking event is posted after the
// message's WRITEs on the same queue pair, so it comes after them.
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

// The sender's side in shared view: lies in the sender's registered memory, with remote read and
// write. Zero-initialised memory is valid.
struct alignas(64) WakeState {
  std::atomic<uint64_t> published{0};  // messages; written by the sender, read by the receiver
  std::atomic<uint64_t> asleep{0};     // set by the receiver, cleared by the sender
};
static_assert(sizeof(WakeState) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// The sending end of one channel. Thread-compatible: one thread at a time.
class CARIAMA_DTUTILS_EXPORT WakingSender {
 public:
  // Sends wake-ups through `transmitter`, which must be the one that the messages go through.
  // `immediate` is what the receiver's completion carries. Both references are kept.
  WakingSender(Transmitter& transmitter, WakeState& state, uint32_t immediate = 0)
      : transmitter_(transmitter), state_(state), immediate_(immediate) {}

  // Says that `total` messages have been posted so far, and wakes the receiver if it sleeps. Does
  // not block but as Transmitter does. Error: the queue's.
  [[nodiscard]] absl::Status published(uint64_t total) {
    state_.published.exchange(total, std::memory_order_seq_cst);
    if (state_.asleep.load(std::memory_order_seq_cst) == 0) [[likely]]
      return absl::OkStatus();
    return wake();
  }

  // Wake-ups sent so far.
  [[nodiscard]] uint64_t wakes() const { return wakes_; }

 private:
  [[nodiscard]] absl::Status wake();

  Transmitter& transmitter_;
  WakeState& state_;
  uint32_t immediate_;
  uint64_t wakes_ = 0;
};

// The receiving end of any number of channels: what a thread that polls their memory parks on.
//
//   SleepingReceiver receiver(*receive_completions, *channel);
//   receiver.add_sender(transmitter_to_it, its_wake_state, scratch, &consumed);
//   wait_until([&] { return poll_memory() || poll_receive_completions(); }, kForever, &receiver);
//
// The condition must take wake-ups out of the receive completion queue and post a receive for each
// (two per sender are enough). Thread-compatible: one thread at a time.
class CARIAMA_DTUTILS_EXPORT SleepingReceiver final : public Parking {
 public:
  // Both are kept; `completions` was created with `channel`.
  SleepingReceiver(CompletionQueue& completions, CompletionChannel& channel)
      : completions_(completions), channel_(channel) {}

  // A sender: the way to it, its WakeState, 16 bytes of registered memory of our own for the two
  // operations, and the number of its messages that were consumed so far (read in sleep()). Kept.
  void add_sender(Transmitter& transmitter, const RemoteMemoryLocator& wake_state,
                  RDMAMemory& scratch, const uint64_t* consumed);

  // Tells every sender, and waits until each has been told. A sender whose queue has failed is left
  // out: it cannot send either.
  void announce() override;

  // Sleeps until a wake-up, or the deadline; returns at once if a message is under way.
  void sleep(Deadline deadline) override;

  // A sender that was told and sends one needless wake-up: nothing to undo.
  void retract() override {}

  // Times that sleep() really slept.
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
