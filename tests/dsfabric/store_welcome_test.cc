// The TCP store and a process that has proved its rank, but has not read that it is accepted.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/bootstrap/sockets.h"
#include "dsfabric/bootstrap/store_bootstrap.h"
#include "dsfabric/bootstrap/tcp_store.h"
#include "dtutils/wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/status_text.h"

namespace {

std::atomic<bool> verdicts_wait{false};  // the sockets have no room for a verdict
std::atomic<int> waiting_verdicts{0};    // attempts to send one

}  // namespace

// The sanitizers replace send() themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The library calls this function instead of that of the C library.
extern "C" __attribute__((visibility("default"))) ssize_t send(int socket, const void* bytes,
                                                               size_t count, int flags) {
  constexpr size_t kVerdictBytes = 1 + sizeof(cariama::JobSecret);
  if (count == kVerdictBytes && verdicts_wait.load()) {
    waiting_verdicts.fetch_add(1);
    errno = EAGAIN;
    return -1;
  }
  using Send = ssize_t (*)(int, const void*, size_t, int);
  static const auto original = reinterpret_cast<Send>(dlsym(RTLD_NEXT, "send"));
  return original(socket, bytes, count, flags);
}
#endif

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

// A store for two processes.
class StoreWelcomeTest : public ::testing::Test {
 protected:
  StoreWelcomeTest()
      : store_(internal::TcpStore::start(*internal::SocketAddress::parse("127.0.0.1:0"), 2, key_)) {
  }
  ~StoreWelcomeTest() override { verdicts_wait = false; }

  FileDescriptor dial() {
    auto socket = internal::connect_to((*store_)->address(), "the store", soon());
    EXPECT_TRUE(socket.ok()) << socket.status();
    return socket.ok() ? *std::move(socket) : FileDescriptor();
  }
  // Proves over the socket that the process is rank 1, and does not read the verdict.
  void prove(const FileDescriptor& socket) {
    const internal::Hello client{.service = internal::HandshakeService::kStore,
                                 .rank = 1,
                                 .size = 2,
                                 .nonce = internal::random_secret()};
    ASSERT_TRUE(internal::send_exactly(socket.get(), encode(client), "store", soon()).ok());
    std::string server(internal::Hello::kBytes, '\0');
    ASSERT_TRUE(
        internal::receive_exactly(socket.get(), server.data(), server.size(), "store", soon())
            .ok());
    const JobSecret proof =
        internal::keyed_hash(internal::bytes_of(key_), "client" + encode(client) + server);
    ASSERT_TRUE(
        internal::send_exactly(socket.get(), internal::bytes_of(proof), "store", soon()).ok());
  }

  const JobSecret key_ = internal::random_secret();
  absl::StatusOr<std::unique_ptr<internal::TcpStore>> store_;
};

// The store drops the connection for newer ones. The process has not joined, and connects again.
TEST_F(StoreWelcomeTest, AProcessThatIsDroppedBeforeItsVerdictJoinsLater) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers replace send()";
#endif
  ASSERT_TRUE(store_.ok()) << store_.status();
  const int before = waiting_verdicts;
  verdicts_wait = true;
  const FileDescriptor dropped = dial();
  prove(dropped);
  ASSERT_TRUE(wait_until([&] { return waiting_verdicts != before; }, soon()));
  std::vector<FileDescriptor> newer;
  for (int i = 0; i < 100; ++i) newer.push_back(dial());
  char byte = 0;
  EXPECT_TRUE(
      absl::IsUnavailable(internal::receive_exactly(dropped.get(), &byte, 1, "the store", soon())));
  verdicts_wait = false;
  const auto joined = internal::connect_to_store({(*store_)->address()}, 1, 2, key_, soon());
  EXPECT_TRUE(joined.ok()) << joined.status();
}

// Its process may have ended: the other processes must learn of that.
TEST_F(StoreWelcomeTest, AProcessThatClosesBeforeItsVerdictHasEnded) {
  ASSERT_TRUE(store_.ok()) << store_.status();
  internal::StoreBootstrap zero(BootstrapKind::kEnvironment, (*store_)->take_own_socket(), 0, 2);
  prove(dial());
  const absl::Status fence = zero.fence(soon());
  EXPECT_TRUE(absl::IsUnavailable(fence)) << fence;
  EXPECT_THAT(message_of(fence), HasSubstr("rank 1 has ended or left the job"));
  EXPECT_TRUE((*store_)->wait_until_left(soon()).ok());
}

}  // namespace
}  // namespace cariama::testing
