// A process without free descriptors: the errors name the limit.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/dtutils/shm/shm_node.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama::shm {
namespace {

// Opens files until no descriptor is left.
std::vector<int> take_all_descriptors() {
  rlimit limit{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  limit.rlim_cur = static_cast<rlim_t>(next) + 20;
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<int> taken{next};
  for (;;) {
    const int one = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (one < 0) return taken;
    taken.push_back(one);
  }
}

// A connection needs descriptors for a socket, the peer's process and its control segment.
TEST(ShmDescriptors, AConnectionWithoutThemNamesTheLimit) {
#if defined(__SANITIZE_UNDEFINED__)
  GTEST_SKIP() << "UBSan opens a pipe to check the type of an object: it needs descriptors itself";
#endif
  cariama::testing::run_test_processes(2, [](Exchange& exchange) {
    ShmNode node;
    if (exchange.rank() == 0) {
      must(exchange.put("address", node.queue_pair->address()));
      must(exchange.fence(soon()));
      return;
    }
    const std::string address = must(exchange.get(0, "address", soon()));
    std::vector<std::unique_ptr<QueuePair>> pairs;
    for (int i = 0; i < 6; ++i) pairs.push_back(node.make_queue_pair());
    std::vector<int> taken = take_all_descriptors();
    ASSERT_GE(taken.size(), 6U);
    size_t refused = 0;
    for (const auto& pair : pairs) {
      const absl::Status connected = pair->connect(address, {});
      if (connected.ok()) break;
      ++refused;
      EXPECT_EQ(connected.code(), absl::StatusCode::kResourceExhausted) << connected;
      EXPECT_THAT(std::string(connected.message()), ::testing::HasSubstr("raise ulimit -n"));
      close(taken.back());
      taken.pop_back();
    }
    EXPECT_GE(refused, 3U);
    EXPECT_LT(refused, pairs.size());
    for (const int one : taken) close(one);
    must(exchange.fence(soon()));
  });
}

// The process that is connected to has no descriptors. The peer learns the cause instead of
// waiting.
TEST(ShmDescriptors, AProcessWithoutThemTellsItsPeers) {
#if defined(__SANITIZE_UNDEFINED__)
  GTEST_SKIP() << "UBSan opens a pipe to check the type of an object: it needs descriptors itself";
#endif
  cariama::testing::run_test_processes(2, [](Exchange& exchange) {
    ShmNode node;
    if (exchange.rank() == 0) {
      must(exchange.put("address", node.queue_pair->address()));
      const std::vector<int> taken = take_all_descriptors();
      must(exchange.fence(soon()));
      must(exchange.fence(soon()));
      for (const int one : taken) close(one);
      must(exchange.fence(soon()));
      must(exchange.fence(soon()));
      return;
    }
    const std::string address = must(exchange.get(0, "address", soon()));
    must(exchange.fence(soon()));
    for (int attempt = 0; attempt < 3; ++attempt) {
      const absl::Status refused = node.make_queue_pair()->connect(address, {});
      EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
      EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("no free descriptor"));
      EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("raise ulimit -n"));
    }
    must(exchange.fence(soon()));
    must(exchange.fence(soon()));
    must(node.make_queue_pair()->connect(address, {}));
    must(exchange.fence(soon()));
  });
}

}  // namespace
}  // namespace cariama::shm
