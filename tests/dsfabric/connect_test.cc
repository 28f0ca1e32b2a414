// The end of a fabric while its threads connect.
#include <atomic>
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

}  // namespace
}  // namespace cariama::testing
