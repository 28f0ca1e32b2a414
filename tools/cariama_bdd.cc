// cariama-bdd: explores the states of a model by binary decision diagrams.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bdd/bdd.h"
#include "bdd/files.h"
#include "bdd/job.h"
#include "bdd/model_file.h"
#include "bdd/reachability.h"
#include "dsfabric/fabric.h"
#include "dsfabric/launcher.h"
#include "dtutils/internal/json.h"
#include "dtutils/version.h"
#include "tasks/start.h"
#include "tools/program.h"

namespace cariama::bdd {
namespace {

constexpr const char* kHelp =
    "cariama-bdd: explores the states of a model by binary decision diagrams.\n"
    "\n"
    "  cariama-bdd reach MODEL.bdd [options]  counts the states that MODEL reaches\n"
    "  cariama-bdd queens N [options]         counts the placements of N queens\n"
    "  cariama-bdd dot FILE.bdd [options]     draws saved diagrams in the language of Graphviz\n"
    "\n"
    "  -n P                 number of processes (default 1); not together with a launcher\n"
    "  --strategy S         reach: bfs, chaining or saturation (default saturation)\n"
    "  --goal ASSIGNMENT    reach: stops at the first level with such a state, and prints a trace\n"
    "                       to it. 3=1,7=0: integer 3 is 1 and integer 7 is 0, counted from 0.\n"
    "                       An assignment has digits, '=' and ',' only; write ./3=1 for such a "
    "file\n"
    "  --goal FILE.bdd      reach: the same for the states of a file that --save has written\n"
    "  --deadlocks          reach: counts the states without successor, prints a trace to one\n"
    "  --levels N           reach: stops after N levels\n"
    "  --checkpoint DIR     reach: stores the states reached in DIR, and continues from there.\n"
    "                       One job at a time uses DIR\n"
    "  --checkpoint-every S reach: seconds between two checkpoints (default 5)\n"
    "  --save FILE.bdd      writes the result\n"
    "  --svg FILE           reach: draws states and nodes per level over time\n"
    "  --dot FILE           writes the result in the language of Graphviz\n"
    "  --table MIB          size of the node table of a process at the start (default 64, or\n"
    "                       --memory if that is less); sizes are rounded down to a power of two\n"
    "  --memory MIB         limit for the node table of a process (default 4096)\n"
    "  --cache MIB          limit for the operation cache, one for each host (default 256)\n"
    "  --remote             accesses all parts of the table as parts of other hosts\n"
    "  --in-flight N        look-ups that a process has in flight between hosts (default 64)\n"
    "  --look-ups BY        access to nodes of other hosts: initiator (one-sided transfers), "
    "owner\n"
    "                       (calls to their owners, each for many nodes), or auto (default)\n"
    "  --ack-timeout MS     milliseconds after which a message between hosts is sent again "
    "(default\n"
    "                       67); a host that lets seven pass has failed\n"
    "  --timeout S          ends the job if an operation, or a process that the others wait for,\n"
    "                       takes longer than S seconds (default: no limit)\n"
    "  --tasks M            what runs on several processes: migrating or pool (default migrating)\n"
    "  --quiet              no progress on stderr\n"
    "  --json               prints results as JSON, one object per line\n"
    "  --help               this text\n"
    "  --version            prints the version of Cariama\n"
    "\n"
    "Results: states, nodes, levels, seconds (of the search), peak_bytes (memory of the largest\n"
    "process), and a row for each process. The model format is that of LTSmin and Sylvan.\n"
    "Exit code: 0; 1 if it failed; 2 for wrong usage; 3 if --goal was not reached.\n";

struct Arguments {
  std::string command;
  std::string operand;
  int processes = 0;     // 0: -n was not given
  std::string of_reach;  // the last option that only `reach` has
  std::string of_job;    // the last option that `dot` does not have
  ReachOptions reach;
  std::string goal;
  std::string save;
  std::string svg;
  std::string dot;
  ManagerOptions manager;
  TaskModel model = TaskModel::kMigrating;
  FabricOptions fabric{.on_failure = FailurePolicy::kAbort};
  bool quiet = false;
  bool json = false;
  bool help = false;
  bool version = false;
};

int usage(const std::string& what) {
  std::fprintf(stderr, "cariama-bdd: %s (see cariama-bdd --help)\n", what.c_str());
  return 2;
}
int failed(const std::string& what) {
  std::fprintf(stderr, "cariama-bdd: %s\n", what.c_str());
  return 1;
}
int failed(const absl::Status& status) { return failed(std::string(status.message())); }

// Reads the command line. Returns a text that describes the first error, or "".
std::string read(int argc, char** argv, Arguments& arguments) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  std::string error;
  bool has_table = false;
  size_t next = 0;
  const auto value = [&](const std::string& option) -> std::string {
    if (next < words.size() && !words[next].empty()) return words[next++];
    if (error.empty()) error = option + " needs a value";
    return "";
  };
  const auto number = [&](const std::string& option, uint64_t least, uint64_t most) -> uint64_t {
    const std::string text = value(option);
    uint64_t parsed = 0;
    if (error.empty() && (!absl::SimpleAtoi(text, &parsed) || parsed < least || parsed > most)) {
      error =
          absl::StrCat(option, " needs a number from ", least, " to ", most, ", not '", text, "'");
    }
    return parsed;
  };
  constexpr uint64_t kMostMiB = uint64_t{1} << 24;
  const std::set<std::string> of_reach = {"--strategy", "--goal",       "--deadlocks",
                                          "--levels",   "--checkpoint", "--checkpoint-every",
                                          "--svg"};
  const std::set<std::string> of_job = {
      "-n",          "--save",     "--quiet", "--json",        "--remote",
      "--in-flight", "--look-ups", "--tasks", "--ack-timeout", "--timeout"};
  while (next < words.size() && error.empty()) {
    const std::string& word = words[next++];
    if (of_reach.count(word) != 0) arguments.of_reach = word;
    if (of_job.count(word) != 0) arguments.of_job = word;
    if (word == "-n") {
      arguments.processes = static_cast<int>(number(word, 1, 1 << 16));
    } else if (word == "--strategy") {
      const std::string text = value(word);
      bool known = false;
      for (const Strategy one : {Strategy::kBfs, Strategy::kChaining, Strategy::kSaturation}) {
        if (text != strategy_name(one)) continue;
        arguments.reach.strategy = one;
        known = true;
      }
      if (!known && error.empty()) error = "--strategy needs bfs, chaining or saturation";
    } else if (word == "--goal") {
      if (!arguments.goal.empty()) error = "--goal was given twice";
      arguments.goal = value(word);
    } else if (word == "--deadlocks") {
      arguments.reach.deadlocks = true;
    } else if (word == "--levels") {
      arguments.reach.max_levels = number(word, 1, UINT64_MAX);
    } else if (word == "--checkpoint") {
      arguments.reach.checkpoint = value(word);
    } else if (word == "--checkpoint-every") {
      const std::string text = value(word);
      if (error.empty() && (!absl::SimpleAtod(text, &arguments.reach.checkpoint_seconds) ||
                            !(arguments.reach.checkpoint_seconds >= 0 &&
                              arguments.reach.checkpoint_seconds <= 1e9))) {
        error = absl::StrCat("--checkpoint-every needs seconds from 0 to 1e9, not '", text, "'");
      }
    } else if (word == "--save") {
      arguments.save = value(word);
    } else if (word == "--svg") {
      arguments.svg = value(word);
    } else if (word == "--dot") {
      arguments.dot = value(word);
    } else if (word == "--table") {
      arguments.manager.table_bytes = number(word, 1, kMostMiB) << 20;
      has_table = true;
    } else if (word == "--memory") {
      arguments.manager.max_table_bytes = number(word, 1, kMostMiB) << 20;
    } else if (word == "--cache") {
      arguments.manager.cache_bytes = number(word, 1, kMostMiB) << 20;
    } else if (word == "--remote") {
      arguments.manager.remote = true;
    } else if (word == "--in-flight") {
      arguments.manager.in_flight = static_cast<uint32_t>(number(word, 1, 1 << 16));
    } else if (word == "--look-ups") {
      const std::string text = value(word);
      const auto by =
          std::find_if(kAllOperationsBy.begin(), kAllOperationsBy.end(),
                       [&](OperationsBy one) { return operations_by_name(one) == text; });
      if (by != kAllOperationsBy.end()) {
        arguments.manager.look_ups = *by;
      } else if (error.empty()) {
        error = "--look-ups needs auto, initiator or owner";
      }
    } else if (word == "--ack-timeout") {
      arguments.fabric.ack_timeout = std::chrono::milliseconds(number(word, 1, 60'000));
    } else if (word == "--timeout") {
      arguments.manager.timeout = std::chrono::seconds(number(word, 1, 1'000'000'000));
    } else if (word == "--tasks") {
      const std::string text = value(word);
      if (text == "pool") {
        arguments.model = TaskModel::kPool;
      } else if (text != "migrating" && error.empty()) {
        error = "--tasks needs migrating or pool";
      }
    } else if (word == "--quiet") {
      arguments.quiet = true;
    } else if (word == "--json") {
      arguments.json = true;
    } else if (word == "--help" || word == "-h") {
      arguments.help = true;
    } else if (word == "--version") {
      arguments.version = true;
    } else if (word.size() > 1 && word[0] == '-') {
      error = absl::StrCat("unknown option ", word);
    } else if (arguments.command.empty()) {
      arguments.command = word;
    } else if (arguments.operand.empty()) {
      arguments.operand = word;
    } else {
      error = absl::StrCat("unexpected argument '", word, "'");
    }
  }
  ManagerOptions& manager = arguments.manager;
  if (error.empty() && has_table && manager.table_bytes > manager.max_table_bytes) {
    error = "--table is larger than --memory";
  }
  manager.table_bytes = std::min(manager.table_bytes, manager.max_table_bytes);
  return error;
}

// Prints results, as rows of text or as JSON.
class Printer {
 public:
  Printer(bool active, bool json) : active_(active), json_(json) {}

  // `value` is a number.
  void row(const std::string& name, const std::string& value, const std::string& unit = "") const {
    if (!active_) return;
    if (json_) {
      std::printf("{\"name\": \"%s\", \"value\": %s%s}\n", name.c_str(), value.c_str(),
                  unit.empty() ? "" : absl::StrCat(", \"unit\": \"", unit, "\"").c_str());
    } else {
      std::printf("%-12s %24s %s\n", name.c_str(), value.c_str(), unit.c_str());
    }
  }
  void process(const ProcessRow& one) const {
    if (!active_) return;
    const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    std::printf(json_ ? "{\"name\": \"process\", \"rank\": %u, \"nodes_owned\": %llu, "
                        "\"tasks_run\": %llu, \"remote_find_or_puts\": %llu, \"steals\": %llu, "
                        "\"table_bytes\": %llu, \"peak_bytes\": %llu}\n"
                      : "rank %u: %llu nodes owned, %llu tasks run, %llu remote find-or-puts, "
                        "%llu steals, %llu bytes of table, %llu bytes at most\n",
                one.rank.value(), number(one.nodes_owned), number(one.tasks_run),
                number(one.remote_find_or_puts), number(one.steals), number(one.table_bytes),
                number(one.peak_bytes));
  }
  void trace(const std::vector<TraceStep>& steps) const {
    if (!active_) return;
    for (size_t i = 0; i < steps.size(); ++i) {
      std::string values;
      for (const uint64_t value : steps[i].values) {
        absl::StrAppend(&values, values.empty() ? "" : ",", value);
      }
      const std::string group = steps[i].group ? std::to_string(*steps[i].group) : "";
      if (json_) {
        std::printf("{\"name\": \"step\", \"value\": %zu, \"group\": %s, \"state\": [%s]}\n", i,
                    group.empty() ? "null" : group.c_str(), values.c_str());
      } else {
        std::printf("step %4zu  %-10s %s\n", i,
                    group.empty() ? "initial" : absl::StrCat("group ", group).c_str(),
                    values.c_str());
      }
    }
  }

 private:
  const bool active_;
  const bool json_;
};

// Returns an error if the file cannot be written, as far as the permissions tell.
absl::Status check_writable(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  struct stat found {};
  const bool opened = ::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode);
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int result = opened ? ::access(path.c_str(), W_OK) : ::access(folder.c_str(), W_OK | X_OK);
  return result == 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, "cannot write " + path);
}

// Checks, before a search that may take hours, the files that --save, --dot and --svg request.
// Every process gets the error of rank 0.
absl::Status check_outputs(const Arguments& arguments, Manager& manager) {
  absl::Status status;
  if (manager.rank() == 0) {
    for (const std::string* const path : {&arguments.svg, &arguments.save, &arguments.dot}) {
      status.Update(check_writable(*path));
    }
  }
  return manager.agree(status, "no result can be written");
}

// Writes the files that --save, --dot and --svg request. Rank 0 writes; every process gets its
// error.
absl::Status write_result(const Arguments& arguments, Manager& manager, const Bdd& result,
                          const std::function<std::string()>& svg) {
  const auto write = [&]() -> absl::Status {
    const std::array<Bdd, 1> functions{result};
    absl::Status status;
    if (!arguments.svg.empty()) status = write_file(arguments.svg, svg());
    if (status.ok() && !arguments.save.empty()) {
      status = manager.save_file(functions, arguments.save);
    }
    if (status.ok() && !arguments.dot.empty()) {
      status = write_file(arguments.dot, to_dot(manager.store(functions), {}));
    }
    return status;
  };
  return manager.agree(manager.rank() == 0 ? write() : absl::OkStatus(), "no result was written");
}

void print_processes(const Printer& print, const std::vector<ProcessRow>& rows) {
  uint64_t peak = 0;
  for (const ProcessRow& one : rows) peak = std::max(peak, one.peak_bytes);
  print.row("peak_bytes", std::to_string(peak), "B");
  for (const ProcessRow& one : rows) print.process(one);
}

// Returns true if --goal is an assignment, and false if it is the path of a file. Does not look for
// the file: the processes of a job may see different ones.
bool is_assignment(const std::string& goal) {
  return goal.find('=') != std::string::npos &&
         goal.find_first_not_of("0123456789=, ") == std::string::npos;
}

// Returns true if the file has saved diagrams.
bool has_diagrams(const std::string& path) {
  const absl::StatusOr<std::string> bytes = read_file(path);
  size_t offset = 0;
  return bytes.ok() && parse_diagrams(*bytes, offset).ok() && offset == bytes->size();
}

absl::StatusOr<ModelFile> read_model(const std::string& path) {
  absl::StatusOr<ModelFile> model = read_model_file(path);
  if (absl::IsInvalidArgument(model.status()) && has_diagrams(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has diagrams that --save has written, no model"));
  }
  return model;
}

int reach_model(const Arguments& arguments, Job& job) {
  Manager& manager = job.manager();
  const bool first = manager.rank() == 0;
  // All processes have the same error here: rank 0 prints it.
  const auto stop = [&](const absl::Status& status) { return first ? failed(status) : 1; };
  if (const absl::Status writable = check_outputs(arguments, manager); !writable.ok()) {
    return stop(writable);
  }
  const absl::StatusOr<ModelFile> file = read_model(arguments.operand);
  const absl::Status read = manager.agree(file.status(), "the model was not read",
                                          file.ok() ? checksum(format_model(*file)) : 0);
  if (!read.ok()) return stop(read);
  const Model model = load_model(manager, *file);
  ReachOptions options = arguments.reach;
  if (!arguments.goal.empty()) {
    if (is_assignment(arguments.goal)) {
      const absl::StatusOr<Bdd> goal = model.states_of(arguments.goal);
      if (!goal.ok()) return stop(goal.status());
      options.goal = *goal;
    } else {
      const absl::StatusOr<std::vector<Bdd>> goals = manager.load_file(arguments.goal);
      if (!goals.ok()) {
        const bool assigns = arguments.goal.find('=') != std::string::npos;
        return stop(absl::Status(goals.status().code(),
                                 absl::StrCat(goals.status().message(),
                                              assigns ? "; an assignment is like 3=1,7=0" : "")));
      }
      if (goals->size() != 1) {
        return stop(
            absl::InvalidArgumentError(absl::StrCat(arguments.goal, " does not hold one set")));
      }
      options.goal = (*goals)[0];
    }
  }
  const bool show = !arguments.quiet;
  if (show || !arguments.svg.empty()) {
    double last = 0;
    double states = 0;
    options.progress = [=](const ReachProgress& one) mutable {
      if (!first || !show) return;
      const double now = one.states.to_double();
      const double rate = one.seconds > last ? (now - states) / (one.seconds - last) : 0;
      // Counts above 2^1023 are no doubles.
      const std::string speed = std::isfinite(rate) ? absl::StrFormat("%12.4g", rate) : "-";
      std::fprintf(stderr, "level %5llu  %20s states  %10llu nodes  %12s states/s  %8.3f s\n",
                   static_cast<unsigned long long>(one.level), one.states.to_string().c_str(),
                   static_cast<unsigned long long>(one.nodes), speed.c_str(), one.seconds);
      last = one.seconds;
      states = now;
    };
  }
  const absl::StatusOr<ReachResult> result = reach(model, options);
  if (!result.ok()) return stop(result.status());
  if (first && show && result->first_level != 0) {
    std::fprintf(stderr, "continued from the checkpoint after level %llu\n",
                 static_cast<unsigned long long>(result->first_level));
  }
  // Before rank 0 prints: a slow reader of its output must not delay the other processes.
  const std::vector<ProcessRow> rows = job.process_rows();
  const Printer print(first, arguments.json);
  print.row("states", result->states.to_string());
  print.row("nodes", std::to_string(result->nodes));
  print.row("levels", std::to_string(result->levels));
  print.row("seconds", absl::StrCat(result->seconds), "s");
  print.row("complete", result->complete ? "1" : "0");
  if (options.goal) print.row("goal_reached", result->goal_reached ? "1" : "0");
  if (result->deadlocks) {
    print.row("deadlocks", result->deadlocks->count(model.variables).to_string());
  }
  print.trace(result->trace);
  print_processes(print, rows);
  // After the rows, which a file that cannot be written must not cost.
  const absl::Status written = write_result(arguments, manager, result->reached, [&] {
    const std::string title =
        absl::StrCat(arguments.operand.substr(arguments.operand.rfind('/') + 1), ", ",
                     std::string(strategy_name(options.strategy)), ", ", manager.size(),
                     manager.size() == 1 ? " process" : " processes");
    return progress_svg(title, result->history);
  });
  if (!written.ok()) return stop(written);
  return options.goal && !result->goal_reached ? 3 : 0;
}

int count_queens(const Arguments& arguments, Job& job) {
  Manager& manager = job.manager();
  uint32_t n = 0;
  if (!absl::SimpleAtoi(arguments.operand, &n) || n < 1 || n > 64) {
    return manager.rank() == 0 ? usage("queens needs a number from 1 to 64") : 2;
  }
  const auto stop = [&](const absl::Status& status) {
    return manager.rank() == 0 ? failed(status) : 1;
  };
  if (const absl::Status writable = check_outputs(arguments, manager); !writable.ok()) {
    return stop(writable);
  }
  const auto start = std::chrono::steady_clock::now();
  const Bdd placements = queens(manager, n);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::vector<uint32_t> squares;
  for (uint32_t i = 0; i < n * n; ++i) squares.push_back(i);
  const ExactCount count = placements.count(manager.cube(squares));
  const std::vector<ProcessRow> rows = job.process_rows();
  const Printer print(manager.rank() == 0, arguments.json);
  print.row("states", count.to_string());
  print.row("nodes", std::to_string(placements.nodes()));
  print.row("seconds", absl::StrCat(elapsed.count()), "s");
  print_processes(print, rows);
  const absl::Status written = write_result(arguments, manager, placements, nullptr);
  return written.ok() ? 0 : stop(written);
}

int draw(const Arguments& arguments) {
  absl::StatusOr<std::unique_ptr<Manager>> manager = Manager::create(arguments.manager);
  if (!manager.ok()) return failed(manager.status());
  const absl::StatusOr<std::vector<Bdd>> functions = (*manager)->load_file(arguments.operand);
  if (!functions.ok()) {
    return failed(
        absl::IsInvalidArgument(functions.status()) && read_model_file(arguments.operand).ok()
            ? absl::InvalidArgumentError(absl::StrCat(
                  arguments.operand, " is a model: dot draws a file that --save has written"))
            : functions.status());
  }
  const std::string dot = to_dot((*manager)->store(*functions), {});
  if (arguments.dot.empty()) {
    std::fputs(dot.c_str(), stdout);
    return 0;
  }
  const absl::Status status = write_file(arguments.dot, dot);
  return status.ok() ? 0 : failed(status);
}

// A process of a job that supervise() has started ends with this code instead of 1 after an error
// that it has reported. Any other code means that the process was killed, or ended because another
// process was killed.
constexpr int kReported = 4;
constexpr const char* kSupervised = "CARIAMA_BDD_SUPERVISED";

// Starts the processes of the job, and prints the loss after a failure. Returns the exit code:
// that of a process which a signal has killed (128 + n), else one of those in the help text.
int supervise(const Arguments& arguments, int argc, char** argv) {
  ::setenv(kSupervised, "1", 1);
  const absl::StatusOr<int> code =
      launch({.processes = arguments.processes, .command = {argv, argv + argc}});
  if (!code.ok()) return failed(code.status());
  if (*code == kReported) return 1;
  if (*code != 0 && *code != 2 && *code != 3) {
    const std::string& folder = arguments.reach.checkpoint;
    failed(folder.empty()
               ? "a process ended. Its part of the node table is lost, and with it all states "
                 "reached. With --checkpoint DIR, a search can be continued"
               : absl::StrCat(
                     "a process has failed. Its part of the node table is lost, and with it the "
                     "levels since the last checkpoint. The same command continues from "
                     "the checkpoint in ",
                     folder));
    if (*code < 128)
      return 1;  // the task runtime, for example, ends a process with a code of its own
  }
  return *code;
}

using Body = int (*)(const Arguments&, Job&);

int run_job(const Arguments& arguments, Body body) {
  absl::StatusOr<std::unique_ptr<Job>> job =
      Job::create(arguments.manager, arguments.model, arguments.fabric);
  if (!job.ok()) return failed(job.status());
  const Manager& manager = (*job)->manager();
  if (arguments.processes != 0 && arguments.processes != manager.size() && manager.rank() == 0) {
    std::fprintf(stderr, "cariama-bdd: -n is ignored: the launcher has started %d processes\n",
                 manager.size());
  }
  const int code = body(arguments, **job);
  // The results are written before the job ends, since an error at its end may end the process.
  // Only rank 0 has results. The others wait as long as the reader of its output takes.
  const absl::Status flushed = flush_output();
  const absl::Status written = manager.agree(flushed, "the results were not written");
  if (!written.ok()) return manager.rank() == 0 || !flushed.ok() ? failed(written) : 1;
  const absl::Status ended = (*job)->end();
  return ended.ok() ? code : failed(ended);
}

int run(int argc, char** argv) {
  Arguments arguments;
  const std::string error = read(argc, argv, arguments);
  if (!error.empty()) return usage(error);
  if (arguments.help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (arguments.version) {
    std::printf("cariama-bdd %s\n", std::string(cariama::version()).c_str());
    return 0;
  }
  const Body body = arguments.command == "reach"    ? reach_model
                    : arguments.command == "queens" ? count_queens
                                                    : nullptr;
  if (arguments.operand.empty()) {
    return usage("the command must be reach MODEL, queens N or dot FILE");
  }
  const bool dot = arguments.command == "dot";
  if (body == nullptr && !dot) return usage("the command must be reach, queens or dot");
  if (body != reach_model && !arguments.of_reach.empty()) {
    return usage(absl::StrCat(arguments.command, " has no option ", arguments.of_reach));
  }
  if (dot && !arguments.of_job.empty()) {
    return usage(absl::StrCat("dot has no option ", arguments.of_job));
  }
  if (!dot && !Job::launched() && arguments.processes > 1) {
    return supervise(arguments, argc, argv);
  }
  if (Job::launched()) {
    // Migrating tasks need equal addresses in all processes.
    if (const auto code = start_workers({}, argc, argv)) return *code;
  }
  try {
    return dot ? draw(arguments) : run_job(arguments, body);
  } catch (const std::bad_alloc&) {
    return failed("there is no memory");
  } catch (const std::exception& problem) {
    return failed(problem.what());
  }
}

}  // namespace
}  // namespace cariama::bdd

int main(int argc, char** argv) {
  // A write beyond the limit for files (ulimit -f) returns an error.
  std::signal(SIGXFSZ, SIG_IGN);
  const int code =
      cariama::run_program("cariama-bdd", [&] { return cariama::bdd::run(argc, argv); });
  const bool supervised = cariama::bdd::Job::launched() && std::getenv(cariama::bdd::kSupervised);
  return code == 1 && supervised ? cariama::bdd::kReported : code;
}
