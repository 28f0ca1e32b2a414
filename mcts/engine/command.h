// Commands: requests of rank 0 to all processes that control a search, and their answers.
#ifndef CARIAMA_MCTS_ENGINE_COMMAND_H_
#define CARIAMA_MCTS_ENGINE_COMMAND_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "dsfabric/quiescence.h"
#include "mcts/host.h"
#include "mcts/options.h"

namespace cariama::mcts {

enum class CommandKind : uint8_t {
  kBegin,           // applies the options, resets the statistics, starts the workers on this game
  kStop,            // workers cancel the rollouts that are not begun
  kResume,          // the search continues after a collection
  kInform,          // no action; the answer contains the counts
  kClear,           // frees all nodes
  kCollect,         // frees cold subtrees for about a millisecond
  kCollected,       // ends the collection
  kSendLastCounts,  // sends the counts of all copied nodes to their owners for the last time
  kDropCopies       // drops all copied nodes
};
struct Command {
  CommandKind kind = CommandKind::kInform;
  ThreadId origin;      // the thread that sent the command
  uint64_t number = 0;  // sequence number of the command
  SearchOptions options{};
};
struct CommandAnswer {
  Rank rank;
  uint64_t number = 0;  // of the command; 0: the process died before it answered
  Host::Posts posts;    // of this process, see quiesce()
  uint64_t dead = 0;    // identifies the processes that this process has marked as dead; 0: none
  // This process has no work of a dead process left: it runs no call of one, and has no job and no
  // operation that one has caused. Meaningful only after a death.
  bool no_work_left = false;
  bool collecting = false;  // kCollect: another step is needed
  Statistics statistics{};
};

// Base of a process's part of a search: sends commands to all processes and collects the answers.
// Requires: Derived has `CommandAnswer carry_out(const Command&)`, and `bool has_no_work()`, which
// returns true if this process has no job and no operation that another process has caused. This
// class calls both in worker 0 of each process. Not thread-safe: only worker 0 may use it.
template <typename Derived>
class CommandedSearch : public HostedSearch {
 public:
  // Rank 0 only. Runs the command in all processes, this one included, and blocks until all have
  // answered, at most for HostOptions::patience: then the search leaves out the late processes.
  // Returns the answers by rank. A process that dies or is left out before its answer gets an
  // answer with number 0. Sends 2 (P - 1) messages.
  std::vector<CommandAnswer> command(CommandKind kind, const SearchOptions& options) {
    begin_command(kind, options);
    complete_command();
    return answers_;
  }
  // Rank 0 only. The parts of command(). begin_command() does not block. Answers to commands before
  // the last one are dropped.
  void begin_command(CommandKind kind, const SearchOptions& options) {
    Host& host = derived().host();
    last_ = {kind, host.id(0, 0), ++commands_, options};
    answers_.assign(host.size(), {});
    host.note_command(this);
    for (uint32_t rank = 1; rank < host.size(); ++rank) {
      if (host.alive(rank)) send_last_command(rank);
    }
    if (PeerAggregators* aggregators = Host::here().aggregators.get(); aggregators != nullptr) {
      aggregators->flush();
    }
    answers_[0] = obey(last_);
  }
  void repeat_command(Rank rank) override {
    Host& host = derived().host();
    if (rank == 0 || rank >= answers_.size() || !host.alive(rank)) return;
    if (answers_[rank].number == commands_) return;
    send_last_command(rank);
    Host::here().aggregators->flush();
  }
  // Returns false if the deadline passes before all processes have answered.
  [[nodiscard]] bool await_answers(Deadline deadline) {
    return derived().host().work_until([&] { return late().empty(); }, deadline);
  }
  void complete_command() {
    Host& host = derived().host();
    if (host.work_patiently([&] { return late().empty(); })) return;
    leave_out_late();
  }
  // Leaves out the processes that have not answered the last command.
  void leave_out_late() {
    for (const Rank rank : late()) derived().host().leave_out(rank);
  }
  // Returns the answers to the last command that have arrived, by rank.
  [[nodiscard]] const std::vector<CommandAnswer>& answers() const { return answers_; }
  // Sets those of `statistics`, by rank, whose processes have answered the last command.
  void update(std::vector<Statistics>& statistics) const {
    for (const CommandAnswer& answer : answers_) {
      if (answer.number != 0) statistics[answer.rank] = answer.statistics;
    }
  }
  // Returns the living processes that have not answered the last command.
  [[nodiscard]] std::vector<Rank> late() {
    Host& host = derived().host();
    std::vector<Rank> ranks;
    for (uint32_t rank = 1; rank < host.size(); ++rank) {
      if (host.alive(rank) && answers_[rank].number != commands_) ranks.emplace_back(rank);
    }
    return ranks;
  }

  // Rank 0 only. Blocks until all posts of all processes have run, and also the posts that these
  // sent. Posts free nodes, send copies of nodes and their counts, request and offer new nodes, and
  // report their names and those of freed ones. Each command is one wave of the termination
  // detection (dsfabric/quiescence.h). After a death the posts to and from the dead process are not
  // counted. Its posts may still have arrived, and run: so a wave counts only if every process has
  // noticed the same deaths and has no work of a dead process left (CommandAnswer::no_work_left).
  // If two processes have lost each other, and rank 0 neither of them, one is left out after
  // HostOptions::patience.
  void quiesce(const SearchOptions& options) {
    Host& host = derived().host();
    WaveComparison waves;
    std::chrono::steady_clock::time_point equal_at = std::chrono::steady_clock::now();
    for (;;) {
      Host::Posts sum;
      const std::vector<CommandAnswer>& answers = command(CommandKind::kInform, options);
      const uint64_t dead = host.dead_set_hash();
      bool agreed = true;  // no process has work of a dead process, and all noticed the same deaths
      for (uint32_t rank = 0; rank < host.size(); ++rank) {
        if (!host.alive(rank)) continue;
        const CommandAnswer& answer = answers[rank];
        sum.begun += answer.posts.begun;
        sum.ended += answer.posts.ended;
        agreed &= answer.dead == dead && (dead == 0 || answer.no_work_left);
      }
      const auto now = std::chrono::steady_clock::now();
      if (const Rank lost = lost_by_others(); lost == 0) {
        equal_at = now;
      } else if (now - equal_at >= host.patience()) {
        host.leave_out_lost(lost);
        equal_at = now;
      }
      if (!agreed) waves.reset();
      if (agreed && waves.ended(sum.begun, sum.ended, dead)) return;
      static_cast<void>(host.step());  // with a single process, command() runs no calls
    }
  }

 private:
  [[nodiscard]] Derived& derived() { return static_cast<Derived&>(*this); }

  // Returns 0 if all answers to the last command name the processes that this one has marked as
  // dead. Otherwise a process to leave out, so that they do: the higher of two that have lost each
  // other, as in Fabric::finalize().
  [[nodiscard]] Rank lost_by_others() {
    Host& host = derived().host();
    const uint64_t dead = host.dead_set_hash();
    for (uint32_t rank = 1; rank < host.size(); ++rank) {
      const uint64_t difference = answers_[rank].dead ^ dead;
      if (difference == 0 || !host.alive(rank)) continue;
      for (uint32_t other = rank + 1; other < host.size(); ++other) {
        if (host.alive(other) && difference == Host::dead_hash(other)) return Rank(other);
      }
      return Rank(rank);
    }
    return Rank(0);
  }

  CommandAnswer obey(const Command& command) {
    Host& host = derived().host();
    host.take_over();
    CommandAnswer answer = derived().carry_out(command);
    answer.rank = host.rank();
    answer.number = command.number;
    answer.posts = host.posts();
    answer.dead = host.dead_set_hash();
    if (answer.dead != 0) answer.no_work_left = host.passed() && derived().has_no_work();
    host.hand_back();
    return answer;
  }
  void send_last_command(Rank rank) {
    Host::here().aggregators->command(derived().host().id(rank, 0), [command = last_] {
      Host::local_here<Derived>().on_command(command);
    });
  }
  void on_command(const Command& command) {
    if (command.number <= obeyed_) return;  // it was repeated, and had arrived before
    obeyed_ = command.number;
    const CommandAnswer answer = obey(command);
    PeerAggregators& aggregators = *Host::here().aggregators;
    aggregators.call(command.origin, [answer] { Host::local_here<Derived>().on_answer(answer); });
    aggregators.flush();
  }
  void on_answer(const CommandAnswer& answer) {
    if (answer.rank < answers_.size() && answer.number == commands_) answers_[answer.rank] = answer;
  }

  uint64_t commands_ = 0;
  Command last_;         // rank 0: that was sent
  uint64_t obeyed_ = 0;  // other ranks: the number of the last command
  std::vector<CommandAnswer> answers_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_COMMAND_H_
