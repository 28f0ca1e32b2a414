// Offers that fail or are refused, and the end of a fabric while its threads connect.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "dsfabric/fabric.h"
#include "dsfabric/fabric/create_fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/local_store.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/testing/process_state.h"
#include "tests/dtutils/testing/process_test.h"

namespace cariama::testing {
namespace {

using ::testing::HasSubstr;

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

// Runs a job of two processes in one address space. The peer of `offers` answers the first offer of
// `offers`, whose deadline ends before the answer arrives. Then `connects` calls the other process.
void lose_the_first_answer(uint32_t offers, uint32_t connects) {
  auto store = make_local_store(2);
  std::atomic<bool> lost{false};
  std::atomic<bool> called{false};
  const auto run = [&](uint32_t rank) {
    FabricOptions options;
    options.threads = 1;
    options.timeout = std::chrono::seconds(10);
    bool first = rank == offers;
    auto fabric = must(internal::create_fabric(
        options, make_local_bootstrap(store, rank),
        [&](Bootstrap&, auto handler) -> absl::StatusOr<std::unique_ptr<internal::Broker>> {
          return std::make_unique<FilteredBroker>(
              make_local_broker(store, rank, std::move(handler)),
              [&](internal::Broker& broker, int to, std::string_view request, Deadline deadline) {
                auto answer = broker.request(to, request, deadline);
                if (!std::exchange(first, false)) return answer;
                EXPECT_TRUE(answer.ok() && !answer->empty()) << "the offer was not accepted";
                return absl::StatusOr<std::string>(absl::DeadlineExceededError("late"));
              });
        }));
    if (rank == offers) {
      const absl::Status late = service_call(*fabric, 1 - rank, [] {});
      EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
      lost = true;
    }
    EXPECT_TRUE(wait_until([&] { return lost.load(); }, soon()));
    if (rank == connects) {
      const absl::Status connected = service_call(*fabric, 1 - rank, [] {});
      EXPECT_TRUE(connected.ok()) << connected;
      called = true;
    }
    EXPECT_TRUE(wait_until([&] { return called.load(); }, soon()));
    EXPECT_EQ(fabric->peer_status(1 - rank), absl::OkStatus());
    must(fabric->finalize(soon()));
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

TEST(ConnectTest, ANewerOfferReplacesOneWhoseAnswerCameTooLate) {
  for (const uint32_t rank : {0u, 1u}) lose_the_first_answer(rank, rank);
}

TEST(ConnectTest, AProcessThatAnsweredAnEndedOfferConnectsItself) {
  for (const uint32_t rank : {0u, 1u}) lose_the_first_answer(rank, 1 - rank);
}

// The point of the protocol at which rank 1 is stopped.
enum class Stop : uint8_t { kBeforeItsAnswer, kAfterItsAnswer };

// Rank 0 offers, and rank 1 accepts the offer and is stopped. The offer ends at a deadline. Rank 1
// continues, and rank `connects` calls the other process.
void stop_a_process_that_answers(Stop stop, uint32_t connects) {
  const absl::Status status = try_test_processes(2, [&](Exchange& exchange) {
    FabricOptions options;
    options.timeout = std::chrono::seconds(5);
    options.on_failure = FailurePolicy::kContinue;
    const auto pid_of_1 = [&] { return std::stoi(must(exchange.get(1, "pid", soon()))); };
    using MadeBroker = absl::StatusOr<std::unique_ptr<internal::Broker>>;
    auto fabric = must(
        fabric_of_group(exchange, options, [&](Bootstrap& job, const auto& handler) -> MadeBroker {
          const bool stops = job.rank() == 1 && stop == Stop::kBeforeItsAnswer;
          auto broker = make_group_broker(
              job, [handler, first = stops](int from, std::string_view request) mutable {
                auto answer = handler(from, request);
                if (std::exchange(first, false)) raise(SIGSTOP);
                return answer;
              });
          if (!broker.ok()) return broker;
          return std::make_unique<FilteredBroker>(
              *std::move(broker),
              [pid_of_1, first = job.rank() == 0 && stop == Stop::kAfterItsAnswer](
                  internal::Broker& to, int rank, std::string_view request,
                  Deadline deadline) mutable {
                auto answer = to.request(rank, request, deadline);
                if (std::exchange(first, false)) {
                  EXPECT_TRUE(stop_process(pid_of_1(), soon()));
                }
                return answer;
              });
        }));
    auto place = must(fabric->init_thread(0));
    if (fabric->rank() == 1) must(exchange.put("pid", std::to_string(getpid())));
    if (fabric->rank() == 0) {
      const pid_t peer = pid_of_1();
      const absl::Status late = service_call(*fabric, 1, [] {});
      EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
      must(exchange.put("ended", "1"));
      EXPECT_EQ(kill(peer, SIGCONT), 0);
    }
    static_cast<void>(must(exchange.get(0, "ended", soon())));
    if (fabric->rank() == connects) {
      must(service_call(*fabric, 1 - connects, [] {}));
      must(exchange.put("called", "1"));
    }
    static_cast<void>(must(exchange.get(static_cast<int>(connects), "called", soon())));
    EXPECT_EQ(fabric->peer_status(1 - fabric->rank()), absl::OkStatus());
    must(fabric->finalize(soon()));
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ConnectTest, AProcessThatWasStoppedBeforeItsAnswerIsConnectedByANewOffer) {
  stop_a_process_that_answers(Stop::kBeforeItsAnswer, 0);
}

TEST(ConnectTest, AProcessThatWasStoppedBeforeItsAnswerConnectsItself) {
  stop_a_process_that_answers(Stop::kBeforeItsAnswer, 1);
}

TEST(ConnectTest, AProcessThatWasStoppedAfterItsAnswerIsConnectedByANewOffer) {
  stop_a_process_that_answers(Stop::kAfterItsAnswer, 0);
}

TEST(ConnectTest, AProcessThatWasStoppedAfterItsAnswerConnectsItself) {
  stop_a_process_that_answers(Stop::kAfterItsAnswer, 1);
}

// The confirmation of rank 0 does not arrive, and both processes wait for each other.
TEST(ConnectTest, EachRequestEndsWithTheLease) {
  auto store = make_local_store(2);
  std::atomic<bool> answered{false};
  std::atomic<int> ended{0};
  const auto run = [&](uint32_t rank) {
    FabricOptions options;
    options.threads = 1;
    options.on_failure = FailurePolicy::kContinue;
    options.lease = std::chrono::seconds(1);
    options.timeout = std::chrono::minutes(2);  // longer than soon()
    auto fabric = must(internal::create_fabric(
        options, make_local_bootstrap(store, rank),
        [&](Bootstrap&, auto handler) -> absl::StatusOr<std::unique_ptr<internal::Broker>> {
          return std::make_unique<FilteredBroker>(
              make_local_broker(store, rank, std::move(handler)),
              [&](internal::Broker& broker, int to, std::string_view request,
                  Deadline deadline) -> absl::StatusOr<std::string> {
                EXPECT_LE(deadline, deadline_after(options.lease)) << "of rank " << rank;
                if (rank == 0 && answered) {
                  static_cast<void>(wait_until([] { return false; }, std::min(deadline, soon())));
                  return absl::DeadlineExceededError("not delivered");
                }
                auto answer = broker.request(to, request, deadline);
                answered = true;
                return answer;
              });
        }));
    EXPECT_TRUE(wait_until([&] { return rank == 0 || answered.load(); }, soon()));
    const absl::Status lost = service_call(*fabric, 1 - rank, [] {});
    EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
    // Rank 1 may see first that rank 0 has ended the connection.
    if (rank == 0) {
      EXPECT_THAT(lost.ToString(), HasSubstr("no sign of life for 1000 ms"));
    }
    ++ended;
    EXPECT_TRUE(wait_until([&] { return ended == 2; }, soon()));
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

// Rank 0 connects to rank 1, which is stopped after it has answered the offer. Rank 2 is connected
// to both: it sends rank 0 a death notice while rank 0 still waits for the process of rank 1.
// Meanwhile rank 3 connects to rank 0.
TEST(ConnectTest, AProcessThatConnectsToAStoppedOneGivesSignsOfLife) {
  RunOptions run;
  run.may_die = {1};
  const absl::Status status = try_test_processes(
      4,
      [](Exchange& exchange) {
        static std::atomic<bool> connected_to_2;
        FabricOptions options;
        options.on_failure = FailurePolicy::kContinue;
        options.lease = std::chrono::seconds(3);
        using MadeBroker = absl::StatusOr<std::unique_ptr<internal::Broker>>;
        pid_t victim = 0;
        auto fabric = must(fabric_of_group(
            exchange, options, [&](Bootstrap& job, const auto& handler) -> MadeBroker {
              auto broker = make_group_broker(job, handler);
              if (!broker.ok() || job.rank() != 0) return broker;
              return std::make_unique<FilteredBroker>(
                  *std::move(broker),
                  [&](internal::Broker& to, int rank, std::string_view request, Deadline deadline) {
                    auto answer = to.request(rank, request, deadline);
                    EXPECT_TRUE(stop_process(victim, soon()));
                    must(exchange.put("stopped", "1"));
                    return answer;
                  });
            }));
        auto place = must(fabric->init_thread(0));
        if (fabric->rank() == 1) return wait_to_be_killed(*fabric);
        if (fabric->rank() == 3) {
          static_cast<void>(must(exchange.get(0, "stopped", soon())));
          must(service_call(*fabric, 0, [] {}));
        } else if (fabric->rank() == 2) {
          must(async_call(*fabric, 0, [] { connected_to_2 = true; }).get(soon()));
          const pid_t pid = must(async_call(*fabric, 1, [] { return getpid(); }).get(soon()));
          must(exchange.put("pid", std::to_string(pid)));
          EXPECT_TRUE(fabric->wait([&] { return !fabric->peer_status(1).ok(); }, soon()));
          static_cast<void>(must(exchange.get(0, "ended", soon())));
        } else {
          EXPECT_TRUE(fabric->wait([] { return connected_to_2.load(); }, soon()));
          victim = std::stoi(must(exchange.get(2, "pid", soon())));
          const absl::Status lost = service_call(*fabric, 1, [] {});
          EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
          must(exchange.put("ended", "1"));
        }
        const uint32_t other = fabric->rank() == 0 ? 2 : 0;
        EXPECT_EQ(fabric->peer_status(other), absl::OkStatus());
        must(async_call(*fabric, other, [] {}).get(soon()));
        must(fabric->finalize(soon()));
        if (fabric->rank() == 0) {
          EXPECT_EQ(kill(victim, SIGKILL), 0);
        }
      },
      run);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace cariama::testing
