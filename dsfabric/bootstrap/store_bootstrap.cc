#include "dsfabric/bootstrap/store_bootstrap.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dtutils/error.h"

namespace cariama::internal {
namespace {

constexpr int kMaxThreads = 65536;

absl::Status left() {
  return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kOperation,
                    "this process has left the job: finalize() was called");
}

}  // namespace

StoreBootstrap::StoreBootstrap(BootstrapKind kind, int socket, int rank, int size)
    : kind_(kind),
      rank_(rank),
      labels_(rank_labels(size)),
      client_(std::make_unique<ExchangeClient>(
          socket, rank, labels_, kind == BootstrapKind::kLocal ? "the launcher" : "rank 0")) {}

absl::Status StoreBootstrap::put(std::string_view key, std::string_view value) {
  return client_ == nullptr ? left() : client_->put(key, value);
}

absl::StatusOr<std::string> StoreBootstrap::get(int rank, std::string_view key, Deadline deadline) {
  if (client_ == nullptr) return left();
  return client_->get(rank, key, deadline);
}

absl::StatusOr<std::vector<std::string>> StoreBootstrap::get_all(std::string_view key,
                                                                 Deadline deadline) {
  if (client_ == nullptr) return left();
  return client_->get_all(key, deadline);
}

absl::Status StoreBootstrap::fence(Deadline deadline) {
  return client_ == nullptr ? left() : client_->fence(deadline);
}

absl::Status StoreBootstrap::watch_ends(bool watch) {
  return client_ == nullptr ? left() : client_->watch_ends(watch);
}

std::vector<Exchange::Ended> StoreBootstrap::take_ended() {
  return client_ == nullptr ? std::vector<Ended>() : client_->take_ended();
}

absl::Status StoreBootstrap::finalize(Deadline deadline) {
  if (client_ == nullptr) return absl::OkStatus();
  client_.reset();
  return leave(deadline);
}

std::vector<std::string> rank_labels(int size) {
  std::vector<std::string> labels;
  labels.reserve(size);
  for (int rank = 0; rank < size; ++rank) labels.push_back(absl::StrCat("rank ", rank));
  return labels;
}

std::optional<std::string> environment_variable(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

absl::StatusOr<int> environment_number(const char* name, int least, int most) {
  const std::optional<std::string> text = environment_variable(name);
  if (!text) {
    return make_error(absl::StatusCode::kFailedPrecondition, ErrorScope::kProcess,
                      absl::StrCat(name, " is not set"));
  }
  int number = 0;
  if (!absl::SimpleAtoi(*text, &number) || number < least || number > most) {
    return make_error(
        absl::StatusCode::kInvalidArgument, ErrorScope::kProcess,
        absl::StrCat(name, " is '", *text, "': expected a number from ", least, " to ", most));
  }
  return number;
}

absl::StatusOr<std::optional<uint32_t>> threads_from_environment() {
  if (!environment_variable("CARIAMA_THREADS")) return std::nullopt;
  absl::StatusOr<int> threads = environment_number("CARIAMA_THREADS", 1, kMaxThreads);
  if (!threads.ok()) return threads.status();
  return static_cast<uint32_t>(*threads);
}

}  // namespace cariama::internal
