// A peer process is killed: every operation towards it ends, it leaves no resources behind, and
// other connections keep working.
#include <algorithm>
#include <string>
#include <thread>

#include "dtutils/shm/address.h"
#include "dtutils/shm/wire.h"
#include "tests/dtutils/shm/shm_node.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/dtutils/testing/text_of.h"

namespace cariama {
namespace {

using testing::text_of;

size_t count_of(const std::string& needle, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(needle); at != std::string::npos; at = text.find(needle, at + 1)) {
    ++count;
  }
  return count;
}

RunOptions victim(int rank) {
  RunOptions options;
  options.may_die = {rank};
  return options;
}

// Returns the name, as /proc/net/unix shows it, of the socket of the queue pair's device.
std::string socket_of(const std::string& queue_pair_address) {
  sockaddr_un name;
  shm::socket_address(shm::decode(queue_pair_address).value().device, &name);
  std::string text(name.sun_path + 1);
  text.insert(text.begin(), '@');
  return text;
}

TEST(ShmPeerDeath, EndsPendingOperationsAlsoIfTheVictimHasOneGibibyte) {
  testing::run_test_processes(
      2,
      [](Exchange& exchange) {
        ShmNode node;
        connect_to(exchange, *node.queue_pair, 1 - exchange.rank());
        if (exchange.rank() == 1) {
          constexpr size_t kBytes = size_t{1} << 30;
          auto* memory = static_cast<char*>(
              mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
          ASSERT_NE(memory, MAP_FAILED);
          for (size_t i = 0; i < kBytes; i += 4096) memory[i] = 1;
          put_plain(exchange, "memory", node.region->locator());
          put_plain(exchange, "pid", getpid());
          for (;;) pause();
        }
        const auto remote = get_plain<RemoteMemoryLocator>(exchange, 1, "memory");
        const int pid = get_plain<int>(exchange, 1, "pid");
        const Segment word = node.segment(0, 8);
        const Segment buffer = node.segment(64, 8);
        // A send that waits for a receive without a limit, a send behind it, and a receive.
        WorkRequest send{.id = 1,
                         .opcode = Opcode::kSend,
                         .flags = kSignaled,
                         .segment_count = 1,
                         .segments = &word};
        ASSERT_TRUE(node.queue_pair->post_send(send).ok());
        send.id = 2;
        ASSERT_TRUE(node.queue_pair->post_send(send).ok());
        ASSERT_TRUE(
            node.queue_pair->post_receive({.id = 3, .segments = &buffer, .segment_count = 1}).ok());
        ASSERT_TRUE(node.completions->arm().ok());
        Completion none;
        ASSERT_EQ(node.completions->poll(std::span(&none, 1)), 0u);

        // Other programs have such sockets, too: look for the socket of this peer only.
        const std::string socket = socket_of(must(exchange.get(1, "address 0", soon())));
        EXPECT_GE(count_of(socket, text_of("/proc/net/unix")), 1u) << socket;

        const auto start = std::chrono::steady_clock::now();
        ASSERT_EQ(kill(pid, SIGKILL), 0);
        EXPECT_TRUE(node.channel->wait(std::chrono::seconds(30)))
            << "the channel reported no event";
        const auto noticed = std::chrono::steady_clock::now() - start;
        ::testing::Test::RecordProperty(
            "noticed_after_us",
            static_cast<int>(
                std::chrono::duration_cast<std::chrono::microseconds>(noticed).count()));
        const std::vector<Completion> ended = node.poll_for(3);
        ASSERT_EQ(ended.size(), 3u);
        std::vector<CompletionStatus> by_id(4);
        for (const Completion& completion : ended) by_id[completion.id] = completion.status;
        EXPECT_EQ(by_id[1], CompletionStatus::kPeerDied);
        EXPECT_EQ(by_id[2], CompletionStatus::kFlushed);
        EXPECT_EQ(by_id[3], CompletionStatus::kPeerDied);
        EXPECT_EQ(node.queue_pair->state(), QueuePairState::kError);

        // Later posts end, too, also unsignaled ones; repair() reports why it cannot help.
        WorkRequest write = remote_request(Opcode::kWrite, word, remote.slice(0, 8));
        write.id = 4;
        ASSERT_TRUE(node.queue_pair->post_send(write).ok());
        const std::vector<Completion> flushed = node.poll_for(1);
        ASSERT_EQ(flushed.size(), 1u);
        EXPECT_EQ(flushed[0].status, CompletionStatus::kFlushed);
        const absl::Status repaired = node.queue_pair->repair();
        EXPECT_TRUE(absl::IsUnavailable(repaired)) << repaired;
        EXPECT_NE(repaired.ToString().find(exchange.label(1)), std::string::npos) << repaired;
        EXPECT_NE(repaired.ToString().find("died"), std::string::npos) << repaired;
        // The mapping of the dead peer's memory still exists here. It can be unmapped without an
        // effect on another process.
        node.queue_pair.reset();
        const auto until = soon();
        while (count_of(socket, text_of("/proc/net/unix")) != 0 &&
               std::chrono::steady_clock::now() < until) {
          std::this_thread::yield();
        }
        EXPECT_EQ(count_of(socket, text_of("/proc/net/unix")), 0u)
            << "the socket of the dead peer still exists";
      },
      victim(1));
  EXPECT_EQ(count_of("cariama", text_of("/proc/self/maps")) -
                count_of("libcariama", text_of("/proc/self/maps")),
            0u);
}

// A device is closed while its threads detect a peer's death and may still handle it.
TEST(ShmPeerDeath, ADeviceMayCloseWhileItsPeerDies) {
  for (int round = 0; round < 20; ++round) {
    testing::run_test_processes(
        2,
        [round](Exchange& exchange) {
          auto node = std::make_unique<ShmNode>();
          connect_to(exchange, *node->queue_pair, 1 - exchange.rank());
          put_plain(exchange, "pid", getpid());
          if (exchange.rank() == 1) {
            for (;;) pause();
          }
          const int pid = get_plain<int>(exchange, 1, "pid");
          const WorkRequest send{.id = 1, .opcode = Opcode::kSend, .flags = kSignaled};
          ASSERT_TRUE(node->queue_pair->post_send(send).ok());
          ASSERT_EQ(kill(pid, SIGKILL), 0);
          if (round % 2 == 0) {
            const std::vector<Completion> ended = node->poll_for(1);
            ASSERT_EQ(ended.size(), 1u);
            EXPECT_EQ(ended[0].status, CompletionStatus::kPeerDied);
          }
          node.reset();
        },
        victim(1));
  }
}

TEST(ShmPeerDeath, LeavesOtherConnectionsAlone) {
  testing::run_test_processes(
      3,
      [](Exchange& exchange) {
        ShmNode node;
        put_plain(exchange, "memory", node.region->locator());
        put_plain(exchange, "pid", getpid());
        std::unique_ptr<QueuePair> second;
        if (exchange.rank() == 0) {
          connect_to(exchange, *node.queue_pair, 1);
          second = node.make_queue_pair();
          connect_to(exchange, *second, 2);
        } else {
          connect_to(exchange, *node.queue_pair, 0);
        }
        if (exchange.rank() == 2) {
          for (;;) pause();
        }
        if (exchange.rank() == 1) {
          static_cast<void>(must(exchange.get(0, "done", soon())));
          EXPECT_EQ(node.memory.word(0), 1000u);
          return;
        }
        const auto alive = get_plain<RemoteMemoryLocator>(exchange, 1, "memory");
        const auto dying = get_plain<RemoteMemoryLocator>(exchange, 2, "memory");
        const int pid = get_plain<int>(exchange, 2, "pid");
        const Segment word = node.segment(0, 8);
        bool died = false;
        for (uint64_t i = 1; i <= 1000; ++i) {
          if (i == 300) {
            ASSERT_EQ(kill(pid, SIGKILL), 0);
          }
          node.memory.word(0) = i;
          EXPECT_EQ(node.run(remote_request(Opcode::kWrite, word, alive.slice(0, 8))),
                    CompletionStatus::kSuccess);
          const CompletionStatus status =
              node.run(*second, remote_request(Opcode::kWrite, word, dying.slice(0, 8)));
          if (status == CompletionStatus::kPeerDied) {
            EXPECT_FALSE(died);
            died = true;
          } else {
            EXPECT_EQ(status, died ? CompletionStatus::kFlushed : CompletionStatus::kSuccess);
          }
        }
        while (!died) {
          ASSERT_LT(std::chrono::steady_clock::now(), soon());
          died = node.run(*second, remote_request(Opcode::kWrite, word, dying.slice(0, 8))) ==
                 CompletionStatus::kPeerDied;
        }
        must(exchange.put("done", ""));
      },
      victim(2));
}

// Two processes flood one shared receive queue, and one of them is killed while it sends, possibly
// in the middle of a message. No receive is lost: the other process can use all of them.
TEST(ShmPeerDeath, NoReceiveOfASharedQueueIsLost) {
  constexpr uint32_t kDepth = 16;
  constexpr uint32_t kMessageBytes = 64 << 10;
  testing::run_test_processes(
      3,
      [](Exchange& exchange) {
        ShmNode node(kDepth * kMessageBytes);
        put_plain(exchange, "pid", getpid());
        if (exchange.rank() != 0) {
          connect_to(exchange, *node.queue_pair, 0);
          const Segment message = node.segment(0, kMessageBytes);
          WorkRequest send{.opcode = Opcode::kSend, .segment_count = 1, .segments = &message};
          while (exchange.rank() == 2) {
            static_cast<void>(node.queue_pair->post_send(send));
          }
          // Rank 1 waits until rank 2 is dead, and then uses every receive.
          static_cast<void>(must(exchange.get(0, "dead", soon())));
          for (uint32_t i = 0; i < kDepth; ++i) {
            EXPECT_EQ(node.run(send), CompletionStatus::kSuccess);
          }
          static_cast<void>(must(exchange.get(0, "done", soon())));
          return;
        }
        auto shared = must(node.domain->create_shared_receive_queue({.depth = kDepth}));
        const auto post = [&](uint64_t slot) {
          const Segment buffer = node.segment(slot * kMessageBytes, kMessageBytes);
          return shared->post_receive({.id = slot, .segments = &buffer, .segment_count = 1}).ok();
        };
        for (uint64_t slot = 0; slot < kDepth; ++slot) ASSERT_TRUE(post(slot));
        auto steady = node.make_queue_pair(shared);
        auto dying = node.make_queue_pair(shared);
        connect_to(exchange, *steady, 1);
        connect_to(exchange, *dying, 2);
        // Delivers some messages of rank 2, which will be killed, and posts their receives again.
        for (int i = 0; i < 100; ++i) {
          const std::vector<Completion> delivered = node.poll_for(1);
          ASSERT_EQ(delivered.size(), 1u);
          EXPECT_EQ(delivered[0].status, CompletionStatus::kSuccess);
          ASSERT_TRUE(post(delivered[0].id));
        }
        ASSERT_EQ(kill(get_plain<int>(exchange, 2, "pid"), SIGKILL), 0);
        while (dying->state() != QueuePairState::kError) {
          ASSERT_LT(std::chrono::steady_clock::now(), soon());
          std::this_thread::yield();
        }
        // Polls until no more completions arrive. The completions of messages that rank 2 delivered
        // are reported, and this test posts their receives again. The receives of messages that
        // rank 2 had only begun are posted again by the device, when the process of rank 2 has
        // ended.
        Completion completion;
        const auto quiet = std::chrono::milliseconds(500);
        for (auto last = std::chrono::steady_clock::now();
             std::chrono::steady_clock::now() - last < quiet;) {
          if (node.completions->poll(std::span(&completion, 1)) == 0) {
            std::this_thread::yield();
            continue;
          }
          last = std::chrono::steady_clock::now();
          EXPECT_EQ(completion.status, CompletionStatus::kSuccess);
          ASSERT_TRUE(post(completion.id));
        }
        must(exchange.put("dead", ""));
        std::vector<bool> seen(kDepth);
        for (const Completion& delivered : node.poll_for(kDepth)) {
          EXPECT_EQ(delivered.status, CompletionStatus::kSuccess);
          EXPECT_EQ(delivered.queue_pair, steady->number());
          EXPECT_FALSE(seen[delivered.id]);
          seen[delivered.id] = true;
        }
        EXPECT_EQ(std::find(seen.begin(), seen.end(), false), seen.end());
        must(exchange.put("done", ""));
      },
      victim(2));
}

}  // namespace
}  // namespace cariama
