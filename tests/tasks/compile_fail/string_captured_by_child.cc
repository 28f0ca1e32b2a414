// error: cariama: this function or argument of a task is not trivially copyable, for example
// because it owns memory as std::string does, but it travels as bytes; capture and pass plain data
// (a neutral element: a function that returns it)
#include <string>

#include "tasks/task.h"

void example(const std::string& text) {
#ifdef CARIAMA_MUST_NOT_COMPILE
  cariama::join(cariama::spawn([text] { return text.size(); }));
#else
  const size_t size = text.size();
  cariama::join(cariama::spawn([size] { return size; }));
#endif
}
