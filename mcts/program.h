// A program that is one search on several processes: it starts them by itself.
//
//   int main(int argc, char** argv) {
//     mcts::Program program(argc, argv);            // takes -n P and -t T out of the arguments
//     return program.run([](mcts::Host& host) {     // in rank 0; the others work for it
//       mcts::Search<ConnectFour> search(host);
//       std::printf("%d\n", search.run(ConnectFour(), {.seconds = 1}).moves[0].move);
//       return 0;
//     });
//   }
//
// With -n P > 1 the program launches itself P times on this host; started by cariama-run or a PMIx
// launcher it joins the job that it is in.
#ifndef CARIAMA_MCTS_PROGRAM_H_
#define CARIAMA_MCTS_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mcts/export.h"
#include "mcts/host.h"

namespace cariama::mcts {

class CARIAMA_MCTS_EXPORT Program {
 public:
  Program(int argc, char** argv);

  // Those that are left, without the program's name.
  [[nodiscard]] const std::vector<std::string>& arguments() const { return arguments_; }
  // What is wrong with -n or -t, or "".
  [[nodiscard]] const std::string& error() const { return error_; }

  // Runs the job, and `body` in rank 0. Returns the exit code of the program: that of `body`, or 1
  // if the job failed, which is said on stderr. If a process dies, the search goes on without it.
  int run(const std::function<int(Host&)>& body,
          Aggregation aggregation = Aggregation::kTraditional);

 private:
  std::vector<std::string> command_;
  std::vector<std::string> arguments_;
  std::string error_;
  int processes_ = 1;
  int threads_ = 1;
};

}  // namespace cariama::mcts

#endif  // CARIAMA_MCTS_PROGRAM_H_
