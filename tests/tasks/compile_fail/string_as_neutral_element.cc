// error: cariama: this function or argument of a task is not trivially copyable, for example
// because it owns memory as std::string does, but it travels as bytes; capture and pass plain data
// (a neutral element: a function that returns it)
#include <string>

#include "tasks/parallel.h"

void example(long n) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  const auto sum = cariama::parallel_reduce(
      0L, n, std::string(), [](long i) { return std::to_string(i); },
      [](std::string a, std::string b) { return a + b; });
#else
  const auto sum = cariama::parallel_reduce(
      0L, n, [] { return std::string(); }, [](long i) { return std::to_string(i); },
      [](std::string a, std::string b) { return a + b; });
#endif
  static_cast<void>(sum);
}
