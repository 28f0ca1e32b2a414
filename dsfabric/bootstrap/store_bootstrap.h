// The bootstrap of a process whose store is at the other end of a socket. The base of all
// bootstraps for jobs of several processes.
#ifndef CARIAMA_DSFABRIC_BOOTSTRAP_STORE_BOOTSTRAP_H_
#define CARIAMA_DSFABRIC_BOOTSTRAP_STORE_BOOTSTRAP_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dsfabric/bootstrap.h"
#include "dtutils/internal/exchange_client.h"

namespace cariama::internal {

class StoreBootstrap : public Bootstrap {
 public:
  // `socket` is connected to the store, as `rank` of `size` processes. Takes ownership of the
  // socket.
  StoreBootstrap(BootstrapKind kind, int socket, int rank, int size);

  [[nodiscard]] int rank() const final { return rank_; }
  [[nodiscard]] int size() const final { return static_cast<int>(labels_.size()); }
  [[nodiscard]] const std::string& label(int rank) const final { return labels_[rank]; }
  [[nodiscard]] absl::Status put(std::string_view key, std::string_view value) final;
  [[nodiscard]] absl::StatusOr<std::string> get(int rank, std::string_view key,
                                                Deadline deadline) final;
  [[nodiscard]] absl::StatusOr<std::vector<std::string>> get_all(std::string_view key,
                                                                 Deadline deadline) final;
  [[nodiscard]] absl::Status fence(Deadline deadline) final;
  absl::Status watch_ends(bool watch) final;
  [[nodiscard]] std::vector<Ended> take_ended() override;

  [[nodiscard]] BootstrapKind kind() const final { return kind_; }
  [[nodiscard]] const JobSecret& secret() const final { return secret_; }
  [[nodiscard]] std::optional<uint32_t> threads() const final { return threads_; }
  void set_secret(const JobSecret& secret) { secret_ = secret; }
  void set_threads(std::optional<uint32_t> threads) { threads_ = threads; }
  absl::Status finalize(Deadline deadline) final;

 protected:
  // Completes finalize() after this process has left the store. Called at most once.
  virtual absl::Status leave(Deadline) { return absl::OkStatus(); }
  // Returns true if the store has closed the connection.
  [[nodiscard]] bool store_is_gone() const {
    return client_ != nullptr && client_->store_is_gone();
  }

 private:
  const BootstrapKind kind_;
  const int rank_;
  const std::vector<std::string> labels_;
  std::unique_ptr<ExchangeClient> client_;  // nullptr after finalize()
  JobSecret secret_{};
  std::optional<uint32_t> threads_;
};

// Returns the labels of a job's processes: "rank 0", "rank 1", ...
[[nodiscard]] std::vector<std::string> rank_labels(int size);

// Returns the value of CARIAMA_THREADS, if it is set. Error: INVALID_ARGUMENT.
[[nodiscard]] absl::StatusOr<std::optional<uint32_t>> threads_from_environment();

// Returns the value of the variable, or nullopt if it is unset or empty.
[[nodiscard]] std::optional<std::string> environment_variable(const char* name);
// Returns the number in an environment variable. Errors: INVALID_ARGUMENT (malformed, or not in
// [least, most]), FAILED_PRECONDITION (unset).
[[nodiscard]] absl::StatusOr<int> environment_number(const char* name, int least, int most);

// The implementations, each in its own file. Errors as make_bootstrap().
[[nodiscard]] absl::StatusOr<std::unique_ptr<Bootstrap>> join_local(Exchange::Deadline deadline);
[[nodiscard]] absl::StatusOr<std::unique_ptr<Bootstrap>> join_pmix(Exchange::Deadline deadline);
[[nodiscard]] absl::StatusOr<std::unique_ptr<Bootstrap>> join_environment(
    Exchange::Deadline deadline);
// A job of one process. `kind` is reported as the bootstrap's kind.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Bootstrap>> join_single(
    BootstrapKind kind = BootstrapKind::kSingle);

}  // namespace cariama::internal

#endif  // CARIAMA_DSFABRIC_BOOTSTRAP_STORE_BOOTSTRAP_H_
