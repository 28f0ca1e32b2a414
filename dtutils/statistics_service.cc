#include "dtutils/statistics_service.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "dtutils/error.h"
#include "dtutils/internal/file_descriptor.h"
#include "dtutils/internal/socket_errors.h"
#include "dtutils/internal/start_thread.h"

namespace cariama {
namespace {

using Clock = std::chrono::steady_clock;

// Further connections wait in the queue of the socket. A reader that neither asks nor reads for
// kPatience loses its connection, so that the other readers are served.
constexpr size_t kMostReaders = 8;
constexpr auto kPatience = std::chrono::seconds(2);
constexpr auto kFilePeriod = std::chrono::seconds(1);

// A socket's address: `name` in the abstract namespace, or a path.
struct Address {
  sockaddr_un address{};
  socklen_t length = 0;

  static absl::StatusOr<Address> of(std::string_view name, bool is_abstract) {
    Address made;
    made.address.sun_family = AF_UNIX;
    if (name.size() + 1 > sizeof made.address.sun_path) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        "the path of a socket has at most " +
                            std::to_string(sizeof made.address.sun_path - 1) + " bytes, " +
                            std::string(name) + " has more",
                        "choose a shorter path");
    }
    std::memcpy(made.address.sun_path + (is_abstract ? 1 : 0), name.data(), name.size());
    made.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
    return made;
  }
};

bool has_listener(const Address& at) {
  const FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe.valid() &&
         (connect(probe.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) == 0 ||
          errno == EAGAIN);
}

absl::StatusOr<FileDescriptor> listen_at(const std::string& name, bool is_abstract) {
  auto at = Address::of(name, is_abstract);
  if (!at.ok()) return at.status();
  FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) {
    return make_errno_error(errno, ErrorScope::kProcess, "a socket for statistics",
                            "raise ulimit -n");
  }
  const auto bind_it = [&] {
    return bind(listener.get(), reinterpret_cast<const sockaddr*>(&at->address), at->length) == 0;
  };
  bool is_bound = bind_it();
  if (!is_bound && errno == EADDRINUSE && !is_abstract && !has_listener(*at)) {
    struct stat there {};
    // Removes only a socket: by mistake the user may have given the name of another file.
    if (lstat(name.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) unlink(name.c_str());
    is_bound = bind_it();
  }
  if (!is_bound && errno == EADDRINUSE) {
    return make_error(absl::StatusCode::kAlreadyExists, ErrorScope::kProcess,
                      is_abstract ? "this process serves its statistics already"
                                  : name + " exists, and is not a socket without a listener",
                      is_abstract ? "" : "choose another path, for example with %p");
  }
  if (!is_bound || listen(listener.get(), static_cast<int>(kMostReaders)) != 0) {
    return make_errno_error(errno, ErrorScope::kProcess,
                            "listening for readers of statistics at " + name);
  }
  return listener;
}

bool is_allowed(int socket) {
  ucred reader{};
  socklen_t length = sizeof reader;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &reader, &length) == 0 &&
         (reader.uid == geteuid() || reader.uid == 0);
}

// From /proc: argv[0], and so program_invocation_short_name, may be "/proc/self/exe".
std::string program_name() {
  std::array<char, 4096> path;
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  const std::string_view all(path.data(), length < 0 ? 0 : static_cast<size_t>(length));
  return std::string(all.substr(all.rfind('/') + 1));  // all of it, if it has no slash
}

// Replaces the file as a whole: a reader sees the old text or the new one. An empty text only
// checks that the file could be written: otherwise a process without counters would remove the text
// of an earlier one, and a disk that is full could then take no other text.
absl::Status replace_file(const std::string& path, const std::string& text) {
  const std::string next = path + "." + std::to_string(getpid()) + ".new";
  std::FILE* const file = std::fopen(next.c_str(), "we");
  bool is_written = file != nullptr;
  if (is_written) {
    is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    is_written = std::fclose(file) == 0 && is_written;
  }
  const auto finish = [&] {
    return text.empty() ? unlink(next.c_str()) : rename(next.c_str(), path.c_str());
  };
  if (is_written && finish() == 0) return absl::OkStatus();
  const int error = errno;
  unlink(next.c_str());
  return make_errno_error(error, ErrorScope::kOperation, "writing the statistics to " + path,
                          error == ENOSPC || error == EDQUOT
                              ? "free space there, or name a file on another disk"
                              : "name a file in a folder where this user may write");
}

// A connection to a program that asks for the text.
class Reader {
 public:
  explicit Reader(FileDescriptor socket) : socket_(std::move(socket)) {}

  [[nodiscard]] pollfd polled() const {
    return {socket_.get(), static_cast<int16_t>(rest_.empty() ? POLLIN : POLLOUT), 0};
  }
  [[nodiscard]] Clock::time_point deadline() const { return deadline_; }

  // Takes a request, or sends more of the response. Returns false if the connection has ended.
  template <typename MakeText>
  bool serve(MakeText&& make_text) {
    if (rest_.empty()) {
      // The content of the request is ignored: the service has one resource.
      std::array<char, 4096> request;
      const ssize_t got = recv(socket_.get(), request.data(), request.size(), MSG_DONTWAIT);
      if (got < 0) return internal::is_temporary(errno) || errno == EINTR;
      if (got == 0) return false;
      if (is_answered_) return true;
      is_answered_ = true;
      const std::string text = make_text();
      rest_ = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: " +
              std::to_string(text.size()) + "\r\n\r\n" + text;
    }
    const ssize_t sent =
        send(socket_.get(), rest_.data(), rest_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return internal::is_temporary(errno) || errno == EINTR;
    rest_.erase(0, static_cast<size_t>(sent));
    deadline_ = Clock::now() + kPatience;
    // The reader closes the connection. To close it here, with a part of a long request unread,
    // would discard the response.
    if (rest_.empty()) shutdown(socket_.get(), SHUT_WR);
    return true;
  }

 private:
  FileDescriptor socket_;
  std::string rest_;  // of the response
  bool is_answered_ = false;
  Clock::time_point deadline_ = Clock::now() + kPatience;
};

}  // namespace

struct StatisticsService::State {
  StatisticsServiceOptions options;
  pid_t owner = getpid();
  std::vector<FileDescriptor> listeners;
  FileDescriptor stop;  // eventfd
  std::thread thread;

  [[nodiscard]] std::string text() const { return statistics_prometheus(options.labels); }
  [[nodiscard]] absl::Status write_file() const {
    return options.file_path.empty() ? absl::OkStatus() : replace_file(options.file_path, text());
  }
  void run();
};

void StatisticsService::State::run() {
  std::list<Reader> readers;
  Clock::time_point next_file = Clock::now() + kFilePeriod;
  while (true) {
    std::vector<pollfd> polled{{stop.get(), POLLIN, 0}};
    for (const FileDescriptor& listener : listeners) {
      // poll() ignores negative descriptors.
      polled.push_back({readers.size() < kMostReaders ? listener.get() : -1, POLLIN, 0});
    }
    const size_t first_reader = polled.size();
    auto next = options.file_path.empty() ? Clock::time_point::max() : next_file;
    for (const Reader& reader : readers) {
      polled.push_back(reader.polled());
      next = std::min(next, reader.deadline());
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
    const int timeout = next == Clock::time_point::max()
                            ? -1
                            : static_cast<int>(std::max<int64_t>(0, left.count()));
    if (poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;

    size_t at = first_reader;
    const Clock::time_point now = Clock::now();
    for (auto reader = readers.begin(); reader != readers.end(); ++at) {
      const bool stays = now < reader->deadline() &&
                         (polled[at].revents == 0 || reader->serve([this] { return text(); }));
      reader = stays ? std::next(reader) : readers.erase(reader);
    }
    for (size_t i = 0; i < listeners.size(); ++i) {
      if (polled[1 + i].revents == 0) continue;
      FileDescriptor accepted(
          accept4(listeners[i].get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (accepted.valid()) {
        if (is_allowed(accepted.get())) readers.emplace_back(std::move(accepted));
      } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        // Out of descriptors: the connection stays in the queue, so poll() would return
        // immediately.
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    }
    if (!options.file_path.empty() && now >= next_file) {
      // start() has reported an error that existed then. The last write reports an error that came
      // later.
      static_cast<void>(write_file());
      next_file = now + kFilePeriod;
    }
  }
}

StatisticsService::StatisticsService(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<StatisticsService>> StatisticsService::start(
    StatisticsServiceOptions options) {
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  state->options.labels.emplace_back("pid", std::to_string(getpid()));
  state->options.labels.emplace_back("program", program_name());
  state->stop = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state->stop.valid()) {
    return make_errno_error(errno, ErrorScope::kProcess, "an eventfd for the statistics service",
                            "raise ulimit -n");
  }
  auto listener =
      listen_at(std::string(kStatisticsSocket) + std::to_string(getpid()), /*is_abstract=*/true);
  if (!listener.ok()) return listener.status();
  state->listeners.push_back(*std::move(listener));
  if (const std::string& path = state->options.socket_path; !path.empty()) {
    listener = listen_at(path, /*is_abstract=*/false);
    if (!listener.ok()) return listener.status();
    state->listeners.push_back(*std::move(listener));
  }
  // From here on the destructor removes the socket.
  std::unique_ptr<StatisticsService> service(new StatisticsService(std::move(state)));
  if (absl::Status written = service->state_->write_file(); !written.ok()) return written;
  auto thread = internal::start_quiet_thread([state = service->state_.get()] { state->run(); });
  if (!thread.ok()) return thread.status();
  service->state_->thread = *std::move(thread);
  return service;
}

StatisticsService::~StatisticsService() {
  if (getpid() != state_->owner) {
    // The thread lives in the parent, so this process can neither join nor detach it.
    state_->listeners.clear();
    state_->stop.reset();
    [[maybe_unused]] static const State* left_behind;  // reachable: no leak to report
    left_behind = state_.release();
    return;
  }
  if (state_->thread.joinable()) {
    eventfd_write(state_->stop.get(), 1);
    state_->thread.join();
    if (const absl::Status written = state_->write_file(); !written.ok()) {
      std::fprintf(stderr, "cariama: %s\n", std::string(written.message()).c_str());
    }
  }
  if (!state_->options.socket_path.empty()) unlink(state_->options.socket_path.c_str());
}

}  // namespace cariama
