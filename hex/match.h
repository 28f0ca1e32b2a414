// The referee of matches between two GTP engines.
//
//   MatchOptions options{.cols = 11, .rows = 11, .pairs = 50, .setup = {"param_search seconds 1"}};
//   auto result = play_match({"new", "cariama-hex gtp"}, {"old", "./old gtp"}, options, {});
//   elo(result->wins[0], result->games())   // rating of the first player, with its error bars
//
// Games come in pairs, with the same opening and exchanged colours, so that the value of the
// opening cancels out. The referee keeps its own position and decides by it which moves are legal
// and which side has won.
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
  std::string command;             // run by /bin/sh; uses GTP on stdin and stdout
  std::vector<std::string> setup;  // GTP commands at the beginning of each game: limits, options
  // The engine's name for the first player, which joins top and bottom, is white (as in Morat).
  bool first_is_white = false;
};

struct MatchOptions {
  int cols = 11;
  int rows = 11;
  int pairs = 10;  // number of pairs of games
  // The first moves of a game, alternately from Black. Pair i uses openings[i % size]. Empty: use
  // make_openings().
  std::vector<std::vector<Move>> openings;
  uint64_t seed = 1;  // for make_openings()
  // The time of each side for a game. The referee sends it as `time_left COLOR SECONDS`; a side
  // that exceeds it loses. 0: no limit. Limits for one move are set by commands in Player::setup.
  double game_seconds = 0;
  double move_seconds = 600;  // an engine that takes longer for one command loses the game
  // An engine that takes longer for one command before the first move, such as boardsize or those
  // of Player::setup, ends the match.
  double setup_seconds = 30;
  std::string sgf_folder;                   // where to write game-0001.sgf, ...; empty: no records
  const std::atomic<bool>* stop = nullptr;  // true ends the match after the running game
};

struct GameResult {
  int number = 0;        // from 1
  int black_player = 0;  // 0 or 1
  int winner = 0;        // 0 or 1
  std::string reason;    // "connection", "resignation", "time", or the error of the loser
  std::array<double, 2> seconds{};  // time that the engines took for their moves, by player
  SgfGame record;
};

struct MatchResult {
  std::array<int, 2> wins{};
  int failures = 0;  // games lost by an illegal move, an error, a timeout or a crash
  [[nodiscard]] int games() const { return wins[0] + wins[1]; }
};

// Plays the match, one game after the other, and calls `done` after each. An engine that crashes or
// hangs loses that game and is restarted for the next one. Blocks. Errors: INVALID_ARGUMENT for the
// size or the openings; UNAVAILABLE if an engine cannot begin a game, since it does not start, or
// refuses the board size or a setup command, or does not answer it in time; errors of the system
// when records are written.
[[nodiscard]] absl::StatusOr<MatchResult> play_match(
    const std::array<Player, 2>& players, const MatchOptions& options,
    const std::function<void(const GameResult&)>& done);

// Returns `count` different openings of one move, or all if there are fewer. The moves are on the
// two border columns, where a stone is of little use to either side. The seed determines their
// order.
[[nodiscard]] std::vector<std::vector<Move>> make_openings(int cols, int rows, int count,
                                                           uint64_t seed);

// Returns the rating difference of a player with `wins` wins in `games` games, and its 95 %
// interval: Wilson's interval for the share of wins, which is too wide rather than too narrow for
// paired games. The rating is infinite if no game or all games are won. Requires: games > 0.
struct Elo {
  double difference = 0;
  double low = 0;
  double high = 0;
};
[[nodiscard]] Elo elo(int wins, int games);

}  // namespace cariama::hex

#endif  // CARIAMA_HEX_MATCH_H_
