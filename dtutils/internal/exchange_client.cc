#include "dtutils/internal/exchange_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtutils/error.h"
#include "dtutils/internal/exchange_message.h"
#include "dtutils/internal/peer_remedy.h"
#include "dtutils/internal/socket_errors.h"

namespace cariama {

using internal::ExchangeMessage;
using internal::ExchangeType;

namespace {

// The store always reads, so a put that could not be sent for this long will not succeed later.
constexpr std::chrono::seconds kPutTimeout{30};

absl::Status invalid(const std::string& what) {
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, what);
}

absl::Status check_key(std::string_view key) {
  if (key.size() <= Exchange::kMaxKey) return absl::OkStatus();
  return invalid(
      absl::StrCat("get of a key of ", key.size(), " bytes: at most ", Exchange::kMaxKey));
}

absl::Status answer_to_status(const ExchangeMessage& answer, const std::string& operation) {
  return make_error(static_cast<absl::StatusCode>(answer.code), ErrorScope::kPeer,
                    absl::StrCat(operation, ": ", answer.value),
                    internal::peer_remedy(internal::PeerRemedy::kEnded));
}

}  // namespace

struct ExchangeClient::Incoming {
  internal::ExchangeDecoder decoder;
  std::optional<ExchangeMessage> fence_answer;  // arrived while receive() waited for another answer
  std::vector<Ended> ended;

  // Keeps a message that no caller waits for now; drops answers to requests that expired.
  void keep(ExchangeMessage&& message, std::optional<uint64_t> fence, size_t ranks) {
    if (message.type == ExchangeType::kEnded) {
      if (message.rank < ranks) {
        ended.push_back({static_cast<int>(message.rank), std::move(message.value)});
      }
    } else if (fence == message.request) {
      fence_answer = std::move(message);
    }
  }
};

ExchangeClient::ExchangeClient(int socket, int rank, std::vector<std::string> labels,
                               std::string server)
    : socket_(socket),
      rank_(rank),
      labels_(std::move(labels)),
      server_(std::move(server)),
      incoming_(std::make_unique<Incoming>()) {}

ExchangeClient::~ExchangeClient() { close(socket_); }

absl::Status ExchangeClient::breaks(absl::Status status) {
  const std::lock_guard lock(broken_mutex_);
  broken_ = status;
  return status;
}

absl::Status ExchangeClient::server_gone(const std::string& operation) {
  store_is_gone_.store(true, std::memory_order_release);
  return breaks(
      make_error(absl::StatusCode::kUnavailable, ErrorScope::kProcess,
                 absl::StrCat(operation, ": ", server_, ", which serves the exchange, has ended"),
                 internal::peer_remedy(internal::PeerRemedy::kEnded)));
}

absl::Status ExchangeClient::broken() {
  const std::lock_guard lock(broken_mutex_);
  return broken_;
}

absl::Status ExchangeClient::wait(short events, Deadline deadline, const std::string& operation) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{socket_, events, 0};
    const int milliseconds =
        static_cast<int>(std::clamp<int64_t>(left.count(), 0, static_cast<int64_t>(INT_MAX)));
    const int ready = poll(&entry, 1, milliseconds);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR)
      return make_errno_error(errno, ErrorScope::kProcess, operation);
    if (left.count() <= 0) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kOperation,
                        absl::StrCat(operation, ": nothing came before the deadline"),
                        internal::peer_remedy(internal::PeerRemedy::kSilent));
    }
  }
}

absl::Status ExchangeClient::send(const ExchangeMessage& message, Deadline deadline,
                                  const std::string& operation) {
  const std::lock_guard lock(send_mutex_);
  if (absl::Status before = broken(); !before.ok()) return before;
  std::string bytes;
  encode(message, bytes);
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count =
        ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (internal::is_temporary(errno)) {
      absl::Status ready = wait(POLLOUT, deadline, operation);
      // Part of the message was sent, so no other message can follow it on this stream.
      if (!ready.ok()) return sent == 0 ? ready : breaks(std::move(ready));
    } else if (errno != EINTR) {
      return server_gone(operation);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ExchangeMessage> ExchangeClient::receive(uint64_t request, Deadline deadline,
                                                        const std::string& operation) {
  if (absl::Status before = broken(); !before.ok()) return before;
  while (true) {
    absl::StatusOr<std::optional<ExchangeMessage>> message = incoming_->decoder.next();
    if (!message.ok()) return breaks(message.status());
    if (message->has_value()) {
      ExchangeMessage& answer = **message;
      if (answer.request == request && answer.type != ExchangeType::kEnded) {
        return std::move(answer);
      }
      incoming_->keep(std::move(answer), fence_request_, labels_.size());
      continue;
    }
    if (absl::Status ready = wait(POLLIN, deadline, operation); !ready.ok()) return ready;
    if (auto some = receive_some(operation); !some.ok()) return some.status();
  }
}

absl::StatusOr<bool> ExchangeClient::receive_some(const std::string& operation) {
  char chunk[16384];
  const ssize_t count = recv(socket_, chunk, sizeof chunk, MSG_DONTWAIT);
  if (count > 0) {
    incoming_->decoder.append({chunk, static_cast<size_t>(count)});
    return true;
  }
  if (count < 0 && (internal::is_temporary(errno) || errno == EINTR)) return false;
  return server_gone(operation);
}

absl::Status ExchangeClient::watch_ends(bool watch) {
  ExchangeMessage message;
  message.type = ExchangeType::kWatch;
  message.code = watch ? 1 : 0;
  return send(message, std::chrono::steady_clock::now() + kPutTimeout, "watching the processes");
}

std::vector<Exchange::Ended> ExchangeClient::take_ended() {
  const std::unique_lock lock(receive_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return {};
  while (broken().ok()) {
    absl::StatusOr<std::optional<ExchangeMessage>> message = incoming_->decoder.next();
    if (!message.ok()) {
      static_cast<void>(breaks(message.status()));
    } else if (message->has_value()) {
      incoming_->keep(*std::move(*message), fence_request_, labels_.size());
    } else if (auto some = receive_some("watching the processes"); !some.ok() || !*some) {
      break;
    }
  }
  return std::exchange(incoming_->ended, {});
}

absl::Status ExchangeClient::put(std::string_view key, std::string_view value) {
  if (key.size() > kMaxKey || value.size() > kMaxValue) {
    return invalid(absl::StrCat("put of a key of ", key.size(), " bytes with a value of ",
                                value.size(), ": at most ", kMaxKey, " and ", kMaxValue, " fit"));
  }
  ExchangeMessage message;
  message.type = ExchangeType::kPut;
  message.key = key;
  message.value = value;
  return send(message, std::chrono::steady_clock::now() + kPutTimeout,
              absl::StrCat("put of '", message.key, "'"));
}

absl::StatusOr<std::string> ExchangeClient::get(int rank, std::string_view key, Deadline deadline) {
  if (rank < 0 || rank >= size()) {
    return invalid(absl::StrCat("get from rank ", rank, ": there are ranks 0 to ", size() - 1));
  }
  if (absl::Status fits = check_key(key); !fits.ok()) return fits;
  const std::lock_guard lock(receive_mutex_);
  ExchangeMessage message;
  message.type = ExchangeType::kGet;
  message.request = ++last_request_;
  message.rank = static_cast<uint32_t>(rank);
  message.key = key;
  const std::string operation = absl::StrCat("get of '", message.key, "' from ", labels_[rank]);
  if (absl::Status status = send(message, deadline, operation); !status.ok()) return status;
  absl::StatusOr<ExchangeMessage> answer = receive(message.request, deadline, operation);
  if (!answer.ok()) return answer.status();
  if (answer->type == ExchangeType::kValue) return std::move(answer->value);
  return answer_to_status(*answer, operation);
}

absl::StatusOr<std::vector<std::string>> ExchangeClient::get_all(std::string_view key,
                                                                 Deadline deadline) {
  if (absl::Status fits = check_key(key); !fits.ok()) return fits;
  const std::lock_guard lock(receive_mutex_);
  ExchangeMessage message;
  message.type = ExchangeType::kGetAll;
  message.request = ++last_request_;
  message.key = key;
  std::vector<std::optional<std::string>> values(labels_.size());
  size_t missing = values.size();
  size_t first = 0;  // that is missing
  const auto operation = [&] {
    while (values[first].has_value()) ++first;
    return absl::StrCat("get of '", message.key, "' from ", labels_[first],
                        missing == 1 ? "" : absl::StrCat(" and ", missing - 1, " others"));
  };
  if (absl::Status status = send(message, deadline, operation()); !status.ok()) return status;
  while (missing != 0) {
    absl::StatusOr<ExchangeMessage> answer = receive(message.request, deadline, operation());
    if (!answer.ok()) return answer.status();
    if (answer->type != ExchangeType::kValue) return answer_to_status(*answer, operation());
    if (answer->rank >= values.size() || values[answer->rank].has_value()) {
      return breaks(make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kPeer,
                               absl::StrCat(operation(), ": a value of rank ", answer->rank,
                                            " came twice, or there is no such rank")));
    }
    values[answer->rank] = std::move(answer->value);
    --missing;
  }
  std::vector<std::string> all;
  all.reserve(values.size());
  for (std::optional<std::string>& value : values) all.push_back(*std::move(value));
  return all;
}

absl::Status ExchangeClient::fence(Deadline deadline) {
  const std::lock_guard lock(receive_mutex_);
  const std::string operation = absl::StrCat("fence of ", size(), " processes");
  if (!fence_request_) {
    ExchangeMessage message;
    message.type = ExchangeType::kFence;
    message.request = ++last_request_;
    if (absl::Status status = send(message, deadline, operation); !status.ok()) return status;
    fence_request_ = message.request;
  }
  if (!incoming_->fence_answer) {
    absl::StatusOr<ExchangeMessage> answer = receive(*fence_request_, deadline, operation);
    if (!answer.ok()) return answer.status();
    incoming_->fence_answer = *std::move(answer);
  }
  const ExchangeMessage answer = *std::exchange(incoming_->fence_answer, std::nullopt);
  fence_request_.reset();
  if (answer.type == ExchangeType::kFenceDone) return absl::OkStatus();
  return answer_to_status(answer, operation);
}

}  // namespace cariama
