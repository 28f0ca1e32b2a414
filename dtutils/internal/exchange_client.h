// The Exchange of a process whose store answers at the other end of a stream socket.
#ifndef CARIAMA_DTUTILS_INTERNAL_EXCHANGE_CLIENT_H_
#define CARIAMA_DTUTILS_INTERNAL_EXCHANGE_CLIENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtutils/internal/exchange_message.h"
#include "dtutils/process_group.h"

namespace cariama::internal {

class ExchangeClient final : public Exchange {
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
  [[nodiscard]] absl::Status send(const ExchangeMessage& message, Deadline deadline,
                                  const std::string& operation);
  // The answer to `request`; answers to requests that were given up are dropped.
  [[nodiscard]] absl::StatusOr<ExchangeMessage> receive(uint64_t request, Deadline deadline,
                                                        const std::string& operation);
  // Waits for the socket: OK when it is ready, DEADLINE_EXCEEDED.
  [[nodiscard]] absl::Status wait(short events, Deadline deadline, const std::string& operation);
  // From now on every call fails with this: the stream cannot be continued.
  absl::Status breaks(absl::Status status);

  const int socket_;
  const int rank_;
  const std::vector<std::string> labels_;
  ExchangeDecoder decoder_;
  absl::Status broken_;
  uint64_t last_request_ = 0;
  std::optional<uint64_t> fence_request_;        // entered and not yet left
  std::optional<ExchangeMessage> fence_answer_;  // came while another answer was waited for
};

}  // namespace cariama::internal

#endif  // CARIAMA_DTUTILS_INTERNAL_EXCHANGE_CLIENT_H_
