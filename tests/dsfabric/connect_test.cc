// Offers that fail or are refused, and the end of a fabric while its threads connect.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "dsfabric/fabric.h"
#include "dsfabric/fabric/create_fabric.h"
#include "dsfabric/send_call.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/local_store.h"

namespace cariama::testing {
namespace {

// A broker whose peers do not answer.
class SilentBroker final : public internal::Broker {
 public:
  explicit SilentBroker(std::atomic<int>& requests) : requests_(requests) {}
  ~SilentBroker() override { EXPECT_EQ(requests_, 0) << "a request uses the broker"; }
  void stop() override { stopped_ = true; }
  absl::StatusOr<std::string> request(int, std::string_view, Deadline deadline) override {
    ++requests_;
    const bool stopped = wait_until([&] { return stopped_.load(); }, deadline);
    --requests_;
    return stopped ? absl::UnavailableError("stopped") : absl::DeadlineExceededError("late");
  }

 private:
  std::atomic<int>& requests_;
  std::atomic<bool> stopped_{false};
};

// One helper thread connects, and the other one waits for that attempt.
TEST(ConnectTest, TheEndOfAFabricEndsTheAttemptsOfItsThreads) {
  auto store = make_local_store(2);
  static std::atomic<int> began, ended;
  began = ended = 0;
  std::atomic<int> requests{0};
  FabricOptions options;
  options.threads = 2;
  options.helper_threads = 2;
  options.timeout = std::chrono::minutes(2);  // longer than soon()
  const auto make = [&](uint32_t rank) {
    return internal::create_fabric(
        options, make_local_bootstrap(store, rank),
        [&](Bootstrap&, auto) -> absl::StatusOr<std::unique_ptr<internal::Broker>> {
          return std::make_unique<SilentBroker>(requests);
        });
  };
  std::unique_ptr<Fabric> other;
  std::thread peer([&] { other = must(make(1)); });
  std::unique_ptr<Fabric> fabric = must(make(0));
  peer.join();
  std::thread worker([&] {
    auto place = must(fabric->init_thread(1, CallConsumer::kHelpers));
    EXPECT_TRUE(wait_until([&] { return began == 2; }, soon()));
  });
  {
    auto place = must(fabric->init_thread(0, CallConsumer::kHelpers));
    for (uint32_t index = 0; index < 2; ++index) {
      must(call(*fabric, fabric->thread_of(0, index), [] {
        ++began;
        EXPECT_FALSE(service_call(*running_fabric(), 1, [] {}).ok());
        ++ended;
      }));
    }
    EXPECT_TRUE(wait_until([&] { return began == 2 && requests == 1; }, soon()));
    worker.join();
  }
  fabric.reset();
  EXPECT_EQ(ended, 2);
}

// Forwards the requests of a process to a broker in memory, unless `request` answers them.
class FilteredBroker final : public internal::Broker {
 public:
  using Request = std::function<absl::StatusOr<std::string>(
      internal::Broker& broker, int rank, std::string_view request, Deadline deadline)>;
  FilteredBroker(std::unique_ptr<internal::Broker> broker, Request request)
      : broker_(std::move(broker)), request_(std::move(request)) {}
  void stop() override { broker_->stop(); }
  absl::StatusOr<std::string> request(int rank, std::string_view request,
                                      Deadline deadline) override {
    return request_(*broker_, rank, request, deadline);
  }

 private:
  const std::unique_ptr<internal::Broker> broker_;
  const Request request_;
};

// Rank 0 refuses the offer of rank 1, because it makes one itself. That offer does not arrive. Then
// rank 1 repeats its own.
TEST(ConnectTest, ARefusedOfferIsRepeatedIfThePeersOfferFails) {
  auto store = make_local_store(2);
  std::atomic<bool> offering{false};
  std::atomic<bool> refused{false};
  const FilteredBroker::Request of_rank[] = {
      [&](internal::Broker& broker, int rank, std::string_view request, Deadline deadline) {
        if (offering.exchange(true)) return broker.request(rank, request, deadline);
        EXPECT_TRUE(wait_until([&] { return refused.load(); }, soon()));
        return absl::StatusOr<std::string>(absl::DeadlineExceededError("not delivered"));
      },
      [&](internal::Broker& broker, int rank, std::string_view request, Deadline deadline) {
        auto answer = broker.request(rank, request, deadline);
        if (answer.ok() && answer->empty()) refused = true;
        return answer;
      }};
  const auto run = [&](uint32_t rank) {
    FabricOptions options;
    options.threads = 1;
    auto fabric = must(internal::create_fabric(
        options, make_local_bootstrap(store, rank),
        [&](Bootstrap&, auto handler) -> absl::StatusOr<std::unique_ptr<internal::Broker>> {
          return std::make_unique<FilteredBroker>(
              make_local_broker(store, rank, std::move(handler)), of_rank[rank]);
        }));
    if (rank == 0) {
      const absl::Status late = service_call(*fabric, 1, [] {});
      EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    } else {
      EXPECT_TRUE(wait_until([&] { return offering.load(); }, soon()));
      must(service_call(*fabric, 0, [] {}));
    }
    must(fabric->finalize(soon()));
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

}  // namespace
}  // namespace cariama::testing
