// Soak test of whole jobs: eight processes on the cores of one machine exchange calls of every
// form, run tasks and search, while processes are stopped, continued and killed. Every message has
// a sequence number and a checksum, and after each round each receiver compares what it got with
// what the senders count. Memory and descriptors must not grow from round to round.
//
// Runs jobs for CARIAMA_SOAK_SECONDS: five minutes as the soak test (ctest -C soak -L soak), one
// job of each kind if started by hand. CARIAMA_SOAK_SEED repeats a run's random choices.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "docs/examples/connect_four.h"
#include "dsfabric/collectives.h"
#include "dsfabric/future.h"
#include "dsfabric/quiescence.h"
#include "dtutils/allocators/memory_budget.h"
#include "dtutils/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mcts/search.h"
#include "riutils/call.h"
#include "tasks/pool.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/dsfabric/testing/process_job.h"
#include "tests/dtutils/testing/process_test.h"
#include "tests/mcts/testing/searches.h"
#include "tests/tasks/task_test_support.h"

namespace cariama {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::must;
using testing::Shared;
using testing::soon;

constexpr uint32_t kProcesses = 8;

// ---- Messages ----

enum Path : uint32_t { kOneSided, kSendBased, kBuffer, kBroadcast, kPaths };

// The content of a message. Messages of one sender to one receiver on one path are numbered from 1.
struct Stamp {
  uint32_t from;
  Path path;
  uint64_t sequence;
  uint64_t check;
};
uint64_t checksum(uint32_t from, Path path, uint64_t sequence) {
  return Random::mix(sequence * kPaths * kProcesses + path * kProcesses + from + 1);
}
Stamp stamp(uint32_t from, Path path, uint64_t sequence) {
  return {from, path, sequence, checksum(from, path, sequence)};
}

using Counts = std::array<std::array<uint64_t, kProcesses>, kPaths>;
// The messages that this process has received, by path and sender. Needs no lock, because only the
// worker of the process runs calls.
Counts received;
uint64_t wrong_messages = 0;

void take(const Stamp& message) {
  const bool valid = message.from < kProcesses && message.path < kPaths &&
                     message.check == checksum(message.from, message.path, message.sequence);
  // A gap is a lost message; a number that was there before, a message that ran twice.
  if (!valid || ++received[message.path][message.from] != message.sequence) ++wrong_messages;
}

// A buffer of a stamp and bytes that follow from its sequence number.
void fill(std::span<std::byte> buffer, const Stamp& message) {
  std::memcpy(buffer.data(), &message, sizeof message);
  Random bytes(message.sequence);
  for (size_t i = sizeof message; i < buffer.size(); ++i) {
    buffer[i] = static_cast<std::byte>(bytes.next());
  }
}
void take_buffer(void* data, uint64_t size) {
  Stamp message;
  std::memcpy(&message, data, sizeof message);
  std::vector<std::byte> expected(size);
  fill(expected, message);
  if (std::memcmp(data, expected.data(), size) != 0) ++wrong_messages;
  take(message);
}
constexpr auto kTakeBuffer = [](void* data, uint64_t size) { take_buffer(data, size); };

// ---- What the processes and the test share ----

enum class Kind : uint8_t { kCalm, kStops, kDeath };
struct Board {
  std::array<std::atomic<pid_t>, kProcesses> pids{};
  std::atomic<uint32_t> ready{0};    // processes that take part in the rounds
  std::atomic<bool> ending{false};   // a process has left the rounds in order
  std::atomic<uint32_t> noticed{0};  // processes whose rounds ended by an error
  std::atomic<uint64_t> messages{0};
  std::atomic<uint64_t> rounds{0};
  std::atomic<uint64_t> iterations{0};
};

constexpr milliseconds kOfSoak(5000);  // the length of a job of the soak
constexpr int kGrown = 20;  // after so many rounds connections, chunks and caches have grown
struct Resources {
  uint64_t resident = 0;  // bytes
  uint64_t descriptors = 0;
  uint64_t mappings = 0;
  uint64_t registered = 0;  // bytes of the allocators
};
Resources measure() {
  Resources used;
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0;
  statm >> total >> used.resident;
  used.resident *= static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++used.descriptors;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++used.mappings;
  used.registered = MemoryBudget::process().used();
  return used;
}

int fib(int n) {
  if (n < 2) return n;
  pool::spawn<fib>(n - 1);
  const int second = pool::call<fib>(n - 2);
  return pool::sync<fib>() + second;
}

// ---- One process of a job ----

class Member {
 public:
  Member(Fabric& fabric, ThreadContext& self, Kind kind, uint64_t seed, Board& board)
      : fabric_(fabric),
        kind_(kind),
        random_(seed * kProcesses + fabric.rank()),
        board_(board),
        all_(fabric),
        detector_(fabric) {
    for (uint32_t rank = 0; rank < kProcesses; ++rank) {
      messengers_.push_back(std::make_unique<RDMAMessenger>(self, fabric.thread_of(rank)));
    }
  }

  // Executes rounds for this time. Returns the first error; expects that there is none, or, after
  // the death of a process, that it names this process.
  absl::Status run(milliseconds duration) {
    std::unique_ptr<TaskPool> pool;
    // A death ends a job with a pool, by design.
    if (kind_ != Kind::kDeath) pool = must(TaskPool::create(fabric_, {}));
    board_.pids[fabric_.rank()] = getpid();
    if (absl::Status all = all_.barrier(soon()); !all.ok()) return all;
    ++board_.ready;
    const auto begin = steady_clock::now();
    std::optional<Resources> before;
    for (int round = 0;; ++round) {
      if (absl::Status sent = send_messages(); !sent.ok()) {
        // The other processes may already be inside detector_.wait(). There it returns UNAVAILABLE
        // once this process has called it, too.
        EXPECT_FALSE(detector_.wait(soon()).ok());
        return sent;
      }
      if (absl::Status quiet = detector_.wait(soon()); !quiet.ok()) return quiet;
      if (absl::Status equal = compare_counts(); !equal.ok()) return equal;
      if (pool != nullptr) {
        EXPECT_EQ(must(pool->run<fib>(16)), 987);
      }
      if (round > kGrown && !before.has_value() && steady_clock::now() > begin + duration / 2) {
        before = measure();
      }
      // On a slow machine a job of the soak lasts until its resources have been compared.
      const bool compares = kind_ != Kind::kDeath && duration >= kOfSoak && round < 2 * kGrown;
      const auto length = compares ? 10 * duration : duration;
      bool go_on = steady_clock::now() < begin + length;
      if (absl::Status all = all_.broadcast(go_on, 0, soon()); !all.ok()) return all;
      if (fabric_.rank() == 0) ++board_.rounds;
      if (!go_on) break;
    }
    board_.ending = true;
    if (before.has_value()) expect_flat(*before, measure());
    for (auto& messenger : messengers_) {
      if (absl::Status ended = messenger->shutdown(soon()); !ended.ok()) return ended;
    }
    return all_.barrier(soon());
  }

 private:
  absl::Status send_messages() {
    const uint32_t own = fabric_.rank();
    const uint32_t count = 50 + random_.below(1000);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t to = random_.below(kProcesses);
      const ThreadId thread = fabric_.thread_of(to);
      const uint32_t choice = random_.below(100);
      absl::Status sent;
      if (choice < 60) {
        const Stamp message = stamp(own, kOneSided, sent_[kOneSided][to] + 1);
        sent = messengers_[to]->call([message] { take(message); });
        if (sent.ok()) ++sent_[kOneSided][to];
      } else if (choice < 90) {
        const Stamp message = stamp(own, kSendBased, sent_[kSendBased][to] + 1);
        sent = call(fabric_, thread, [message] { take(message); });
        if (sent.ok()) ++sent_[kSendBased][to];
      } else if (choice < 96) {
        const Stamp message = stamp(own, kBuffer, sent_[kBuffer][to] + 1);
        std::vector<std::byte> buffer(sizeof message + random_.below(100'000));
        fill(buffer, message);
        Future<void> ran;
        const std::span bytes(std::as_const(buffer));
        // Small ones travel with the call. The receiver READs the others.
        sent = bytes.size() < 20'000
                   ? messengers_[to]->call_buffer(kTakeBuffer, bytes, on_consumed(ran))
                   : messengers_[to]->call_buffer<Sync>(kTakeBuffer, bytes, on_consumed(ran));
        if (sent.ok()) {
          ++sent_[kBuffer][to];
          sent = ran.get(soon());
        }
      } else {
        const uint64_t value = random_.next();
        Future<uint64_t> answer =
            messengers_[to]->async_call([value] { return Random::mix(value); });
        const absl::StatusOr<uint64_t> result = answer.get(soon());
        if (result.ok()) {
          EXPECT_EQ(*result, Random::mix(value));
        }
        sent = result.status();
      }
      if (!sent.ok()) return sent;
      board_.messages.fetch_add(1, std::memory_order_relaxed);
    }
    const Stamp message = stamp(own, kBroadcast, sent_[kBroadcast][0] + 1);
    absl::Status sent = broadcast(fabric_, [message] { take(message); });
    if (sent.ok()) {
      for (uint64_t& to : sent_[kBroadcast]) ++to;
    }
    return sent;
  }

  // Requires that no message is in flight.
  absl::Status compare_counts() {
    const Counts here = received;  // all_gather() may run messages of the next round
    const absl::StatusOr<std::vector<std::optional<Counts>>> sent = all_.all_gather(sent_, soon());
    if (!sent.ok()) return sent.status();
    for (uint32_t from = 0; from < kProcesses; ++from) {
      for (size_t path = 0; path < kPaths; ++path) {
        EXPECT_EQ(here[path][from], (*(*sent)[from])[path][fabric_.rank()])
            << "path " << path << " from rank " << from;
      }
    }
    EXPECT_EQ(wrong_messages, 0u);
    return absl::OkStatus();
  }

  void expect_flat(const Resources& before, const Resources& after) {
    // A new peak of buffers in flight adds a region of memory, which has descriptors. The bounds
    // are a few regions, fewer than the rounds between the two measurements.
    EXPECT_LE(after.resident, before.resident + (uint64_t{16} << 20));
    EXPECT_LE(after.descriptors, before.descriptors + 8);
    EXPECT_LE(after.mappings, before.mappings + 24);
    EXPECT_LE(after.registered, before.registered + (uint64_t{16} << 20));
  }

  Fabric& fabric_;
  const Kind kind_;
  Random random_;
  Board& board_;
  Collectives all_;
  TerminationDetector detector_;
  std::vector<std::unique_ptr<RDMAMessenger>> messengers_;
  Counts sent_{};  // by path and receiver
};

void search(Fabric& fabric, Board& board) {
  auto host = must(mcts::Host::create(&fabric));
  // The thread of each process had a context before. Calls of the search that arrived there would
  // find no host.
  Collectives all(fabric);
  must(all.barrier(soon()));
  if (fabric.rank() != 0) return must(host->serve());
  mcts::Search<example::ConnectFour> search(*host);
  search.options().spread_visits = 500;  // rank 0 alone, and then all processes
  const auto result = search.run(example::ConnectFour(), {.iterations = 2000});
  EXPECT_EQ(result.iterations, 2000u);
  board.iterations += result.iterations;
  host->end();
}

// Runs one job, and returns whether it ended as its kind demands.
bool run_job(Kind kind, uint32_t victim, uint64_t seed, milliseconds duration, Board& board) {
  RunOptions run;
  run.timeout = milliseconds(120'000);
  if (kind == Kind::kDeath) run.may_die = {static_cast<int>(victim)};
  const absl::Status status = testing::try_test_processes(
      kProcesses,
      [&](Exchange& exchange) {
        auto fabric = must(testing::fabric_of_group(exchange, {}));
        absl::Status ended;
        {
          auto self = must(fabric->init_thread(0));
          Member member(*fabric, *self, kind, seed, board);
          ended = member.run(duration);
          if (kind == Kind::kDeath) {
            // The victim is killed before the rounds end, so all other processes detect its death.
            // Each stays until then, because the others consider a process that leaves failed.
            EXPECT_THAT(std::string(ended.message()),
                        ::testing::HasSubstr("rank " + std::to_string(victim)));
            ++board.noticed;
            EXPECT_TRUE(fabric->wait([&] { return board.noticed == kProcesses - 1; }, soon()));
            return;
          }
        }
        EXPECT_TRUE(ended.ok()) << ended;
        if (!ended.ok()) return;
        search(*fabric, board);
        EXPECT_TRUE(fabric->finalize(soon()).ok());
      },
      run);
  EXPECT_TRUE(status.ok()) << status;
  return !::testing::Test::HasFailure();
}

// Disturbs the processes of a job until the process `job`, which runs it, has ended. Returns its
// exit status.
int disturb(pid_t job, Kind kind, uint32_t victim, Random& random, Board& board) {
  const auto end = steady_clock::now() + std::chrono::seconds(150);
  bool killed = false;
  for (;;) {
    int status = 0;
    if (waitpid(job, &status, WNOHANG) == job) return status;
    if (steady_clock::now() > end) {
      ADD_FAILURE() << "the job did not end";
      kill(job, SIGKILL);
      waitpid(job, &status, 0);
      return status;
    }
    usleep(1000 * (5 + random.below(100)));
    if (board.ready < kProcesses || board.ending) continue;
    if (kind == Kind::kStops) {
      const pid_t process = board.pids[random.below(kProcesses)];
      kill(process, SIGSTOP);
      usleep(1000 * (1 + random.below(200)));
      kill(process, SIGCONT);
    } else if (kind == Kind::kDeath && !std::exchange(killed, true)) {
      usleep(1000 * random.below(2000));
      kill(board.pids[victim], SIGKILL);
    }
  }
}

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* const text = getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(JobSoak, EveryMessageIsAccountedForWhileProcessesStopAndDie) {
  const uint64_t seconds = number_from("CARIAMA_SOAK_SECONDS", 0);
  const uint64_t seed = number_from(
      "CARIAMA_SOAK_SEED", static_cast<uint64_t>(steady_clock::now().time_since_epoch().count()));
  std::printf("CARIAMA_SOAK_SEED=%llu\n", static_cast<unsigned long long>(seed));
  const milliseconds duration = seconds == 0 ? milliseconds(500) : kOfSoak;
  Random random(seed);
  const auto end = steady_clock::now() + std::chrono::seconds(seconds);
  const uint64_t descriptors = measure().descriptors;
  for (int jobs = 1;; ++jobs) {
    const Kind kind = Kind{static_cast<uint8_t>((jobs - 1) % 3)};
    const uint32_t victim = random.below(kProcesses);
    const uint64_t job_seed = random.next();
    Shared<Board> board;
    std::fflush(nullptr);
    const pid_t job = fork();
    ASSERT_GE(job, 0);
    if (job == 0) {
      // A death comes at any time, so these rounds last until it has come.
      const milliseconds length = kind == Kind::kDeath ? milliseconds(60'000) : duration;
      const bool passed = run_job(kind, victim, job_seed, length, *board);
      std::fflush(nullptr);
      _exit(passed ? 0 : 1);
    }
    EXPECT_EQ(disturb(job, kind, victim, random, *board), 0) << "job " << jobs;
    EXPECT_GT(board->messages, 0u);
    std::printf("job %d (%s): %llu rounds, %llu messages, %llu iterations\n", jobs,
                kind == Kind::kCalm    ? "calm"
                : kind == Kind::kStops ? "stops"
                                       : "a death",
                static_cast<unsigned long long>(board->rounds),
                static_cast<unsigned long long>(board->messages),
                static_cast<unsigned long long>(board->iterations));
    std::fflush(stdout);
    if (HasFailure() || (jobs >= 3 && steady_clock::now() >= end)) break;
  }
  EXPECT_EQ(measure().descriptors, descriptors);
}

}  // namespace
}  // namespace cariama
