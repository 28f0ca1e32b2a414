#include "dtutils/shm/service.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <new>
#include <system_error>
#include <thread>

#include "dtutils/diagnostics.h"
#include "dtutils/error.h"
#include "dtutils/internal/local_socket.h"
#include "dtutils/internal/missing_memory.h"
#include "dtutils/internal/socket_errors.h"
#include "dtutils/internal/start_thread.h"
#include "dtutils/shm/robust_lock.h"

namespace cariama::shm {
namespace {

constexpr int kProgressPeriodMs = 1;
// If a peer does not read (it is stopped), its oldest announcements are dropped; it asks for a
// region that it misses.
constexpr size_t kMaxBacklog = 4096;
// The largest number of messages that the thread serves for one peer before it turns to the other
// peers, so that a peer that sends continuously does not delay them.
constexpr int kMessagesOfClientAtOnce = 64;
// The largest number of connections that the thread accepts before it serves its peers: a flood of
// connections must not delay the peers. epoll_wait() reports the listener again.
constexpr int kPeersAcceptedAtOnce = 64;
// A connecting peer is refused if no descriptor was free for this long. Another thread may close
// one meanwhile.
constexpr std::chrono::milliseconds kDescriptorPatience{500};
// The pause after an attempt to accept a connection without a free descriptor. The listener stays
// ready meanwhile.
constexpr std::chrono::milliseconds kAcceptPause{10};

// Does not wait for the peer's first message: see Link::connect().
void send_refusal(int socket, int error) {
  Message refusal;
  refusal.type = MessageType::kRefused;
  refusal.key = static_cast<uint64_t>(error);
  static_cast<void>(send_message(socket, refusal, -1, /*wait=*/false));
}

template <typename Step>
[[nodiscard]] bool has_memory(const Step& step) {
  return internal::has_memory_for(
      "shm.service.memory", "this process lacks memory for a message of a peer over shm", step);
}

}  // namespace

absl::Status Service::listen() {
  const auto failed = [](std::string_view what) {
    return make_errno_error(errno, ErrorScope::kProcess, what, "raise ulimit -n");
  };
  listener_ = FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener_.valid() || !epoll_.valid() || !wake_.valid()) {
    return failed("descriptors of the shm service thread");
  }
  spare_ = internal::spare_descriptor();
  sockaddr_un address;
  const socklen_t length = socket_address(control_->uuid(), &address);
  if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener_.get(), 1024) != 0) {
    return failed("listening on an abstract socket");
  }
  if (!watch(listener_.get(), EPOLLIN, EPOLL_CTL_ADD) ||
      !watch(wake_.get(), EPOLLIN, EPOLL_CTL_ADD)) {
    return make_errno_error(errno, ErrorScope::kProcess, "epoll_ctl for the shm service thread",
                            "raise /proc/sys/fs/epoll/max_user_watches");
  }
  return absl::OkStatus();
}

absl::Status Service::start() {
  if (absl::Status status = listen(); !status.ok()) return status;
  auto thread = internal::start_quiet_thread([this] {
    RobustLock alive(control_header(control_->base()));
    started_.store(true);
    started_.notify_one();
    run();
  });
  if (!thread.ok()) return thread.status();
  thread_ = *std::move(thread);
  started_.wait(false);
  return absl::OkStatus();
}

void Service::stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  kick();
  thread_.join();
}

void Service::kick() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

bool Service::watch(int descriptor, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  return epoll_ctl(epoll_.get(), operation, descriptor, &event) == 0;
}

Service::Handled Service::handle_events(int timeout_ms) {
  Handled handled;
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < count; ++i) {
    const int descriptor = events[static_cast<size_t>(i)].data.fd;
    if (descriptor == wake_.get()) {
      uint64_t ignored;
      [[maybe_unused]] const ssize_t got = read(descriptor, &ignored, sizeof ignored);
    } else {
      handled.all &= has_memory([&] { on_event(descriptor); });
    }
    ++handled.count;
  }
  return handled;
}

void Service::run() {
  bool waiting = false;
  for (;;) {
    const int pause = accept_again_ ? static_cast<int>(kAcceptPause.count()) : -1;
    const Handled handled = handle_events(waiting ? kProgressPeriodMs : pause);
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    if (accept_again_ && std::chrono::steady_clock::now() >= *accept_again_) {
      accept_again_.reset();
      watch(listener_.get(), EPOLLIN, EPOLL_CTL_MOD);
    }
    // The wake-up for it was read above, and does not come again.
    if (!has_memory([&] { waiting = client_->progress(); })) waiting = true;
    if (!handled.all) std::this_thread::sleep_for(internal::kMemoryPause);
  }
}

void Service::on_event(int descriptor) {
  if (descriptor == listener_.get()) return accept_peers();
  on_link_event(descriptor);
  std::lock_guard lock(mutex_);
  const auto it = connections_.find(descriptor);
  if (it == connections_.end()) return;
  Connection& connection = it->second;
  bool is_open = false;
  if (!has_memory([&] { is_open = serve(connection) && send_backlog(connection); })) {
    // The message is lost. A peer that has not been greeted cannot connect. Of any other peer it
    // was the request for a region: its operation fails.
    is_open = connection.greeted;
    if (!is_open) send_refusal(connection.socket.get(), ENOMEM);
  }
  if (!is_open) close_connection(descriptor);
}

void Service::accept_peers() {
  for (int i = 0; i < kPeersAcceptedAtOnce; ++i) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == EMFILE || errno == ENFILE) on_missing_descriptor();
      return;
    }
    missing_since_.reset();
    if (!spare_.valid()) spare_ = internal::spare_descriptor();
    if (!internal::is_of_own_user(socket.get())) continue;
    const int descriptor = socket.get();
    std::lock_guard lock(mutex_);
    if (!has_memory([&] { connections_[descriptor].socket = std::move(socket); })) {
      send_refusal(socket.get(), ENOMEM);
      continue;
    }
    if (!watch(descriptor, EPOLLIN, EPOLL_CTL_ADD)) {
      const int error = errno;
      connections_.erase(descriptor);
      report_once("shm.watch",
                  "a connection over shm is refused (epoll_ctl: " +
                      std::generic_category().message(error) + ")",
                  "raise /proc/sys/fs/epoll/max_user_watches");
    }
  }
}

void Service::on_missing_descriptor() {
  // accept4() finds no descriptor also if no peer waits.
  pollfd waiting{listener_.get(), POLLIN, 0};
  if (poll(&waiting, 1, 0) <= 0) {
    missing_since_.reset();
    return;
  }
  report_once("shm.accept", "a peer cannot connect over shm: this process has no free descriptor",
              "raise ulimit -n");
  const auto now = std::chrono::steady_clock::now();
  if (!missing_since_) missing_since_ = now;
  if (now - *missing_since_ >= kDescriptorPatience) refuse_peers();
  watch(listener_.get(), 0, EPOLL_CTL_MOD);
  accept_again_ = now + kAcceptPause;
}

void Service::refuse_peers() {
  for (int i = 0; i < kPeersAcceptedAtOnce; ++i) {
    spare_.reset();
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const bool accepted = socket.valid();
    if (accepted && internal::is_of_own_user(socket.get())) send_refusal(socket.get(), EMFILE);
    socket.reset();  // its descriptor is the spare one
    spare_ = internal::spare_descriptor();
    if (!accepted) return;
  }
}

bool Service::serve(Connection& connection) {
  for (int i = 0; i < kMessagesOfClientAtOnce; ++i) {
    Message message;
    FileDescriptor ignored;
    const int error = receive_message(connection.socket.get(), &message, &ignored, /*wait=*/false);
    if (internal::is_temporary(error)) return true;
    if (error != 0) return false;
    if (message.type == MessageType::kHello && !connection.greeted) {
      if (message.uuid != control_->uuid()) return false;
      for (uint64_t key : regions_->announced_keys()) {
        connection.backlog.push_back({MessageType::kRegion, key});
      }
      connection.greeted = true;
      connection.welcome_due = true;
    } else if (message.type == MessageType::kAskRegion && connection.greeted) {
      if (connection.backlog.size() < kMaxBacklog) {
        connection.backlog.push_back({MessageType::kAskRegion, message.key});
      }
    } else {
      return false;
    }
  }
  return true;
}

bool Service::send_backlog(Connection& connection) {
  if (connection.welcome_due) {
    Message welcome;
    welcome.type = MessageType::kWelcome;
    welcome.uuid = control_->uuid();
    const int error = send_message(connection.socket.get(), welcome, control_->descriptor(), false);
    if (internal::is_temporary(error)) {
      watch_for_room(connection);
      return true;
    }
    if (error != 0) {
      if (error != EPIPE && error != ECONNRESET) {
        report_once("shm.welcome",
                    "a peer cannot connect over shm: the control segment cannot be sent (" +
                        std::generic_category().message(error) + ")",
                    "raise ulimit -n");
      }
      return false;
    }
    connection.welcome_due = false;
  }
  while (!connection.backlog.empty()) {
    const Item item = connection.backlog.front();
    Message message;
    std::shared_ptr<FileDescriptor> descriptor;
    if (item.type == MessageType::kRevoked) {
      message.type = MessageType::kRevoked;
      message.key = item.key;
    } else if (auto announcement = regions_->announcement(item.key)) {
      message = announcement->message;
      descriptor = announcement->descriptor;
    } else if (item.type == MessageType::kAskRegion) {
      message.type = MessageType::kUnknown;
      message.key = item.key;
    } else {  // deregistered meanwhile
      connection.backlog.pop_front();
      continue;
    }
    const int error = send_message(connection.socket.get(), message,
                                   descriptor != nullptr ? descriptor->get() : -1, false);
    // Too many descriptors of this user are in flight in sockets: drop the announcement. The peer
    // asks for the region when it needs it.
    if (error == ETOOMANYREFS || error == EMFILE) {
      connection.backlog.pop_front();
      continue;
    }
    if (internal::is_temporary(error)) {
      watch_for_room(connection);
      return true;
    }
    if (error != 0) return false;
    connection.backlog.pop_front();
  }
  if (connection.waits_for_room) {
    watch(connection.socket.get(), EPOLLIN, EPOLL_CTL_MOD);
    connection.waits_for_room = false;
  }
  return true;
}

void Service::watch_for_room(Connection& connection) {
  if (connection.waits_for_room) return;
  watch(connection.socket.get(), EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
  connection.waits_for_room = true;
}

void Service::push(MessageType type, uint64_t key) {
  std::lock_guard lock(mutex_);
  for (auto& [descriptor, connection] : connections_) {
    if (!connection.greeted) continue;
    if (connection.backlog.size() >= kMaxBacklog) connection.backlog.pop_front();
    // Without memory the peer gets no announcement. It asks for a region that it misses, and reads
    // in the key table that a region is revoked.
    static_cast<void>(has_memory([&connection = connection, this, type, key] {
      connection.backlog.push_back({type, key});
      // If the connection is broken, the service thread sees the hang-up and closes it.
      if (!connection.waits_for_room) static_cast<void>(send_backlog(connection));
    }));
  }
}

void Service::close_connection(int socket) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
  connections_.erase(socket);
}

absl::Status Service::add_link(const std::shared_ptr<Link>& link) {
  int error = 0;
  {
    std::lock_guard lock(mutex_);
    for (int descriptor : {link->socket(), link->process_descriptor()}) {
      try {
        links_[descriptor] = link;
      } catch (const std::bad_alloc&) {
        error = ENOMEM;
      }
      if (error == 0 && !watch(descriptor, EPOLLIN, EPOLL_CTL_ADD)) error = errno;
    }
  }
  if (error == 0) return absl::OkStatus();
  remove_link(link.get());
  return make_errno_error(error, ErrorScope::kProcess, "epoll_ctl for a peer over shm",
                          "raise /proc/sys/fs/epoll/max_user_watches");
}

void Service::remove_link(const Link* link) {
  std::lock_guard lock(mutex_);
  for (int descriptor : {link->socket(), link->process_descriptor()}) {
    if (links_.erase(descriptor) != 0) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
    }
  }
}

void Service::on_link_event(int descriptor) {
  std::shared_ptr<Link> link;
  {
    std::lock_guard lock(mutex_);
    auto it = links_.find(descriptor);
    if (it == links_.end()) return;
    link = it->second;
  }
  // The client is told first: without memory the event comes again.
  if (descriptor == link->process_descriptor()) {
    client_->process_ended(link);
    remove_link(link.get());
  } else if (!link->drain()) {
    client_->connection_ended(link);
    std::lock_guard lock(mutex_);
    links_.erase(descriptor);
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
  }
}

}  // namespace cariama::shm
