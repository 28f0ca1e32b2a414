// A fabric that is closed without finalize(), as after an error, while peers' calls still run.
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "dsfabric/completions.h"
#include "dsfabric/quiescence.h"
#include "dtutils/synchronizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/aggregator.h"
#include "riutils/call.h"
#include "riutils/messenger.h"
#include "riutils/messenger_options.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama {
namespace {

using testing::LocalJob;
using testing::LocalJobOptions;
using testing::must;
using testing::soon;
using testing::transport_case;

TEST(Closing, CallsThatRunUntilTheEndUseNoDestroyedConnection) {
  static std::atomic<bool> blocked, sent;
  static std::atomic<int> ran_late;
  blocked = sent = false;
  ran_late = 0;
  LocalJobOptions options{.transport = transport_case("shm")};
  options.init_thread = options.finalize = false;
  LocalJob job(options);
  // The job destroys the fabric of rank 0 first. Its process consumer is then still in a call. When
  // it returns from that, it runs the calls that wait, and reports their chunks as consumed.
  job.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      const auto self = must(fabric.init_thread(0, CallConsumer::kProcess));
      EXPECT_TRUE(wait_until([] { return sent.load(); }, soon()));
      return;
    }
    const auto self = must(fabric.init_thread(0));
    MessengerOptions small;
    small.chunk_bytes = 1024;
    small.consumption = Consumption::kPush;
    // Both fabrics are in one process here, so memory of rank 0 would not stay mapped.
    small.arrival = Arrival::kPolled;
    RDMAMessenger messenger(*self, 0, small);
    must(messenger.call([] {
      blocked = true;
      const Fabric& here = *running_fabric();
      EXPECT_TRUE(wait_until([&] { return here.finalized(); }, soon()));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }));
    must(messenger.flush());
    EXPECT_TRUE(fabric.wait_polling([] { return blocked.load(); }, soon()));
    for (int i = 0; i < 30; ++i) {
      must(messenger.call([load = std::array<char, 200>{}] { ran_late += 1 + load[0]; }));
    }
    must(messenger.flush());
    sent = true;
  });
  EXPECT_GT(ran_late, 0);
}

// finalize() closes the channels of a thread that is issuing calls. (ThreadSanitizer finds a
// close() that writes what the thread's fast path uses.)
TEST(Closing, AThreadCallsUntilTheJobHasEnded) {
  for (const Arrival arrival : {Arrival::kMapped, Arrival::kPolled}) {
    static std::atomic<uint64_t> ran;
    ran = 0;
    LocalJobOptions options{.transport = transport_case("shm"), .fabric = {.threads = 2}};
    options.init_thread = options.finalize = options.threads_stay = false;
    LocalJob job(options);
    std::atomic<uint64_t> accepted{0};
    std::atomic<uint32_t> begun{0};
    job.run([&](Fabric& fabric, uint32_t thread) {
      const auto self = must(fabric.init_thread(thread, CallConsumer::kProcess));
      if (thread == 0) {
        EXPECT_TRUE(wait_until([&] { return begun == 2; }, soon()));
        must(fabric.finalize(soon()));
        return;
      }
      MessengerOptions options;
      options.arrival = arrival;
      RDMAMessenger messenger(*self, fabric.thread_of(1 - fabric.rank()), options);
      RDMAAggregator aggregator(messenger);
      must(messenger.setup());
      ++begun;
      // Few calls at a time, so that finalize() finds moments without any in flight.
      absl::Status status;
      for (uint64_t i = 0; status.ok(); ++i) {
        status = i % 2 == 0 ? messenger.call([] { ++ran; }).status()
                            : aggregator.call([] { ++ran; }).status();
        if (status.ok()) ++accepted;
        if (status.ok() && i % 2 == 1) status = aggregator.flush();
        if (status.ok() && !fabric.finalized()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      }
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    });
    EXPECT_GE(accepted, ran);
    EXPECT_GT(ran, 0u);
  }
}

// An unflushed batch delays the end of the work. Both errors name the cause.
TEST(Closing, AnUnflushedBatchIsNamed) {
  LocalJob job({.processes = 2, .transport = transport_case("shm")});
  job.run([](Fabric& fabric, uint32_t) {
    TerminationDetector detector(fabric);
    RDMAMessenger messenger(*fabric.this_thread(), 1 - fabric.rank());
    RDMAAggregator aggregator(messenger);
    must(aggregator.call([] {}));
    const auto short_time = [] { return deadline_after(std::chrono::seconds(2)); };
    for (const absl::Status& status :
         {detector.wait(short_time()), fabric.finalize(short_time())}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("flush every aggregator"));
    }
    must(aggregator.flush());
    must(detector.wait(soon()));
    must(aggregator.shutdown(soon()));
  });
}

// Destructors publish the batch. Without finalize(), a call of it may not run, but its objects are
// notified before the fabric is destroyed.
TEST(Closing, TheObjectsOfAnUnpublishedBatchAreNotified) {
  for (const char* transport : {"shm", "sim", "fault_sim"}) {
    SCOPED_TRACE(transport);
    constexpr int kCalls = 10;
    std::array<Synchronizer, 2> sent{Synchronizer(kCalls), Synchronizer(kCalls)};
    std::array<Synchronizer, 2> run{Synchronizer(kCalls), Synchronizer(kCalls)};
    {
      LocalJobOptions options{.processes = 2, .transport = transport_case(transport)};
      options.finalize = options.threads_stay = false;
      LocalJob job(options);
      job.run([&](Fabric& fabric, uint32_t) {
        MessengerOptions messages;
        // Both fabrics are in one process here, so memory of the other one would not stay mapped.
        if (transport == std::string_view("shm")) messages.arrival = Arrival::kPolled;
        RDMAMessenger messenger(*fabric.this_thread(), 1 - fabric.rank(), messages);
        RDMAAggregator aggregator(messenger);
        for (int i = 0; i < kCalls; ++i) {
          must(aggregator.call(
              [] {}, on_transmitted(sent[fabric.rank()]) | on_consumed(run[fabric.rank()])));
        }
      });
    }
    for (const auto* events : {&sent, &run}) {
      for (const Synchronizer& event : *events) {
        EXPECT_TRUE(event.done());
        EXPECT_TRUE(event.status().ok() || absl::IsUnavailable(event.status())) << event.status();
      }
    }
  }
}

}  // namespace
}  // namespace cariama
