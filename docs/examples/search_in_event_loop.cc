// A search within the event loop of a program that has its own Fabric. The program analyses
// Connect-Four. While the search runs in all processes, the loop handles the commands of a user.
//
//   example_search_in_event_loop             two processes
//   example_search_in_event_loop -n 4 -t 2   four processes of two threads
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "docs/examples/check.h"
#include "docs/examples/connect_four.h"
#include "docs/examples/options.h"
#include "dsfabric/fabric.h"
#include "dsfabric/launcher.h"
#include "mcts/host.h"
#include "mcts/search.h"

namespace {

using namespace cariama;  // NOLINT: an example
using example::ConnectFour;

// The user, a thread that writes commands into a pipe. A digit plays a move in this column; q ends
// the program.
class User {
 public:
  User() {
    check(::pipe(ends_) == 0, "there is no pipe");
    thread_ = std::thread([this] {
      for (const char command : std::string_view("343q")) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        check(::write(ends_[1], &command, 1) == 1, "a command was not written");
      }
    });
  }
  ~User() {
    thread_.join();
    for (const int end : ends_) ::close(end);
  }
  User(const User&) = delete;
  User& operator=(const User&) = delete;

  // Returns the next command, or nothing if there is none yet. Does not wait.
  [[nodiscard]] std::optional<char> next() const {
    pollfd ready{ends_[0], POLLIN, 0};
    char command = 0;
    if (::poll(&ready, 1, 0) != 1 || ::read(ends_[0], &command, 1) != 1) return std::nullopt;
    return command;
  }

 private:
  int ends_[2] = {-1, -1};
  std::thread thread_;
};

// [event_loop]
void analyse(mcts::Host& host) {
  ConnectFour game;
  mcts::Search<ConnectFour> search(host);
  const auto show = [&](const mcts::Search<ConnectFour>::Result& so_far) {
    const auto& best = so_far.moves[0];
    std::printf("move %d: column %d, %.0f%% of %llu rollouts\n", game.played() + 1, best.move,
                100 * best.value, static_cast<unsigned long long>(so_far.iterations));
  };
  User user;
  check(search.start(game, {}, show, 0.05));  // no limit; a report every 50 ms
  for (;;) {
    static_cast<void>(check(search.poll(std::chrono::milliseconds(1))));
    const std::optional<char> command = user.next();
    if (!command) continue;
    show(check(search.finish()));  // at most 50 ms, usually much less
    if (*command == 'q') return;
    const auto move = static_cast<ConnectFour::Move>(*command - '0');
    game.play(move);
    search.advance(move);  // keeps the part of the tree below the move
    check(search.start(game, {}, show, 0.05));
  }
}
// [event_loop]

// [own_fabric]
void run() {
  auto fabric = check(Fabric::create());
  auto host = check(mcts::Host::create(fabric.get()));
  if (host->rank() == 0) {
    analyse(*host);
    host->end();
  } else {
    check(host->serve());
  }
  host.reset();  // before the fabric
  check(fabric->finalize(deadline_after(std::chrono::seconds(60))));
}
// [own_fabric]

}  // namespace

int main(int argc, char** argv) {
  read_options(argc, argv);
  if (const auto code = launch_self({.processes = 2}, argc, argv)) return *code;
  run();
  return 0;
}
