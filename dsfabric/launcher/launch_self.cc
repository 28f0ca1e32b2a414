// Parses the options of cariama-run; implements programs that launch themselves.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dsfabric/bootstrap.h"
#include "dsfabric/launcher.h"
#include "dtutils/error.h"

namespace cariama {
namespace {

constexpr int kUsage = 2;
constexpr int kNotStarted = 125;
constexpr int kCannotRun = 126;
constexpr int kNoProgram = 127;

// Parses options until the first argument that is not one. `error` describes an invalid option.
class OptionReader {
 public:
  OptionReader(std::span<const char* const> arguments, LaunchOptions& options)
      : arguments_(arguments), options_(options) {}

  // Returns the number of arguments that were consumed.
  size_t read() {
    while (error.empty() && next_ < arguments_.size()) {
      const std::string_view argument = arguments_[next_];
      if (argument == "--") return next_ + 1;
      if (argument.size() < 2 || argument[0] != '-') break;
      ++next_;
      if (!read_option(argument)) return next_ - 1;
    }
    return next_;
  }

  std::string error;

 private:
  // Parses "-n4", "-n 4", "--bind=core", "--bind core". Returns false if the argument is not an
  // option of cariama-run.
  bool read_option(std::string_view argument) {
    const bool is_long = argument[1] == '-';
    const size_t equals = is_long ? argument.find('=') : std::string_view::npos;
    const size_t name_ends = is_long ? std::min(equals, argument.size()) : 2;
    name_ = argument.substr(0, name_ends);
    has_attached_ = name_ends < argument.size();
    attached_ = has_attached_ ? argument.substr(name_ends + (is_long ? 1 : 0)) : "";
    if (name_ == "-n") {
      number(1, 1 << 20, options_.processes);
    } else if (name_ == "-t") {
      int threads = 0;
      if (number(1, 1 << 16, threads)) options_.threads = static_cast<uint32_t>(threads);
    } else if (name_ == "--bind") {
      bind();
    } else if (name_ == "--place") {
      options_.place = value();
      if (options_.place.empty() && error.empty()) error = "--place needs zone-endpoint or a file";
    } else if (name_ == "--timeout") {
      seconds(options_.timeout);
    } else if (name_ == "--grace") {
      seconds(options_.grace);
    } else if (name_ == "--tag-output" && !has_attached_) {
      options_.tag_output = true;
    } else if (name_ == "--keep-going" && !has_attached_) {
      options_.keep_going = true;
    } else {
      return false;
    }
    return true;
  }

  std::string value() {
    if (has_attached_) return std::string(attached_);
    if (next_ < arguments_.size()) return arguments_[next_++];
    error = absl::StrCat(std::string(name_), " needs a value");
    return {};
  }

  bool number(int least, int most, int& result) {
    const std::string text = value();
    if (!error.empty()) return false;
    int number = 0;
    if (absl::SimpleAtoi(text, &number) && number >= least && number <= most) {
      result = number;
      return true;
    }
    error = absl::StrCat(std::string(name_), " needs a number from ", least, " to ", most,
                         ", not '", text, "'");
    return false;
  }

  void seconds(std::chrono::milliseconds& result) {
    const std::string text = value();
    double count = 0;
    if (!error.empty()) return;
    if (!absl::SimpleAtod(text, &count) || !(count > 0) || count > 1e9) {
      error = absl::StrCat(std::string(name_), " needs a time in seconds, not '", text, "'");
      return;
    }
    result = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(count));
  }

  void bind() {
    const std::string text = value();
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

  const std::span<const char* const> arguments_;
  LaunchOptions& options_;
  size_t next_ = 0;
  // The option that is being parsed.
  std::string_view name_;
  std::string_view attached_;  // its value, if in the same argument
  bool has_attached_ = false;
};

// Returns the path of this program's executable, independent of the working directory and of
// argv[0].
std::string own_program(const char* called) {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return called;  // no /proc here
  path.resize(static_cast<size_t>(length));
  return path;
}

absl::StatusOr<int> launch_program(LaunchOptions& options, int argc, const char* const* argv) {
  const std::span<const char* const> arguments(argv + 1, static_cast<size_t>(argc) - 1);
  const absl::StatusOr<size_t> read = read_launch_options(arguments, options);
  if (!read.ok()) return read.status();
  options.command.assign(1, own_program(argv[0]));
  options.command.insert(options.command.end(), arguments.begin() + static_cast<ptrdiff_t>(*read),
                         arguments.end());
  return launch(options);
}

}  // namespace

absl::StatusOr<size_t> read_launch_options(std::span<const char* const> arguments,
                                           LaunchOptions& options) {
  OptionReader reader(arguments, options);
  const size_t read = reader.read();
  if (reader.error.empty()) return read;
  return make_error(absl::StatusCode::kInvalidArgument, ErrorScope::kOperation, reader.error);
}

int launch_exit_code(const absl::Status& refusal) {
  if (refusal.code() == absl::StatusCode::kInvalidArgument) return kUsage;
  if (error_scope(refusal) != ErrorScope::kProcess) return kNotStarted;
  if (refusal.code() == absl::StatusCode::kNotFound) return kNoProgram;
  return refusal.code() == absl::StatusCode::kPermissionDenied ? kCannotRun : kNotStarted;
}

std::optional<int> launch_self(LaunchOptions options, int argc, const char* const* argv) {
  const absl::StatusOr<BootstrapKind> starter = find_bootstrap();
  // Let make_bootstrap() report the error. If CARIAMA_BOOTSTRAP is "single", the user asked for
  // one process.
  if (!starter.ok() || *starter != BootstrapKind::kSingle ||
      getenv("CARIAMA_BOOTSTRAP") != nullptr) {
    return std::nullopt;
  }
  const absl::StatusOr<int> code = launch_program(options, argc, argv);
  if (code.ok()) return *code;
  std::fprintf(stderr, "%s: %s\n", argv[0], std::string(code.status().message()).c_str());
  return launch_exit_code(code.status());
}

}  // namespace cariama
