// The contract between processes. Data arrives intact. If a peer dies during a transfer, all
// operations towards it end with an error that names it, and no other connection is affected.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "dtutils/process_group.h"
#include "gtest/gtest.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama::testing {
namespace {

using std::chrono::milliseconds;

Exchange::Deadline soon() { return std::chrono::steady_clock::now() + kPatience; }

// The connections of one process to all others, with their completion queues.
class Member {
 public:
  Member(Exchange& exchange, const TransportCase& transport, bool with_channel = false)
      : exchange_(exchange),
        device_(must(open_case(transport, static_cast<uint64_t>(exchange.rank())))),
        domain_(must(device_->create_domain())),
        ends_(exchange.size()) {
    if (with_channel) channel_ = must(domain_->create_channel());
    for (int rank = 0; rank < exchange.size(); ++rank) {
      if (rank == exchange.rank()) continue;
      End& end = ends_[rank];
      end.sends = must(domain_->create_completion_queue({.depth = 1024, .channel = channel_}));
      end.receives = must(domain_->create_completion_queue({.depth = 1024, .channel = channel_}));
      end.pair = must(domain_->create_queue_pair({.send_completions = end.sends,
                                                  .receive_completions = end.receives,
                                                  .send_depth = 64,
                                                  .receive_depth = 64}));
      must(exchange.put("address for " + std::to_string(rank), end->address()));
    }
    const std::string mine = "address for " + std::to_string(exchange.rank());
    for (int rank = 0; rank < exchange.size(); ++rank) {
      if (rank == exchange.rank()) continue;
      ConnectOptions options;
      options.peer = exchange.label(rank);
      options.retry_count = 3;
      options.ack_timeout = milliseconds(20);
      must(ends_[rank]->connect(must(exchange.get(rank, mine, soon())), options));
    }
    must(exchange.fence(soon()));
  }

  // Publishes where `buffer` is. remote() returns the buffer of another process.
  void publish(const Buffer& buffer) {
    const RemoteMemoryLocator locator = buffer.locator();
    must(exchange_.put("buffer", {reinterpret_cast<const char*>(&locator), sizeof locator}));
  }
  [[nodiscard]] RemoteMemoryLocator remote(int rank) {
    const std::string bytes = must(exchange_.get(rank, "buffer", soon()));
    RemoteMemoryLocator locator;
    EXPECT_EQ(bytes.size(), sizeof locator);
    std::memcpy(&locator, bytes.data(), sizeof locator);
    return locator;
  }

  [[nodiscard]] End& end(int rank) { return ends_[rank]; }
  [[nodiscard]] ProtectionDomain& domain() { return *domain_; }
  [[nodiscard]] CompletionChannel& channel() { return *channel_; }

 private:
  Exchange& exchange_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<ProtectionDomain> domain_;
  std::shared_ptr<CompletionChannel> channel_;
  std::vector<End> ends_;
};

class TwoProcessContract : public ::testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override {
    const std::string reason = reason_to_skip(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  // Checks that `member` and its peer can still send to each other. Both processes must call it.
  static void expect_flow(Member& member, int peer, uint64_t id) {
    End& end = member.end(peer);
    Buffer out(member.domain(), 1000), in(member.domain(), 1000);
    out.fill(id);
    const Segments source = {out.segment()};
    post_receive(end, id, {in.segment()});
    post(end, to_peer(Opcode::kSend, id, source));
    EXPECT_TRUE(succeeded(take_one(*end.receives), id, CompletionKind::kReceive));
    EXPECT_TRUE(holds(in, 0, pattern(id, 1000)));
    EXPECT_TRUE(succeeded(take_one(*end.sends), id, CompletionKind::kSend));
  }
};

TEST_P(TwoProcessContract, EveryOperationMovesTheRightBytes) {
  run_test_processes(2, [&](Exchange& exchange) {
    Member member(exchange, GetParam());
    const int peer = 1 - exchange.rank();
    const uint64_t me = static_cast<uint64_t>(exchange.rank());
    End& end = member.end(peer);
    constexpr size_t kLargest = (2U << 20) + 3;
    Buffer mine(member.domain(), kLargest);   // the peer reads and writes this buffer
    Buffer local(member.domain(), kLargest);  // source and destination of this process's transfers
    member.publish(mine);
    const RemoteMemoryLocator theirs = member.remote(peer);
    uint64_t round = 0;
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{8}, size_t{64}, size_t{4097}, size_t{100'000}, kLargest}) {
      SCOPED_TRACE(bytes);
      ++round;
      const Segments segments = {local.segment(0, bytes)};
      const uint64_t seed = 2 * round + me;
      const uint64_t peer_seed = 2 * round + 1 - me;

      local.fill(seed);
      mine.clear();
      must(exchange.fence(soon()));
      post_receive(end, 1);
      post(end, to_remote(Opcode::kWriteImmediate, 2, segments, theirs.slice(0, bytes)));
      const Completion written = take_one(*end.receives);
      EXPECT_TRUE(succeeded(written, 1, CompletionKind::kReceiveImmediate));
      EXPECT_EQ(written.bytes, bytes);
      EXPECT_TRUE(holds(mine, 0, pattern(peer_seed, bytes)));
      EXPECT_TRUE(untouched(mine, bytes, kLargest - bytes));
      EXPECT_TRUE(succeeded(take_one(*end.sends), 2, CompletionKind::kWrite));

      local.clear();
      must(exchange.fence(soon()));
      post(end, to_remote(Opcode::kRead, 3, segments, theirs.slice(0, bytes)));
      EXPECT_TRUE(succeeded(take_one(*end.sends), 3, CompletionKind::kRead));
      // The data that this process had written to the peer.
      EXPECT_TRUE(holds(local, 0, pattern(seed, bytes)));
      EXPECT_TRUE(untouched(local, bytes, kLargest - bytes));

      must(exchange.fence(soon()));
      mine.clear();
      post_receive(end, 4, {mine.segment()});
      must(exchange.fence(soon()));
      post(end, to_peer(Opcode::kSend, 5, segments));
      const Completion received = take_one(*end.receives);
      EXPECT_TRUE(succeeded(received, 4, CompletionKind::kReceive));
      EXPECT_EQ(received.bytes, bytes);
      EXPECT_TRUE(holds(mine, 0, pattern(peer_seed, bytes)));
      EXPECT_TRUE(untouched(mine, bytes, kLargest - bytes));
      EXPECT_TRUE(succeeded(take_one(*end.sends), 5, CompletionKind::kSend));
    }
  });
}

// All other processes add to words in the memory of rank 0.
TEST_P(TwoProcessContract, AtomicsOfSeveralProcessesLoseNothing) {
  constexpr int kProcesses = 3;
  constexpr uint64_t kRounds = 200;
  run_test_processes(kProcesses, [&](Exchange& exchange) {
    Member member(exchange, GetParam());
    Buffer words(member.domain(), 16);
    words.set_word(0, 0);
    words.set_word(8, 0);
    member.publish(words);
    must(exchange.fence(soon()));
    if (exchange.rank() != 0) {
      End& end = member.end(0);
      const RemoteMemoryLocator remote = member.remote(0);
      Buffer result(member.domain(), 8);
      const Segments into = {result.segment()};
      uint64_t seen = 0;
      for (uint64_t round = 0; round < kRounds; ++round) {
        post(end, fetch_add(round, into, remote.slice(0, 8), 5));
        ASSERT_TRUE(succeeded(take_one(*end.sends), round, CompletionKind::kFetchAdd));
        while (true) {
          post(end, compare_swap(round, into, remote.slice(8, 8), seen, seen + 1));
          ASSERT_TRUE(succeeded(take_one(*end.sends), round, CompletionKind::kCompareSwap));
          if (result.word(0) == seen) break;
          seen = result.word(0);
        }
        ++seen;
      }
    }
    must(exchange.fence(soon()));
    if (exchange.rank() == 0) {
      EXPECT_EQ(words.word(0), 5 * (kProcesses - 1) * kRounds);
      EXPECT_EQ(words.word(8), (kProcesses - 1) * kRounds);
    }
    must(exchange.fence(soon()));
  });
}

// Rank 0 streams to rank 1, which is killed meanwhile. Rank 2 checks that other connections still
// work.
TEST_P(TwoProcessContract, DeathInTheMiddleOfATransferEndsItWithAnError) {
  run_test_processes(
      3,
      [&](Exchange& exchange) {
        Member member(exchange, GetParam());
        constexpr size_t kBytes = 50'000;
        Buffer buffer(member.domain(), kBytes);
        member.publish(buffer);
        must(exchange.fence(soon()));

        if (exchange.rank() == 1) {
          End& end = member.end(0);
          for (uint64_t id = 0; id < 10; ++id) post_receive(end, id);
          for (uint64_t id = 0; id < 10; ++id) {
            EXPECT_TRUE(succeeded(take_one(*end.receives), id, CompletionKind::kReceiveImmediate));
          }
          kill(getpid(), SIGKILL);
        }
        if (exchange.rank() == 2) {
          expect_flow(member, 0, 1);
          EXPECT_TRUE(exchange.get(0, "survived", soon()).ok());
          expect_flow(member, 0, 2);
          return;
        }

        End& victim = member.end(1);
        expect_flow(member, 2, 1);
        const RemoteMemoryLocator remote = member.remote(1);
        Buffer local(member.domain(), kBytes);
        const Segments all = {local.segment()};
        const Segments word = {local.segment(0, 8)};
        post_receive(victim, 7000);
        uint64_t next = 0;
        uint64_t ended = 0;
        const auto request = [&](uint64_t id) {
          switch (id % 4) {
            case 0:
              return to_remote(Opcode::kWriteImmediate, id, all, remote);
            case 1:
              return to_remote(Opcode::kRead, id, all, remote);
            case 2:
              return fetch_add(id, word, remote.slice(8, 8), 1);
            default:
              return to_remote(Opcode::kWrite, id, all, remote);
          }
        };
        // Posts until an operation fails, which must happen, since the peer dies.
        Completion first;
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        do {
          const PostResult result = victim->post_send(request(next));
          if (result.ok()) ++next;
          first = {};
          first.status = CompletionStatus::kSuccess;
          if (victim.sends->poll(std::span(&first, 1)) == 1) {
            EXPECT_EQ(first.id, ended++);
          }
        } while (first.status == CompletionStatus::kSuccess &&
                 std::chrono::steady_clock::now() < deadline);
        const absl::Status why = to_status(first, victim->peer());
        // The kernel may destroy the victim's registrations before its queue pairs. A WRITE that
        // soft-RoCE handles in between completes with a remote access error.
        if (GetParam().base != Transport::kVerbs ||
            first.status != CompletionStatus::kRemoteAccess) {
          EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable) << why;
        }
        EXPECT_NE(std::string(why.message()).find("the victim"), std::string::npos) << why;

        // Every outstanding request ends, once and in order. The receive ends, too, and so does a
        // request that is posted now.
        while (ended < next) {
          const Completion completion = take_one(*victim.sends);
          ASSERT_EQ(completion.id, ended++);
          EXPECT_EQ(to_status(completion, "x").code(), absl::StatusCode::kUnavailable);
        }
        const Completion receive = take_one(*victim.receives);
        EXPECT_EQ(receive.id, 7000U);
        EXPECT_EQ(to_status(receive, "x").code(), absl::StatusCode::kUnavailable);
        EXPECT_EQ(victim->state(), QueuePairState::kError);
        post(victim, request(next));
        const Completion late = take_one(*victim.sends);
        EXPECT_EQ(late.id, next);
        EXPECT_EQ(to_status(late, "x").code(), absl::StatusCode::kUnavailable);
        EXPECT_TRUE(quiet(*victim.sends));

        // A dead peer cannot be repaired. If repair() cannot detect the death, the next operation
        // fails.
        const absl::Status repaired = victim->repair();
        if (repaired.ok()) {
          post(victim, request(3));
          EXPECT_EQ(to_status(take_one(*victim.sends), "x").code(), absl::StatusCode::kUnavailable);
        } else {
          EXPECT_EQ(repaired.code(), absl::StatusCode::kUnavailable) << repaired;
        }
        must(exchange.put("survived", ""));
        expect_flow(member, 2, 2);
      },
      {.labels = {"the sender", "the victim", "the bystander"}, .may_die = {1}});
}

// Rank 0 sleeps for a message that never arrives. On transports that do not report the death, it is
// detected by the zero-byte WRITEs that probe an idle connection.
TEST_P(TwoProcessContract, DeathIsNoticedByASleeper) {
  run_test_processes(2,
                     [&](Exchange& exchange) {
                       Member member(exchange, GetParam(), /*with_channel=*/true);
                       must(exchange.fence(soon()));
                       if (exchange.rank() == 1) kill(getpid(), SIGKILL);

                       End& victim = member.end(1);
                       post_receive(victim, 1);
                       const Segments none;
                       Completion completion;
                       completion.status = CompletionStatus::kSuccess;
                       const auto deadline = std::chrono::steady_clock::now() + kPatience;
                       while (std::chrono::steady_clock::now() < deadline) {
                         ASSERT_TRUE(victim.receives->arm().ok());
                         if (victim.receives->poll(std::span(&completion, 1)) == 1) break;
                         if (!member.channel().wait(milliseconds(50)) &&
                             victim->state() == QueuePairState::kConnected) {
                           post(victim, to_remote(Opcode::kWrite, 2, none, {}));
                         }
                         Completion probe;
                         static_cast<void>(victim.sends->poll(std::span(&probe, 1)));
                       }
                       EXPECT_EQ(completion.id, 1U);
                       const absl::Status why = to_status(completion, victim->peer());
                       EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable) << why;
                       EXPECT_NE(std::string(why.message()).find("the victim"), std::string::npos)
                           << why;
                     },
                     {.labels = {"the sleeper", "the victim"}, .may_die = {1}});
}

// A process destroys its device in an orderly way while its peer still sends.
TEST_P(TwoProcessContract, AnOrderlyEndIsNoticedToo) {
  run_test_processes(2, [&](Exchange& exchange) {
    {
      Member member(exchange, GetParam());
      Buffer buffer(member.domain(), 64);
      member.publish(buffer);
      must(exchange.fence(soon()));
      if (exchange.rank() == 0) {
        End& end = member.end(1);
        const RemoteMemoryLocator remote = member.remote(1);
        const Segments source = {buffer.segment()};
        Completion completion;
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        do {
          post(end, to_remote(Opcode::kWrite, 1, source, remote));
          completion = take_one(*end.sends);
        } while (completion.status == CompletionStatus::kSuccess &&
                 std::chrono::steady_clock::now() < deadline);
        EXPECT_NE(completion.status, CompletionStatus::kSuccess);
        EXPECT_FALSE(to_status(completion, end->peer()).ok());
        must(exchange.put("noticed", ""));
        return;
      }
    }
    // The device of rank 1 is destroyed, but its process continues.
    EXPECT_TRUE(exchange.get(0, "noticed", soon()).ok());
  });
}

INSTANTIATE_TEST_SUITE_P(On, TwoProcessContract, ::testing::ValuesIn(every_process_transport()),
                         transport_of);

}  // namespace
}  // namespace cariama::testing
