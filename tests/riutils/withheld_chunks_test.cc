// The chunks of a channel that its sender has not ended go to no other channel, because the sender
// may still write to them: a channel that the receiver stopped reading because of malformed data,
// and a channel whose connection has failed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "dsfabric/future.h"
#include "riutils/call.h"
#include "riutils/internal/chunk_ring.h"
#include "riutils/internal/runtime.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"

namespace cariama {
namespace {

using internal::ChannelSender;
using testing::LocalJob;
using testing::LocalJobOptions;
using testing::must;
using testing::soon;
using testing::transport_case;

// Gives access to the place in the mapped chunk at which the sender writes its next call.
class Window : public ChannelSender {
 public:
  [[nodiscard]] static std::byte* position(ChannelSender& sender) {
    return sender.*(&Window::position_);
  }
};

TEST(WithheldChunks, ABrokenSenderReachesNoOtherChannel) {
  constexpr int kWithheldCalls = 50;
  static std::atomic<int> ran;
  static std::atomic<bool> closed, written, finished;
  ran = 0;
  closed = written = finished = false;
  LocalJobOptions options{.processes = 2, .transport = transport_case("shm")};
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(
          fabric.wait_polling([&] { return fabric.statistics().calls_rejected != 0; }, soon()));
      fabric.process_calls();  // closes the channel
      closed = true;
      // Receives nothing meanwhile, so that the calls stay in their chunks.
      EXPECT_TRUE(wait_until([] { return written.load(); }, soon()));
      EXPECT_TRUE(fabric.wait([] { return ran.load() >= 1 + kWithheldCalls; }, soon()));
      finished = true;
      return;
    }
    RDMAMessenger broken(*fabric.this_thread(), 1);
    must(broken.call([] { ++ran; }));
    ASSERT_EQ(broken.arrival(), Arrival::kMapped);
    std::byte* const place =
        Window::position(internal::ChannelAccess<RDMAMessenger>::sender(broken));
    internal::publish_word(place, internal::word_of(internal::EndMarker::make(0, 0x7f)));
    must(call(fabric, 1, [] {}));  // wakes the receiver
    EXPECT_TRUE(fabric.wait_polling([] { return closed.load(); }, soon()));
    RDMAMessenger other(*fabric.this_thread(), 1);
    for (int i = 0; i < kWithheldCalls; ++i) must(other.call([] { ++ran; }));
    std::memset(place, 0xff, 2048);
    written = true;
    must(call(fabric, 1, [] {}));
    EXPECT_TRUE(fabric.wait_polling([] { return finished.load(); }, soon()));
    EXPECT_EQ(other.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(ran, 1 + kWithheldCalls);
}

// An invalid READ ends the connection of two processes that both live: rank 0, the victim, goes on
// to store into the chunks of rank 1.
struct LostSender {
  std::atomic<pid_t> victim{0};
  std::atomic<bool> closed{false}, stored{false}, written{false}, over{false};
};
LostSender* lost_sender = nullptr;  // in memory that the processes share

void break_link(Fabric& fabric, Rank rank) {
  Transmitter& transmitter = *must(internal::Runtime::of(fabric).transmitter(rank, 0));
  RDMAMemory memory = must(fabric.memory().allocate(64));
  const RemoteMemoryLocator nowhere{.address = 64, .length = 64, .key = RemoteKey{0x1234567}};
  Synchronizer read;
  static_cast<void>(transmitter.read(memory, 0, 64, nowhere, &read));
  EXPECT_FALSE(transmitter.wait(read, soon()).ok());
  must(fabric.memory().free(std::move(memory)));
}

void lose_a_sender_that_lives(Fabric& fabric) {
  constexpr int kWithheldCalls = 50;
  static std::atomic<int> ran;
  LostSender& job = *lost_sender;
  const auto comes = [](const std::atomic<bool>& stage) {
    return wait_until([&] { return stage.load(); }, soon());
  };
  if (fabric.rank() == 0) {
    RDMAMessenger lost(*fabric.this_thread(), 1);
    must(lost.call([] { ++ran; }));
    EXPECT_EQ(lost.arrival(), Arrival::kMapped);
    EXPECT_EQ(must(async_call(fabric, 1, [] { return ran.load(); }).get(soon())), 1);
    std::byte* const place = Window::position(internal::ChannelAccess<RDMAMessenger>::sender(lost));
    job.victim = getpid();
    break_link(fabric, 1);
    EXPECT_TRUE(comes(job.stored));
    std::memset(place, 0xff, 2048);
    job.written = true;
    return testing::wait_to_be_killed(fabric);
  }
  if (fabric.rank() == 1) {
    EXPECT_TRUE(fabric.wait([&] { return !fabric.peer_status(0).ok(); }, soon()));
    // The helper thread reports the failure to the channel soon, which is then closed.
    for (int i = 0; i < 1000; ++i) {
      fabric.process_calls();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    job.closed = true;
    // Receives nothing meanwhile, so that the calls of rank 2 stay in their chunks.
    EXPECT_TRUE(comes(job.written));
    EXPECT_TRUE(fabric.wait([] { return ran.load() >= 1 + kWithheldCalls; }, soon()));
    job.over = true;
  } else {
    EXPECT_TRUE(comes(job.closed));
    RDMAMessenger other(*fabric.this_thread(), 1);
    for (int i = 0; i < kWithheldCalls; ++i) must(other.call([] { ++ran; }));
    EXPECT_EQ(other.arrival(), Arrival::kMapped);
    job.stored = true;
    EXPECT_TRUE(comes(job.over));
    EXPECT_EQ(other.shutdown(soon()), absl::OkStatus());
    EXPECT_EQ(kill(job.victim, SIGKILL), 0);
  }
  must(fabric.finalize(soon()));
}

TEST(WithheldChunks, ALostSenderReachesNoOtherChannel) {
  void* const shared =
      mmap(nullptr, sizeof(LostSender), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  lost_sender = new (shared) LostSender;
  testing::run_job_with_a_victim(3, 0, lose_a_sender_that_lives);
  munmap(shared, sizeof(LostSender));
}

// A call that waits for an answer, issued after the failure of the process has ended the calls that
// waited before, ends too, although the sender can still store it into the chunk.
void call_a_lost_process(Fabric& fabric) {
  if (fabric.rank() == 1) return testing::wait_to_be_killed(fabric);
  const pid_t victim = must(async_call(fabric, 1, [] { return getpid(); }).get(soon()));
  internal::Runtime::of(fabric)
      .drain_by_hand();  // the channel itself does not learn of the failure
  RDMAMessenger messenger(*fabric.this_thread(), 1);
  must(messenger.setup());
  EXPECT_EQ(messenger.arrival(), Arrival::kMapped);
  EXPECT_EQ(kill(victim, SIGKILL), 0);
  EXPECT_TRUE(fabric.wait([&] { return !fabric.peer_status(1).ok(); }, soon()));
  Synchronizer done;
  const CallResult sent = messenger.call<RemoteNotify>([] {}, done);
  EXPECT_TRUE(!sent.ok() || fabric.wait_polling([&] { return done.done(); }, soon()));
  testing::expect_dead(sent.ok() ? done.status() : sent.status(), fabric, 1);
  must(fabric.finalize(soon()));
}

TEST(WithheldChunks, ACallToALostProcessEnds) {
  testing::run_job_with_a_victim(2, 1, call_a_lost_process);
}

}  // namespace
}  // namespace cariama
