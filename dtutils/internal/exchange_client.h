// The client side of an Exchange: sends the requests of one process to the store
// (exchange_server.h) over a stream socket.
#ifndef CARIAMA_DTUTILS_INTERNAL_EXCHANGE_CLIENT_H_
#define CARIAMA_DTUTILS_INTERNAL_EXCHANGE_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/exchange.h"
#include "dtutils/export.h"

namespace cariama {

namespace internal {
struct ExchangeMessage;
}

// Thread-compatible as Exchange, except put(), watch_ends() and store_is_gone(): any thread may
// call them, also while another thread waits in get(), get_all() or fence().
class CARIAMA_DTUTILS_EXPORT ExchangeClient final : public Exchange {
 public:
  // Takes ownership of `socket` (a connected stream); the destructor closes it. labels[i] names
  // rank i, `server` the process that serves the exchange, for error texts.
  ExchangeClient(int socket, int rank, std::vector<std::string> labels, std::string server);
  ~ExchangeClient() override;
  ExchangeClient(const ExchangeClient&) = delete;
  ExchangeClient& operator=(const ExchangeClient&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(labels_.size()); }
  [[nodiscard]] const std::string& label(int rank) const override { return labels_[rank]; }
  [[nodiscard]] absl::Status put(std::string_view key, std::string_view value) override;
  [[nodiscard]] absl::StatusOr<std::string> get(int rank, std::string_view key,
                                                Deadline deadline) override;
  // Sends one request; the store answers it with a message for each rank.
  [[nodiscard]] absl::StatusOr<std::vector<std::string>> get_all(std::string_view key,
                                                                 Deadline deadline) override;
  [[nodiscard]] absl::Status fence(Deadline deadline) override;
  absl::Status watch_ends(bool watch) override;
  // See Exchange::take_ended(). After the store has closed the connection, store_is_gone() returns
  // true.
  [[nodiscard]] std::vector<Ended> take_ended() override;
  [[nodiscard]] bool store_is_gone() const {
    return store_is_gone_.load(std::memory_order_acquire);
  }

 private:
  struct Incoming;  // bytes and messages that arrived and were not consumed yet

  [[nodiscard]] absl::Status send(const internal::ExchangeMessage& message, Deadline deadline,
                                  const std::string& operation);
  // Receives the answer to `request`. Drops answers to earlier requests whose deadline expired.
  [[nodiscard]] absl::StatusOr<internal::ExchangeMessage> receive(uint64_t request,
                                                                  Deadline deadline,
                                                                  const std::string& operation);
  // Receives the bytes that have arrived, without waiting. Returns false if none have. Error:
  // UNAVAILABLE.
  [[nodiscard]] absl::StatusOr<bool> receive_some(const std::string& operation);
  // Waits until the socket is ready for `events`. Error: DEADLINE_EXCEEDED.
  [[nodiscard]] absl::Status wait(short events, Deadline deadline, const std::string& operation);
  // Marks the connection as closed by the server. Returns the error.
  absl::Status server_gone(const std::string& operation);
  // Marks the stream as broken, for example after a part of a message was sent: from now on every
  // call fails with `status`. Returns `status`.
  absl::Status breaks(absl::Status status);
  [[nodiscard]] absl::Status broken();

  const int socket_;
  const int rank_;
  const std::vector<std::string> labels_;
  const std::string server_;
  std::mutex send_mutex_;     // one message at a time
  std::mutex receive_mutex_;  // guards incoming_, last_request_ and fence_request_
  const std::unique_ptr<Incoming> incoming_;
  uint64_t last_request_ = 0;
  std::optional<uint64_t> fence_request_;  // set between entering and leaving a fence
  std::mutex broken_mutex_;
  absl::Status broken_;  // guarded by broken_mutex_
  std::atomic<bool> store_is_gone_{false};
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_INTERNAL_EXCHANGE_CLIENT_H_
