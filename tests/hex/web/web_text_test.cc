#include "hex/web/web_text.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cariama::hex {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(WebText, HostsOfALoopbackServer) {
  for (const char* host : {"localhost", "localhost:8017", "127.0.0.1", "127.0.0.1:1",
                           "127.9.9.9:80", "[::1]", "[::1]:8017"}) {
    EXPECT_TRUE(is_accepted_host(host, "127.0.0.1")) << host;
    EXPECT_TRUE(is_accepted_host(host, "::1")) << host;
  }
  // With DNS rebinding, the name of a foreign page leads to this machine.
  for (const char* host : {"", ":80", "evil.example", "evil.example:8017", "localhost.evil.example",
                           "127.0.0.1.evil.example", "192.168.0.1", "0.0.0.0", "[::2]", "[::1",
                           "[::1]evil.example", "127.1", "localhost evil"}) {
    EXPECT_FALSE(is_accepted_host(host, "127.0.0.1")) << host;
  }
}

TEST(WebText, HostsOfAServerForOtherMachines) {
  for (const char* host : {"localhost", "192.168.0.1:8017", "[fe80::1]:8017", "127.0.0.1"}) {
    EXPECT_TRUE(is_accepted_host(host, "0.0.0.0")) << host;
    EXPECT_TRUE(is_accepted_host(host, "192.168.0.1")) << host;
  }
  EXPECT_FALSE(is_accepted_host("evil.example", "0.0.0.0"));
  EXPECT_FALSE(is_accepted_host("192.168.0.1.evil.example", "192.168.0.1"));
}

TEST(WebText, Origins) {
  EXPECT_TRUE(is_accepted_origin("http://localhost:8017", "localhost:8017"));
  EXPECT_TRUE(is_accepted_origin("http://[::1]:8017", "[::1]:8017"));
  for (const char* origin : {"", "null", "http://localhost:80", "https://localhost:8017",
                             "http://evil.example", "http://127.0.0.1:8017", "localhost:8017"}) {
    EXPECT_FALSE(is_accepted_origin(origin, "localhost:8017")) << origin;
  }
}

TEST(WebText, Addresses) {
  for (const char* address : {"127.0.0.1", "127.1.2.3", "::1"}) {
    EXPECT_TRUE(is_ip_address(address)) << address;
    EXPECT_TRUE(is_loopback_address(address)) << address;
  }
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1", "fe80::1"}) {
    EXPECT_TRUE(is_ip_address(address)) << address;
    EXPECT_FALSE(is_loopback_address(address)) << address;
  }
  for (const char* address : {"", "localhost", "[::1]", "127.0.0.1:80", "1.2.3"}) {
    EXPECT_FALSE(is_ip_address(address)) << address;
    EXPECT_FALSE(is_loopback_address(address)) << address;
  }
}

TEST(WebText, TheSwapRuleOfAGame) {
  const auto swap = [](const char* sgf, bool on) {
    return to_record(*parse_web_game(sgf, on)).board().may_swap();
  };
  EXPECT_TRUE(swap("(;SZ[5];B[c3])", true));
  EXPECT_FALSE(swap("(;SZ[5];B[c3])", false));
  EXPECT_FALSE(swap("(;SZ[5:4];B[c3])", true));
  EXPECT_FALSE(swap("(;SZ[5]AB[a1]PL[B];B[c3])", true));
  EXPECT_FALSE(parse_web_game("(;SZ[5];B[c3];B[c3])", true).ok());
}

TEST(WebText, GamesAsJson) {
  const std::string json = game_json(
      *parse_web_game("(;SZ[3]PB[A \"b\"]C[start];B[a1]C[corner];W[swap-pieces];B[b2])", true));
  EXPECT_THAT(json, HasSubstr("\"cols\":3,\"rows\":3,\"swap\":true"));
  EXPECT_THAT(json, HasSubstr("{\"color\":\"b\",\"move\":\"a1\",\"comment\":\"corner\"},"
                              "{\"color\":\"w\",\"move\":\"swap-pieces\",\"comment\":\"\"}"));
  EXPECT_THAT(json,
              HasSubstr("\"position\":{\"black\":[\"b2\"],\"white\":[\"a1\"],"
                        "\"to_move\":\"w\",\"may_swap\":false,\"winner\":null,\"chain\":[]}"));
  EXPECT_THAT(json, HasSubstr("\"black_name\":\"A \\\"b\\\"\""));
  EXPECT_THAT(json, HasSubstr("\"variations\":[]"));
  EXPECT_THAT(game_json(*parse_sgf("(;SZ[3];B[a1](;W[b2])(;W[c3]C[far](;B[a2])(;B[a3])))")),
              HasSubstr("\"variations\":[{\"line\":0,\"after\":1,\"moves\":["
                        "{\"color\":\"w\",\"move\":\"c3\",\"comment\":\"far\"},"
                        "{\"color\":\"b\",\"move\":\"a2\",\"comment\":\"\"}]},"
                        "{\"line\":1,\"after\":1,\"moves\":["
                        "{\"color\":\"b\",\"move\":\"a3\",\"comment\":\"\"}]}],\"position\""));
}

// The chain contains the stones that join the edges, and not other stones of the winner.
TEST(WebText, TheWinningChain) {
  EXPECT_THAT(game_json(*parse_sgf("(;SZ[3]AB[b1][b2][b3][c1]AW[a1][a2][c3])")),
              HasSubstr("\"winner\":\"b\",\"chain\":[\"b1\",\"c1\",\"b2\",\"b3\"]"));
  EXPECT_THAT(game_json(*parse_sgf("(;SZ[4]AW[a2][b2][c2][d2][a4]AB[a1][b1][c1][d1])")),
              HasSubstr("\"winner\":\"w\",\"chain\":[\"a2\",\"b2\",\"c2\",\"d2\"]"));
}

TEST(WebText, SearchesAsJson) {
  const Board board(3, 3);
  SearchView view;
  view.ahead = 2;
  view.report.iterations = 12;
  view.report.moves = {{4, 10, 0.75, 0, std::nullopt, {4, 0}}, {0, 2, 1, 0, true, {0}}};
  view.report.moves.push_back({1, 0, 0.5, 0, std::nullopt, {}});  // without a visit
  view.processes = {{true, 1000, 0.25, 20}, {false, 0, 0, 0}};
  const std::string waiting = view_json(board, view);
  EXPECT_THAT(waiting,
              HasSubstr("{\"ahead\":2,\"ended\":false,\"color\":\"b\",\"iterations\":12,"));
  EXPECT_THAT(waiting, HasSubstr("\"moves\":[{\"move\":\"b2\",\"visits\":10,\"win_rate\":0.7500,"
                                 "\"line\":[\"b2\",\"a1\"]},{\"move\":\"a1\",\"visits\":2,"
                                 "\"win_rate\":1.0000,\"proven\":true,\"line\":[\"a1\"]}]"));
  EXPECT_THAT(waiting,
              HasSubstr("\"processes\":[{\"alive\":true,\"iterations\":1000,\"idle\":0.250,"
                        "\"messages\":20},{\"alive\":false,"));
  EXPECT_THAT(waiting, Not(HasSubstr("chosen")));
  view.ended = true;
  view.move = kSwapPieces;
  EXPECT_THAT(view_json(board, view), HasSubstr("\"chosen\":\"swap-pieces\"}"));
}

}  // namespace
}  // namespace cariama::hex
