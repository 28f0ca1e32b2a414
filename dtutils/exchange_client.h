// The Exchange of a process whose store (exchange_server.h) answers at the other end of a stream
// socket.
#ifndef CARIAMA_DTUTILS_EXCHANGE_CLIENT_H_
#define CARIAMA_DTUTILS_EXCHANGE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/export.h"
#include "dtutils/process_group.h"

namespace cariama {

namespace internal {
struct ExchangeMessage;
}

class CARIAMA_DTUTILS_EXPORT ExchangeClient final : public Exchange {
 public:
  // Takes over `socket` (a connected stream) and closes it at the end. labels[i] names rank i.
  ExchangeClient(int socket, int rank, std::vector<std::string> labels);
  ~ExchangeClient() override;
  ExchangeClient(const ExchangeClient&) = delete;
  ExchangeClient& operator=(const ExchangeClient&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(labels_.size()); }
  [[nodiscard]] const std::string& label(int rank) const override { return labels_[rank]; }
  [[nodiscard]] absl::Status put(std::string_view key, std::string_view value) override;
  [[nodiscard]] absl::StatusOr<std::string> get(int rank, std::string_view key,
                                                Deadline deadline) override;
  [[nodiscard]] absl::Status fence(Deadline deadline) override;

 private:
  struct Incoming;  // what has come, and was not asked for yet

  [[nodiscard]] absl::Status send(const internal::ExchangeMessage& message, Deadline deadline,
                                  const std::string& operation);
  // The answer to `request`; answers to requests that were given up are dropped.
  [[nodiscard]] absl::StatusOr<internal::ExchangeMessage> receive(uint64_t request,
                                                                  Deadline deadline,
                                                                  const std::string& operation);
  // Waits for the socket: OK when it is ready, DEADLINE_EXCEEDED.
  [[nodiscard]] absl::Status wait(short events, Deadline deadline, const std::string& operation);
  // From now on every call fails with this: the stream cannot be continued.
  absl::Status breaks(absl::Status status);

  const int socket_;
  const int rank_;
  const std::vector<std::string> labels_;
  const std::unique_ptr<Incoming> incoming_;
  absl::Status broken_;
  uint64_t last_request_ = 0;
  std::optional<uint64_t> fence_request_;  // entered and not yet left
};

}  // namespace cariama

#endif  // CARIAMA_DTUTILS_EXCHANGE_CLIENT_H_
