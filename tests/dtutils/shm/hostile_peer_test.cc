// A client that connects to the service thread's socket and violates the protocol harms no other
// connection.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <span>
#include <string>
#include <thread>

#include "dtutils/shm/address.h"
#include "dtutils/shm/link.h"
#include "dtutils/shm/wire.h"
#include "tests/dtutils/shm/control_view.h"
#include "tests/dtutils/shm/shm_node.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama::shm {
namespace {

int connect_raw(const Uuid& uuid) {
  const int socket_descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t length = socket_address(uuid, &address);
  EXPECT_EQ(connect(socket_descriptor, reinterpret_cast<sockaddr*>(&address), length), 0);
  const timeval limit{20, 0};
  setsockopt(socket_descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return socket_descriptor;
}

Uuid device_of(const ShmNode& node) { return decode(node.queue_pair->address())->device; }

TEST(ShmHostilePeer, GarbageClosesItsOwnConnectionOnly) {
  ShmNode near;
  ShmNode far;
  connect_pair(*near.queue_pair, *far.queue_pair);
  std::string garbage(4096, '\x5a');
  for (size_t bytes : {size_t{1}, sizeof(Message) - 1, sizeof(Message), garbage.size()}) {
    const int raw = connect_raw(device_of(far));
    ASSERT_EQ(send(raw, garbage.data(), bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
    char answer;
    EXPECT_EQ(recv(raw, &answer, 1, 0), 0) << "closed by the device";
    close(raw);
  }
  const Segment word = near.segment(0, 8);
  EXPECT_EQ(near.run(remote_request(Opcode::kWrite, word, far.region->locator(0, 8))),
            CompletionStatus::kSuccess);
}

// Messages in the wrong order, and a hello that names another device, are refused.
TEST(ShmHostilePeer, MessagesInTheWrongOrderAreRefused) {
  ShmNode node;
  Message message;
  for (MessageType type : {MessageType::kAskRegion, MessageType::kWelcome, MessageType::kRegion,
                           MessageType::kHello}) {
    const int raw = connect_raw(device_of(node));
    message.type = type;  // kHello with the uuid of no device
    ASSERT_EQ(send_message(raw, message, -1, true), 0);
    char answer;
    EXPECT_EQ(recv(raw, &answer, 1, 0), 0);
    close(raw);
  }
}

// The list of sockets shows the first part of the device's identity. It gives no access: a process
// that knows no more gets neither an answer nor a descriptor.
TEST(ShmHostilePeer, TheListOfSocketsDoesNotOpenADevice) {
  ShmNode node;
  Message hello;
  hello.uuid = device_of(node);
  sockaddr_un name;
  socket_address(hello.uuid, &name);
  const std::string shown(name.sun_path + 1);
  const std::span<uint8_t> secret = std::span(hello.uuid).subspan(kPublicUuidBytes);
  for (uint8_t& byte : secret) byte ^= 1;
  sockaddr_un same;
  socket_address(hello.uuid, &same);
  EXPECT_EQ(shown, std::string(same.sun_path + 1)) << "the name must not contain the secret";
  const int raw = connect_raw(hello.uuid);
  ASSERT_EQ(send_message(raw, hello, -1, true), 0);
  char answer;
  EXPECT_EQ(recv(raw, &answer, 1, 0), 0) << "closed by the device";
  close(raw);
  for (uint8_t& byte : secret) byte ^= 1;
  const int member = connect_raw(hello.uuid);
  ASSERT_EQ(send_message(member, hello, -1, true), 0);
  EXPECT_GT(recv(member, &answer, 1, 0), 0);
  close(member);
}

// The kernel truncates a message that is longer than the reader's buffer; the service must notice.
TEST(ShmHostilePeer, AMessageWithATailIsRefused) {
  ShmNode node;
  Message hello;
  hello.uuid = device_of(node);
  std::string bytes(reinterpret_cast<const char*>(&hello), sizeof hello);
  bytes.push_back('\0');
  const int raw = connect_raw(device_of(node));
  ASSERT_EQ(send(raw, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  char answer;
  EXPECT_EQ(recv(raw, &answer, 1, 0), 0) << "closed by the device";
  close(raw);
}

// kNoDomain marks regions that cannot be written to directly. If a peer could announce it as its
// domain number, WRITEs to memory that is not mapped would become stores to that address of this
// process.
TEST(ShmHostilePeer, ADomainThatMarksUnmappedMemoryIsRefused) {
  ShmNode near;
  ShmNode far;
  ControlView(*far.queue_pair).header->domain = RemoteRegion::kNoDomain;
  const absl::Status status = near.queue_pair->connect(far.queue_pair->address(), {});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("damaged"), std::string::npos) << status;
}

// A receive whose buffer is mapped read-only: the sender must not store there, which would be a
// SIGSEGV.
TEST(ShmHostilePeer, ReceivesInReadOnlyMemoryAreNotFilled) {
  ShmNode near;
  ShmNode far;
  connect_pair(*near.queue_pair, *far.queue_pair);
  void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const auto read_only = must(far.domain->register_memory({page, 4096}, Access::kRemoteRead));
  const Segment into = far.segment(0, 8);
  ASSERT_TRUE(far.queue_pair->post_receive({.segments = &into, .segment_count = 1}).ok());
  SharedSegment& forged = ControlView(*far.queue_pair).receives.slot(0)->segments()[0];
  forged.address = read_only->locator().address;
  forged.key = read_only->remote_key().value;

  const Segment from = near.segment(0, 8);
  EXPECT_EQ(near.run({.opcode = Opcode::kSend, .segment_count = 1, .segments = &from}),
            CompletionStatus::kRemoteOperation);
  munmap(page, 4096);
}

// A forged completion that reports more bytes than the receive's buffers hold.
TEST(ShmHostilePeer, AReceiveIsNeverLongerThanItsBuffers) {
  ShmNode near;
  ShmNode far;
  connect_pair(*near.queue_pair, *far.queue_pair);
  const Segment into = far.segment(0, 8);
  const ControlView view(*far.queue_pair);
  auto* ring = reinterpret_cast<ReceiveRingEntry*>(view.control + view.header->receive_ring);
  auto* completions =
      reinterpret_cast<SharedCompletionQueue*>(view.control + view.header->completion_queue);
  const std::pair<uint32_t, CompletionStatus> cases[] = {{8, CompletionStatus::kSuccess},
                                                         {9, CompletionStatus::kLocalLength}};
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(
        far.queue_pair->post_receive({.id = i, .segments = &into, .segment_count = 1}).ok());
    const auto slot = view.receives.claim(view.address.index + 1);
    ASSERT_TRUE(slot.has_value());
    ring[i].slot = *slot;
    ring[i].bytes = cases[i].first;
    ring[i].status = static_cast<uint8_t>(CompletionStatus::kSuccess);
    ring[i].kind = static_cast<uint8_t>(CompletionKind::kReceive);
    ring[i].sequence = i + 1;
    completions->announce(view.header->ready_bit, nullptr, false);
    const std::vector<Completion> done = far.poll_for(1);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].id, i);
    EXPECT_EQ(done[0].status, cases[i].second);
  }
}

// A peer that sends requests without end and never reads the answers: the device drops answers that
// it cannot deliver, and serves other peers meanwhile.
TEST(ShmHostilePeer, AFloodThatIsNeverReadDoesNotDelayOtherPeers) {
  cariama::testing::run_test_processes(2, [](Exchange& exchange) {
    ShmNode node;
    if (exchange.rank() == 1) {
      put_plain(exchange, "memory", node.region->locator());
      put_plain(exchange, "uuid", device_of(node));
      connect_to(exchange, *node.queue_pair, 0);
      static_cast<void>(must(exchange.get(0, "done", soon())));
      return;
    }
    const auto memory = get_plain<RemoteMemoryLocator>(exchange, 1, "memory");
    const int raw = connect_raw(get_plain<Uuid>(exchange, 1, "uuid"));
    Message hello;
    hello.uuid = get_plain<Uuid>(exchange, 1, "uuid");
    ASSERT_EQ(send_message(raw, hello, -1, true), 0);
    Message ask;
    ask.type = MessageType::kAskRegion;
    ask.key = memory.key.value;
    for (int i = 0; i < 20000; ++i) static_cast<void>(send_message(raw, ask, -1, false));
    connect_to(exchange, *node.queue_pair, 1);
    const Segment word = node.segment(0, 8);
    EXPECT_EQ(node.run(remote_request(Opcode::kWrite, word, memory.slice(0, 8))),
              CompletionStatus::kSuccess);
    must(exchange.put("done", ""));
    close(raw);
  });
}

// Another user knows the identity of a device, and connects as fast as it can. It gets no answer,
// and two processes of the job connect meanwhile.
TEST(ShmHostilePeer, AnotherUserGetsNoAnswerAndKeepsNobodyOut) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to change the user id";
  cariama::testing::run_test_processes(3, [](Exchange& exchange) {
    if (exchange.rank() == 2) {
      const auto uuid = get_plain<Uuid>(exchange, 1, "uuid");
      constexpr uid_t kNobody = 65534;
      ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
      const int raw = connect_raw(uuid);
      Message hello;
      hello.uuid = uuid;
      static_cast<void>(send_message(raw, hello, -1, true));
      char answer;
      EXPECT_LE(recv(raw, &answer, 1, 0), 0);
      close(raw);
      std::atomic<bool> finished{false};
      std::thread flood([&] {
        sockaddr_un address;
        const socklen_t length = socket_address(uuid, &address);
        while (!finished.load()) {
          const FileDescriptor one(
              socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
          static_cast<void>(
              connect(one.get(), reinterpret_cast<const sockaddr*>(&address), length));
        }
      });
      EXPECT_TRUE(exchange.put("flooding", "").ok());
      EXPECT_TRUE(exchange.get(0, "done", soon()).ok());
      finished = true;
      flood.join();
      return;
    }
    ShmNode node;
    if (exchange.rank() == 1) {
      put_plain(exchange, "memory", node.region->locator());
      put_plain(exchange, "uuid", device_of(node));
      connect_to(exchange, *node.queue_pair, 0);
      static_cast<void>(must(exchange.get(0, "done", soon())));
      return;
    }
    static_cast<void>(must(exchange.get(2, "flooding", soon())));
    const auto memory = get_plain<RemoteMemoryLocator>(exchange, 1, "memory");
    connect_to(exchange, *node.queue_pair, 1);
    const Segment word = node.segment(0, 8);
    EXPECT_EQ(node.run(remote_request(Opcode::kWrite, word, memory.slice(0, 8))),
              CompletionStatus::kSuccess);
    must(exchange.put("done", ""));
  });
}

// Returns a socket that listens in place of a device with that identity.
int listen_as(const Uuid& uuid) {
  sockaddr_un address;
  const socklen_t length = socket_address(uuid, &address);
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  return listener;
}

// A device that refuses a process does not wait for the first message of that process.
TEST(ShmHostilePeer, ARefusalArrivesIfTheFirstMessageIsNotRead) {
  cariama::testing::run_test_processes(2, [](Exchange& exchange) {
    const Uuid uuid{4, 2, 3, static_cast<uint8_t>(getppid()), static_cast<uint8_t>(getppid() >> 8)};
    if (exchange.rank() == 1) {
      const int listener = listen_as(uuid);
      put_plain(exchange, "pid", getpid());
      const int peer = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      ASSERT_GE(peer, 0);
      pollfd ready{peer, POLLIN, 0};
      ASSERT_EQ(poll(&ready, 1, 20'000), 1);
      Message refusal;
      refusal.type = MessageType::kRefused;
      refusal.key = EMFILE;
      ASSERT_EQ(send_message(peer, refusal, -1, true), 0);
      close(peer);
      static_cast<void>(must(exchange.get(0, "done", soon())));
      close(listener);
      return;
    }
    const int pid = get_plain<int>(exchange, 1, "pid");
    const auto link = Link::connect(uuid, pid, std::chrono::seconds(20), "full");
    EXPECT_TRUE(absl::IsResourceExhausted(link.status())) << link.status();
    EXPECT_NE(link.status().message().find("no free descriptor"), std::string::npos)
        << link.status();
    must(exchange.put("done", ""));
  });
}

// An unsealed descriptor from a peer is not mapped: the peer could truncate it and cause a SIGBUS
// in this process.
TEST(ShmHostilePeer, UnsealedRegionsAreNotMapped) {
  cariama::testing::run_test_processes(2, [](Exchange& exchange) {
    const Uuid uuid{1, 2, 3, static_cast<uint8_t>(getppid()), static_cast<uint8_t>(getppid() >> 8)};
    if (exchange.rank() == 1) {
      // A device that follows the protocol, but one of its two regions is not sealed.
      auto control = must(ControlSegment::create(uuid));
      const int listener = listen_as(uuid);
      put_plain(exchange, "pid", getpid());
      const int peer = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      ASSERT_GE(peer, 0);
      Message message;
      FileDescriptor none;
      ASSERT_EQ(receive_message(peer, &message, &none, true), 0);
      Message welcome;
      welcome.type = MessageType::kWelcome;
      welcome.uuid = uuid;
      ASSERT_EQ(send_message(peer, welcome, control->descriptor(), true), 0);
      const Memfd unsealed(4096, 0);
      const Memfd sealed(4096);
      uint64_t key = (uint64_t{7} << 16) | 1;
      for (const Memfd* memory : {&unsealed, &sealed}) {
        KeyEntry& entry = key_table(control->base())[key_index(key)];
        entry.base = 0x10000;
        entry.length = 4096;
        entry.has_descriptor = 1;
        entry.key = key;
        Message region;
        region.type = MessageType::kRegion;
        region.key = key++;
        region.base = 0x10000;
        region.length = 4096;
        region.access = static_cast<uint32_t>(Access::kAll);
        ASSERT_EQ(send_message(peer, region, memory->descriptor(), true), 0);
      }
      // A range that lies beyond the end of its descriptor.
      Message beyond;
      beyond.type = MessageType::kRegion;
      beyond.key = key;
      beyond.base = 0x10000;
      beyond.offset = 4096;
      beyond.length = 4096;
      ASSERT_EQ(send_message(peer, beyond, sealed.descriptor(), true), 0);
      // A range whose aligned words would not be aligned in this process.
      Message askew = beyond;
      askew.key = key + 1;
      askew.base = 0x10004;
      askew.offset = 0;
      askew.length = 64;
      ASSERT_EQ(send_message(peer, askew, sealed.descriptor(), true), 0);
      must(exchange.put("sent", ""));
      static_cast<void>(must(exchange.get(0, "done", soon())));
      close(peer);
      close(listener);
      return;
    }
    const int pid = get_plain<int>(exchange, 1, "pid");
    auto link = must(Link::connect(uuid, pid, std::chrono::seconds(20), "hostile"));
    static_cast<void>(must(exchange.get(1, "sent", soon())));
    EXPECT_FALSE(link->find((uint64_t{7} << 16) | 1).has_value());
    EXPECT_TRUE(link->find(((uint64_t{7} << 16) | 1) + 1).has_value());
    EXPECT_FALSE(link->find(((uint64_t{7} << 16) | 1) + 2).has_value());
    EXPECT_FALSE(link->find(((uint64_t{7} << 16) | 1) + 3).has_value());
    must(exchange.put("done", ""));
  });
}

}  // namespace
}  // namespace cariama::shm
