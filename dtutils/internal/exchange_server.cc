#include "dtutils/internal/exchange_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "dtutils/error.h"
#include "dtutils/exchange.h"
#include "dtutils/internal/exchange_message.h"
#include "dtutils/internal/exchange_store.h"
#include "dtutils/internal/socket_errors.h"

namespace cariama {

using internal::ExchangeMessage;
using internal::ExchangeStore;

struct ExchangeServer::Impl {
  struct Connection {
    int socket = -1;
    internal::ExchangeDecoder decoder;
    std::string outgoing;
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
        close_socket(connection);
        on_closed(rank, absl::OkStatus());
        return;
      }
      connection.decoder.append({chunk, static_cast<size_t>(count)});
      if (absl::Status taken = take_messages(rank); !taken.ok()) {
        close_socket(connection);
        on_closed(rank, taken);
        return;
      }
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
        encode(answer.message, connection.outgoing);
        write_outgoing(connection);
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
  std::vector<int> polled;  // the rank of each entry that append_polled() made
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
}

bool ExchangeServer::rank_ended(int rank, std::string how) {
  if (connected(rank)) impl_->receive(rank);
  Impl::close_socket(impl_->connections[rank]);
  std::vector<ExchangeStore::Answer> answers;
  const bool watched = impl_->store.rank_ended(rank, std::move(how), answers);
  impl_->send_all(answers);
  return watched;
}

void ExchangeServer::abandon() {
  for (Impl::Connection& connection : impl_->connections) Impl::close_socket(connection);
}

}  // namespace cariama
