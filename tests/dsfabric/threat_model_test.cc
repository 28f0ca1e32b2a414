// The attackers of SECURITY.md against a running job of two processes: another user of the host,
// and a process of the same user outside of the job. The attacker tries all sockets at which the
// job listens. Another user also tries the memory and the descriptors of the processes.
#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "dtutils/internal/file_descriptor.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"

namespace cariama::testing {
namespace {

constexpr uid_t kAnotherUser = 65534;

struct ListeningSocket {
  int type = 0;
  std::string name;  // abstract
};

// Returns the local sockets at which the process listens, which only its own user can list.
std::vector<ListeningSocket> listening_sockets(pid_t pid) {
  std::set<std::string> inodes;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    if (target.rfind("socket:[", 0) == 0) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<ListeningSocket> found;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string skipped;
    std::string flags;
    std::string type;
    std::string inode;
    std::string name;
    fields >> skipped >> skipped >> skipped >> flags >> type >> skipped >> inode >> name;
    constexpr const char* kListening = "00010000";
    if (flags != kListening || name.rfind('@', 0) != 0 || !inodes.contains(inode)) continue;
    found.push_back({std::stoi(type, nullptr, 16), name.substr(1)});
  }
  return found;
}

// The results of an attack.
struct Findings {
  uint32_t connections = 0;  // that it has made
  uint32_t bytes = 0;        // received
  uint32_t descriptors = 0;  // received
  uint32_t open = 0;         // connections that the job has not closed
  uint32_t memory = 0;       // bit k: attempt k of attack_process() has succeeded
};

// Returns the messages that the attacker sends to each socket: bytes without meaning, the beginning
// of the broker's protocol with a wrong proof, and a request for the counters.
std::vector<std::string> openings() {
  const internal::Hello hello{internal::HandshakeService::kBroker, 1, 2, internal::random_secret()};
  return {std::string(500, '\x5a'), internal::encode(hello) + std::string(32, '\x5a'),
          "GET /metrics HTTP/1.0\r\n\r\n"};
}

// Sends `opening`, and receives until the job closes the connection.
void attack_socket(const ListeningSocket& target, const std::string& opening, Findings& found) {
  const FileDescriptor own(socket(AF_UNIX, target.type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, target.name.data(), target.name.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + target.name.size());
  if (connect(own.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return;
  ++found.connections;
  // Far longer than the time after which the job closes a connection.
  const timeval limit{60, 0};
  setsockopt(own.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  static_cast<void>(send(own.get(), opening.data(), opening.size(), MSG_NOSIGNAL));
  shutdown(own.get(), SHUT_WR);  // else the broker waits for the rest of a short opening
  while (true) {
    std::array<char, 4096> bytes;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control;
    iovec piece{bytes.data(), bytes.size()};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t got = recvmsg(own.get(), &header, 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) ++found.open;
    if (got <= 0) return;
    found.bytes += static_cast<uint32_t>(got);
    found.descriptors += CMSG_FIRSTHDR(&header) != nullptr ? 1 : 0;
  }
}

constexpr uint32_t kAllAttempts = 0x3ff;  // Findings::memory if all ten attempts succeed

// Tries to read, to write, to trace, to signal, and to take the descriptors of a process.
void attack_process(pid_t pid, uint64_t address, Findings& found) {
  uint32_t number = 0;
  const auto attempt = [&](bool success) { found.memory |= uint32_t{success} << number++; };
  const std::string folder = "/proc/" + std::to_string(pid);
  for (const char* file : {"/mem", "/environ", "/maps", "/map_files", "/fd"}) {
    attempt(FileDescriptor(open((folder + file).c_str(), O_RDONLY | O_CLOEXEC)).valid());
  }
  uint64_t word = 0;
  const iovec local{&word, sizeof word};
  const iovec remote{reinterpret_cast<void*>(address), sizeof word};
  attempt(process_vm_readv(pid, &local, 1, &remote, 1, 0) >= 0);
  attempt(process_vm_writev(pid, &local, 1, &remote, 1, 0) >= 0);
  attempt(ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0);
  attempt(kill(pid, SIGSTOP) == 0);
  const FileDescriptor handle(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  bool taken = false;
  for (int fd = 0; handle.valid() && fd < 64; ++fd) {
    taken |=
        FileDescriptor(static_cast<int>(syscall(SYS_pidfd_getfd, handle.get(), fd, 0))).valid();
  }
  attempt(taken);
}

// The data about a process of the job that the attacker gets. `sockets` SocketRecords follow.
struct Victim {
  pid_t pid = 0;
  uint32_t sockets = 0;
  uint64_t address = 0;
};
struct SocketRecord {
  int type = 0;
  std::array<char, 108> name{};
};

template <typename T>
bool send_record(int to, const T& record) {
  return write(to, &record, sizeof record) == static_cast<ssize_t>(sizeof record);
}
template <typename T>
bool receive_record(int from, T& record) {
  return read(from, &record, sizeof record) == static_cast<ssize_t>(sizeof record);
}

// The attacker's process. Returns its exit code.
int attack(int orders, int results, bool as_another_user) {
  if (as_another_user &&
      (setgroups(0, nullptr) != 0 || setresgid(kAnotherUser, kAnotherUser, kAnotherUser) != 0 ||
       setresuid(kAnotherUser, kAnotherUser, kAnotherUser) != 0)) {
    return 1;
  }
  for (Victim victim; receive_record(orders, victim);) {
    Findings found;
    for (uint32_t i = 0; i < victim.sockets; ++i) {
      SocketRecord record;
      if (!receive_record(orders, record)) return 2;
      for (const std::string& opening : openings()) {
        attack_socket({record.type, record.name.data()}, opening, found);
      }
    }
    // The memory is not protected from the same user.
    if (as_another_user) attack_process(victim.pid, victim.address, found);
    if (!send_record(results, found)) return 3;
  }
  return 0;
}

// Runs a job of two processes, and attacks each of them. `check` runs in rank 0. The attacker's
// process is forked before the job exists, so it inherits nothing of it.
void attack_a_job(bool as_another_user, void (*check)(const Findings&)) {
  std::array<int, 2> orders{};
  std::array<int, 2> results{};
  ASSERT_EQ(pipe2(orders.data(), O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(results.data(), O_CLOEXEC), 0);
  const pid_t attacker = fork();
  if (attacker == 0) {
    close(orders[1]);
    close(results[0]);
    _exit(attack(orders[0], results[1], as_another_user));
  }
  close(orders[0]);
  close(results[1]);
  run_process_job(2, {}, [&](Fabric& fabric) {
    static uint64_t word = 7;
    for (uint32_t rank = 0; rank < 2 && fabric.rank() == 0; ++rank) {
      const pid_t pid = must(async_call(fabric, rank, [] { return getpid(); }).get(soon()));
      const std::vector<ListeningSocket> sockets = listening_sockets(pid);
      // The sockets of the broker and of the shm device.
      EXPECT_GE(sockets.size(), 2u);
      ASSERT_TRUE(send_record(orders[1], Victim{pid, static_cast<uint32_t>(sockets.size()),
                                                reinterpret_cast<uint64_t>(&word)}));
      for (const ListeningSocket& one : sockets) {
        SocketRecord record{one.type, {}};
        ASSERT_LT(one.name.size(), record.name.size());
        std::copy(one.name.begin(), one.name.end(), record.name.begin());
        ASSERT_TRUE(send_record(orders[1], record));
      }
      Findings found;
      ASSERT_TRUE(receive_record(results[0], found));
      EXPECT_EQ(found.connections, sockets.size() * openings().size());
      check(found);
      EXPECT_EQ(must(async_call(fabric, rank, [] { return word; }).get(soon())), 7u);
    }
    must(Collectives(fabric).barrier(soon()));
  });
  close(orders[1]);
  close(results[0]);
  int status = 0;
  waitpid(attacker, &status, 0);
  EXPECT_EQ(status, 0);
}

// AnotherUserReachesNoSocketAndNoMemoryOfAJob proves something only if the attempts of
// attack_process() can succeed.
TEST(ThreatModel, EveryAttemptOnAProcessSucceedsOnAChildOfTheSameUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, as the kernel may keep users from tracing";
  static uint64_t word = 7;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) pause();
  }
  Findings found;
  attack_process(child, reinterpret_cast<uint64_t>(&word), found);
  kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) == child && !WIFSIGNALED(status)) {
  }
  EXPECT_EQ(found.memory, kAllAttempts);
}

TEST(ThreatModel, AnotherUserReachesNoSocketAndNoMemoryOfAJob) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to change the user id";
  attack_a_job(true, [](const Findings& found) {
    EXPECT_EQ(found.bytes, 0u);
    EXPECT_EQ(found.descriptors, 0u);
    EXPECT_EQ(found.open, 0u);
    EXPECT_EQ(found.memory, 0u);
  });
}

// The broker sends its nonce, and the statistics service its counters.
TEST(ThreatModel, TheSameUserGetsNoDescriptorFromASocketOfAJob) {
  attack_a_job(false, [](const Findings& found) {
    EXPECT_GT(found.bytes, 0u);
    EXPECT_EQ(found.descriptors, 0u);
    EXPECT_EQ(found.open, 0u);
  });
}

}  // namespace
}  // namespace cariama::testing
