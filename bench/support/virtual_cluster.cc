#include "bench/support/virtual_cluster.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "dsfabric/bootstrap/job_directory.h"
#include "dsfabric/fabric/create_fabric.h"
#include "dtutils/wait.h"
#include "riutils/internal/runtime.h"
#include "tests/dsfabric/testing/local_store.h"

namespace cariama::bench {
namespace {

using namespace std::chrono_literals;

// Step by which the network advances while processes wait for messages.
constexpr SimTime kTick = 250ns;
// Virtual time that a waiting process needs to poll once.
constexpr SimTime kPollCost = 100ns;
// Real time that the end of the job may take.
constexpr auto kPatience = std::chrono::minutes(10);

}  // namespace

// Selects the process that runs, and maintains the clocks.
class VirtualCluster::Turns {
 public:
  Turns(uint32_t processes, SimTime longest_sleep, SimFabric& sim)
      : sim_(sim), longest_sleep_(longest_sleep), places_(processes) {
    for (uint32_t rank = 0; rank < processes; ++rank) {
      places_[rank] = std::make_unique<Place>();
      due_.emplace(SimTime(0), rank);
    }
    places_[0]->turn = true;
    sim_.set_horizon(sim_.now());
  }

  void enter(uint32_t rank) {
    std::unique_lock lock(mutex_);
    wait_for_turn(lock, rank);
  }
  void leave(uint32_t rank) {
    const std::lock_guard lock(mutex_);
    places_[rank]->gone = true;
    places_[rank]->turn = false;
    set_due(rank);
    if (!due_.empty()) give_turn(choose());
  }
  void spend(uint32_t rank, SimTime time) {
    std::unique_lock lock(mutex_);
    places_[rank]->state.clock += time;
    places_[rank]->state.busy += time;
    set_due(rank);
    pass(lock, rank);
  }
  void sleep(uint32_t rank) {
    std::unique_lock lock(mutex_);
    places_[rank]->sleeping = true;
    set_due(rank);
    note_arrivals();
    reached_.erase(rank);  // the process has seen what had arrived
    pass(lock, rank);
  }
  void wake_all() {
    const std::lock_guard lock(mutex_);
    for (uint32_t rank = 0; rank < places_.size(); ++rank) {
      if (places_[rank]->sleeping) reached_.insert(rank);
    }
  }
  [[nodiscard]] Process process(uint32_t rank) const {
    const std::lock_guard lock(mutex_);
    return places_[rank]->state;
  }

 private:
  struct Place {
    Process state;
    bool turn = false;
    bool gone = false;
    bool sleeping = false;
    SimTime due{0};  // when the process continues by itself
    std::condition_variable changed;
  };

  void pass(std::unique_lock<std::mutex>& lock, uint32_t rank) {
    const uint32_t next = choose();
    if (next == rank) return;
    places_[rank]->turn = false;
    give_turn(next);
    wait_for_turn(lock, rank);
  }
  void give_turn(uint32_t rank) {
    places_[rank]->turn = true;
    places_[rank]->changed.notify_one();
  }
  void wait_for_turn(std::unique_lock<std::mutex>& lock, uint32_t rank) {
    places_[rank]->changed.wait(lock, [&] { return places_[rank]->turn; });
  }

  // Updates due_ after a change of the process's place.
  void set_due(uint32_t rank) {
    Place& place = *places_[rank];
    due_.erase({place.due, rank});
    place.due = place.state.clock + (place.sleeping ? longest_sleep_ : SimTime(0));
    if (!place.gone) due_.emplace(place.due, rank);
  }
  void note_arrivals() {
    for (const uint32_t rank : sim_.take_arrivals()) reached_.insert(rank);
  }

  // Returns the process that runs next; advances the network to its clock.
  uint32_t choose() {
    const auto [due, first] = *due_.begin();
    if (const std::optional<uint32_t> reached = find_reached()) return begin(*reached);
    uint64_t events = sim_.statistics().events;
    while (sim_.now() < due) {
      sim_.run_until(std::min(sim_.now() + kTick, due));
      if (sim_.statistics().events == events) continue;
      events = sim_.statistics().events;
      if (const std::optional<uint32_t> reached = find_reached()) return begin(*reached);
    }
    return begin(first);
  }
  // Returns a sleeping process at which a message has arrived, if there is one.
  [[nodiscard]] std::optional<uint32_t> find_reached() {
    note_arrivals();
    while (!reached_.empty()) {
      const uint32_t rank = *reached_.begin();
      if (!places_[rank]->gone && places_[rank]->sleeping) return rank;
      reached_.erase(reached_.begin());
    }
    return std::nullopt;
  }
  uint32_t begin(uint32_t rank) {
    Place& place = *places_[rank];
    if (place.sleeping) {
      place.sleeping = false;
      const SimTime now = std::max(sim_.now(), place.state.clock) + kPollCost;
      place.state.idle += now - place.state.clock;
      place.state.clock = now;
      set_due(rank);
    }
    sim_.set_horizon(sim_.now());
    return rank;
  }

  SimFabric& sim_;
  const SimTime longest_sleep_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Place>> places_;
  std::set<std::pair<SimTime, uint32_t>> due_;  // Place::due and rank of the processes
  std::set<uint32_t> reached_;  // processes at which messages have arrived, or to be woken
};

namespace {

// VirtualCluster::spend() for the process that the calling thread simulates.
thread_local std::function<void(SimTime)> spend_here;

// The wait hook of a simulated process. A wait and each spend() first do the work of the process's
// helper (riutils/internal/runtime.h), so that no helper thread acts in real time.
template <typename Turns>
class SleepInTurns final : public WaitHook {
 public:
  SleepInTurns(Turns& turns, uint32_t rank) : turns_(turns), rank_(rank) {}
  bool pause(uint64_t) override {
    help();
    turns_.sleep(rank_);
    return false;
  }
  void spend(SimTime time) {
    help();
    turns_.spend(rank_, time);
  }
  void set_runtime(internal::Runtime* runtime) { runtime_ = runtime; }

 private:
  void help() {
    if (runtime_ != nullptr) runtime_->drain_once();
  }

  Turns& turns_;
  uint32_t rank_;
  internal::Runtime* runtime_ = nullptr;
};

}  // namespace

namespace {

// One thread for each process, with stacks of a given size.
class Threads {
 public:
  Threads(uint32_t processes, size_t stack_bytes, const std::function<void(uint32_t)>& body)
      : stack_bytes_(stack_bytes), body_(body), starts_(processes) {}

  // Starts all threads, or ends the process of the operating system: threads that have started wait
  // for those that have not.
  [[nodiscard]] absl::Status start() {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    int error = 0;
    if (stack_bytes_ != 0) {
      error = pthread_attr_setstacksize(&attributes, stack_bytes_);
      // A guard page makes two mappings of each stack. The number of mappings limits the processes.
      if (error == 0) error = pthread_attr_setguardsize(&attributes, 0);
    }
    for (uint32_t rank = 0; rank < starts_.size() && error == 0; ++rank) {
      starts_[rank] = {this, rank, {}};
      error = pthread_create(&starts_[rank].thread, &attributes, &Threads::run, &starts_[rank]);
      if (error != 0) {
        std::fprintf(stderr,
                     "cannot start thread %u of %zu: %s; raise ulimit -u, vm.max_map_count or the "
                     "memory, or simulate fewer processes\n",
                     rank, starts_.size(), std::strerror(error));
        std::_Exit(1);
      }
    }
    pthread_attr_destroy(&attributes);
    return error == 0 ? absl::OkStatus() : absl::InvalidArgumentError("stack_bytes");
  }
  void join() {
    for (const Start& start : starts_) pthread_join(start.thread, nullptr);
  }

 private:
  struct Start {
    Threads* threads = nullptr;
    uint32_t rank = 0;
    pthread_t thread{};
  };
  static void* run(void* argument) {
    const Start& start = *static_cast<const Start*>(argument);
    start.threads->body_(start.rank);
    return nullptr;
  }

  const size_t stack_bytes_;
  const std::function<void(uint32_t)>& body_;
  std::vector<Start> starts_;
};

}  // namespace

VirtualCluster::VirtualCluster(const VirtualClusterOptions& options)
    : options_(options),
      sim_(std::make_shared<SimFabric>(options.sim)),
      store_(testing::make_local_store(options.processes)),
      killed_(options.processes) {
  for (uint32_t rank = 0; rank < options.processes; ++rank) {
    devices_.push_back(sim_->create_endpoint());
  }
}
VirtualCluster::~VirtualCluster() = default;

void VirtualCluster::spend(SimTime time) { spend_here(time); }

void VirtualCluster::kill(uint32_t rank) {
  sim_->kill(rank);
  testing::mark_ended(*store_, rank);
  killed_[rank] = true;
}

void VirtualCluster::wake_all() { turns_->wake_all(); }

uint64_t VirtualCluster::store_operations(uint32_t rank) const {
  return testing::store_operations(*store_, rank);
}

VirtualCluster::Process VirtualCluster::process(uint32_t rank) const {
  return turns_->process(rank);
}

absl::Status VirtualCluster::run(const std::function<void(Fabric&)>& body) {
  turns_ = std::make_unique<Turns>(options_.processes, options_.longest_sleep, *sim_);
  internal::SharedJobDirectory directory;
  std::vector<std::unique_ptr<Fabric>> fabrics(options_.processes);
  absl::Status failed;  // unguarded, as all variables here: one thread runs at a time
  uint32_t returned = 0;
  const auto run_process = [&](uint32_t rank, SleepInTurns<Turns>& hook) {
    FabricOptions options = options_.fabric;
    options.threads = 1;
    options.service_threads = 0;
    options.heartbeat = std::chrono::hours(1);  // disabled in effect: heartbeats use real time
    options.on_failure = FailurePolicy::kContinue;
    options.device = std::move(devices_[rank]);
    auto fabric = internal::create_fabric(
        options, testing::make_local_bootstrap(store_, rank),
        [&](Bootstrap&, auto handler) -> absl::StatusOr<std::unique_ptr<internal::Broker>> {
          return testing::make_local_broker(store_, rank, std::move(handler));
        },
        &directory);
    if (!fabric.ok()) {
      failed.Update(fabric.status());
      ++returned;
      return;
    }
    fabrics[rank] = *std::move(fabric);
    internal::Runtime& runtime = internal::Runtime::of(*fabrics[rank]);
    runtime.drain_by_hand();
    hook.set_runtime(&runtime);
    body(*fabrics[rank]);
    if (!options_.finalize) {
      // Until all bodies have returned, others may need answers and credits of this process.
      if (++returned == options_.processes) turns_->wake_all();
      const auto all_returned = [&] { return returned == options_.processes; };
      static_cast<void>(fabrics[rank]->wait_polling(all_returned, deadline_after(kPatience)));
    } else if (!killed_[rank] && !fabrics[rank]->finalized()) {
      failed.Update(fabrics[rank]->finalize(deadline_after(kPatience)));
    }
    hook.set_runtime(nullptr);
  };
  const std::function<void(uint32_t)> run_thread = [&](uint32_t rank) {
    turns_->enter(rank);
    SleepInTurns<Turns> hook(*turns_, rank);
    const ScopedWaitHook installed(hook);
    spend_here = [&](SimTime time) { hook.spend(time); };
    run_process(rank, hook);
    turns_->leave(rank);
  };
  Threads threads(options_.processes, options_.stack_bytes, run_thread);
  absl::Status started = threads.start();
  if (!started.ok()) return started;
  threads.join();
  sim_->set_horizon(SimTime::max());
  for (auto& fabric : fabrics) fabric.reset();
  return failed;
}

}  // namespace cariama::bench
