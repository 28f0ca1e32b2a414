// For the examples: --help, --version, and errors for arguments that an example does not know and
// for output that is lost.
#ifndef CARIAMA_DOCS_EXAMPLES_OPTIONS_H_
#define CARIAMA_DOCS_EXAMPLES_OPTIONS_H_

#include <errno.h>  // program_invocation_short_name

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string_view>

#include "dsfabric/launcher.h"
#include "dtutils/version.h"

struct ExampleOptions {
  bool launches = true;  // the options of cariama-run may precede the arguments
  int operands = 0;      // number of positional arguments that the example accepts
};

// Called at the end of the program: makes the exit code 1 if its output could not be written.
inline void check_output() {
  std::cout.flush();
  if (std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  std::cerr << program_invocation_short_name << ": cannot write to standard output\n";
  std::_Exit(1);
}

// Ends the program if the arguments ask for --help or --version (exit code 0), or contain any that
// the example does not know (exit code 2). `options` names the options that were read before.
template <typename Arguments>
void read_arguments(const Arguments& arguments, std::string_view options, int operands = 0) {
  const char* const name = program_invocation_short_name;
  std::atexit(&check_output);
  const std::string_view first = arguments.empty() ? "" : std::string_view(arguments[0]);
  if (first == "--version") {
    std::cout << name << ' ' << cariama::version() << '\n';
    std::exit(0);
  }
  if (first == "--help") {
    std::cout << "Usage: " << name << " [--help | --version]" << options
              << (operands > 0 ? " [FILE]" : "") << '\n';
    std::exit(0);
  }
  for (const std::string_view argument : arguments) {
    if (!argument.starts_with('-') && arguments.size() <= static_cast<size_t>(operands)) continue;
    std::cerr << name << ": unknown argument " << argument << "; see --help\n";
    std::exit(2);
  }
}

// Ends the program in the same cases, for the arguments of a command line.
inline void read_options(int argc, const char* const* argv, const ExampleOptions& known = {}) {
  std::span arguments(argv + 1, static_cast<size_t>(argc) - 1);
  if (known.launches) {
    cariama::LaunchOptions ignored;  // launch_self() reads these options again, and reports errors
    const auto read = cariama::read_launch_options(arguments, ignored);
    arguments = arguments.subspan(read.ok() ? *read : arguments.size());
  }
  read_arguments(arguments,
                 known.launches ? " [-n PROCESSES] [-t THREADS] [OPTION OF cariama-run]..." : "",
                 known.operands);
}

#endif  // CARIAMA_DOCS_EXAMPLES_OPTIONS_H_
