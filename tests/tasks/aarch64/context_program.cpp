// The exercises of tests/tasks/context_test.cc as a separate program. The suffix is .cpp because the
// build does not compile it: the test compiles it with a cross compiler.
#include <cstdio>

#include "tests/tasks/context_exercise.h"

int main() {
  using namespace cariama::tasks::testing;  // NOLINT(google-build-using-namespace)
  const struct {
    const char* name;
    const char* (*exercise)();
  } exercises[] = {{"fork", exercise_fork},
                   {"steal", exercise_steal},
                   {"suspend", exercise_suspend},
                   {"unwind", exercise_unwind}};
  int failed = 0;
  for (const auto& each : exercises) {
    const char* const wrong = each.exercise();
    if (wrong == nullptr) continue;
    std::printf("%s: %s\n", each.name, wrong);
    failed = 1;
  }
  return failed;
}
