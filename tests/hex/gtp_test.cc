#include "hex/gtp.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "hex/gtp_text.h"
#include "mcts/random.h"
#include "tests/hex/testing/flat_engine.h"

namespace cariama::hex {
namespace {

using testing::FlatEngine;

// Returns true if the text is exactly one answer: it begins with `=` or `?` and contains one empty
// line, at the end.
bool is_one_answer(const std::string& text) {
  return text.size() >= 3 && (text[0] == '=' || text[0] == '?') &&
         text.find("\n\n") == text.size() - 2;
}

class Gtp : public ::testing::Test {
 protected:
  explicit Gtp(const GtpOptions& options = {.limits = {.iterations = 1}, .solve_nodes = 2'000})
      : session_(
            engine_, [this](std::string_view text) { output_ += text; }, options) {}

  // Executes a line and returns the whole output.
  std::string raw(std::string_view line) {
    output_.clear();
    running_ = session_.execute(line);
    return output_;
  }
  // Executes a line that must succeed and returns the text of the answer.
  std::string ok(std::string_view line) {
    const std::string text = raw(line);
    EXPECT_TRUE(is_one_answer(text) && text[0] == '=') << line << " -> " << text;
    const std::string body = text.substr(1, text.size() - 3);
    return body.empty() || body[0] != ' ' ? body : body.substr(1);
  }
  // Executes a line that must fail and returns the output.
  std::string refused(std::string_view line) {
    const std::string text = raw(line);
    EXPECT_TRUE(is_one_answer(text) && text[0] == '?') << line << " -> " << text;
    return text;
  }
  const Board& board() const { return session_.game().board(); }

  FlatEngine engine_;
  std::string output_;
  GtpSession session_;
  bool running_ = true;
};

TEST_F(Gtp, HasEveryCommandThatHexToolsSend) {
  const std::string list = "\n" + ok("list_commands") + "\n";
  for (const char* name : {"name",
                           "version",
                           "hexgui-analyze_commands",
                           "boardsize",
                           "clear_board",
                           "play",
                           "undo",
                           "genmove",
                           "showboard",
                           "quit",
                           "protocol_version",
                           "list_commands",
                           "known_command",
                           "final_score",
                           "time_left",
                           "time_settings",
                           "reg_genmove",
                           "loadsgf",
                           "play-game",
                           "all_legal_moves",
                           "exec",
                           "set_random_seed",
                           "dfpn-solve-state",
                           "lz-analyze",
                           "kata-analyze",
                           "param_game",
                           "clear_cache"}) {
    EXPECT_NE(list.find("\n" + std::string(name) + "\n"), std::string::npos) << name;
    EXPECT_EQ(ok("known_command " + std::string(name)), "true") << name;
  }
  EXPECT_EQ(ok("known_command nonsense"), "false");
  EXPECT_EQ(ok("protocol_version"), "2");
  EXPECT_EQ(ok("name"), "Flat");
}

TEST_F(Gtp, AnswersWithTheNumberOfTheLine) {
  EXPECT_EQ(raw("17 protocol_version"), "=17 2\n\n");
  EXPECT_EQ(raw("18 nonsense"), "?18 unknown command\n\n");
  EXPECT_EQ(raw("007\tclear_board\r"), "=007 \n\n");
  EXPECT_EQ(raw("19"), "?19 no command\n\n");
  EXPECT_EQ(raw("name # and what a comment says"), "= Flat\n\n");
  EXPECT_EQ(raw(""), "");
  EXPECT_EQ(raw("  \t \r"), "");
  EXPECT_EQ(raw("# interrupt"), "");
  EXPECT_EQ(raw("na\x01me"), "= Flat\n\n") << "control characters are ignored";
}

TEST_F(Gtp, SetsTheBoardInBothForms) {
  ok("boardsize 13");
  EXPECT_EQ(board().cols(), 13);
  EXPECT_EQ(board().rows(), 13);
  ok("boardsize 7 4");
  EXPECT_EQ(board().cols(), 7);
  EXPECT_EQ(board().rows(), 4);
  for (const char* line :
       {"boardsize", "boardsize 2", "boardsize 26", "boardsize 63 63", "boardsize x",
        "boardsize 5 5 5", "boardsize -5", "boardsize 5.5", "boardsize 99999999999999999999"}) {
    refused(line);
  }
  EXPECT_EQ(board().cols(), 7) << "a refused boardsize must not change the board";
}

TEST_F(Gtp, PlaysTakesBackAndScores) {
  ok("boardsize 3 3");
  ok("play b b1");
  ok("play BLACK B2");
  EXPECT_EQ(ok("final_score"), "cannot score");
  ok("play White a1");
  ok("play b b3");
  EXPECT_EQ(ok("final_score"), "B+");
  refused("play w c1");
  refused("genmove w");
  refused("lz-analyze w 10");
  ok("undo");
  EXPECT_EQ(ok("final_score"), "cannot score");
  EXPECT_EQ(ok("all_legal_moves"), "c1 a2 c2 a3 b3 c3");
  ok("play w resign");
  EXPECT_EQ(ok("final_score"), "B+");
  ok("undo");
  EXPECT_EQ(ok("final_score"), "cannot score");
  for (int i = 0; i < 3; ++i) ok("undo");
  refused("undo");
  ok("play-game b1 a1 b2");
  EXPECT_EQ(board().moves_played(), 3);
  EXPECT_NE(ok("showboard").find(" 1 W B . 1"), std::string::npos);
}

TEST_F(Gtp, RefusesIllegalMovesAndLeavesTheBoard) {
  ok("boardsize 5 5");
  ok("play b c3");
  const Board before = board();
  for (const char* line : {"play b c3",
                           "play w c3",
                           "play b f1",
                           "play b a6",
                           "play b a0",
                           "play x a1",
                           "play b",
                           "play",
                           "play b a1 a2",
                           "play w swap-pieces",
                           "play b swap",
                           "play b pass",
                           "play b -",
                           "play b \xff\xfe",
                           "play b a99999999999999999999999",
                           "genmove",
                           "genmove x",
                           "genmove b b",
                           "reg_genmove z",
                           "time_left b x",
                           "time_left q",
                           "time_settings 1 2",
                           "time_settings a b c",
                           "time_settings nan 1 1",
                           "time_settings 1e300 1 1",
                           "set_random_seed",
                           "set_random_seed x",
                           "loadsgf",
                           "loadsgf /nonexistent",
                           "loadsgf /nonexistent x",
                           "loadsgf /",
                           "exec",
                           "exec /nonexistent",
                           "exec /",
                           "savesgf",
                           "savesgf /nonexistent/x",
                           "param_game allow_swap 2",
                           "param_game nonsense 1",
                           "param_search seconds -1",
                           "param_search seconds inf",
                           "param_search x",
                           "hex-bridges",
                           "hex-must-play q",
                           "dfpn-solve-state",
                           "lz-analyze x",
                           "lz-analyze b -5",
                           "=",
                           "?",
                           "clear",
                           "quit2",
                           "GENMOVE b",
                           "1 2 3"}) {
    refused(line);
    ASSERT_EQ(board(), before) << line;
    ASSERT_TRUE(running_);
  }
}

TEST_F(Gtp, AnswersRandomBytesAndVeryLongLines) {
  mcts::Random random(1);
  for (int i = 0; i < 3000; ++i) {
    std::string line(random.below(60), '\0');
    for (char& c : line) c = static_cast<char>(random.next());
    const std::string text = raw(line);
    ASSERT_TRUE(text.empty() || is_one_answer(text)) << text;
    ASSERT_TRUE(running_);
  }
  for (const char* start :
       {"", "play b ", "known_command ", "time_left ", "12345678901234567890 "}) {
    const std::string text = raw(start + std::string(100'000, 'a'));
    ASSERT_TRUE(is_one_answer(text)) << start;
    ASSERT_LT(text.size(), 200U);
  }
  refused("play b " + std::string(100'000, '9'));
  std::string words = "play-game";
  for (int i = 0; i < 30'000; ++i) words += " a1";
  refused(words);
}

TEST_F(Gtp, GeneratesLegalMovesToTheEnd) {
  ok("boardsize 5 5");
  for (int i = 0; i < 25 && ok("final_score") == "cannot score"; ++i) {
    const Board before = board();
    const std::string shown = ok(i % 2 == 0 ? "reg_genmove b" : "reg_genmove w");
    EXPECT_TRUE(before.is_legal(before.parse(shown).value()));
    ASSERT_EQ(board(), before) << "reg_genmove must not play the move";
    const std::string move = ok(i % 2 == 0 ? "genmove b" : "genmove w");
    ASSERT_TRUE(before.is_legal(before.parse(move).value())) << move;
  }
  EXPECT_NE(ok("final_score"), "cannot score");
}

TEST_F(Gtp, FinishesAWonGame) {
  // Two of the moves win immediately. The flat engine finds them in its first round.
  ok("boardsize 5 5");
  for (const char* cell : {"c1", "c2", "c3", "c4"}) ok("play b " + std::string(cell));
  const std::string move = ok("genmove b");
  EXPECT_TRUE(move == "c5" || move == "b5") << move;
  EXPECT_EQ(ok("final_score"), "B+");
}

TEST_F(Gtp, TheColourNeedNotBeTheOneToMove) {
  ok("genmove w");
  EXPECT_EQ(board().stones(Color::kWhite).count(), 1);
  ok("genmove w");
  EXPECT_EQ(board().stones(Color::kWhite).count(), 2);
}

TEST_F(Gtp, SwapsByRule) {
  ok("boardsize 5 5");
  ok("play b c3");
  EXPECT_NE(ok("genmove w"), "swap-pieces") << "the swap rule is off by default";
  ok("param_game allow_swap 1");
  ok("clear_board");
  ok("play b c3");
  EXPECT_NE(ok("all_legal_moves").find("swap-pieces"), std::string::npos);
  EXPECT_EQ(ok("genmove w"), "swap-pieces") << "a first stone in the centre wins";
  EXPECT_EQ(board().at(12), Color::kWhite);
  ok("undo");
  EXPECT_EQ(board().at(12), Color::kBlack);
  // HexGui shows a swap by playing all moves again on a cleared board.
  ok("play w swap");
  ok("clear_board");
  ok("play w c3");
  ok("play w d4");
  refused("play w swap-pieces");
  ok("clear_board");
  ok("play b a1");
  EXPECT_NE(ok("genmove w"), "swap-pieces") << "a first stone in the corner loses";
  ok("clear_board");
  EXPECT_EQ(ok("genmove b"), "a2") << "the result of fair_opening()";
  EXPECT_NE(ok("param_game").find("[bool] allow_swap 1"), std::string::npos);
}

TEST_F(Gtp, TheRuleMayComeAfterTheFirstMove) {
  ok("play b f6");
  ok("param_game allow_swap 1");
  EXPECT_EQ(board().moves_played(), 1);
  ok("play w swap-pieces");
  ok("param_game allow_swap 0");
  EXPECT_EQ(board().at(60), Color::kWhite) << "a game with a swap must stay unchanged";
}

TEST_F(Gtp, ResignsOnlyIfAsked) {
  ok("boardsize 5 5");
  for (const char* cell : {"c1", "c2", "c3", "c4"}) ok("play b " + std::string(cell));
  EXPECT_NE(ok("reg_genmove w"), "resign");
  ok("param_game resign_below 0.9");
  EXPECT_EQ(ok("reg_genmove w"), "resign");
  EXPECT_EQ(ok("genmove w"), "resign");
  EXPECT_EQ(ok("final_score"), "B+");
}

TEST_F(Gtp, TheSameSeedGivesTheSameGame) {
  const auto play = [this] {
    ok("clear_board");
    ok("set_random_seed 42");
    std::string moves;
    for (int i = 0; i < 6; ++i) moves += ok(i % 2 == 0 ? "genmove b" : "genmove w") + " ";
    return moves;
  };
  const std::string first = play();
  EXPECT_EQ(play(), first);
}

TEST_F(Gtp, KeepsTime) {
  EXPECT_EQ(ok("time_left"), "black unlimited white unlimited");
  ok("time_settings 60 0 0");
  ok("time_left w 5.5 0");
  EXPECT_EQ(ok("time_left"), "black 60.0 white 5.5");
  EXPECT_EQ(ok("time_left b"), "60.0");
  ok("time_settings 0 5 0");
  EXPECT_EQ(ok("time_left b"), "unlimited") << "in GTP a period without stones means: no limit";
  ok("time_left b 0");
  ok("genmove b");
  EXPECT_EQ(engine_.limits.seconds, 0.01);
  refused("time_left b 10 -1");
  refused("time_left b 10 1.5");
  refused("time_settings 0 10 1.5");
}

TEST_F(Gtp, KeepsByoYomi) {
  ok("time_settings 0 2 1");
  EXPECT_EQ(ok("time_left"), "black 2.0/1 white 2.0/1");
  ok("genmove b");
  EXPECT_GT(engine_.limits.seconds, 1.8);
  EXPECT_LT(engine_.limits.seconds, 2);
  EXPECT_EQ(ok("time_left b"), "2.0/1") << "each move begins a period";
  ok("time_settings 1000 30 5");
  EXPECT_EQ(ok("time_left w"), "1000.0");
  ok("time_left w 12 3");
  EXPECT_EQ(ok("time_left w"), "12.0/3");
  ok("genmove w");
  EXPECT_GT(engine_.limits.seconds, 3.5);
  EXPECT_LT(engine_.limits.seconds, 4);
  EXPECT_TRUE(ok("time_left w").ends_with("/2"));
  ok("clear_board");
  EXPECT_EQ(ok("time_left w"), "1000.0") << "a new game starts the clocks again";
}

TEST(GameClock, TakesTimeBeyondTheMainTimeFromAPeriod) {
  GameClock clock({.main = 10, .period = 30, .stones = 5});
  EXPECT_EQ(clock.text(), "10.0");
  clock.spend(4);
  EXPECT_EQ(clock.text(), "6.0");
  clock.spend(8);  // 2 s of the period, whose first move this is
  EXPECT_EQ(clock.text(), "28.0/4");
  for (int i = 0; i < 3; ++i) clock.spend(9);
  EXPECT_EQ(clock.text(), "1.0/1");
  clock.spend(1);
  EXPECT_EQ(clock.text(), "30.0/5");
}

TEST(GameClock, DividesTheTime) {
  EXPECT_EQ(GameClock().move_seconds(100), std::nullopt);
  // 121 empty cells: 24.2 moves.
  EXPECT_NEAR(*GameClock({.main = 60}).move_seconds(121), 59.5 / 24.2, 1e-9);
  EXPECT_NEAR(*GameClock({.main = 60}).move_seconds(5), 59.5 / 6, 1e-9);
  EXPECT_EQ(*GameClock({.main = 0.1}).move_seconds(5), 0.01);
  // Little main time is left: the move may last into the first period.
  EXPECT_NEAR(*GameClock({.main = 1, .period = 10, .stones = 1}).move_seconds(121), 9.75, 1e-9);
  EXPECT_NEAR(*GameClock({.period = 10, .stones = 5}).move_seconds(121), 1.9, 1e-9);
  GameClock late({.period = 10, .stones = 5});
  late.spend(30);
  EXPECT_EQ(*late.move_seconds(121), 0.01);
}

TEST(Limits, AreThoseOfTheWholeMove) {
  const SearchLimits limits{.seconds = 2, .iterations = 100};
  EXPECT_DOUBLE_EQ(limits_after(limits, 0.2).seconds, 1.8);
  EXPECT_EQ(limits_after(limits, 0.2).iterations, 100u);
  EXPECT_EQ(limits_after(limits, 3).seconds, 0.001);
  EXPECT_EQ(limits_after({.iterations = 100}, 3).seconds, 0) << "no limit";
}

TEST_F(Gtp, SolvesForTheSolveButton) {
  ok("boardsize 4 4");
  EXPECT_EQ(ok("dfpn-solve-state black"), "black");
  EXPECT_EQ(ok("dfpn-solve-state w"), "white");
  ok("boardsize 11 11");
  refused("dfpn-solve-state b");
}

TEST_F(Gtp, ShowsPatterns) {
  ok("boardsize 7 7");
  for (const char* cell : {"d2", "c4", "b6"}) ok("play b " + std::string(cell));
  EXPECT_EQ(ok("hex-must-play w"), "");
  EXPECT_NE(ok("hex-bridges b").find("d2-c4 by "), std::string::npos);
  EXPECT_NE(ok("hex-bridges b").find("-edge by "), std::string::npos);
  EXPECT_NE(ok("hex-inferior").find("b7 black"), std::string::npos);
  EXPECT_EQ(ok("hex-visits"), "");
  ok("genmove w");
  EXPECT_TRUE(std::regex_match(ok("hex-visits"), std::regex("([a-g][1-7] \\d+@\\d+% ?)+")));
  // Each line is type/label/command.
  std::istringstream lines(ok("hexgui-analyze_commands"));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_EQ(std::count(line.begin(), line.end(), '/'), 2) << line;
    const std::string command = line.substr(line.rfind('/') + 1);
    EXPECT_EQ(ok("known_command " + command.substr(0, command.find(' '))), "true") << line;
  }
}

TEST_F(Gtp, ClearsWhatTheEngineRemembers) {
  ok("clear_cache");
  EXPECT_EQ(engine_.cleared, 1);
}

class GtpFiles : public Gtp {
 protected:
  GtpFiles() : folder_(::testing::TempDir() + "gtp_test." + std::to_string(getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~GtpFiles() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(GtpFiles, LoadsSavesAndExecutes) {
  ok("boardsize 6 6");
  ok("play-game a1 b2 c3");
  ok("savesgf " + folder_ + "/game.sgf");
  const Board saved = board();
  ok("boardsize 11 11");
  ok("loadsgf " + folder_ + "/game.sgf");
  EXPECT_EQ(board(), saved);
  ok("loadsgf " + folder_ + "/game.sgf 1");
  EXPECT_EQ(board().moves_played(), 1);
  ok("loadsgf " + folder_ + "/game.sgf 99");
  EXPECT_EQ(board().moves_played(), 3);

  std::ofstream(folder_ + "/script") << "play w f6\n\n# a comment\nnonsense\nname\n";
  EXPECT_EQ(raw("exec " + folder_ + "/script"), "= \n\n? unknown command\n\n= Flat\n\n= \n\n");
  EXPECT_EQ(board().at(35), Color::kWhite);
  std::ofstream(folder_ + "/loop") << "exec " << folder_ << "/loop\n";
  EXPECT_NE(raw("exec " + folder_ + "/loop").find("? exec is nested"), std::string::npos);
  std::ofstream(folder_ + "/bad.sgf") << "(;GM[1])";
  refused("loadsgf " + folder_ + "/bad.sgf");
}

class GtpNoFiles : public Gtp {
 protected:
  GtpNoFiles() : Gtp({.files = false}) {}
};
TEST_F(GtpNoFiles, RefusesFileCommands) {
  for (const char* line : {"loadsgf x", "savesgf x", "exec x"}) {
    EXPECT_NE(refused(line).find("not allowed"), std::string::npos);
  }
}

class GtpAnalysis : public Gtp {
 protected:
  GtpAnalysis()
      : Gtp({.limits = {.iterations = 200'000}, .live_interval = 0.001, .analyze_seconds = 0.02}) {}
};

TEST_F(GtpAnalysis, WritesLinesAsLeelaAndKataDo) {
  ok("boardsize 5 5");
  for (const bool kata : {false, true}) {
    const std::string text = raw(kata ? "5 kata-analyze b 1" : "5 lz-analyze b interval 1");
    ASSERT_EQ(text.substr(0, 3), "=5\n");
    ASSERT_EQ(text.find("\n\n"), text.size() - 2) << "the only empty line must be at the end";
    std::istringstream lines(text.substr(3));
    int shown = 0;
    for (std::string line; std::getline(lines, line) && !line.empty(); ++shown) {
      const std::string rate = kata ? "[01]\\.\\d{6}" : "\\d{1,5}";
      ASSERT_TRUE(
          std::regex_match(line, std::regex("(info move [a-e][1-5] visits \\d+ winrate " + rate +
                                            " prior " + rate + " order \\d+ pv( [a-e][1-5])+ ?)+")))
          << line;
      EXPECT_EQ(line.find(" order 0 ") != std::string::npos, true);
    }
    EXPECT_GE(shown, 1);
  }
  EXPECT_EQ(board().moves_played(), 0) << "an analysis must not play a move";
}

TEST_F(GtpAnalysis, DrawsLiveGraphicsDuringGenmove) {
  ok("boardsize 5 5");
  ok("param_search live_graphics 1");
  const std::string text = raw("genmove b");
  const size_t answer = text.rfind("= ");
  ASSERT_NE(answer, std::string::npos);
  ASSERT_TRUE(is_one_answer(text.substr(answer)));
  const std::string blocks = text.substr(0, answer);
  ASSERT_FALSE(blocks.empty());
  ASSERT_TRUE(std::regex_match(
      blocks, std::regex("(gogui-gfx:\nuct\nVAR B [a-e][1-5]\nINFLUENCE( [a-e][1-5] "
                         "([01]\\.\\d\\d|W|L))+\nLABEL( [a-e][1-5] \\d+)+\nTEXT [^\n]+\n\n)+")))
      << blocks;
}

TEST(GtpText, KeepsRatesInRangeAndAnswersWhole) {
  const Board board(5, 5);
  SearchReport report;
  report.moves = {{0, 1, 1.5, -1, true, {}}, {kSwapPieces, 2, -0.5, 2, false, {}}};
  EXPECT_EQ(gtp_info(board, report, GtpInfo::kLeela),
            "info move a1 visits 1 winrate 10000 prior 0 order 0 pv a1 "
            "info move swap-pieces visits 2 winrate 0 prior 10000 order 1 pv swap-pieces");
  EXPECT_NE(gtp_graphics(board, report).find("INFLUENCE a1 W\n"), std::string::npos);
  EXPECT_TRUE(is_one_answer(gtp_answer(true, "3", "a\n\n\nb\n\n")));
  EXPECT_TRUE(is_one_answer(gtp_answer(false, "", "\n\nx\r\x01y\n")));
  EXPECT_TRUE(is_one_answer(gtp_answer(true, "", "\n")));
  EXPECT_TRUE(is_one_answer(gtp_answer(true, "", "")));
}

// An engine that returns no move, or an illegal one.
class BrokenEngine : public FlatEngine {
 public:
  SearchReport search(const Board& board, const SearchLimits&, const std::atomic<bool>&,
                      const std::function<void(const SearchReport&)>&, double) override {
    SearchReport report;
    if (moves) {
      report.moves.resize(1);
      report.moves[0].move = static_cast<Move>(board.stones(Color::kBlack).first());
    }
    return report;
  }
  bool moves = false;
};

TEST(GtpBroken, ReportsAnIllegalMoveOfTheEngineAsAnError) {
  BrokenEngine engine;
  std::string output;
  GtpSession session(engine, [&](std::string_view text) { output += text; });
  session.execute("play b a1");
  for (const bool moves : {false, true}) {
    engine.moves = moves;
    output.clear();
    session.execute("genmove w");
    EXPECT_EQ(output, "? the engine found no legal move\n\n");
  }
}

}  // namespace
}  // namespace cariama::hex
