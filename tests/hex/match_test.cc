#include "hex/match.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "hex/gtp_client.h"
#include "hex/gtp_stream.h"
#include "hex/gtp_text.h"
#include "tests/hex/testing/flat_engine.h"

namespace cariama::hex {
namespace {

std::string self;  // path of this program, which also runs as the engines

// Returns the command that runs this program as an engine of this kind (see play_as()).
std::string engine(const std::string& kind) { return "'" + self + "' --engine " + kind; }

class GtpClientTest : public ::testing::Test {
 protected:
  static std::unique_ptr<GtpClient> start(const std::string& command) {
    auto client = GtpClient::start(command);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
};

TEST_F(GtpClientTest, AsksAndGetsAnswers) {
  auto client = start(engine("flat"));
  EXPECT_EQ(client->ask("name", 60).value(), "Flat");
  EXPECT_EQ(client->ask("17 protocol_version", 60).value(), "17 2") << "the id is in the answer";
  const auto unknown = client->ask("what", 60);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.status().message(), "unknown command");
  EXPECT_EQ(client->ask("boardsize 5 5", 60).value(), "");
  EXPECT_NE(client->ask("showboard", 60).value().find("a b c d e"), std::string::npos);
}

TEST_F(GtpClientTest, SkipsLiveGraphics) {
  auto client =
      start("while read line; do printf 'gogui-gfx:\\nuct\\nTEXT x\\n\\n= f6\\r\\n\\r\\n'; done");
  EXPECT_EQ(client->ask("genmove b", 60).value(), "f6");
  EXPECT_EQ(client->ask("genmove b", 60).value(), "f6");
}

TEST_F(GtpClientTest, EveryWaitEnds) {
  using absl::StatusCode;
  EXPECT_EQ(start("exec sleep 1000")->ask("name", 0.05).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(start("exit 3")->ask("name", 60).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(start("/nonexistent-engine 2>/dev/null")->ask("name", 60).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(start("echo Welcome; echo; cat")->ask("name", 60).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(start("yes")->ask("name", 60).status().code(), StatusCode::kUnavailable);
  // An engine that ignores `quit` and the end of its input is killed together with its children.
  auto stubborn = start("trap '' TERM HUP; sleep 1000 & echo $!; echo; wait");
  stubborn.reset();
}

MatchOptions small_match() {
  MatchOptions options;
  options.cols = 4;
  options.rows = 4;
  options.pairs = 2;
  options.move_seconds = 100;
  return options;
}

TEST(Match, PlaysPairsWithExchangedColours) {
  const std::string folder = ::testing::TempDir() + "match_test." + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  MatchOptions options = small_match();
  options.sgf_folder = folder;
  std::vector<GameResult> games;
  const std::array<Player, 2> players = {
      Player{"one", engine("flat"), {"param_search iterations 500"}, false},
      Player{"two", engine("flat"), {"param_search iterations 500", "set_random_seed 9"}, false}};
  const auto result =
      play_match(players, options, [&](const GameResult& game) { games.push_back(game); });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->games(), 4);
  EXPECT_EQ(result->failures, 0);
  ASSERT_EQ(games.size(), 4U);
  int wins[2] = {0, 0};
  for (const GameResult& game : games) {
    EXPECT_EQ(game.black_player, (game.number - 1) % 2);
    EXPECT_EQ(game.reason, "connection");
    ++wins[game.winner];
    const GameRecord record = to_record(game.record);
    ASSERT_TRUE(record.board().winner().has_value());
    EXPECT_EQ(*record.board().winner() == Color::kBlack, game.winner == game.black_player);
    const auto loaded = load_sgf(folder + "/game-000" + std::to_string(game.number) + ".sgf");
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(to_record(*loaded).board(), record.board());
    EXPECT_EQ(loaded->black_name, players[game.black_player].name);
  }
  EXPECT_EQ(wins[0], result->wins[0]);
  EXPECT_EQ(wins[1], result->wins[1]);
  EXPECT_EQ(games[0].record.moves[0].move, games[1].record.moves[0].move)
      << "the games of a pair must have the same opening";
  EXPECT_NE(games[0].record.moves[0].move, games[2].record.moves[0].move);
  std::filesystem::remove_all(folder);
}

TEST(Match, TranslatesForAnEngineThatCallsTheFirstPlayerWhite) {
  // The engine "swapped" refuses `b` as the first player.
  const std::array<Player, 2> players = {
      Player{"usual", engine("flat"), {"param_search iterations 1"}, false},
      Player{"other", engine("swapped"), {}, true}};
  const auto result = play_match(players, small_match(), [](const GameResult& game) {
    EXPECT_EQ(game.reason, "connection") << game.number;
  });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->failures, 0);
}

// An engine that makes an error loses the game, and the match continues.
TEST(Match, AnEngineThatMisbehavesLoses) {
  struct Case {
    const char* kind;
    const char* reason;
  };
  for (const Case& test :
       {Case{"illegal", "illegal move"}, Case{"garbage", "illegal move"},
        Case{"crash", "the engine has ended"}, Case{"hang", "did not answer 'genmove"},
        Case{"refuse", "no idea"}, Case{"resign", "resignation"}}) {
    MatchOptions options = small_match();
    options.pairs = 1;
    options.move_seconds = std::string(test.kind) == "hang" ? 10 : 100;
    const std::array<Player, 2> players = {
        Player{"good", engine("flat"), {"param_search iterations 1"}, false},
        Player{"bad", engine(test.kind), {}, false}};
    const auto result = play_match(players, options, [&](const GameResult& game) {
      EXPECT_EQ(game.winner, 0) << test.kind;
      EXPECT_NE(game.reason.find(test.reason), std::string::npos) << test.kind << game.reason;
    });
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->wins[0], 2) << test.kind;
    EXPECT_EQ(result->failures, std::string(test.kind) == "resign" ? 0 : 2);
  }
}

TEST(Match, ASideThatExceedsItsTimeLoses) {
  MatchOptions options = small_match();
  options.pairs = 1;
  options.game_seconds = 30;
  const std::array<Player, 2> players = {
      Player{"good", engine("flat"), {"param_search iterations 1"}, false},
      Player{"told", engine("clock"), {}, false}};
  // The engine "clock" answers genmove with the number of the last time_left.
  const auto result = play_match(players, options, [](const GameResult& game) {
    EXPECT_EQ(game.winner, 0);
    EXPECT_EQ(game.reason, "illegal move: 30.00") << "the referee must send the time limit";
  });
  ASSERT_TRUE(result.ok()) << result.status();

  options.game_seconds = 0.001;  // less than the engine "slow" takes for a move
  const std::array<Player, 2> both = {Player{"a", engine("slow"), {}, false},
                                      Player{"b", engine("slow"), {}, false}};
  const auto flagged = play_match(both, options, [](const GameResult& game) {
    EXPECT_EQ(game.reason, "time");
    EXPECT_EQ(game.winner, game.black_player)
        << "White moves first after the opening and must lose";
  });
  ASSERT_TRUE(flagged.ok()) << flagged.status();
}

TEST(Match, ReportsMatchesThatCannotBegin) {
  const std::array<Player, 2> good = {Player{"a", engine("flat"), {}, false},
                                      Player{"b", engine("flat"), {}, false}};
  MatchOptions options = small_match();
  options.cols = 2;
  EXPECT_EQ(play_match(good, options, {}).status().code(), absl::StatusCode::kInvalidArgument);
  options = small_match();
  options.pairs = 0;
  EXPECT_EQ(play_match(good, options, {}).status().code(), absl::StatusCode::kInvalidArgument);
  options = small_match();
  options.openings = {{3, 3}};
  EXPECT_EQ(play_match(good, options, {}).status().code(), absl::StatusCode::kInvalidArgument);
  const std::array<Player, 2> missing = {Player{"a", engine("flat"), {}, false},
                                         Player{"ghost", "exit 1", {}, false}};
  const auto result = play_match(missing, small_match(), {});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(result.status().message().find("ghost"), absl::string_view::npos);
  std::atomic<bool> stop = true;
  options = small_match();
  options.stop = &stop;
  EXPECT_EQ(play_match(good, options, {})->games(), 0);
}

TEST(Match, AnEngineThatDoesNotAnswerASetUpCommandEndsTheMatch) {
  MatchOptions options = small_match();
  options.setup_seconds = 0.25;
  std::array<Player, 2> players = {Player{"mute", "cat", {}, false},
                                   Player{"b", engine("flat"), {}, false}};
  const absl::Status mute = play_match(players, options, {}).status();
  EXPECT_EQ(mute.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(mute.message().find("mute cannot begin a game: the engine did not answer "
                                "'boardsize 4 4' within 0.25 s: check its command"),
            absl::string_view::npos)
      << mute;
}

TEST(MakeOpenings, AreDifferentLegalAndFollowTheSeed) {
  const auto openings = make_openings(11, 11, 20, 5);
  ASSERT_EQ(openings.size(), 20U);
  std::set<Move> seen;
  for (const auto& opening : openings) {
    ASSERT_EQ(opening.size(), 1U);
    EXPECT_TRUE(opening[0] % 11 == 0 || opening[0] % 11 == 10);
    seen.insert(opening[0]);
  }
  EXPECT_EQ(seen.size(), 20U);
  EXPECT_EQ(openings, make_openings(11, 11, 20, 5));
  EXPECT_NE(openings, make_openings(11, 11, 20, 6));
  EXPECT_EQ(make_openings(3, 4, 100, 1).size(), 8U);
}

TEST(EloTest, IsTheLogisticOfTheShareWithItsInterval) {
  const Elo even = elo(50, 100);
  EXPECT_NEAR(even.difference, 0, 1e-9);
  EXPECT_NEAR(even.low, -even.high, 1e-9);
  // Wilson's interval for 50 wins in 100 games is 0.4038 .. 0.5962.
  EXPECT_NEAR(even.high, 400 * std::log10(0.5962 / 0.4038), 0.1);
  EXPECT_NEAR(elo(10, 11).difference, 400, 1e-9);
  EXPECT_GT(elo(60, 100).low, even.low);
  EXPECT_LT(elo(6000, 10000).high - elo(6000, 10000).low, elo(60, 100).high - elo(60, 100).low);
  EXPECT_TRUE(std::isinf(elo(5, 5).difference));
  EXPECT_TRUE(std::isinf(elo(5, 5).high));
  EXPECT_NEAR(elo(5, 5).low, 400 * std::log10(0.5655 / 0.4345), 1)
      << "Wilson's interval is 0.5655 .. 1";
  EXPECT_TRUE(std::isinf(elo(0, 5).low));
  EXPECT_LT(elo(0, 5).high, 0);
}

// Runs this program as an engine. The kind "flat" plays correctly, "swapped" with exchanged colour
// names, "slow" takes 3 ms per move; each other kind makes a certain error in its answer to
// genmove.
int play_as(const std::string& kind) {
  signal(SIGPIPE, SIG_IGN);
  testing::FlatEngine flat;
  if (kind == "flat") return run_gtp(flat, 0, 1).ok() ? 0 : 1;
  LineReader reader(0);
  GameRecord record{Board(4, 4)};
  std::string left;
  while (const auto line = reader.next()) {
    const std::vector<std::string> words = gtp_words(*line);
    if (words.empty()) continue;
    std::string answer = "= ";
    if (words[0] == "quit") break;
    if (words[0] == "time_left") left = words[2];
    if (words[0] == "clear_board") record = GameRecord{Board(4, 4)};
    if (words[0] == "play" || words[0] == "genmove") {
      Color color = *parse_gtp_color(words[1]);
      if (kind == "swapped") color = opponent(color);
      if (record.board().to_move() != color) answer = "? not its turn";
      if (words[0] == "play") {
        record.play(color, *record.board().parse(words[2]));
      } else if (kind == "swapped" || kind == "slow") {
        const Move move = static_cast<Move>(record.board().empty().first());
        record.play(color, move);
        if (answer == "= ") answer += record.board().name(move);
        // Takes longer than a millisecond, which is the time limit in the test.
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
        while (kind == "slow" && std::chrono::steady_clock::now() < end) {
        }
      } else if (kind == "crash") {
        return 1;
      } else if (kind == "hang") {
        for (;;) pause();
      } else {
        answer = kind == "illegal"  ? "= " + record.board().name(static_cast<Move>(
                                                record.board().stones(Color::kBlack).first()))
                 : kind == "resign" ? "= resign"
                 : kind == "refuse" ? "? no idea"
                 : kind == "clock"  ? "= " + left
                                    : "= \xff\x01 what";
      }
    }
    std::printf("%s\n\n", answer.c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace cariama::hex

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--engine") return cariama::hex::play_as(argv[2]);
  cariama::hex::self = std::filesystem::absolute(argv[0]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
