// For tests whose jobs run the test program again, with --role=NAME as its first argument.
#ifndef CARIAMA_TESTS_DSFABRIC_TESTING_ROLE_H_
#define CARIAMA_TESTS_DSFABRIC_TESTING_ROLE_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace cariama::testing {

inline constexpr std::string_view kRole = "--role=";

// Returns the command that runs this program in a role. Roles with spaces need quotes.
inline std::string in_role(const std::string& role) {
  return "/proc/" + std::to_string(getpid()) + "/exe " + std::string(kRole) + role;
}

// Called by main(): plays the role of the first argument, or runs the tests.
template <typename Play>
int play_or_test(int argc, char** argv, Play play) {
  if (argc > 1 && std::string_view(argv[1]).substr(0, kRole.size()) == kRole) {
    return play(std::string_view(argv[1]).substr(kRole.size()));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace cariama::testing

#endif  // CARIAMA_TESTS_DSFABRIC_TESTING_ROLE_H_
