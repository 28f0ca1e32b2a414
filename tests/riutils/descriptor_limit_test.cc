// A channel whose process has no free descriptor to map further chunks. The receiver lives: the
// call is refused, and the channel continues when descriptors are free again. A process without a
// descriptor to connect to the process that waits for its answer.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "riutils/call.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::soon;

// Opens files until no descriptor is left.
std::vector<int> hold_all_descriptors() {
  rlimit limit{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  limit.rlim_cur = static_cast<rlim_t>(next) + 1;
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<int> held{next};
  for (;;) {
    const int one = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (one < 0) return held;
    held.push_back(one);
  }
}

std::atomic<uint64_t> bytes_arrived{0};

void grow_without_descriptors(Fabric& fabric, const MessengerOptions& options, size_t bytes) {
  RDMAMessenger messenger(*fabric.this_thread(), 1, options);
  must(messenger.setup());
  if (messenger.arrival() != Arrival::kMapped) GTEST_SKIP() << "the transport maps no memory";
  const auto send = [&](const std::string& text) {
    return messenger.call([](const std::string& its) { bytes_arrived += its.size(); }, text);
  };
  must(send("1"));
  const std::vector<int> held = hold_all_descriptors();
  // The first chunk is too small for this call, and the next one is in memory that is not mapped.
  const CallResult refused = send(std::string(bytes, 'x'));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("raise ulimit -n"));
  EXPECT_TRUE(fabric.peer_status(1).ok());
  must(send("2"));  // the first chunk is still in use
  for (const int one : held) close(one);
  must(send(std::string(bytes, 'x')));
  EXPECT_TRUE(messenger.shutdown(soon()).ok());
}

TEST(ChannelDescriptors, AChunkThatCannotBeMappedIsNoFailureOfItsProcess) {
#if defined(__SANITIZE_UNDEFINED__)
  GTEST_SKIP() << "UBSan opens a pipe to check the type of an object: it needs descriptors itself";
#endif
  testing::run_process_job(2, {}, [](Fabric& fabric) {
    constexpr size_t kBytes = 100'000;
    if (fabric.rank() == 0) {
      MessengerOptions options;
      options.chunk_bytes = uint64_t{16} << 20;
      options.timeout = std::chrono::milliseconds(500);
      grow_without_descriptors(fabric, options, kBytes);
    } else {
      EXPECT_TRUE(fabric.wait([] { return bytes_arrived.load() == 2 + kBytes; }, soon()));
    }
  });
}

std::vector<int> held_by_call;
std::atomic<bool> has_held{false};
std::atomic<bool> is_answered{false};

// The job: the nodes {0, 1} and {2, 3}. Rank 2 forwards the call of rank 0 to rank 3, which has to
// connect to rank 0 before it can answer, and has no descriptor for that at first.
void answer_without_descriptors(Fabric& fabric) {
  RoutedAggregator aggregator(*fabric.this_thread(),
                              {.routing = Routing::kNode, .processes_per_node = 2});
  if (fabric.rank() == 0) {
    EXPECT_EQ(aggregator.next_hop(3), ThreadId(2));
    Future<int> result = aggregator.async_call(3, [] {
      held_by_call = hold_all_descriptors();
      has_held = true;
      return 7;
    });
    EXPECT_TRUE(aggregator.flush().ok());
    EXPECT_EQ(must(result.get(soon())), 7);
    for (uint32_t rank = 0; rank < fabric.size(); ++rank) {
      must(call(fabric, fabric.thread_of(rank), [] { is_answered = true; }));
    }
  } else if (fabric.rank() == 3) {
    rlimit before{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    // The thread that runs the call answers it, before the wait looks at its condition.
    EXPECT_TRUE(fabric.wait([] { return has_held.load(); }, soon()));
    for (const int one : held_by_call) close(one);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  EXPECT_TRUE(fabric.wait([] { return is_answered.load(); }, soon()));
  EXPECT_TRUE(aggregator.shutdown(soon()).ok());
}

TEST(AnswerDescriptors, AnAnswerThatLackedThemIsRepeated) {
#if defined(__SANITIZE_UNDEFINED__)
  GTEST_SKIP() << "UBSan opens a pipe to check the type of an object: it needs descriptors itself";
#endif
  testing::run_process_job(4, {}, answer_without_descriptors);
}

}  // namespace
}  // namespace cariama
