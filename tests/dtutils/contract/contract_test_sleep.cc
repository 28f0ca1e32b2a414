// Sleeping while plain WRITEs arrive (remote_doorbell.h): no wake-up is lost, on any transport.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "dtutils/remote_doorbell.h"
#include "dtutils/transmitter.h"
#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama::testing {
namespace {

class SleepContract : public ContractTest {};

// An RDMAMemory that covers a whole buffer.
struct Handle {
  Handle(Buffer& buffer, ProtectionDomain& domain, std::shared_ptr<MemoryRegion> region)
      : range({{&domain, std::move(region)}}), memory(buffer.data(), buffer.size(), &range) {}
  RegisteredRange range;
  RDMAMemory memory;
};

// A message contains its number and the number's complement. If a reader may see a WRITE in part
// (write_order() is kNone), decode() returns 0 for a partial message.
uint64_t encode(uint64_t message) { return message | (~message << 32); }
uint64_t decode(uint64_t word) {
  const uint64_t message = word & 0xffffffff;
  return encode(message) == word ? message : 0;
}

// The receiver of one sender: polls memory, and sleeps on the channel of its receive completions.
class Receiver final : public Sleeper, public RemoteSleeper {
 public:
  Receiver(const RemoteMemoryLocator& doorbell, Transmitter& transmitter, RDMAMemory& scratch,
           CompletionQueue& receives, CompletionChannel& channel)
      : RemoteSleeper(doorbell),
        transmitter_(transmitter),
        scratch_(scratch),
        receives_(receives),
        channel_(channel) {}

  void arm() override {
    must(receives_.arm());
    RemoteSleeper::arm();
  }
  bool recheck() override { return RemoteSleeper::recheck(); }
  void wait(Deadline deadline) override {
    ++sleeps;
    asleep.store(true);
    static_cast<void>(channel_.wait(deadline - std::chrono::steady_clock::now()));
    asleep.store(false);
  }

  uint64_t messages = 0;  // number of messages consumed
  uint64_t sleeps = 0;
  std::atomic<bool> asleep{false};

 private:
  absl::StatusOr<Transmitter*> path() override { return &transmitter_; }
  RDMAMemory& scratch() override { return scratch_; }
  uint64_t scratch_offset() const override { return 0; }
  uint64_t consumed() const override { return messages; }

  Transmitter& transmitter_;
  RDMAMemory& scratch_;
  CompletionQueue& receives_;
  CompletionChannel& channel_;
};

TEST_P(SleepContract, EveryMessageArrivesAtAReceiverThatSleepsWithoutTimeout) {
  // The emulated CPUs of the VM are about a hundred times slower.
  const uint64_t messages = GetParam().base == Transport::kVerbs ? 300 : 3000;

  auto make_queue = [](ProtectionDomain& domain, std::shared_ptr<CompletionQueue> receives) {
    return must(TransmitQueue::create(
        domain,
        {.receive_completions = std::move(receives), .send_depth = 64, .receive_depth = 16}));
  };
  auto sender_receives = must(near_domain_->create_completion_queue({.depth = 64}));
  auto channel = must(far_domain_->create_channel());
  auto receives = must(far_domain_->create_completion_queue({.depth = 64, .channel = channel}));
  auto near = make_queue(*near_domain_, sender_receives);
  auto far = make_queue(*far_domain_, receives);
  for (uint64_t id = 0; id < 16; ++id) {
    ASSERT_TRUE(far->queue_pair().post_receive({.id = id}).ok());
  }
  const std::string near_address = near->queue_pair().address();
  must(near->queue_pair().connect(far->queue_pair().address(), {.peer = "the receiver"}));
  must(far->queue_pair().connect(near_address, {.peer = "the sender"}));

  Buffer arrived(*far_domain_, 64);  // word 0: the number of the last message
  arrived.set_word(0, 0);
  Buffer scratch_buffer(*far_domain_, 64);
  Buffer out_buffer(*near_domain_, 4096);
  Buffer bell_buffer(*near_domain_, sizeof(RemoteDoorbell));
  auto* doorbell = new (bell_buffer.data()) RemoteDoorbell;

  auto transmitter = must(Transmitter::create(*far));
  auto region = must(far_domain_->register_memory(
      {.address = scratch_buffer.data(), .length = scratch_buffer.size()}, Access::kAll));
  Handle scratch(scratch_buffer, *far_domain_, region);
  uint64_t woken = 0;
  Receiver receiver(bell_buffer.locator(), transmitter, scratch.memory, *receives, *channel);
  uint64_t& consumed = receiver.messages;
  std::thread sender([&] {
    auto transmitter = must(Transmitter::create(*near));
    auto region = must(near_domain_->register_memory(
        {.address = out_buffer.data(), .length = out_buffer.size()}, Access::kAll));
    Handle out(out_buffer, *near_domain_, region);
    std::mt19937_64 random(7);
    for (uint64_t message = 1; message <= messages; ++message) {
      // Random pauses, so that messages arrive at every step of the receiver's way to sleep.
      const uint64_t pause = uint64_t{1} << random() % 14;
      for (uint64_t i = 0; i < pause; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
      // Eight times, waits until the receiver is about to sleep, and long enough for it to fall
      // asleep.
      if (message % (messages / 8) == 0) {
        const Deadline patience = deadline_after(kPatience);
        while (GetParam().base != Transport::kSim && !receiver.asleep.load() &&
               std::chrono::steady_clock::now() < patience) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      const uint64_t offset = message % 512 * 8;
      // The WRITE has read these eight bytes before the slot is used again: the data is inline, or
      // the 512 slots exceed the queue's depth.
      out_buffer.set_word(offset, encode(message));
      must(transmitter.write(out.memory, offset, 8, arrived.locator(0, 8)));
      if (doorbell->ring(message)) must(transmitter.notify(0));
    }
    Synchronizer done;
    must(transmitter.signal_all(&done));
    must(transmitter.wait(done, deadline_after(kPatience)));
  });

  const Deadline deadline = deadline_after(2 * kPatience);
  while (consumed < messages) {
    const uint64_t before = consumed;
    const bool progressed = wait_until(
        [&] {
          Completion wake;
          while (receives->poll({&wake, 1}) == 1) {
            EXPECT_EQ(wake.status, CompletionStatus::kSuccess);
            EXPECT_EQ(wake.kind, CompletionKind::kReceiveImmediate);
            ++woken;
            EXPECT_TRUE(far->queue_pair().post_receive({.id = wake.id}).ok());
          }
          const uint64_t word = std::atomic_ref(*reinterpret_cast<uint64_t*>(arrived.data()))
                                    .load(std::memory_order_acquire);
          consumed = std::max(consumed, decode(word));
          return consumed > before;
        },
        deadline, &receiver);
    ASSERT_TRUE(progressed) << "asleep at message " << consumed << " of " << messages;
    EXPECT_LE(consumed, messages);
  }
  receiver.finish();
  sender.join();
  EXPECT_EQ(consumed, messages);
  RecordProperty("sleeps", static_cast<int>(receiver.sleeps));
  // The test is only valid if the receiver slept. (In virtual time it does not really sleep.)
  if (GetParam().base != Transport::kSim) {
    EXPECT_GT(receiver.sleeps, 0u);
    EXPECT_GT(woken, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(On, SleepContract, ::testing::ValuesIn(every_transport()), transport_of);

}  // namespace
}  // namespace cariama::testing
