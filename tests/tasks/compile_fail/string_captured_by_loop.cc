// error: cariama: this function or argument of a task is not trivially copyable, for example
// because it owns memory as std::string does, but it travels as bytes; capture and pass plain data
// (a neutral element: a function that returns it)
#include <string>

#include "tasks/parallel.h"

void example(long n, const std::string& text) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::parallel_for(0L, n, [text](long i) { static_cast<void>(text.size() + i); });
#else
  const size_t size = text.size();
  cariama::parallel_for(0L, n, [size](long i) { static_cast<void>(size + i); });
#endif
}
