// A process that waits for an answer continues when one arrives, also if it arrives before the
// process has begun to wait.
#include "mcts/engine/work_pool.h"

#include <chrono>
#include <cstdint>
#include <memory>

#include "docs/examples/connect_four.h"
#include "dsfabric/fabric.h"
#include "gtest/gtest.h"
#include "mcts/engine/search_process.h"
#include "mcts/host.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/mcts/testing/check.h"
#include "tests/mcts/testing/searches.h"

namespace cariama::mcts {
namespace {

using cariama::testing::LocalJob;
using cariama::testing::soon;
using cariama::testing::transport_case;
using example::ConnectFour;

class OpenPool : public ::testing::Test {
 protected:
  OpenPool() {
    pool_.root_job().root = true;
    pool_.root_job().start(100);
    pool_.open_root();
  }

  std::unique_ptr<Host> host_ = testing::local_host(1);
  WorkPool<ConnectFour>& pool_ = host_->local<WorkPool<ConnectFour>>();
};

TEST_F(OpenPool, TheNextAnswerEndsTheWait) {
  EXPECT_TRUE(pool_.has_work());
  pool_.back_off(pool_.answers());
  EXPECT_FALSE(pool_.has_work());
  pool_.note_answer();
  EXPECT_TRUE(pool_.has_work());
}

TEST_F(OpenPool, AnAnswerBeforeTheWaitIsNotLost) {
  const uint64_t answers = pool_.answers();  // a worker begins its rollouts, which are deferred
  pool_.note_answer();
  pool_.back_off(answers);
  EXPECT_TRUE(pool_.has_work());
}

// After a stop, no answer is in flight that would end the wait.
TEST_F(OpenPool, ResumeEndsTheWait) {
  pool_.back_off(pool_.answers());
  pool_.stop();
  EXPECT_TRUE(pool_.has_work());  // the rollouts have to be cancelled
  pool_.resume();
  EXPECT_TRUE(pool_.has_work());
}

// Answers without a completed rollout let the process wait for other answers. It must not wait if
// the answers say that a node does not exist, since the move gets a new node, or if no other answer
// is in flight.
TEST(WorkPool, AnswersAboutUnknownNodesStartNoWait) {
  LocalJob job({.processes = 2, .transport = transport_case("sim"), .init_thread = false});
  job.run([&](Fabric& fabric, uint32_t) {
    auto host = Host::create(&fabric);
    ASSERT_TRUE(host.ok()) << host.status();
    if ((*host)->rank() != 0) {
      EXPECT_EQ((*host)->serve(), absl::OkStatus());
      return;
    }
    auto& process = (*host)->local<SearchProcess<ConnectFour>>();
    WorkPool<ConnectFour>& pool = process.pool();
    process.tree().create_root(ConnectFour(), 1);
    Node<ConnectFour>& root = *process.tree().root();
    for (int i = 0; i < root.size(); ++i) {
      root.set_child(i, Node<ConnectFour>::Ref(RemoteNode{1, 0, static_cast<uint32_t>(1000 + i)}));
    }
    pool.root_job().root = true;
    pool.root_job().node = &root;
    pool.root_job().start(100);
    pool.open_root();
    EXPECT_TRUE(process.work(0));
    EXPECT_GT(pool.outstanding_sum(), 0);
    const Deadline deadline = soon();
    while (pool.outstanding_sum() > 0 && std::chrono::steady_clock::now() < deadline) {
      static_cast<void>(fabric.wait([&] { return pool.outstanding_sum() == 0; }, deadline));
    }
    EXPECT_EQ(pool.outstanding_sum(), 0);
    EXPECT_TRUE(pool.has_work());
    pool.close_root();
    (*host)->end();
  });
}

}  // namespace
}  // namespace cariama::mcts
