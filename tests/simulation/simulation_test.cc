// Whole jobs in a simulation: fabrics with their service threads, the exchange of the launcher, the
// sockets of the brokers and the clock. A seed determines everything: the order of the threads, the
// network, and what happens to the job: a death, a pause, a cut of the network. It replays exactly.
//
//   CARIAMA_SIMULATION_SEEDS=1:100000 simulation_test --gtest_filter=*Seeds*
#include <poll.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dsfabric/collectives.h"
#include "dsfabric/fabric.h"
#include "dsfabric/future.h"
#include "dsfabric/send_call.h"
#include "dtutils/internal/exchange_client.h"
#include "dtutils/internal/exchange_server.h"
#include "dtutils/random.h"
#include "dtutils/sim/sim_fabric.h"
#include "gtest/gtest.h"
#include "mcts/search.h"
#include "riutils/call.h"
#include "riutils/messenger.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/contract/harness.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/dtutils/testing/shared.h"
#include "tests/mcts/testing/searches.h"
#include "tests/mcts/testing/tic_tac_toe.h"
#include "tests/simulation/simulation_threads.h"

namespace cariama::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr uint32_t kProcesses = 3;
constexpr milliseconds kLease{200};
constexpr uint64_t kCalls = 20;  // of a process to another one, of each form

Deadline in_time() { return deadline_after(std::chrono::seconds(60)); }

// ---- What happens to a job ----------------------------------------------------------------------

enum class Fate : uint8_t { kCalm, kKill, kPause, kStop, kCut };
constexpr std::string_view kFates[] = {"calm", "kill", "pause", "stop", "cut"};

// A pause is shorter than the lease, a stop longer. A cut separates the victim from the others, for
// a time that may be shorter or longer than the retries of the transport.
struct Plan {
  uint64_t seed;
  Fate fate;
  uint32_t victim;
  nanoseconds time;      // of the fate
  nanoseconds duration;  // of a pause, stop or cut
  SimOptions network;
  uint32_t receive_units;
  bool searches;
  bool restarts;  // the launcher starts the job once more after it has ended

  explicit Plan(uint64_t number) : seed(number) {
    Random random(number);
    fate = static_cast<Fate>(random.next() % std::size(kFates));
    victim = static_cast<uint32_t>(random.next() % kProcesses);
    time = microseconds(random.next() % 20'000);
    const auto lease = static_cast<uint64_t>(nanoseconds(kLease).count());
    duration = fate == Fate::kPause  ? nanoseconds(random.next() % (lease / 4))
               : fate == Fate::kStop ? nanoseconds(4 * lease)
                                     : nanoseconds(random.next() % (2 * lease));
    network.seed = number;
    network.jitter = nanoseconds(random.next() % 2000);
    network.idle_grace = std::chrono::hours(1);
    if (random.next() % 4 == 0) {
      network.write_order = ArrivalOrder::kWithinWrite;
      network.torn_spread = nanoseconds(1000);
    }
    receive_units = 1 + random.next() % 8;
    searches = random.next() % 4 == 0;
    restarts = random.next() % 8 == 0;
  }
  // Returns true if all operations between the two processes must succeed.
  [[nodiscard]] bool connects(uint32_t a, uint32_t b) const {
    return fate == Fate::kCalm || fate == Fate::kPause || (a != victim && b != victim);
  }
};

// ---- A process of a job -------------------------------------------------------------------------

// What the processes of the job have seen. They share their memory, so that the handlers of calls
// find the state of their process here.
struct Seen {
  std::array<uint64_t, kProcesses> sent_calls{};  // that arrived, by sender
  std::array<uint64_t, kProcesses> one_sided_calls{};
  uint32_t passed_on = 0;                     // the ranks whose calls another rank has passed on
  std::vector<std::optional<uint64_t>> sums;  // results of all_reduce
  bool ended = false;
};
std::array<Seen, kProcesses> seen;
std::atomic<uint32_t> created;   // processes that have a fabric
std::atomic<bool> struck_early;  // something happened to the job before all had one

// Returns true if all operations between the two processes must succeed. Without the victim the
// others may have no fabric.
bool connects(const Plan& plan, uint32_t a, uint32_t b) {
  return plan.connects(a, b) && !struck_early;
}

// Expects the success of an operation between two processes, or an error that the plan explains.
void expect_end(const Plan& plan, uint32_t from, uint32_t to, const absl::Status& status) {
  if (status.ok()) return;
  EXPECT_FALSE(connects(plan, from, to)) << from << " to " << to << ": " << status;
  EXPECT_TRUE(absl::IsUnavailable(status)) << from << " to " << to << ": " << status;
}

void take(std::array<uint64_t, kProcesses>& counts, uint32_t from, uint64_t number) {
  EXPECT_EQ(counts[from], number) << "a call of rank " << from << " is lost, or ran twice";
  counts[from] = number + 1;
}

void send_calls(const Plan& plan, Fabric& fabric) {
  const uint32_t self = fabric.rank();
  // The call sends another one, for which its process may have to connect.
  const uint32_t next = (self + 1) % kProcesses;
  const uint32_t after = (self + 2) % kProcesses;
  expect_end(plan, self, next, call(fabric, next, [self, after] {
               static_cast<void>(call<RetryAsync>(*running_fabric(), after, [self, after] {
                 seen[after].passed_on |= 1 << self;
               }));
             }));
  for (uint64_t i = 0; i < kCalls; ++i) {
    for (uint32_t to = 0; to < kProcesses; ++to) {
      if (to == self) continue;
      expect_end(plan, self, to,
                 call(fabric, to, [self, to, i] { take(seen[to].sent_calls, self, i); }));
    }
  }
  for (uint32_t to = 0; to < kProcesses; ++to) {
    const auto answer = async_call(fabric, to, [self] { return self + 1; }).get(in_time());
    expect_end(plan, self, to, answer.status());
    if (answer.ok()) {
      EXPECT_EQ(*answer, self + 1);
    }
  }
}

void call_one_sided(const Plan& plan, Fabric& fabric, ThreadContext& context) {
  const uint32_t self = fabric.rank();
  for (uint32_t to = 0; to < kProcesses; ++to) {
    if (to == self) continue;
    RDMAMessenger messenger(context, fabric.thread_of(to), {});
    for (uint64_t i = 0; i < kCalls; ++i) {
      const absl::Status sent =
          messenger.call([self, to, i] { take(seen[to].one_sided_calls, self, i); });
      expect_end(plan, self, to, sent);
      if (!sent.ok()) break;
    }
    expect_end(plan, self, to, messenger.shutdown(in_time()));
  }
}

void agree(const Plan& plan, Fabric& fabric) {
  Collectives all(fabric, {.leave_out_dead = true});
  for (int round = 0; round < 3; ++round) {
    const auto sum = all.all_reduce(uint64_t{1} << fabric.rank(), std::plus<>(), in_time());
    expect_end(plan, fabric.rank(), plan.victim, sum.status());
    seen[fabric.rank()].sums.push_back(sum.ok() ? std::optional(*sum) : std::nullopt);
  }
}

void search(const Plan& plan, Fabric& fabric) {
  const uint32_t self = fabric.rank();
  // Rank 0 controls the search: the others end with it.
  const auto expect_search_end = [&](const absl::Status& status) {
    if (status.ok()) return;
    EXPECT_TRUE(plan.fate != Fate::kCalm && plan.fate != Fate::kPause) << self << ": " << status;
    EXPECT_TRUE(absl::IsUnavailable(status)) << self << ": " << status;
  };
  auto host = mcts::Host::create(&fabric);
  expect_search_end(host.status());
  if (!host.ok()) return;
  if (self != 0) return expect_search_end((*host)->serve());
  mcts::Search<mcts::testing::TicTacToe> search(**host);
  search.options().spread_visits = 100;  // rank 0 alone, and then all processes
  const auto result = search.run(mcts::testing::TicTacToe(), {.iterations = 300});
  EXPECT_GE(result.iterations, 200u);
  (*host)->end();
}

void run_process(const Plan& plan, Exchange& exchange, std::shared_ptr<Device> device) {
  FabricOptions options;
  options.device = std::move(device);
  options.on_failure = FailurePolicy::kContinue;
  options.heartbeat = milliseconds(20);
  options.lease = kLease;
  options.receive_units = plan.receive_units;
  options.reserved_units = 1 + plan.receive_units / 3;
  options.shared_unit_bytes = uint64_t{plan.receive_units} * options.receive_unit_bytes;
  options.return_units_after = options.heartbeat;
  auto made = fabric_of_group(exchange, options);
  const auto self = static_cast<uint32_t>(exchange.rank());
  expect_end(plan, self, plan.victim, made.status());
  if (!made.ok()) return;
  std::unique_ptr<Fabric> fabric = *std::move(made);
  ++created;
  auto context = must(fabric->init_thread(0));
  send_calls(plan, *fabric);
  agree(plan, *fabric);
  call_one_sided(plan, *fabric, *context);
  agree(plan, *fabric);
  context.reset();
  if (plan.searches) search(plan, *fabric);
  const absl::Status ended = fabric->finalize(in_time());
  expect_end(plan, self, plan.victim, ended);
  seen[self].ended = ended.ok();
}

// ---- The launcher -------------------------------------------------------------------------------

class Launcher {
 public:
  // The processes of the simulation that are the ranks begin with `first_process`.
  Launcher(const Plan& plan, uint32_t first_process)
      : plan_(plan),
        first_process_(first_process),
        network_(plan.network),
        server_(labels(), [](int, const absl::Status& why) { EXPECT_TRUE(why.ok()) << why; }) {}

  void run() {
    for (uint32_t rank = 0; rank < kProcesses; ++rank) start(rank);
    bool struck = plan_.fate == Fate::kCalm;
    bool healed = plan_.fate != Fate::kCut;
    while (!all_ended()) {
      if (!struck && simulation::now() - begin_ >= plan_.time) {
        strike();
        struck = true;
      }
      if (struck && !healed && simulation::now() - begin_ >= plan_.time + plan_.duration) {
        network_.heal();
        healed = true;
      }
      serve();
    }
    for (uint32_t rank = 0; rank < kProcesses; ++rank) {
      if (!is_killed(rank))
        threads_[rank].join();
      else
        threads_[rank].detach();
    }
  }

 private:
  static std::vector<std::string> labels() {
    std::vector<std::string> names;
    for (uint32_t rank = 0; rank < kProcesses; ++rank) {
      names.push_back("rank " + std::to_string(rank));
    }
    return names;
  }
  [[nodiscard]] uint32_t process_of(uint32_t rank) const { return first_process_ + rank; }
  [[nodiscard]] bool is_killed(uint32_t rank) const { return killed_ && rank == plan_.victim; }
  [[nodiscard]] bool all_ended() const {
    for (uint32_t rank = 0; rank < kProcesses; ++rank) {
      if (!is_killed(rank) && !reported_[rank]) return false;
    }
    return true;
  }

  void start(uint32_t rank) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    server_.connect(static_cast<int>(rank), ends[0]);
    simulation::give_descriptor(ends[1], process_of(rank));
    std::shared_ptr<Device> device = network_.create_endpoint();
    threads_[rank] = simulation::start(process_of(rank), [this, rank, socket = ends[1], device] {
      {
        ExchangeClient exchange(socket, static_cast<int>(rank), labels(), "the launcher");
        run_process(plan_, exchange, device);
      }
      ended_[rank] = true;
    });
  }

  void strike() {
    const uint32_t victim = plan_.victim;
    struck_early = plan_.fate != Fate::kPause && created < kProcesses;
    switch (plan_.fate) {
      case Fate::kCalm:
        break;
      case Fate::kKill:
        if (ended_[victim]) break;
        simulation::kill(process_of(victim));
        network_.kill(victim);
        killed_ = true;
        server_.rank_ended(static_cast<int>(victim), "was killed by signal 9 (Killed)");
        break;
      case Fate::kPause:
      case Fate::kStop:
        simulation::stop(process_of(victim), plan_.duration);
        break;
      case Fate::kCut:
        network_.partition(std::array{victim});
        break;
    }
  }

  void serve() {
    std::vector<pollfd> entries;
    server_.append_polled(entries);
    poll(entries.data(), entries.size(), 1);
    server_.serve(entries);
    for (uint32_t rank = 0; rank < kProcesses; ++rank) {
      if (!ended_[rank] || is_killed(rank) || std::exchange(reported_[rank], true)) continue;
      server_.rank_ended(static_cast<int>(rank), "has ended");
    }
  }

  const Plan& plan_;
  const uint32_t first_process_;
  const nanoseconds begin_ = simulation::now();
  SimFabric network_;
  ExchangeServer server_;
  std::array<std::thread, kProcesses> threads_;
  std::array<std::atomic<bool>, kProcesses> ended_{};
  std::array<bool, kProcesses> reported_{};
  bool killed_ = false;
};

void run_job(const Plan& plan, uint32_t first_process = 1) {
  for (Seen& one : seen) one = Seen();
  created = 0;
  struck_early = false;
  Launcher launcher(plan, first_process);
  launcher.run();
  for (uint32_t a = 0; a < kProcesses; ++a) {
    // Two parts of a cut job cannot both go on: finalize() leaves out the part without rank 0.
    // The link between the victim and another process may fail before, or without, that to rank 0:
    // finalize() leaves out the higher rank of the two, and keeps to it if rank 0 loses the victim
    // later.
    const bool left_out = plan.fate == Fate::kCut && (plan.victim == 0 || plan.victim < a);
    const bool lives = plan.fate == Fate::kCalm || plan.fate == Fate::kPause ||
                       (a != plan.victim && !left_out && !struck_early);
    EXPECT_TRUE(seen[a].ended || !lives) << "rank " << a;
    if (plan.fate == Fate::kCalm || plan.fate == Fate::kPause) {
      EXPECT_EQ(seen[a].passed_on, 1u << (a + 1) % kProcesses) << "rank " << a;
    }
    for (uint32_t b = 0; b < kProcesses; ++b) {
      if (a == b || !connects(plan, a, b)) continue;
      EXPECT_EQ(seen[a].sent_calls[b], kCalls) << b << " to " << a;
      EXPECT_EQ(seen[a].one_sided_calls[b], kCalls) << b << " to " << a;
      EXPECT_EQ(seen[a].sums, seen[b].sums) << a << " and " << b;
    }
  }
}

// ---- Seeds --------------------------------------------------------------------------------------

struct Outcome {
  int status = 0;  // as of waitpid()
  uint64_t hash = 0;
  uint64_t turns = 0;
  int64_t virtual_time = 0;
};

// Runs `main` in a simulation in a child process, because threads that were killed remain.
Outcome simulate(uint64_t seed, const std::function<void()>& main,
                 simulation::Options options = {}) {
  options.seed = seed;
  Shared<Outcome> shared;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    // The service of the statistics is one thread of a process. The simulated processes would share
    // it, and it would die with one of them.
    setenv("CARIAMA_STATISTICS", "off", 1);
    // One thread runs at a time: passing the turn to another core would take longer.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    static_cast<void>(sched_setaffinity(0, sizeof one, &one));
    const int before = failed_parts();
    simulation::run(options, [&] {
      main();
      shared->hash = simulation::schedule_hash();
      shared->turns = simulation::turns();
      shared->virtual_time = simulation::now().count();
    });
    std::fflush(nullptr);
    _exit(failed_parts() == before ? 0 : 1);
  }
  EXPECT_GT(child, 0);
  Outcome outcome;
  waitpid(child, &outcome.status, 0);
  const int status = outcome.status;
  outcome = *shared;
  outcome.status = status;
  return outcome;
}

Outcome simulate_job(uint64_t seed) {
  if (std::getenv("CARIAMA_SIMULATION_SEEDS") != nullptr) {
    const Plan plan(seed);
    std::fprintf(stderr, "seed %lu: %s, victim %u, at %.6f for %.6f s, %u units\n", seed,
                 std::string(kFates[static_cast<size_t>(plan.fate)]).c_str(), plan.victim,
                 static_cast<double>(plan.time.count()) / 1e9,
                 static_cast<double>(plan.duration.count()) / 1e9, plan.receive_units);
  }
  return simulate(seed, [seed] {
    Plan plan(seed);
    run_job(plan);
    if (!plan.restarts) return;
    plan.fate = Fate::kCalm;
    run_job(plan, 1 + kProcesses);
  });
}

TEST(Simulation, JobsEndWithAllSeeds) {
  uint64_t first = 1;
  uint64_t last = 200;
  if (const char* const range = std::getenv("CARIAMA_SIMULATION_SEEDS")) {
    ASSERT_EQ(std::sscanf(range, "%lu:%lu", &first, &last), 2);
  }
  uint64_t turns = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const Outcome outcome = simulate_job(seed);
    turns += outcome.turns;
    if (std::getenv("CARIAMA_SIMULATION_SEEDS") != nullptr) {
      std::fprintf(stderr, "  status %d, %lu turns, %.6f s, hash %016lx\n", outcome.status,
                   outcome.turns, static_cast<double>(outcome.virtual_time) / 1e9, outcome.hash);
    }
    if (outcome.status == 0) continue;
    const Plan plan(seed);
    ADD_FAILURE() << "seed " << seed << " (" << kFates[static_cast<size_t>(plan.fate)]
                  << ", victim " << plan.victim << "): status " << outcome.status;
  }
  std::printf("%lu seeds, %lu turns\n", last - first + 1, turns);
}

TEST(Simulation, ASeedReplaysExactly) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome once = simulate_job(seed);
    const Outcome again = simulate_job(seed);
    EXPECT_EQ(once.hash, again.hash) << "seed " << seed;
    EXPECT_EQ(once.virtual_time, again.virtual_time) << "seed " << seed;
    EXPECT_NE(once.turns, 0u);
  }
}

// Tests run side by side, each in its process. Their jobs draw the same names for their sockets.
TEST(Simulation, OneSeedMayRunTwiceAtTheSameTime) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const pid_t other = fork();
    if (other == 0) _exit(simulate_job(seed).status == 0 ? 0 : 1);
    EXPECT_EQ(simulate_job(seed).status, 0) << "seed " << seed;
    int status = -1;
    waitpid(other, &status, 0);
    EXPECT_EQ(status, 0) << "seed " << seed << " in the other process";
  }
}

// ---- The simulation itself ----------------------------------------------------------------------

// A waiter that does not recheck its condition before it sleeps: a signal in between is lost.
void miss_a_signal(bool rechecks) {
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  std::thread waiter = simulation::start(1, [&] {
    bool seen_ready = false;
    {
      const std::lock_guard lock(mutex);
      seen_ready = ready;
    }
    std::unique_lock lock(mutex);
    if (rechecks) seen_ready = ready;
    if (!seen_ready) changed.wait(lock);
  });
  {
    const std::lock_guard lock(mutex);
    ready = true;
  }
  changed.notify_one();
  waiter.join();
}

TEST(Simulation, FindsASignalThatIsLost) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const simulation::Options often{.one_in = 2};  // the program has few points
    const Outcome lost = simulate(
        seed, [] { miss_a_signal(false); }, often);
    const Outcome again = simulate(
        seed, [] { miss_a_signal(false); }, often);
    EXPECT_EQ(lost.status, again.status) << "seed " << seed;
    if (WIFEXITED(lost.status) && WEXITSTATUS(lost.status) == simulation::kDeadlock) ++found;
    EXPECT_EQ(simulate(
                  seed, [] { miss_a_signal(true); }, often)
                  .status,
              0)
        << "seed " << seed;
  }
  EXPECT_GT(found, 0);
  EXPECT_LT(found, 100);
}

TEST(Simulation, TimePassesWhileThreadsSleep) {
  const Outcome outcome = simulate(1, [] {
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::minutes(5));
    const auto slept = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(slept, std::chrono::minutes(5));
    EXPECT_LT(slept, std::chrono::minutes(5) + milliseconds(1));
  });
  EXPECT_EQ(outcome.status, 0);
}

// In all jobs above the time of the machine is set forward and back, once a second. So a deadline
// on that clock would be noticed.
TEST(Simulation, TheTimeOfTheMachineIsSet) {
  const Outcome outcome = simulate(1, [] {
    int forward = 0;
    int back = 0;
    for (int i = 0; i < 6; ++i) {
      const auto steady = std::chrono::steady_clock::now();
      const auto of_day = std::chrono::system_clock::now();
      std::this_thread::sleep_for(std::chrono::seconds(1));
      const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - steady;
      const std::chrono::nanoseconds shown = std::chrono::system_clock::now() - of_day;
      EXPECT_LT(passed, std::chrono::seconds(2));
      if (shown - passed > std::chrono::hours(23)) ++forward;
      if (passed - shown > std::chrono::hours(23)) ++back;
    }
    EXPECT_EQ(forward, 3);
    EXPECT_EQ(back, 3);
  });
  EXPECT_EQ(outcome.status, 0);
}

}  // namespace
}  // namespace cariama::testing

// Addresses determine the order of objects in hash tables. They are the same in each run of a seed
// only if the kernel does not randomise them.
int main(int count, char** arguments) {
  const int persona = personality(0xffffffff);
  if ((persona & ADDR_NO_RANDOMIZE) == 0 && personality(persona | ADDR_NO_RANDOMIZE) != -1) {
    execv("/proc/self/exe", arguments);
  }
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
