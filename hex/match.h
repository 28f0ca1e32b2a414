// A referee for matches between two engines that speak GTP.
//
//   MatchOptions options{.cols = 11, .rows = 11, .pairs = 50, .setup = {"param_search seconds 1"}};
//   auto result = play_match({"new", "cariama-hex gtp"}, {"old", "./old gtp"}, options, {});
//   elo(result->wins[0], result->games())   // of the first, with its error bars
//
// Games come in pairs: the same opening with exchanged colours, so that its value cancels out. The
// referee keeps the position itself: who wins, and what is legal, is its word.
#ifndef CARIAMA_HEX_MATCH_H_
#define CARIAMA_HEX_MATCH_H_

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "hex/board.h"
#include "hex/sgf.h"

namespace cariama::hex {

struct Player {
  std::string name;
  std::string command;             // run by /bin/sh, speaks GTP on stdin and stdout
  std::vector<std::string> setup;  // commands at the beginning of each game: limits, options
  // The engine calls the first player, who joins top and bottom, white (Morat does).
  bool first_is_white = false;
};

struct MatchOptions {
  int cols = 11;
  int rows = 11;
  int pairs = 10;  // of games
  // Moves that begin a game, alternately from Black; pair i takes openings[i % size]. Empty: those
  // of make_openings().
  std::vector<std::vector<Move>> openings;
  uint64_t seed = 1;  // for make_openings()
  // Each side's clock for a game: sent as `time_left COLOR SECONDS`, and who exceeds it loses. 0:
  // none. Limits for one move are the engines' business: say them in Player::setup.
  double game_seconds = 0;
  double move_seconds = 600;  // an engine that takes longer for one command loses the game
  std::string sgf_folder;     // records game-0001.sgf, ...; empty: none
  const std::atomic<bool>* stop = nullptr;  // true ends the match after the running game
};

struct GameResult {
  int number = 0;        // from 1
  int black_player = 0;  // 0 or 1
  int winner = 0;        // 0 or 1
  std::string reason;    // "connection", "resignation", "time", or what the loser did wrong
  std::array<double, 2> seconds{};  // of thinking, by player
  SgfGame record;
};

struct MatchResult {
  std::array<int, 2> wins{};
  int failures = 0;  // games lost by an illegal move, an error, a timeout or a crash
  [[nodiscard]] int games() const { return wins[0] + wins[1]; }
};

// Plays the match, game by game; `done` gets each one. An engine that crashed or hangs loses that
// game and is started again for the next. Blocks. Errors: INVALID_ARGUMENT (size, openings),
// UNAVAILABLE (an engine cannot begin a game: it does not start, or refuses the board size), and
// the system's.
[[nodiscard]] absl::StatusOr<MatchResult> play_match(
    const std::array<Player, 2>& players, const MatchOptions& options,
    const std::function<void(const GameResult&)>& done);

// `count` different first moves (all of them, if there are fewer) from the two border columns,
// where a stone gives neither side much; shuffled by the seed.
[[nodiscard]] std::vector<std::vector<Move>> make_openings(int cols, int rows, int count,
                                                           uint64_t seed);

// Rating difference of a player who won `wins` of `games`, with its 95 % interval (Wilson's for the
// share of wins, which for paired games errs on the wide side). Infinite at 0 and at all wins.
// Precondition: games > 0.
struct Elo {
  double difference = 0;
  double low = 0;
  double high = 0;
};
[[nodiscard]] Elo elo(int wins, int games);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_MATCH_H_
