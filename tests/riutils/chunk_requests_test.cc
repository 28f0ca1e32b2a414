// Requests for chunks that a receiver refuses, and grants that a sender refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dtutils/allocators/memory_budget.h"
#include "riutils/internal/chunk_ring.h"
#include "riutils/internal/grant_checks.h"
#include "riutils/internal/runtime.h"
#include "riutils/messenger.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::internal {
namespace {

using cariama::testing::LocalJob;
using cariama::testing::LocalJobOptions;
using ::testing::HasSubstr;

// A request of thread `thread` for one chunk of a new channel.
ChunkRequest chunk_request(uint32_t thread) {
  ChunkRequest request;
  request.serial = 1;
  request.source_thread = thread;
  request.count = 1;
  request.chunk_bytes = MessengerOptions::kMinChunkBytes;
  request.control.length = sizeof(ChannelControl);
  request.arrival = Arrival::kPolled;
  request.first = 1;
  return request;
}

ChunkRequest changed(ChunkRequest request, const std::function<void(ChunkRequest&)>& change) {
  change(request);
  return request;
}

TEST(ChunkRequests, OfForeignThreadsAreImpossible) {
  constexpr uint32_t kThreads = 4;
  for (uint32_t thread = 0; thread < 16; ++thread) {
    EXPECT_EQ(is_possible(chunk_request(thread), 2, kThreads, std::nullopt), thread / kThreads == 2)
        << thread;
  }
  EXPECT_FALSE(is_possible(chunk_request(UINT32_MAX), 2, kThreads, std::nullopt));
}

TEST(ChunkRequests, WithFieldsOutOfRangeAreImpossible) {
  const ChunkRequest good = chunk_request(0);
  const auto possible = [&](const std::function<void(ChunkRequest&)>& change) {
    return is_possible(changed(good, change), 0, 1, std::nullopt);
  };
  EXPECT_TRUE(possible([](ChunkRequest&) {}));
  EXPECT_TRUE(possible([](ChunkRequest& r) { r.count = ChunkRequest::kMost; }));
  for (const uint32_t count : {0u, ChunkRequest::kMost + 1, UINT32_MAX}) {
    EXPECT_FALSE(possible([&](ChunkRequest& r) { r.count = count; })) << count;
  }
  for (const uint64_t bytes :
       {uint64_t{0}, MessengerOptions::kMinChunkBytes - 64, MessengerOptions::kMinChunkBytes + 8,
        MessengerOptions::kMaxChunkBytes + 64, UINT64_MAX - 63}) {
    EXPECT_FALSE(possible([&](ChunkRequest& r) { r.chunk_bytes = bytes; })) << bytes;
  }
  EXPECT_FALSE(possible([](ChunkRequest& r) { r.arrival = Arrival::kAuto; }));
  EXPECT_FALSE(possible([](ChunkRequest& r) { r.arrival = static_cast<Arrival>(200); }));
  EXPECT_FALSE(possible([](ChunkRequest& r) { r.consumption = static_cast<Consumption>(200); }));
  EXPECT_FALSE(possible([](ChunkRequest& r) { r.control.length = sizeof(ChannelControl) - 1; }));
  EXPECT_FALSE(possible([](ChunkRequest& r) { r.first = 0; })) << "the channel does not exist";
}

TEST(ChunkRequests, OfAChannelThatExistsFollowItsFirstRequest) {
  ChunkRequest more = chunk_request(0);
  const size_t granted = MessengerOptions::kMaxChunks - 2;
  EXPECT_FALSE(is_possible(more, 0, 1, granted)) << "the channel exists";
  more.first = 0;
  more.count = 2;
  EXPECT_TRUE(is_possible(more, 0, 1, granted));
  more.count = 3;
  EXPECT_FALSE(is_possible(more, 0, 1, granted)) << "more than kMaxChunks chunks";
  more.count = 1;
  more.chunk_bytes *= 2;
  EXPECT_TRUE(is_possible(more, 0, 1, granted)) << "chunks larger than the first one";
}

// A receiver that gets such requests allocates nothing and creates no channel.
TEST(ChunkRequests, ThatAreMalformedAreRefusedByTheReceiver) {
  LocalJobOptions options{.processes = 2, .transport = cariama::testing::transport_case("shm")};
  options.fabric.threads = 2;
  LocalJob job(options);
  job.run([](Fabric& fabric, uint32_t thread) {
    if (fabric.rank() != 0 || thread != 0) return;
    Runtime& runtime = Runtime::of(fabric);
    const auto code = [&](uint32_t rank, const ChunkRequest& request) {
      const ChunkAnswer answer = runtime.grant(rank, request);
      EXPECT_EQ(answer.count, 0u);
      return static_cast<absl::StatusCode>(answer.code);
    };
    const auto refused = absl::StatusCode::kInvalidArgument;
    EXPECT_EQ(code(1, chunk_request(0)), refused) << "a thread of this process";
    EXPECT_EQ(code(1, chunk_request(4)), refused) << "a thread of no process";
    ChunkRequest request = chunk_request(2);
    request.worker = 2;
    EXPECT_EQ(code(1, request), absl::StatusCode::kOutOfRange);
    request.worker = 0;
    request.count = ChunkRequest::kMost + 1;
    EXPECT_EQ(code(1, request), refused);
    request.count = 1;
    request.first = 0;
    EXPECT_EQ(code(1, request), refused) << "no request has created the channel";
  });
}

ChunkAnswer chunk_grant(uint32_t count) {
  ChunkAnswer answer;
  answer.count = count;
  for (RemoteMemoryLocator& chunk : answer.chunks) chunk = {64, 4096, {}, 0, 0};
  return answer;
}

TEST(ChunkGrants, WithTooLargeNumbersEndTheChannel) {
  const auto check = [](const ChunkAnswer& answer, uint32_t count = ChunkRequest::kMost) {
    return check_grant(answer, count, 4096, "rank 7");
  };
  EXPECT_EQ(check(chunk_grant(1)), absl::OkStatus());
  EXPECT_EQ(check(chunk_grant(ChunkRequest::kMost)), absl::OkStatus());
  for (const uint32_t count : {0u, ChunkRequest::kMost + 1, UINT32_MAX}) {
    const absl::Status status = check(chunk_grant(count));
    EXPECT_TRUE(absl::IsUnavailable(status)) << count;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 7"));
  }
  EXPECT_EQ(check(chunk_grant(2), 2), absl::OkStatus());
  EXPECT_TRUE(absl::IsUnavailable(check(chunk_grant(3), 2))) << "more than were requested";
  ChunkAnswer answer = chunk_grant(1);
  answer.number = ChunkAnswer::kNumbers - 1;
  EXPECT_EQ(check(answer), absl::OkStatus());
  answer.number = ChunkAnswer::kNumbers;
  EXPECT_TRUE(absl::IsUnavailable(check(answer)));
}

TEST(ChunkGrants, OfOtherChunksEndTheChannel) {
  for (uint32_t which = 0; which < 3; ++which) {
    ChunkAnswer answer = chunk_grant(3);
    answer.chunks[which].length = 8192;
    EXPECT_TRUE(absl::IsUnavailable(check_grant(answer, 3, 4096, "it"))) << "length of " << which;
    answer = chunk_grant(3);
    answer.chunks[which].address = 8;
    EXPECT_TRUE(absl::IsUnavailable(check_grant(answer, 3, 4096, "it"))) << "address of " << which;
  }
}

TEST(ChunkGrants, ThatAreRefusalsReturnTheirReason) {
  ChunkAnswer answer;
  answer.code = static_cast<int32_t>(absl::StatusCode::kResourceExhausted);
  const std::string reason(ChunkAnswer::kMostOfReason, 'x');  // not terminated
  answer.set_reason(reason);
  const absl::Status status = check_grant(answer, 1, 4096, "it");
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
  answer.code = -1;  // no code
  EXPECT_FALSE(check_grant(answer, 1, 4096, "it").ok());
}

TEST(ChunkGrants, ThatAreRefusedNameTheRemedyOfTheReceiver) {
  constexpr char kRemedy[] =
      "raise CARIAMA_MEMORY_BUDGET, or use fewer or smaller chunks: MessengerOptions::max_chunks "
      "and chunk_bytes";
  MemoryBudget budget(uint64_t{64} << 20, "memory budget of this process", kRemedy);
  LocalJobOptions options{.processes = 2, .transport = cariama::testing::transport_case("shm")};
  options.fabric.superpages.budget = &budget;
  LocalJob job(options);
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() != 0) return;
    constexpr uint64_t kBytes = uint64_t{128} << 20;
    RDMAMessenger messenger(*fabric.this_thread(), 1,
                            {.first_chunk_bytes = kBytes, .chunk_bytes = kBytes});
    const absl::Status refused = messenger.setup();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), ::testing::EndsWith(kRemedy));
  });
}

}  // namespace
}  // namespace cariama::internal
