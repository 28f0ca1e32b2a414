// Calls of a channel that fails while the receiver's process lives: their completions and futures
// end with the error of the channel, whether the calls were published or deferred, and finalize()
// does not wait for them.
#include <atomic>
#include <string>

#include "dsfabric/future.h"
#include "dsfabric/remote_object.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "riutils/internal/chunk_ring.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

// Gives access to the place in the mapped chunk at which the sender writes its next call.
class WindowOfLost : public internal::ChannelSender {
 public:
  [[nodiscard]] static std::byte* position(internal::ChannelSender& sender) {
    return sender.*(&WindowOfLost::position_);
  }
};

// Rank 1 runs no calls until rank 0 has damaged a chunk of its channel.
class LostCalls : public ::testing::Test {
 protected:
  static MessengerOptions one_chunk() {
    return {
        .first_chunk_bytes = 1024, .chunks_per_request = 1, .max_chunks = 1, .chunk_bytes = 1024};
  }

  // Runs `lose(fabric)` in rank 0.
  template <typename Lose>
  void run(const Lose& lose) {
    LocalJob job({.processes = 2, .transport = transport_case("shm")});
    job.run([&](Fabric& fabric, uint32_t) {
      if (fabric.rank() == 1) {
        EXPECT_TRUE(wait_until([&] { return damaged_.load(); }, soon()));
        EXPECT_TRUE(fabric.wait_polling([&] { return finished_.load(); }, soon()));
        return;
      }
      lose(fabric);
      EXPECT_TRUE(fabric.peer_status(1).ok());
      finished_ = true;
    });
  }

  // Sends the call that damage() replaces.
  void begin(RDMAMessenger& messenger) {
    must(messenger.call([] {}));
    ASSERT_EQ(messenger.arrival(), Arrival::kMapped);
    second_ = WindowOfLost::position(internal::ChannelAccess<RDMAMessenger>::sender(messenger));
    must(messenger.call([] {}));
  }
  void fill(RDMAMessenger& messenger) {
    ASSERT_NO_FATAL_FAILURE(begin(messenger));
    absl::Status sent;
    while (sent.ok()) sent = messenger.call<Fail>([] {}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(sent)) << sent;
  }
  // Replaces the second call by one that the receiver refuses, which ends the channel.
  void damage(Fabric& fabric) {
    internal::publish_word(second_, internal::word_of(internal::EndMarker::make(0, 0x7f)));
    damaged_ = true;
    must(call(fabric, 1, [] {}));  // wakes the receiver
  }
  static void expect_malformed(const absl::Status& status) {
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("rank 1"));
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("use a new messenger"));
  }

 private:
  std::byte* second_ = nullptr;
  std::atomic<bool> damaged_{false};
  std::atomic<bool> finished_{false};
};

TEST_F(LostCalls, EndTheirCompletions) {
  run([&](Fabric& fabric) {
    RDMAMessenger messenger(*fabric.this_thread(), 1, one_chunk());
    fill(messenger);
    Synchronizer ran;
    must(messenger.call<RetryAsync, RemoteNotify>([] {}, ran));
    auto written = must(RemoteObject<Synchronizer>::create(fabric));
    must(messenger.call<RetryAsync, RemoteNotify>([] {}, written));
    Future<int> result = messenger.async_call<RetryAsync>([] { return 1; });
    EXPECT_FALSE(result.ready());
    damage(fabric);
    expect_malformed(fabric.wait(ran, soon()));
    expect_malformed(written.wait(soon()));
    expect_malformed(result.get(soon()).status());
  });
}

// The sender only waits: it learns of the failure from the receiver.
TEST_F(LostCalls, EndTheCompletionsOfPublishedCalls) {
  run([&](Fabric& fabric) {
    RDMAMessenger messenger(*fabric.this_thread(), 1);
    begin(messenger);
    Synchronizer ran;
    must(messenger.call<RemoteNotify>([] {}, ran));
    auto written = must(RemoteObject<Synchronizer>::create(fabric));
    must(messenger.call<RemoteNotify>([] {}, written));
    Future<int> result = messenger.async_call([] { return 1; });
    EXPECT_FALSE(result.ready());
    damage(fabric);
    expect_malformed(fabric.wait(ran, soon()));
    expect_malformed(written.wait(soon()));
    expect_malformed(result.get(soon()).status());
    expect_malformed(messenger.call([] {}).status());
    RDMAMessenger other(*fabric.this_thread(), 1);
    EXPECT_EQ(must(other.async_call([] { return 2; }).get(soon())), 2);
    EXPECT_EQ(other.shutdown(soon()), absl::OkStatus());
  });
}

TEST_F(LostCalls, EndTheCompletionsOfAMessengerThatWasShutDown) {
  run([&](Fabric& fabric) {
    Future<int> result = [&] {
      RDMAMessenger messenger(*fabric.this_thread(), 1);
      begin(messenger);
      Future<int> sent = messenger.async_call([] { return 1; });
      EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
      return sent;
    }();
    EXPECT_FALSE(result.ready());
    damage(fabric);
    expect_malformed(result.get(soon()).status());
  });
}

TEST_F(LostCalls, EndABroadcast) {
  run([&](Fabric& fabric) {
    RDMAMessengerGlobal messengers(*fabric.this_thread(), one_chunk());
    fill(messengers[1]);
    Synchronizer ran;
    must(messengers.broadcast<RemoteNotify>([] {}, ran));
    EXPECT_FALSE(ran.done());
    damage(fabric);
    EXPECT_TRUE(absl::IsInternal(fabric.wait(ran, soon())));
  });
}

}  // namespace
}  // namespace cariama::testing
