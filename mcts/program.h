// Program: the main function of a program that runs one search on several processes. It starts the
// processes.
//
//   int main(int argc, char** argv) {
//     mcts::Program program(argc, argv);            // parses and removes -n P and -t T
//     return program.run([](mcts::Host& host) {     // rank 0 only; the other ranks serve it
//       mcts::Search<ConnectFour> search(host);
//       std::printf("%d\n", search.run(ConnectFour(), {.seconds = 1}).moves[0].move);
//       return 0;
//     });
//   }
//
// With -n P > 1 the program launches itself P times on this host. If cariama-run or a PMIx launcher
// has started the program, it joins the job of that launcher and ignores -n and -t.
#ifndef CARIAMA_MCTS_PROGRAM_H_
#define CARIAMA_MCTS_PROGRAM_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mcts/export.h"
#include "mcts/host.h"

namespace cariama::mcts {

struct ProgramOptions {
  Aggregation aggregation = Aggregation::kTraditional;
  // FabricOptions::lease: a process that gives no sign of life for this long counts as dead.
  // 0: only the end of a process counts, and the searches leave out a stopped process.
  std::chrono::milliseconds lease{0};
  std::chrono::milliseconds patience = HostOptions().patience;  // HostOptions::patience
  // If set: handles SIGINT and SIGTERM in each process of the job from the begin of run() on, so
  // also before the process has joined the job. The launcher passes both signals on to all
  // processes. So the handler only sets a flag that `body` reads: rank 0 ends the search, and then
  // the job. A handler runs once: a second SIGINT, or a second SIGTERM, ends the process, also one
  // that waits for others while it joins or leaves the job. If not set: the signals keep their
  // actions, by default the end of each process. A system call that a signal interrupts goes on
  // (SA_RESTART). run() does not restore the actions.
  void (*interrupt)(int) = nullptr;
  // Called in each process before `body` or Host::serve(), by the thread that runs these. For
  // provide_evaluator() (evaluator.h). An exception has the effect of one of `body`, or of one of
  // the game.
  std::function<void(Host&)> prepare{};
};

class CARIAMA_MCTS_EXPORT Program {
 public:
  Program(int argc, char** argv);

  // The arguments without the program's name, -n and -t. These are -n P and -nP, and likewise -t:
  // a word like -nogui is an argument.
  [[nodiscard]] const std::vector<std::string>& arguments() const { return arguments_; }
  // The error in -n or -t; "" if there is none.
  [[nodiscard]] const std::string& error() const { return error_; }

  // Runs the job: `body` in rank 0, Host::serve() in the other ranks. Returns the exit code of the
  // program: the result of `body`; 1 if the job failed or `body` threw an exception; 2 if error()
  // is set. If it is not the result of `body`, the reason is on stderr. If a function of the game
  // throws in a worker of rank 0, the search throws the exception in `body`. If a process other
  // than rank 0 dies or is stopped, or a function of the game throws there, the search continues
  // without it (Search::run).
  int run(const std::function<int(Host&)>& body, const ProgramOptions& options = {});

 private:
  std::vector<std::string> command_;
  std::vector<std::string> arguments_;
  std::string error_;
  int processes_ = 1;
  int threads_ = 1;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_PROGRAM_H_
