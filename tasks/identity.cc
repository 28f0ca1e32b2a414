#include "tasks/identity.h"

#include <sys/auxv.h>

#include <cstdio>
#include <cstring>
#include <typeinfo>

#include "tasks/context.h"

#if defined(__aarch64__)
extern "C" uintptr_t __stack_chk_guard;
#endif

namespace cariama::tasks {

Identity this_identity(uint64_t stack_bytes) {
  Identity identity;
  identity.code = reinterpret_cast<uint64_t>(&cariama_fork);
  identity.program = getauxval(AT_ENTRY);
  identity.c_library = reinterpret_cast<uint64_t>(&std::fopen);
  std::memcpy(&identity.cpp_runtime, static_cast<const void*>(&typeid(int)),
              sizeof identity.cpp_runtime);  // its vtable
#if defined(__x86_64__)
  asm("movq %%fs:0x28, %0" : "=r"(identity.canary));
  asm("movq %%fs:0, %0" : "=r"(identity.thread));
#elif defined(__aarch64__)
  identity.canary = __stack_chk_guard;
  asm("mrs %0, tpidr_el0" : "=r"(identity.thread));
#endif
  identity.stack_bytes = stack_bytes;
  return identity;
}

std::string difference(const Identity& mine, const Identity& theirs) {
  const char* fork = "start all workers of a host by fork from one process";
  const struct {
    uint64_t mine;
    uint64_t theirs;
    const char* what;
    const char* remedy;
    bool secret = false;
  } rows[] = {
      {mine.program, theirs.program, "the address of the program", fork},
      {mine.code, theirs.code, "the address of the task library", fork},
      {mine.c_library, theirs.c_library, "the address of the C library", fork},
      {mine.cpp_runtime, theirs.cpp_runtime, "the address of the C++ runtime", fork},
      {mine.canary, theirs.canary, "the canary of the stack protector", fork, true},
      {mine.thread, theirs.thread, "the address of thread-local memory", fork},
      {mine.stack_bytes, theirs.stack_bytes, "TaskOptions::stack_bytes",
       "give every worker the same options"},
  };
  for (const auto& row : rows) {
    if (row.mine == row.theirs) continue;
    char text[256];
    if (row.secret) {  // compared, not shown
      std::snprintf(text, sizeof text, "%s differs: %s", row.what, row.remedy);
    } else {
      std::snprintf(text, sizeof text, "%s differs (%#llx here, %#llx there): %s", row.what,
                    static_cast<unsigned long long>(row.mine),
                    static_cast<unsigned long long>(row.theirs), row.remedy);
    }
    return text;
  }
  return "";
}

}  // namespace cariama::tasks
