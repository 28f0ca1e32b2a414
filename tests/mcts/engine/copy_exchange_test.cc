// Copies and offers when a process dies, and when two processes create the child of one move.
#include "mcts/engine/copy_exchange.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "docs/examples/connect_four.h"
#include "dsfabric/fabric.h"
#include "gtest/gtest.h"
#include "mcts/search.h"
#include "tests/dsfabric/testing/local_job.h"
#include "tests/mcts/testing/search_job.h"
#include "tests/mcts/testing/searches.h"

namespace cariama::mcts {
namespace {

using cariama::testing::soon;
using example::ConnectFour;
using TestExchange = CopyExchange<ConnectFour>;
using Ref = Node<ConnectFour>::Ref;

// Runs `function` in worker 0 of another process, and returns its result. Called in rank 0.
template <typename Function>
auto run_at(Host& host, Rank rank, Function function) {
  using Result = decltype(function());
  static std::optional<Result> result;
  result.reset();
  PeerAggregators& aggregators = *Host::here().aggregators;
  EXPECT_TRUE(aggregators.call(host.id(rank, 0), [function] {
    const Result value = function();
    PeerAggregators& back = *Host::here().aggregators;
    back.call(0, [value] { result = value; });
    back.flush();
  }));
  aggregators.flush();
  EXPECT_TRUE(host.work_until([] { return result.has_value(); }, soon()));
  return result.value_or(Result{});
}

// The child of a move of the copy of the root in the calling process.
enum class Child { kUnknown, kNone, kBeingCreated, kHere, kRemote };
Child child_at_copy(int move) {
  const Node<ConnectFour>* node = TestExchange::here().find_root().node;
  if (node == nullptr) return Child::kUnknown;
  const Ref child = node->child(move);
  return child.none()          ? Child::kNone
         : child.is_creating() ? Child::kBeingCreated
         : child.is_local()    ? Child::kHere
                               : Child::kRemote;
}
bool offer_at_copy(int move) {
  const auto root = TestExchange::here().find_root();
  if (root.node != nullptr) TestExchange::here().offer_child(*root.copy, *root.node, move);
  return root.node != nullptr;
}

// A search in rank 0 that runs no rollouts. Every process has a copy of the root.
struct QuietSearch {
  explicit QuietSearch(Host& host) : host(host), process(host.local<SearchProcess<ConnectFour>>()) {
    static_cast<void>(process.command(CommandKind::kClear, options));
    process.tree().create_root(ConnectFour(), 1);
    static_cast<void>(process.command(CommandKind::kBegin, options));
    process.exchange().announce_root();
    process.quiesce(options);
  }
  [[nodiscard]] Node<ConnectFour>& root() { return *process.tree().root(); }
  // Returns the numbers of nodes of the processes.
  [[nodiscard]] std::vector<uint64_t> nodes(CommandKind kind = CommandKind::kInform) {
    std::vector<uint64_t> nodes;
    for (const CommandAnswer& answer : process.command(kind, options)) {
      nodes.push_back(answer.statistics.nodes);
    }
    return nodes;
  }

  Host& host;
  SearchProcess<ConnectFour>& process;
  SearchOptions options;
};

// Rank 1 offers a child while another process creates the child for the owner, rank 0. Without the
// answer rank 1 creates no further child for the move. The answer is the child that was created.
TEST(CopyExchange, AnOfferIsAnsweredWhenTheChildWasCreated) {
  testing::run_search_job({3, 1}, [](Host& host) {
    QuietSearch search(host);
    ASSERT_TRUE(search.root().claim_child(0));
    ASSERT_TRUE(run_at(host, 1, [] { return offer_at_copy(0); }));
    search.process.quiesce(search.options);
    EXPECT_EQ(run_at(host, 1, [] { return child_at_copy(0); }), Child::kBeingCreated);
    EXPECT_EQ(search.nodes(), (std::vector<uint64_t>{1, 1, 0}));
    search.process.exchange().end_creation(search.root(), 0, Ref(RemoteNode{2, 0, 7}));
    search.process.quiesce(search.options);
    EXPECT_EQ(run_at(host, 1, [] { return child_at_copy(0); }), Child::kRemote);
    EXPECT_EQ(search.nodes(), (std::vector<uint64_t>{1, 0, 0}));
    search.root().set_child(0, {});  // the name is none of rank 2
    static_cast<void>(search.process.command(CommandKind::kDropCopies, search.options));
  });
}

// Rank 1 offers a child while another process creates the child for the owner, rank 0. That process
// has no memory for the child: the owner adopts the offered node.
TEST(CopyExchange, AnOfferIsAdoptedWhenTheChildWasNotCreated) {
  testing::run_search_job({2, 1}, [](Host& host) {
    QuietSearch search(host);
    ASSERT_TRUE(search.root().claim_child(0));
    ASSERT_TRUE(run_at(host, 1, [] { return offer_at_copy(0); }));
    search.process.quiesce(search.options);
    search.process.exchange().end_creation(search.root(), 0, {});
    search.process.quiesce(search.options);
    EXPECT_EQ(run_at(host, 1, [] { return child_at_copy(0); }), Child::kHere);
    ASSERT_TRUE(search.root().child(0).is_remote());
    EXPECT_EQ(search.root().child(0).remote().rank, 1u);
    EXPECT_EQ(search.nodes(), (std::vector<uint64_t>{1, 1}));
    static_cast<void>(search.process.command(CommandKind::kDropCopies, search.options));
  });
}

// Blocks until ranks 0 and 1 know that rank 2 is dead.
void await_death(Host& host) {
  const Deadline deadline = soon();
  const auto known = [] { return !Host::here().host->alive(2); };
  while (!run_at(host, 1, known) && std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_TRUE(run_at(host, 1, known));
  EXPECT_TRUE(host.work_until([&] { return !host.alive(2); }, soon()));
}

// The owner of a node drops the children that a dead process owned before it uses them in any way:
// it does not send their names, adopts nodes in their place, and creates new ones.
TEST(CopyExchange, NodesOfADeadProcessAreNoChildren) {
  testing::run_with_a_victim({3, 1}, [](Host& host) {
    QuietSearch search(host);
    const RemoteNode lost{2, 0, 7};
    for (const int move : {0, 1, 2}) search.root().set_child(move, Ref(lost));
    const auto exchange = [] {
      const auto root = TestExchange::here().find_root();
      for (const int move : {0, 1, 2}) root.node->drop_child(move, {2, 0, 7});  // as a rollout does
      TestExchange::here().start_exchange(*root.copy, *root.node);
      return true;
    };
    static_cast<void>(run_at(host, 1, exchange));
    search.process.quiesce(search.options);
    EXPECT_EQ(run_at(host, 1, [] { return child_at_copy(0); }), Child::kRemote);

    ASSERT_TRUE(Host::here().aggregators->call(host.id(2, 0), [] { ::kill(::getpid(), SIGKILL); }));
    Host::here().aggregators->flush();
    await_death(host);
    for (const int move : {0, 1, 2}) search.root().set_child(move, Ref(lost));
    ASSERT_TRUE(run_at(host, 1, [] {
      const auto root = TestExchange::here().find_root();
      for (const int move : {0, 1, 2}) root.node->drop_child(move, {2, 0, 7});
      return offer_at_copy(0);
    }));
    search.process.quiesce(search.options);
    EXPECT_EQ(run_at(host, 1, [] { return child_at_copy(0); }), Child::kHere);
    EXPECT_TRUE(search.root().child(0).is_remote() && search.root().child(0).remote().rank == 1);

    search.root().set_child(2, Ref(lost));
    search.root().enter(1, search.options.owner_expand_visits());
    search.process.tree().create_children(search.root(), 0, [](auto&&...) {});
    EXPECT_TRUE(search.root().child(1).is_local());

    static_cast<void>(run_at(host, 1, exchange));
    search.process.quiesce(search.options);
    EXPECT_EQ(run_at(host, 1, [] { return child_at_copy(2); }), Child::kNone);
    static_cast<void>(search.process.command(CommandKind::kDropCopies, search.options));
  });
}

// Returns true if the process has ended. Its parent has not waited for it yet.
bool has_ended(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string id;
  std::string name;
  std::string state;
  return !(file >> id >> name >> state) || state == "Z" || state == "X";
}

// Rank 1 offers a node to the owner of its parent, which has just died. The node is freed at the
// end of the search.
TEST(CopyExchange, NodesOfferedToADeadProcessAreFreed) {
  testing::run_with_a_victim({3, 1}, [](Host& host) {
    QuietSearch search(host);
    struct Victim {
      pid_t process = 0;
      RemoteNode node;
    };
    const Victim victim = run_at(host, 2, [] {
      auto& tree = LocalTree<ConnectFour>::here();
      return Victim{::getpid(), tree.name_of(tree.obtain_exported(ConnectFour(), 0).id)};
    });
    ASSERT_NE(victim.process, 0);
    static_cast<void>(run_at(host, 1, [name = victim.node] {
      return TestExchange::here().find(name, 1000).node == nullptr;  // requests a copy
    }));
    search.process.quiesce(search.options);
    EXPECT_TRUE(run_at(host, 1, [victim] {
      // Rank 1 has only this thread, so it does not notice the death before the offer is sent.
      ::kill(victim.process, SIGKILL);
      const Deadline deadline = soon();
      while (!has_ended(victim.process) && std::chrono::steady_clock::now() < deadline) {
      }
      const auto copy = TestExchange::here().find(victim.node, 1000);
      if (copy.node == nullptr) return false;
      TestExchange::here().offer_child(*copy.copy, *copy.node, 0);
      return copy.node->child(0).is_creating();
    }));
    await_death(host);
    EXPECT_EQ(search.nodes(), (std::vector<uint64_t>{1, 1, 0}));
    EXPECT_EQ(search.nodes(CommandKind::kDropCopies), (std::vector<uint64_t>{1, 0, 0}));
  });
}

}  // namespace
}  // namespace cariama::mcts
