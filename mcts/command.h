// What rank 0 asks all processes for outside of rollouts: to begin, to stop, to tell what they did.
#ifndef CARIAMA_MCTS_COMMAND_H_
#define CARIAMA_MCTS_COMMAND_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "mcts/host.h"
#include "mcts/options.h"

namespace cariama::mcts {

enum class CommandKind : uint8_t {
  kBegin,
  kStop,
  kResume,
  kInform,
  kClear,
  kCollect,
  kCollected,
  kSettle,
  kForget
};
struct Command {
  CommandKind kind = CommandKind::kInform;
  uint32_t origin = 0;  // the asking thread
  uint64_t number = 0;  // of the command
  SearchOptions options{};
};
struct CommandReply {
  uint32_t rank = 0;
  uint64_t number = 0;
  uint64_t posts_sent = 0;     // calls that nobody waits for (see settle())
  uint64_t posts_handled = 0;  // of those that came here
  bool collecting = false;     // kCollect: there is more to do
  Statistics statistics{};
};

// The part of a site that brings commands around. Derived has `CommandReply carry_out(const
// Command&)`, which is called in worker 0 of each process. Belongs to worker 0.
template <typename Derived>
class CommandedSite : public SiteBase {
 public:
  // In rank 0: all processes do it, this one too; returns what they answer, by rank. Processes that
  // die before are left out (a reply with number 0). 2 (P - 1) messages.
  std::vector<CommandReply> command(CommandKind kind, const SearchOptions& options) {
    Host& host = derived().host();
    const Command command{kind, host.id(0, 0), ++commands_, options};
    replies_.assign(host.size(), {});
    Lines* lines = Host::here().lines.get();
    for (uint32_t rank = 1; rank < host.size(); ++rank) {
      if (!host.alive(rank)) continue;
      lines->call(host.id(rank, 0), [command] { Host::site_here<Derived>().on_command(command); });
    }
    if (lines != nullptr) lines->flush();
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

  // In rank 0: works until all posts have been run, and those that they caused: calls that nobody
  // waits for, which free nodes, serve copies, or bring news of nodes. That is two rounds in which
  // as many have been run as were sent, without a new one (Mattern 1987). A process that dies takes
  // its counts along; then two equal rounds have to do.
  void settle(const SearchOptions& options) {
    Host& host = derived().host();
    std::pair<uint64_t, uint64_t> before{UINT64_MAX, 0};
    for (;;) {
      std::pair<uint64_t, uint64_t> now{0, 0};
      for (const CommandReply& reply : command(CommandKind::kInform, options)) {
        now.first += reply.posts_sent;
        now.second += reply.posts_handled;
      }
      const bool equal = now.first == now.second || host.living() < host.size();
      if (equal && now == before) return;
      before = now;
      static_cast<void>(host.step());  // alone, command() runs no calls
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
    Lines& lines = *Host::here().lines;
    lines.call(command.origin, [reply] { Host::site_here<Derived>().on_reply(reply); });
    lines.flush();
  }
  void on_reply(const CommandReply& reply) {
    if (reply.rank < replies_.size() && reply.number == commands_) replies_[reply.rank] = reply;
  }

  uint64_t commands_ = 0;
  std::vector<CommandReply> replies_;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_COMMAND_H_
