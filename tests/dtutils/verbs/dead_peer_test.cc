// The death of a peer process is detected by a request that is sent to it.
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "dtutils/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/dtutils/verbs/verbs_pair.h"

namespace cariama {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Does not use the fixture, because each process opens the device itself.
TEST(DeadPeerTest, AProbeEndsWithRetryExceededAndLaterRequestsAreFlushed) {
  if (!has_active_verbs_port(list_verbs_devices())) GTEST_SKIP() << "no RDMA device";
  const auto body = [](Exchange& exchange) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(30);
    auto device = testing::value_of(open_verbs_device({}));
    auto domain = testing::value_of(device->create_domain());
    auto completions = testing::value_of(domain->create_completion_queue({.depth = 64}));
    auto pair = testing::value_of(domain->create_queue_pair({.send_completions = completions,
                                                             .receive_completions = completions,
                                                             .send_depth = 16,
                                                             .receive_depth = 16}));
    ASSERT_TRUE(exchange.put("address", pair->address()).ok());
    const int peer = 1 - exchange.rank();
    const auto address = exchange.get(peer, "address", deadline);
    ASSERT_TRUE(address.ok()) << address.status();
    ConnectOptions options;
    options.peer = exchange.label(peer);
    options.ack_timeout = std::chrono::milliseconds(1);
    ASSERT_TRUE(pair->connect(*address, options).ok());
    ASSERT_TRUE(exchange.fence(deadline).ok());
    if (exchange.rank() == 1) {
      std::raise(SIGKILL);
    }
    // The probe of an idle connection: a WRITE of no bytes, which needs no key.
    const WorkRequest probe{.id = 1, .opcode = Opcode::kWrite, .flags = kSignaled};
    // The probe succeeds as long as the peer lives, and fails some time after its death.
    Completion completion;
    do {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the death was not noticed";
      ASSERT_TRUE(pair->post_send(probe).ok());
      const std::vector<Completion> taken = testing::take_completions(*completions, 1);
      ASSERT_EQ(taken.size(), 1U);
      completion = taken[0];
    } while (completion.status == CompletionStatus::kSuccess);
    EXPECT_EQ(completion.status, CompletionStatus::kRetryExceeded);
    const absl::Status status = to_status(completion, pair->peer());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(error_scope(status), ErrorScope::kPeer);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("RDMA WRITE"), HasSubstr(options.peer)));
    for (uint64_t id = 2; id < 8; ++id) {
      ASSERT_TRUE(
          pair->post_send(WorkRequest{.id = id, .opcode = Opcode::kWrite, .flags = 0}).ok());
    }
    const std::vector<Completion> flushed = testing::take_completions(*completions, 6);
    ASSERT_EQ(flushed.size(), 6U);
    for (const Completion& each : flushed) EXPECT_EQ(each.status, CompletionStatus::kFlushed);
  };
  testing::run_test_processes(2, body, {.labels = {"the survivor", "the victim"}, .may_die = {1}});
}

}  // namespace
}  // namespace cariama
