// The command line of a benchmark whose options are Abseil flags, and --version for all benchmarks.
#ifndef CARIAMA_BENCH_SUPPORT_FLAGS_H_
#define CARIAMA_BENCH_SUPPORT_FLAGS_H_

#include <string>
#include <string_view>
#include <vector>

namespace cariama::bench {

// Parses the Abseil flags of the program. Returns the other arguments, with the program's name
// first. `usage` describes the program, and shows examples of its command line.
//
// --help prints `usage` and the flags of the program, --version the version; both end the process
// with exit code 0. (Abseil's own --help ends it with 1.) An unknown flag ends it with exit code 1.
// Names of flags may be spelled with '-' in place of '_': --in-flight is --in_flight. The function
// changes `argv`.
std::vector<char*> parse_flags(int argc, char** argv, const std::string& usage);

// Prints "PROGRAM VERSION". Returns the exit code of the program: 0, or 1 if the output cannot be
// written.
int print_version(std::string_view program);

}  // namespace cariama::bench

#endif  // CARIAMA_BENCH_SUPPORT_FLAGS_H_
