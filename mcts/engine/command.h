// Commands: requests of rank 0 to all processes that control a search, and their replies.
#ifndef CARIAMA_MCTS_ENGINE_COMMAND_H_
#define CARIAMA_MCTS_ENGINE_COMMAND_H_

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
  kInform,          // no action; the reply contains the counts
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
struct CommandReply {
  Rank rank;
  uint64_t number = 0;  // of the command; 0: the process died before it replied
  // One-way calls, i.e. calls without a reply, that this process has sent and has run since it
  // started (see quiesce()).
  uint64_t posts_sent = 0;
  uint64_t posts_handled = 0;
  bool collecting = false;  // kCollect: another step is needed
  Statistics statistics{};
};

// Base of a process's part of a search: sends commands to all processes and collects the replies.
// Requires: Derived has `CommandReply carry_out(const Command&)`, which this class calls in worker
// 0 of each process. Not thread-safe: only worker 0 may use it.
template <typename Derived>
class CommandedSearch : public HostedSearch {
 public:
  // Rank 0 only. Runs the command in all processes, this one included, and blocks until all have
  // replied. Returns the replies by rank. A process that dies before its reply gets a reply with
  // number 0. Sends 2 (P - 1) messages.
  std::vector<CommandReply> command(CommandKind kind, const SearchOptions& options) {
    Host& host = derived().host();
    const Command command{kind, host.id(0, 0), ++commands_, options};
    replies_.assign(host.size(), {});
    PeerAggregators* aggregators = Host::here().aggregators.get();
    for (uint32_t rank = 1; rank < host.size(); ++rank) {
      if (!host.alive(rank)) continue;
      aggregators->call(host.id(rank, 0),
                        [command] { Host::local_here<Derived>().on_command(command); });
    }
    if (aggregators != nullptr) aggregators->flush();
    replies_[0] = obey(command);
    static_cast<void>(host.work_until(
        [&] {
          for (uint32_t rank = 1; rank < host.size(); ++rank) {
            if (host.alive(rank) && replies_[rank].number != commands_) return false;
          }
          return true;
        },
        kForever));
    return replies_;
  }

  // Rank 0 only. Blocks until all one-way calls of all processes have run, and also the one-way
  // calls that these sent. One-way calls free nodes, send copies of nodes and their counts,
  // request and offer new nodes, and report their names and those of freed ones. Each command is
  // one wave of the termination detection (dsfabric/quiescence.h). The counts of a dead process are
  // lost, so that sent and run calls differ: then the search waits until two waves of the same
  // processes have the same counts.
  void quiesce(const SearchOptions& options) {
    Host& host = derived().host();
    WaveComparison waves;
    for (;;) {
      uint64_t sent = 0;
      uint64_t handled = 0;
      for (const CommandReply& reply : command(CommandKind::kInform, options)) {
        sent += reply.posts_sent;
        handled += reply.posts_handled;
      }
      const uint32_t living = host.living();
      if (living < host.size()) sent = handled = sent + handled;
      if (waves.ended(sent, handled, living)) return;
      static_cast<void>(host.step());  // with a single process, command() runs no calls
    }
  }

 private:
  [[nodiscard]] Derived& derived() { return static_cast<Derived&>(*this); }

  CommandReply obey(const Command& command) {
    Host& host = derived().host();
    host.take_over();
    const CommandReply reply = derived().carry_out(command);
    host.hand_back();
    return reply;
  }
  void on_command(const Command& command) {
    const CommandReply reply = obey(command);
    PeerAggregators& aggregators = *Host::here().aggregators;
    aggregators.call(command.origin, [reply] { Host::local_here<Derived>().on_reply(reply); });
    aggregators.flush();
  }
  void on_reply(const CommandReply& reply) {
    if (reply.rank < replies_.size() && reply.number == commands_) replies_[reply.rank] = reply;
  }

  uint64_t commands_ = 0;
  std::vector<CommandReply> replies_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_ENGINE_COMMAND_H_
