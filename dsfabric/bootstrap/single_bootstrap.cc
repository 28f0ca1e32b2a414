// A job of one process: the store is a map.
#include <map>

#include "dsfabric/bootstrap/handshake.h"
#include "dsfabric/bootstrap/store_bootstrap.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

class SingleBootstrap final : public Bootstrap {
 public:
  SingleBootstrap(BootstrapKind kind, std::optional<uint32_t> threads)
      : kind_(kind), threads_(threads) {}

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] const std::string& label(int) const override { return label_; }

  [[nodiscard]] absl::Status put(std::string_view key, std::string_view value) override {
    if (absl::Status usable = check(key, value.size()); !usable.ok()) return usable;
    values_.insert_or_assign(std::string(key), value);
    return absl::OkStatus();
  }

  [[nodiscard]] absl::StatusOr<std::string> get(int rank, std::string_view key, Deadline) override {
    if (absl::Status usable = check(key, 0); !usable.ok()) return usable;
    if (rank != 0) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        "get from rank " + std::to_string(rank) + ": there is rank 0 only");
    }
    const auto found = values_.find(std::string(key));
    if (found != values_.end()) return found->second;
    // Only the waiting thread itself could put the value, so waiting would not end.
    return make_error(absl::StatusCode::kDeadlineExceeded, ErrorScope::kOperation,
                      "get of '" + std::string(key) + "' from rank 0: it was never put");
  }

  [[nodiscard]] absl::Status fence(Deadline) override { return check({}, 0); }

  [[nodiscard]] BootstrapKind kind() const override { return kind_; }
  [[nodiscard]] const JobSecret& secret() const override { return secret_; }
  [[nodiscard]] std::optional<uint32_t> threads() const override { return threads_; }
  absl::Status finalize(Deadline) override {
    left_ = true;
    return absl::OkStatus();
  }

 private:
  [[nodiscard]] absl::Status check(std::string_view key, size_t value_bytes) const {
    if (left_) {
      return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                        "this process has left the job: finalize() was called");
    }
    if (key.size() > kMaxKey || value_bytes > kMaxValue) {
      return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation,
                        "a key of " + std::to_string(key.size()) + " bytes with a value of " +
                            std::to_string(value_bytes) + " is too long for the exchange");
    }
    return absl::OkStatus();
  }

  const BootstrapKind kind_;
  const std::string label_ = "rank 0";
  const JobSecret secret_ = random_secret();
  const std::optional<uint32_t> threads_;
  std::map<std::string, std::string> values_;
  bool left_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Bootstrap>> join_single(BootstrapKind kind) {
  absl::StatusOr<std::optional<uint32_t>> threads = threads_from_environment();
  if (!threads.ok()) return threads.status();
  return std::make_unique<SingleBootstrap>(kind, *threads);
}

}  // namespace cariama::internal
