// cariama-run: starts the processes of a job on this host.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dsfabric/launcher.h"
#include "dtutils/error.h"

namespace cariama {
namespace {

constexpr const char* kHelp =
    "cariama-run: starts a job of several processes on this host, and sees to its end.\n"
    "\n"
    "  cariama-run -n P [options] [--] program [arguments]\n"
    "\n"
    "  -n P                 processes\n"
    "  -t T                 long-lived threads in each\n"
    "  --bind none          processes run anywhere (default)\n"
    "  --bind core          each thread has a core of its own\n"
    "  --bind numa          each process stays on one NUMA node\n"
    "  --place zone-endpoint\n"
    "                       the processes go through all pairs of a NUMA node and an active RDMA\n"
    "                       port; without -n there is one for each pair\n"
    "  --place FILE         as the file says, one line per process: RANK NODE [DEVICE[:PORT]]\n"
    "  --timeout S          ends the job after S seconds; exit code 124\n"
    "  --grace S            when the job is ended, processes have S seconds (default 5) between\n"
    "                       SIGTERM and SIGKILL\n"
    "  --tag-output         writes [RANK] before each line of output\n"
    "  --keep-going         a process that fails does not end the job\n"
    "  --help               this text\n"
    "\n"
    "Ctrl-C is passed on to all processes; a second one kills them. Standard input goes to\n"
    "rank 0. If a process fails, the others are ended, and stderr says which failed and how.\n"
    "\n"
    "Exit code: 0, or that of the process that failed first (128+n: killed by signal n);\n"
    "124 after the timeout, 125 if the job could not be started, 126 and 127 if the program\n"
    "cannot be run or is not there, 2 for wrong usage.\n";

constexpr int kUsage = 2;
constexpr int kNotStarted = 125;
constexpr int kCannotRun = 126;
constexpr int kNoProgram = 127;

// Reads the command line; what cannot be read is kept in `error`.
class CommandLine {
 public:
  CommandLine(int argc, char** argv) : arguments_(argv + 1, argv + argc) {}

  LaunchOptions read() {
    while (error.empty() && !help && next_ < arguments_.size()) {
      const std::string argument = arguments_[next_];
      if (argument == "--") {
        ++next_;
        break;
      }
      if (argument.size() < 2 || argument[0] != '-') break;
      ++next_;
      read_option(argument);
    }
    options_.command.assign(arguments_.begin() + static_cast<ptrdiff_t>(next_), arguments_.end());
    return options_;
  }

  std::string error;
  bool help = false;

 private:
  // "-n4", "-n 4", "--bind=core", "--bind core".
  void read_option(const std::string& argument) {
    const bool is_long = argument[1] == '-';
    const size_t equals = is_long ? argument.find('=') : std::string::npos;
    name_ = is_long ? argument.substr(0, equals) : argument.substr(0, 2);
    attached_ = is_long ? (equals == std::string::npos ? "" : argument.substr(equals + 1))
                        : argument.substr(2);
    has_attached_ = is_long ? equals != std::string::npos : argument.size() > 2;
    if (name_ == "-n") {
      number(1, 1 << 20, options_.processes);
    } else if (name_ == "-t") {
      int threads = 0;
      if (number(1, 1 << 16, threads)) options_.threads = static_cast<uint32_t>(threads);
    } else if (name_ == "--bind") {
      bind();
    } else if (name_ == "--place") {
      if (value().empty() && error.empty()) error = "--place needs zone-endpoint or a file";
      options_.place = last_;
    } else if (name_ == "--timeout") {
      seconds(options_.timeout);
    } else if (name_ == "--grace") {
      seconds(options_.grace);
    } else if (name_ == "--tag-output" && !has_attached_) {
      options_.tag_output = true;
    } else if (name_ == "--keep-going" && !has_attached_) {
      options_.keep_going = true;
    } else if ((name_ == "--help" || name_ == "-h") && !has_attached_) {
      help = true;
    } else {
      error = absl::StrCat("unknown option ", argument);
    }
  }

  const std::string& value() {
    last_.clear();
    if (has_attached_) return last_ = attached_;
    if (next_ < arguments_.size()) return last_ = arguments_[next_++];
    error = name_ + " needs a value";
    return last_;
  }

  bool number(int least, int most, int& result) {
    const std::string text = value();
    if (!error.empty()) return false;
    if (absl::SimpleAtoi(text, &result) && result >= least && result <= most) return true;
    error = absl::StrCat(name_, " needs a number from ", least, " to ", most, ", not '", text, "'");
    return false;
  }

  void seconds(std::chrono::milliseconds& result) {
    const std::string text = value();
    double count = 0;
    if (!error.empty()) return;
    if (!absl::SimpleAtod(text, &count) || !(count > 0) || count > 1e9) {
      error = absl::StrCat(name_, " needs a time in seconds, not '", text, "'");
      return;
    }
    result = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(count));
  }

  void bind() {
    const std::string& text = value();
    if (text == "none") {
      options_.bind = Binding::kNone;
    } else if (text == "core") {
      options_.bind = Binding::kCore;
    } else if (text == "numa") {
      options_.bind = Binding::kNuma;
    } else if (error.empty()) {
      error = absl::StrCat("--bind knows none, core and numa, not '", text, "'");
    }
  }

  const std::vector<std::string> arguments_;
  size_t next_ = 0;
  std::string name_;      // of the option that is being read
  std::string attached_;  // its value, if in the same argument
  bool has_attached_ = false;
  std::string last_;
  LaunchOptions options_;
};

int run(int argc, char** argv) {
  CommandLine line(argc, argv);
  const LaunchOptions options = line.read();
  if (line.help) {
    std::fputs(kHelp, stdout);
    return std::fflush(stdout) == 0 ? 0 : 1;
  }
  if (!line.error.empty()) {
    std::fprintf(stderr, "cariama-run: %s (see cariama-run --help)\n", line.error.c_str());
    return kUsage;
  }
  const absl::StatusOr<int> code = launch(options);
  if (code.ok()) return *code;
  std::fprintf(stderr, "cariama-run: %s\n", std::string(code.status().message()).c_str());
  if (code.status().code() == absl::StatusCode::kInvalidArgument) return kUsage;
  if (error_scope(code.status()) != ErrorScope::kProcess) return kNotStarted;
  if (code.status().code() == absl::StatusCode::kNotFound) return kNoProgram;
  return code.status().code() == absl::StatusCode::kPermissionDenied ? kCannotRun : kNotStarted;
}

}  // namespace
}  // namespace cariama

int main(int argc, char** argv) { return cariama::run(argc, argv); }
