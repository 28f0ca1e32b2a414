// Connect-Four on the framework of mcts/: the example program of docs/mcts.md.
//
//   example_connect_four                     plays a game against itself
//   example_connect_four -n 2 -t 2           the same, on two processes of two threads
#include "docs/examples/connect_four.h"

#include <cstdio>

#include "docs/examples/options.h"
#include "mcts/program.h"
#include "mcts/search.h"

// [connect_four_program]
int main(int argc, char** argv) {
  using example::ConnectFour;
  namespace mcts = cariama::mcts;
  mcts::Program program(argc, argv);
  read_arguments(program.arguments(), " [-n PROCESSES] [-t THREADS]");
  return program.run([](mcts::Host& host) {
    mcts::Search<ConnectFour> search(host);
    ConnectFour game;
    while (!game.result()) {
      const auto found = search.run(game, {.iterations = 5000});
      if (found.moves.empty()) return 1;  // no move is possible
      const auto& best = found.moves[0];
      std::printf("player %d: column %d, %.0f%% of %llu rollouts\n", found.player, best.move,
                  100 * best.value, static_cast<unsigned long long>(found.iterations));
      game.play(best.move);
      search.advance(best.move);
    }
    std::printf("result for player 0: %.1f\n", *game.result());
    return 0;
  });
}
// [connect_four_program]
