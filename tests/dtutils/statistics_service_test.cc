// Connects to the service as a reader does, through Unix sockets.
#include "dtutils/statistics_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "dtutils/internal/file_descriptor.h"
#include "dtutils/statistics.h"
#include "tests/dtutils/testing/text_of.h"

namespace cariama {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::text_of;

struct Tank {
  Counter drops;
  uint64_t level = 7;
  CounterSet counters{"tank", "a \"quoted\" name", [this] {
                        return CounterSet::Values{{"drops", drops.value()}, {"level", level, true}};
                      }};
};

class Folder {
 public:
  Folder() { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_ = ::testing::TempDir() + "statistics_XXXXXX";
};

std::string own_name() { return std::string(kStatisticsSocket) + std::to_string(getpid()); }

// Connects to `name`; a name without a slash in front is abstract.
FileDescriptor connect_to(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + (name[0] == '/' ? 0 : 1), name.data(), name.size());
  FileDescriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
  if (connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) made.reset();
  return made;
}

std::string response_of(const FileDescriptor& connection) {
  std::string all;
  std::array<char, 4096> part;
  ssize_t got;
  while ((got = recv(connection.get(), part.data(), part.size(), 0)) > 0) {
    all.append(part.data(), static_cast<size_t>(got));
  }
  EXPECT_EQ(got, 0) << std::strerror(errno);
  return all;
}

std::string ask(const std::string& name) {
  const FileDescriptor connection = connect_to(name);
  EXPECT_TRUE(connection.valid()) << name;
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(send(connection.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  return response_of(connection);
}

std::unique_ptr<StatisticsService> started(StatisticsServiceOptions options) {
  auto service = StatisticsService::start(std::move(options));
  EXPECT_TRUE(service.ok()) << service.status();
  return service.ok() ? *std::move(service) : nullptr;
}

TEST(StatisticsText, IsThatOfPrometheus) {
  Tank tank;
  tank.drops.add(3);
  const std::string text = statistics_prometheus({{"rank", "2"}});
  EXPECT_THAT(text,
              HasSubstr("# TYPE cariama_tank_drops_total counter\n"
                        "cariama_tank_drops_total{rank=\"2\",of=\"a \\\"quoted\\\" name\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE cariama_tank_level gauge\n"
                              "cariama_tank_level{rank=\"2\",of=\"a \\\"quoted\\\" name\"} 7\n"));
}

TEST(StatisticsText, AMetricStandsTogetherAndGaugesEndWithTheirObject) {
  Tank first;
  first.drops.add(1);
  {
    Tank second;
    second.drops.add(10);
    const std::string both = statistics_prometheus();
    const size_t type = both.find("# TYPE cariama_tank_drops_total");
    EXPECT_EQ(both.find("# TYPE cariama_tank_drops_total", type + 1), both.npos);
  }
  const std::string text = statistics_prometheus();
  EXPECT_THAT(text, HasSubstr("cariama_tank_drops_total{of=\"(closed)\"}"));
  EXPECT_EQ(text.find("cariama_tank_level{of=\"(closed)\"}"), text.npos);
}

TEST(StatisticsServiceTest, AnswersReaders) {
  Tank tank;
  const auto service = started({.labels = {{"rank", "5"}}});
  tank.drops.add(4);
  const std::string response = ask(own_name());
  EXPECT_THAT(response, StartsWith("HTTP/1.0 200 OK\r\n"));
  const size_t end = response.find("\r\n\r\n");
  ASSERT_NE(end, response.npos);
  EXPECT_THAT(response.substr(0, end),
              HasSubstr("Content-Length: " + std::to_string(response.size() - end - 4)));
  EXPECT_THAT(response, HasSubstr("cariama_tank_drops_total{rank=\"5\",pid=\"" +
                                  std::to_string(getpid()) + "\",program=\""));
  tank.drops.add(1);
  EXPECT_THAT(ask(own_name()), HasSubstr("} 5\n"));
}

TEST(StatisticsServiceTest, AnotherUserGetsNoAnswer) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to change the user id";
  std::array<int, 2> begin{};
  ASSERT_EQ(pipe(begin.data()), 0);
  const std::string name = own_name();
  const pid_t child = fork();  // before the service has a thread
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    char byte = 0;
    if (setresuid(kNobody, kNobody, kNobody) != 0 || read(begin[0], &byte, 1) != 1) _exit(2);
    const FileDescriptor connection = connect_to(name);
    if (!connection.valid()) _exit(3);
    static_cast<void>(send(connection.get(), "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL));
    _exit(recv(connection.get(), &byte, 1, 0) > 0 ? 1 : 0);
  }
  const auto service = started({});
  ASSERT_EQ(write(begin[1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(ask(name), StartsWith("HTTP/1.0 200 OK"));
  for (const int end : begin) close(end);
}

TEST(StatisticsServiceTest, SilentReadersDoNotKeepOthersOut) {
  const auto service = started({});
  std::vector<FileDescriptor> silent(12);
  for (FileDescriptor& one : silent) one = connect_to(own_name());
  EXPECT_THAT(ask(own_name()), StartsWith("HTTP/1.0 200 OK"));
}

TEST(StatisticsServiceTest, ServesAPathAndWritesAFile) {
  const Folder folder;
  Tank tank;
  tank.drops.add(2);
  {
    const auto service =
        started({.socket_path = folder.file("socket"), .file_path = folder.file("file")});
    EXPECT_THAT(ask(folder.file("socket")), HasSubstr("cariama_tank_drops_total"));
    EXPECT_THAT(text_of(folder.file("file")), HasSubstr("\"} 2\n"));
    tank.drops.add(40);
  }
  EXPECT_THAT(text_of(folder.file("file")), HasSubstr("\"} 42\n"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("socket")));
  EXPECT_FALSE(connect_to(own_name()).valid());
}

// There may be counters of earlier tests of this process.
TEST(StatisticsServiceTest, AnEmptyTextDoesNotReplaceAFile) {
  const Folder folder;
  std::ofstream(folder.file("file")) << "of an earlier job";
  const auto service = started({.file_path = folder.file("file")});
  EXPECT_NE(text_of(folder.file("file")), "");
  EXPECT_FALSE(
      std::filesystem::exists(folder.file(("file." + std::to_string(getpid()) + ".new").c_str())));
}

TEST(StatisticsServiceTest, OneServiceInAProcessAndNoFileIsReplacedByASocket) {
  const Folder folder;
  std::ofstream(folder.file("notes")) << "mine";
  EXPECT_EQ(StatisticsService::start({.socket_path = folder.file("notes")}).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(text_of(folder.file("notes")), "mine");
  const auto service = started({.socket_path = folder.file("socket")});
  EXPECT_EQ(StatisticsService::start().status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(StatisticsServiceTest, ASocketWithoutAListenerIsReplaced) {
  const Folder folder;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder.file("socket");
  std::memcpy(address.sun_path, path.data(), path.size());
  {
    const FileDescriptor left(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(left.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  const auto service = started({.socket_path = path});
  EXPECT_THAT(ask(path), StartsWith("HTTP/1.0 200 OK"));
}

TEST(StatisticsServiceTest, ErrorsNameThePath) {
  const auto at_nowhere = StatisticsService::start({.file_path = "/nowhere/statistics"}).status();
  EXPECT_THAT(std::string(at_nowhere.message()), HasSubstr("/nowhere/statistics"));
  EXPECT_THAT(std::string(at_nowhere.message()), HasSubstr("name a file in a folder"));
  const auto too_long = StatisticsService::start({.socket_path = std::string(200, 'x')}).status();
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  // The failed services have left nothing behind.
  EXPECT_NE(started({}), nullptr);
}

TEST(StatisticsServiceTest, AForkedChildMayDestroyIt) {
  auto service = started({});
  const pid_t child = fork();
  if (child == 0) {
    service.reset();
    _exit(0);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(ask(own_name()), StartsWith("HTTP/1.0 200 OK"));
}

}  // namespace
}  // namespace cariama
