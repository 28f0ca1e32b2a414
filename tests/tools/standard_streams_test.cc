// All programs of tools with standard streams that cannot be written, or that are closed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/dsfabric/testing/running_command.h"

namespace cariama {
namespace {

using ::cariama::testing::Running;
using ::testing::HasSubstr;

const std::string kPrograms = CARIAMA_PROGRAM_DIR "/";

struct StreamsOutcome {
  int code;
  std::string out;
  std::string err;
};
// Runs PROGRAM ARGUMENTS with the redirections of the shell. `timeout` ends it after 100 s.
StreamsOutcome run_with_streams(const std::string& program, const std::string& redirections) {
  Running command("sh -c 'exec timeout 100 " + kPrograms + program + " " + redirections + "'");
  const int code = command.wait();
  return {code, command.out(), command.err()};
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Exactly one process prints the reason.
void expect_write_error(const std::string& program, const std::string& redirections,
                        const std::string& reason) {
  const StreamsOutcome outcome = run_with_streams(program, redirections);
  EXPECT_EQ(outcome.code, 1) << program << outcome.err;
  EXPECT_EQ(count_of(outcome.err, "cannot write to standard output: " + reason), 1U)
      << program << ": " << outcome.err;
}

TEST(StandardStreams, LostOutputIsAnError) {
  const std::string engine = "\"" + kPrograms + "cariama-hex gtp\"";
  const std::string diagrams = ::testing::TempDir() + "streams" + std::to_string(getpid()) + ".bdd";
  ASSERT_EQ(run_with_streams("cariama-bdd queens 4 --save " + diagrams, "").code, 0);
  for (const std::string& program : std::vector<std::string>{
           "cariama-run --help",
           "cariama-run --version",
           "cariama-info",
           "cariama-info --json",
           "cariama-info --options",
           "cariama-info --help",
           "cariama-info --version",
           "cariama-info --job",
           "cariama-bdd --help",
           "cariama-bdd --version",
           "cariama-bdd queens 4",
           "cariama-bdd queens 4 -n 2 --cache 16",
           "cariama-bdd dot " + diagrams,
           "cariama-top --help",
           "cariama-top --version",
           "cariama-hex --help",
           "cariama-hex --version",
           "cariama-hex analyze --size 3 --iterations 100",
           "cariama-hex analyze --size 3 --iterations 100 --json -n 2",
           "cariama-hex bench --size 5 --iterations 200",
           "cariama-hex solve --size 3",
           "cariama-hex match --size 3 --pairs 1 --iterations 10 " + engine + " " + engine}) {
    expect_write_error(program, ">/dev/full", "No space left on device");
  }
  for (const char* example :
       {"example_hello_lambda --version", "example_hello_lambda -n 2", "example_river_crossing"}) {
    const StreamsOutcome outcome = run_with_streams(example, ">/dev/full");
    EXPECT_EQ(outcome.code, 1) << example << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("cannot write to standard output")) << example;
  }
  // The answers of GTP do not pass through stdio.
  const std::string commands = diagrams + ".gtp";
  std::ofstream(commands) << "name\nversion\nquit\n";
  expect_write_error("cariama-hex gtp", "<" + commands + " >/dev/full", "No space left on device");
  unlink(commands.c_str());
  unlink(diagrams.c_str());
}

TEST(StandardStreams, AClosedOutputIsAnError) {
  for (const std::string& program : std::vector<std::string>{
           "cariama-run --help", "cariama-info --job", "cariama-bdd queens 4",
           "cariama-bdd queens 4 -n 2 --cache 16", "cariama-hex solve --size 3"}) {
    expect_write_error(program, ">&-", "Bad file descriptor");
  }
}

// The first descriptor that the program opens must not become its input.
TEST(StandardStreams, AClosedInputIsEmpty) {
  for (const char* processes : {"", "-n 2 "}) {
    const StreamsOutcome outcome =
        run_with_streams(std::string("cariama-hex gtp ") + processes, "<&-");
    EXPECT_EQ(outcome.code, 0) << processes << outcome.err;
    EXPECT_EQ(outcome.out, "") << processes;
  }
}

TEST(StandardStreams, ResultsNeedNoErrorStream) {
  const StreamsOutcome outcome =
      run_with_streams("cariama-bdd queens 4 -n 2 --cache 16", "<&- 2>&-");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("states"));
}

}  // namespace
}  // namespace cariama
