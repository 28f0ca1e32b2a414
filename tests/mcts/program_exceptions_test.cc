// Exceptions and signals in a Program. The tests start this program as a job.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mcts/program.h"
#include "mcts/search.h"
#include "tests/dsfabric/testing/running_command.h"

namespace cariama::mcts {
namespace {

using cariama::testing::Running;
using ::testing::HasSubstr;

std::string role() {
  const char* const name = std::getenv("PROGRAM_ROLE");
  return name == nullptr ? "" : name;
}

std::string worker_role(const std::string& rank, uint32_t index) {
  return "rank " + rank + ", worker " + std::to_string(index);
}

// Returns true if the role begins with this process and this worker.
bool has_role() {
  const char* const rank = std::getenv("CARIAMA_RANK");  // not set in a single process
  return role().starts_with(worker_role(rank == nullptr ? "0" : rank, Host::here().index));
}

// Twenty plies of three moves. The playouts of the worker that the role names throw, or return NaN,
// or its moves() throws within a call.
struct Throwing {
  using Move = uint8_t;
  static constexpr int kMaxMoves = 3;

  [[nodiscard]] int to_move() const { return played % 2; }
  int moves(std::span<Move> out) const {
    if (role().ends_with(", call") && Host::here().receptions != 0 && has_role()) {
      throw std::runtime_error("no moves here");
    }
    for (int i = 0; i < kMaxMoves; ++i) out[static_cast<size_t>(i)] = static_cast<Move>(i);
    return kMaxMoves;
  }
  void play(Move move) {
    sum += move;
    ++played;
  }
  [[nodiscard]] std::optional<float> result() const {
    return played < 20 ? std::nullopt : std::optional(sum % 2 == 0 ? 0.4F : 0.6F);
  }
  float playout(Random& random) const {
    if (has_role()) {
      if (role().ends_with(", NaN")) return std::numeric_limits<float>::quiet_NaN();
      if (!role().ends_with(", call")) throw std::runtime_error("no playouts here");
    }
    Throwing game = *this;
    while (!game.result()) game.play(static_cast<Move>(random.below(kMaxMoves)));
    return *game.result();
  }
  friend bool operator==(const Throwing&, const Throwing&) = default;

  uint32_t sum = 0;
  int played = 0;
};

std::atomic<int> interrupts{0};

// Rank 1 gets a signal before it has joined the job: rank 0 waits for that.
int play_interrupted(int argc, char** argv) {
  const std::string file = std::getenv("PROGRAM_FILE");
  const char* const rank = std::getenv("CARIAMA_RANK");  // not set in the launcher
  std::thread sender;
  if (rank != nullptr && std::string(rank) == "1") {
    sender = std::thread([file] {
      const auto handles = [] {
        struct sigaction now {};
        return ::sigaction(SIGINT, nullptr, &now) == 0 && now.sa_handler != SIG_DFL;
      };
      if (!Running::eventually(handles)) return;
      ::kill(::getpid(), SIGINT);
      if (Running::eventually([] { return interrupts.load() == 1; })) std::ofstream(file) << "x";
    });
  } else if (rank != nullptr) {
    const auto exists = [&] { return std::ifstream(file).good(); };
    if (!Running::eventually(exists)) return 8;
  }
  Program program(argc, argv);
  const int code = program.run(
      [](Host& host) {
        Search<Throwing> search(host);
        const auto result = search.run(Throwing(), {.iterations = 2000});
        return result.iterations == 2000 && host.living() == 2 ? 0 : 9;
      },
      {.interrupt = [](int) { ++interrupts; }});
  if (sender.joinable()) sender.join();
  return code;
}

int play_role(int argc, char** argv) {
  if (role() == "interrupted") return play_interrupted(argc, argv);
  Program program(argc, argv);
  if (role() == "joins") {
    return program.run([](Host&) { return 0; }, {.interrupt = [](int) { ++interrupts; }});
  }
  return program.run([](Host& host) {
    if (role() == "body") throw std::runtime_error("no opening book");
    if (role() == "int") throw 7;
    Search<Throwing> search(host);
    if (role().ends_with(", call")) search.options().placement = Placement::kRandom;
    // One search may end before the worker of the role has begun a playout, or was called.
    const bool late = role().starts_with("rank 1") || role().ends_with(", call");
    while (late && host.living() == 2) {
      static_cast<void>(search.run(Throwing(), {.iterations = 20000}));
    }
    const auto result = search.run(Throwing(), {.iterations = 20000});
    return result.iterations == 20000 ? 0 : 9;
  });
}

std::string as_role(const std::string& name, int processes, int threads = 1) {
  return "env 'PROGRAM_ROLE=" + name + "' /proc/" + std::to_string(getpid()) + "/exe -n" +
         std::to_string(processes) + " -t" + std::to_string(threads);
}

TEST(ProgramExceptions, OneOfTheBodyIsPrintedAndEndsTheProgram) {
  for (const int processes : {1, 2}) {
    Running thrown(as_role("body", processes));
    EXPECT_EQ(thrown.wait(), 1);
    EXPECT_THAT(thrown.err(), HasSubstr("the body of mcts::Program threw: no opening book\n"));
    Running other(as_role("int", processes));
    EXPECT_EQ(other.wait(), 1);
    EXPECT_THAT(other.err(), HasSubstr("threw: an exception that is no std::exception"));
    Running none(as_role("none", processes));
    EXPECT_EQ(none.wait(), 0) << none.err();
  }
}

TEST(ProgramExceptions, OneOfTheGameIsPrintedWithItsProcess) {
  for (const auto& [processes, threads, worker] :
       {std::tuple(1, 1, 0), {1, 3, 2}, {2, 1, 0}, {2, 2, 1}, {2, 3, 0}}) {
    SCOPED_TRACE(std::to_string(processes) + " processes, worker " + std::to_string(worker));
    Running first(as_role(worker_role("0", static_cast<uint32_t>(worker)), processes, threads));
    EXPECT_EQ(first.wait(), 1);
    EXPECT_THAT(first.err(), HasSubstr("the body of mcts::Program threw: no playouts here\n"));
    if (processes == 1) continue;
    Running second(as_role(worker_role("1", static_cast<uint32_t>(worker)), processes, threads));
    EXPECT_EQ(second.wait(), 1) << "rank 0 ends its search without rank 1";
    EXPECT_THAT(second.err(), HasSubstr("the search of rank 1"));
    EXPECT_THAT(second.err(), HasSubstr("threw: no playouts here\n"));
  }
}

// Another process requests a node from this worker.
TEST(ProgramExceptions, OneOfTheGameWithinACallIsPrintedWithItsProcess) {
  for (const uint32_t worker : {0U, 1U}) {
    Running first(as_role(worker_role("0", worker) + ", call", 2, 2));
    EXPECT_EQ(first.wait(), 1);
    EXPECT_THAT(first.err(), HasSubstr("the body of mcts::Program threw: no moves here\n"));
    Running second(as_role(worker_role("1", worker) + ", call", 2, 2));
    EXPECT_EQ(second.wait(), 1);
    EXPECT_THAT(second.err(), HasSubstr("the search of rank 1"));
    EXPECT_THAT(second.err(), HasSubstr("threw: no moves here\n"));
  }
}

TEST(ProgramExceptions, AValueOutOfRangeIsPrintedWithItsProcess) {
  const char* const text =
      "threw: the game's playout() returned nan: return a number from 0 to 1\n";
  Running first(as_role(worker_role("0", 1) + ", NaN", 2, 2));
  EXPECT_EQ(first.wait(), 1);
  EXPECT_THAT(first.err(), HasSubstr(text));
  Running second(as_role(worker_role("1", 0) + ", NaN", 2, 1));
  EXPECT_EQ(second.wait(), 1) << "rank 0 ends its search without rank 1";
  EXPECT_THAT(second.err(), HasSubstr("the search of rank 1"));
  EXPECT_THAT(second.err(), HasSubstr(text));
}

TEST(ProgramSignals, DoNotEndARankThatHasNotJoinedTheJobYet) {
  const std::string file = ::testing::TempDir() + "program-signals-" + std::to_string(getpid());
  Running job("env 'PROGRAM_FILE=" + file + "' " + as_role("interrupted", 2));
  EXPECT_EQ(job.wait(), 0) << job.err();
  unlink(file.c_str());
}

// Returns true if the process has a handler of the signal.
bool handles(pid_t process, int signal) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string word; status >> word;) {
    if (word != "SigCgt:") continue;
    uint64_t handled = 0;
    status >> std::hex >> handled;
    return (handled >> (signal - 1) & 1) != 0;
  }
  return false;
}

// Rank 0 of its job does not exist: it waits in Fabric::create().
TEST(ProgramSignals, TheSecondOneEndsARankThatWaitsForOthers) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Running job("env RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 " +
                as_role("joins", 1));
    EXPECT_TRUE(Running::eventually(
        [&] { return handles(job.pid(), SIGINT) && handles(job.pid(), SIGTERM); }));
    ::kill(job.pid(), signal);
    // The kernel removes the handler when it runs.
    EXPECT_TRUE(Running::eventually([&] { return !handles(job.pid(), signal); }));
    ::kill(job.pid(), signal);
    EXPECT_EQ(job.wait(), 128 + signal) << job.err();
  }
}

}  // namespace
}  // namespace cariama::mcts

int main(int argc, char** argv) {
  if (!cariama::mcts::role().empty()) return cariama::mcts::play_role(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
