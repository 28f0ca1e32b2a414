// Processes that have mapped the control segment of a device write the word of its robust lock.
// Operations towards the device end all the same, and no process crashes or hangs.
#include <linux/futex.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dtutils/internal/futex.h"
#include "dtutils/shm/address.h"
#include "dtutils/shm/link.h"
#include "tests/dtutils/shm/shm_node.h"
#include "tests/dtutils/testing/process_state.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama {
namespace {

using std::chrono::milliseconds;

uint32_t this_thread() { return static_cast<uint32_t>(syscall(SYS_gettid)); }

// A mapping of the control segment of another process's device, as each process has that connects
// to the device.
class ForgedLock {
 public:
  explicit ForgedLock(const std::string& address) {
    const std::optional<shm::Address> of = shm::decode(address);
    EXPECT_TRUE(of.has_value());
    link_ = must(shm::Link::connect(of->device, of->pid, milliseconds(20'000), "the victim"));
  }
  [[nodiscard]] std::atomic<uint32_t>& word() const {
    return shm::control_header(link_->control())->owner_lock;
  }
  // Writes the word, and wakes all threads that wait for a change.
  void set(uint32_t value) const {
    word().store(value);
    internal::futex_wake(&word());
  }

 private:
  std::shared_ptr<shm::Link> link_;
};

// Writes the word all the time, as if one thread after the other took the lock.
class ChangingLock {
 public:
  explicit ChangingLock(const ForgedLock& lock)
      : thread_([this, &lock] {
          for (uint32_t holder = 1; !stop_; holder = holder % 1000 + 1) lock.set(holder);
        }) {}
  ~ChangingLock() {
    stop_ = true;
    thread_.join();
  }
  ChangingLock(const ChangingLock&) = delete;
  ChangingLock& operator=(const ChangingLock&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Posts a send that waits until the peer posts a receive.
void post_waiting_send(const ShmNode& node) {
  ASSERT_TRUE(
      node.queue_pair->post_send({.id = 1, .opcode = Opcode::kSend, .flags = kSignaled}).ok());
}

void expect_end(const ShmNode& node, CompletionStatus status) {
  const std::vector<Completion> ended = node.poll_for(1);
  ASSERT_EQ(ended.size(), 1u) << "the operation waits for ever";
  EXPECT_EQ(ended[0].status, status);
}

// The kernel leaves a word alone that does not name the thread which ends.
TEST(ShmForgedLock, AWordThatNamesAnotherThreadHidesNoDeath) {
  for (const bool has_waiters : {false, true}) {
    RunOptions run;
    run.may_die = {1};
    testing::run_test_processes(
        2,
        [has_waiters](Exchange& exchange) {
          auto node = std::make_unique<ShmNode>();
          connect_to(exchange, *node->queue_pair, 1 - exchange.rank());
          if (exchange.rank() == 1) {
            put_plain(exchange, "pid", getpid());
            for (;;) pause();
          }
          const ForgedLock lock(must(exchange.get(1, "address 0", soon())));
          lock.set(this_thread() | (has_waiters ? FUTEX_WAITERS : 0));
          post_waiting_send(*node);
          ASSERT_EQ(kill(get_plain<int>(exchange, 1, "pid"), SIGKILL), 0);
          expect_end(*node, CompletionStatus::kPeerDied);
          node.reset();
        },
        run);
  }
}

// The queue pair of rank 1 is not connected, so only the lock and the connection of its device tell
// rank 0 that it is gone, and a posted receive has no time limit. The word never stays free for
// longer than an instant. The threads of rank 0 that watch the word end, although it changes all
// the time.
TEST(ShmForgedLock, AWordThatIsTakenAgainHidesNoClosedDevice) {
  testing::run_test_processes(2, [](Exchange& exchange) {
    auto node = std::make_unique<ShmNode>();
    if (exchange.rank() == 1) {
      must(exchange.put("address", node->queue_pair->address()));
      static_cast<void>(must(exchange.get(0, "taken", soon())));
      node.reset();
      must(exchange.fence(soon()));
      return;
    }
    const std::string address = must(exchange.get(1, "address", soon()));
    must(node->queue_pair->connect(address, {.peer = exchange.label(1)}));
    const ForgedLock lock(address);
    const ChangingLock changing(lock);
    ASSERT_TRUE(node->queue_pair->post_receive({.id = 1}).ok());
    must(exchange.put("taken", ""));
    expect_end(*node, CompletionStatus::kFlushed);
    node.reset();
    must(exchange.fence(soon()));
  });
}

// The lock is free, or its holder has died, while the device is open: a process that writes such a
// word ends the connection. The two processes continue, and the memory of both stays intact.
void forge_a_death(uint32_t word) {
  testing::run_test_processes(2, [word](Exchange& exchange) {
    auto node = std::make_unique<ShmNode>();
    node->memory.word(0) = 40;
    put_plain(exchange, "memory", node->region->locator());
    connect_to(exchange, *node->queue_pair, 1 - exchange.rank());
    if (exchange.rank() == 0) {
      const ForgedLock lock(must(exchange.get(1, "address 0", soon())));
      post_waiting_send(*node);
      lock.set(word);
      expect_end(*node, CompletionStatus::kPeerDied);
      EXPECT_EQ(node->queue_pair->state(), QueuePairState::kError);
      EXPECT_TRUE(absl::IsUnavailable(node->queue_pair->repair()));
    }
    must(exchange.fence(soon()));
    if (exchange.rank() == 1) {
      // Rank 0 has given this process up, and may reuse its memory.
      const auto memory = get_plain<RemoteMemoryLocator>(exchange, 0, "memory");
      const Segment word_of_rank_1 = node->segment(0, 8);
      EXPECT_NE(node->run(remote_request(Opcode::kWrite, word_of_rank_1, memory.slice(8, 8))),
                CompletionStatus::kSuccess);
      post_waiting_send(*node);
      expect_end(*node, CompletionStatus::kFlushed);
    }
    must(exchange.fence(soon()));
    EXPECT_EQ(node->memory.word(0), 40u);
    EXPECT_EQ(node->memory.word(1), 0u);
    // Other connections of the device are not affected.
    ShmNode other;
    const std::unique_ptr<QueuePair> near = node->make_queue_pair();
    connect_pair(*near, *other.queue_pair);
    const Segment segment = node->segment(0, 8);
    EXPECT_EQ(
        node->run(*near, remote_request(Opcode::kWrite, segment, other.region->locator(0, 8))),
        CompletionStatus::kSuccess);
    EXPECT_EQ(other.memory.word(0), 40u);
    must(exchange.fence(soon()));
  });
}

TEST(ShmForgedLock, AFreeWordEndsTheConnectionWithAnError) {
  forge_a_death(0);
  forge_a_death(FUTEX_WAITERS);
  forge_a_death(1 | FUTEX_OWNER_DIED);
}

// A third process takes the lock into its own list of robust locks, and dies with it: the kernel
// marks the word as that of a dead owner.
TEST(ShmForgedLock, AHolderThatDiesWithItEndsTheConnectionWithAnError) {
  RunOptions run;
  run.may_die = {2};
  testing::run_test_processes(
      3,
      [](Exchange& exchange) {
        ShmNode node;
        if (exchange.rank() != 2) connect_to(exchange, *node.queue_pair, 1 - exchange.rank());
        if (exchange.rank() == 2) {
          const ForgedLock lock(must(exchange.get(1, "address 0", soon())));
          must(exchange.put("mapped", ""));
          static_cast<void>(must(exchange.get(0, "posted", soon())));
          robust_list node_of_word{};
          robust_list_head list{};
          list.list.next = &node_of_word;
          node_of_word.next = &list.list;
          list.futex_offset =
              reinterpret_cast<char*>(&lock.word()) - reinterpret_cast<char*>(&node_of_word);
          ASSERT_EQ(syscall(SYS_set_robust_list, &list, sizeof list), 0);
          lock.word().store(this_thread() | FUTEX_WAITERS);
          kill(getpid(), SIGKILL);
        }
        if (exchange.rank() == 0) {
          static_cast<void>(must(exchange.get(2, "mapped", soon())));
          post_waiting_send(node);
          must(exchange.put("posted", ""));
          expect_end(node, CompletionStatus::kPeerDied);
          must(exchange.put("ended", ""));
        } else {
          static_cast<void>(must(exchange.get(0, "ended", soon())));  // this process lives
        }
      },
      run);
}

}  // namespace
}  // namespace cariama
