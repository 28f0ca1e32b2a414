#include "dtutils/internal/exchange_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/exchange.h"
#include "dtutils/internal/exception_error.h"
#include "dtutils/internal/exchange_message.h"
#include "dtutils/internal/exchange_store.h"
#include "dtutils/internal/missing_memory.h"
#include "dtutils/internal/socket_errors.h"

namespace cariama {

using internal::ExchangeMessage;
using internal::ExchangeStore;

struct ExchangeServer::Impl {
  struct Connection {
    int socket = -1;
    internal::ExchangeDecoder decoder;
    std::string outgoing;
    std::optional<absl::Status> unreported;  // the connection is closed: the argument of on_closed
  };

  Impl(std::vector<std::string> labels, OnClosed closed)
      : connections(labels.size()), store(std::move(labels)), on_closed(std::move(closed)) {}

  static void close_socket(Connection& connection) {
    if (connection.socket >= 0) close(std::exchange(connection.socket, -1));
    connection.outgoing.clear();
  }

  // Receives the available bytes, and answers the complete messages.
  void receive(int rank) {
    Connection& connection = connections[rank];
    char chunk[16384];  // a stack may have 64 KiB
    while (connection.socket >= 0) {
      const ssize_t count = recv(connection.socket, chunk, sizeof chunk, MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && internal::is_temporary(errno)) return;
      if (count <= 0) {
        end(rank, absl::OkStatus());
        return report_end(rank);
      }
      absl::Status taken;
      if (!has_memory([&] {
            connection.decoder.append({chunk, static_cast<size_t>(count)});
            taken = take_messages(rank);
          })) {
        taken = without_memory();
      }
      if (!taken.ok()) {
        end(rank, std::move(taken));
        return report_end(rank);
      }
    }
  }

  template <typename Step>
  [[nodiscard]] static bool has_memory(const Step& step) {
    return internal::has_memory_for(
        "dtutils.exchange.memory",
        "the store of a job lacks memory for a message: it disconnects a process", step);
  }

  static absl::Status without_memory() {
    return internal::error_or_code(absl::StatusCode::kResourceExhausted, [] {
      return make_errno_error(ENOMEM, ErrorScope::kProcess, "a message of the store of a job",
                              "raise ulimit -v and -d");
    });
  }

  // Closes a connection, whose end report_end() reports.
  void end(int rank, absl::Status why) {
    close_socket(connections[rank]);
    connections[rank].unreported = std::move(why);
    any_unreported = true;
  }

  void report_end(int rank) {
    absl::Status why = *std::exchange(connections[rank].unreported, std::nullopt);
    if (has_memory([&] { on_closed(rank, why); })) return;
    connections[rank].unreported = std::move(why);
    any_unreported = true;
  }

  void report_ends() {
    if (!std::exchange(any_unreported, false)) return;
    for (int rank = 0; rank < static_cast<int>(connections.size()); ++rank) {
      if (connections[rank].unreported) report_end(rank);
    }
  }

  absl::Status take_messages(int rank) {
    while (true) {
      absl::StatusOr<std::optional<ExchangeMessage>> message = connections[rank].decoder.next();
      if (!message.ok()) return message.status();
      if (!message->has_value()) return absl::OkStatus();
      std::vector<ExchangeStore::Answer> answers;
      if (absl::Status handled = store.handle(rank, *std::move(*message), answers); !handled.ok()) {
        return handled;
      }
      send_all(answers);
    }
  }

  // Rank 0 comes last: a store may be in its process, which may exit when it reads of a death.
  void send_all(const std::vector<ExchangeStore::Answer>& answers) {
    for (const bool to_rank_0 : {false, true}) {
      for (const ExchangeStore::Answer& answer : answers) {
        Connection& connection = connections[answer.rank];
        if ((answer.rank == 0) != to_rank_0 || connection.socket < 0) continue;
        if (has_memory([&] { encode(answer.message, connection.outgoing); })) {
          write_outgoing(connection);
        } else {
          // serve() reports the end: this function may be sending the answers to another one
          end(answer.rank, without_memory());
        }
      }
    }
  }

  static void write_outgoing(Connection& connection) {
    size_t sent = 0;
    while (sent < connection.outgoing.size()) {
      const ssize_t count = send(connection.socket, connection.outgoing.data() + sent,
                                 connection.outgoing.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0) {
        sent += static_cast<size_t>(count);
      } else if (internal::is_temporary(errno)) {
        break;
      } else if (errno != EINTR) {
        sent = connection.outgoing.size();  // reader closed: receive() detects it
      }
    }
    connection.outgoing.erase(0, sent);
  }

  std::vector<Connection> connections;
  ExchangeStore store;
  OnClosed on_closed;
  bool any_unreported = false;  // of the connections, perhaps
  std::vector<int> polled;      // the rank of each entry that append_polled() made
};

ExchangeServer::ExchangeServer(std::vector<std::string> labels, OnClosed on_closed)
    : impl_(std::make_unique<Impl>(std::move(labels), std::move(on_closed))) {}

ExchangeServer::~ExchangeServer() { abandon(); }

void ExchangeServer::connect(int rank, int socket) { impl_->connections[rank].socket = socket; }

bool ExchangeServer::connected(int rank) const { return impl_->connections[rank].socket >= 0; }

absl::Status ExchangeServer::put(int rank, std::string_view key, std::string_view value) {
  if (key.size() > Exchange::kMaxKey || value.size() > Exchange::kMaxValue) {
    return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                      "a key or value is too long for the exchange");
  }
  ExchangeMessage message;
  message.type = internal::ExchangeType::kPut;
  message.key = key;
  message.value = value;
  std::vector<ExchangeStore::Answer> answers;
  absl::Status handled = impl_->store.handle(rank, std::move(message), answers);
  impl_->send_all(answers);
  return handled;
}

std::optional<std::string> ExchangeServer::value(int rank, std::string_view key) const {
  const std::string* const found = impl_->store.value(rank, std::string(key));
  return found == nullptr ? std::nullopt : std::optional(*found);
}

void ExchangeServer::append_polled(std::vector<pollfd>& entries) {
  impl_->polled.clear();
  for (int rank = 0; rank < static_cast<int>(impl_->connections.size()); ++rank) {
    const Impl::Connection& connection = impl_->connections[rank];
    if (connection.socket < 0) continue;
    const short events =
        static_cast<short>(connection.outgoing.empty() ? POLLIN : POLLIN | POLLOUT);
    entries.push_back({connection.socket, events, 0});
    impl_->polled.push_back(rank);
  }
}

void ExchangeServer::serve(std::span<const pollfd> polled) {
  for (size_t i = 0; i < polled.size(); ++i) {
    if (polled[i].revents == 0) continue;
    const int rank = impl_->polled[i];
    // The callback of an earlier entry may have closed this connection.
    if (!connected(rank)) continue;
    Impl::write_outgoing(impl_->connections[rank]);
    impl_->receive(rank);
  }
  impl_->report_ends();
}

bool ExchangeServer::has_unreported() const { return impl_->any_unreported; }

bool ExchangeServer::rank_ended(int rank, std::string how) {
  if (connected(rank)) impl_->receive(rank);
  Impl::close_socket(impl_->connections[rank]);
  std::vector<ExchangeStore::Answer> answers;
  const bool watched = impl_->store.rank_ended(rank, std::move(how), answers);
  impl_->connections[rank].unreported.reset();
  impl_->send_all(answers);
  return watched;
}

void ExchangeServer::abandon() {
  for (Impl::Connection& connection : impl_->connections) Impl::close_socket(connection);
}

}  // namespace cariama
