// Runs the program cariama-hex as users do, on one process and on two.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dsfabric/testing/running_command.h"
#include "tests/dtutils/testing/process_state.h"

namespace cariama::hex {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int code = -1;
  std::string output;
};
// Runs a command of /bin/sh.
Outcome shell(const std::string& command) {
  Outcome outcome;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) {
    outcome.output.append(buffer, got);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

// Runs the program and drops its stderr. `timeout` ends it after 100 s.
Outcome run(const std::string& arguments, const std::string& input = "") {
  return shell("printf '%s' '" + input + "' | timeout 100 " CARIAMA_PROGRAM_DIR "/cariama-hex " +
               arguments + " 2>/dev/null");
}

// Runs cariama-hex on three processes. `driver`, a command of /bin/sh, is its standard input; it
// finds the process of each rank in the file $folder/RANK and the output so far in $folder/out.
// The output says "left behind" if a process lives on after the job.
Outcome run_driven(const std::string& driver, const std::string& arguments) {
  return shell("folder=$(mktemp -d); touch $folder/out; (" + driver +
               ") | timeout 200 " CARIAMA_PROGRAM_DIR
               "/cariama-run -n 3 --keep-going sh -c "
               "'echo $$ >$0/$CARIAMA_RANK; exec " CARIAMA_PROGRAM_DIR "/cariama-hex " +
               arguments +
               "' $folder >$folder/out 2>&1; code=$?; cat $folder/out; for rank in 0 1 2; do "
               "kill -0 $(cat $folder/$rank) 2>/dev/null && echo left behind; done; rm -r $folder; "
               "exit $code");
}

// A stopped process delays neither the search nor the end of the program. The launcher kills the
// stopped process.
TEST(Program, GoesOnWithoutAStoppedProcess) {
  const Outcome outcome = run_driven(
      "echo boardsize 5; echo genmove b; until grep -q '= [a-e]' $folder/out; do sleep 0.1; done; "
      "kill -STOP $(cat $folder/1); echo genmove w; echo quit",
      "gtp --lease 3 --iterations 2000");
  EXPECT_THAT(outcome.output,
              ContainsRegex("= [a-e][1-5]\n\n(.*\n)*= [a-e][1-5]\n\n(.*\n)*=[ ]*\n"));
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 is stopped, and the job has ended without it"));
  EXPECT_EQ(outcome.code, 128 + SIGKILL);  // no other process has failed
  EXPECT_THAT(outcome.output, Not(HasSubstr("left behind")));
}

// Rank 0 is stopped during a search. The other processes exit with an error, because they have lost
// rank 0. The launcher kills the stopped process.
TEST(Program, EndsWithAStoppedRankZero) {
  const Outcome outcome = run_driven(
      "until grep -q visits $folder/out; do sleep 0.1; done; kill -STOP $(cat $folder/0)",
      "analyze --size 9 --lease 3 --seconds 1000");
  EXPECT_THAT(outcome.output, HasSubstr("rank 0 is stopped, and the job has ended without it"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, Not(HasSubstr("left behind")));
}

// Rank 0 is stopped between two moves. The other processes have had nothing to do yet: rank 0
// solves a board of this size by itself.
TEST(Program, EndsWithARankZeroThatIsStoppedBetweenMoves) {
  const Outcome outcome = run_driven(
      "echo boardsize 4; echo genmove b; until grep -q '= [a-d]' $folder/out; do sleep 0.1; done; "
      "kill -STOP $(cat $folder/0)",
      "gtp --lease 3 --iterations 2000");
  EXPECT_THAT(outcome.output, HasSubstr("rank 0 is stopped, and the job has ended without it"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, Not(HasSubstr("left behind")));
}

// Without a lease, rank 1 is stopped while rank 0 thinks about its move. The first answer comes in
// time, the second one after HostOptions::patience.
TEST(Program, AnswersWithoutAStoppedProcess) {
  const Outcome outcome = run_driven(
      "answers() { until test $(grep -c '= [a-i]' $folder/out) = $1; do sleep 0.1; done; }; "
      "echo boardsize 9; echo genmove b; until test -s $folder/1; do sleep 0.1; done; sleep 1; "
      "kill -STOP $(cat $folder/1); answers 1; echo genmove w; answers 2; "
      "kill -KILL $(cat $folder/1); echo quit",
      "gtp --lease 0 --seconds 2");
  EXPECT_THAT(outcome.output, ContainsRegex("= [a-i][1-9]\n(.*\n)*= [a-i][1-9]\n\n(.*\n)*=[ ]*\n"));
  EXPECT_THAT(outcome.output, HasSubstr("the searches go on without it"));
  EXPECT_NE(outcome.code, 124);
  EXPECT_THAT(outcome.output, Not(HasSubstr("left behind")));
}

// Rank 1 is stopped during a search that an interrupt then ends. It lives until the result has been
// reported.
TEST(Program, NamesTheProcessesThatAResultLacks) {
  const Outcome outcome = run_driven(
      "wait_for() { for i in $(seq 600); do grep -q \"$1\" $folder/out && return; sleep 0.1; done; "
      "}; "
      "wait_for visits; kill -STOP $(cat $folder/1); kill -INT $(cat $folder/0); "
      "wait_for 'in time'; kill -KILL $(cat $folder/1)",
      "analyze --size 9 --lease 0 --seconds 1000 --json");
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 did not end its part of a search in time"));
  EXPECT_THAT(outcome.output, HasSubstr("\"late\": [1]"));
  EXPECT_NE(outcome.code, 124);
  EXPECT_THAT(outcome.output, Not(HasSubstr("left behind")));
}

// Rank 0 is killed while it thinks about a move: all other processes end.
TEST(Program, EndsWithRankZero) {
  const Outcome outcome = run_driven(
      "echo boardsize 9; echo genmove b; until test -s $folder/0; do sleep 0.1; done; sleep 1; "
      "kill -KILL $(cat $folder/0)",
      "gtp --seconds 50");
  EXPECT_THAT(outcome.output, HasSubstr("rank 0 was killed by signal 9"));
  EXPECT_NE(outcome.code, 124);
  EXPECT_THAT(outcome.output, Not(HasSubstr("left behind")));
}

class ByProcesses : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Program, ByProcesses, ::testing::Values("", "-n 2 ", "-n 2 -t 2 "));

TEST_P(ByProcesses, AnalysesAPosition) {
  const Outcome outcome =
      run(GetParam() + "analyze --size 5 --iterations 2000 --json --without solver a2");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, ContainsRegex("\"name\": \"move\", \"value\": \"[a-e][1-5]\""));
  EXPECT_THAT(outcome.output, HasSubstr("\"name\": \"process\", \"rank\": 0"));
  EXPECT_THAT(outcome.output, HasSubstr("\"late\": []"));
  if (!GetParam().empty()) {
    EXPECT_THAT(outcome.output, HasSubstr("\"name\": \"process\", \"rank\": 1"));
  }
}

TEST_P(ByProcesses, SpeaksGtp) {
  const Outcome outcome = run(GetParam() + "gtp --iterations 300",
                              "boardsize 4\nplay b a1\n7 genmove w\nfinal_score\nnonsense\nquit\n");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output,
              ContainsRegex("^=[ ]*\n\n=[ ]*\n\n=7 [a-d][1-4]\n\n= cannot score\n"));
  EXPECT_THAT(outcome.output, HasSubstr("? "));
}

// The proof does not depend on the number of processes: after b3 on 4x4, White is to move and
// loses.
TEST_P(ByProcesses, TheSameProof) {
  const Outcome outcome =
      run(GetParam() + "analyze --size 4 --iterations 1000000 --json --without solver b3");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("\"proven\": false"));
}

TEST_P(ByProcesses, ReportsItsSpeed) {
  const Outcome outcome = run(GetParam() + "bench --size 9 --iterations 2000 --json");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("\"name\": \"playouts_per_second\""));
  EXPECT_THAT(outcome.output, HasSubstr("\"name\": \"tree_iterations_per_second\""));
}

TEST_P(ByProcesses, ThePapersDesign) {
  const Outcome outcome = run(GetParam() + "analyze --paper --size 5 --iterations 2000 --json");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("\"iterations\": 2000"));
}

TEST(Program, SolvesSmallBoards) {
  const Outcome outcome = run("solve --size 4 --json");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("\"value\": \"black\""));
}

TEST(Program, RefereesAMatch) {
  const std::string engine = "\"" CARIAMA_PROGRAM_DIR "/cariama-hex gtp\"";
  const Outcome outcome =
      run("match --size 4 --pairs 1 --iterations 50 --json " + engine + " " + engine);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("\"games\": 2"));
  EXPECT_THAT(outcome.output, HasSubstr("\"failures\": 0"));
}

// The rating of a player who wins all games is infinite. JSON has no infinity, so it is null.
TEST(Program, TheRatingOfAMatchWithoutALossIsNull) {
  const std::string resigns =
      "'while read line; do case \"$line\" in *genmove*) echo = resign;; *) echo =;; esac; echo; "
      "case \"$line\" in *quit*) exit;; esac; done'";
  const Outcome outcome =
      run("match --size 4 --pairs 1 --iterations 50 --json \"" CARIAMA_PROGRAM_DIR
          "/cariama-hex gtp\" " +
          resigns);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("\"wins\": 2, \"losses\": 0, \"failures\": 0"));
  EXPECT_THAT(outcome.output, ContainsRegex("\"elo\": null, \"elo_low\": -?[0-9]+, "
                                            "\"elo_high\": null"));
}

// The engine is a script with a child. Neither reads its input. Both must end with the referee.
TEST(Program, AnEngineEndsWithItsReferee) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    const std::string list = ::testing::TempDir() + "engine" + std::to_string(::getpid());
    const std::string script =
        "\"echo \\$\\$ >>" + list + "; sleep 1000 & echo \\$! >>" + list + "; wait\"";
    cariama::testing::Running match(CARIAMA_PROGRAM_DIR "/cariama-hex match " + script + " " +
                                    script);
    std::vector<pid_t> engine;
    EXPECT_TRUE(cariama::testing::Running::eventually([&] {
      std::ifstream lines(list);
      engine.assign(std::istream_iterator<pid_t>(lines), {});
      return engine.size() == 2;
    }));
    ::kill(match.pid(), signal);
    EXPECT_EQ(match.wait(), 128 + signal);
    for (const pid_t process : engine) {
      EXPECT_TRUE(
          cariama::testing::wait_until_ended(process, deadline_after(std::chrono::seconds(60))))
          << signal;
    }
    ::unlink(list.c_str());
  }
}

// With --setup2, the second engine gets these commands and not those of the first engine, which it
// may not know.
TEST(Program, RefereesAMatchWithSeparateSetupCommands) {
  const std::string engine = "\"" CARIAMA_PROGRAM_DIR "/cariama-hex gtp\"";
  const auto match = [&](const std::string& options) {
    return run("match --size 4 --pairs 1 --json " + options + " " + engine + " " + engine);
  };
  const Outcome known = match("--iterations 50 --setup2 'param_search iterations 20'");
  EXPECT_EQ(known.code, 0);
  EXPECT_THAT(known.output, HasSubstr("\"failures\": 0"));
  EXPECT_EQ(match("--iterations 50 --setup2 'time -m 1'").code, 1);
  EXPECT_EQ(match("--setup 'time -m 1' --setup2 'param_search iterations 20'").code, 1);
}

// An interrupt ends the search of all processes, and the result counts the rollouts of each.
TEST(Program, AnInterruptEndsAnAnalysisInSeveralProcesses) {
  using cariama::testing::Running;
  Running analysis(CARIAMA_PROGRAM_DIR
                   "/cariama-hex analyze -n 2 --size 11 --seconds 100 --without solver --json");
  // Some reports, one each 0.5 s, beside a warning: the other process searches, too.
  ASSERT_TRUE(Running::eventually([&] {
    const std::string err = analysis.err();
    return std::count(err.begin(), err.end(), '\n') >= 4;
  })) << analysis.err();
  ::kill(analysis.pid(), SIGINT);
  EXPECT_EQ(analysis.wait(), 0) << analysis.err();
  // The values of a field in all rows that have it.
  const auto sum = [out = analysis.out()](const std::string& field) {
    uint64_t sum = 0;
    const std::string key = "\"" + field + "\": ";
    for (size_t at = out.find(key); at != std::string::npos; at = out.find(key, at + 1)) {
      sum += std::strtoull(out.c_str() + at + key.size(), nullptr, 10);
    }
    return sum;
  };
  EXPECT_GT(sum("iterations"), 0U);
  EXPECT_EQ(sum("completions"), sum("iterations")) << analysis.out();
}

// The text of an interrupted analysis has the iterations of each process: they add up to those of
// the search.
TEST(Program, AnInterruptedAnalysisShowsTheIterationsOfEachProcess) {
  using cariama::testing::Running;
  Running analysis(CARIAMA_PROGRAM_DIR
                   "/cariama-hex analyze -n 3 --size 11 --seconds 100 --without solver --plain");
  ASSERT_TRUE(Running::eventually([&] {
    return analysis.err().find("rank 2: ") != std::string::npos;
  })) << analysis.err();
  ::kill(analysis.pid(), SIGINT);
  EXPECT_EQ(analysis.wait(), 0) << analysis.err();
  const std::string out = analysis.out();
  const size_t all = out.find(", after ");
  ASSERT_NE(all, std::string::npos) << out;
  const uint64_t iterations = std::strtoull(out.c_str() + all + 8, nullptr, 10);
  EXPECT_GT(iterations, 0U);
  uint64_t sum = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string label = "rank " + std::to_string(rank) + ": ";
    const size_t at = out.find(label);
    ASSERT_NE(at, std::string::npos) << out;
    sum += std::strtoull(out.c_str() + at + label.size(), nullptr, 10);
  }
  EXPECT_EQ(sum, iterations) << out;
}

// The program prints the address of the page, an interrupt ends it, and a second program cannot use
// its port.
TEST(Program, ServesAPage) {
  using cariama::testing::Running;
  Running server(CARIAMA_PROGRAM_DIR "/cariama-hex serve --port 0");
  ASSERT_TRUE(Running::eventually([&] { return server.out().ends_with("/\n"); }));
  EXPECT_THAT(server.out(), ContainsRegex("^http://127.0.0.1:[0-9]+/\n$"));
  std::string port = server.out().substr(std::string("http://127.0.0.1:").size());
  port.resize(port.size() - 2);
  const Outcome second = shell(CARIAMA_PROGRAM_DIR "/cariama-hex serve --port " + port + " 2>&1");
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.output, HasSubstr("Address already in use: choose another port with --port"));
  ::kill(server.pid(), SIGINT);
  EXPECT_EQ(server.wait(), 0);
  EXPECT_EQ(server.err(), "");
}

TEST(Program, WarnsOfAPageForOtherMachines) {
  using cariama::testing::Running;
  Running server(CARIAMA_PROGRAM_DIR "/cariama-hex serve --port 0 --bind 0.0.0.0");
  ASSERT_TRUE(Running::eventually([&] { return server.out().ends_with("/\n"); }));
  EXPECT_THAT(server.err(), HasSubstr("warning: everyone who reaches 0.0.0.0 may use"));
  ::kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

TEST(Program, WrongUsageIsReported) {
  for (const char* wrong : {"",
                            "dance",
                            "analyze --size 2",
                            "bench -n 0",
                            "gtp --seconds many",
                            "analyze --without wings",
                            "match one",
                            "bench --seconds 0",
                            "gtp --seconds 1e12",
                            "analyze --memory 9e15",
                            "analyze --iterations 0.5",
                            "match --pairs 1.5 a b",
                            "serve --port 65536",
                            "serve --port x",
                            "serve --bind localhost",
                            "serve --bind",
                            "serve a1",
                            "gtp a1",
                            "bench a1",
                            "solve --size 3 -n 2",
                            "solve --size 3 -t2",
                            "match -t 2 a b",
                            "match -n2 a b"}) {
    EXPECT_EQ(run(wrong).code, 2) << wrong;
  }
  EXPECT_EQ(run("analyze z99").code, 1);
  EXPECT_EQ(run("--help").code, 0);
  const Outcome many =
      shell(CARIAMA_PROGRAM_DIR "/cariama-hex match --pairs 99999999999999 a b 2>&1");
  EXPECT_EQ(many.code, 2);
  EXPECT_THAT(many.output, HasSubstr("--pairs needs a whole number from 1 to 100000"));
  const Outcome threads = shell(CARIAMA_PROGRAM_DIR "/cariama-hex solve --size 3 -t 2 2>&1");
  EXPECT_THAT(threads.output, HasSubstr("solve has no options -n and -t: it runs one thread"));
}

// The program prints the result of the search in spite of the error.
TEST(Program, AnInputThatCannotBeReadIsAFailure) {
  const Outcome outcome = shell("timeout 100 " CARIAMA_PROGRAM_DIR "/cariama-hex gtp 2>&1 </");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("cannot read standard input: Is a directory"));
}

TEST(Program, APictureThatCannotBeWrittenIsAFailure) {
  const Outcome outcome = shell(CARIAMA_PROGRAM_DIR
                                "/cariama-hex analyze --size 3 --iterations 50 --json "
                                "--svg /dev/full 2>&1");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("cannot write /dev/full: No space left on device"));
  EXPECT_THAT(outcome.output, HasSubstr("\"name\": \"move\""));
}

}  // namespace
}  // namespace cariama::hex
