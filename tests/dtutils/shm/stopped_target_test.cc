// One-sided operations, and messages into posted receives, do not use the target's CPU: they
// complete while the target is stopped.
#include "tests/dtutils/shm/shm_node.h"
#include "tests/dtutils/testing/process_state.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama {
namespace {

// The owner's service thread announces its regions after it has answered the connection request,
// so a connection may exist before its regions are known. direct_access() succeeds when they are.
void wait_until_announced(QueuePair& queue_pair, const RemoteMemoryLocator& memory) {
  const auto deadline = soon();
  while (queue_pair.direct_access(memory) == nullptr) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the region was not announced";
    std::this_thread::yield();
  }
}

TEST(ShmStoppedTarget, EveryOperationCompletes) {
  testing::run_test_processes(2, [](Exchange& exchange) {
    ShmNode node;
    const int peer = 1 - exchange.rank();
    if (exchange.rank() == 1) {
      const Segment buffer = node.segment(1024, 64);
      ASSERT_TRUE(node.queue_pair->post_receive({.id = 1}).ok());
      ASSERT_TRUE(
          node.queue_pair->post_receive({.id = 2, .segments = &buffer, .segment_count = 1}).ok());
      node.memory.word(0) = 40;
      put_plain(exchange, "memory", node.region->locator());
    }
    connect_to(exchange, *node.queue_pair, peer);
    if (exchange.rank() == 1) {
      put_plain(exchange, "pid", getpid());  // connecting does need the target's CPU
      // This process continues when rank 0 has finished. The effects of all operations are visible.
      static_cast<void>(must(exchange.get(0, "done", soon())));
      EXPECT_EQ(node.memory.word(0), 43u);
      EXPECT_EQ(node.memory.word(1), 7u);
      const std::vector<Completion> events = node.poll_for(2);
      ASSERT_EQ(events.size(), 2u);
      EXPECT_EQ(events[0].kind, CompletionKind::kReceiveImmediate);
      EXPECT_EQ(events[0].immediate, 99u);
      EXPECT_EQ(events[1].kind, CompletionKind::kReceive);
      EXPECT_EQ(events[1].bytes, 8u);
      EXPECT_EQ(node.memory.word(128), 7u);
      must(exchange.fence(soon()));
      return;
    }
    const int pid = get_plain<int>(exchange, 1, "pid");
    const auto memory = get_plain<RemoteMemoryLocator>(exchange, 1, "memory");
    ASSERT_NO_FATAL_FAILURE(wait_until_announced(*node.queue_pair, memory));
    ASSERT_TRUE(testing::stop_process(pid, soon()));

    const Segment word = node.segment(0, 8);
    EXPECT_EQ(node.run(remote_request(Opcode::kRead, word, memory)), CompletionStatus::kSuccess);
    EXPECT_EQ(node.memory.word(0), 40u);
    WorkRequest add = remote_request(Opcode::kFetchAdd, word, memory);
    add.operand = 2;
    EXPECT_EQ(node.run(add), CompletionStatus::kSuccess);
    EXPECT_EQ(node.memory.word(0), 40u);
    WorkRequest swap = remote_request(Opcode::kCompareSwap, word, memory);
    swap.operand = 42;
    swap.swap = 43;
    EXPECT_EQ(node.run(swap), CompletionStatus::kSuccess);
    EXPECT_EQ(node.memory.word(0), 42u);
    node.memory.word(0) = 7;
    EXPECT_EQ(node.run(remote_request(Opcode::kWrite, word, memory.slice(8, 8))),
              CompletionStatus::kSuccess);
    WorkRequest event = remote_request(Opcode::kWriteImmediate, word, memory.slice(8, 8));
    event.immediate = 99;
    EXPECT_EQ(node.run(event), CompletionStatus::kSuccess);
    EXPECT_EQ(node.run({.opcode = Opcode::kSend, .segment_count = 1, .segments = &word}),
              CompletionStatus::kSuccess);

    EXPECT_TRUE(testing::wait_until_stopped(pid, soon())) << "the target was running meanwhile";
    ASSERT_EQ(kill(pid, SIGCONT), 0);
    must(exchange.put("done", ""));
    must(exchange.fence(soon()));
  });
}

// Memory that is registered while connections exist is announced to the peers immediately, so that
// they can access it while its owner is stopped.
TEST(ShmStoppedTarget, ItsNewestRegionIsReachable) {
  testing::run_test_processes(2, [](Exchange& exchange) {
    ShmNode node;
    const int peer = 1 - exchange.rank();
    connect_to(exchange, *node.queue_pair, peer);
    if (exchange.rank() == 1) {
      std::vector<std::unique_ptr<Memfd>> memory;
      std::vector<std::shared_ptr<MemoryRegion>> regions;
      for (int i = 0; i < 300; ++i) {  // more announcements than fit into a socket
        memory.push_back(std::make_unique<Memfd>(4096));
        regions.push_back(
            must(node.domain->register_memory(memory.back()->source(), Access::kAll)));
      }
      put_plain(exchange, "memory", regions.back()->locator());
      put_plain(exchange, "first", regions.front()->locator());
      put_plain(exchange, "pid", getpid());
      static_cast<void>(must(exchange.get(0, "done", soon())));
      EXPECT_EQ(memory.back()->word(0), 5u);
      EXPECT_EQ(memory.front()->word(0), 5u);
      return;
    }
    const int pid = get_plain<int>(exchange, 1, "pid");
    const auto memory = get_plain<RemoteMemoryLocator>(exchange, 1, "memory");
    const auto first = get_plain<RemoteMemoryLocator>(exchange, 1, "first");
    ASSERT_NO_FATAL_FAILURE(wait_until_announced(*node.queue_pair, memory));
    ASSERT_TRUE(testing::stop_process(pid, soon()));
    node.memory.word(0) = 5;
    const Segment word = node.segment(0, 8);
    for (const RemoteMemoryLocator& target : {memory, first}) {
      EXPECT_EQ(node.run(remote_request(Opcode::kWrite, word, target.slice(0, 8))),
                CompletionStatus::kSuccess);
    }
    ASSERT_EQ(kill(pid, SIGCONT), 0);
    must(exchange.put("done", ""));
  });
}

}  // namespace
}  // namespace cariama
