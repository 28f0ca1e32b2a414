#include "mcts/program.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace cariama::mcts {
namespace {

// A program with a wrong -n or -t runs no search, even if it does not look at error().
TEST(Program, AWrongNumberEndsIt) {
  for (const std::vector<const char*>& words :
       {std::vector<const char*>{"-n", "two"}, {"-n0"}, {"-t", "-1"}, {"-n"}, {"-t2x"}}) {
    std::vector<const char*> line{"program"};
    line.insert(line.end(), words.begin(), words.end());
    Program program(static_cast<int>(line.size()), const_cast<char**>(line.data()));
    EXPECT_NE(program.error(), "") << words[0];
    bool ran = false;
    EXPECT_EQ(program.run([&](Host&) {
      ran = true;
      return 0;
    }),
              2);
    EXPECT_FALSE(ran);
  }
}

TEST(Program, WordsThatBeginLikeItsOptionsAreArguments) {
  const std::vector<const char*> line{"program", "-n2", "-nogui", "-t", "3", "-trace", "x"};
  const Program program(static_cast<int>(line.size()), const_cast<char**>(line.data()));
  EXPECT_EQ(program.error(), "");
  EXPECT_EQ(program.arguments(), (std::vector<std::string>{"-nogui", "-trace", "x"}));
}

}  // namespace
}  // namespace cariama::mcts
