#include "tests/dsfabric/testing/local_job.h"
#include "dsfabric/fabric/create_fabric.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/local_store.h"

namespace cariama::testing {

TransportCase transport_case(std::string_view name) {
  for (const TransportCase& transport : every_transport()) {
    if (transport.name == name) return transport;
  }
  throw std::runtime_error("there is no transport " + std::string(name));
}

void expect_dead(const absl::Status& status, const Fabric& fabric, Rank rank) {
  using ::testing::HasSubstr;
  using ::testing::Not;
  const std::string text(status.message());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(text, HasSubstr(fabric.label(rank)));
  for (const char* word : {"queue pair", "RECEIVE", "repair"})
    EXPECT_THAT(text, Not(HasSubstr(word)));
}

Deadline soon() { return deadline_after(kPatience); }

// Runs one thread at a time. A thread that waits passes the turn to a thread that the seed chooses.
class Stepper {
 public:
  Stepper(uint32_t threads, uint64_t seed) : places_(threads), random_(seed) {
    for (auto& place : places_) place = std::make_unique<Place>();
    places_[0]->turn = true;
  }

  void enter(uint32_t thread) {
    std::unique_lock lock(mutex_);
    wait_for_turn(lock, thread);
  }
  void pass(uint32_t thread) {
    std::unique_lock lock(mutex_);
    // Any thread's poll advances a simulated fabric, and changing threads costs far more than a
    // poll: so change only sometimes.
    if (random_() % kLooksPerTurn != 0) return;
    const uint32_t next = choose();
    if (next == thread) return;
    give_turn(thread, next);
    wait_for_turn(lock, thread);
  }
  void leave(uint32_t thread) {
    const std::lock_guard lock(mutex_);
    places_[thread]->gone = true;
    ++gone_;
    if (gone_ != places_.size()) give_turn(thread, choose());
  }

  class Hook final : public WaitHook {
   public:
    Hook(Stepper& stepper, uint32_t thread) : stepper_(stepper), thread_(thread) {}
    bool pause(uint64_t) override {
      stepper_.pass(thread_);
      return false;
    }

   private:
    Stepper& stepper_;
    uint32_t thread_;
  };

 private:
  static constexpr uint64_t kLooksPerTurn = 16;

  struct Place {
    bool turn = false;
    bool gone = false;
    std::condition_variable changed;
  };

  uint32_t choose() {
    while (true) {
      const auto next = static_cast<uint32_t>(random_() % places_.size());
      if (!places_[next]->gone) return next;
    }
  }
  void give_turn(uint32_t from, uint32_t to) {
    places_[from]->turn = false;
    places_[to]->turn = true;
    places_[to]->changed.notify_one();
  }
  void wait_for_turn(std::unique_lock<std::mutex>& lock, uint32_t thread) {
    places_[thread]->changed.wait(lock, [&] { return places_[thread]->turn; });
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Place>> places_;
  std::mt19937_64 random_;
  size_t gone_ = 0;
};

struct LocalJob::Process {
  std::shared_ptr<Device> device;
  std::unique_ptr<Fabric> fabric;
  std::atomic<bool> created{false};
  std::atomic<uint32_t> returned{0};
  std::atomic<bool> ended{false};
};

LocalJob::LocalJob(LocalJobOptions options)
    : options_(std::move(options)), threads_(options_.fabric.threads.value_or(1)) {
  const bool in_steps = options_.transport.base == Transport::kSim;
  options_.fabric.threads = threads_;
  options_.fabric.on_failure = FailurePolicy::kContinue;
  if (in_steps) {
    // Decisions that depend on real time could not be replayed.
    options_.fabric.service_threads = 0;
    if (options_.fabric.heartbeat == FabricOptions{}.heartbeat) {
      if (options_.fabric.heartbeat != std::chrono::milliseconds::zero()) {
        options_.fabric.heartbeat = std::chrono::hours(1);
      }
    }
    if (options_.fabric.return_units_after == FabricOptions{}.return_units_after) {
      options_.fabric.return_units_after = std::chrono::hours(1);
    }
    options_.sim.seed = options_.seed;
    sim_ = std::make_shared<SimFabric>(options_.sim);
    stepper_ = std::make_unique<Stepper>(options_.processes * threads_, options_.seed);
  }
  store_ = make_local_store(options_.processes);
  for (uint32_t rank = 0; rank < options_.processes; ++rank) {
    processes_.push_back(std::make_unique<Process>());
  }
  make_devices();
}

LocalJob::~LocalJob() = default;

void LocalJob::make_devices() {
  for (uint32_t rank = 0; rank < options_.processes; ++rank) {
    std::shared_ptr<Device> device =
        sim_ != nullptr ? sim_->create_endpoint()
                        : must(open_device({.transport = options_.transport.base}));
    if (options_.transport.fault) {
      // On sim all devices share one control, because a poll of any device advances all of them.
      if (sim_ == nullptr || controls_.empty()) {
        controls_.push_back(std::make_shared<FaultControl>());
      }
      device = make_fault_device(std::move(device), options_.faults(options_.seed * 1000 + rank),
                                 controls_.back());
    }
    processes_[rank]->device = std::move(device);
  }
}

FaultControl* LocalJob::faults(uint32_t rank) const {
  if (controls_.empty()) return nullptr;
  return controls_[controls_.size() == 1 ? 0 : rank].get();
}

void LocalJob::meet(uint32_t parties) {
  const uint64_t mine = met_.fetch_add(1) + 1;
  const uint64_t all = (mine + parties - 1) / parties * parties;
  EXPECT_TRUE(wait_until([&] { return met_.load() >= all; }, soon())) << "a party is missing";
}

void LocalJob::run_thread(uint32_t rank, uint32_t thread,
                          const std::function<void(Fabric&, uint32_t)>& body) {
  Process& self = *processes_[rank];
  if (thread == 0) {
    FabricOptions options = options_.fabric;
    options.device = std::move(self.device);
    auto fabric = internal::create_fabric(
        options, make_local_bootstrap(store_, rank),
        [&](Bootstrap&, auto handler) -> absl::StatusOr<std::unique_ptr<internal::Broker>> {
          return make_local_broker(store_, rank, std::move(handler));
        });
    EXPECT_TRUE(fabric.ok()) << fabric.status();
    if (fabric.ok()) self.fabric = *std::move(fabric);
    self.created = true;
  } else {
    EXPECT_TRUE(wait_until([&] { return self.created.load(); }, soon()));
  }
  if (self.fabric == nullptr) return;

  Fabric& fabric = *self.fabric;
  {
    std::unique_ptr<ThreadContext> context;
    if (options_.init_thread) context = must(fabric.init_thread(thread));
    try {
      body(fabric, thread);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << " thread " << thread << ": " << error.what();
    }
    self.returned.fetch_add(1);
    if (thread != 0) {
      if (context != nullptr && options_.threads_stay) {
        EXPECT_TRUE(fabric.wait([&] { return self.ended.load(); }, soon()));
      }
      return;
    }
    const auto let_go = [&] {
      self.ended = true;
      for (uint32_t i = 1; i < threads_; ++i) fabric.wake(i);
    };
    // `returned` changes without a wake-up, so poll.
    EXPECT_TRUE(fabric.wait_polling([&] { return self.returned.load() == threads_; }, soon()));
    if (options_.finalize) {
      const absl::Status ended = fabric.finalize(soon());
      EXPECT_TRUE(ended.ok()) << "rank " << rank << ": " << ended;
    }
    let_go();
  }
}

void LocalJob::run(const std::function<void(Fabric&, uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < options_.processes; ++rank) {
    for (uint32_t thread = 0; thread < threads_; ++thread) {
      threads.emplace_back([this, rank, thread, &body] {
        const uint32_t number = rank * threads_ + thread;
        std::optional<Stepper::Hook> hook;
        std::optional<ScopedWaitHook> installed;
        if (stepper_ != nullptr) {
          stepper_->enter(number);
          hook.emplace(*stepper_, number);
          installed.emplace(*hook);
        }
        try {
          run_thread(rank, thread, body);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << " thread " << thread << ": " << error.what();
        }
        if (stepper_ != nullptr) stepper_->leave(number);
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  // For every transport: destroy the fabrics one after the other, in the order of their ranks.
  for (auto& process : processes_) process->fabric.reset();
}

}  // namespace cariama::testing
