// Plays games of the Hex engine against itself as training data. Prints one line for each searched
// position:
//
//   SIZE MOVE,MOVE,.. | MOVE:VISITS ..
//
// First the moves that led to the position (- for none), then the moves that the search tried and
// their visits. The first moves of a game are chosen randomly, so that games differ. A game ends
// when its result is proved. bench_hex_priors learns the engine's priors from such files.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "bench/support/flags.h"
#include "hex/search_engine.h"
#include "mcts/program.h"

namespace cariama::bench {
namespace {

constexpr char kHelp[] =
    "bench_hex_games [-n P] [-t T] [--games N] [--sizes LIST] [--iterations N] [--seed N]\n"
    "  Plays games of the engine against itself; prints positions with the visits of moves.\n"
    "  --games N        number of games (10)\n"
    "  --sizes LIST     board sizes, used in turn (11)\n"
    "  --iterations N   iterations per move (20000)\n"
    "  --random N       each game begins with 1 to N random moves (6)\n"
    "  --seed N         random seed (1)\n"
    "  --help           this text\n"
    "  --version        prints the version of Cariama\n";

struct Arguments {
  uint64_t games = 10;
  std::vector<int> sizes = {11};
  uint64_t iterations = 20000;
  uint64_t random = 6;
  uint64_t seed = 1;
};

void play(hex::SearchEngine& engine, int size, const Arguments& arguments, mcts::Random& random) {
  hex::Board board(size, size);
  std::vector<std::string> moves;
  const uint64_t by_chance = 1 + random.below(static_cast<uint32_t>(arguments.random));
  engine.set_seed(random.next());
  const std::atomic<bool> never{false};
  while (!board.winner()) {
    const hex::SearchReport found =
        engine.search(board, {0, arguments.iterations}, never, nullptr, 0);
    if (found.moves[0].proven_win) break;
    std::string line =
        absl::StrCat(size, " ", moves.empty() ? "-" : absl::StrJoin(moves, ","), " |");
    uint64_t sum = 0;
    for (const hex::MoveReport& move : found.moves) {
      // A move with a proved result is no training example.
      if (move.proven_win) continue;
      absl::StrAppend(&line, " ", board.name(move.move), ":", move.visits);
      sum += move.visits;
    }
    std::puts(line.c_str());
    hex::Move next = found.moves[0].move;
    if (moves.size() < by_chance) {
      if (moves.size() + 1 == by_chance || moves.empty()) {
        next = found.moves[random.below(static_cast<uint32_t>(found.moves.size()))].move;
      } else {
        uint64_t left = random.next() % std::max<uint64_t>(sum, 1);
        for (const hex::MoveReport& move : found.moves) {
          if (move.proven_win) continue;
          next = move.move;
          if (left < move.visits) break;
          left -= move.visits;
        }
      }
    }
    moves.push_back(board.name(next));
    board.play(next);
  }
  std::fflush(stdout);
}

int run(const Arguments& arguments, mcts::Host& host) {
  hex::SearchEngineOptions options;
  options.solve_nodes = 0;
  hex::SearchEngine engine(host, options);
  mcts::Random random(arguments.seed);
  for (uint64_t game = 0; game < arguments.games; ++game) {
    play(engine, arguments.sizes[game % arguments.sizes.size()], arguments, random);
    std::fprintf(stderr, "\r%llu of %llu games", static_cast<unsigned long long>(game + 1),
                 static_cast<unsigned long long>(arguments.games));
  }
  std::fputc('\n', stderr);
  return 0;
}

int main(int argc, char** argv) {
  mcts::Program program(argc, argv);
  const auto refuse = [](const std::string& why) {
    std::fprintf(stderr, "bench_hex_games: %s\n%s", why.c_str(), kHelp);
    return 2;
  };
  if (!program.error().empty()) return refuse(program.error());
  Arguments arguments;
  for (size_t i = 0; i < program.arguments().size(); ++i) {
    const std::string& option = program.arguments()[i];
    if (option == "--help") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (option == "--version") return print_version("bench_hex_games");
    if (i + 1 == program.arguments().size())
      return refuse(option + " is unknown, or needs a value");
    const std::string& value = program.arguments()[++i];
    bool good = false;
    if (option == "--sizes") {
      arguments.sizes.clear();
      good = true;
      for (const auto& text : absl::StrSplit(value, ',')) {
        int size = 0;
        good =
            good && absl::SimpleAtoi(text, &size) && hex::kMinSide <= size && size <= hex::kMaxSide;
        arguments.sizes.push_back(size);
      }
    } else if (option == "--games") {
      good = absl::SimpleAtoi(value, &arguments.games);
    } else if (option == "--iterations") {
      good = absl::SimpleAtoi(value, &arguments.iterations) && arguments.iterations > 0;
    } else if (option == "--random") {
      good = absl::SimpleAtoi(value, &arguments.random) && arguments.random > 0;
    } else if (option == "--seed") {
      good = absl::SimpleAtoi(value, &arguments.seed);
    }
    if (!good) return refuse(option + " " + value + " cannot be");
  }
  return program.run([&](mcts::Host& host) { return run(arguments, host); });
}

}  // namespace
}  // namespace cariama::bench

int main(int argc, char** argv) { return cariama::bench::main(argc, argv); }
