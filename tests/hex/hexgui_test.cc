// A recorded session of HexGui (data/hexgui_session.gtp) with the program cariama-hex on two
// processes.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace cariama::hex {
namespace {

// Runs cariama-hex, and reads its answers as HexGui does.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), CARIAMA_PROGRAM_DIR "/cariama-hex");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int to[2];
    int from[2];
    EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    to_ = fdopen(to[1], "w");
    from_ = fdopen(from[0], "r");
  }
  ~Program() {
    std::fclose(to_);
    std::fclose(from_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void say(const std::string& line) {
    std::fprintf(to_, "%s\n", line.c_str());
    std::fflush(to_);
  }

  // Returns the next answer without its empty line. HexGui draws the blocks of live graphics before
  // it.
  std::string answer() {
    std::string block;
    do {
      block.clear();
      for (std::string line = read_line(); line != "\n"; line = read_line()) {
        if (line.empty()) return block;  // the end
        block += line;
      }
    } while (absl::StartsWith(block, "gogui-gfx:"));
    return block;
  }

  int wait() {
    int status = -1;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  std::string read_line() {
    std::string line;
    for (int c = std::fgetc(from_); c != EOF; c = std::fgetc(from_)) {
      line += static_cast<char>(c);
      if (c == '\n') break;
    }
    return line;
  }

  pid_t pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

// The stones that `showboard` shows: by row, as HexGui's board has them.
using Stones = std::map<std::string, char>;
Stones stones_of(const std::string& text) {
  Stones stones;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() != 13) continue;  // 11 cells between two row numbers
    for (size_t column = 0; column < 11; ++column) {
      const std::string& cell = words[column + 1];
      if (cell != ".") stones[static_cast<char>('a' + column) + words[0]] = cell[0];
    }
  }
  return stones;
}

TEST(HexGui, PlaysARecordedSession) {
  // Iterations, not a time: how well the program plays must not depend on the machine.
  Program program({"gtp", "-n", "2", "--size", "11", "--seconds", "0", "--iterations", "20000"});
  std::ifstream session(CARIAMA_SOURCE_DIR "/tests/hex/data/hexgui_session.gtp");
  ASSERT_TRUE(session.is_open());
  std::vector<std::string> moves;                         // answers of genmove
  std::vector<std::pair<std::string, std::string>> game;  // colour, cell: HexGui's board
  int commands = 0;
  int boards = 0;
  for (std::string line; std::getline(session, line);) {
    if (line[0] == '#' && line != "# interrupt") continue;
    for (size_t i = moves.size(); i > 0; --i) {
      line = absl::StrReplaceAll(line, {{"$" + std::to_string(i), moves[i - 1]}});
    }
    // The person plays elsewhere where the program has a stone.
    if (absl::StartsWith(line, "play black") && !game.empty() &&
        game.back().second == line.substr(11)) {
      line = "play black b10";
    }
    program.say(line);
    if (line == "# interrupt") continue;
    ++commands;
    // The interrupt comes while the program solves.
    if (absl::StartsWith(line, "dfpn-solve-state")) program.say("# interrupt");
    const std::string answer = program.answer();
    const bool refused =
        absl::StartsWith(line, "param_dfpn") || absl::StartsWith(line, "dfpn-solve");
    ASSERT_EQ(answer.substr(0, 2), refused ? "? " : "= ") << line << " -> " << answer;
    const std::string text(absl::StripTrailingAsciiWhitespace(answer.substr(2)));
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "boardsize") game.clear();
    if (words[0] == "play") game.emplace_back(words[1], words[2]);
    if (words[0] == "undo") game.pop_back();
    if (words[0] == "genmove") {
      moves.push_back(text);
      game.emplace_back(words[1], text);
    }
    if (words[0] == "hex-bridges" || words[0] == "reg_genmove") {
      EXPECT_NE(text, "") << "HexGui cannot show an empty text";
    }
    if (words[0] != "showboard") continue;
    ++boards;
    Stones expected;
    for (const auto& [color, cell] : game) {
      if (cell == "swap-pieces") {
        const auto first = expected.begin();
        ASSERT_NE(first, expected.end());
        const std::string at = first->first;
        expected = {{std::string(1, static_cast<char>('a' + std::stoi(at.substr(1)) - 1)) +
                         std::to_string(at[0] - 'a' + 1),
                     'W'}};
      } else {
        expected[cell] = color == "black" ? 'B' : 'W';
      }
    }
    EXPECT_EQ(stones_of(answer), expected) << answer;
  }
  EXPECT_EQ(commands, 43);
  EXPECT_EQ(boards, 11);
  EXPECT_EQ(moves.size(), 4U);
  EXPECT_EQ(moves.back(), "swap-pieces") << "a first stone in the centre wins";
  EXPECT_EQ(program.wait(), 0);
}

}  // namespace
}  // namespace cariama::hex
