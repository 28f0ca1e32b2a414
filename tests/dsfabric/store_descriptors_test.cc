// The TCP store of a job in a process without free descriptors.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/bootstrap/sockets.h"
#include "dsfabric/bootstrap/tcp_store.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama::testing {
namespace {

using internal::SocketAddress;
using internal::TcpStore;

// Opens files until `left` descriptors are left.
std::vector<FileDescriptor> take_descriptors(size_t left) {
  rlimit limit{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<FileDescriptor> taken;
  taken.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  limit.rlim_cur = static_cast<rlim_t>(taken.back().get()) + 40;
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  for (;;) {
    FileDescriptor one(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!one.valid()) break;
    taken.push_back(std::move(one));
  }
  EXPECT_GT(taken.size(), left);
  while (taken.size() > 1 && left-- != 0) taken.pop_back();
  return taken;
}

// Rank 0 of these processes has a store for `size` processes, and leaves `left` descriptors free
// until the others have called `at_the_limit`.
template <typename AtTheLimit, typename Afterwards>
void run_store(int size, size_t left, const AtTheLimit& at_the_limit,
               const Afterwards& afterwards) {
  run_test_processes(2, [&](Exchange& exchange) {
    const JobSecret key = internal::keyed_hash("", "of this test");
    if (exchange.rank() == 0) {
      auto store = TcpStore::start(*SocketAddress::parse("127.0.0.1:0"), size, key);
      ASSERT_TRUE(store.ok()) << store.status();
      std::vector<FileDescriptor> taken = take_descriptors(left);
      ASSERT_TRUE(exchange.put("address", (*store)->address().text()).ok());
      ASSERT_TRUE(exchange.fence(deadline_after(3 * kPatience)).ok());
      taken.clear();
      ASSERT_TRUE(exchange.fence(soon()).ok());
      ASSERT_TRUE(exchange.fence(deadline_after(3 * kPatience)).ok());
      return;
    }
    const auto text = exchange.get(0, "address", soon());
    ASSERT_TRUE(text.ok()) << text.status();
    const SocketAddress address = *SocketAddress::parse(*text);
    at_the_limit(address, key);
    ASSERT_TRUE(exchange.fence(soon()).ok());
    ASSERT_TRUE(exchange.fence(soon()).ok());
    afterwards(address, key);
    ASSERT_TRUE(exchange.fence(soon()).ok());
  });
}

TEST(StoreDescriptors, AProcessJoinsWithoutAFreeOneAndOthersWhenSomeAreFreeAgain) {
#if defined(__SANITIZE_UNDEFINED__)
  GTEST_SKIP() << "UBSan opens a pipe to check the type of an object: it needs descriptors itself";
#endif
  std::vector<FileDescriptor> members;
  const auto join = [&members](const SocketAddress& address, const JobSecret& key, int rank) {
    auto socket = internal::connect_to_store({address}, rank, 5, key, soon());
    EXPECT_TRUE(socket.ok()) << socket.status();
    if (socket.ok()) members.push_back(*std::move(socket));
  };
  run_store(
      5, 0, [&](const SocketAddress& address, const JobSecret& key) { join(address, key, 1); },
      [&](const SocketAddress& address, const JobSecret& key) {
        for (int rank = 2; rank < 5; ++rank) join(address, key, rank);
      });
}

// Silent connections take all descriptors, and more of them wait to be accepted before the process
// that joins.
TEST(StoreDescriptors, SilentConnectionsDoNotKeepAProcessOut) {
#if defined(__SANITIZE_UNDEFINED__)
  GTEST_SKIP() << "UBSan opens a pipe to check the type of an object: it needs descriptors itself";
#endif
  run_store(
      2, 10,
      [](const SocketAddress& address, const JobSecret& key) {
        std::vector<FileDescriptor> silent;
        for (int i = 0; i < 40; ++i) {
          auto socket = internal::connect_to(address, "the store", soon());
          ASSERT_TRUE(socket.ok()) << socket.status();
          silent.push_back(*std::move(socket));
        }
        const auto member = internal::connect_to_store({address}, 1, 2, key, soon());
        EXPECT_TRUE(member.ok()) << member.status();
      },
      [](const SocketAddress&, const JobSecret&) {});
}

}  // namespace
}  // namespace cariama::testing
