// The program cariama-bdd: rows, exit codes, jobs, a killed process, and the run that continues.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "bdd/bdd.h"
#include "bdd/model_file.h"
#include "bdd/reachability.h"
#include "tests/bdd/bdd_test_support.h"
#include "tests/dsfabric/testing/running_command.h"

namespace cariama::bdd {
namespace {

using cariama::testing::Running;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::model_path;

const std::string kProgram = CARIAMA_PROGRAM_DIR "/cariama-bdd ";

struct Ended {
  int code;
  std::string out;
  std::string err;
};
Ended run_program(const std::string& arguments) {
  Running command(kProgram + arguments);
  const int code = command.wait();
  return {code, command.out(), command.err()};
}

TEST(CariamaBdd, PrintsRows) {
  for (const char* processes : {"1", "2"}) {
    const Ended run = run_program("reach " + model_path("anderson.4") +
                                  " --json --table 16 --cache 16 -n " + processes);
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_THAT(run.out, AllOf(HasSubstr("{\"name\": \"states\", \"value\": 29641}"),
                               HasSubstr("{\"name\": \"nodes\", \"value\": 5935}"),
                               HasSubstr("{\"name\": \"seconds\", \"value\": "),
                               HasSubstr("{\"name\": \"peak_bytes\", \"value\": "),
                               HasSubstr("{\"name\": \"process\", \"rank\": 0, ")));
    EXPECT_EQ(run.out.find("\"rank\": 1") != std::string::npos, std::string(processes) == "2");
    EXPECT_THAT(run.err, HasSubstr("level     1 "));
  }
}

TEST(CariamaBdd, StopsAtAGoal) {
  // Integer 0 of the first process of bakery.4 is 1 after one step.
  const std::string reach =
      "reach " + model_path("bakery.4") + " --strategy bfs --quiet --cache 16 ";
  const Ended run = run_program(reach + "--goal 0=1");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("goal_reached"), HasSubstr("step    0  initial"),
                             HasSubstr("step    1  group ")));
  EXPECT_EQ(run_program(reach + "--goal 0=99").code, 1);
  EXPECT_EQ(run_program(reach + "--levels 1 --goal 0=2").code, 3);
}

TEST(CariamaBdd, RefusesWrongUsage) {
  for (const char* arguments : {"",
                                "reach",
                                "queens",
                                "queens 0",
                                "queens x",
                                "fly 8",
                                "reach x --strategy dfs",
                                "reach x --levels",
                                "reach x -n 0",
                                "reach x --memory no",
                                "reach x --memory -1",
                                "reach x --memory 99999999999999999999",
                                "reach x --checkpoint-every 1e999",
                                "reach x y",
                                "reach x --unknown",
                                "queens 4 --strategy bfs",
                                "queens 4 --svg x",
                                "dot x --levels 2",
                                "dot x -n 2",
                                "dot x --save y",
                                "reach x --goal ''",
                                "reach x --save ''",
                                "reach x --checkpoint ''",
                                "reach x --goal 0=1 --goal 1=1",
                                "reach x --table 100 --memory 50"}) {
    const Ended run = run_program(arguments);
    EXPECT_EQ(run.code, 2) << arguments;
    EXPECT_THAT(run.err, HasSubstr("cariama-bdd: ")) << arguments;
  }
  EXPECT_EQ(run_program("reach /no/such.bdd").code, 1);
  EXPECT_EQ(run_program("--version").out.substr(0, 12), "cariama-bdd ");
}

TEST(CariamaBdd, SavesDrawsAndReadsBack) {
  const std::string folder = ::testing::TempDir() + "cariama-bdd" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const Ended run = run_program("queens 5 --save " + folder + "/q.bdd --dot " + folder + "/q.dot");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("states                             10"));
  EXPECT_THAT(run_program("dot " + folder + "/q.bdd").out, HasSubstr("digraph bdd {"));
  EXPECT_EQ(run_program("dot " + folder + "/q.dot").code, 1) << "not a file of diagrams";
  const std::string reach = "reach " + model_path("anderson.4") + " --quiet --cache 16 ";
  EXPECT_EQ(run_program(reach + "--save " + folder + "/s.bdd --svg " + folder + "/s.svg").code, 0);
  EXPECT_GT(std::filesystem::file_size(folder + "/s.svg"), 500u);
  // A saved set is a goal, also if its path looks like an assignment in part.
  EXPECT_EQ(run_program(reach + "--goal " + folder + "/s.bdd").code, 0);
  std::filesystem::create_directories(folder + "/a=1");
  std::filesystem::copy(folder + "/s.bdd", folder + "/a=1/0=1,2=3");
  for (const std::string& goal : {folder + "/a=1/0=1,2=3", std::string("./0=1,2=3")}) {
    Running command("sh -c 'cd " + folder + "/a=1; " + kProgram + reach + "--goal " + goal + "'");
    EXPECT_EQ(command.wait(), 0) << goal << ": " << command.err();
  }
  const Ended neither = run_program(reach + "--goal x=1");
  EXPECT_EQ(neither.code, 1);
  EXPECT_THAT(neither.err, AllOf(HasSubstr("x=1"), HasSubstr("an assignment is like 3=1,7=0")));
  std::filesystem::remove_all(folder);
}

// Rank 0 cannot write a file. The other process must not wait for it.
TEST(CariamaBdd, AFileThatCannotBeWrittenEndsAllProcesses) {
  const std::string reach =
      "reach " + model_path("anderson.4") + " --quiet --table 16 --cache 16 -n 2 ";
  const std::vector<const char*> options =
      testing::kShort ? std::vector{"--save"}
                      : std::vector{"--checkpoint", "--save", "--dot", "--svg"};
  for (const char* option : options) {
    const Ended run = run_program(reach + option + " /proc/no");
    EXPECT_EQ(run.code, 1) << option;
    EXPECT_THAT(run.err, HasSubstr("/proc/no")) << option;
  }
  EXPECT_EQ(run_program("reach /no/such.bdd -n 2").code, 1);
}

// A wrong path is an error before the search. If a file cannot be written after it, the rows are
// printed all the same.
TEST(CariamaBdd, AFileThatCannotBeWrittenCostsNoResult) {
  const std::string folder =
      ::testing::TempDir() + "cariama-bdd-unwritten" + std::to_string(getpid());
  std::filesystem::create_directories(folder + "/taken.new");
  const std::string reach = "reach " + model_path("anderson.4") + " --quiet ";
  for (const char* option : {"--save ", "--dot ", "--svg "}) {
    const Ended wrong = run_program(reach + option + folder + "/no/such");
    EXPECT_EQ(wrong.code, 1) << option;
    EXPECT_THAT(wrong.err, HasSubstr("cannot write " + folder + "/no/such")) << option;
    EXPECT_EQ(wrong.out, "") << option;
    const Ended late = run_program(reach + option + folder + "/taken");
    EXPECT_EQ(late.code, 1) << option;
    EXPECT_THAT(late.err, HasSubstr("taken")) << option;
    EXPECT_THAT(late.out, AllOf(HasSubstr("29641"), HasSubstr("peak_bytes"))) << option;
  }
  const Ended queens = run_program("queens 5 --quiet --dot " + folder + "/taken");
  EXPECT_EQ(queens.code, 1);
  EXPECT_THAT(queens.out, AllOf(HasSubstr("states"), HasSubstr("peak_bytes")));
  std::filesystem::remove_all(folder);
}

// To open a FIFO would block until another process opens its other end.
TEST(CariamaBdd, AFifoInThePlaceOfAFileIsAnError) {
  const std::string folder = ::testing::TempDir() + "cariama-bdd-fifo" + std::to_string(getpid());
  const std::string reach = "reach " + model_path("anderson.4") + " --quiet --levels 1 ";
  const auto expect_refused = [&](const std::string& fifo, const std::string& option) {
    std::filesystem::create_directories(folder);
    ASSERT_EQ(mkfifo((folder + fifo).c_str(), 0600), 0);
    const Ended run = run_program(reach + option);
    EXPECT_EQ(run.code, 1) << fifo;
    EXPECT_THAT(run.err, AllOf(HasSubstr(fifo), HasSubstr("no regular file"))) << fifo;
    std::filesystem::remove_all(folder);
  };
  expect_refused("/saved.new", "--save " + folder + "/saved");
  expect_refused("/reach.lock", "--checkpoint " + folder);
  expect_refused("/reach.checkpoint", "--checkpoint " + folder);
}

TEST(CariamaBdd, AFileBeyondTheLimitOfSizesIsAnError) {
  const std::string saved = ::testing::TempDir() + "cariama-bdd-large" + std::to_string(getpid());
  // One block is enough for the error.
  Running command("sh -c 'ulimit -f 1; " + kProgram + "queens 7 --quiet --save " + saved + "'");
  EXPECT_EQ(command.wait(), 1);
  EXPECT_THAT(command.err(), HasSubstr("File too large"));
  EXPECT_FALSE(std::filesystem::exists(saved + ".new"));
}

TEST(CariamaBdd, AModelIsNoSavedDiagramAndViceVersa) {
  const std::string saved = ::testing::TempDir() + "cariama-bdd-saved" + std::to_string(getpid());
  EXPECT_EQ(run_program("queens 4 --quiet --save " + saved).code, 0);
  const Ended reach = run_program("reach " + saved);
  EXPECT_EQ(reach.code, 1);
  EXPECT_THAT(reach.err, HasSubstr("has diagrams that --save has written, no model"));
  const Ended dot = run_program("dot " + model_path("anderson.4"));
  EXPECT_EQ(dot.code, 1);
  EXPECT_THAT(dot.err, HasSubstr("is a model"));
  std::filesystem::remove(saved);
}

TEST(CariamaBdd, AnEndlessFileIsRefused) {
  for (const char* arguments : {"reach /dev/zero", "dot /dev/zero"}) {
    const Ended run = run_program(arguments);
    EXPECT_EQ(run.code, 1) << arguments;
    EXPECT_THAT(run.err, HasSubstr("/dev/zero is longer than 256 MiB")) << arguments;
  }
  Running pipe("sh -c 'yes | " + kProgram + "dot /dev/stdin'");
  EXPECT_EQ(pipe.wait(), 1);
  EXPECT_THAT(pipe.err(), HasSubstr("/dev/stdin is longer than 256 MiB"));
}

// A second job with the folder would replace the checkpoints of the first one. The lock ends with
// the first search.
TEST(CariamaBdd, OneSearchUsesACheckpointFolder) {
  const std::string folder = ::testing::TempDir() + "cariama-bdd-locked" + std::to_string(getpid());
  const std::string second = "reach " + model_path("anderson.4") +
                             " --strategy bfs --quiet --table 16 --cache 16 --checkpoint " + folder;
  testing::with_manager(1, testing::small(), [&](Manager& manager) {
    const Model model = load_model(manager, *read_model_file(model_path("anderson.4")));
    int levels = 0;
    ReachOptions options{.strategy = Strategy::kBfs, .checkpoint = folder};
    options.progress = [&](const ReachProgress&) {
      if (++levels != 1) return;
      for (const char* processes : {"", " -n 2"}) {
        const Ended run = run_program(second + processes);
        EXPECT_EQ(run.code, 1) << run.out;
        EXPECT_THAT(run.err, HasSubstr("another search uses the checkpoint folder " + folder));
      }
    };
    EXPECT_TRUE(reach(model, options).ok());
    EXPECT_GT(levels, 1);
  });
  const Ended run = run_program(second);
  EXPECT_EQ(run.code, 0) << run.err;
  std::filesystem::remove_all(folder);
}

// The largest limit that does not suffice: the job has begun, and the task runtime ends it.
TEST(CariamaBdd, AJobWithoutDescriptorsNamesTheLimit) {
#if defined(__SANITIZE_UNDEFINED__)
  GTEST_SKIP() << "UBSan opens a pipe to check the type of an object: it needs descriptors itself";
#endif
  int code = 0;
  std::string text;
  const auto suffices = [&](int limit) {
    Running job("sh -c 'ulimit -n " + std::to_string(limit) + "; exec " + kProgram +
                "queens 3 -n 2 --table 1 --cache 1'");
    code = job.wait();
    text = job.err();
    return code == 0;
  };
  int limit = 64;
  while (limit > 8 && suffices(limit)) limit -= 8;
  limit += 7;
  while (limit > 8 && suffices(limit)) --limit;
  EXPECT_EQ(code, 1) << limit;
  EXPECT_THAT(text, HasSubstr("raise ulimit -n")) << limit;
}

TEST(CariamaBdd, DotNeedsMemory) {
  const std::string path = ::testing::TempDir() + "large" + std::to_string(getpid()) + ".bdd";
  testing::with_manager(1, testing::small(), [&](Manager& manager) {
    const std::array<Bdd, 1> large{testing::large_function(manager, 68)};
    ASSERT_TRUE(manager.save_file(large, path).ok());
  });
  const Ended run = run_program("dot " + path + " --memory 1");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("--memory"));
  std::filesystem::remove(path);
}

// The processes of the job are the children of the program. Returns 0 if the program has ended.
pid_t last_process_of(const Running& program) {
  const std::string pid = std::to_string(program.pid());
  std::string children;
  std::getline(std::ifstream("/proc/" + pid + "/task/" + pid + "/children"), children);
  std::istringstream list(children);
  pid_t last = 0;
  while (list >> last) {
  }
  return last;
}

TEST(CariamaBdd, AStoppedProcessEndsTheJobByItsTimeout) {
  const std::string folder =
      ::testing::TempDir() + "cariama-bdd-stopped" + std::to_string(getpid());
  // On a busy machine the search may end before the process is stopped. The loop then repeats it.
  int code = 0;
  for (int attempt = 0; attempt < 20 && code == 0; ++attempt) {
    std::filesystem::remove_all(folder);
    Running command(kProgram + "reach " + model_path("bakery.4") +
                    " --strategy bfs --table 16 --cache 16 --checkpoint-every 0 --timeout 5 "
                    "--checkpoint " +
                    folder + " -n 2");
    ASSERT_TRUE(
        Running::eventually([&] { return std::filesystem::exists(folder + "/reach.checkpoint"); }));
    const pid_t victim = last_process_of(command);
    if (victim > 0) kill(victim, SIGSTOP);
    code = command.wait();
    if (code == 0) continue;
    EXPECT_EQ(code, 1) << command.err();
    EXPECT_THAT(command.err(), HasSubstr("kill -CONT"));
  }
  EXPECT_NE(code, 0);
  std::filesystem::remove_all(folder);
}

TEST(CariamaBdd, AKilledProcessIsReportedAndTheSearchContinues) {
  const std::string folder = ::testing::TempDir() + "cariama-bdd-killed" + std::to_string(getpid());
  const std::string arguments = "reach " + model_path("bakery.4") +
                                " --strategy bfs --table 16 --cache 16 --checkpoint-every 0 "
                                "--checkpoint " +
                                folder + " -n 2";
  // On a busy machine the search may end before the process is killed. The loop then repeats it.
  int code = 0;
  for (int attempt = 0; attempt < 20 && code == 0; ++attempt) {
    std::filesystem::remove_all(folder);
    Running command(kProgram + arguments);
    ASSERT_TRUE(
        Running::eventually([&] { return std::filesystem::exists(folder + "/reach.checkpoint"); }));
    const pid_t victim = last_process_of(command);
    if (victim > 0) kill(victim, SIGKILL);
    code = command.wait();
    if (code == 0) continue;
    ASSERT_GT(victim, 0) << command.err();
    EXPECT_THAT(command.err(),
                AllOf(HasSubstr("the levels since the last checkpoint"), HasSubstr(folder)));
  }
  EXPECT_NE(code, 0);
  const Ended again = run_program(arguments);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, AllOf(HasSubstr("157003"), HasSubstr("7187")));
  EXPECT_THAT(again.err, HasSubstr("continued from the checkpoint after level"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cariama::bdd
