// Uses the component mcts of the installed package: searches the best move of a game.
#include <cariama.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>

namespace {

namespace mcts = cariama::mcts;

// The game of Nim with one heap. The players take 1 to 3 objects in turn, and the player that takes
// the last one wins.
struct Nim {
  using Move = uint8_t;
  static constexpr int kMaxMoves = 3;

  [[nodiscard]] int to_move() const { return player; }
  int moves(std::span<Move> out) const {
    int count = 0;
    while (count < kMaxMoves && count < heap) {
      out[count] = static_cast<Move>(count + 1);
      ++count;
    }
    return count;
  }
  void play(Move taken) {
    heap = static_cast<uint8_t>(heap - taken);
    player = static_cast<uint8_t>(1 - player);
  }
  [[nodiscard]] std::optional<float> result() const {
    if (heap != 0) return std::nullopt;
    // The player to move has lost: the opponent took the last object.
    return player == 1 ? 1.0F : 0.0F;
  }
  float playout(mcts::Random& random) const {
    Nim game = *this;
    while (!game.result()) {
      game.play(static_cast<Move>(1 + random.below(game.heap < 3 ? game.heap : 3)));
    }
    return *game.result();
  }

  uint8_t heap = 10;
  uint8_t player = 0;
};
static_assert(mcts::Game<Nim>);

}  // namespace

int main() {
  const auto host = mcts::Host::create(nullptr, {.threads = 2});
  if (!host.ok()) {
    std::fprintf(stderr, "Host::create: %s\n", host.status().ToString().c_str());
    return 1;
  }
  mcts::Search<Nim> search(**host);
  const auto result = search.run(Nim(), {.iterations = 100000});
  if (result.outcome != mcts::Outcome::kFirstWins || result.moves[0].move != 2) return 2;
  std::printf("consumer: of 10, take %d and win\n", result.moves[0].move);
  return 0;
}
