// Messengers and aggregators in a job: every transport that connects fabrics, and every arrival
// mode that it has.
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/riutils/testing/way.h"

namespace cariama {
namespace {

using testing::LocalJob;
using testing::must;
using testing::soon;
using testing::transport_case;
using testing::Way;

class Messenger : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    const std::string reason = testing::reason_to_skip(transport_case(GetParam().transport));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  [[nodiscard]] static testing::LocalJobOptions job(uint32_t processes, uint32_t threads = 1) {
    return testing::job_on(GetParam(), processes, threads);
  }
  [[nodiscard]] static MessengerOptions small() { return testing::small_channel(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(On, Messenger,
                         ::testing::Values(Way{"shm", Arrival::kAuto}, Way{"shm", Arrival::kPolled},
                                           Way{"shm", Arrival::kEvent}, Way{"sim", Arrival::kAuto},
                                           Way{"sim", Arrival::kEvent},
                                           Way{"fault_shm", Arrival::kAuto},
                                           Way{"fault_shm", Arrival::kEvent},
                                           Way{"verbs", Arrival::kAuto},
                                           Way{"fault_verbs", Arrival::kAuto}),
                         testing::way_name);

// A job on sim runs in steps, and no thread of its own accord.
class MessengerInThreads : public Messenger {};
INSTANTIATE_TEST_SUITE_P(On, MessengerInThreads,
                         ::testing::Values(Way{"shm", Arrival::kAuto}, Way{"shm", Arrival::kPolled},
                                           Way{"shm", Arrival::kEvent},
                                           Way{"fault_shm", Arrival::kAuto},
                                           Way{"fault_shm", Arrival::kEvent},
                                           Way{"verbs", Arrival::kAuto},
                                           Way{"fault_verbs", Arrival::kAuto}),
                         testing::way_name);

// What the threads of a job, which share this process, have run; one slot per sender.
struct Tally {
  std::atomic<uint64_t> count{0};
  std::atomic<uint64_t> next{0};  // expected number
  std::atomic<uint64_t> disorder{0};
};
std::vector<Tally>* tallies = nullptr;

void note(uint32_t sender, uint64_t number) {
  Tally& tally = (*tallies)[sender];
  if (tally.next.exchange(number + 1) != number) tally.disorder.fetch_add(1);
  tally.count.fetch_add(1);
}

TEST_P(Messenger, CallsArriveInOrder) {
  std::vector<Tally> run(2);
  tallies = &run;
  constexpr uint64_t kCalls = 1000;
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    ThreadContext& self = *fabric.this_thread();
    const uint32_t me = self.global_id();
    RDMAMessenger messenger(self, 1 - me, small());
    for (uint64_t i = 0; i < kCalls; ++i) {
      ASSERT_EQ(messenger.call([me, i] { note(me, i); }).status(), absl::OkStatus());
    }
    EXPECT_TRUE(fabric.wait([&] { return run[1 - me].count.load() == kCalls; }, soon()));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
    EXPECT_EQ(messenger.statistics().chunks_filled > 0, true);
  });
  for (const Tally& tally : run) {
    EXPECT_EQ(tally.count.load(), kCalls);
    EXPECT_EQ(tally.disorder.load(), 0u);
  }
}

TEST_P(Messenger, AllPrimitivesOfTableOne) {
  static std::atomic<uint64_t> seen;
  static std::atomic<std::byte*> place;
  static RemoteMemoryLocator name;
  seen = 0;
  place = nullptr;
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      RDMAMemory memory = must(fabric.memory().allocate(4096));
      name = must(internal::locate_for(fabric, 0, memory, 0, 4096));
      name.owner = 1;
      place = memory.get_buffer();
      must(call(fabric, 0, [] {}));  // it looks
      EXPECT_TRUE(fabric.wait([] { return seen.load() >= 100; }, soon()));
      return;
    }
    EXPECT_TRUE(fabric.wait([] { return place.load() != nullptr; }, soon()));
    RDMAMessenger messenger(*fabric.this_thread(), 1, small());
    const auto await = [&](Synchronizer& done) {
      EXPECT_TRUE(fabric.wait([&] { return done.done(); }, soon()));
      EXPECT_EQ(done.status(), absl::OkStatus());
    };
    Synchronizer sent;
    ASSERT_TRUE(messenger.call([] { ++seen; }, sent));
    EXPECT_TRUE(sent.done());
    Synchronizer consumed;
    ASSERT_TRUE(messenger.call<RemoteNotify>([] { ++seen; }, consumed));
    await(consumed);
    EXPECT_EQ(seen.load(), 2u);
    const std::string text = "arguments that do not travel bytewise";
    ASSERT_TRUE(messenger.call(
        [](const std::string& text, std::vector<int> numbers) {
          if (text.size() == 37 && numbers == std::vector<int>{1, 2}) ++seen;
        },
        text, std::vector<int>{1, 2}));

    RDMAMemory* const source = fabric.this_thread()->circular_allocator->allocate();
    std::memset(source->get_buffer(), 7, 1000);
    const auto check = [](void* buffer, uint64_t size) {
      const auto* bytes = static_cast<const uint8_t*>(buffer);
      bool good = size == 900;
      for (uint64_t i = 0; i < size; ++i) good = good && bytes[i] == 7;
      if (good) ++seen;
    };
    Synchronizer side, pushed, pulled, pulled_async;
    ASSERT_TRUE(messenger.call_buffer<RemoteNotify>(check, source, 100, 900, side));
    ASSERT_TRUE(messenger.call_buffer<RemoteNotify>(check, source, 100, 900, name, &pushed));
    ASSERT_TRUE((messenger.call_buffer<RemoteNotify, Sync>(check, source, 100, 900, pulled)));
    ASSERT_TRUE(
        (messenger.call_buffer<Async, RemoteNotify>(check, source, 100, 900, pulled_async)));
    EXPECT_FALSE(messenger.call_buffer(check, source, 4000, 200));
    for (Synchronizer* done : {&side, &pushed, &pulled, &pulled_async}) await(*done);
    EXPECT_EQ(seen.load(), 7u);

    Synchronizer answered;
    int answer = 0;
    ASSERT_TRUE(messenger.call_return([](int x) { return x + 1; }, answer, answered, 41));
    await(answered);
    EXPECT_EQ(answer, 42);
    Synchronizer thrown;
    ASSERT_TRUE(messenger.call_return([]() -> int { throw std::runtime_error("no answer today"); },
                                      answer, thrown));
    EXPECT_TRUE(fabric.wait([&] { return thrown.done(); }, soon()));
    EXPECT_EQ(thrown.status().code(), absl::StatusCode::kInternal);
    EXPECT_NE(thrown.status().message().find("no answer today"), std::string::npos);
    ASSERT_TRUE(messenger.call([] { seen = 100; }));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// Every thread to every thread, through messengers made on demand, with and without aggregation.
TEST_P(Messenger, AllToAll) {
  constexpr uint32_t kProcesses = 3;
  constexpr uint32_t kThreads = 2;
  constexpr uint32_t kTotal = kProcesses * kThreads;
  constexpr uint64_t kCalls = 60;
  std::vector<Tally> run(kTotal * kTotal);
  tallies = &run;
  LocalJob local(job(kProcesses, kThreads));
  local.run([&](Fabric& fabric, uint32_t) {
    ThreadContext& self = *fabric.this_thread();
    const uint32_t me = self.global_id();
    MessengerOptions options = small();
    if (options.arrival != Arrival::kAuto)
      options.arrival = Arrival::kAuto;  // to ourselves as well
    RDMAAggregatorGlobal messengers(self, options);
    for (uint64_t i = 0; i < kCalls; ++i) {
      for (uint32_t to = 0; to < kTotal; ++to) {
        const uint32_t slot = me * kTotal + to;
        ASSERT_TRUE(messengers.call(to, [slot, i] { note(slot, i); }));
      }
      if (i % 16 == 0) messengers.process_calls_all();
    }
    EXPECT_TRUE(messengers.flush_all());
    EXPECT_FALSE(messengers.call(kTotal, [] {}));
    EXPECT_EQ(messengers.channels(), kTotal);
    const auto arrived = [&] {
      for (uint32_t from = 0; from < kTotal; ++from) {
        if (run[from * kTotal + me].count.load() != kCalls) return false;
      }
      return true;
    };
    EXPECT_TRUE(fabric.wait(arrived, soon()));
    EXPECT_EQ(messengers.shutdown_all(soon()).status(), absl::OkStatus());
  });
  for (const Tally& tally : run) {
    EXPECT_EQ(tally.count.load(), kCalls);
    EXPECT_EQ(tally.disorder.load(), 0u);
  }
}

// Kept calls leave by themselves, without any further step of their thread.
TEST_P(MessengerInThreads, RetryAsyncIsFinishedByAHelper) {
  std::vector<Tally> run(1);
  tallies = &run;
  std::atomic<bool> sent{false};
  constexpr uint64_t kCalls = 2000;
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(testing::eventually([&] { return sent.load(); }));
      EXPECT_TRUE(fabric.wait([&] { return run[0].count.load() == kCalls; }, soon()));
      return;
    }
    MessengerOptions options = small();
    options.chunks_per_request = options.max_chunks = 1;
    RDMAMessenger messenger(*fabric.this_thread(), 1, options);
    for (uint64_t i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(messenger.call<RetryAsync>([i] { note(0, i); }));
    }
    EXPECT_GT(messenger.statistics().exceeding, 0u);
    EXPECT_EQ(messenger.statistics().chunks, 1u);
    sent = true;
    EXPECT_TRUE(testing::eventually([&] { return run[0].count.load() == kCalls; }));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(run[0].disorder.load(), 0u);
}

// A receiver that waits for calls is woken by each that comes while it sleeps.
TEST_P(Messenger, NoWakeUpIsLost) {
  static std::atomic<uint64_t> pings[2];
  pings[0] = pings[1] = 0;
  constexpr uint64_t kRounds = 200;
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    ThreadContext& self = *fabric.this_thread();
    const uint32_t me = self.global_id();
    RDMAMessenger messenger(self, 1 - me, small());
    for (uint64_t i = 0; i < kRounds; ++i) {
      if (me == 0) {
        ASSERT_TRUE(messenger.call([] { ++pings[1]; }));
      }
      ASSERT_TRUE(fabric.wait([&] { return pings[me].load() > i; }, soon())) << i;
      if (me == 1) {
        ASSERT_TRUE(messenger.call([] { ++pings[0]; }));
      }
    }
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

// A call that calls back, floods, or throws harms nobody.
TEST_P(Messenger, CallsThatCallBackAndFlood) {
  static std::atomic<uint64_t> answers;
  static std::atomic<bool> told;
  static RDMAMessenger* back = nullptr;
  answers = 0;
  told = false;
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    ThreadContext& self = *fabric.this_thread();
    RDMAMessenger messenger(self, 1 - self.global_id(), small());
    if (self.global_id() == 1) {
      back = &messenger;  // calls may come while it is set up
      EXPECT_EQ(messenger.setup(), absl::OkStatus());
      EXPECT_TRUE(fabric.wait([&] { return told.load(); }, soon()));
      EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
      return;
    }
    EXPECT_TRUE(messenger.call([] { throw 17; }));
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(messenger.call([] {
        for (int j = 0; j < 1000; ++j) {
          if (!back->call([] { ++answers; })) std::abort();
        }
      }));
    }
    EXPECT_TRUE(fabric.wait([&] { return answers.load() == 3000; }, soon()));
    EXPECT_TRUE(messenger.call([] { told = true; }));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
}

TEST_P(Messenger, MistakesAreReported) {
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) return;
    ThreadContext& self = *fabric.this_thread();
    RDMAMessenger nobody(self, 77, small());
    EXPECT_TRUE(absl::IsOutOfRange(nobody.call([] {}).status()));
    RDMAMessenger messenger(self, 1, small());
    EXPECT_EQ(messenger.setup(), absl::OkStatus());
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
    EXPECT_TRUE(absl::IsFailedPrecondition(messenger.call([] {}).status()));
  });
}

// A raw transfer, a Transmitter, a send-based call and a messenger on one pair, all at once.
TEST_P(Messenger, EveryLevelOnOnePair) {
  static std::atomic<int> seen;
  static RemoteMemoryLocator name;
  static std::atomic<uint64_t*> words;
  seen = 0;
  words = nullptr;
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      RDMAMemory memory = must(fabric.memory().allocate(64));
      std::memset(memory.get_buffer(), 0, 64);
      name = must(internal::locate_for(fabric, 0, memory, 0, 64));
      words = reinterpret_cast<uint64_t*>(memory.get_buffer());
      must(call(fabric, 0, [] {}));  // it looks
      EXPECT_TRUE(fabric.wait([] { return seen.load() == 2; }, soon()));
      return;
    }
    EXPECT_TRUE(fabric.wait([] { return words.load() != nullptr; }, soon()));
    TransmitQueue& queue = *must(fabric.connection(1));
    Transmitter transmitter = must(Transmitter::create(queue));
    RDMAMemory local_memory = must(fabric.memory().allocate(64));
    std::memset(local_memory.get_buffer(), 1, 64);
    RDMAMessenger messenger(*fabric.this_thread(), 1, small());
    ASSERT_TRUE(messenger.call([] { ++seen; }));
    const Segment segment{local_memory.get_buffer(), 8, local_memory.local_key(fabric.domain(1))};
    WorkRequest raw;
    raw.segment_count = 1;
    raw.segments = &segment;
    raw.remote_address = name.address;
    raw.remote_key = name.key;
    raw.id = 1;  // unsignaled, as TransmitQueue wants them
    EXPECT_TRUE(queue.queue_pair().post_send(raw).ok());
    Synchronizer done;
    EXPECT_TRUE(transmitter.write(local_memory, 0, 8, name.slice(8, 8), &done).ok());
    EXPECT_TRUE(transmitter.wait(done, soon()).ok());
    EXPECT_TRUE(call(fabric, 1, [] { ++seen; }).ok());
    EXPECT_EQ(words.load()[0], 0x0101010101010101u);
    EXPECT_EQ(words.load()[1], 0x0101010101010101u);
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(seen.load(), 2);
}

}  // namespace
}  // namespace cariama
