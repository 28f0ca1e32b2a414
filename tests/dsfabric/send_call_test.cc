// Send-based calls: every form of Table 1, notifications, order, errors, and misbehaving handlers.
#include "dsfabric/send_call.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dsfabric/calls/answers.h"
#include "dsfabric/calls/fabric_parts.h"
#include "dsfabric/future.h"
#include "dsfabric/process.h"
#include "dsfabric/remote_object.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SendCallTest : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static LocalJobOptions job_of(uint32_t processes, uint32_t threads = 1) {
    return {.processes = processes,
            .transport = transport_case(GetParam()),
            .fabric = {.threads = threads}};
  }
};

// Waits for `done`, and runs calls meanwhile.
absl::Status ended(Fabric& fabric, Synchronizer& done) {
  if (!fabric.wait([&] { return done.done(); }, soon())) return absl::DeadlineExceededError("wait");
  return done.status();
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST_P(SendCallTest, ArgumentsTravel) {
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    Synchronizer done;
    std::string joined;
    must(call_return(
        fabric, 1,
        [sign = '!'](const std::string& a, const std::vector<std::string>& b) {
          return a + b.at(1) + sign;
        },
        joined, done, std::string("an"), std::vector<std::string>{"x", "swer"}));
    must(ended(fabric, done));
    EXPECT_EQ(joined, "answer!");
  });
}

TEST_P(SendCallTest, NotificationsComeAtTheRequestedTime) {
  static std::atomic<bool> run;
  run = false;
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    Synchronizer sent;
    must(call<LocalNotify>(
        fabric, 1, [] {}, sent));
    must(ended(fabric, sent));
    Synchronizer consumed;
    must(call<RemoteNotify>(
        fabric, 1, [] { run = true; }, consumed));
    must(ended(fabric, consumed));
    EXPECT_TRUE(run);
    // A process can also call itself.
    Synchronizer own;
    must(call<RemoteNotify>(
        fabric, 0, [] { run = false; }, own));
    must(ended(fabric, own));
    EXPECT_FALSE(run);
    // With arguments, which stand behind the Synchronizer.
    Synchronizer given;
    must(call<RemoteNotify>(
        fabric, 1, [](const std::string& text, int number) { run = text == "five" && number == 5; },
        given, std::string("five"), 5));
    must(ended(fabric, given));
    EXPECT_TRUE(run);
  });
}

TEST_P(SendCallTest, BuffersTravelInEveryWay) {
  LocalJob job(job_of(2));
  static std::string seen[4];
  static RemoteMemoryLocator target;
  static std::atomic<bool> named;
  named = false;
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      const RDMAMemory room = must(fabric.memory().allocate(64 << 10));
      target = room.locator(fabric.domain(0), fabric.rank());
      named = true;
      return;
    }
    EXPECT_TRUE(fabric.wait_polling([] { return named.load(); }, soon()));
    const std::string text = "side by side";
    std::string large(50'000, 'x');
    std::iota(large.begin(), large.end(), 'a');
    RDMAMemory memory = must(fabric.memory().allocate(large.size()));
    std::memcpy(memory.get_buffer(), large.data(), large.size());
    const auto look = [](int which) {
      return [which](void* buffer, uint64_t size) {
        seen[which].assign(static_cast<const char*>(buffer), size);
      };
    };
    Synchronizer done(4);
    must(call_buffer<RemoteNotify>(fabric, 1, look(0), bytes_of(text), done));
    must(call_buffer<RemoteNotify>(fabric, 1, look(1), &memory, 10, 40'000, target, done));
    must(call_buffer<RemoteNotify, Sync>(fabric, 1, look(2), &memory, 1, 30'000, done));
    must(call_buffer<RemoteNotify, Async>(fabric, 1, look(3), &memory, 2, 49'000, done));
    must(ended(fabric, done));
    EXPECT_EQ(seen[0], text);
    EXPECT_EQ(seen[1], large.substr(10, 40'000));
    EXPECT_EQ(seen[2], large.substr(1, 30'000));
    EXPECT_EQ(seen[3], large.substr(2, 49'000));
    // Within the process, and in the message from registered memory.
    Synchronizer own(2);
    must(call_buffer<RemoteNotify, Async>(fabric, 0, look(3), &memory, 5, 100, own));
    must(call_buffer<RemoteNotify>(fabric, 0, look(0), &memory, 6, 100, own));
    must(ended(fabric, own));
    EXPECT_EQ(seen[3], large.substr(5, 100));
    EXPECT_EQ(seen[0], large.substr(6, 100));
    EXPECT_TRUE(
        absl::IsInvalidArgument(call_buffer<Sync>(fabric, 1, look(0), &memory, large.size(), 1)));
    must(fabric.memory().free(std::move(memory)));
  });
}

TEST_P(SendCallTest, ExceptionsComeBack) {
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    for (uint32_t to : {0u, 1u}) {
      Synchronizer done;
      int result = 7;
      must(call_return(
          fabric, to, []() -> int { throw std::out_of_range("too far"); }, result, done));
      const absl::Status status = ended(fabric, done);
      EXPECT_TRUE(absl::IsInternal(status)) << status;
      EXPECT_THAT(status.ToString(), HasSubstr("std::out_of_range"));
      EXPECT_THAT(status.ToString(), HasSubstr("too far"));
      EXPECT_THAT(status.ToString(), HasSubstr("rank " + std::to_string(to)));
      EXPECT_EQ(result, 7);
      Synchronizer odd;
      must(call<RemoteNotify>(
          fabric, to, [] { throw 5; }, odd));
      EXPECT_EQ(std::string(ended(fabric, odd).message()),
                "the call threw at " + fabric.label(to) + ": int");
    }
  });
}

// A locator that is recognizably invalid fails its own call only.
TEST_P(SendCallTest, InvalidLocatorsFailTheirOwnCallOnly) {
  LocalJob job(job_of(2));
  static std::atomic<int> runs;
  runs = 0;
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    const auto count = [](void*, uint64_t) { ++runs; };
    RDMAMemory memory = must(fabric.memory().allocate(4096));
    const RemoteMemoryLocator mine = must(internal::locate_for(fabric, 1, memory, 0, 4096));
    const std::vector<std::byte> data(100);
    // A target that is too short, not the destination's, or wraps around the end of memory.
    RemoteMemoryLocator theirs = mine;
    theirs.owner = 1;
    RemoteMemoryLocator around = theirs;
    around.address = UINT64_MAX - 50;
    for (const RemoteMemoryLocator& wrong : {theirs.slice(0, 99), mine, around}) {
      EXPECT_TRUE(absl::IsInvalidArgument(call_buffer(fabric, 1, count, &memory, 0, 100, wrong)));
      EXPECT_TRUE(absl::IsInvalidArgument(call_buffer(fabric, 1, count, std::span(data), wrong)));
    }
    // A call that asks its receiver to READ memory that is not the sender's; only a forged call
    // does this.
    for (const RemoteMemoryLocator& wrong : {theirs, [&] {
                                               RemoteMemoryLocator wraps = around;
                                               wraps.owner = 0;
                                               return wraps;
                                             }()}) {
      for (const auto pulled : {Sync, Async}) {
        Synchronizer done;
        internal::CallEnd end;
        end.consumed = internal::EventReceiver(done);
        const auto forge = [&](const auto& call) {
          must(internal::send_call(fabric, 1, 1, OutgoingCall::of(call), Retry, end));
        };
        if (pulled == Sync) {
          forge(internal::PulledCall<std::remove_const_t<decltype(count)>, Sync>(count, wrong));
        } else {
          forge(internal::PulledCall<std::remove_const_t<decltype(count)>, Async>(count, wrong));
        }
        EXPECT_TRUE(absl::IsInvalidArgument(ended(fabric, done)));
      }
    }
    EXPECT_EQ(runs.load(), 0);
    Synchronizer done;
    must(call_buffer<Sync, RemoteNotify>(fabric, 1, count, &memory, 0, 100, done));
    must(ended(fabric, done));
    EXPECT_EQ(runs.load(), 1);
    must(fabric.memory().free(std::move(memory)));
  });
}

TEST_P(SendCallTest, ARemoteObjectCostsOneWriteAndNoCall) {
  LocalJob job(job_of(2));
  static std::atomic<int> runs;
  static std::atomic<bool> checked, named;
  static RemoteMemoryLocator place;
  runs = 0;
  checked = named = false;
  job.run([&](Fabric& fabric, uint32_t) {
    constexpr int kCalls = 5;
    if (fabric.rank() == 0) {
      Synchronizer connected;
      must(call<RemoteNotify>(
          fabric, 1, [] {}, connected));
      must(ended(fabric, connected));
      // Rank 1 has read its counters. The call that reported the end of the first call is counted.
      EXPECT_TRUE(fabric.wait_polling(
          [&] { return named.load() && fabric.statistics().calls_run >= 1; }, soon()));
      auto done = must(RemoteObject<Synchronizer>::create(fabric, kCalls));
      static FabricStatistics before, after;
      before = fabric.statistics();
      for (int i = 0; i < kCalls; ++i)
        must(call<RemoteNotify>(
            fabric, 1, [] { ++runs; }, done));
      must(done.wait(soon()));
      EXPECT_EQ(runs, kCalls);
      after = fabric.statistics();
      EXPECT_EQ(after.calls_sent - before.calls_sent, static_cast<uint64_t>(kCalls));
      EXPECT_EQ(after.calls_run, before.calls_run);  // only WRITEs came back
      EXPECT_TRUE(absl::IsFailedPrecondition(call<RemoteNotify>(
          fabric, 1, [] {}, done)));
      done.reset();
      must(call<RemoteNotify>(
          fabric, 1, [] { throw std::runtime_error("expected"); }, done));
      for (int i = 1; i < kCalls; ++i)
        must(call<RemoteNotify>(
            fabric, 1, [] {}, done));
      EXPECT_TRUE(absl::IsInternal(done.wait(soon())));
      auto own = must(RemoteObject<Synchronizer>::create(fabric));
      must(call<RemoteNotify>(
          fabric, 0, [] {}, own));
      must(own.wait(soon()));
      // Every call_buffer: in the message from any memory and from registered memory, READ with
      // Sync and Async, and written to a given target.
      const std::string text(2000, 'b');
      RDMAMemory memory = must(fabric.memory().allocate(text.size()));
      std::memcpy(memory.get_buffer(), text.data(), text.size());
      const auto look = [](void* buffer, uint64_t size) {
        if (std::string(static_cast<const char*>(buffer), size) == std::string(2000, 'b')) ++runs;
      };
      runs = 0;
      before = fabric.statistics();
      auto buffers = must(RemoteObject<Synchronizer>::create(fabric, 5));
      must(call_buffer<RemoteNotify>(fabric, 1, look, bytes_of(text), buffers));
      must(call_buffer<RemoteNotify>(fabric, 1, look, &memory, 0, 2000, buffers));
      must(call_buffer<RemoteNotify, Sync>(fabric, 1, look, &memory, 0, 2000, buffers));
      must(call_buffer<RemoteNotify, Async>(fabric, 1, look, &memory, 0, 2000, buffers));
      must(call_buffer<RemoteNotify>(fabric, 1, look, &memory, 0, 2000, place, buffers));
      must(buffers.wait(soon()));
      EXPECT_EQ(runs, 5);
      after = fabric.statistics();
      EXPECT_EQ(after.calls_sent - before.calls_sent, 5u);
      EXPECT_EQ(after.calls_run, before.calls_run);
      EXPECT_TRUE(absl::IsFailedPrecondition(
          call_buffer<RemoteNotify>(fabric, 1, look, bytes_of(text), buffers)));
      must(fabric.memory().free(std::move(memory)));
      checked = true;
    } else {
      place = must(fabric.memory().allocate(2000)).locator(fabric.domain(0), fabric.rank());
      // A call reports the end to a plain Synchronizer; the counters of this process show it.
      EXPECT_TRUE(fabric.wait([&] { return fabric.statistics().calls_run >= 1; }, soon()));
      const FabricStatistics before = fabric.statistics();
      named = true;
      EXPECT_TRUE(fabric.wait_polling([] { return checked.load(); }, soon()));
      const FabricStatistics after = fabric.statistics();
      EXPECT_LE(after.calls_sent, 1u);  // the answer to the first call
      EXPECT_LE(after.calls_sent - before.calls_sent, 1u);
      EXPECT_GE(after.writes - before.writes, 2u * 5u + 5u);
    }
  });
}

TEST_P(SendCallTest, CallsOfAPairOfThreadsKeepTheirOrder) {
  constexpr uint32_t kProcesses = 3, kThreads = 2, kCalls = 60;
  // Written only by the thread that is called.
  static std::map<uint32_t, uint32_t> next[kProcesses * kThreads];
  for (auto& one : next) one.clear();
  LocalJobOptions options = job_of(kProcesses, kThreads);
  options.fabric.receive_units = 4;
  options.fabric.queue_pairs = 2;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    const uint32_t self = fabric.this_thread()->global_id();
    for (uint32_t i = 0; i < kCalls; ++i) {
      for (uint32_t to = 0; to < fabric.total_threads(); ++to) {
        const auto step = [self, to, i] {
          EXPECT_EQ(next[to][self], i) << self << " to " << to;
          next[to][self] = i + 1;
        };
        must(i % 3 == 0 ? call<RetryAsync>(fabric, to, step) : call(fabric, to, step));
      }
    }
  });
  for (auto& one : next) {
    ASSERT_EQ(one.size(), kProcesses * kThreads);
    for (const auto& [from, count] : one) EXPECT_EQ(count, kCalls) << from;
  }
}

TEST_P(SendCallTest, AHandlerMayCallBack) {
  static std::atomic<int> bounces;
  bounces = 0;
  struct Bounce {
    int left;
    void operator()() const {
      ++bounces;
      if (left == 0) return;
      Fabric& fabric = *running_fabric();
      must(call(fabric, fabric.thread_of(1 - fabric.rank()), Bounce{left - 1}));
    }
  };
  LocalJobOptions options = job_of(2);
  options.fabric.receive_units = 1;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    for (int i = 0; i < 8; ++i) must(call(fabric, fabric.thread_of(1 - fabric.rank()), Bounce{10}));
  });
  EXPECT_EQ(bounces, 2 * 8 * 11);
}

// Each call floods its caller with more calls than there are credits, in both directions at the
// same time.
TEST_P(SendCallTest, HandlersMayFlood) {
  static std::atomic<int> drops;
  drops = 0;
  LocalJobOptions options = job_of(2);
  options.fabric.receive_units = 2;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    for (int i = 0; i < 4; ++i) {
      must(call(fabric, fabric.thread_of(1 - fabric.rank()), [] {
        Fabric& here = *running_fabric();
        for (int drop = 0; drop < 100; ++drop) {
          must(call(here, 1 - here.rank(), [] { ++drops; }));
        }
      }));
    }
  });
  EXPECT_EQ(drops, 2 * 4 * 100);
}

TEST_P(SendCallTest, InvalidCallsAreRefused) {
  LocalJob job(job_of(2, 2));
  job.run([](Fabric& fabric, uint32_t thread) {
    if (fabric.rank() != 0 || thread != 0) return;
    Synchronizer done;
    EXPECT_TRUE(absl::IsOutOfRange(call(fabric, 4, [] {})));
    EXPECT_TRUE(absl::IsOutOfRange(call<RemoteNotify>(
        fabric, kNoThread - 1, [] {}, done)));
    // kNoThread, what a thread id computed as -1 is, does not name the service of rank 0.
    EXPECT_TRUE(absl::IsOutOfRange(call(fabric, kNoThread, [] {})));
    EXPECT_TRUE(absl::IsOutOfRange(call<RemoteNotify>(
        fabric, kNoThread, [] {}, done)));
    EXPECT_TRUE(absl::IsOutOfRange(call_buffer(
        fabric, kNoThread, [](void*, uint64_t) {}, bytes_of("x"))));
    EXPECT_TRUE(
        absl::IsOutOfRange(async_call(fabric, kNoThread, [] { return 1; }).get(soon()).status()));
    EXPECT_TRUE(absl::IsOutOfRange(service_call(fabric, 2, [] {})));
    const std::string large(8192, 'x');
    const absl::Status refused = call_buffer(
        fabric, 2, [](void*, uint64_t) {}, bytes_of(large));
    EXPECT_TRUE(absl::IsInvalidArgument(refused));
    EXPECT_THAT(refused.ToString(), HasSubstr("4088 bytes"));
    EXPECT_THAT(refused.ToString(), HasSubstr("receive_unit_bytes"));
    EXPECT_THAT(refused.ToString(), HasSubstr("call_buffer with Sync, Async or a target"));
    EXPECT_EQ(done.operations_left(), 1u);
    // A result that is too long for a message becomes an error that names the limit.
    std::string result;
    must(call_return(
        fabric, 2, [] { return std::string(10'000, 'y'); }, result, done));
    const absl::Status too_long = ended(fabric, done);
    EXPECT_TRUE(absl::IsInternal(too_long));
    EXPECT_THAT(too_long.ToString(), HasSubstr("10008 bytes"));
  });
}

// A call header has 24 bits for the length of a call. A longer call is refused, also within the
// process, where no receive unit limits it.
TEST_P(SendCallTest, CallsThatAreTooLongAreRefused) {
  constexpr size_t kLimit = CallHeader::kMaxBytes;
  constexpr size_t kMapped = (size_t{4} << 30) + 64;
  // Reserved only: no page of it is used.
  void* const mapping = mmap(nullptr, kMapped, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  const std::span<const std::byte> all(static_cast<std::byte*>(mapping), kMapped);
  static std::atomic<int> run;
  run = 0;
  LocalJob job(job_of(2));
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    const auto count = [](void*, uint64_t) { ++run; };
    Synchronizer done;
    auto object = must(RemoteObject<Synchronizer>::create(fabric, 1));
    RDMAMemory memory(static_cast<std::byte*>(mapping), kMapped, nullptr);
    const auto expect_refused = [&](uint32_t to, const absl::Status& status) {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      if (to == 0) {
        EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(kLimit)));
      }
    };
    // The closure of a buffer call begins with the buffer's length. Lengths of 2^32 and more bytes
    // would also leave the fields of 32 bits behind the header.
    for (const size_t size :
         {kLimit - 7, kLimit, kLimit + 8, 2 * kLimit, size_t{1} << 32, kMapped}) {
      SCOPED_TRACE(size);
      const auto buffer = all.first(size);
      for (const uint32_t to : {0u, 1u}) {
        expect_refused(to, call_buffer(fabric, to, count, buffer));
        expect_refused(to, call_buffer<Fail>(fabric, to, count, buffer));
        expect_refused(to, call_buffer<RetryAsync>(fabric, to, count, buffer));
        expect_refused(to, call_buffer<RemoteNotify>(fabric, to, count, buffer, done));
        expect_refused(to, call_buffer<LocalNotify>(fabric, to, count, buffer, done));
        expect_refused(to, call_buffer<RemoteNotify>(fabric, to, count, buffer, object));
      }
      expect_refused(0, call_buffer(fabric, 0, count, &memory, 0, size));
      expect_refused(0, call_buffer<RemoteNotify>(fabric, 0, count, &memory, 0, size, done));
    }
    // With the 24 bytes of a notification the limit is exceeded earlier.
    expect_refused(0, call_buffer<RemoteNotify>(fabric, 0, count, all.first(kLimit - 16), done));
    EXPECT_EQ(done.operations_left(), 1u);
    EXPECT_EQ(object.operations_left(), 1u);
  });
  EXPECT_EQ(run.load(), 0);
  munmap(mapping, kMapped);
}

// The longest call within the process arrives; arguments and results that are longer are refused.
TEST(LongCalls, ArgumentsAndResults) {
  LocalJob job({.processes = 1});
  job.run([&](Fabric& fabric, uint32_t) {
    static std::atomic<uint64_t> arrived;
    arrived = 0;
    Synchronizer done;
    {
      const std::string longest(CallHeader::kMaxBytes - sizeof(uint64_t) - sizeof(NotifyTarget),
                                'x');
      must(call_buffer<RemoteNotify>(
          fabric, 0,
          [](void* buffer, uint64_t size) {
            const auto* const text = static_cast<const char*>(buffer);
            arrived = text[0] == 'x' && text[size - 1] == 'x' ? size : 0;
          },
          bytes_of(longest), done));
      must(ended(fabric, done));
      EXPECT_EQ(arrived.load(), longest.size());
    }
    const std::string longer(size_t{CallHeader::kMaxBytes} + 1, 'x');
    EXPECT_TRUE(absl::IsInvalidArgument(call(
        fabric, 0, [](const std::string& text) { arrived = text.size(); }, longer)));
    done.reset();
    std::string result;
    must(call_return(
        fabric, 0, [] { return std::string(size_t{CallHeader::kMaxBytes} + 1, 'x'); }, result,
        done));
    const absl::Status too_long = ended(fabric, done);
    EXPECT_TRUE(absl::IsInternal(too_long));
    EXPECT_THAT(std::string(too_long.message()), HasSubstr("ResultTooLong"));
    EXPECT_THAT(std::string(too_long.message()),
                HasSubstr(std::to_string(size_t{CallHeader::kMaxBytes})));
  });
}

// Answers are sent from inside of calls, where no send may wait. They are not refused when buffered
// calls have used up deferred_bytes: their callers would wait forever.
TEST_P(SendCallTest, AnswersAreNotRefused) {
  LocalJobOptions options = job_of(2);
  options.fabric.deferred_bytes = 4096;
  options.fabric.receive_units = 1;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    // Within the process: while a call runs, its own message counts, here with more than the limit.
    const std::string text(8192, 'x');
    Synchronizer run;
    must(call_buffer<RemoteNotify>(
        fabric, 0, [](void*, uint64_t) {}, bytes_of(text), run));
    must(ended(fabric, run));
    // Between processes: a call that defers calls until one is refused, and then returns.
    for (int i = 0; i < 10; ++i) {
      Synchronizer done;
      int result = 0;
      must(call_return(
          fabric, 1,
          [] {
            for (int flood = 0; flood < 10'000; ++flood) {
              if (!call<RetryAsync>(*running_fabric(), 0, [] {}).ok()) break;
            }
            return 7;
          },
          result, done));
      must(ended(fabric, done));
      EXPECT_EQ(result, 7);
    }
  });
}

// The handles of pending calls use up all generations of several entries.
TEST_P(SendCallTest, AnswersComeWhenGenerationsRunOut) {
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    internal::answers_of(fabric).pending().begin_at(UINT32_MAX - 2);
    auto object = must(RemoteObject<Synchronizer>::create(fabric, 20));
    for (int i = 0; i < 20; ++i) {
      for (const uint32_t to : {0u, 1u}) {
        Synchronizer done;
        int result = 0;
        must(call_return(
            fabric, to, [](int x) { return x + 1; }, result, done, i));
        must(ended(fabric, done));
        EXPECT_EQ(result, i + 1);
      }
      must(call<RemoteNotify>(
          fabric, 1, [] {}, object));
    }
    EXPECT_EQ(object.wait(soon()), absl::OkStatus());
  });
}

TEST_P(SendCallTest, AfterTheEndCallsAreRefused) {
  LocalJob job(job_of(2));
  std::atomic<uint32_t> refused{0};
  LocalJobOptions options = job_of(2);
  options.finalize = false;
  LocalJob own(options);
  own.run([&](Fabric& fabric, uint32_t) {
    must(call(fabric, fabric.thread_of(1 - fabric.rank()), [] {}));
    must(fabric.finalize(soon()));
    Synchronizer done;
    for (uint32_t to : {0u, 1u}) {
      refused += absl::IsUnavailable(call(fabric, to, [] {}));
      refused += absl::IsUnavailable(call<RemoteNotify>(
          fabric, to, [] {}, done));
    }
    EXPECT_TRUE(absl::IsFailedPrecondition(fabric.finalize(soon())));
    own.meet(2);
  });
  EXPECT_EQ(refused, 8u);
}

TEST_P(SendCallTest, ServiceCallsRunInTheService) {
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    Synchronizer done;
    static std::atomic<uint32_t> where[2];
    must(service_call<RemoteNotify>(
        fabric, 1 - fabric.rank(), [](uint32_t from) { where[from] = running_fabric()->rank(); },
        done, fabric.rank()));
    must(ended(fabric, done));
    EXPECT_EQ(where[fabric.rank()], 1 - fabric.rank());
  });
}

TEST_P(SendCallTest, FailDoesNotWait) {
  static std::atomic<bool> go;
  static std::atomic<int> run;
  go = false;
  run = 0;
  LocalJobOptions options = job_of(2);
  options.fabric.receive_units = 2;
  // so that arrived calls are not buffered, and keep their units
  options.fabric.buffered_bytes = 256;
  LocalJob job(options);
  std::atomic<int> sent{0};
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      // Runs no calls meanwhile.
      EXPECT_TRUE(wait_until(
          [&] {
            if (fabric.options().service_threads == 0) fabric.progress();
            return go.load();
          },
          soon()));
      return;
    }
    absl::Status status;
    while (status.ok()) {
      status = call<Fail>(fabric, 1, [] { ++run; });
      if (status.ok()) ++sent;
      ASSERT_LT(sent, 1000);
    }
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_GE(sent, 2);
    go = true;
    must(call(fabric, 1, [] { ++run; }));  // blocks until there is a credit
    ++sent;
  });
  EXPECT_EQ(run, sent);
}

Detached coroutine(Fabric& fabric, std::atomic<int>& steps) {
  const uint32_t self = fabric.this_thread()->global_id();
  const uint32_t other = (self + 1) % fabric.total_threads();
  for (int i = 0; i < 3; ++i) {
    absl::StatusOr<int> value = co_await async_call(
        fabric, other, [](int a, int b) { return a * b; }, i, 7);
    EXPECT_EQ(must(value), 7 * i);
    EXPECT_EQ(fabric.this_thread()->global_id(), self);  // resumed in its own thread
    Synchronizer done;
    must(call<RemoteNotify>(
        fabric, other, [] {}, done));
    must(co_await finished(fabric, done));
    EXPECT_EQ(fabric.this_thread()->global_id(), self);
  }
  absl::Status failed = co_await async_call(fabric, other, [] { throw std::runtime_error("no"); });
  EXPECT_TRUE(absl::IsInternal(failed));
  ++steps;
}

TEST_P(SendCallTest, FuturesAndCoroutines) {
  std::atomic<int> steps{0};
  LocalJob job(job_of(2));
  job.run([&](Fabric& fabric, uint32_t) {
    const uint32_t other = 1 - fabric.rank();
    Future<std::string> text = async_call(
        fabric, other, [](std::string a) { return a + a; }, std::string("ab"));
    EXPECT_EQ(must(text.get(soon())), "abab");
    Future<int> none = async_call(fabric, 99, [] { return 1; });
    EXPECT_TRUE(none.ready());
    EXPECT_TRUE(absl::IsOutOfRange(none.get(soon()).status()));
    const int before = steps;
    coroutine(fabric, steps);
    EXPECT_TRUE(fabric.wait([&] { return steps > before; }, soon()));
    // The other rank's coroutine increments `steps`, too, which wakes no thread of this rank.
    EXPECT_TRUE(fabric.wait_polling([&] { return steps == 2; }, soon()));
  });
  EXPECT_EQ(steps, 2);
}

// The report of an exception is shortened if it does not fit into a message.
TEST_P(SendCallTest, ALongTextOfAnException) {
  LocalJobOptions options = job_of(2);
  options.fabric.receive_unit_bytes = 256;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    const auto answer = async_call(fabric, 1, []() -> int {
                          throw std::runtime_error(std::string(500, 'x'));
                        }).get(soon());
    EXPECT_TRUE(absl::IsInternal(answer.status())) << answer.status();
    EXPECT_THAT(std::string(answer.status().message()),
                AllOf(HasSubstr("std::runtime_error"), HasSubstr(std::string(50, 'x'))));
  });
}

// Waiting would never end.
TEST_P(SendCallTest, ACallThatWaitsForItsOwnThreadGetsAnError) {
  LocalJob job(job_of(2));
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    Future<int> code = async_call(fabric, 1, [] {
      Fabric& here = *running_fabric();
      Future<int> own = async_call(here, here.this_thread()->global_id(), [] { return 1; });
      return static_cast<int>(own.get(soon()).status().code());
    });
    EXPECT_EQ(must(code.get(soon())), static_cast<int>(absl::StatusCode::kFailedPrecondition));
    // Outside of a call, the wait itself runs the call.
    Future<int> own = async_call(fabric, 0, [] { return 1; });
    EXPECT_EQ(must(own.get(soon())), 1);
  });
}

INSTANTIATE_TEST_SUITE_P(On, SendCallTest,
                         ::testing::Values("shm", "sim", "fault_shm", "fault_sim"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace cariama::testing
