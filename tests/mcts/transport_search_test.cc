// Searches over the transports that one operating-system process can hold: shared memory, the
// simulated cluster, and faults over both (short queues, delays, torn writes).
#include <string>

#include "docs/examples/connect_four.h"
#include "gtest/gtest.h"
#include "mcts/paper_search.h"
#include "mcts/search.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using cariama::testing::LocalJob;
using cariama::testing::transport_case;
using example::ConnectFour;
using testing::check_conservation;
using testing::check_nodes;
using testing::TicTacToe;

class ByTransport : public ::testing::TestWithParam<std::string> {
 protected:
  // Runs `body` in rank 0 of three processes with one worker each.
  void run(uint64_t seed, const std::function<void(Host&)>& body,
           const std::function<void(Host&)>& after = nullptr) {
    LocalJob job({.processes = 3,
                  .transport = transport_case(GetParam()),
                  .seed = seed,
                  .init_thread = false});
    job.run([&](Fabric& fabric, uint32_t) {
      auto host = Host::create(&fabric);
      ASSERT_TRUE(host.ok()) << host.status();
      if ((*host)->rank() == 0) {
        body(**host);
        (*host)->end();
      } else {
        EXPECT_EQ((*host)->serve(), absl::OkStatus());
        if (after) after(**host);
      }
    });
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
        [](Host& host) { check_nodes(host.site<Site<ConnectFour>>()); });
  }
}

TEST_P(ByTransport, ProvesTicTacToe) {
  run(1, [](Host& host) {
    Search<TicTacToe> search(host);
    search.options().expand_visits = 2;
    search.options().placement = Placement::kRandom;
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

// Both processes free all nodes below the root, each of which has children in the other one, at the
// same time. Channels are soon full, and who waits for room runs what the other one has sent: that
// frees nodes, too. On sim, where a seed replays a run: a run in which rank 1 has something freed
// while rank 0 is at it is the same run every time.
TEST(Search, NodesAreFreedByCallsWhileTheyAreCollected) {
  uint64_t interleaved = 0;  // runs in which that happened
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    LocalJob job(
        {.processes = 2, .transport = transport_case("sim"), .seed = seed, .init_thread = false});
    job.run([&](Fabric& fabric, uint32_t) {
      auto host = Host::create(&fabric);
      ASSERT_TRUE(host.ok()) << host.status();
      if ((*host)->rank() != 0) {
        EXPECT_EQ((*host)->serve(), absl::OkStatus());
        check_nodes((*host)->site<Site<ConnectFour>>());
        return;
      }
      Search<ConnectFour> search(**host);
      search.options().expand_visits = 0;
      search.options().placement = Placement::kRandom;
      search.options().memory_bytes = uint64_t{256} << 20;
      static_cast<void>(search.run(ConnectFour(), {.iterations = 8000}));
      Site<ConnectFour>& site = search.site();
      SearchOptions options = search.options();
      options.memory_bytes = 0;
      static_cast<void>(site.command(CommandKind::kBegin, options));
      // Rank 1 is asked first, and begins as soon as rank 0 waits.
      const auto collected = site.command(CommandKind::kCollect, options);
      interleaved += collected[0].posts_handled != collected[1].posts_sent ? 0 : 1;
      (*host)->end();
    });
  }
  EXPECT_GT(interleaved, 0u);
}

}  // namespace
}  // namespace cariama::mcts
