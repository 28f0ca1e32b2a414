// Nim for three players on the framework of mcts/: plays a game against itself.
//
//   example_nim_for_three                    one process of one thread
//   example_nim_for_three -n 2 -t 2          two processes of two threads
#include "docs/examples/nim_for_three.h"

#include <cstdio>

#include "docs/examples/options.h"
#include "mcts/program.h"
#include "mcts/search.h"

int main(int argc, char** argv) {
  using example::NimForThree;
  namespace mcts = cariama::mcts;
  mcts::Program program(argc, argv);
  read_arguments(program.arguments(), " [-n PROCESSES] [-t THREADS]");
  return program.run([](mcts::Host& host) {
    mcts::Search<NimForThree> search(host);
    search.options().selection.exploration = 0.35F;
    NimForThree game;
    while (!game.result()) {
      const auto found = search.run(game, {.iterations = 20000});
      if (found.moves.empty()) return 1;  // no move is possible
      const NimForThree::Move best = found.moves[0].move;
      std::printf("player %d takes %d of heap %d; values %.2f %.2f %.2f\n", found.player,
                  best.stones, best.heap, found.values[0], found.values[1], found.values[2]);
      game.play(best);
      search.advance(best);
    }
    const NimForThree::Values values = *game.result();
    std::printf("result: %.1f %.1f %.1f\n", values[0], values[1], values[2]);
    return 0;
  });
}
