// QueuePairAccess: one-sided operations between workers, as the scheduler uses them.
#include "tasks/internal/queue_pair_access.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dtutils/device.h"
#include "dtutils/wait.h"
#include "tasks/internal/atomic_server.h"
#include "tasks/internal/stack_region.h"
#include "tests/dtutils/testing/device_node.h"
#include "tests/dtutils/testing/process_state.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/dtutils/testing/shared.h"

namespace cariama::tasks {
namespace {

Exchange::Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(30); }

struct Tail {
  AccessArea access;
  std::atomic<uint64_t> counter;
  std::atomic<uint64_t> swaps;
  std::array<uint64_t, 64> words;
  std::array<AtomicCell, 2> cells;  // with served atomics
};

struct Node {
  explicit Node(Exchange& exchange_, bool served = false)
      : exchange(exchange_),
        region(cariama::must(StackRegion::create(1 << 20, sizeof(Tail)))),
        tail(*reinterpret_cast<Tail*>(region->tail())),
        access(cariama::must(QueuePairAccess::connect(
            exchange, cariama::must(open_device({.transport = Transport::kShm})), region->source(),
            tail.access, soon(), "tasks",
            served ? std::span<AtomicCell>(tail.cells) : std::span<AtomicCell>()))) {}
  [[nodiscard]] static uint64_t at(const void* address) {
    return reinterpret_cast<uint64_t>(address);
  }
  void fence() const { cariama::must(exchange.fence(soon())); }

  Exchange& exchange;
  std::unique_ptr<StackRegion> region;
  Tail& tail;
  std::unique_ptr<QueuePairAccess> access;
};

TEST(QueuePairAccess, EveryOperationOnEveryPeer) {
  testing::run_test_processes(3, [](Exchange& exchange) {
    const Node node(exchange);
    const int me = exchange.rank();
    for (size_t i = 0; i < 64; ++i) node.tail.words[i] = 100 * static_cast<uint64_t>(me) + i;
    node.fence();
    for (int peer = 0; peer < 3; ++peer) {
      // Read into this process's stack, like a thief that reads frames.
      auto* to = reinterpret_cast<uint64_t*>(node.region->top()) - 64;
      cariama::must(
          node.access->read(peer, Node::at(&node.tail.words), to, sizeof node.tail.words));
      EXPECT_EQ(to[63], 100u * static_cast<uint64_t>(peer) + 63) << "from " << peer;
      const std::array<ReadPiece, 2> pieces{ReadPiece{Node::at(&node.tail.words[1]), to, 8},
                                            ReadPiece{Node::at(&node.tail.words[9]), to + 1, 16}};
      cariama::must(node.access->read(peer, pieces));
      EXPECT_EQ(to[0], 100u * static_cast<uint64_t>(peer) + 1);
      EXPECT_EQ(to[2], 100u * static_cast<uint64_t>(peer) + 10);
    }
    node.fence();
    // Small writes may come from any memory, larger ones only from registered memory.
    for (int peer = 0; peer < 3; ++peer) {
      const uint64_t word = 7000 + static_cast<uint64_t>(me);
      cariama::must(
          node.access->write(peer, Node::at(&node.tail.words[static_cast<size_t>(me)]), &word, 8));
    }
    auto* large = reinterpret_cast<uint64_t*>(node.region->top()) - 1024;
    for (size_t i = 0; i < 1024; ++i) large[i] = i;
    if (me == 1) {
      cariama::must(
          node.access->write(2, Node::at(node.region->bottom()), large, 1024 * sizeof(uint64_t)));
    }
    // When a later operation to the same peer is visible, the writes before it are too.
    for (int peer = 0; peer < 3; ++peer) {
      cariama::must(node.access->post_add(peer, Node::at(&node.tail.counter), 1));
    }
    while (node.tail.counter.load(std::memory_order_acquire) < 3) std::this_thread::yield();
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(node.tail.words[i], 7000 + i);
    if (me == 2) {
      EXPECT_EQ(reinterpret_cast<uint64_t*>(node.region->bottom())[1023], 1023u);
    }
    node.fence();
  });
}

// Atomics of peers and of the owner on the same word do not lose updates.
TEST(QueuePairAccess, AtomicsOfAllRanks) {
  testing::run_test_processes(3, [](Exchange& exchange) {
    const Node node(exchange);
    constexpr uint64_t kTimes = 2000;
    uint64_t swapped = 0;
    for (uint64_t i = 0; i < kTimes; ++i) {
      static_cast<void>(cariama::must(node.access->fetch_add(0, Node::at(&node.tail.counter), 1)));
      cariama::must(node.access->post_add(0, Node::at(&node.tail.counter), 1));
      const uint64_t seen = cariama::must(node.access->fetch_add(0, Node::at(&node.tail.swaps), 0));
      if (cariama::must(node.access->compare_swap(0, Node::at(&node.tail.swaps), seen, seen + 1)) ==
          seen) {
        ++swapped;
      }
    }
    cariama::must(
        node.access->write(0, Node::at(&node.tail.words[static_cast<size_t>(exchange.rank())]),
                           &swapped, sizeof swapped));
    // When a later atomic is complete, the posted ones are too.
    static_cast<void>(cariama::must(node.access->fetch_add(0, Node::at(&node.tail.counter), 0)));
    node.fence();
    if (exchange.rank() == 0) {
      EXPECT_EQ(node.tail.counter.load(), 3 * 2 * kTimes);
      EXPECT_EQ(node.tail.swaps.load(),
                node.tail.words[0] + node.tail.words[1] + node.tail.words[2]);
      EXPECT_GT(node.tail.swaps.load(), 0u);
    }
    node.fence();
  });
}

// Unsignaled operations on a dead peer fail at any time later. Operations on other peers go on.
TEST(QueuePairAccess, AnErrorOfOnePeerDoesNotFailAnOperationOnAnother) {
  testing::run_test_processes(
      3,
      [](Exchange& exchange) {
        const Node node(exchange);
        if (exchange.rank() == 1) raise(SIGKILL);
        if (exchange.rank() == 2) {
          static_cast<void>(cariama::must(exchange.get(0, "done", soon())));
          return;
        }
        const uint64_t word = 1;
        auto* to = reinterpret_cast<uint64_t*>(node.region->top()) - 64;
        absl::Status dead;
        const auto deadline = soon();
        while (dead.ok() && std::chrono::steady_clock::now() < deadline) {
          dead = node.access->write(1, Node::at(&node.tail.words), &word, sizeof word);
          cariama::must(node.access->read(2, Node::at(&node.tail.words), to, sizeof word));
        }
        EXPECT_TRUE(absl::IsUnavailable(dead)) << dead;
        EXPECT_EQ(node.access->failed_peer(), 1);
        cariama::must(exchange.put("done", ""));
      },
      {.may_die = {1}});
}

// The stopped process serves no atomic. When it continues, it serves the request that it has got.
TEST(QueuePairAccess, AStoppedServerIsNotAwaitedBeyondTheDeadline) {
  const testing::Shared<std::atomic<pid_t>> server;
  testing::run_test_processes(2, [&](Exchange& exchange) {
    Node node(exchange, true);
    if (exchange.rank() == 0) {
      *server.get() = getpid();
      raise(SIGSTOP);
      node.fence();
      return;
    }
    while (*server.get() == 0) std::this_thread::yield();
    ASSERT_TRUE(testing::wait_until_stopped(*server.get(), soon()));
    node.access->set_deadline(deadline_after(std::chrono::milliseconds(200)));
    const auto late = node.access->fetch_add(0, Node::at(&node.tail.counter), 1);
    EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
    EXPECT_NE(late.status().message().find("kill -CONT"), std::string::npos) << late.status();
    EXPECT_EQ(node.access->failed_peer(), 0);
    kill(*server.get(), SIGCONT);
    node.access->set_deadline(kForever);
    EXPECT_EQ(cariama::must(node.access->fetch_add(0, Node::at(&node.tail.counter), 1)), 1u);
    node.fence();
  });
}

TEST(QueuePairAccess, SegmentsAreFoundWhenTheyAreNeeded) {
  testing::run_test_processes(2, [](Exchange& exchange) {
    const Node node(exchange);
    PinnedArea area(size_t{64} << 20, [&](size_t index, const MemorySource& source) {
      return node.access->add_segment(index, source);
    });
    // Both ranks allocate blocks. Rank 0 accesses those of rank 1, whose segments it does not know
    // yet.
    std::vector<uint64_t*> blocks;
    for (int i = 0; i < 40; ++i) {
      blocks.push_back(static_cast<uint64_t*>(cariama::must(area.allocate(100'000))));
      *blocks.back() = 500 + static_cast<uint64_t>(i);
    }
    node.fence();
    const uint64_t before = node.access->round_trips();
    if (exchange.rank() == 0) {
      for (size_t i = 0; i < blocks.size(); ++i) {  // rank 1's blocks have the same addresses
        cariama::must(node.access->read(1, Node::at(blocks[i]), blocks[i] + 1, sizeof(uint64_t)));
        EXPECT_EQ(blocks[i][1], 500 + i);
      }
      // One round trip for each read, and one for each segment.
      const size_t segments = segment_of(Node::at(blocks.back())) + 1;
      EXPECT_EQ(node.access->round_trips() - before, blocks.size() + segments);
      const uint64_t released = 1;
      cariama::must(node.access->write(1, PinnedArea::release_address(Node::at(blocks[3])),
                                       &released, sizeof released));
      static_cast<void>(cariama::must(node.access->fetch_add(1, Node::at(&node.tail.counter), 1)));
    } else {
      while (node.tail.counter.load(std::memory_order_acquire) == 0) std::this_thread::yield();
      EXPECT_EQ(area.outstanding(), 40u);
      area.collect();
      EXPECT_EQ(area.outstanding(), 39u);
    }
    node.fence();
  });
}

TEST(QueuePairAccess, UnregisteredMemoryIsAnError) {
  testing::run_test_processes(2, [](Exchange& exchange) {
    const Node node(exchange);
    uint64_t local = 0;
    const auto code = [](const absl::Status& status) { return status.code(); };
    const int peer = 1 - exchange.rank();
    EXPECT_EQ(code(node.access->read(peer, 4096, node.region->bottom(), 8)),
              absl::StatusCode::kInternal);
    EXPECT_EQ(code(node.access->read(peer, Node::at(node.region->bottom()), &local, 8)),
              absl::StatusCode::kInternal)
        << "read into memory that is not registered";
    EXPECT_EQ(code(node.access->read(peer, segment_address(2), node.region->bottom(), 8)),
              absl::StatusCode::kInternal)
        << "read from a segment that does not exist";
    EXPECT_TRUE(node.access->read(peer, Node::at(&node.tail.words), node.region->bottom(), 8).ok());
    node.fence();
  });
}

// A server refuses atomics on memory that it does not know, and continues.
TEST(QueuePairAccess, ServedAtomicsOnUnknownMemoryAreAnError) {
  for (const uint64_t address : {UINT64_MAX - 7, uint64_t{4096}, segment_address(2)}) {
    testing::run_test_processes(2, [address](Exchange& exchange) {
      const Node node(exchange, true);
      if (exchange.rank() == 1) {
        EXPECT_FALSE(node.access->fetch_add(0, address, 1).ok()) << std::hex << address;
      }
      node.fence();
      if (exchange.rank() == 0) {
        EXPECT_EQ(cariama::must(node.access->fetch_add(1, Node::at(&node.tail.counter), 1)), 0u);
      }
      node.fence();
    });
  }
}

}  // namespace
}  // namespace cariama::tasks
