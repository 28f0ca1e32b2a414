// SearchProcess: one process's part of a search for one type of game. It consists of the objects
// below, one instance of each per process. Their calls go to instances of the same type. Within
// a process the objects call each other in one direction, from the top of this table downward:
//
//   object             owns                          calls            assumes
//   Search             the course of a search        SearchProcess,   worker 0 of rank 0 calls it
//     search.h                                       all below
//   SearchProcess      the commands of rank 0,       all below        worker 0 calls it;
//     this file        statistics                                     work(): any worker
//   Worker             rollouts; the calls for       CopyExchange,    one thread calls it
//     worker.h         jobs                          WorkPool,
//                                                    LocalTree
//   Lines              the principal variations      LocalTree        worker 0 calls it
//     lines.h          of a result or report
//   CopyExchange       copies of remote nodes, and   WorkPool,        no rollout runs when copies
//     copy_exchange.h  the exchange of counts;       LocalTree        are dropped
//                      calls about new nodes
//   WorkPool           jobs, tickets and flags:      -                -
//     work_pool.h      the work that may begin
//   LocalTree          the nodes of this process,    -                no rollout runs when nodes
//     tree.h           their memory and names                         are freed
//
// "No rollout runs" holds between the end of a search (Search::end_rollouts()) and the next one.
#ifndef CARIAMA_MCTS_ENGINE_SEARCH_PROCESS_H_
#define CARIAMA_MCTS_ENGINE_SEARCH_PROCESS_H_

#include <time.h>

#include <atomic>
#include <cstdint>
#include <tuple>

#include "mcts/engine/command.h"
#include "mcts/engine/copy_exchange.h"
#include "mcts/engine/lines.h"
#include "mcts/engine/tree.h"
#include "mcts/engine/work_pool.h"
#include "mcts/engine/worker.h"
#include "mcts/host.h"
#include "mcts/options.h"

namespace cariama::mcts {

template <Game G>
class SearchProcess final : public CommandedSearch<SearchProcess<G>> {
 public:
  explicit SearchProcess(Host& host)
      : host_(host),
        tree_(host.local<LocalTree<G>>()),
        pool_(host.local<WorkPool<G>>()),
        exchange_(host.local<CopyExchange<G>>()),
        lines_(host.local<Lines<G>>()),
        workers_(host.local<PerThread<Worker<G>>>()) {}

  bool work(uint32_t thread) override { return workers_[thread].work(); }
  [[nodiscard]] bool has_work(uint32_t thread) override { return workers_[thread].has_work(); }
  void lost(Rank rank) override {
    for (Ticket<G>& ticket :
         pool_.tickets().take_if([&](const auto& t) { return t.rank == rank; })) {
      workers_[0].give_up(ticket);
    }
    pool_.note_answer();  // rollouts may have waited for an exchange with the dead process
  }

  [[nodiscard]] Host& host() { return host_; }
  [[nodiscard]] LocalTree<G>& tree() { return tree_; }
  [[nodiscard]] WorkPool<G>& pool() { return pool_; }
  [[nodiscard]] CopyExchange<G>& exchange() { return exchange_; }
  [[nodiscard]] Lines<G>& lines() { return lines_; }
  [[nodiscard]] Worker<G>& worker(uint32_t thread) { return workers_[thread]; }

 private:
  friend class CommandedSearch<SearchProcess<G>>;

  CommandAnswer carry_out(const Command& command) {
    CommandAnswer answer;
    switch (command.kind) {
      case CommandKind::kBegin:
        begin(command);
        break;
      case CommandKind::kStop:
        pool_.stop();
        break;
      case CommandKind::kResume:
        exchange_.begin(tree_.options());
        pool_.resume();
        break;
      case CommandKind::kSendLastCounts:
        exchange_.send_last_counts();
        break;
      case CommandKind::kDropCopies:
        exchange_.drop_copies();
        tree_.free_discarded();
        break;
      case CommandKind::kClear:
        tree_.clear();
        break;
      case CommandKind::kCollect:
        answer.collecting = tree_.collect_step();
        break;
      case CommandKind::kCollected:
        tree_.finish_collection();
        break;
      case CommandKind::kInform:
        break;
    }
    answer.statistics = statistics();
    return answer;
  }
  [[nodiscard]] bool has_no_work() { return pool_.jobs().unused(); }
  void begin(const Command& command) {
    const SearchOptions options = command.options.possible();
    tree_.begin(options);
    pool_.resume();
    exchange_.begin(options);
    pool_.root_job().clear_value();
    created_for_others_before_ = exchange_.created_for_others();
    cpu_before_ = cpu_seconds();
    for (uint32_t i = 0; i < host_.threads(); ++i) {
      workers_[i].begin(Random::mix(command.options.seed + command.number) +
                        host_.id(host_.rank(), i));
      host_.thread(i).idle_ns.store(0, std::memory_order_relaxed);
    }
    host_.activate(this);
  }
  // Returns the processor time of this process.
  [[nodiscard]] static double cpu_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  [[nodiscard]] Statistics statistics() const {
    Statistics sum;
    for (const auto& worker : workers_) worker->add_to(sum);
    for (uint32_t i = 0; i < host_.threads(); ++i) {
      sum.idle_seconds +=
          1e-9 * static_cast<double>(host_.thread(i).idle_ns.load(std::memory_order_relaxed));
    }
    // Only the owning thread may read the channels of its aggregators. So the statistics contain
    // those of worker 0, which calls this function.
    if (PeerAggregators* aggregators = Host::here().aggregators.get(); aggregators != nullptr) {
      std::tie(sum.channels, sum.channels_behind) = aggregators->channels();
    }
    tree_.add_to(sum);
    sum.nodes_created_remotely += exchange_.created_for_others() - created_for_others_before_;
    sum.cpu_seconds = cpu_seconds() - cpu_before_;
    return sum;
  }

  Host& host_;
  LocalTree<G>& tree_;
  WorkPool<G>& pool_;
  CopyExchange<G>& exchange_;
  Lines<G>& lines_;
  PerThread<Worker<G>>& workers_;
  double cpu_before_ = 0;
  uint64_t created_for_others_before_ = 0;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_SEARCH_PROCESS_H_
