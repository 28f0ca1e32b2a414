#include "tests/dsfabric/testing/forked_job.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "dsfabric/internal/broker.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"

namespace cariama::testing {
namespace {

// The exchange of a forked process group as a bootstrap.
class GroupBootstrap final : public Bootstrap {
 public:
  explicit GroupBootstrap(Exchange& exchange) : exchange_(exchange) {}

  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }
  const std::string& label(int rank) const override { return exchange_.label(rank); }
  absl::Status put(std::string_view key, std::string_view value) override {
    return exchange_.put(key, value);
  }
  absl::StatusOr<std::string> get(int rank, std::string_view key, Deadline deadline) override {
    return exchange_.get(rank, key, deadline);
  }
  absl::Status fence(Deadline deadline) override { return exchange_.fence(deadline); }
  BootstrapKind kind() const override { return BootstrapKind::kLocal; }
  const JobSecret& secret() const override { return secret_; }
  std::optional<uint32_t> threads() const override { return std::nullopt; }
  absl::Status finalize(Deadline) override { return absl::OkStatus(); }

 private:
  Exchange& exchange_;
  JobSecret secret_{7};
};

int run(Exchange& exchange, const ForkedJobOptions& options,
        const std::function<int(Fabric& fabric)>& body) {
  auto fabric = must(Fabric::create(options.fabric, std::make_unique<GroupBootstrap>(exchange),
                                    [](Bootstrap& bootstrap, auto handler) {
                                      return internal::make_socket_broker(
                                          bootstrap, std::move(handler), soon());
                                    }));
  int code = 0;
  {
    const auto context = must(fabric->init_thread(0));
    code = body(*fabric);
    if (::testing::Test::HasFailure()) code = 1;
  }
  if (code == 0 && options.finalize) must(fabric->finalize(soon()));
  return code;
}

}  // namespace

absl::Status run_forked(int processes, const ForkedJobOptions& options,
                        const std::function<int(Fabric& fabric)>& body) {
  return run_processes(
      processes,
      [&](Exchange& exchange) {
        try {
          return run(exchange, options, body);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", exchange.rank(), error.what());
          return 1;
        }
      },
      options.run);
}

}  // namespace cariama::testing
