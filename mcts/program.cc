#include "mcts/program.h"

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dsfabric/bootstrap.h"
#include "dsfabric/fabric.h"
#include "dsfabric/launcher.h"

namespace cariama::mcts {
namespace {

constexpr int kMaxProcesses = 1 << 16;  // RemoteNode has 16 bits for the rank
constexpr int kMaxThreads = 1 << 12;
constexpr std::chrono::seconds kFinalizePatience{30};

int say(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

// Calls `part` of the program, whose result is an exit code. After an exception prints its text and
// returns nullopt.
std::optional<int> caught(const std::string& subject, const std::function<int()>& part) {
  std::string what;
  try {
    return part();
  } catch (const std::exception& exception) {
    what = exception.what();
  } catch (...) {
    what = "an exception that is no std::exception";
  }
  std::fprintf(stderr, "cariama: %s threw: %s\n", subject.c_str(), what.c_str());
  return std::nullopt;
}

void handle_interrupts(void (*handler)(int)) {
  if (handler == nullptr) return;
  struct sigaction action {};
  action.sa_handler = handler;
  // The process may be waiting in Fabric::create() or finalize(), where nothing reads the flag of
  // the handler: the same signal has its default action then.
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  for (const int one : {SIGINT, SIGTERM}) ::sigaction(one, &action, nullptr);
}

// Returns true if a launcher has started this process as a part of a job (bootstrap.h). Then the
// other processes of the job exist already.
bool launched() {
  const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  return set("CARIAMA_LAUNCH_SOCKET") || set("CARIAMA_BOOTSTRAP") || set("PMIX_RANK") ||
         (set("RANK") && set("WORLD_SIZE"));
}

}  // namespace

Program::Program(int argc, char** argv) : command_(argv, argv + argc) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool processes = word.starts_with("-n");
    // An option of the user's program may begin with these letters, too: -nogui.
    const bool is_count = word.size() == 2 || (word.size() > 2 && absl::ascii_isdigit(word[2]));
    if (!is_count || (!processes && !word.starts_with("-t"))) {
      arguments_.push_back(word);
      continue;
    }
    const std::string text = word.size() > 2 ? word.substr(2) : i + 1 < argc ? argv[++i] : "";
    int& count = processes ? processes_ : threads_;
    const int most = processes ? kMaxProcesses : kMaxThreads;
    if (!absl::SimpleAtoi(text, &count) || count < 1 || count > most) {
      error_ = absl::StrCat(word.substr(0, 2), " needs a number from 1 to ", most);
    }
  }
}

int Program::run(const std::function<int(Host&)>& body, const ProgramOptions& options) {
  if (!error_.empty()) {
    std::fprintf(stderr, "%s\n", error_.c_str());
    return 2;
  }
  const bool alone = processes_ == 1 && !launched();
  if (processes_ > 1 && !launched()) {
    const absl::StatusOr<int> code = launch({.processes = processes_,
                                             .threads = static_cast<uint32_t>(threads_),
                                             .keep_going = true,
                                             .command = command_});
    return code.ok() ? *code : say(code.status());
  }
  handle_interrupts(options.interrupt);
  std::unique_ptr<Fabric> fabric;
  if (!alone) {
    absl::StatusOr<std::unique_ptr<Fabric>> joined =
        Fabric::create({.on_failure = FailurePolicy::kContinue, .lease = options.lease});
    if (!joined.ok()) return say(joined.status());
    fabric = *std::move(joined);
  }
  int code = 0;
  bool orphaned = false;
  {
    absl::StatusOr<std::unique_ptr<Host>> host =
        Host::create(fabric.get(), {.threads = static_cast<uint32_t>(threads_),
                                    .aggregation = options.aggregation,
                                    .patience = options.patience});
    if (!host.ok()) return say(host.status());
    if ((*host)->rank() == 0) {
      code = caught("the body of mcts::Program", [&] {
               if (options.prepare) options.prepare(**host);
               return body(**host);
             }).value_or(1);
      (*host)->end();
    } else {
      // After an exception of the game in this process, rank 0 continues without the process.
      const std::string label = fabric->label(fabric->rank());
      const std::optional<int> served = caught("the search of " + label, [&] {
        if (options.prepare) options.prepare(**host);
        const absl::Status ended = (*host)->serve();
        return ended.ok() ? 0 : say(ended);
      });
      code = served.value_or(1);
      orphaned = code != 0;
    }
  }
  if (fabric != nullptr && !orphaned) {
    const absl::Status ended = fabric->finalize(deadline_after(kFinalizePatience));
    if (!ended.ok() && code == 0) return say(ended);
  }
  return code;
}

}  // namespace cariama::mcts
