#include "bench/support/flags.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "dtutils/version.h"

namespace cariama::bench {
namespace {

int print_help(const std::string& usage) {
  // In the order of their names. Flags of Abseil itself are left out.
  std::map<std::string, const absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::StrContains(flag->Filename(), "bench/")) flags.emplace(name, flag);
  }
  std::printf("%s\n\n", usage.c_str());
  for (const auto& [name, flag] : flags) {
    const std::string value = flag->DefaultValue();
    std::printf("  --%s (%s)\n      %s\n", name.c_str(), value.empty() ? "\"\"" : value.c_str(),
                flag->Help().c_str());
  }
  std::printf("  --help\n      this text\n  --version\n      prints the version of Cariama\n");
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace

std::vector<char*> parse_flags(int argc, char** argv, const std::string& usage) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") break;
    if (argument.starts_with("--")) {  // Abseil knows only the spelling with '_'
      char* const name = argv[i] + 2;
      std::replace(name, std::find(name, argv[i] + argument.size(), '='), '-', '_');
    }
    if (argument == "--help" || argument == "-h") std::exit(print_help(usage));
    if (argument == "--version") {
      const std::string_view program = argv[0];
      std::exit(print_version(program.substr(program.rfind('/') + 1)));
    }
  }
  absl::SetProgramUsageMessage(usage);
  return absl::ParseCommandLine(argc, argv);
}

int print_version(std::string_view program) {
  std::printf("%s %s\n", std::string(program).c_str(), std::string(version()).c_str());
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace cariama::bench
