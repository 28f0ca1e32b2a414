#include "tests/sweep/testing/phases.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "dht/hash_table.h"
#include "docs/examples/connect_four.h"
#include "dsfabric/collectives.h"
#include "dsfabric/distributed_lock.h"
#include "dsfabric/future.h"
#include "dsfabric/global_memory.h"
#include "dsfabric/quiescence.h"
#include "dsfabric/send_call.h"
#include "mcts/search.h"
#include "riutils/call.h"
#include "tasks/pool.h"
#include "tasks/runtime.h"
#include "tasks/task.h"
#include "tests/dht/table_test_support.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/mcts/testing/searches.h"

namespace cariama::testing {
namespace {

using std::chrono::milliseconds;

// Executes steps until one of them fails.
class Steps {
 public:
  void operator()(const absl::Status& status) {
    if (first_.ok()) first_ = status;
  }
  template <typename T>
  std::optional<T> operator()(absl::StatusOr<T> value) {
    (*this)(value.status());
    if (!value.ok()) return {};
    return *std::move(value);
  }
  void check(bool condition, const char* what) {
    if (!condition) (*this)(absl::DataLossError(what));
  }
  [[nodiscard]] bool ok() const { return first_.ok(); }
  [[nodiscard]] absl::Status status() const { return first_; }

 private:
  absl::Status first_;
};

absl::Status do_nothing(SweepMember& /*member*/) { return absl::OkStatus(); }

// Rank 0 connects to rank 1, and rank 1 to rank 2: so the victim answers an offer, and makes one.
absl::Status send_calls(SweepMember& member) {
  Steps step;
  static std::atomic<bool> called;
  const uint32_t before = member.rank() - 1;
  if (member.rank() != 0) {
    static_cast<void>(
        member.fabric.wait([&] { return called.load() || !member.fabric.peer_status(before).ok(); },
                           deadline_after(milliseconds(5000))));
  }
  if (member.rank() != 2) step(call(member.fabric, member.next(), [] { called = true; }));
  for (uint32_t round = 0; step.ok() && round < 20; ++round) {
    for (uint32_t to = 0; to < member.fabric.size(); ++to) {
      const auto answer = step(async_call(
                                   member.fabric, to,
                                   [](uint32_t a, const std::string& text) {
                                     return a * 10 + static_cast<uint32_t>(text.size());
                                   },
                                   round, std::string(round, 'x'))
                                   .get(soon()));
      if (answer.has_value()) step.check(*answer == round * 11, "a result is wrong");
    }
  }
  return step.status();
}

absl::Status call_one_sided(SweepMember& member) {
  Steps step;
  // The channels begin with one chunk and grow.
  MessengerOptions options;
  options.chunk_bytes = 4096;
  options.timeout = milliseconds(20'000);
  RDMAMessenger messenger(*member.self, member.fabric.thread_of(member.next()), options);
  static std::atomic<uint64_t> latest{0};  // the round of the last call
  static std::atomic<bool> disorder{false};
  std::vector<std::byte> buffer(100'000, std::byte{7});
  for (uint64_t round = 1; step.ok() && round <= 20; ++round) {
    for (int i = 0; step.ok() && i < 100; ++i) {
      step(messenger.call([round] {
        if (latest.exchange(round) > round) disorder = true;
      }));
    }
    const auto answer =
        step(messenger.async_call([round] { return Random::mix(round); }).get(soon()));
    if (answer.has_value()) step.check(*answer == Random::mix(round), "a result is wrong");
    Future<void> ran;
    step(messenger.call_buffer<Sync>(
        [](void* data, uint64_t size) {
          const auto* const bytes = static_cast<const std::byte*>(data);
          if (bytes[0] != std::byte{7} || bytes[size - 1] != std::byte{7}) {
            throw std::runtime_error("a buffer is wrong");
          }
        },
        std::span(std::as_const(buffer)), on_consumed(ran)));
    if (step.ok()) step(ran.get(soon()));
  }
  step(messenger.shutdown(soon()));
  step.check(!disorder, "calls ran in another order");
  return step.status();
}

absl::Status broadcast_calls(SweepMember& member) {
  Steps step;
  static std::atomic<bool> wrong{false};
  static constexpr std::byte kFill{7};
  auto memory = step(member.fabric.memory().allocate(20'000));
  if (memory.has_value()) std::fill_n(memory->get_buffer(), 20'000, kFill);
  for (int round = 0; step.ok() && round < 10; ++round) {
    Future<void> ran;
    step(broadcast(
        member.fabric, [] {}, on_consumed(ran)));
    if (step.ok()) step(ran.get(soon()));
    Future<void> received;
    step(broadcast_buffer(
        member.fabric,
        [](void* data, uint64_t size) {
          const auto* const bytes = static_cast<const std::byte*>(data);
          if (std::count(bytes, bytes + size, kFill) != 20'000) wrong = true;
        },
        &*memory, 0, 20'000, on_consumed(received)));
    if (step.ok()) step(received.get(soon()));
  }
  if (memory.has_value()) step(member.fabric.memory().free(*std::move(memory)));
  step.check(!wrong, "a buffer is wrong");
  return step.status();
}

absl::Status agree(SweepMember& member) {
  Steps step;
  Collectives all(member.fabric);
  TerminationDetector quiescence(member.fabric, {});
  const uint64_t size = member.fabric.size();
  for (uint64_t round = 0; step.ok() && round < 10; ++round) {
    step(all.barrier(soon()));
    const auto sum = step(all.all_reduce(round + member.rank(), std::plus<uint64_t>(), soon()));
    if (sum.has_value()) step.check(*sum == size * round + size * (size - 1) / 2, "a sum is wrong");
    const auto ranks = step(all.all_gather(member.rank(), soon()));
    if (ranks.has_value()) step.check(ranks->back() == size - 1, "a value is wrong");
    uint64_t value = member.rank();
    step(all.broadcast(value, 1, soon()));
    if (step.ok()) step.check(value == 1, "a value is wrong");
    if (step.ok()) step(quiescence.wait(soon()));
  }
  return step.status();
}

// The survivors take the lock from a dead holder, and continue.
absl::Status take_locks(SweepMember& member) {
  Steps step;
  const auto memory = step(GlobalMemory::create(member.fabric));
  Collectives all(member.fabric);
  if (!step.ok()) return step.status();
  GlobalAddress word{};
  if (member.rank() == 0) {
    const auto words = step((*memory)->allocate<uint64_t>(2, 1, soon()));
    if (words.has_value()) word = words->address();
  }
  step(all.broadcast(word, 0, soon()));
  if (!step.ok()) return step.status();
  const auto words = global_ptr<uint64_t>(word);
  {
    DistributedLock lock(**memory, words);
    uint64_t written = 0;  // the last value that this process has written under the lock
    for (int round = 0; step.ok() && round < 10; ++round) {
      absl::Status acquired = lock.acquire(soon());
      if (absl::IsUnavailable(acquired)) {
        static_cast<void>(step(lock.take_over(soon())));
        if (!lock.held()) acquired = lock.acquire(soon());
      }
      if (!lock.held()) step(acquired);
      if (!step.ok()) break;
      uint64_t value = 0;
      step((*memory)->get(words + 1, std::span(&value, 1), soon()));
      if (step.ok()) step.check(value >= written, "a value under the lock is lost");
      written = ++value;
      step((*memory)->put(std::span(&std::as_const(value), 1), words + 1, soon()));
      step(lock.release(soon()));
    }
  }
  return step.status();
}

// Until the victim has reached the step, all other workers are slow: so the victim steals, and
// waits for tasks that others have stolen from it.
SweepMember* member_of_pool = nullptr;
uint64_t sweep_fib(uint64_t n) {
  if (n < 2) return n;
  if (n == 12 && member_of_pool->rank() != kSweepVictim) {
    const Deadline deadline = deadline_after(std::chrono::microseconds(100));
    while (!member_of_pool->board.reached && std::chrono::steady_clock::now() < deadline) {
      pool::communicate();
    }
  }
  pool::spawn<sweep_fib>(n - 1);
  const uint64_t second = pool::call<sweep_fib>(n - 2);
  return pool::sync<sweep_fib>() + second;
}
// Rank 0 decides for all whether a further round begins: until the victim has reached the step.
bool begin_round(SweepMember& member, int round) {
  SweepBoard& board = member.board;
  if (member.rank() == 0) {
    if (round < 3 || (round < 100 && !board.reached)) {
      board.rounds = round + 1;
    } else {
      board.enough_rounds = true;
    }
  }
  return wait_until([&] { return board.rounds > round || board.enough_rounds; }, soon()) &&
         board.rounds > round;
}
absl::Status run_pool(SweepMember& member) {
  Steps step;
  // A lease ends waits for processes that are connected.
  step(send_calls(member));
  if (!step.ok()) return step.status();
  step(Collectives(member.fabric).barrier(soon()));
  if (!step.ok()) return step.status();
  member_of_pool = &member;
  const auto pool = step(TaskPool::create(member.fabric, {}));
  for (int round = 0; step.ok() && begin_round(member, round); ++round) {
    const auto result = step((*pool)->run<sweep_fib>(26));
    if (result.has_value()) step.check(*result == 121393, "a result is wrong");
  }
  return step.status();
}

absl::Status use_table(SweepMember& member, OperationsBy operations) {
  Steps step;
  Collectives all(member.fabric, {.leave_out_dead = true});
  const auto table = step(HashTable<2>::create(
      all, {.buckets = 4096, .force_remote = true, .operations = operations}, soon()));
  if (!step.ok()) return step.status();
  {
    const auto access = step((*table)->access());
    if (!step.ok()) return step.status();
    std::mt19937_64 random(member.rank() + 1);
    std::vector<TableKey<2>> keys(1000);
    for (auto& key : keys) key = random_key<2>(random);
    std::vector<TableResult> first(keys.size());
    std::vector<TableResult> second(keys.size());
    (*access)->find_or_put(keys, first);
    (*access)->find_or_put(keys, second);
    for (size_t i = 0; i < keys.size(); ++i) {
      // An owner may be lost before or after the first operation.
      if (first[i].outcome == TableOutcome::kUnavailable ||
          second[i].outcome == TableOutcome::kUnavailable) {
        continue;
      }
      step.check(first[i].outcome == TableOutcome::kInserted, "a new key was not inserted");
      step.check(second[i] == TableResult({first[i].index, TableOutcome::kFound}), "a key is lost");
    }
    step((*access)->status());
  }
  const absl::Status destroyed = (*table)->destroy(soon());
  step(destroyed);
  return step.status();
}

// A search continues without a process that dies.
absl::Status search_with_host(SweepMember& member, mcts::Placement placement) {
  Steps step;
  const auto host = step(mcts::Host::create(&member.fabric));
  // Calls of a search that arrived before the host exists would wait for ever.
  Collectives all(member.fabric, {.leave_out_dead = true});
  step(all.barrier(soon()));
  if (!step.ok()) return step.status();
  if (member.rank() != 0) return (*host)->serve();
  mcts::Search<example::ConnectFour> search(**host);
  search.options().expand_visits = 2;
  search.options().placement = placement;
  for (int i = 0; i == 0 || (i < 20 && !member.board.reached); ++i) {
    const auto result = search.run(example::ConnectFour(), {.iterations = 20'000});
    step.check(result.iterations >= 15'000, "a search of 20000 iterations ended early");
  }
  (*host)->end();
  return step.status();
}
absl::Status search(SweepMember& member, mcts::Placement placement) {
  member.self.reset();  // the host has a context of its own
  absl::Status status = search_with_host(member, placement);
  auto self = member.fabric.init_thread(0);
  if (!self.ok()) return self.status();
  member.self = *std::move(self);
  return status;
}

// The leaves take time until the victim has reached the step.
SweepBoard* board_of_tasks = nullptr;
int sweep_tree(int depth) {
  if (depth == 0) {
    for (int i = 0; i < 20 && !board_of_tasks->reached; ++i) {
      poll();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return 1;
  }
  task<int> child = spawn([depth] { return sweep_tree(depth - 1); });
  const int second = sweep_tree(depth - 1);
  return join(std::move(child)) + second;
}

}  // namespace

std::span<const SweepPhase> sweep_phases() {
  static const std::vector<SweepPhase> kPhases = {
      {"create",
       do_nothing,
       {"dsfabric: join job", "dsfabric: start fabric"},
       "dsfabric: start fabric"},
      {"calls",
       send_calls,
       {"dsfabric: connect", "dsfabric: confirm connection", "dsfabric: accept connection",
        "dsfabric: connection confirmed", "dsfabric: send", "dsfabric: receive", "dsfabric: call",
        "dsfabric: answer"},
       "dsfabric: accept connection"},
      {"one_sided",
       call_one_sided,
       {"riutils: grant chunks", "riutils: chunks granted", "riutils: stall: chunks requested",
        "riutils: publish: one call", "riutils: run", "dsfabric: begin pull",
        "dsfabric: call with pulled buffer"},
       "riutils: publish: one call"},
      {"broadcast",
       broadcast_calls,
       {"riutils: broadcast: send to child"},
       "riutils: broadcast: send to child"},
      {"collectives",
       agree,
       {"dsfabric: barrier", "dsfabric: all_reduce", "dsfabric: all_gather", "dsfabric: broadcast",
        "dsfabric: send part of a collective", "dsfabric: quiescence"},
       "dsfabric: send part of a collective"},
      {"lock",
       take_locks,
       {"dsfabric: try to take lock", "dsfabric: lock taken", "dsfabric: release lock"},
       "dsfabric: lock taken"},
      {"pool",
       run_pool,
       {"pool: answer", "pool: stolen tasks", "pool: sync waits"},
       "pool: answer"},
      {"table",
       [](SweepMember& member) { return use_table(member, OperationsBy::kInitiator); },
       {"dht: claim key", "dht: publish key"},
       "dht: claim key"},
      {"table_by_owner",
       [](SweepMember& member) { return use_table(member, OperationsBy::kOwner); },
       {"dht: call owner"},
       "dht: call owner"},
      {"search",
       [](SweepMember& member) { return search(member, mcts::Placement::kLocality); },
       {"mcts: give copy", "mcts: take copy", "mcts: offer child", "mcts: answer offer",
        "mcts: exchange counts", "mcts: take counts", "mcts: merge counts",
        "mcts: send last counts"},
       "mcts: exchange counts"},
      // Each node is created in a random process.
      {"search_random",
       [](SweepMember& member) { return search(member, mcts::Placement::kRandom); },
       {"mcts: request child", "mcts: create child", "mcts: child created",
        "mcts: hand over rollouts", "mcts: take rollouts", "mcts: take results"},
       "mcts: create child"},
      // finalize() excludes a stopped process that others are connected to.
      {"finalize",
       send_calls,
       {"dsfabric: finalize", "dsfabric: finalize: round", "dsfabric: finalize: leave"},
       "dsfabric: finalize"},
  };
  return kPhases;
}

std::span<const std::string_view> sweep_task_steps() {
  static constexpr std::string_view kSteps[] = {"tasks: steal", "tasks: suspend", "tasks: run",
                                                "tasks: join waits"};
  return kSteps;
}

void print_sweep_row(std::string_view phase, std::string_view step, std::string_view fault,
                     std::string_view transport, bool failed, milliseconds time) {
  std::string row = "|";
  const std::string quoted = "`" + std::string(step) + "`";
  const std::string_view result = failed ? "**failed**" : "ends";
  for (const std::string_view part : {phase, std::string_view(quoted), fault, transport, result}) {
    row += " " + std::string(part) + " |";
  }
  std::printf("%s %.2f s\n", row.c_str(), std::chrono::duration<double>(time).count());
  const char* const path = getenv("CARIAMA_SWEEP_TABLE");
  if (path == nullptr) return;
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  const std::string line = row + "\n";
  if (file < 0 || write(file, line.data(), line.size()) < 0) perror(path);
  if (file >= 0) close(file);
}

absl::Status run_sweep_tasks(Exchange& exchange, SweepBoard& board) {
  Steps step;
  const auto runtime = step(TaskRuntime::create(exchange, {}));
  if (!step.ok()) return step.status();
  board_of_tasks = &board;
  const auto result = step((*runtime)->run([] { return sweep_tree(10); }));
  if (result.has_value() && exchange.rank() == 0) {
    step.check(*result == 1 << 10, "a result is wrong");
  }
  return step.status();
}

}  // namespace cariama::testing
