// Searches over the transports with which one operating-system process can run a whole job: shared
// memory, the simulated cluster, and both with injected faults (short queues, delays, torn writes).
#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"
#include "mcts/paper/paper_search.h"
#include "mcts/search.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/score_game.h"
#include "tests/mcts/testing/search_job.h"
#include "tests/mcts/testing/searches.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using cariama::testing::LocalJob;
using cariama::testing::soon;
using cariama::testing::transport_case;
using example::ConnectFour;
using testing::check_conservation;
using testing::check_nodes;
using testing::check_scores;
using testing::process_of;
using testing::run_transport_job;
using testing::ScoreGame;
using testing::TicTacToe;

class ByTransport : public ::testing::TestWithParam<std::string> {
 protected:
  static void run(uint64_t seed, const std::function<void(Host&)>& body,
                  const std::function<void(Host&)>& after = nullptr) {
    run_transport_job(GetParam(), seed, body, after);
  }
};
INSTANTIATE_TEST_SUITE_P(Search, ByTransport,
                         ::testing::Values("shm", "fault_shm", "sim", "fault_sim"),
                         [](const auto& info) { return info.param; });

TEST_P(ByTransport, CountsAreConserved) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    run(
        seed,
        [&](Host& host) {
          Search<ConnectFour> search(host);
          search.options().expand_visits = 2;
          search.options().spread_visits = 0;  // the tree of so few iterations is in all processes
          for (const Placement placement : {Placement::kRandom, Placement::kLocality}) {
            search.options().placement = placement;
            search.options().seed = seed;
            search.clear();
            const auto result = search.run(ConnectFour(), {.iterations = 1500});
            EXPECT_EQ(result.iterations, 1500u);
            check_conservation(search, result);
            EXPECT_GT(result.processes[0].remote_selections, 0u);
          }
        },
        [](Host& host) { check_nodes(host.local<LocalTree<ConnectFour>>()); });
  }
}

TEST_P(ByTransport, ProvesTicTacToe) {
  run(1, [](Host& host) {
    Search<TicTacToe> search(host);
    search.options().expand_visits = 2;
    search.options().placement = Placement::kRandom;
    search.options().spread_visits = 0;  // all processes take part in the proof
    for (const int first : {0, 4}) {
      TicTacToe game;
      game.play(static_cast<uint8_t>(first));
      game.play(8);
      const auto result = search.run(game, {.iterations = 10000000});
      ASSERT_NE(result.outcome, Outcome::kOpen);
      EXPECT_EQ(value_of(result.outcome), game.solve());
      check_conservation(search, result);
    }
  });
}

TEST_P(ByTransport, ScoresProveNothing) {
  run(1, [](Host& host) {
    Search<ScoreGame> search(host);
    search.options().placement = Placement::kRandom;
    for (uint32_t number = 0; number < 4; ++number) {
      search.options().expand_visits = number % 2 == 0 ? 0 : 8;
      check_scores(search, ScoreGame(number));
    }
  });
}

// With placement by hash and transpositions, a position has one node in all processes together.
TEST_P(ByTransport, NoPositionHasTwoOwners) {
  std::mutex mutex;
  std::map<uint64_t, int> owners;  // number of nodes with a key
  const auto count = [&](Host& host) {
    const std::lock_guard lock(mutex);
    host.local<LocalTree<ConnectFour>>().for_each_node(
        [&](const auto& node) { ++owners[node.key()]; });
  };
  run(
      1,
      [&](Host& host) {
        Search<ConnectFour> search(host);
        search.options().expand_visits = 1;
        search.options().placement = Placement::kHash;
        search.options().transpositions = true;
        search.options().spread_visits = 0;  // before it spreads, rank 0 owns all nodes
        const auto result = search.run(ConnectFour(), {.iterations = 2000});
        check_conservation(search, result);
        uint64_t found = 0;
        for (const Statistics& process : result.processes) found += process.transpositions;
        EXPECT_GT(found, 0u);
        count(host);
      },
      count);
  EXPECT_GT(owners.size(), 100u);
  for (const auto& [key, times] : owners) EXPECT_EQ(times, 1) << key;
}

TEST_P(ByTransport, ThePapersTree) {
  run(1, [](Host& host) {
    PaperSearch<ConnectFour> search(host);
    const auto result = search.run(ConnectFour(), {.iterations = 1000});
    EXPECT_EQ(result.iterations, 1000u);
    uint64_t completions = 0;
    for (const Statistics& process : result.processes) {
      EXPECT_EQ(process.visits, process.completions + process.handed_over);
      completions += process.completions;
    }
    EXPECT_EQ(completions, 1000u);
  });
}

// If the owner of a node does not know its name any more, the parent forgets the child, also when
// only a copy of the parent has met the name. Otherwise the search would request the same rollouts
// again and again, and never end.
TEST_P(ByTransport, AnUnknownNameIsForgotten) {
  run(1, [](Host& host) {
    Search<ConnectFour> search(host);
    search.options().expand_visits = 1;
    search.options().placement = Placement::kRandom;
    search.options().spread_visits = 0;  // the names are those of nodes of other processes
    search.options().stop_when_safe = false;
    for (int round = 0; round < 5; ++round) {  // which process meets a name first depends on timing
      search.clear();
      static_cast<void>(search.run(ConnectFour(), {.iterations = 1000}));
      std::atomic<int> forgotten{0};
      for (const uint32_t rank : {1, 2}) {
        ASSERT_TRUE(Host::here().aggregators->call(host.id(rank, 0), [forgotten = &forgotten] {
          LocalTree<ConnectFour>::here().exported().clear();
          ++*forgotten;
        }));
      }
      Host::here().aggregators->flush();
      ASSERT_TRUE(host.work_until([&] { return forgotten == 2; }, soon()));
      const auto result = search.run(ConnectFour(), {.seconds = 30, .iterations = 1000});
      ASSERT_EQ(result.iterations, 1000u);
    }
  });
}

// The first commands of a search reach a thread that has a context and no host yet.
TEST(Search, WaitsForAHostThatIsCreatedAfterItHasBegun) {
  LocalJob job({.processes = 2, .transport = transport_case("shm"), .init_thread = false});
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      const auto context = fabric.init_thread(0);
      ASSERT_TRUE(context.ok()) << context.status();
      const Deadline deadline = soon();
      while (fabric.process_calls() == 0 && std::chrono::steady_clock::now() < deadline) {
      }
    }
    auto host = Host::create(&fabric);
    ASSERT_TRUE(host.ok()) << host.status();
    if (fabric.rank() == 1) {
      EXPECT_EQ((*host)->serve(), absl::OkStatus());
      return;
    }
    Search<ConnectFour> search(**host);
    const auto result = search.run(ConnectFour(), {.iterations = 1000});
    EXPECT_EQ(result.iterations, 1000u);
    EXPECT_TRUE(result.late.empty());
    (*host)->end();
  });
}

// All calls of rank 0 reach a thread that has a context and no host, also the one that its process
// was left out.
TEST(Search, ALeftOutProcessThatCreatesItsHostLaterDoesNotServe) {
  LocalJob job({.processes = 2, .transport = transport_case("shm"), .init_thread = false});
  std::atomic<bool> searched{false};
  std::atomic<bool> ended{false};
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 1) {
      const auto context = fabric.init_thread(0);
      ASSERT_TRUE(context.ok()) << context.status();
      const Deadline deadline = soon();
      while (!searched.load() && std::chrono::steady_clock::now() < deadline) {
        fabric.process_calls();
      }
      while (fabric.process_calls() != 0) {
      }
    }
    auto host = Host::create(&fabric, {.patience = std::chrono::milliseconds(200)});
    ASSERT_TRUE(host.ok()) << host.status();
    if (fabric.rank() == 1) {
      EXPECT_EQ((*host)->serve().code(), absl::StatusCode::kUnavailable);
      ended = true;
      return;
    }
    Search<ConnectFour> search(**host);
    EXPECT_EQ(search.run(ConnectFour(), {.iterations = 1000}).iterations, 1000u);
    EXPECT_FALSE((*host)->alive(1));
    searched = true;
    EXPECT_TRUE((*host)->work_until([&] { return ended.load(); }, soon()));
    (*host)->end();
  });
}

// Rank 1 has lost rank 2, and rank 0 neither of them: the higher rank is left out.
TEST(Search, GoesOnIfTwoOtherProcessesLoseEachOther) {
  cariama::testing::LocalJobOptions options{
      .processes = 3, .transport = transport_case("fault_shm"), .init_thread = false};
  options.finalize = false;
  LocalJob job(options);
  job.run([&job](Fabric& fabric, uint32_t) {
    auto host = Host::create(&fabric, {.patience = std::chrono::seconds(1)});
    ASSERT_TRUE(host.ok()) << host.status();
    if (fabric.rank() != 0) {
      const absl::Status served = (*host)->serve();
      EXPECT_EQ(absl::IsUnavailable(served), fabric.rank() == 2) << served;
      return;
    }
    Search<ConnectFour> search(**host);
    EXPECT_EQ(search.run(ConnectFour(), {.iterations = 20000}).iterations, 20000u);
    job.faults(1)->lose_peer(fabric.label(2));
    EXPECT_GE(search.run(ConnectFour(), {.iterations = 20000}).iterations, 10000u);
    search.clear();
    EXPECT_EQ(search.run(ConnectFour(), {.iterations = 20000}).iterations, 20000u);
    EXPECT_TRUE((*host)->alive(1));
    EXPECT_FALSE((*host)->alive(2));
    (*host)->end();
  });
}

// The call of end() reaches a thread that has a context and no host, and rank 0 has destroyed its
// host when the other process creates one.
TEST(Search, AProcessThatCreatesItsHostAfterTheEndDoesNotServe) {
  LocalJob job({.processes = 2, .transport = transport_case("shm"), .init_thread = false});
  std::atomic<bool> ended{false};
  job.run([&](Fabric& fabric, uint32_t) {
    if (fabric.rank() == 0) {
      {
        auto host = Host::create(&fabric, {.patience = std::chrono::milliseconds(200)});
        ASSERT_TRUE(host.ok()) << host.status();
        Search<ConnectFour> search(**host);
        EXPECT_EQ(search.run(ConnectFour(), {.seconds = 0.01}).moves.size(), 7u);
        (*host)->end();
      }
      ended = true;
      return;
    }
    {
      const auto context = fabric.init_thread(0);
      ASSERT_TRUE(context.ok()) << context.status();
      const Deadline deadline = soon();
      while (!ended.load() && std::chrono::steady_clock::now() < deadline) fabric.process_calls();
      while (fabric.process_calls() != 0) {
      }
    }
    auto host = Host::create(&fabric);
    ASSERT_TRUE(host.ok()) << host.status();
    EXPECT_EQ((*host)->serve(), absl::OkStatus());
  });
}

// A connection that a search needs is not made during the search: the other process may be stopped
// then, and a worker that connects runs no calls.
TEST(Search, ProcessesAreConnectedWhenTheirHostsExist) {
  LocalJob job({.processes = 4, .transport = transport_case("shm"), .init_thread = false});
  job.run([&](Fabric& fabric, uint32_t) {
    auto host = Host::create(&fabric);
    ASSERT_TRUE(host.ok()) << host.status();
    EXPECT_GE(fabric.statistics().connections, 3u);
    job.meet(4);
    if (fabric.rank() == 0) {
      (*host)->end();
    } else {
      EXPECT_EQ((*host)->serve(), absl::OkStatus());
    }
  });
}

// Calls that free nodes may run while the collector frees nodes of the same tree. Both processes
// free all nodes below the root; the nodes of each process have children in the other one. Rank 1
// collects first. Its calls free nodes that rank 0 is about to free, too. Rank 1 then receives
// nothing until rank 0 has run these calls. Rank 0 runs them in the middle of its collection: the
// channel to rank 1 is nearly full, so rank 0 has to wait for room and runs received calls
// meanwhile.
TEST(Search, NodesAreFreedByCallsWhileTheyAreCollected) {
  std::atomic<bool> filled{false};  // the channel to rank 1 is nearly full
  std::atomic<bool> sent{false};    // rank 1 has sent its calls to rank 0
  std::atomic<bool> run{false};     // rank 0 has run these calls
  const auto await = [](const std::atomic<bool>& stage) {
    const Deadline deadline = soon();
    while (!stage && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(stage);
  };
  LocalJob job({.processes = 2, .transport = transport_case("shm"), .init_thread = false});
  job.run([&](Fabric& fabric, uint32_t) {
    auto host = Host::create(&fabric);
    ASSERT_TRUE(host.ok()) << host.status();
    if ((*host)->rank() != 0) {
      EXPECT_EQ((*host)->serve(), absl::OkStatus());
      check_nodes((*host)->local<LocalTree<ConnectFour>>());
      return;
    }
    Search<ConnectFour> search(**host);
    search.options().expand_visits = 0;
    search.options().placement = Placement::kRandom;
    search.options().spread_visits = 0;  // nearly every node has its parent in the other process
    search.options().memory_bytes = uint64_t{256} << 20;
    static_cast<void>(search.run(ConnectFour(), {.iterations = 20000}));
    SearchProcess<ConnectFour>& process = process_of(search);
    LocalTree<ConnectFour>& tree = process.tree();
    SearchOptions options = search.options();
    options.memory_bytes = 0;
    static_cast<void>(process.command(CommandKind::kBegin, options));
    PeerAggregators& aggregators = *Host::here().aggregators;
    const auto collect = [filled = &filled, sent = &sent, run = &run, await = &await] {
      // Rank 0 runs received calls while its channel grows.
      (*await)(*filled);
      PeerAggregators& back = *Host::here().aggregators;
      LocalTree<ConnectFour>::here().collect();
      back.call(0, [run] { *run = true; });
      back.flush();
      *sent = true;
      (*await)(*run);
    };
    ASSERT_TRUE(aggregators.call((*host)->id(1, 0), collect));
    aggregators.flush();
    // Fill all chunks of the channel except two. Each filler call is so large that a chunk has no
    // room for a second one.
    const MessengerOptions channel;
    const std::vector<std::byte> filler(channel.chunk_bytes / 2 + 1024);
    for (uint32_t i = 0; i + 2 < channel.max_chunks; ++i) {
      ASSERT_TRUE(aggregators.call_buffer((*host)->id(1, 0), [](void*, uint64_t) {}, filler));
    }
    aggregators.flush();
    filled = true;
    await(sent);
    EXPECT_FALSE(run);
    tree.collect();
    EXPECT_TRUE(run) << "the channel had room for all calls, so rank 0 ran no calls of rank 1";
    aggregators.flush();
    // Repeat until both processes have run all calls that free nodes.
    std::vector<CommandAnswer> now;
    const Deadline deadline = soon();
    do {
      now = process.command(CommandKind::kInform, options);
    } while (now[0].posts.begun + now[1].posts.begun != now[0].posts.ended + now[1].posts.ended &&
             std::chrono::steady_clock::now() < deadline);
    EXPECT_EQ(now[0].statistics.nodes, 1u);  // the root
    EXPECT_EQ(now[1].statistics.nodes, 0u);
    EXPECT_EQ(now[1].statistics.node_bytes, 0u);
    check_nodes(tree);
    (*host)->end();
  });
}

}  // namespace
}  // namespace cariama::mcts
