// Messengers and aggregators in a job, on every transport that connects fabrics and with every
// arrival mode that the transport supports.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/send_call.h"
#include "dtutils/allocators/memory_budget.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/riutils/testing/channel_case.h"

namespace cariama {
namespace {

using testing::ChannelCase;
using testing::LocalJob;
using testing::must;
using testing::soon;
using testing::transport_case;

class Messenger : public ::testing::TestWithParam<ChannelCase> {
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

INSTANTIATE_TEST_SUITE_P(
    On, Messenger,
    ::testing::Values(ChannelCase{"shm", Arrival::kAuto}, ChannelCase{"shm", Arrival::kPolled},
                      ChannelCase{"shm", Arrival::kEvent}, ChannelCase{"sim", Arrival::kAuto},
                      ChannelCase{"sim", Arrival::kEvent}, ChannelCase{"fault_shm", Arrival::kAuto},
                      ChannelCase{"fault_shm", Arrival::kEvent},
                      ChannelCase{"verbs", Arrival::kAuto},
                      ChannelCase{"fault_verbs", Arrival::kAuto}),
    testing::channel_case_name);

// Without sim: a simulated job runs in lockstep, and no thread of it runs on its own.
class MessengerInThreads : public Messenger {};
INSTANTIATE_TEST_SUITE_P(On, MessengerInThreads,
                         ::testing::Values(ChannelCase{"shm", Arrival::kAuto},
                                           ChannelCase{"shm", Arrival::kPolled},
                                           ChannelCase{"shm", Arrival::kEvent},
                                           ChannelCase{"fault_shm", Arrival::kAuto},
                                           ChannelCase{"fault_shm", Arrival::kEvent},
                                           ChannelCase{"verbs", Arrival::kAuto},
                                           ChannelCase{"fault_verbs", Arrival::kAuto}),
                         testing::channel_case_name);

// Records the calls that ran in the threads of a job, which all live in this process; one entry per
// sender.
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

// A channel requests more chunks than one service call grants. Sender and receiver then pass
// through their rings several times: rings that differ lose calls or hang.
TEST_P(Messenger, AnyNumberOfChunksMayBeRequested) {
  struct Load {
    uint64_t words[60];
  };
  constexpr uint64_t kCallsPerChunk = 2;  // at most, in a chunk of the least size
  for (const auto& [per_request, most] :
       {std::pair(16u, 17u), std::pair(17u, 17u), std::pair(17u, 256u), std::pair(32u, 64u),
        std::pair(33u, 33u), std::pair(256u, 256u)}) {
    for (const Consumption consumption : {Consumption::kPush, Consumption::kPull}) {
      SCOPED_TRACE(std::to_string(per_request) + " of " + std::to_string(most) +
                   (consumption == Consumption::kPull ? ", pulled" : ", pushed"));
      std::vector<Tally> run(1);
      tallies = &run;
      MessengerOptions options = small();
      options.chunk_bytes = MessengerOptions::kMinChunkBytes;
      options.chunks_per_request = per_request;
      options.max_chunks = most;
      options.consumption = consumption;
      const uint64_t calls = 3 * kCallsPerChunk * most;
      LocalJob local(job(2));
      local.run([&](Fabric& fabric, uint32_t) {
        if (fabric.rank() == 1) {
          EXPECT_TRUE(fabric.wait([&] { return run[0].count.load() == calls; }, soon()));
          return;
        }
        RDMAMessenger messenger(*fabric.this_thread(), 1, options);
        must(messenger.setup());
        for (uint64_t i = 0; i < calls; ++i) {
          // RetryAsync: only shutdown() waits for room, and it has a deadline.
          ASSERT_TRUE(messenger.call<RetryAsync>([load = Load{{i}}] { note(0, load.words[0]); }));
        }
        EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
        EXPECT_GE(messenger.statistics().chunks, options.chunks_per_request);
      });
      EXPECT_EQ(run[0].count.load(), calls);
      EXPECT_EQ(run[0].disorder.load(), 0u);
      if (HasFailure()) return;
    }
  }
}

// The first grant has room for the deferred call, and fewer chunks than were requested.
TEST_P(MessengerInThreads, ADeferredFirstCallObtainsAllRequestedChunks) {
  constexpr uint32_t kChunks = 40;
  std::vector<Tally> run(1);
  tallies = &run;
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait([&] { return run[0].count.load() == 1; }, soon()));
      return;
    }
    MessengerOptions options = small();
    options.chunk_bytes = MessengerOptions::kMinChunkBytes;
    options.chunks_per_request = options.max_chunks = kChunks;
    RDMAMessenger messenger(*fabric.this_thread(), 1, options);
    ASSERT_TRUE(messenger.call<RetryAsync>([] { note(0, 0); }));
    EXPECT_TRUE(wait_until([&] { return messenger.statistics().chunks == kChunks; }, soon()));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(run[0].count.load(), 1u);
}

// If the receiver has memory for some of the requested chunks, the channel works with those.
TEST_P(Messenger, AReceiverGrantsTheChunksThatItHasMemoryFor) {
  constexpr uint64_t kCalls = 400;
  constexpr uint32_t kWanted = 40;
  struct Load {
    uint64_t words[4 << 10];  // 32 KiB: 7 calls fill a chunk
  };
  std::vector<Tally> run(1);
  tallies = &run;
  const uint64_t limit = MemoryBudget::process().limit();
  LocalJob local(job(2));
  local.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      EXPECT_TRUE(fabric.wait([&] { return run[0].count.load() == kCalls; }, soon()));
      return;
    }
    must(call(fabric, 1, [] {}));  // connects, which takes memory too
    MessengerOptions options = small();
    options.chunk_bytes = 256u << 10;
    options.chunks_per_request = options.max_chunks = kWanted;
    // Both ends are in this process. The sender needs up to 4 MiB for its images of chunks.
    MemoryBudget::process().set_limit(MemoryBudget::process().used() + (uint64_t{10} << 20));
    RDMAMessenger messenger(*fabric.this_thread(), 1, options);
    const auto next = std::make_unique<Load>();
    for (uint64_t i = 0; i < kCalls; ++i) {
      next->words[0] = i;
      EXPECT_TRUE(messenger.call([load = *next] { note(0, load.words[0]); }));
      if (HasFailure()) break;
    }
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
    EXPECT_GT(messenger.statistics().chunks, 0u);
    EXPECT_LT(messenger.statistics().chunks, kWanted);
    MemoryBudget::process().set_limit(limit);
  });
  MemoryBudget::process().set_limit(limit);
  EXPECT_EQ(run[0].count.load(), kCalls);
  EXPECT_EQ(run[0].disorder.load(), 0u);
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
      must(call(fabric, 0, [] {}));  // makes rank 0 re-check `place`
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
    Synchronizer with_arguments;
    ASSERT_TRUE(messenger.call<RemoteNotify>(
        [](const std::string& text, std::vector<int> numbers) {
          if (text.size() == 37 && numbers == std::vector<int>{1, 2}) ++seen;
        },
        with_arguments, text, std::vector<int>{1, 2}));
    await(with_arguments);
    EXPECT_EQ(seen.load(), 3u);

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
    ASSERT_TRUE(messenger.call_buffer<RemoteNotify>(check, source, 100, 900, name, pushed));
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

// Every thread calls every thread through aggregators that are created on demand.
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
      options.arrival = Arrival::kAuto;  // channels within a process are always mapped
    RDMAAggregatorGlobal messengers(self, options);
    for (uint64_t i = 0; i < kCalls; ++i) {
      for (uint32_t to = 0; to < kTotal; ++to) {
        const uint32_t slot = me * kTotal + to;
        ASSERT_TRUE(messengers.call(to, [slot, i] { note(slot, i); }));
      }
      if (i % 16 == 0) messengers.process_calls_all();
    }
    EXPECT_TRUE(messengers.flush_all().ok());
    EXPECT_FALSE(messengers.call(kTotal, [] {}));
    EXPECT_EQ(messengers.channels(), kTotal);
    const auto arrived = [&] {
      for (uint32_t from = 0; from < kTotal; ++from) {
        if (run[from * kTotal + me].count.load() != kCalls) return false;
      }
      return true;
    };
    EXPECT_TRUE(fabric.wait(arrived, soon()));
    EXPECT_EQ(messengers.shutdown_all(soon()), absl::OkStatus());
  });
  for (const Tally& tally : run) {
    EXPECT_EQ(tally.count.load(), kCalls);
    EXPECT_EQ(tally.disorder.load(), 0u);
  }
}

// The drain thread sends deferred calls without any further step of the thread that issued them.
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
    must(messenger.setup());
    for (uint64_t i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(messenger.call<RetryAsync>([i] { note(0, i); }));
    }
    EXPECT_GT(messenger.statistics().deferred, 0u);
    EXPECT_EQ(messenger.statistics().chunks, 1u);
    sent = true;
    EXPECT_TRUE(testing::eventually([&] { return run[0].count.load() == kCalls; }));
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(run[0].disorder.load(), 0u);
}

// Each call that arrives while the waiting receiver sleeps wakes it.
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

// A call may send many calls back to its sender, and may throw; other calls still run.
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
      back = &messenger;  // incoming calls may use it while it is being set up
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
    RDMAMessenger invalid(self, 77, small());
    EXPECT_TRUE(absl::IsOutOfRange(invalid.call([] {}).status()));
    RDMAMessenger messenger(self, 1, small());
    EXPECT_EQ(messenger.setup(), absl::OkStatus());
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
    EXPECT_TRUE(absl::IsFailedPrecondition(messenger.call([] {}).status()));
  });
}

// A raw work request, a Transmitter, a send-based call and a messenger use one queue pair together.
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
      must(call(fabric, 0, [] {}));  // makes rank 0 re-check `words`
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
    raw.id = 1;  // unsignaled, as TransmitQueue requires
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
