#include "hex/sgf.h"
#include "mcts/random.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace cariama::hex {
namespace {

std::string text_of(const SgfGame& game, const std::vector<SgfMove>& moves) {
  std::string text;
  for (const SgfMove& move : moves) {
    text += (move.color == Color::kBlack ? " B" : " W") + game.start.name(move.move);
    if (!move.comment.empty()) text += "{" + move.comment + "}";
  }
  return text;
}
std::string moves_of(const SgfGame& game) {
  std::vector<SgfMove> moves = game.moves;
  for (SgfMove& move : moves) move.comment.clear();
  return text_of(game, moves);
}
// The variations with the line that they leave, the number of its moves before, and their comments.
std::string variations_of(const SgfGame& game) {
  std::string text;
  for (const SgfVariation& one : game.variations) {
    text += "[" + std::to_string(one.line) + "." + std::to_string(one.after) +
            text_of(game, one.moves) + "]";
  }
  return text;
}

TEST(Sgf, ReadsWhatHexGuiWrites) {
  const auto game = parse_sgf(
      "(;AP[HexGui:0.10.1]FF[4]GM[11]SZ[11]PB[Ann]PW[Bo \\] b]RE[B+]DT[2026-11-20]"
      "\n;B[c2];W[swap-pieces];B[f6]C[a \\[good\\] one];W[k11])");
  ASSERT_TRUE(game.ok()) << game.status();
  EXPECT_EQ(moves_of(*game), " Bc2 Wswap-pieces Bf6 Wk11");
  EXPECT_EQ(game->black_name, "Ann");
  EXPECT_EQ(game->white_name, "Bo ] b");
  EXPECT_EQ(game->result, "B+");
  EXPECT_EQ(game->date, "2026-11-20");
  EXPECT_EQ(game->moves[2].comment, "a [good] one");
  const GameRecord record = to_record(*game);
  EXPECT_EQ(record.board().at(*record.board().parse("b3")), Color::kWhite);
  EXPECT_EQ(to_record(*game, 1).board().at(*record.board().parse("c2")), Color::kBlack);
}

TEST(Sgf, ReadsSetupRectanglesAndResignation) {
  const auto game = parse_sgf(
      "junk before (;GM[11]SZ[5:4] AB[a1] [b2] AW[C3]AE[b2]PL[W] C[root]; W [d4] ;B[resign])");
  ASSERT_TRUE(game.ok()) << game.status();
  EXPECT_EQ(game->start.cols(), 5);
  EXPECT_EQ(game->start.rows(), 4);
  EXPECT_EQ(game->start.stones(Color::kBlack).count(), 1);
  EXPECT_EQ(game->start.stones(Color::kWhite).count(), 1);
  EXPECT_EQ(game->start.to_move(), Color::kWhite);
  EXPECT_EQ(game->comment, "root");
  EXPECT_EQ(moves_of(*game), " Wd4");
  EXPECT_EQ(game->resigned, Color::kBlack);
}

TEST(Sgf, FollowsTheFirstBranch) {
  const auto game = parse_sgf("(;GM[11]SZ[5];B[a1](;W[b2](;B[c3])(;B[d4]))(;W[e5];B[nonsense]))");
  ASSERT_TRUE(game.ok()) << game.status();
  EXPECT_EQ(moves_of(*game), " Ba1 Wb2 Bc3");
  EXPECT_EQ(variations_of(*game), "[0.2 Bd4][0.1 We5]") << "it ends before its illegal move";
}

TEST(Sgf, ReadsVariations) {
  struct Case {
    const char* text;
    const char* moves;
    const char* variations;
  };
  for (const Case& test :
       {Case{"(;SZ[5](;B[a1];W[b1])(;B[a2]))", " Ba1 Wb1", "[0.0 Ba2]"},
        // Variations of variations.
        Case{"(;SZ[5];B[a1](;W[b2])(;W[c3](;B[d4];W[e5])(;B[d5](;W[e1])(;W[e2]))))", " Ba1 Wb2",
             "[0.1 Wc3 Bd4 We5][1.1 Bd5 We1][2.1 We2]"},
        // The first branch of a variation continues it, also in nodes without a move.
        Case{"(;SZ[5];B[a1](;W[b2])(;(;W[c3](;C[x])(;B[d4]))))", " Ba1 Wb2", "[0.1 Wc3{x} Bd4]"},
        // Behind the end of the main line.
        Case{"(;SZ[5];B[a1](;W[resign])(;W[b2]C[better];B[c3]))", " Ba1", "[0.1 Wb2{better} Bc3]"},
        Case{"(;SZ[5];B[a1](;)(;W[b2]))", " Ba1", "[0.1 Wb2]"},
        // A comment without a move belongs to the move before.
        Case{"(;SZ[5];B[a1](;W[b2])(;W[c3];C[end]))", " Ba1 Wb2", "[0.1 Wc3{end}]"},
        // An illegal move and a set-up stone end a variation with its branches.
        Case{"(;SZ[5];B[a1](;W[b2])(;W[a1](;B[c3])(;B[c4]))(;W[b3];AB[e5];B[c4]))", " Ba1 Wb2",
             "[0.1 Wb3]"},
        // Only a variation swaps.
        Case{"(;SZ[5];B[a1](;W[b2])(;W[swap-pieces];B[c3]))", " Ba1 Wb2",
             "[0.1 Wswap-pieces Bc3]"}}) {
    const auto game = parse_sgf(test.text);
    ASSERT_TRUE(game.ok()) << game.status() << test.text;
    EXPECT_EQ(moves_of(*game), test.moves) << test.text;
    EXPECT_EQ(variations_of(*game), test.variations) << test.text;
    const std::string written = format_sgf(*game);
    const auto again = parse_sgf(written);
    ASSERT_TRUE(again.ok()) << again.status() << written;
    EXPECT_EQ(moves_of(*again), test.moves) << written;
    EXPECT_EQ(variations_of(*again), test.variations) << written;
    EXPECT_EQ(again->resigned, game->resigned) << written;
  }
}

TEST(Sgf, SkipsPassAndSwapSides) {
  const auto game = parse_sgf("(;GM[11]SZ[5];B[a1];W[swap-sides];W[b2];B[pass];B[c3])");
  ASSERT_TRUE(game.ok()) << game.status();
  EXPECT_EQ(moves_of(*game), " Ba1 Wb2 Bc3");
}

// The properties of a node have no order: FF[4] allows the comment before the move.
TEST(Sgf, ACommentBelongsToTheMoveOfItsNode) {
  const auto game = parse_sgf(
      "(;GM[11]SZ[5]C[game];C[first]B[a1];W[b2]C[second];C[third]B[c3];W[pass]C[after]"
      ";B[resign]C[end])");
  ASSERT_TRUE(game.ok()) << game.status();
  EXPECT_EQ(game->comment, "game");
  ASSERT_EQ(game->moves.size(), 3u);
  EXPECT_EQ(game->moves[0].comment, "first");
  EXPECT_EQ(game->moves[1].comment, "second");
  EXPECT_EQ(game->moves[2].comment, "third\nafter\nend");

  // A move in the root, with a comment before and behind it.
  const auto before = parse_sgf("(;SZ[5]C[game]B[a1];C[more]AB[b2])");
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(before->comment, "game");
  EXPECT_EQ(before->moves[0].comment, "more");
  const auto behind = parse_sgf("(;SZ[5]B[a1]C[move])");
  ASSERT_TRUE(behind.ok()) << behind.status();
  EXPECT_EQ(behind->comment, "");
  EXPECT_EQ(behind->moves[0].comment, "move");
  const auto setup = parse_sgf("(;SZ[5]C[game];AB[b2]C[setup];B[a1])");
  ASSERT_TRUE(setup.ok()) << setup.status();
  EXPECT_EQ(setup->comment, "game\nsetup");
}

TEST(Sgf, ReportsThePositionOfAnError) {
  struct Case {
    const char* text;
    const char* says;
  };
  for (const Case& test : {Case{"", "no game"},
                           Case{"(", "ends within"},
                           Case{"(;GM[1])", "character 3: the game is not Hex"},
                           Case{"(;SZ[2])", "a size other"},
                           Case{"(;SZ[26])", "a size other"},
                           Case{"(;SZ[3:99])", "a size other"},
                           Case{"(;SZ[-3])", "a size other"},
                           Case{"(;SZ[])", "a size other"},
                           Case{"(;SZ[5];B[f1])", "move 1 is illegal"},
                           Case{"(;SZ[5];B[a1];W[a1])", "move 2 is illegal"},
                           Case{"(;SZ[5];B[a1];W[b1];W[swap-pieces])", "move 3 is illegal"},
                           Case{"(;SZ[5];B[swap-pieces])", "move 1 is illegal"},
                           Case{"(;SZ[5]AB[z1])", "outside of the board"},
                           Case{"(;SZ[5]PL[x])", "PL"},
                           Case{"(;B[a1", "without its ']'"},
                           Case{"(;B[a1\\", "without its ']'"},
                           Case{"(;B)", "without a value"},
                           Case{"(B[a1])", "outside of a node"},
                           Case{"()", "without nodes"},
                           Case{"(;\x01)", "neither node"}}) {
    const auto game = parse_sgf(test.text);
    ASSERT_FALSE(game.ok()) << test.text;
    EXPECT_EQ(game.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(game.status().message().find(test.says), absl::string_view::npos)
        << test.text << ": " << game.status();
  }
}

TEST(Sgf, LimitsDepthAndAcceptsWideTrees) {
  const std::string open(100'000, '(');
  EXPECT_FALSE(parse_sgf(open).ok());
  std::string wide = "(;SZ[5];B[a1]";
  for (int i = 0; i < 100'000; ++i) wide += "(;W[b2])";
  const auto game = parse_sgf(wide + ")");
  ASSERT_TRUE(game.ok()) << game.status();
  EXPECT_EQ(moves_of(*game), " Ba1 Wb2");
  EXPECT_EQ(game->variations.size(), 99'999u);
  EXPECT_FALSE(parse_sgf(std::string((size_t{16} << 20) + 1, ' ')).ok());
}

TEST(Sgf, ReadsBackWhatItWrites) {
  mcts::Random random(3);
  for (int i = 0; i < 200; ++i) {
    const int cols = 3 + static_cast<int>(random.below(23));
    const int rows = random.below(2) == 0 ? cols : 3 + static_cast<int>(random.below(23));
    Board start(cols, rows, random.below(2) == 0 ? SwapRule::kOn : SwapRule::kOff);
    if (random.below(3) == 0) {
      Board::Set black = Board::Set::single(0);
      start.set_position(black, Board::Set::single(cols * rows - 1), Color::kWhite);
    }
    GameRecord record(start);
    for (int k = 0; k < 30; ++k) {
      const Move move = static_cast<Move>(random.below(static_cast<uint32_t>(cols * rows + 1)));
      record.play(record.board().to_move(), move == cols * rows ? kSwapPieces : move);
    }
    SgfGame game = to_sgf(record);
    game.black_name = "a]b[c\\d:e";
    game.comment = "line one\nline \\two]";
    if (!game.moves.empty()) {
      game.moves.back().comment = "(;not a node[x]";
    }
    // A variation, and one of the variation.
    const auto line_from = [&](GameRecord from, size_t most) {
      std::vector<SgfMove> line;
      while (line.size() < most && !from.board().winner()) {
        const Move cell = static_cast<Move>(random.below(static_cast<uint32_t>(cols * rows)));
        const Color color = from.board().to_move();
        if (from.play(color, cell)) line.push_back({color, cell, "one ]:"});
      }
      return line;
    };
    const size_t after = random.below(static_cast<uint32_t>(game.moves.size()) + 1);
    GameRecord left = to_record(game, after);
    const std::vector<SgfMove> line = line_from(left, 3);
    if (!line.empty()) game.variations.push_back({0, after, line});
    if (line.size() > 1) {
      left.play(line[0].color, line[0].move);
      game.variations.push_back({1, 1, line_from(left, 2)});
    }
    if (random.below(3) == 0) game.resigned = Color::kWhite;
    const std::string text = format_sgf(game);
    const auto again = parse_sgf(text);
    ASSERT_TRUE(again.ok()) << again.status() << text;
    ASSERT_EQ(moves_of(*again), moves_of(game));
    ASSERT_EQ(variations_of(*again), variations_of(game)) << text;
    ASSERT_EQ(again->black_name, game.black_name);
    ASSERT_EQ(again->comment, game.comment);
    ASSERT_EQ(again->resigned, game.resigned);
    ASSERT_TRUE(game.moves.empty() || again->moves.back().comment == game.moves.back().comment);
    ASSERT_EQ(to_record(*again).board().stones(Color::kBlack),
              record.board().stones(Color::kBlack));
    ASSERT_EQ(to_record(*again).board().stones(Color::kWhite),
              record.board().stones(Color::kWhite));
    ASSERT_EQ(std::count(text.begin(), text.end(), '\0'), 0);
  }
}

TEST(Sgf, ReadsAndWritesFiles) {
  const std::string folder = ::testing::TempDir() + "sgf_test." + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  SgfGame game;
  game.moves = {{Color::kBlack, 60, ""}};
  EXPECT_TRUE(save_sgf(folder + "/a.sgf", game).ok());
  const auto loaded = load_sgf(folder + "/a.sgf");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(moves_of(*loaded), " Bf6");
  EXPECT_EQ(load_sgf(folder + "/none.sgf").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(load_sgf(folder).ok()) << "a folder must be refused";
  ASSERT_EQ(mkfifo((folder + "/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(load_sgf(folder + "/pipe").ok()) << "a pipe must be refused: reading could block";
  EXPECT_FALSE(save_sgf(folder + "/none/a.sgf", game).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cariama::hex
