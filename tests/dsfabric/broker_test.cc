// Requests between processes before they are connected.
#include "dsfabric/peers/broker.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/bootstrap/sockets.h"
#include "dsfabric/peers/broker_wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/dtutils/testing/status_text.h"

namespace cariama {
namespace {

using testing::message_of;
using testing::soon;

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)
using internal::Broker;
using internal::BrokerAddress;
using internal::BrokerFrame;
using internal::make_socket_broker;
using internal::SocketAddress;
using ::testing::HasSubstr;
using testing::run_test_processes;

// A job over the exchange of the test's processes.
class TestBootstrap final : public Bootstrap {
 public:
  explicit TestBootstrap(Exchange& exchange, uint8_t secret = 1) : exchange_(exchange) {
    secret_.fill(secret);
  }
  [[nodiscard]] int rank() const override { return exchange_.rank(); }
  [[nodiscard]] int size() const override { return exchange_.size(); }
  [[nodiscard]] const std::string& label(int rank) const override { return exchange_.label(rank); }
  [[nodiscard]] absl::Status put(std::string_view key, std::string_view value) override {
    return exchange_.put(key, value);
  }
  [[nodiscard]] absl::StatusOr<std::string> get(int rank, std::string_view key,
                                                Deadline deadline) override {
    absl::StatusOr<std::string> value = exchange_.get(rank, key, deadline);
    if (value.ok() && key == "cariama/broker") heard[rank] = *value;
    return value;
  }
  [[nodiscard]] absl::Status fence(Deadline deadline) override { return exchange_.fence(deadline); }
  [[nodiscard]] BootstrapKind kind() const override { return BootstrapKind::kLocal; }
  [[nodiscard]] const JobSecret& secret() const override { return secret_; }
  [[nodiscard]] std::optional<uint32_t> threads() const override { return std::nullopt; }
  absl::Status finalize(Deadline) override { return absl::OkStatus(); }

  std::map<int, std::string> heard;  // the published addresses of all brokers

 private:
  Exchange& exchange_;
  JobSecret secret_;
};

Broker::Handler echo(int own_rank) {
  return [own_rank](int rank, std::string_view request) -> absl::StatusOr<std::string> {
    return std::to_string(rank) + ">" + std::to_string(own_rank) + ":" + std::string(request);
  };
}

TEST(Broker, ManyConcurrentRequestsFromAllThreadsAndProcesses) {
  run_test_processes(3, [](Exchange& exchange) {
    TestBootstrap job(exchange);
    auto broker = make_socket_broker(job, echo(job.rank()), soon());
    ASSERT_TRUE(broker.ok()) << broker.status();
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 10; ++i) {
          for (int rank = 0; rank < job.size(); ++rank) {  // including this rank
            const std::string text = std::to_string(thread * 10 + i);
            auto answer = (*broker)->request(rank, text, soon());
            ASSERT_TRUE(answer.ok()) << answer.status();
            EXPECT_EQ(*answer,
                      std::to_string(job.rank()) + ">" + std::to_string(rank) + ":" + text);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(job.fence(soon()).ok());  // no request goes to a broker that has been destroyed
  });
}

TEST(Broker, GoesOnAfterARequestForWhichThereWasNoMemory) {
  run_test_processes(1, [](Exchange& exchange) {
    TestBootstrap job(exchange);
    std::atomic<bool> throws{true};
    auto broker = make_socket_broker(
        job,
        [&throws](int, std::string_view request) -> absl::StatusOr<std::string> {
          if (throws.exchange(false)) throw std::bad_alloc();
          return std::string(request);
        },
        soon());
    ASSERT_TRUE(broker.ok()) << broker.status();
    const auto refused = (*broker)->request(0, "first", soon());
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(message_of(refused.status()), HasSubstr("raise ulimit -v"));
    const auto answer = (*broker)->request(0, "second", soon());
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(*answer, "second");
  });
}

TEST(Broker, CarriesUpToOneMebibyteEitherWayAndRefusesMore) {
  run_test_processes(1, [](Exchange& exchange) {
    TestBootstrap job(exchange);
    auto broker = make_socket_broker(
        job,
        [](int, std::string_view request) -> absl::StatusOr<std::string> {
          return request == "more" ? std::string(BrokerFrame::kMaxBytes + 1, 'm')
                                   : std::string(request);
        },
        soon());
    ASSERT_TRUE(broker.ok()) << broker.status();
    std::string large(BrokerFrame::kMaxBytes, '\0');
    for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 31 >> 3);
    auto answer = (*broker)->request(0, large, soon());
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(*answer == large);
    EXPECT_EQ((*broker)->request(0, "", soon()).value_or("none"), "");
    EXPECT_EQ((*broker)->request(0, large + "x", soon()).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ((*broker)->request(0, "more", soon()).status().code(), absl::StatusCode::kInternal);
    EXPECT_EQ((*broker)->request(1, "", soon()).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ((*broker)->request(-1, "", soon()).status().code(),
              absl::StatusCode::kInvalidArgument);
  });
}

TEST(Broker, AHandlersErrorReachesTheRequesterWithItsCodeAndText) {
  run_test_processes(2, [](Exchange& exchange) {
    TestBootstrap job(exchange);
    auto broker = make_socket_broker(
        job,
        [](int, std::string_view) -> absl::StatusOr<std::string> {
          return absl::FailedPreconditionError("another build: start the same executable");
        },
        soon());
    ASSERT_TRUE(broker.ok()) << broker.status();
    auto answer = (*broker)->request(1 - job.rank(), "hello", soon());
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(message_of(answer.status()), "another build: start the same executable");
    EXPECT_TRUE(job.fence(soon()).ok());
  });
}

TEST(Broker, AnotherSecretIsRefusedByBothEnds) {
  run_test_processes(2, [](Exchange& exchange) {
    TestBootstrap job(exchange, static_cast<uint8_t>(exchange.rank()));
    std::atomic<int> handled{0};
    auto broker = make_socket_broker(
        job,
        [&](int, std::string_view) -> absl::StatusOr<std::string> {
          ++handled;
          return "";
        },
        soon());
    ASSERT_TRUE(broker.ok()) << broker.status();
    auto answer = (*broker)->request(1 - job.rank(), "hello", soon());
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kPermissionDenied) << answer.status();
    EXPECT_THAT(message_of(answer.status()), HasSubstr("has another secret"));
    EXPECT_TRUE(job.fence(soon()).ok());
    EXPECT_EQ(handled, 0);
  });
}

TEST(Broker, ARequestToAProcessThatDiesEndsWithUnavailable) {
  RunOptions options;
  options.may_die = {1};
  run_test_processes(
      2,
      [](Exchange& exchange) {
        TestBootstrap job(exchange);
        auto broker = make_socket_broker(
            job,
            [](int, std::string_view) -> absl::StatusOr<std::string> {
              raise(SIGKILL);
              return "";
            },
            soon());
        ASSERT_TRUE(broker.ok()) << broker.status();
        if (job.rank() == 1) {
          static_cast<void>(job.get(0, "never", soon()));
          return;
        }
        auto answer = (*broker)->request(1, "die", soon());
        EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable) << answer.status();
        // The process has ended now, and its socket is closed.
        answer = (*broker)->request(1, "still there?", soon());
        EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable) << answer.status();
        EXPECT_THAT(message_of(answer.status()), HasSubstr("rank 1"));
      },
      options);
}

TEST(Broker, ARequestEndsAtItsDeadlineAndTheBrokerServesTheNext) {
  run_test_processes(2, [](Exchange& exchange) {
    TestBootstrap job(exchange);
    std::atomic<bool> farewell{false};
    auto broker = make_socket_broker(
        job,
        [&](int, std::string_view request) -> absl::StatusOr<std::string> {
          // Blocks until the deadline of the requester has passed. The handler is the only user of
          // the exchange at this time.
          if (request == "slow") static_cast<void>(exchange.get(0, "given up", soon()));
          if (request == "farewell") farewell = true;
          return "done";
        },
        soon());
    ASSERT_TRUE(broker.ok()) << broker.status();
    if (job.rank() == 0) {
      auto answer = (*broker)->request(1, "slow", deadline_after(50ms));
      EXPECT_EQ(answer.status().code(), absl::StatusCode::kDeadlineExceeded) << answer.status();
      EXPECT_THAT(message_of(answer.status()), HasSubstr("rank 1 did not answer in time"));
      ASSERT_TRUE(job.put("given up", "").ok());
      EXPECT_EQ((*broker)->request(1, "quick", soon()).value_or("none"), "done");
      static_cast<void>((*broker)->request(1, "farewell", soon()));
    } else {
      EXPECT_TRUE(wait_until([&] { return farewell.load(); }, soon()));
    }
  });
}

TEST(Broker, OutsidersGetNoAnswerAndPeersAreServed) {
  run_test_processes(2, [](Exchange& exchange) {
    TestBootstrap job(exchange);
    setenv("CARIAMA_LISTEN", "127.0.0.0/8", 1);
    auto broker = make_socket_broker(job, echo(job.rank()), soon());
    ASSERT_TRUE(broker.ok()) << broker.status();
    const int peer = 1 - job.rank();
    auto address = internal::decode_broker_address(job.heard[peer]);
    ASSERT_TRUE(address.ok() && address->remote.has_value()) << address.status();
    for (const SocketAddress& place : {address->local, *address->remote}) {
      // More connections than the broker serves at a time; most of them send nothing.
      std::vector<FileDescriptor> unauthenticated;
      for (int i = 0; i < 200; ++i) {
        auto socket = internal::connect_to(place, "the broker", soon());
        ASSERT_TRUE(socket.ok()) << socket.status();
        if (i % 10 == 0) {
          static_cast<void>(internal::send_exactly(
              socket->get(), std::string(200, static_cast<char>(i)), "the broker", soon()));
        }
        unauthenticated.push_back(*std::move(socket));
      }
      auto socket = internal::connect_to(place, "the broker", soon());
      ASSERT_TRUE(socket.ok()) << socket.status();
      const absl::Status proved =
          internal::prove_to_server(socket->get(), internal::HandshakeService::kBroker, job.rank(),
                                    2, peer, job.secret(), "the broker", soon());
      EXPECT_TRUE(proved.ok()) << proved;
      EXPECT_EQ((*broker)->request(peer, "x", soon()).value_or("none").substr(4), "x");
    }
    EXPECT_TRUE(job.fence(soon()).ok());
  });
}

// A process of another user of the host connects repeatedly, without a pause.
TEST(Broker, AFloodOfAnotherUserDoesNotKeepPeersOut) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to change the user id";
  constexpr uid_t kNobody = 65534;
  run_test_processes(2, [&](Exchange& exchange) {
    TestBootstrap job(exchange);
    auto broker = make_socket_broker(job, echo(job.rank()), soon());
    ASSERT_TRUE(broker.ok()) << broker.status();
    if (job.rank() == 0) {
      ASSERT_TRUE(exchange.get(1, "flooding", soon()).ok());
      for (int i = 0; i < 20; ++i) {
        auto answer = (*broker)->request(0, "x", soon());
        ASSERT_TRUE(answer.ok()) << answer.status();
        EXPECT_EQ(*answer, "0>0:x");
      }
      ASSERT_TRUE(exchange.put("done", "").ok());
      ASSERT_TRUE(exchange.fence(soon()).ok());
      return;
    }
    auto address = internal::decode_broker_address(job.heard[0]);
    ASSERT_TRUE(address.ok()) << address.status();
    ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
    // The broker closes a connection of this user before it sends anything.
    auto socket = internal::connect_to(address->local, "the broker", soon());
    ASSERT_TRUE(socket.ok()) << socket.status();
    char byte = 0;
    EXPECT_EQ(internal::receive_exactly(socket->get(), &byte, 1, "it", soon()).code(),
              absl::StatusCode::kUnavailable);
    std::atomic<bool> finished{false};
    std::thread flood([&] {
      while (!finished.load()) {
        const FileDescriptor one(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        static_cast<void>(connect(one.get(), address->local.get(), address->local.length()));
      }
    });
    EXPECT_TRUE(exchange.put("flooding", "").ok());
    EXPECT_TRUE(exchange.get(0, "done", soon()).ok());
    finished = true;
    flood.join();
    EXPECT_TRUE(exchange.fence(soon()).ok());
  });
}

TEST(Broker, APeerThatSendsInvalidBytesIsDisconnected) {
  run_test_processes(1, [](Exchange& exchange) {
    TestBootstrap job(exchange);
    auto broker = make_socket_broker(job, echo(0), soon());
    ASSERT_TRUE(broker.ok()) << broker.status();
    auto address = internal::decode_broker_address(job.heard[0]);
    ASSERT_TRUE(address.ok()) << address.status();
    for (const std::string& nonsense :
         {std::string(64, '\xff'), std::string("\x01\x00\x10\x00\x00\x00\x00\x00", 8)}) {
      auto socket = internal::connect_to(address->local, "the broker", soon());
      ASSERT_TRUE(socket.ok()) << socket.status();
      ASSERT_TRUE(internal::prove_to_server(socket->get(), internal::HandshakeService::kBroker, 0,
                                            1, 0, job.secret(), "the broker", soon())
                      .ok());
      ASSERT_TRUE(internal::send_exactly(socket->get(), nonsense, "the broker", soon()).ok());
      char byte = 0;
      EXPECT_EQ(internal::receive_exactly(socket->get(), &byte, 1, "it", soon()).code(),
                absl::StatusCode::kUnavailable);
    }
    EXPECT_EQ((*broker)->request(0, "x", soon()).value_or("none"), "0>0:x");
  });
}

TEST(Broker, ListensOnTcpOnlyIfConfigured) {
  run_test_processes(1, [](Exchange& exchange) {
    TestBootstrap job(exchange);
    {
      auto broker = make_socket_broker(job, echo(0), soon());
      ASSERT_TRUE(broker.ok()) << broker.status();
      EXPECT_FALSE(internal::decode_broker_address(job.heard[0])->remote.has_value());
    }
    setenv("CARIAMA_LISTEN", "127.0.0.0/8", 1);
    auto broker = make_socket_broker(job, echo(0), soon());
    ASSERT_TRUE(broker.ok()) << broker.status();
    auto address = internal::decode_broker_address(job.heard[0]);
    ASSERT_TRUE(address.ok() && address->remote.has_value());
    auto socket = internal::connect_to(*address->remote, "the broker", soon());
    ASSERT_TRUE(socket.ok()) << socket.status();
    EXPECT_TRUE(internal::prove_to_server(socket->get(), internal::HandshakeService::kBroker, 0, 1,
                                          0, job.secret(), "the broker", soon())
                    .ok());
    setenv("CARIAMA_LISTEN", "nowhere0", 1);
    const auto refused = make_socket_broker(job, echo(0), soon());
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(message_of(refused.status()),
                HasSubstr("CARIAMA_LISTEN: this host has no address"));
    unsetenv("CARIAMA_LISTEN");
  });
}

// A process of "another host", which shares no local socket with rank 0 and does not listen on TCP.
TEST(Broker, AHostThatCannotBeReachedIsNamedWithTheRemedy) {
  run_test_processes(2, [](Exchange& exchange) {
    TestBootstrap job(exchange);
    if (job.rank() == 1) {
      BrokerAddress elsewhere;
      elsewhere.network = "elsewhere";
      elsewhere.local = SocketAddress::local("cariama-elsewhere");
      ASSERT_TRUE(job.put("cariama/broker", encode(elsewhere)).ok());
      return;
    }
    const auto broker = make_socket_broker(job, echo(0), soon());
    EXPECT_EQ(broker.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(message_of(broker.status()), HasSubstr("rank 1 is on another host"));
    EXPECT_THAT(message_of(broker.status()), HasSubstr("set CARIAMA_LISTEN"));
  });
}

TEST(BrokerAddress, SurvivesItsText) {
  for (const bool remote : {false, true}) {
    BrokerAddress address;
    address.network = "boot/net";
    address.local = SocketAddress::local("cariama-0123");
    if (remote) address.remote = *SocketAddress::parse("[fe80::1]:4711");
    auto back = internal::decode_broker_address(encode(address));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(encode(*back), encode(address));
  }
  for (const std::string text :
       {"", "a", "a\n@b", "a\nb\n", "a\n127.0.0.1:1\n", "a\n@b\n@c", "a\n@b\nc", "a\n\n"}) {
    EXPECT_EQ(internal::decode_broker_address(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(BrokerFrameDecoder, TakesAFrameInPiecesOfAnySize) {
  const BrokerFrame frame{.code = 5, .bytes = std::string(1000, 'x')};
  const std::string bytes = encode(frame);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{8}, size_t{2000}}) {
    internal::BrokerFrameDecoder decoder;
    for (size_t at = 0; at < bytes.size();) {
      ASSERT_NE(decoder.wanted(), 0u);
      const size_t count = std::min({piece, decoder.wanted(), bytes.size() - at});
      ASSERT_TRUE(decoder.take(std::string_view(bytes).substr(at, count)).ok());
      at += count;
    }
    ASSERT_TRUE(decoder.whole());
    EXPECT_EQ(decoder.frame(), frame);
    EXPECT_FALSE(decoder.take("x").ok());  // the frame is complete: further bytes are an error
  }
}

TEST(BrokerFrameDecoder, RefusesInvalidFrames) {
  const auto refuses = [](const std::string& header) {
    internal::BrokerFrameDecoder decoder;
    const absl::Status status = decoder.take(header);
    return status.code() == absl::StatusCode::kInvalidArgument && !decoder.whole() &&
           decoder.take("").code() == absl::StatusCode::kInvalidArgument;
  };
  using namespace std::string_literals;  // NOLINT(google-build-using-namespace)
  EXPECT_TRUE(refuses("\x01\x00\x10\x00\x00\x00\x00\x00"s));  // one byte too long
  EXPECT_TRUE(refuses("\xff\xff\xff\xff\x00\x00\x00\x00"s));
  EXPECT_TRUE(refuses("\x00\x00\x00\x00\x11\x00\x00\x00"s));  // code 17
  EXPECT_TRUE(refuses("\x00\x00\x00\x00\x00\x00\x00\x01"s));  // padding
  EXPECT_FALSE(refuses("\x00\x00\x10\x00\x10\x00\x00\x00"s));
}

}  // namespace
}  // namespace cariama
