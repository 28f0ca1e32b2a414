#include "tests/dsfabric/testing/process_job.h"
#include "dsfabric/fabric/create_fabric.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dsfabric/peers/broker.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama::testing {
namespace {

// A process group's Exchange as a bootstrap.
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
  absl::StatusOr<std::vector<std::string>> get_all(std::string_view key,
                                                   Deadline deadline) override {
    return exchange_.get_all(key, deadline);
  }
  absl::Status fence(Deadline deadline) override { return exchange_.fence(deadline); }
  absl::Status watch_ends(bool watch) override { return exchange_.watch_ends(watch); }
  std::vector<Ended> take_ended() override { return exchange_.take_ended(); }
  BootstrapKind kind() const override { return BootstrapKind::kLocal; }
  const JobSecret& secret() const override { return secret_; }
  std::optional<uint32_t> threads() const override { return std::nullopt; }
  absl::Status finalize(Deadline) override { return absl::OkStatus(); }

 private:
  Exchange& exchange_;
  JobSecret secret_{7, 7, 7};
};

}  // namespace

absl::StatusOr<std::unique_ptr<internal::Broker>> make_group_broker(
    Bootstrap& job, internal::Broker::Handler handler) {
  return internal::make_socket_broker(job, std::move(handler), soon());
}

absl::StatusOr<std::unique_ptr<Fabric>> fabric_of_group(Exchange& exchange,
                                                        const FabricOptions& options,
                                                        const internal::BrokerMaker& broker_of) {
  return internal::create_fabric(options, std::make_unique<GroupBootstrap>(exchange), broker_of);
}

absl::Status try_process_job(int count, const FabricOptions& options,
                             const std::function<void(Fabric&)>& body, const RunOptions& run) {
  return try_test_processes(
      count,
      [&](Exchange& exchange) {
        auto fabric = fabric_of_group(exchange, options);
        ASSERT_TRUE(fabric.ok()) << fabric.status();
        auto place = must((*fabric)->init_thread(0));
        body(**fabric);
      },
      run);
}

void run_process_job(int count, const FabricOptions& options,
                     const std::function<void(Fabric&)>& body, const RunOptions& run) {
  const absl::Status status = try_process_job(
      count, options,
      [&](Fabric& fabric) {
        body(fabric);
        must(fabric.finalize(soon()));
      },
      run);
  EXPECT_TRUE(status.ok()) << status;
}

void run_job_with_a_victim(int count, int victim, const std::function<void(Fabric&)>& body) {
  RunOptions run;
  run.may_die = {victim};
  const absl::Status status = try_process_job(count, {}, body, run);
  EXPECT_TRUE(status.ok()) << status;
}

void wait_to_be_killed(Fabric& fabric) {
  static_cast<void>(fabric.wait([] { return false; }, soon()));
  ADD_FAILURE() << "this process was not killed";
}

}  // namespace cariama::testing
