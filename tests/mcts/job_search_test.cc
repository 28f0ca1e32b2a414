// Searches in a job of real processes that communicate only by messages. Started by hand, this
// program launches two processes on this host. Under mpirun it joins the job that mpirun started,
// which may span two hosts (tests/rdma_vm/mpirun-in-guests). The tests are small, since the virtual
// machines there are slow. Rank 0 runs the tests, the other ranks serve.
//
//   job_search_test [--faults] [gtest's options]     # --faults: devices that delay and tear
#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "docs/examples/connect_four.h"
#include "dsfabric/fabric.h"
#include "dsfabric/launcher.h"
#include "dtutils/fault/fault_device.h"
#include "gtest/gtest.h"
#include "mcts/paper/paper_search.h"
#include "mcts/search.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/searches.h"
#include "tests/mcts/testing/tic_tac_toe.h"

namespace cariama::mcts {
namespace {

using cariama::testing::must;
using cariama::testing::soon;
using example::ConnectFour;
using testing::check_conservation;
using testing::check_nodes;
using testing::TicTacToe;

Host* the_host = nullptr;  // the host of rank 0, while the tests run

TEST(JobSearch, EachProcessHasItsPartOfOneTree) {
  Host& host = *the_host;
  ASSERT_GE(host.size(), 2u) << "the test needs a job of at least two processes";
  Search<ConnectFour> search(host);
  search.options().expand_visits = 2;
  search.options().spread_visits = 0;  // with the default rank 0 owns the whole tree
  // With the default, Placement::kLocality places only a few subtrees of so small a tree in a
  // random process, and one process may own nearly all nodes. With 1 it places nearly every child
  // so.
  search.options().spread_expansions = 1;
  for (const Placement placement : {Placement::kRandom, Placement::kHash, Placement::kLocality}) {
    search.options().placement = placement;
    search.clear();
    const auto result = search.run(ConnectFour(), {.iterations = 1000});
    EXPECT_EQ(result.iterations, 1000u);
    EXPECT_EQ(result.moves.size(), 7u);
    check_conservation(search, result);
    uint64_t nodes = 0;
    for (const Statistics& process : result.processes) nodes += process.nodes;
    for (const Statistics& process : result.processes) {
      EXPECT_GE(process.nodes * 2 * host.size(), nodes) << placement_name(placement);
      EXPECT_GT(process.remote_selections, 0u) << placement_name(placement);
    }
  }
  EXPECT_EQ(host.living(), host.size());
  search.clear();
}

TEST(JobSearch, ProvesTicTacToe) {
  Search<TicTacToe> search(*the_host);
  search.options().expand_visits = 2;
  search.options().placement = Placement::kRandom;
  search.options().spread_visits = 0;  // all processes take part in the proof
  TicTacToe game;
  for (const int cell : {4, 8, 0}) game.play(static_cast<uint8_t>(cell));
  const auto result = search.run(game, {.iterations = 10000000});
  ASSERT_NE(result.outcome, Outcome::kOpen);
  EXPECT_EQ(value_of(result.outcome), game.solve());
  check_conservation(search, result);
}

TEST(JobSearch, ThePapersTree) {
  PaperSearch<ConnectFour> search(*the_host);
  const auto result = search.run(ConnectFour(), {.iterations = 500});
  EXPECT_EQ(result.iterations, 500u);
  uint64_t completions = 0;
  for (const Statistics& process : result.processes) {
    EXPECT_EQ(process.visits, process.completions + process.handed_over);
    EXPECT_GT(process.nodes, 0u);
    completions += process.completions;
  }
  EXPECT_EQ(completions, 500u);
}

int run(bool faults) {
  FabricOptions options;
  options.threads = 1;
  options.on_failure = FailurePolicy::kContinue;
  // The virtual machines may be paused for a while when their host is busy.
  options.ack_timeout = std::chrono::milliseconds(500);
  std::shared_ptr<FaultControl> control;
  if (faults) {
    control = std::make_shared<FaultControl>();
    options.device = make_fault_device(must(open_device({})), FaultOptions::benign(11), control);
  }
  const auto fabric = must(Fabric::create(options));
  int code = 0;
  {
    const auto host = must(Host::create(fabric.get()));
    if (host->rank() == 0) {
      the_host = host.get();
      code = RUN_ALL_TESTS();
      host->end();
    } else {
      EXPECT_EQ(host->serve(), absl::OkStatus());
      check_nodes(host->local<LocalTree<ConnectFour>>());
      check_nodes(host->local<LocalTree<TicTacToe>>());
    }
  }
  must(fabric->finalize(soon()));
  if (control != nullptr) {
    EXPECT_GT(control->injected(Fault::kLateCompletion), 0u);
  }
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : code;
}

}  // namespace
}  // namespace cariama::mcts

int main(int argc, char** argv) {
  bool faults = false;
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    faults = faults || std::string_view(argv[i]) == "--faults";
    list = list || std::string_view(argv[i]) == "--gtest_list_tests";
  }
  if (!list) {
    if (const auto code = cariama::launch_self({.processes = 2}, argc, argv)) return *code;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return list ? RUN_ALL_TESTS() : cariama::mcts::run(faults);
}
