// A server of an exchange that finds no memory for a message: it closes a connection, and serves
// the other processes. No process waits for an answer that does not come.
#include "dtutils/internal/exchange_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtutils/internal/exchange_message.h"
#include "dtutils/internal/file_descriptor.h"
#include "gtest/gtest.h"
#include "tests/dtutils/testing/fail_allocation.h"

namespace cariama {
namespace {

using internal::ExchangeDecoder;
using internal::ExchangeMessage;
using internal::ExchangeType;

// The other end of a connection.
struct Member {
  FileDescriptor socket;
  ExchangeDecoder decoder;
  std::vector<ExchangeMessage> answers;
  bool is_closed = false;

  void send(const ExchangeMessage& message) const {
    std::string bytes;
    encode(message, bytes);
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void put(const std::string& key, const std::string& value) const {
    ExchangeMessage message;
    message.type = ExchangeType::kPut;
    message.key = key;
    message.value = value;
    send(message);
  }
  void request(ExchangeType type, const std::string& key) const {
    ExchangeMessage message;
    message.type = type;
    message.request = 7;
    message.key = key;
    send(message);
  }
  void receive() {
    std::array<char, 16384> chunk{};
    for (;;) {
      const ssize_t count = recv(socket.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
      if (count < 0) return;
      if (count == 0) {
        is_closed = true;
        return;
      }
      decoder.append({chunk.data(), static_cast<size_t>(count)});
      for (;;) {
        auto next = decoder.next();
        ASSERT_TRUE(next.ok()) << next.status();
        if (!next->has_value()) break;
        answers.push_back(**std::move(next));
      }
    }
  }
  [[nodiscard]] size_t count(ExchangeType type) const {
    size_t count = 0;
    for (const ExchangeMessage& answer : answers) count += answer.type == type ? 1 : 0;
    return count;
  }
};

class ThreeMembers {
 public:
  ThreeMembers()
      : server_({"rank 0", "rank 1", "rank 2"}, [this](int rank, const absl::Status& why) {
          server_.rank_ended(rank, "was disconnected");
          EXPECT_EQ(why.code(),
                    rank == leaving ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted)
              << why;
          ++ended;
        }) {
    for (int rank = 0; rank < 3; ++rank) {
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      server_.connect(rank, ends[0]);
      members[static_cast<size_t>(rank)].socket = FileDescriptor(ends[1]);
    }
  }

  // Serves what is readable, while an allocation fails. Returns true if all allocations succeeded.
  bool serve(std::optional<size_t> skips = std::nullopt) {
    std::vector<pollfd> entries;
    server_.append_polled(entries);
    EXPECT_GE(poll(entries.data(), entries.size(), 0), 0);
    bool all_succeeded = true;
    if (skips.has_value()) {
      const testing::FailAllocation fail(1, *skips);
      server_.serve(entries);
      all_succeeded = testing::failing_bytes != 0;
    } else {
      server_.serve(entries);
    }
    while (server_.has_unreported()) server_.serve({});
    for (Member& member : members) member.receive();
    return all_succeeded;
  }

  std::array<Member, 3> members;
  uint32_t ended = 0;
  int leaving = -1;  // the member that closes its connection

 private:
  ExchangeServer server_;
};

// Two processes wait for the last value, or in a fence. Each allocation for the message of the last
// process fails once.
void fail_each_allocation(ExchangeType type) {
  const ExchangeType answer =
      type == ExchangeType::kFence ? ExchangeType::kFenceDone : ExchangeType::kValue;
  const std::string long_value(3000, 'v');
  bool all_succeeded = false;
  for (size_t skips = 0; skips < 100 && !all_succeeded; ++skips) {
    SCOPED_TRACE(skips);
    ThreeMembers job;
    for (size_t rank = 0; rank < 2; ++rank) {
      job.members[rank].put("key", long_value);
      job.members[rank].request(type, type == ExchangeType::kFence ? "" : "key");
    }
    static_cast<void>(job.serve());
    EXPECT_EQ(job.ended, 0u);
    if (type == ExchangeType::kFence) {
      job.members[2].request(type, "");
    } else {
      job.members[2].put("key", long_value);
    }
    all_succeeded = job.serve(skips);
    if (all_succeeded) {
      EXPECT_EQ(job.ended, 0u);
    }
    for (size_t rank = 0; rank < 2; ++rank) {
      const Member& member = job.members[rank];
      const size_t wanted = type == ExchangeType::kFence ? 1 : 3;
      EXPECT_TRUE(member.is_closed || member.count(answer) == wanted ||
                  member.count(ExchangeType::kError) == 1)
          << rank << " got " << member.answers.size() << " messages";
    }
    // The processes that are still connected are served.
    for (Member& member : job.members) {
      if (member.is_closed) continue;
      member.answers.clear();
      ExchangeMessage get;
      get.type = ExchangeType::kGet;
      get.request = 8;
      get.rank = 0;
      get.key = "key";
      member.send(get);
    }
    static_cast<void>(job.serve());
    for (const Member& member : job.members) {
      EXPECT_TRUE(member.is_closed || member.count(ExchangeType::kValue) == 1);
    }
  }
  EXPECT_TRUE(all_succeeded);
}

// Two processes wait for a value of the last one, which ends. Its key is longer than a std::string
// contains without memory of its own.
TEST(ExchangeServerWithoutMemory, AnswersThoseThatWaitForAProcessThatEnds) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  bool all_succeeded = false;
  for (size_t skips = 0; skips < 100 && !all_succeeded; ++skips) {
    SCOPED_TRACE(skips);
    ThreeMembers job;
    for (size_t rank = 0; rank < 2; ++rank) {
      ExchangeMessage get;
      get.type = ExchangeType::kGet;
      get.request = 7;
      get.rank = 2;
      get.key = std::string(100, 'k');
      job.members[rank].send(get);
    }
    static_cast<void>(job.serve());
    job.leaving = 2;
    job.members[2].socket.reset();
    all_succeeded = job.serve(skips);
    for (size_t rank = 0; rank < 2; ++rank) {
      const Member& member = job.members[rank];
      EXPECT_TRUE(member.is_closed || member.count(ExchangeType::kError) == 1)
          << rank << " got " << member.answers.size() << " messages";
    }
  }
  EXPECT_TRUE(all_succeeded);
}

TEST(ExchangeServerWithoutMemory, AnswersAGetOfAllOrEndsTheConnection) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  fail_each_allocation(ExchangeType::kGetAll);
}

TEST(ExchangeServerWithoutMemory, AnswersAFenceOrEndsTheConnection) {
  CARIAMA_SKIP_WITHOUT_FAILING_ALLOCATIONS();
  fail_each_allocation(ExchangeType::kFence);
}

}  // namespace
}  // namespace cariama
