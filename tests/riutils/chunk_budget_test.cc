// The limit of the chunks that a process provides: FabricOptions::channel_bytes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "riutils/call.h"
#include "riutils/internal/runtime.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/contract/harness.h"

namespace cariama {
namespace {

using internal::Runtime;
using testing::LocalJob;
using testing::LocalJobOptions;
using testing::must;
using testing::soon;

LocalJobOptions job_with_budget(uint64_t channel_bytes, uint32_t processes) {
  LocalJobOptions options{.processes = processes};
  options.fabric.channel_bytes = channel_bytes;
  return options;
}

// The channels want 3 * 128 KiB.
TEST(ChunkBudget, HoldsWhileAllCallsArrive) {
  static constexpr uint64_t kBudget = 48 << 10;
  static constexpr uint64_t kCalls = 20'000;
  static std::atomic<uint64_t> ran;
  static std::atomic<uint32_t> senders;
  ran = 0;
  senders = 3;
  LocalJob local(job_with_budget(kBudget, 4));
  local.run([](Fabric& fabric, uint32_t) {
    MemoryBudget& budget = Runtime::of(fabric).chunk_budget();
    if (fabric.rank() == 0) {
      EXPECT_TRUE(
          fabric.wait([] { return senders.load() == 0 && ran.load() == 3 * kCalls; }, soon()))
          << ran.load();
      EXPECT_LE(budget.high_water(), kBudget);
      EXPECT_GE(budget.high_water(), 3 * uint64_t{1024});
      // The receiver frees the chunks of channels that have ended when it next looks at them.
      EXPECT_TRUE(fabric.wait([&] { return budget.used() == 0; }, soon()));
      return;
    }
    RDMAMessenger messenger(*fabric.this_thread(), 0,
                            {.first_chunk_bytes = 1024, .max_chunks = 16, .chunk_bytes = 8192});
    uint64_t most = 0;
    for (uint64_t i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(messenger.call([] { ++ran; }).ok());
      most = std::max(most, messenger.statistics().chunk_bytes);
    }
    EXPECT_LE(most * 4, kBudget * 3);
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
    --senders;
  });
}

// Channels that have chunks leave the last quarter to first chunks. Beyond it the call is an error,
// which names the option. It ends when another channel returns its chunks.
TEST(ChunkBudget, ItsLastQuarterIsForFirstChunks) {
  static constexpr uint64_t kChunk = 4096;
  static std::atomic<bool> filled;
  static std::atomic<bool> over;
  filled = over = false;
  LocalJob local(job_with_budget(4 * kChunk, 2));
  local.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      EXPECT_TRUE(wait_until([] { return filled.load(); }, soon()));  // runs no call until then
      EXPECT_TRUE(fabric.wait([] { return over.load(); }, soon()));
      return;
    }
    const MessengerOptions options{
        .first_chunk_bytes = kChunk, .chunk_bytes = kChunk, .timeout = std::chrono::seconds(10)};
    RDMAMessenger many(*fabric.this_thread(), 0, options);
    const Deadline deadline = soon();
    for (int refused = 0; refused < 100 || many.statistics().chunk_bytes < 3 * kChunk;) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      refused += many.call<Fail>([] {}) ? 0 : 1;
    }
    EXPECT_EQ(many.statistics().chunk_bytes, 3 * kChunk);
    RDMAMessenger first(*fabric.this_thread(), 0, options);
    EXPECT_TRUE(first.call<Fail>([] {}).ok());
    RDMAMessenger none(*fabric.this_thread(), 0, options);
    const absl::Status refused = none.call<Fail>([] {}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()),
                ::testing::HasSubstr("FabricOptions::channel_bytes"));
    filled = true;
    EXPECT_EQ(many.shutdown(soon()), absl::OkStatus());
    CallResult sent = none.call([] {});
    while (!sent.ok() && std::chrono::steady_clock::now() < deadline) sent = none.call([] {});
    EXPECT_TRUE(sent.ok()) << sent.status();
    EXPECT_EQ(first.shutdown(soon()), absl::OkStatus());
    EXPECT_EQ(none.shutdown(soon()), absl::OkStatus());
    must(call(fabric, 0, [] { over = true; }));
  });
}

// A channel whose small first chunk cannot be replaced goes on with it. A call that needs a larger
// chunk is refused.
TEST(ChunkBudget, ASmallChunkThatIsNotReplacedIsUsedFurther) {
  static std::atomic<uint64_t> ran;
  ran = 0;
  LocalJob local(job_with_budget(8192, 2));
  local.run([](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      EXPECT_TRUE(fabric.wait([] { return ran.load() == 2001; }, soon()));
      return;
    }
    RDMAMessenger messenger(*fabric.this_thread(), 0,
                            {.first_chunk_bytes = 1024, .chunk_bytes = 32768});
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(messenger.call([] { ++ran; }).ok());
    EXPECT_EQ(messenger.statistics().chunk_bytes, 1024u);
    const std::string text(5000, 'x');
    const CallResult refused =
        messenger.call<Fail>([](const std::string& got) { ran += got.size(); }, text);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
    ASSERT_TRUE(messenger.call([] { ++ran; }).ok());
    EXPECT_EQ(messenger.shutdown(soon()), absl::OkStatus());
  });
  EXPECT_EQ(ran.load(), 2001u);
}

}  // namespace
}  // namespace cariama
